"""Expiry beside readers, writers and consumers: those that are too late get a clear error; others are not affected.

Others come before some operations of a piece of work, with `PAIMON_KILLS` set before twice as many.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.base.ambient import SYSTEM_CLOCK, ManualClock
from forebay.base.errors import Conflict, InvalidRequest, NotFound
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.store.consumers import ConsumerManager
from forebay.paimon.table import Table
from tests.paimon.failing import FailingFileIO
from tests.paimon.kill_acts import HISTORY, with_history
from tests.paimon.lake import put, stream_of
from tests.paimon.maintain.lakes import FAST, NOW, copied, files_of, make_table, open_table, referenced, rows
from tests.paimon.stream.model import drain


class RacingIO(FailingFileIO):
    """Does `act` right before operation number `at`."""

    def __init__(self, inner: FileIO, at: int, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self.at, self.act = at, act

    def _plan(self, operation: str, path: str) -> tuple[Any, Any]:
        if self.count == self.at:
            self.act()
        return super()._plan(operation, path)


def _streamed(table: Table, begin: str) -> object:
    return drain(stream_of(table.with_options({"scan.snapshot-id": begin}), follow=False))


def _look_up(table: Table) -> object:
    with table.lookup_table() as found:
        return found.lookup([{"id": 100}, {"id": 0}], missing="drop").to_pylist()


READERS: dict[str, Callable[[Table], object]] = {
    "a read of the earliest": lambda t: rows(t, as_of=1),
    "a stream from the earliest": lambda t: _streamed(t, "0"),
    "a stream from the first": lambda t: _streamed(t, "1"),
    "changes between snapshots": lambda t: rows(t.with_options({"incremental-between": "1,3"})),
}
LATEST: dict[str, Callable[[Table], object]] = {
    "a read": rows,
    "a stream that begins in full": lambda t: drain(stream_of(t, follow=False)),
    "a lookup": _look_up,
}


def race(tmp_path: Path, read: Callable[[Table], object]) -> list[object]:
    """What `read` gives, or the error it raises, with snapshots expiring before each of its operations."""
    table = with_history(tmp_path / "t")
    for name in table.context.tags.names():
        table.context.tags.delete(name)
    found: list[object] = []
    while True:
        root = copied(table, tmp_path / f"c{len(found)}")
        other = open_table(root)

        def expire(other: Table = other) -> object:
            return other.expire_snapshots(1, 1)

        io = RacingIO(FAST, len(found), expire)
        try:
            found.append(read(open_table(root, io, ManualClock(NOW))))
        except NotFound as e:
            found.append(e)
        if io.count < len(found):
            return found


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.one_in(2)
def test_a_reader_whose_snapshot_expires_is_right_or_told_so(tmp_path: Path, reader: str) -> None:
    table = with_history(tmp_path / "right")
    right = READERS[reader](table)
    table.expire_snapshots(1, 1)
    # A stream that has not begun yet begins with the earliest snapshot that is there.
    later = READERS[reader](table) if reader == "a stream from the earliest" else right
    found = race(tmp_path, READERS[reader])
    assert found[-1] == right, "the last race comes too late"
    errors = [e for e in found if isinstance(e, NotFound)]
    assert errors
    assert all(e in (right, later) for e in found if not isinstance(e, NotFound))
    assert [e.message for e in errors if not re.search("snapshot.*(there are 8 to 8|expired)", e.message)] == []


@pytest.mark.parametrize("reader", LATEST)
def test_a_reader_of_the_latest_does_not_notice_expiry(tmp_path: Path, reader: str) -> None:
    right = LATEST[reader](with_history(tmp_path / "right"))
    assert all(found == right for found in race(tmp_path, LATEST[reader]))


ACTS: dict[str, Callable[[Table], object]] = {
    "a write": lambda t: put(t.with_options({"write-only": "false"}), [{"id": 500, "v": 5}]),
    "an overwrite": lambda t: t.overwrite([{"id": 500, "v": 5}]),
    "a compaction": lambda t: t.compact(full=True),
    "a rescaling": lambda t: t.rescale(2),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.one_in(2)
def test_work_whose_snapshot_expires_under_it_follows_on_what_is_there(tmp_path: Path, act: str) -> None:
    """Others commit, compact, and expire all that it began with, before any of its operations."""
    number, step = 0, (1 if act == "a write" else 4) * (1 if "PAIMON_KILLS" in os.environ else 2)
    while True:
        root = tmp_path / f"t{number}"
        table = make_table(root, {"num-sorted-run.compaction-trigger": "2"})
        for v in range(3):
            put(table, [{"id": i, "v": v} for i in range(3)])
        other = open_table(root)

        def outpace(other: Table = other) -> None:
            put(other, [{"id": 400, "v": 4}])
            other.compact(full=True)
            other.expire_snapshots(1, 1)

        io = RacingIO(FAST, number, outpace)
        try:
            ACTS[act](open_table(root, io, ManualClock(NOW)))
        except Conflict:
            assert act == "a rescaling", "the other one writes with the bucket count of before"
        except InvalidRequest:
            assert act == "a rescaling"
        there = dict(rows(open_table(root)))
        raced = io.count > number
        if act == "an overwrite":
            assert there in ({500: 5}, {500: 5, 400: 4}, dict.fromkeys(range(3), 2) | {400: 4})
        else:
            expected = dict.fromkeys(range(3), 2) | ({400: 4} if raced else {})
            assert there == expected | ({500: 5} if act == "a write" else {})
        assert referenced(root) <= files_of(root)
        if not raced:
            break
        number += step
    assert number > 15


@pytest.mark.slow
def test_a_consumer_that_appears_while_snapshots_expire_is_kept_or_told_so(tmp_path: Path) -> None:
    """Its file is seen, or comes too late, and it is told so; it never sees a part."""
    table = with_history(tmp_path / "t")
    wanted = drain(stream_of(table.with_options({"scan.snapshot-id": "5"}), follow=False))
    counting = FailingFileIO(FAST)
    open_table(copied(table, tmp_path / "counted"), counting).expire_snapshots(1, 1)
    kept = late = 0
    for number in range(counting.count):
        root = copied(table, tmp_path / f"c{number}")
        consumers = ConsumerManager(FAST, table.context.paths.__class__(str(root)))

        def appear(consumers: ConsumerManager = consumers) -> object:
            return consumers.record("late", 5)

        io = RacingIO(FAST, number, appear)
        open_table(root, io, ManualClock(NOW)).expire_snapshots(1, 1)
        reader = open_table(root, FAST, ManualClock(NOW), **{"consumer-id": "late"})
        try:
            kept += drain(stream_of(reader, follow=False)) == wanted
        except NotFound as e:
            late += "has expired; the earliest is 8" in e.message
        assert rows(open_table(root)) == HISTORY[-1]
        assert referenced(root) <= files_of(root)
    assert kept + late == counting.count
    assert min(kept, late) > 0


@pytest.mark.parametrize("keyed", [True, False])
def test_the_orphan_cleaner_leaves_a_writer_in_flight_alone(tmp_path: Path, keyed: bool) -> None:
    """Whenever it comes: what the writer has not committed yet is young."""
    number = 0
    while True:
        root = tmp_path / f"t{number}"
        table = make_table(root, primary_keys=("id",) if keyed else ())
        put(table, [{"id": 1, "v": 1}])
        cleaner = Table(FAST, str(root), clock=SYSTEM_CLOCK)
        removed: list[str] = []

        def clean(cleaner: Table = cleaner, removed: list[str] = removed) -> None:
            removed += cleaner.remove_orphan_files().files

        io = RacingIO(FAST, number, clean)
        writer = Table(io, str(root)).stream_writer("job")
        put(writer, [{"id": 2, "v": 2}])
        messages = writer.prepare()
        writer.close()
        Table(io, str(root)).stream_writer("job").restore({1: messages})
        assert removed == []
        assert rows(open_table(root)) == [(1, 1), (2, 2)]
        if io.count <= number:
            break
        number += 1
    assert number > 15
