"""Compaction beside writers, overwrites and other compactions: one operation loses, but no rows are lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import Conflict, ForebayError, NotFound
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.table import Table
from tests.every_run import every_run
from tests.paimon.compact.trees import changelog, replay
from tests.paimon.failing import FailingFileIO
from tests.paimon.lake import live_files, new_catalog, put, rows_of

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.int64())])
RETRIES = {"commit.max-retries": "100"}


def keyed(folder: Path, **options: str) -> Table:
    settings = {"bucket": "1", "write-only": "true", **RETRIES, **options}
    table = new_catalog(folder).create_table("db.t", COLUMNS, primary_key=["id"], options=settings)
    for v in range(3):
        put(table, [{"id": i, "v": v} for i in range(10)])
    return table


def orphans(table: Table) -> set[str]:
    on_disk = {p.name for p in Path(table.context.paths.root).rglob("data-*.parquet")}
    return on_disk - {
        e.file.file_name for s in table.context.snapshots.snapshots() for e in table.context.manifests.live_files(s)
    }


def once_before_commit(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let `act` happen between the work of the next commit and the commit."""
    real = FileStoreCommit.commit
    waiting = [act]

    def raced(self: FileStoreCommit, messages: Any, *args: Any, **named: Any) -> Any:
        messages = list(messages)
        if waiting and any(not m.compact.is_empty for m in messages):
            waiting.pop()()
        return real(self, messages, *args, **named)

    monkeypatch.setattr(FileStoreCommit, "commit", raced)


def test_what_is_written_during_a_compaction_lies_over_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed(tmp_path)
    once_before_commit(monkeypatch, lambda: (put(table, [{"id": 1, "v": 9}]), table.delete([{"id": 2}])))
    assert table.compact(full=True) is not None
    assert rows_of(table) == sorted([(i, 9 if i == 1 else 2) for i in range(10) if i != 2], key=repr)
    assert sorted(f.level for f in live_files(table)) == [0, 0, 5]


def test_of_two_compactions_of_the_same_files_the_later_one_replans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed(tmp_path)
    other = table.refresh()
    once_before_commit(monkeypatch, lambda: other.compact(full=True))
    assert table.compact(full=True) is None, "the other one has done it"
    assert rows_of(table) == [(i, 2) for i in range(10)]
    assert orphans(table) == set()


def test_an_overwrite_during_a_compaction_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = keyed(tmp_path)
    once_before_commit(monkeypatch, lambda: table.overwrite([{"id": 77, "v": 7}]))
    table.compact(full=True)
    assert rows_of(table) == [(77, 7)]
    assert orphans(table) == set()


def test_a_writer_gives_its_compaction_up_when_another_was_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed(tmp_path)
    writing = table.with_options({"write-only": "false", "num-sorted-run.compaction-trigger": "2"})
    once_before_commit(monkeypatch, lambda: table.compact(full=True))
    put(writing, [{"id": 5, "v": 50}])
    assert rows_of(table) == sorted([(i, 50 if i == 5 else 2) for i in range(10)], key=repr)
    assert orphans(table) == set()


def test_a_writer_gives_its_compaction_up_when_its_files_have_even_expired(tmp_path: Path) -> None:
    table = keyed(tmp_path)
    options = {"write-only": "false", "num-sorted-run.compaction-trigger": "2"}
    with table.with_options(options).new_write() as writer:
        writer.write([{"id": 5, "v": 50}])
        table.compact(full=True)
        table.expire_snapshots(1, 1)
        messages = writer.prepare_commit()
    assert all(m.compact.is_empty for m in messages)
    table.new_commit().commit(messages)
    assert rows_of(table) == sorted([(i, 50 if i == 5 else 2) for i in range(10)], key=repr)
    assert orphans(table) == set()


def test_a_write_says_so_if_a_file_that_it_compacts_is_missing(tmp_path: Path) -> None:
    table = keyed(tmp_path)
    options = {"write-only": "false", "num-sorted-run.compaction-trigger": "2"}
    Path(table.context.paths.root, "bucket-0", live_files(table)[0].file_name).unlink()
    with pytest.raises(NotFound, match="data-"):
        put(table.with_options(options), [{"id": 5, "v": 50}])


def test_a_compaction_that_always_loses_gives_up_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = keyed(tmp_path)

    def refused(self: FileStoreCommit, messages: list[CommitMessage], *args: Any, **named: Any) -> Any:
        raise Conflict("somebody was faster")

    with monkeypatch.context() as patch:
        patch.setattr(FileStoreCommit, "commit", refused)
        with pytest.raises(Conflict, match="somebody was faster"):
            table.compact(full=True)
    assert orphans(table) == set()
    assert rows_of(table) == [(i, 2) for i in range(10)]


@pytest.mark.parametrize("kind", ["keyed", "append"])
def test_threads_that_write_and_compact_at_once_lose_no_row(tmp_path: Path, kind: str) -> None:
    """One writer of each bucket, as Paimon asks for, and two compactors of all of them."""
    catalog = new_catalog(tmp_path)
    options = {"write-only": "true", **RETRIES, **({"bucket": "1"} if kind == "keyed" else {})}
    keys = {"primary_key": ["id", "p"], "partition_keys": ["p"]} if kind == "keyed" else {"partition_keys": ["p"]}
    columns = pa.schema([("id", pa.int64()), ("p", pa.int64()), ("v", pa.int64())])
    table = catalog.create_table("db.t", columns, options=options, **keys)
    failures: list[Exception] = []
    writing = threading.Event()

    def write(p: int) -> None:
        mine = catalog.table("db.t")
        for v in range(12):
            put(mine, [{"id": i if kind == "keyed" else 100 * v + i, "p": p, "v": v} for i in range(v + 1)])

    def compact() -> None:
        mine = catalog.table("db.t")
        while not writing.is_set():
            try:
                mine.compact(full=True)
            except Conflict:
                continue

    def guarded(work: Callable[..., None], *args: int) -> None:
        try:
            work(*args)
        except Exception as e:  # noqa: BLE001 - the test itself raises it again
            failures.append(e)

    writers = [threading.Thread(target=guarded, args=(write, p)) for p in range(2)]
    compactors = [threading.Thread(target=guarded, args=(compact,)) for _ in range(2)]
    for thread in (*writers, *compactors):
        thread.start()
    for thread in writers:
        thread.join()
    writing.set()
    for thread in compactors:
        thread.join()
    assert failures == []
    if kind == "keyed":
        expected = [(i, p, 11) for p in range(2) for i in range(12)]
    else:
        expected = [(100 * v + i, p, v) for p in range(2) for v in range(12) for i in range(v + 1)]
    assert rows_of(table) == sorted(expected, key=repr)
    assert orphans(table) == set()


@pytest.mark.parametrize("producer", ["none", "lookup"])
@pytest.mark.parametrize("seed", every_run(range(4), lambda seed: seed < 1))
def test_compactions_on_a_failing_file_system_lose_no_row(tmp_path: Path, seed: int, producer: str) -> None:
    table = keyed(tmp_path, **{"changelog-producer": producer, "commit.min-retry-wait": "1 ms"})
    failing = FailingFileIO(LocalFileIO(sync=False), seed=seed, rate=0.0)
    broken = Table(failing, table.context.paths.root)
    done = failed = 0
    for v in range(3, 40):
        put(table, [{"id": i, "v": v} for i in range(v % 7, 10)])
        before = rows_of(table)
        failing.rate = 0.02  # the more compactions fail, the more files the next one reads
        try:
            done += broken.compact(full=True) is not None
        except ForebayError:
            failed += 1
        failing.rate = 0.0
        assert rows_of(table) == before
    assert done > 0
    assert failed > 0
    table.compact(full=True)
    assert rows_of(table) == before
    if producer == "lookup":
        assert {row["id"]: row["v"] for row in replay(changelog(table)).values()} == dict(before)
