"""Compaction of tables with deletion vectors: deleted rows are dropped together with their vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.base.errors import UnsupportedOperation
from forebay.paimon.format.commit_message import CommitMessage, DataIncrement
from forebay.paimon.format.file_meta import DeletionVectorMeta, IndexFileMeta
from forebay.paimon.read.change_reader import ChangeReader
from forebay.paimon.read.commit_changes import CommitScan
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.table import Table
from tests.paimon.compact.deleted_rows import COLUMNS, commit, index_files, with_deleted
from tests.paimon.compact.trees import changelog
from tests.paimon.lake import live_files, new_catalog, put, rows_of
from tests.paimon.read.commit_messages import deletion_vector

OPTIONS = {"bucket": "1", "deletion-vectors.enabled": "true"}


def mark(table: Table, positions: list[int]) -> None:
    """Commit a deletion vector of rows of the only file, as other software does that deletes rows."""
    (split,) = table.refresh().scan().plan()
    (file,) = split.files
    vector = deletion_vector(positions)
    meta = DeletionVectorMeta(file.file_name, 1, len(vector) - 8, len(positions))
    index = IndexFileMeta("DELETION_VECTORS", f"index-{len(positions)}", 1 + len(vector), 1, (meta,))
    path = Path(table.context.paths.index_file(index, split.partition, split.bucket))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\1" + vector)
    removed = tuple(index_files(table))
    increment = DataIncrement((), new_index_files=(index,), deleted_index_files=removed)
    commit(table, CommitMessage(split.partition, split.bucket, split.total_buckets, increment))


def test_a_difference_leaves_out_what_was_marked_on_either_side(tmp_path: Path) -> None:
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key=["id"], options=OPTIONS)
    with_deleted(table, [1, 2, 3], [1], level=5)
    put(table, [{"id": 4, "v": 9}])
    latest = table.context.snapshots.latest_id()
    assert rows_of(table, ["id"]) == [(1,), (3,), (4,)]
    between = {"incremental-between": f"1,{latest}", "incremental-between-scan-mode": "diff"}
    log = table.with_options(between).system("audit_log").read().read_all().to_pylist()
    assert [(row["rowkind"], row["id"]) for row in log] == [("+I", 4)]


@pytest.mark.parametrize("key", [["id"], []])
def test_a_difference_has_the_rows_that_were_marked_meanwhile(tmp_path: Path, key: list[str]) -> None:
    options = {**OPTIONS, **({} if key else {"bucket-key": "id"})}
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key=key, options=options)
    with_deleted(table, [1, 2, 3, 4], [0], level=5)
    mark(table, [0, 2])
    put(table, [{"id": 9, "v": 9}])
    latest = table.context.snapshots.latest_id()
    between = {"incremental-between": f"1,{latest}", "incremental-between-scan-mode": "diff"}
    log = table.with_options(between).system("audit_log").read().read_all().to_pylist()
    assert sorted((row["rowkind"], row["id"]) for row in log) == [("+I", 9), ("-D", 3)]


@pytest.mark.parametrize("bucket", ["1", "-1"])
def test_changes_of_commits_have_the_rows_that_were_marked(tmp_path: Path, bucket: str) -> None:
    options = {**OPTIONS, "bucket": bucket, **({"bucket-key": "id"} if bucket == "1" else {})}
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, options=options)
    put(table, [{"id": n, "v": 0} for n in range(5)])
    mark(table, [1])
    mark(table, [1, 3, 4])
    put(table, [{"id": 9, "v": 9}])
    every = ScanFilter.of(table.schema, None)
    reader = ChangeReader(table.context, None, every, kind_column="kind")
    found = [
        (split.snapshot_id, row["kind"], row["id"])
        for split in CommitScan(table.context, every, 2).splits(None)
        for batch in reader.read(split)
        for row in batch.to_pylist()
    ]
    assert found == [(2, "-D", 1), (3, "-D", 3), (3, "-D", 4), (4, "+I", 9)]


def test_changes_of_commits_are_refused_where_they_are_not_recorded(tmp_path: Path) -> None:
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key=["id"], options={"bucket": "1"})
    put(table, [{"id": 1, "v": 0}])
    with pytest.raises(UnsupportedOperation, match="changelog-producer none"):
        CommitScan(table.context, ScanFilter.of(table.schema, None), 1)


def test_a_write_takes_rows_up_to_where_readers_see_them(tmp_path: Path) -> None:
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key=["id"], options=OPTIONS)
    with_deleted(table, list(range(10)), [2, 7], level=5)
    put(table, [{"id": 2, "v": 9}, {"id": 20, "v": 9}])
    table.delete([{"id": 4}])
    expected = [(0, 0), (1, 0), (2, 9), (20, 9), (3, 0), (5, 0), (6, 0), (8, 0), (9, 0)]
    assert rows_of(table) == expected
    assert index_files(table) == []
    assert {f.level for f in live_files(table)} == {5}


def test_a_lookup_tells_changes_against_what_was_not_deleted(tmp_path: Path) -> None:
    options = {**OPTIONS, "changelog-producer": "lookup"}
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key=["id"], options=options)
    with_deleted(table, [1, 2, 3], [1], level=5)
    put(table, [{"id": 2, "v": 9}, {"id": 3, "v": 9}])
    assert [(kind, row["id"], row["v"]) for kind, row in changelog(table)] == [(0, 2, 9), (1, 3, 0), (2, 3, 9)]


def test_a_full_compaction_removes_rows_of_vectors_at_the_top(tmp_path: Path) -> None:
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, primary_key=["id"], options=OPTIONS)
    with_deleted(table, list(range(10)), [0, 9], level=5)
    assert table.compact() is None
    table.compact(full=True)
    assert [f.row_count for f in live_files(table)] == [8]
    assert index_files(table) == []
    assert [row[0] for row in rows_of(table)] == list(range(1, 9))


@pytest.mark.parametrize("bucketed", [False, True])
def test_append_tables_lose_the_deleted_rows_and_the_vectors(tmp_path: Path, bucketed: bool) -> None:
    options = {"deletion-vectors.enabled": "true"} | ({"bucket": "1", "bucket-key": "id"} if bucketed else {})
    table = new_catalog(tmp_path).create_table("db.t", COLUMNS, options=options)
    with_deleted(table, list(range(10)), [3], level=0)
    with_deleted(table, list(range(10, 20)), [0, 1], level=0)
    put(table, [{"id": 99, "v": 1}])
    rows = rows_of(table)
    # A bucket has one index file: that of the second commit took the place of the first one's.
    count = 19 if bucketed else 18
    assert len(rows) == count
    table.compact()
    assert rows_of(table) == rows
    assert index_files(table) == []
    assert sum(f.row_count for f in live_files(table)) == count
