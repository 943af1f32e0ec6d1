"""What Spark's workers run to write a Paimon table, without Spark: lanes, columns, row kinds, options."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import InvalidRequest
from forebay.metadata.types import int_
from forebay.paimon.compact.running import TaskRunner
from forebay.paimon.store.schema_changes import AddColumn
from forebay.paimon.write.incoming import missing_column
from forebay.paimon.write.table_write import TableWrite, WriterShard
from forebay.spark.lake_options import with_write_options, write_options
from forebay.spark.workers import MESSAGE_COLUMN
from forebay.spark.writing import committing, lake_write, lake_write_builder
from forebay.spark.writing.committing import Overwrite, commit_batch
from forebay.spark.writing.lake_write import Incoming, LakeWriteFunction, WrittenFiles, messages_of
from forebay.spark.writing.lake_write_builder import RowDistribution, row_distribution
from tests.paimon.lake import altered, live_files, put, stream_of
from tests.spark.paimon.write_lanes import Rows, batch, make, rows_of, threads, write_in_lanes


def run_task(function: LakeWriteFunction, batches: Iterable[pa.RecordBatch]) -> WrittenFiles:
    """A task of Spark's: its function arrives pickled, and its message goes back so."""
    (made,) = pickle.loads(pickle.dumps(function))(iter(batches))
    found: WrittenFiles = pickle.loads(made.column(MESSAGE_COLUMN)[0].as_py())
    return found


# ---- lanes ----------------------------------------------------------------------------------------------------------


def test_tasks_that_write_one_bucket_never_use_the_same_sequence_number(tmp_path: Path) -> None:
    table = make(tmp_path, key="id", bucket="1")
    put(table, [{"id": 1, "name": "before"}])
    tasks = [[[{"id": i, "name": f"{t}"} for i in range(10 * t, 10 * t + 5 + t)]] for t in range(3)]
    table.new_commit().commit(write_in_lanes(table, tasks))
    planned = [f for split in table.scan().plan() for f in split.files]
    first = {f.min_sequence_number for f in planned if f.level == 0 and f.min_sequence_number > 0}
    assert first == {1, 2, 3}
    assert all((f.max_sequence_number - f.min_sequence_number) % 3 == 0 for f in planned)
    assert len(rows_of(table)) == 18
    put(table, [{"id": 20, "name": "after"}])
    assert {"id": 20, "name": "after"} in rows_of(table)


def test_of_two_rows_with_one_key_in_two_tasks_the_same_one_wins_before_and_after_compaction(tmp_path: Path) -> None:
    table = make(tmp_path, key="id", bucket="1")
    early = [[{"id": 1, "name": "a0"}, {"id": 1, "name": "a1"}], [{"id": 2, "name": "a2"}]]
    late = [[{"id": 2, "name": "b0"}, {"id": 1, "name": "b1"}]]
    table.new_commit().commit(write_in_lanes(table, [early, late]))
    # By position in the task first, then by task.
    assert rows_of(table) == [{"id": 1, "name": "b1"}, {"id": 2, "name": "a2"}]
    table.compact(full=True)
    assert rows_of(table) == [{"id": 1, "name": "b1"}, {"id": 2, "name": "a2"}]


def test_sums_of_several_tasks_add_up(tmp_path: Path) -> None:
    table = make(
        tmp_path, "id bigint, n bigint", key="id", bucket="2", merge_engine="aggregation",
        fields__n__aggregate_function="sum",
    )  # fmt: skip
    tasks = [[[{"id": i % 7, "n": i + 1} for i in range(50)]] for _ in range(4)]
    table.new_commit().commit(write_in_lanes(table, tasks))
    assert sum(row["n"] for row in rows_of(table)) == 4 * sum(range(1, 51))


def test_a_second_row_of_a_key_is_refused_where_keys_are_distinct(tmp_path: Path) -> None:
    table = make(tmp_path, "a bigint, b string, n bigint", key="a b", bucket="2")
    function = LakeWriteFunction(table.context, "db.t", has_distinct_keys=True)
    keys = [(1, "x"), (1, "y"), (2, "x"), (1, "x"), (2, "x"), (3, "x"), (1, "x")]
    batches = [batch([{"a": a, "b": b, "n": n}]) for n, (a, b) in enumerate(keys)]
    assert run_task(function, batches[:3]).rows == 3
    with pytest.raises(InvalidRequest, match=r"2 primary keys .* such as a = 1, b = 'x' and a = 2, b = 'x'; "):
        run_task(function, batches)


def test_a_lane_is_one_of_all(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="writer 2 is none of 2"):
        WriterShard(2, 2)


# ---- rows -----------------------------------------------------------------------------------------------------------


def test_columns_go_by_name_and_missing_ones_get_their_default_or_null(tmp_path: Path) -> None:
    table = make(tmp_path, "id bigint, name string, other int")
    written = run_task(LakeWriteFunction(table.context, "t"), [batch([{"NAME": "a", "id": 1}]), batch([])])
    assert written.rows == 1
    commit_batch(table, messages_of([written]), None, threads)
    assert rows_of(table) == [{"id": 1, "name": "a", "other": None}]


def test_a_default_value_may_stand_in_the_quotes_of_sql(tmp_path: Path) -> None:
    field = make(tmp_path).schema.field_named("name")
    assert missing_column(replace(field, default="'new one'"), 2, False).to_pylist() == ["new one", "new one"]
    assert missing_column(replace(field, default="it's"), 1, False).to_pylist() == ["it's"]


def test_unknown_and_missing_columns_are_told_before_a_row_is_read(tmp_path: Path) -> None:
    schema = make(tmp_path, key="id", bucket="1").schema
    with pytest.raises(InvalidRequest, match="column 'nmae', which the table does not have; did you mean 'name'"):
        Incoming(schema, ["id", "nmae"])
    with pytest.raises(InvalidRequest, match="column 'id' is NOT NULL, but the data does not have it"):
        Incoming(schema, ["name"])
    with pytest.raises(InvalidRequest, match="column 'name', twice"):
        Incoming(schema, ["id", "name", "Name"])


@pytest.mark.parametrize(
    ("column", "kinds"),
    [("_change_type", ["insert", "update_after", "delete", "update_before"]), ("rowkind", ["+I", "+U", "-D", "-U"])],
)
def test_changes_of_a_changelog_are_applied(tmp_path: Path, column: str, kinds: list[str]) -> None:
    table = make(tmp_path, key="id", bucket="1", ignore_update_before="true")
    changes = [
        {"id": 1, "name": "a", column: kinds[0], "_log_offset": 7},
        {"id": 2, "name": "b", column: kinds[0], "_log_offset": 8},
        {"id": 2, "name": "b", column: kinds[3], "_log_offset": 9},
        {"id": 2, "name": "c", column: kinds[1], "_log_offset": 9},
        {"id": 1, "name": "a", column: kinds[2], "_log_offset": 10},
    ]
    written = run_task(LakeWriteFunction(table.context, "t"), [batch(changes)])
    commit_batch(table, messages_of([written]), None, threads)
    assert rows_of(table) == [{"id": 2, "name": "c"}]


def test_an_append_table_takes_no_changelog(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="takes inserts only: leave the column out"):
        Incoming(make(tmp_path).schema, ["id", "name", "_change_type"])


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    table = make(tmp_path, key="id", bucket="2", write_buffer_size="1 kb")
    many = batch([{"id": i, "name": "x" * 50} for i in range(200)])
    bad = batch([{"id": None, "name": "x"}])
    with pytest.raises(InvalidRequest, match=r"writing to table t: .*'id'"):
        run_task(LakeWriteFunction(table.context, "t"), [many, bad])
    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.parametrize("gathered", [4, 1000])
def test_of_rows_with_one_key_in_many_batches_the_last_one_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gathered: int
) -> None:
    """Batches are put together before they are divided, and the kinds of rows with them."""
    monkeypatch.setattr(lake_write, "GATHERED_ROWS", gathered)
    table = make(tmp_path, key="id", bucket="3")
    changes = [{"id": i % 8, "name": str(i), "rowkind": "-D" if i % 8 == i // 8 else "+I"} for i in range(64)]
    written = run_task(LakeWriteFunction(table.context, "t"), [batch(changes[i : i + 3]) for i in range(0, 64, 3)])
    assert written.rows == 64
    commit_batch(table, messages_of([written]), None, threads)
    assert rows_of(table) == [{"id": i, "name": str(56 + i)} for i in range(7)]


def test_batches_are_put_together_only_where_their_rows_are_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    write_batch = TableWrite.write_batch

    def counting(self: TableWrite, rows: pa.RecordBatch, kinds: Any) -> None:
        sizes.append(rows.num_rows)
        write_batch(self, rows, kinds)

    monkeypatch.setattr(TableWrite, "write_batch", counting)
    monkeypatch.setattr(lake_write, "GATHERED_ROWS", 25)
    batches = [batch([{"id": i, "name": "x"} for i in range(10)])] * 7
    for number, options in enumerate(({"key": "id", "bucket": "2"}, {"parts": "name"}, {})):
        run_task(LakeWriteFunction(make(tmp_path / str(number), **options).context, "t"), batches)
    assert sizes == [30, 30, 10, 30, 30, 10, *[10] * 7]
    monkeypatch.setattr(lake_write, "GATHERED_BYTES", 2 * batches[0].nbytes)
    sizes.clear()
    run_task(LakeWriteFunction(make(tmp_path / "narrow", key="id", bucket="2").context, "t"), batches)
    assert sizes == [20, 20, 20, 10]


def test_a_task_writes_under_the_schema_that_the_driver_planned_with(tmp_path: Path) -> None:
    table = make(tmp_path)
    function = pickle.dumps(LakeWriteFunction(table.context, "t"))
    altered(table, [AddColumn(("more",), int_())])
    written = run_task(pickle.loads(function), [batch([{"id": 1, "name": "a"}])])
    commit_batch(table, messages_of([written]), None, threads)
    assert {f.schema_id for m in written.messages for f in m.data.new_files} == {0}
    assert rows_of(table) == [{"id": 1, "name": "a", "more": None}]


# ---- commits --------------------------------------------------------------------------------------------------------


def test_precommit_compaction_leaves_one_file_of_each_partition_and_one_snapshot(tmp_path: Path) -> None:
    table = make(tmp_path, parts="name", precommit_compact="true")
    tasks = [[[{"id": i, "name": f"p{i % 2}"} for i in range(10)]] for _ in range(4)]
    (made,) = commit_batch(table, write_in_lanes(table, tasks), None, threads)
    assert made.id == 1
    assert [len(split.files) for split in table.scan().plan()] == [1, 1]
    assert len(list(tmp_path.rglob("*.parquet"))) == 2
    assert len(rows_of(table)) == 40


@pytest.mark.parametrize(("rows_max", "jobs"), [(40, 0), (39, 1)])
def test_few_rows_are_put_together_by_the_driver_and_more_by_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_max: int, jobs: int
) -> None:
    monkeypatch.setattr(committing, "DRIVER_ROWS_MAX", rows_max)
    asked: list[str] = []

    def runner(what: str) -> TaskRunner:
        asked.append(what)
        return threads(what)

    table = make(tmp_path, precommit_compact="true")
    tasks = [[[{"id": i, "name": "p"} for i in range(10)]] for _ in range(4)]
    commit_batch(table, write_in_lanes(table, tasks), None, runner)
    assert asked == [f"precommit compaction of {table.name}"] * jobs
    assert len(live_files(table)) == 1
    assert len(rows_of(table)) == 40


ENGINES = {
    "deduplicate": {},
    "partial-update": {"merge_engine": "partial-update"},
    "sum": {"merge_engine": "aggregation", "fields__n__aggregate-function": "sum"},
    "first-row": {"merge_engine": "first-row"},
}


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_precommit_compaction_of_keys_makes_one_run_of_each_bucket_with_the_same_result(
    tmp_path: Path, options: dict[str, str]
) -> None:
    rng = random.Random(7)

    def some_rows(count: int) -> Rows:
        return [
            {"id": rng.randrange(40), "n": rng.choice([None, 1, 2]), "name": rng.choice([None, "a", "b"])}
            for _ in range(count)
        ]

    commits = [[[some_rows(20), some_rows(30)] for _ in range(3)] for _ in range(2)]
    columns = "id bigint, n bigint, name string"
    results = []
    for precommit in ("false", "true"):
        table = make(
            tmp_path / precommit,
            columns,
            key="id",
            bucket="2",
            write_only="true",
            precommit_compact=precommit,
            **options,
        )
        for tasks in commits:
            write = write_in_lanes(table, tasks)
            commit_batch(table, write, None, threads)
        files = live_files(table)
        assert len(files) == (4 if precommit == "true" else 12)
        assert {f.level for f in files} == {0}
        assert len(list((tmp_path / precommit).rglob("data-*"))) == len(files)
        table.compact(full=True)
        results.append(rows_of(table))
    assert results[0] == results[1]


def test_precommit_compaction_joins_changelog_files_and_keeps_every_change(tmp_path: Path) -> None:
    streams = []
    for precommit in ("false", "true"):
        table = make(
            tmp_path / precommit, key="id", bucket="1", changelog_producer="input", precommit_compact=precommit,
            write_only="true",
        )  # fmt: skip
        for number in range(2):
            tasks = [[[{"id": i, "name": f"{number}{t}"} for i in range(3 * t, 3 * t + 5)]] for t in range(3)]
            commit_batch(table, write_in_lanes(table, tasks), None, threads)
        logs = list((tmp_path / precommit).rglob("changelog-*.parquet"))
        assert len(logs) == (2 if precommit == "true" else 6)
        reread = table.with_options({"scan.snapshot-id": "1"})
        changes = [r for b in stream_of(reread, scan_mode="from-snapshot", follow=False) for r in b.to_pylist()]
        streams.append(sorted(changes, key=str))
    assert len(streams[0]) == 30
    assert streams[0] == streams[1]


def test_buckets_that_were_written_are_compacted_after_the_commit_when_it_is_time(tmp_path: Path) -> None:
    table = make(tmp_path, key="id", bucket="1", num_sorted_run__compaction_trigger="3")
    for number in range(3):
        tasks = [[[{"id": i, "name": f"{number}"} for i in range(5)]] for _ in range(2)]
        commit_batch(table, write_in_lanes(table, tasks), None, threads)
    history = [
        table.context.snapshots.snapshot(i).commit_kind.value
        for i in range(1, (table.context.snapshots.latest_id() or 0) + 1)
    ]
    assert history == ["APPEND", "APPEND", "COMPACT", "APPEND", "COMPACT"]
    assert rows_of(table) == [{"id": i, "name": "2"} for i in range(5)]


def test_overwrites_replace_partitions_that_are_named_or_written_to_or_all(tmp_path: Path) -> None:
    table = make(tmp_path, parts="name")

    def overwrite(rows: Rows, how: Overwrite) -> Rows:
        written = run_task(LakeWriteFunction(table.context, "t", replaces=True), [batch(rows)])
        commit_batch(table, messages_of([written]), how, threads)
        return rows_of(table)

    put(table, [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    assert overwrite([{"id": 3, "name": "a"}], Overwrite({"name": "a"})) == [
        {"id": 2, "name": "b"},
        {"id": 3, "name": "a"},
    ]
    assert overwrite([{"id": 4, "name": "b"}], Overwrite(dynamic=True)) == [
        {"id": 3, "name": "a"},
        {"id": 4, "name": "b"},
    ]
    assert overwrite([{"id": 5, "name": "c"}], Overwrite()) == [{"id": 5, "name": "c"}]


@pytest.mark.parametrize("how", [None, Overwrite(), Overwrite({"name": "a"})], ids=["append", "all", "partition"])
def test_a_version_of_an_application_is_committed_once(tmp_path: Path, how: Overwrite | None) -> None:
    table = make(tmp_path, parts="name")

    def written(number: int, version: int, application: str = "job") -> int:
        function = LakeWriteFunction(table.context, "t", replaces=how is not None)
        task = run_task(function, [batch([{"id": number, "name": "a"}])])
        return len(commit_batch(table, messages_of([task]), how, threads, (application, version)))

    assert [written(1, 7), written(2, 7), written(3, 6), written(4, 8), written(5, 7, "another")] == [1, 0, 0, 1, 1]
    committed = [1, 4, 5]
    assert [row["id"] for row in rows_of(table)] == (committed if how is None else committed[-1:])
    assert len(list(tmp_path.rglob("*.parquet"))) == len(committed)  # those of repeated versions are deleted


def test_a_refused_overwrite_deletes_its_files(tmp_path: Path) -> None:
    table = make(tmp_path, parts="name")
    written = run_task(LakeWriteFunction(table.context, "t", replaces=True), [batch([{"id": 3, "name": "x"}])])
    with pytest.raises(InvalidRequest, match="is not in the partition to overwrite"):
        commit_batch(table, messages_of([written]), Overwrite({"name": "a"}), threads)
    assert list(tmp_path.rglob("*.parquet")) == []


# ---- options and dealing --------------------------------------------------------------------------------------------


def test_options_of_a_write_are_checked(tmp_path: Path) -> None:
    table = make(tmp_path, bucket="2", bucket_key="id")
    chosen = write_options("t", table, {"Write-Only": "true", "checkpointLocation": "/x", "bucket": "2"})
    assert chosen.paimon == {"write-only": "true"}
    assert with_write_options(table, chosen).context.options.write_only
    assert with_write_options(table, chosen) is with_write_options(table, chosen)
    once = write_options("t", table, {"txnappid": "job", "TXNVERSION": "3"})
    assert (once.paimon, once.transaction, chosen.transaction) == ({}, ("job", 3), None)
    for alone in ({"txnAppId": "job"}, {"txnVersion": "3"}):
        with pytest.raises(InvalidRequest, match="'txnAppId' and 'txnVersion' go together"):
            write_options("t", table, alone)
    with pytest.raises(InvalidRequest, match="'txnVersion' is -1, and can be from 0 to"):
        write_options("t", table, {"txnAppId": "job", "txnVersion": "-1"})
    with pytest.raises(InvalidRequest, match="no write option 'wirte-only'; did you mean 'write-only'"):
        write_options("t", table, {"wirte-only": "true"})
    with pytest.raises(InvalidRequest, match=r"'bucket' is a property of the table.*ALTER TABLE"):
        write_options("t", table, {"bucket": "4"})


ONE_KEY = {"key": "id", "bucket": "2"}
PARTS = {"key": "id name", "parts": "name", "bucket": "2"}


def context_of(cores: int) -> Any:
    return SimpleNamespace(cores=cores, jvm=None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, RowDistribution()),
        ({"parts": "name", "partition__sink-strategy": "hash"}, RowDistribution(("name",), 0)),
        ({"bucket": "8", "bucket_key": "id"}, RowDistribution(("id",), 4, "paimon_bucket[8](L) of 4 tasks")),
        (ONE_KEY, RowDistribution(("id",), 2, "paimon_bucket[2](L) of 2 tasks")),
        (PARTS, RowDistribution(("id", "name"), 4, "paimon_bucket[2](L; U) of 4 tasks")),
        ({**ONE_KEY, "sink__parallelism": "9"}, RowDistribution(("id",), 9, "paimon_bucket[2](L) of 9 tasks")),
        ({**ONE_KEY, "sink__parallelism": "1"}, RowDistribution(("id",), 1)),
        ({"key": "id"}, RowDistribution(("id",), 1)),
    ],
)
def test_rows_are_dealt_to_tasks_as_the_buckets_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], expected: RowDistribution
) -> None:
    monkeypatch.setattr(lake_write_builder, "runs_on_executors", lambda jvm: True)
    assert row_distribution(make(tmp_path, **options), context_of(4)) == expected


@pytest.mark.parametrize(
    ("options", "expected"), [(ONE_KEY, RowDistribution(("id",), 2)), (PARTS, RowDistribution(("name", "id"), 4))]
)
def test_rows_are_dealt_by_their_bucket_keys_where_spark_cannot_tell_buckets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], expected: RowDistribution
) -> None:
    monkeypatch.setattr(lake_write_builder, "runs_on_executors", lambda jvm: False)
    assert row_distribution(make(tmp_path, **options), context_of(4)) == expected
