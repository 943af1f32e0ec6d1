"""Rescaling: rows move to the buckets of a new count, nothing else changes, and nothing is lost."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import Conflict, InvalidRequest, StorageFailure
from forebay.metadata.predicate import col
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.compact.rescale import RescaleTask
from forebay.paimon.compact.running import TaskThreads
from forebay.paimon.format.snapshot import CommitKind
from forebay.paimon.table import Table
from tests.paimon.compact.deleted_rows import index_files, with_deleted
from tests.paimon.compact.trees import changelog, replay
from tests.paimon.lake import live_files, new_catalog, planned_files, put, rows_of

COLUMNS = pa.schema([("id", pa.int64()), ("dt", pa.string()), ("v", pa.int64())])


@pytest.fixture
def catalog(tmp_path: Path) -> FileSystemCatalog:
    return new_catalog(tmp_path)


def keyed(catalog: FileSystemCatalog, **options: str) -> Table:
    return catalog.create_table(
        "db.t",
        COLUMNS,
        primary_key=["id", "dt"],
        partition_keys=["dt"],
        options={"bucket": "2", **options},
    )


def fill(table: Table, days: str = "ab", version: int = 0) -> None:
    put(table, [{"id": i, "dt": day, "v": version} for day in days for i in range(30)])


def bucket_counts(table: Table) -> dict[str, set[int]]:
    snapshot = table.context.snapshots.latest()
    assert snapshot is not None
    found: dict[str, set[int]] = {}
    for e in table.context.manifests.live_files(snapshot):
        found.setdefault(table.context.paths.partition_directory(e.partition), set()).add(e.total_buckets)
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
    assert table.context.options.bucket == 5
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
    versions = [row["v"] for row in table.scan().to_arrow().to_pylist() if row["id"] == 7]
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
            put(table, late.pop())
        return real(self, *args, **named)

    monkeypatch.setattr(FileStoreCommit, "replace_exactly", raced)
    rescaled = table.rescale(4)
    assert bucket_counts(rescaled) == {"dt=a": {4}}
    assert (100, "a", 7) in rows_of(rescaled)
    assert len(rows_of(rescaled)) == 31
    kinds = [s.commit_kind for s in rescaled.context.snapshots.snapshots()]
    assert kinds == [CommitKind.APPEND, CommitKind.APPEND, CommitKind.OVERWRITE]
    on_disk = {p.name for p in Path(table.context.paths.root).rglob("data-*.parquet")}
    referenced = {
        e.file.file_name
        for s in rescaled.context.snapshots.snapshots()
        for e in rescaled.context.manifests.live_files(s)
    }
    assert on_disk == referenced, "work that was done in vain is deleted"


class PicklingRunner(TaskThreads):
    """Hands tasks over as an engine does; counts them."""

    def __init__(self) -> None:
        super().__init__(2)
        self.tasks: list[RescaleTask] = []

    def run(self, function: Any, tasks: Any, **named: Any) -> Any:
        self.tasks += tasks
        carried = pickle.loads(pickle.dumps((function, tasks)))
        return [pickle.loads(pickle.dumps(result)) for result in super().run(*carried, **named)]


@pytest.mark.parametrize(("before", "after", "tasks"), [(2, 8, 2), (4, 2, 2), (6, 4, 2), (3, 4, 1)])
@pytest.mark.parametrize("kind", ["keyed", "append"])
@pytest.mark.one_in(2)
def test_buckets_that_stay_among_themselves_are_rescaled_apart(
    catalog: FileSystemCatalog, before: int, after: int, tasks: int, kind: str
) -> None:
    if kind == "keyed":
        table = keyed(catalog, bucket=str(before))
    else:
        options = {"bucket": str(before), "bucket-key": "id"}
        table = catalog.create_table("db.a", COLUMNS, partition_keys=["dt"], options=options)
    for version in range(3):
        fill(table, version=version)
    rows, runner = rows_of(table), PicklingRunner()
    table = table.rescale(after, runner=runner)
    assert len(runner.tasks) == 2 * tasks, "of two partitions"
    assert bucket_counts(table) == {"dt=a": {after}, "dt=b": {after}}
    assert rows_of(table) == rows
    for number in range(30):
        versions = [r["v"] for r in table.scan(None, (col("id") == number) & (col("dt") == "a")).to_arrow().to_pylist()]
        assert versions == ([2] if kind == "keyed" else [0, 1, 2]), "each key is in the bucket where it is looked for"


def test_partitions_that_others_write_to_are_rescaled_again_and_the_rest_stays_done(
    catalog: FileSystemCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed(catalog)
    fill(table, "abc")
    real = FileStoreCommit.replace_exactly
    late: list[Any] = [[{"id": 100, "dt": "b", "v": 7}]]

    def raced(self: FileStoreCommit, *args: Any, **named: Any) -> Any:
        if late:
            put(table, late.pop())
        return real(self, *args, **named)

    monkeypatch.setattr(FileStoreCommit, "replace_exactly", raced)
    runner = PicklingRunner()
    rescaled = table.rescale(4, runner=runner)
    assert [sorted({r.partition for r in runner.tasks}).index(task.partition) for task in runner.tasks] == [
        0, 0, 1, 1, 1, 1, 2, 2,
    ]  # fmt: skip
    assert bucket_counts(rescaled) == {"dt=a": {4}, "dt=b": {4}, "dt=c": {4}}
    assert len(rows_of(rescaled)) == 91
    on_disk = {p.name for p in Path(table.context.paths.root).rglob("data-*.parquet")}
    referenced = {
        e.file.file_name
        for s in rescaled.context.snapshots.snapshots()
        for e in rescaled.context.manifests.live_files(s)
    }
    assert on_disk == referenced


@pytest.mark.parametrize("runner", [None, PicklingRunner()])
def test_who_never_wins_is_told_so_and_leaves_the_table_as_it_was(
    catalog: FileSystemCatalog, monkeypatch: pytest.MonkeyPatch, runner: PicklingRunner | None
) -> None:
    table = keyed(catalog)
    fill(table)
    real = FileStoreCommit.replace_exactly
    written = itertools.count(100)

    def raced(self: FileStoreCommit, *args: Any, **named: Any) -> Any:
        put(table, [{"id": next(written), "dt": "a", "v": 7}])
        return real(self, *args, **named)

    monkeypatch.setattr(FileStoreCommit, "replace_exactly", raced)
    with pytest.raises(Conflict, match="repeat the work on the latest snapshot"):
        table.rescale(4, {"dt": "a"}, runner=runner)
    assert bucket_counts(table) == {"dt=a": {2}, "dt=b": {2}}
    assert len(rows_of(table)) == 60 + next(written) - 100
    on_disk = {p.name for p in Path(table.context.paths.root).rglob("data-*.parquet")}
    assert on_disk == {
        e.file.file_name for s in table.context.snapshots.snapshots() for e in table.context.manifests.live_files(s)
    }


def test_what_was_done_for_other_partitions_in_vain_is_deleted_too(
    catalog: FileSystemCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed(catalog)
    fill(table)
    real = FileStoreCommit.replace_exactly
    written = itertools.count(100)

    def raced(self: FileStoreCommit, *args: Any, **named: Any) -> Any:
        put(table, [{"id": next(written), "dt": day, "v": 7} for day in "ab"])
        return real(self, *args, **named)

    monkeypatch.setattr(FileStoreCommit, "replace_exactly", raced)
    with pytest.raises(Conflict):
        table.rescale(4, runner=PicklingRunner())
    assert bucket_counts(table) == {"dt=a": {2}, "dt=b": {2}}
    on_disk = {p.name for p in Path(table.context.paths.root).rglob("data-*.parquet")}
    assert on_disk == {
        e.file.file_name for s in table.context.snapshots.snapshots() for e in table.context.manifests.live_files(s)
    }


def test_files_that_were_merged_at_once_in_their_new_bucket_are_deleted(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options={"bucket": "2"})
    put(table, [{"id": i, "dt": "a", "v": 0} for i in range(3000)])
    table = table.with_options({"write-buffer-size": "32 kb"}).rescale(1)
    assert len(rows_of(table)) == 3000
    assert [f.row_count for f in live_files(table)] == [3000]
    on_disk = {p.name for p in Path(table.context.paths.root).rglob("data-*.parquet")}
    assert on_disk == {
        e.file.file_name for s in table.context.snapshots.snapshots() for e in table.context.manifests.live_files(s)
    }


@pytest.mark.parametrize("keys", [["id"], []])
def test_rows_that_a_vector_deletes_do_not_come_back(catalog: FileSystemCatalog, keys: list[str]) -> None:
    options = {"bucket": "1", "deletion-vectors.enabled": "true", **({} if keys else {"bucket-key": "id"})}
    columns = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    table = catalog.create_table("db.t", columns, primary_key=keys, options=options)
    with_deleted(table, list(range(10)), [2, 7], level=5 if keys else 0)
    rows = rows_of(table)
    table = table.rescale(3)
    assert (len(rows), rows_of(table), index_files(table)) == (8, rows, [])


def test_a_task_that_fails_leaves_no_files_of_the_others(
    catalog: FileSystemCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed(catalog)
    fill(table)

    class Failing(PicklingRunner):
        def run(self, function: Any, tasks: Any, **named: Any) -> Any:
            def fail_last(task: RescaleTask) -> Any:
                if task == tasks[-1]:
                    raise StorageFailure("no space")
                return function(task)

            return TaskThreads.run(self, fail_last, tasks, **named)

    before = {p.name for p in Path(table.context.paths.root).rglob("data-*.parquet")}
    with pytest.raises(StorageFailure, match="no space"):
        table.rescale(4, runner=Failing())
    assert {p.name for p in Path(table.context.paths.root).rglob("data-*.parquet")} == before
    assert len(rows_of(table)) == 60


def test_tables_without_a_fixed_count_are_refused(catalog: FileSystemCatalog) -> None:
    with pytest.raises(InvalidRequest, match="only tables with a fixed number of buckets"):
        catalog.create_table("db.a", COLUMNS).rescale(3)
    with pytest.raises(InvalidRequest, match="asked for 0"):
        keyed(catalog).rescale(0)
