"""Rescaling: rows move to the buckets of a new count, nothing else changes, and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import InvalidRequest
from forebay.metadata.predicate import col
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.format.snapshot import CommitKind
from forebay.paimon.table import Table
from tests.paimon.compact.trees import changelog, replay
from tests.paimon.lake import live_files, new_catalog, planned_files, rows_of

COLUMNS = pa.schema([("id", pa.int64()), ("dt", pa.string()), ("v", pa.int64())])


@pytest.fixture
def catalog(tmp_path: Path) -> FileSystemCatalog:
    return new_catalog(tmp_path)


def keyed(catalog: FileSystemCatalog, **options: str) -> Table:
    return catalog.create_table(
        "db.t",
        COLUMNS,
        primary_keys=["id", "dt"],
        partition_keys=["dt"],
        options={"bucket": "2", **options},
    )


def fill(table: Table, days: str = "ab", version: int = 0) -> None:
    table.write([{"id": i, "dt": day, "v": version} for day in days for i in range(30)])


def bucket_counts(table: Table) -> dict[str, set[int]]:
    snapshot = table.snapshots.latest()
    assert snapshot is not None
    found: dict[str, set[int]] = {}
    for e in table.manifests.live_files(snapshot):
        found.setdefault(table.paths.partition_directory(e.partition), set()).add(e.total_buckets)
    return found


@pytest.mark.parametrize("producer", ["none", "input", "lookup", "full-compaction"])
def test_all_rows_move_and_no_change_is_told(catalog: FileSystemCatalog, producer: str) -> None:
    table = keyed(catalog, **{"changelog-producer": producer})
    fill(table)
    fill(table, "a", version=1)
    table.delete([{"id": 3, "dt": "a"}])
    table.compact(full=True)
    rows, told = rows_of(table), changelog(table)
    table = table.rescale(5)
    assert table.options.bucket == 5
    assert bucket_counts(table) == {"dt=a": {5}, "dt=b": {5}}
    assert rows_of(table) == rows
    assert len(planned_files(table, (col("id") == 7) & (col("dt") == "a"))) == 1
    fill(table, "a", version=2)
    table.compact(full=True)
    assert rows_of(table, ["id"], col("v") == 2) == rows_of(table, ["id"], col("dt") == "a")
    assert changelog(table)[: len(told)] == told
    if producer in ("lookup", "full-compaction"):
        new = changelog(table)[len(told) :]
        assert {row["dt"] for _, row in new} == {"a"}
        state = replay([(k, {**r, "id": (r["id"], r["dt"])}) for k, r in changelog(table)])
        assert len(state) == 60


def test_only_the_named_partition_is_rewritten_and_others_refuse_writers_until_they_are(
    catalog: FileSystemCatalog,
) -> None:
    table = keyed(catalog)
    fill(table)
    table = table.rescale(4, {"dt": "a"})
    assert bucket_counts(table) == {"dt=a": {4}, "dt=b": {2}}
    fill(table, "ac", version=1)
    with pytest.raises(InvalidRequest, match="dt=b was written with 2 buckets, and the table now has 4"):
        fill(table, "b")
    assert len(rows_of(table)) == 90
    fill(table.rescale(4), "b", version=1)
    assert len(rows_of(table, None, col("v") == 1)) == 90
    assert bucket_counts(table) == {"dt=a": {4}, "dt=b": {4}, "dt=c": {4}}


@pytest.mark.parametrize(
    "options",
    [
        {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"},
        {"merge-engine": "first-row", "write-only": "true"},
        {"sequence.field": "v"},
    ],
)
def test_every_engine_keeps_its_rows(catalog: FileSystemCatalog, options: dict[str, str]) -> None:
    table = keyed(catalog, **options)
    for version in (5, 3, 9):
        fill(table, "a", version=version)
    expected = {"aggregation": 17, "first-row": 5}.get(options.get("merge-engine", ""), 9)
    table = table.rescale(3)
    assert {row[2] for row in rows_of(table)} == {expected}
    assert len(rows_of(table)) == 30
    table.compact(full=True)
    assert {row[2] for row in rows_of(table)} == {expected}


def test_an_append_table_keeps_the_order_of_each_key(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.a", COLUMNS, options={"bucket": "1", "bucket-key": "id"})
    for version in range(4):
        fill(table, "a", version)
    rows = rows_of(table)
    table = table.rescale(3)
    assert rows_of(table) == rows
    versions = [row["v"] for row in table.read().read_all().to_pylist() if row["id"] == 7]
    assert versions == [0, 1, 2, 3]


def test_a_partition_of_nothing_but_deletes_becomes_empty(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog, **{"write-only": "true"})
    fill(table, "a")
    table.delete([{"id": i, "dt": "a"} for i in range(30)])
    table = table.rescale(4)
    assert live_files(table) == []
    fill(table, "a")
    assert len(rows_of(table)) == 30


def test_rows_that_are_written_meanwhile_are_rescaled_too(
    catalog: FileSystemCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed(catalog)
    fill(table, "a")
    real = FileStoreCommit.replace_exactly
    late: list[Any] = [[{"id": 100, "dt": "a", "v": 7}]]

    def raced(self: FileStoreCommit, *args: Any, **named: Any) -> Any:
        if late:
            table.write(late.pop())
        return real(self, *args, **named)

    monkeypatch.setattr(FileStoreCommit, "replace_exactly", raced)
    rescaled = table.rescale(4)
    assert bucket_counts(rescaled) == {"dt=a": {4}}
    assert (100, "a", 7) in rows_of(rescaled)
    assert len(rows_of(rescaled)) == 31
    kinds = [s.commit_kind for s in rescaled.snapshots.snapshots()]
    assert kinds == [CommitKind.APPEND, CommitKind.APPEND, CommitKind.OVERWRITE]
    on_disk = {p.name for p in Path(table.paths.root).rglob("data-*.parquet")}
    referenced = {e.file.file_name for s in rescaled.snapshots.snapshots() for e in rescaled.manifests.live_files(s)}
    assert on_disk == referenced, "work that was done in vain is deleted"


def test_tables_without_a_fixed_count_are_refused(catalog: FileSystemCatalog) -> None:
    with pytest.raises(InvalidRequest, match="only tables with a fixed number of buckets"):
        catalog.create_table("db.a", COLUMNS).rescale(3)
    with pytest.raises(InvalidRequest, match="asked for 0"):
        keyed(catalog).rescale(0)
