"""Reading ahead: the rows, their order and the errors of reading without, in bounded memory, with no thread left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pytest

from forebay.base.errors import StorageFailure
from forebay.metadata.predicate import col
from forebay.paimon.io import read_ahead as read_ahead_module
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.io.read_ahead import ReadAhead, Source, one_after_the_other, read_ahead
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.snapshot_planner import SnapshotPlanner
from forebay.paimon.read.split_reader import SplitReader
from forebay.paimon.table import Table
from tests.paimon.lake import new_catalog
from tests.patience import PATIENCE


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "forebay-ahead"]


def batch(value: int, rows: int = 1) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [value] * rows})


def values(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [batch.column(0)[0].as_py() for batch in batches]


def test_sources_are_read_at_the_same_time_and_their_rows_come_in_order() -> None:
    begun = threading.Barrier(3)

    def source(number: int) -> Iterator[pa.RecordBatch]:
        begun.wait(PATIENCE)  # each waits for the others
        yield batch(2 * number)
        yield batch(2 * number + 1)

    sources = [Source(1, lambda number=number: source(number)) for number in range(3)]  # type: ignore[misc]
    assert values(read_ahead(sources)) == list(range(6))


def test_an_error_comes_behind_the_rows_before_it() -> None:
    def fails() -> Iterator[pa.RecordBatch]:
        yield batch(1)
        raise StorageFailure("the store is gone")

    rows = read_ahead([Source(1, lambda: [batch(0)]), Source(1, fails), Source(1, lambda: [batch(2)])])
    assert values(islice(rows, 2)) == [0, 1]
    with pytest.raises(StorageFailure, match="the store is gone"):
        next(rows)


def test_what_is_not_read_to_its_end_is_closed() -> None:
    closed: list[int] = []

    def source(number: int) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield batch(number)
        finally:
            closed.append(number)

    rows = read_ahead([Source(1, lambda number=number: source(number)) for number in range(3)])  # type: ignore[misc]
    assert next(rows).column(0)[0].as_py() == 0
    rows.close()
    assert sorted(closed) == [0, 1, 2]


def test_a_source_read_by_the_readers_own_thread_is_closed_too() -> None:
    closed: list[int] = []

    class Rows:
        """Rows of one file, which is open until it is closed: no generator, which Python would close."""

        def __init__(self, number: int) -> None:
            self._number = number

        def __iter__(self) -> Iterator[pa.RecordBatch]:
            return iter([batch(self._number), batch(self._number)])

        def close(self) -> None:
            closed.append(self._number)

    rows = one_after_the_other([Source(1, lambda number=number: Rows(number)) for number in range(3)])  # type: ignore[misc]
    assert values(islice(rows, 3)) == [0, 0, 1]
    assert closed == [0]
    rows.close()
    assert closed == [0, 1]


def test_a_thread_waits_while_enough_rows_wait() -> None:
    read: list[int] = []

    def source() -> Iterator[pa.RecordBatch]:
        for number in range(1000):
            read.append(number)
            yield batch(number, rows=100)

    each = batch(0, rows=100).nbytes
    rows = ReadAhead(source, 10 * each)
    assert next(rows).column(0)[0].as_py() == 0
    threading.Event().wait(0.05)
    assert len(read) <= 12
    assert values(rows) == list(range(1, 1000))


def test_large_sources_are_read_two_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead_module, "UNDER_WAY_BYTES_MAX", 100)
    running, most, lock = [0], [0], threading.Lock()

    def source(number: int) -> Iterator[pa.RecordBatch]:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        yield batch(number)
        threading.Event().wait(0.01)
        with lock:
            running[0] -= 1

    sources = [Source(80, lambda number=number: source(number)) for number in range(6)]  # type: ignore[misc]
    assert values(read_ahead(sources)) == list(range(6))
    assert most[0] <= 2


class _Distant(LocalFileIO):
    """The local disk, as if it were a store: counts the files that are open at a time, and can lose one."""

    is_remote = True

    def __init__(self) -> None:
        super().__init__(sync=False)
        self.lost = ""
        self.opened = 0
        self._all_here: threading.Barrier | None = None

    def expect(self, files: int) -> None:
        """Let the next files wait for each other, so many."""
        self._all_here = threading.Barrier(files)

    def open_input(self, path: str) -> BinaryIO:
        if self.lost and self.lost in path:
            raise StorageFailure(f"cannot open {path}")
        self.opened += 1
        if self._all_here is not None:
            self._all_here.wait(PATIENCE)
        return BytesIO(self.read(path))


COLUMNS = pa.schema([("k", pa.int64()), ("v", pa.string())])


def table_of(folder: Path, primary_key: bool, files: int) -> tuple[Table, _Distant]:
    catalog = new_catalog(folder)
    options = {"bucket": "1", "write-only": "true"} if primary_key else {"bucket": "-1"}
    table = catalog.create_table("db.t", COLUMNS, primary_key=["k"] if primary_key else [], options=options)
    for number in range(files):
        rows = pa.table({"k": range(number, number + 50), "v": [f"v{number}"] * 50}, schema=COLUMNS)
        (table.upsert if primary_key else table.append)(rows)
    io = _Distant()
    return table, io


@pytest.mark.parametrize("primary_key", [False, True])
def test_files_of_a_store_are_read_at_the_same_time_with_the_same_rows(tmp_path: Path, primary_key: bool) -> None:
    table, io = table_of(tmp_path, primary_key, 4)
    context = replace(table.context, io=io)
    splits = SnapshotPlanner(context).plan(context.snapshots.latest()).splits
    assert sum(len(split.files) for split in splits) == 4
    io.expect(4)
    rows = pa.Table.from_batches(SplitReader(context).read_all(splits))
    near = pa.Table.from_batches(SplitReader(table.context).read_all(splits))
    assert rows.equals(near)
    assert io.opened == 4


@pytest.mark.parametrize("primary_key", [False, True])
def test_a_file_that_cannot_be_read_is_an_error_of_the_scan(tmp_path: Path, primary_key: bool) -> None:
    table, io = table_of(tmp_path, primary_key, 3)
    context = replace(table.context, io=io)
    splits = SnapshotPlanner(context).plan(context.snapshots.latest()).splits
    io.lost = splits[-1].files[-1].file_name
    with pytest.raises(StorageFailure, match="cannot open"):
        list(SplitReader(context).read_all(splits))


def test_one_key_is_read_from_as_few_files_as_without(tmp_path: Path) -> None:
    table, io = table_of(tmp_path, True, 5)
    context = replace(table.context, io=io)
    scan_filter = ScanFilter.of(context.schema, col("k") == 20)
    splits = SnapshotPlanner(context).plan(context.snapshots.latest(), scan_filter).splits
    rows = pa.Table.from_batches(SplitReader(context, None, scan_filter).read_all(splits))
    assert rows.to_pylist() == [{"k": 20, "v": "v4"}]
    assert io.opened == 1
