"""A primary-key bucket against a model: a dict for the state, a list for the changelog, copies for scans.

Real files and the real default engine. Reopening is a rule like any other, graceful or not.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forebay.base.ambient import ManualClock, SeededIds
from forebay.fs.local import LocalFileSystem
from forebay.kv.checkpoint import KvFolder
from forebay.kv.lmdb.lmdb_engine import LmdbEngine
from forebay.kv.scanner import ScannerLimits, ScannerManager
from forebay.kv.tablet import KvTablet
from forebay.log.tablet import LogTablet
from forebay.metadata import types
from forebay.metadata.table import Column, TableBucket
from tests.every_run import examples
from tests.kv.tables import FakeTable, Row

KEYS = st.integers(0, 9)
NAMES = st.none() | st.text(max_size=5)
SCORES = st.none() | st.integers(-5, 5)
BUCKET = TableBucket(1, 0)


@dataclass
class Scan:
    """A scan under way: what it has seen, and what it must see."""

    size: int
    names: list[str]
    expected: list[Row]
    seen: list[Row] = field(default_factory=list)
    calls: int = 0


class PrimaryKeyBucket(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.table = FakeTable()
        self.model: dict[int, Row] = {}
        self.changelog: list[tuple[int, str, Row]] = []
        self.next_offset = 0
        self.scans: dict[bytes, Scan] = {}
        self.scanners = ScannerManager(ScannerLimits(per_bucket_max=100), ManualClock(), SeededIds(1))
        self.boot = "boot-0"

    @initialize()
    def open(self) -> None:
        self._open()

    def _open(self) -> None:
        fs = LocalFileSystem()
        self.folder = KvFolder(fs, str(self.directory / "kv"))
        self.log = LogTablet.open(fs, str(self.directory / "log"))
        self.engine = self.folder.open_engine(
            lambda path: LmdbEngine(path, 1 << 22), lambda folder: frozenset({self.boot})
        )
        self.tablet = KvTablet(self.table, self.log, self.engine, lambda count: 1)
        self.tablet.recover()

    def teardown(self) -> None:
        self.scanners.shut_down()
        if hasattr(self, "engine"):
            self.engine.close()
            self.log.close()
        shutil.rmtree(self.directory)

    # ---- writes -----------------------------------------------------------------------------------------------------

    def _changed(self, key: int, new: Row | None) -> None:
        old = self.model.get(key)
        records = [
            (kind, r) for kind, r in (("-U" if new else "-D", old), ("+U" if old else "+I", new)) if r is not None
        ]
        if old is None and new is None:
            return
        for kind, r in records:
            self.changelog.append((self.next_offset, kind, dict(r)))
            self.next_offset += 1
        if new is None:
            self.model.pop(key, None)
        else:
            self.model[key] = new

    def _put(self, rows: list[Row], deletes: list[bool], targets: tuple[str, ...] = ()) -> None:
        before = self.next_offset
        for given, gone in zip(rows, deletes):
            self._model_write(given, gone, targets)
        if self.next_offset == before:
            self.next_offset += 1  # an empty batch takes one offset
        (result,) = self.tablet.put_group([self.table.request(rows, deletes, targets=targets)])
        assert result.error is None
        assert result.log_end_offset == self.next_offset

    def _model_write(self, given: Row, gone: bool, targets: tuple[str, ...]) -> None:
        key = given["id"]
        names = self.table.info.schema.names
        old = self.model.get(key)
        if not targets:
            self._changed(key, None if gone else {name: given.get(name) for name in names})
        elif gone and old is not None:
            left = {name: None if name in targets and name != "id" else old[name] for name in names}
            rest = any(left[name] is not None for name in names if name not in targets)
            self._changed(key, left if rest else None)
        elif not gone and not (old is not None and targets == ("id",)):
            base = old or dict.fromkeys(names)
            self._changed(key, base | {name: given.get(name) for name in targets})

    @rule(batch=st.lists(st.tuples(KEYS, NAMES, SCORES, st.booleans()), min_size=1, max_size=6))
    def put_and_delete(self, batch: list[tuple[int, Any, Any, bool]]) -> None:
        rows = [{"id": key, "name": name, "score": score} for key, name, score, _ in batch]
        self._put(rows, [gone for *_, gone in batch])

    @rule(
        batch=st.lists(st.tuples(KEYS, NAMES, SCORES, st.booleans()), min_size=1, max_size=4),
        written=st.sampled_from([("id", "name"), ("id", "score"), ("id",)]),
    )
    def partial_update(self, batch: list[tuple[int, Any, Any, bool]], written: tuple[str, ...]) -> None:
        rows = [{"id": key, "name": name, "score": score} for key, name, score, _ in batch]
        self._put(rows, [gone for *_, gone in batch], written)

    @rule(data=st.data())
    def add_column(self, data: st.DataObject) -> None:
        if len(self.table.info.schema.columns) >= 6:
            return
        name = f"added{len(self.table.info.schema.columns)}"
        self.table.add_column(Column(name, data.draw(st.sampled_from([types.int_(), types.string()]))))
        for r in self.model.values():
            r[name] = None
        self.changelog = [(offset, kind, r | {name: None}) for offset, kind, r in self.changelog]

    # ---- scans ------------------------------------------------------------------------------------------------------

    @rule(size=st.integers(1, 200))
    def open_scan(self, size: int) -> None:
        session, offset = self.scanners.open(BUCKET, self.tablet.snapshot, None)
        assert offset == self.next_offset
        if session is None:
            assert not self.model
            return
        expected = [dict(self.model[key]) for key in sorted(self.model)]
        self.scans[session.scanner_id] = Scan(size, list(self.table.info.schema.names), expected)

    @rule(data=st.data())
    def scan_page(self, data: st.DataObject) -> None:
        if not self.scans:
            return
        scanner_id = data.draw(st.sampled_from(sorted(self.scans)))
        scan = self.scans[scanner_id]
        page = self.scanners.page(scanner_id, scan.calls, scan.size)
        assert self.scanners.page(scanner_id, scan.calls, scan.size) == page  # a lost answer, asked for again
        scan.calls += 1
        scan.seen += [{name: r[name] for name in scan.names} for r in self.table.rows_of_page(page.records)]
        if not page.has_more:
            del self.scans[scanner_id]
            assert sorted(scan.seen, key=lambda r: r["id"]) == scan.expected

    # ---- restarts ---------------------------------------------------------------------------------------------------

    def _drop_scans(self) -> None:
        self.scanners.close_bucket(BUCKET)
        self.scans.clear()

    @rule()
    def reopen_after_an_orderly_close(self) -> None:
        self._drop_scans()
        self.folder.close_engine(self.engine)
        self.log.close()
        self.boot = "another boot"  # does not matter after a clean close
        self._open()

    @rule(rebooted=st.booleans())
    def reopen_without_a_close(self, rebooted: bool) -> None:
        """As after a kill; `rebooted` as after a power cut, when the engine's files must not be trusted."""
        self._drop_scans()
        self.engine.close()
        if rebooted:
            self.boot += "'"
            (self.directory / "kv" / "db" / "data.mdb").write_bytes(b"torn" * 100)
        self._open()

    @rule()
    def checkpoint(self) -> None:
        assert self.folder.write_checkpoint(self.engine) == self.next_offset
        assert self.folder.retained_offset == self.next_offset

    # ---- what must always hold --------------------------------------------------------------------------------------

    @invariant()
    def state_and_changelog_agree_with_the_model(self) -> None:
        if not hasattr(self, "tablet"):
            return
        keys = list(range(10))
        found = self.tablet.lookup([self.table.key(key) for key in keys])
        present = [key for key, value in zip(keys, found) if value is not None]
        assert present == sorted(self.model)
        rows = self.table.rows_of_values([value for value in found if value is not None])
        assert rows == [self.model[key] for key in present]
        assert self.tablet.row_count == len(self.model)
        assert self.tablet.applied_offset == self.log.log_end_offset == self.next_offset

    @rule()
    def changelog_is_complete_and_in_order(self) -> None:
        assert self.table.changelog(self.log) == self.changelog


TestPrimaryKeyBucket = PrimaryKeyBucket.TestCase
TestPrimaryKeyBucket.settings = settings(max_examples=examples(40), stateful_step_count=30)
