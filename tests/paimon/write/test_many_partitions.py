"""Writing to many partitions: what a table has once is read and made once, and not for each partition."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pytest

from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.files import writer
from forebay.paimon.files.parquet_layout import parquet_schema
from forebay.paimon.format.schema import DataField
from forebay.paimon.io.local import LocalFileIO


class ReadCounting(LocalFileIO):
    """Counts the files that are read: data files, and small files that are read whole (snapshots, hints, manifests)."""

    def __init__(self) -> None:
        super().__init__(sync=False)
        self.reads = self.data_reads = 0

    def read(self, path: str) -> bytes:
        self.reads += 1
        return super().read(path)

    def open_input(self, path: str) -> BinaryIO:
        self.data_reads += 1
        return super().open_input(path)


Made = list[tuple[Sequence[DataField], int]]
"""The columns of each Arrow schema that was made for data files, and the thread that made it."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    made: Made = []

    def noted(fields: Sequence[DataField]) -> pa.Schema:
        made.append((fields, threading.get_ident()))
        return parquet_schema(fields)

    monkeypatch.setattr(writer, "parquet_schema", noted)
    return made


def costs(folder: Path, partitions: int, made: Made) -> tuple[int, int]:
    """How many small files an upsert reads that changes the rows of all partitions, and for how many lists of columns
    it makes a schema: once, but by each of two threads that need one at the same time.
    """
    io = ReadCounting()
    catalog = FileSystemCatalog(io, str(folder))
    catalog.create_database("db")
    table = catalog.create_table(
        "db.t", {"day": "INT", "id": "INT", "v": "INT"}, primary_key=["day", "id"], partition_keys="day",
        options={"bucket": "1", "changelog-producer": "lookup"},
    )  # fmt: skip
    for value in range(2):
        io.reads = io.data_reads = 0
        made.clear()
        days = list(range(partitions))
        table.upsert(pa.table({"day": days, "id": days, "v": [value] * partitions}))
        assert io.data_reads == value * partitions  # the older file of each, and never the one that was just written
    assert table.scan().to_arrow().sort_by("day").column("v").to_pylist() == [1] * partitions
    changes = table.changes("earliest", "latest").to_arrow().group_by("_change_type").aggregate([([], "count_all")])
    assert sum(changes.column("count_all").to_pylist()) == 3 * partitions
    assert max(Counter((id(fields), thread) for fields, thread in made).values()) == 1
    return io.reads, len({id(fields) for fields, _ in made})


def test_an_upsert_reads_and_makes_as_much_for_many_partitions_as_for_few(tmp_path: Path, made: Made) -> None:
    assert costs(tmp_path / "many", 40, made) == costs(tmp_path / "few", 3, made)
