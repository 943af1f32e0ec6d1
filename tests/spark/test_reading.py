"""The read functions of workers, without Spark: functions and partitions are pickled like Spark does it."""

from __future__ import annotations

import importlib
import io
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from forebay.base.errors import ForebayError, InternalError, InvalidRequest, NotFound
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.metadata.predicate import Predicate, col
from forebay.metadata.table import TableBucket
from forebay.server.embedded import EmbeddedServer
from forebay.spark.datasource import BatchReader, ForebayDataSource
from forebay.spark.options import SNAPSHOT_MERGE, ReadOptions
from forebay.spark.reading.live_plan import ClusterScan
from forebay.spark.reading.live_read import counted, first_rows, gathered
from forebay.spark.reading.plan import Pushdown, SplitsPartition
from forebay.unionread.splits import LogSplit
from tests.patience import PATIENCE
from tests.spark.tables import ids_of, make_table, rows


def scan_of(table: Table, **options: Any) -> ClusterScan:
    chosen = ReadOptions(table.connection.settings, **{k: v for k, v in options.items() if k != "is_changelog"})
    return ClusterScan(table.info, chosen, options.get("is_changelog", False))


def run(scan: ClusterScan, connection: Connection, wanted: Pushdown, cores: int = 2) -> list[pa.RecordBatch]:
    """Plan, and read all tasks as workers do: from pickled bytes."""
    schema = StructType([scan.schema[name] for name in wanted.columns])
    plan = scan.plan(connection, cores, wanted, schema)
    function = pickle.loads(pickle.dumps(plan.read))
    batches = []
    for task in plan.tasks:
        message = pa.record_batch([pa.array([pickle.dumps(SplitsPartition(task))])], ["value"])
        batches += list(function(iter([message])))
    assert all(batch.schema.equals(plan.read.schema) for batch in batches if plan.read.schema.names)
    return batches


ALL = ("id", "name", "amount")


@pytest.fixture(params=["log", "kv"])
def table(request: pytest.FixtureRequest, connection: Connection, database: str) -> Table:
    """A table with the rows 0 to 999."""
    made = make_table(connection, f"{database}.t", ["id"] if request.param == "kv" else None)
    (made.upsert if made.has_primary_key else made.append)(rows(0, 1000))
    return made


def test_all_rows_are_read_once_with_spark_s_schema(table: Table, connection: Connection) -> None:
    batches = run(scan_of(table), connection, Pushdown(ALL))
    assert ids_of(batches) == list(range(1000))
    joined = pa.Table.from_batches(batches).sort_by("id")
    assert joined.select(["name", "amount"]).equals(rows(0, 1000).select(["name", "amount"]))


def test_columns_come_in_spark_s_order_and_no_others(table: Table, connection: Connection) -> None:
    batches = run(scan_of(table), connection, Pushdown(("amount", "id")))
    assert {tuple(batch.schema.names) for batch in batches} == {("amount", "id")}


def test_counting_needs_no_columns(table: Table, connection: Connection) -> None:
    batches = run(scan_of(table), connection, Pushdown(()))
    assert sum(batch.num_rows for batch in batches) == 1000
    assert all(batch.num_columns == 0 for batch in batches)


def test_filters_are_applied_to_rows_also_on_columns_that_are_not_wanted(table: Table, connection: Connection) -> None:
    predicate = (col("id") >= 990) & (col("amount") < 497.0)
    assert ids_of(run(scan_of(table), connection, Pushdown(("id",), (), predicate))) == [990, 991, 992, 993]
    by_name = run(scan_of(table), connection, Pushdown(("name",), (), col("id") == 7))
    assert [batch.column(0).to_pylist() for batch in by_name] == [["n7"]]


@pytest.mark.parametrize("limit", [1, 7, 999, 1000, 5000])
def test_a_limit_is_kept_by_every_task(table: Table, connection: Connection, limit: int) -> None:
    batches = run(scan_of(table), connection, Pushdown(ALL, limit=limit))
    assert sum(batch.num_rows for batch in batches) == min(limit, 1000)


def test_rows_that_come_after_planning_are_not_read_from_a_log(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.l", buckets=2)
    table.append(rows(0, 100))
    scan = scan_of(table)
    schema = scan.schema
    plan = scan.plan(connection, 2, Pushdown(ALL), schema)
    table.append(rows(100, 200))
    for _ in range(2):  # a task that is run again reads the same
        assert ids_of(b for task in plan.tasks for b in plan.read.read(SplitsPartition(task))) == list(range(100))


def test_a_log_is_cut_into_tasks_of_so_many_records(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.l", buckets=2)
    table.append(rows(0, 1000))
    scan = scan_of(table, records_per_partition=64)
    assert ids_of(run(scan, connection, Pushdown(("id",)))) == list(range(1000))
    tasks = scan.plan(connection, 2, Pushdown(ALL), scan.schema).tasks
    assert len(tasks) == 16


def test_range_ending_in_an_empty_batch_readers_must_finish(connection: Connection, database: str) -> None:
    """Deleting keys that are not there appends a batch without changes, which takes an offset all the same."""
    table = make_table(connection, f"{database}.kv", ["id"], buckets=1)
    table.upsert(rows(0, 3))
    table.delete([{"id": 100}])
    batches = run(scan_of(table, is_changelog=True), connection, Pushdown(("_change_type", "_log_offset", "id")))
    assert ids_of(batches) == [0, 1, 2]
    changelog = scan_of(table, is_changelog=True)
    [task] = changelog.plan(connection, 2, Pushdown(ALL), changelog.schema).tasks
    assert task == (LogSplit(TableBucket(table.info.table_id, 0), 0, 4),)


def test_a_changelog_tells_types_offsets_and_times(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.kv", ["id"], buckets=1)
    table.upsert(rows(1, 2))
    table.upsert([{"id": 1, "name": "new", "amount": None}])
    table.delete([{"id": 1}])
    wanted = Pushdown(("name", "_log_offset", "_change_type"))
    # The reader puts metadata first; Spark's order is restored by name.
    batches = run(scan_of(table, is_changelog=True), connection, wanted)
    assert pa.Table.from_batches(batches).to_pylist() == [
        {"name": "n1", "_log_offset": 0, "_change_type": "insert"},
        {"name": "n1", "_log_offset": 1, "_change_type": "update_before"},
        {"name": "new", "_log_offset": 2, "_change_type": "update_after"},
        {"name": "new", "_log_offset": 3, "_change_type": "delete"},
    ]
    times = run(scan_of(table, is_changelog=True), connection, Pushdown(("_commit_timestamp",)))
    assert times[0].schema.field(0).type == pa.timestamp("us", "UTC")


def test_both_strategies_give_the_same_state(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.kv", ["id"], buckets=2)
    table.upsert(rows(0, 100))
    table.upsert([{"id": 5, "name": "changed", "amount": 1.0}])
    table.delete([{"id": 6}])
    states = [
        pa.Table.from_batches(run(scan_of(table, **options), connection, Pushdown(ALL))).sort_by("id").to_pylist()
        for options in ({}, {"strategy": SNAPSHOT_MERGE})
    ]
    assert states[0] == states[1]
    assert len(states[0]) == 99
    assert states[0][5] == {"id": 5, "name": "changed", "amount": 1.0}


def test_partitions_are_chosen_by_filters_on_their_keys(connection: Connection, database: str) -> None:
    table = make_table(connection, f"{database}.p", ["id", "name"], buckets=2, partition_keys=["name"])
    table.upsert(rows(0, 6))
    scan = scan_of(table)
    wanted = Pushdown(ALL, (col("name").is_in(["n1", "n4"]),))
    assert ids_of(run(scan, connection, wanted)) == [1, 4]
    assert sum(len(task) for task in scan.plan(connection, 2, wanted, scan.schema).tasks) == 4
    assert scan.plan(connection, 2, Pushdown(ALL, (col("name") == "nope",)), scan.schema).tasks == []


@pytest.mark.parametrize("filters", [(), (col("name") >= "n1",)], ids=["all", "some"])
def test_a_scan_has_partitions_that_were_created_between_its_plan_and_its_snapshot(
    connection: Connection, database: str, filters: tuple[Predicate, ...]
) -> None:
    table = make_table(connection, f"{database}.p", ["id", "name"], buckets=2, partition_keys=["name"])
    table.upsert(rows(1, 2))
    scan = scan_of(table)
    plan = scan.plan(connection, 2, Pushdown(ALL, filters), scan.schema)
    with connection.transaction() as transaction:  # which the snapshot has as a whole
        transaction.upsert(table, rows(0, 3))
        transaction.upsert(table, [{"id": 5, "name": "n1", "amount": None}])
    opened = plan.open()
    assert ids_of(batch for part in opened.partitions for batch in plan.read.read(part)) == (
        [1, 2, 5] if filters else [0, 1, 2, 5]
    )
    exact = plan.open_tasks(plan.tasks)
    assert len(exact.partitions) == len(plan.tasks)


def test_an_empty_table_and_one_without_partitions_have_no_rows(connection: Connection, database: str) -> None:
    empty = make_table(connection, f"{database}.e", ["id"])
    assert ids_of(run(scan_of(empty), connection, Pushdown(ALL))) == []
    partitioned = make_table(connection, f"{database}.p", partition_keys=["name"])
    assert run(scan_of(partitioned), connection, Pushdown(ALL)) == []


def test_a_bucket_that_ends_too_early_is_an_error_and_not_a_short_answer(
    connection: Connection, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(connection, f"{database}.l", buckets=1)
    table.append(rows(0, 10))
    scan = scan_of(table)
    plan = scan.plan(connection, 2, Pushdown(ALL), scan.schema)
    from forebay.client.reading.log_reader import LogReader

    monkeypatch.setattr(LogReader, "__iter__", lambda self: iter(()))
    with pytest.raises(InternalError, match=r"ended at offset 0 instead of 10"):
        list(plan.read.read(SplitsPartition(plan.tasks[0])))


def test_a_dropped_table_fails_its_readers_with_its_name(table: Table, connection: Connection) -> None:
    scan = scan_of(table)
    plan = scan.plan(connection, 2, Pushdown(ALL), scan.schema)
    connection.drop_table(table.path)
    message = pa.record_batch([pa.array([pickle.dumps(SplitsPartition(plan.tasks[0]))])], ["value"])
    function = replace(plan.read, settings=quick(plan.read.settings))
    with pytest.raises(ForebayError, match=f"reading table {table.path}: ") as caught:
        list(function(iter([message])))
    assert caught.value.__suppress_context__


def quick(settings: Any) -> Any:
    """Settings that give up soon."""
    return replace(settings, user_options=(*settings.user_options, ("client.retry-timeout", 0.2)))


# ---- batches --------------------------------------------------------------------------------------------------------


def batches_of(sizes: list[int]) -> Iterator[pa.RecordBatch]:
    start = 0
    for size in sizes:
        yield pa.record_batch([pa.array(range(start, start + size), pa.int64())], ["id"])
        start += size


@given(st.lists(st.integers(0, 300), max_size=30), st.integers(1, 128))
def test_batches_are_gathered_and_cut_to_about_the_same_size(sizes: list[int], most: int) -> None:
    made = list(gathered(batches_of(sizes), most))
    assert [i for batch in made for i in batch.column(0).to_pylist()] == list(range(sum(sizes)))
    assert all(0 < batch.num_rows <= most for batch in made)
    assert all(batch.num_rows > most // 2 - max(sizes) for batch in made[:-1])


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(0, 400))
def test_first_rows_takes_no_batch_that_it_does_not_need(sizes: list[int], limit: int) -> None:
    taken = 0

    def source() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for batch in batches_of(sizes):
            assert taken < limit
            taken += batch.num_rows
            yield batch

    ids = [i for batch in first_rows(source(), limit) for i in batch.column(0).to_pylist()]
    assert ids == list(range(min(limit, sum(sizes))))


def test_counting_makes_one_batch_without_columns() -> None:
    assert [(b.num_rows, b.num_columns) for b in counted(batches_of([3, 4]))] == [(7, 0)]
    assert list(counted(batches_of([]))) == []


def test_memory_of_a_scan_does_not_grow_with_the_table(connection: Connection, database: str) -> None:
    wide = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    connection.create_table(f"{database}.wide", wide, primary_key=["id"], buckets=4)
    table = connection.table(f"{database}.wide")
    for part in range(10):
        ids = pa.array(range(part * 20_000, (part + 1) * 20_000), pa.int64())
        table.upsert(pa.table([ids, pa.array(["x" * 200] * len(ids))], schema=wide))
    scan = scan_of(table)
    plan = scan.plan(connection, 2, Pushdown(("id", "text")), scan.schema)
    before = pa.total_allocated_bytes()
    most = count = 0
    for task in plan.tasks:
        for batch in plan.read.read(SplitsPartition(task)):
            count += batch.num_rows
            most = max(most, pa.total_allocated_bytes() - before)
            del batch
    assert count == 200_000
    assert most < 60 << 20  # the table is 42 MB; two sessions of 4 MB pages, and a gathered batch of 14 MB


# ---- the plain data source, as Spark's workers drive it -------------------------------------------------------------


def options_of(server: EmbeddedServer, table: Table, **more: str) -> dict[str, str]:
    return {"bootstrap.servers": server.bootstrap_servers, "table": str(table.path), **more}


def worker_rows(reader: BatchReader, schema: StructType) -> pa.Table:
    """What the JVM would get: planned and read by PySpark's own code, through pickles."""
    planner = importlib.import_module("pyspark.sql.worker.plan_data_source_read")
    if not hasattr(planner, "write_read_func_and_partitions"):
        pytest.skip("this PySpark has its planner in one piece, with the process around it")
    out = io.BytesIO()
    planner.write_read_func_and_partitions(
        out,
        reader=reader,
        data_source=ForebayDataSource({}),
        schema=schema,
        max_arrow_batch_size=10_000,
        binary_as_bytes=True,
    )
    out.seek(0)

    def message() -> Any:
        return pickle.loads(out.read(int.from_bytes(out.read(4), "big")))

    function, return_type = message()
    assert return_type == schema
    batches = []
    for _ in range(int.from_bytes(out.read(4), "big")):
        partition = pa.record_batch([pa.array([pickle.dumps(message())], pa.binary())], ["value"])
        batches += list(function(iter([partition])))
    return pa.Table.from_batches(batches, schema=batches[0].schema) if batches else pa.table({"id": []})


def test_the_data_source_plans_and_reads_by_pyspark_s_protocol(server: EmbeddedServer, table: Table) -> None:
    source = ForebayDataSource(options_of(server, table, filter="id >= 10 AND id < 20", cores="4"))
    schema = source.schema()
    found = worker_rows(source.reader(schema), schema)
    assert sorted(found["id"].to_pylist()) == list(range(10, 20))
    assert found.schema.names == ["id", "name", "amount"]


def test_the_data_source_reads_columns_and_limits_that_options_name(server: EmbeddedServer, table: Table) -> None:
    source = ForebayDataSource(options_of(server, table, columns="name,id", limit="5"))
    schema = source.schema()
    assert schema.names == ["name", "id"]
    found = worker_rows(source.reader(schema), schema)
    assert (found.num_rows, found.schema.names) == (5, ["name", "id"])


def test_the_data_source_reads_changelogs_and_empty_tables(
    server: EmbeddedServer, connection: Connection, database: str
) -> None:
    table = make_table(connection, f"{database}.kv", ["id"])
    empty = ForebayDataSource(options_of(server, table))
    assert worker_rows(empty.reader(empty.schema()), empty.schema()).num_rows == 0
    table.upsert(rows(0, 1))
    table.upsert(rows(0, 1))
    source = ForebayDataSource({**options_of(server, table), "table": f"{table.path}$changelog"})
    found = worker_rows(source.reader(source.schema()), source.schema())
    assert found["_change_type"].to_pylist() == ["insert", "update_before", "update_after"]


def test_the_data_source_never_overrides_push_filters() -> None:
    """Reference fact 1: PySpark would give silently wrong answers."""
    assert BatchReader.__bases__ == (DataSourceReader,)
    assert "pushFilters" not in vars(BatchReader)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"table": None}, InvalidRequest, "needs the option 'table'"),
        ({"bootstrap.servers": None}, InvalidRequest, "needs the option 'bootstrap.servers'"),
        ({"table": "db.nope"}, NotFound, "nope"),
        ({"path": "other.t"}, InvalidRequest, "two tables were named"),
        ({"filter": "nope = 1"}, InvalidRequest, "no column 'nope'"),
        ({"filterr": "id = 1"}, InvalidRequest, "no read option 'filterr'"),
        ({"columns": "id,nope"}, NotFound, r"no column 'nope'; it has id, name, amount"),
        ({"limit": "few"}, InvalidRequest, "'limit': 'few' is not a positive"),
    ],
)
def test_bad_options_of_the_data_source_are_refused_by_name(
    server: EmbeddedServer, table: Table, change: dict[str, str | None], kind: type[ForebayError], message: str
) -> None:
    options = {k: v for k, v in {**options_of(server, table), **change}.items() if v is not None}

    def plan_to_read() -> None:
        source = ForebayDataSource(options)
        source.reader(source.schema())

    with pytest.raises(kind, match=message):
        plan_to_read()


def test_a_worker_that_reads_tables_of_a_cluster_need_not_load_pandas() -> None:
    """It takes a quarter of a second, and a worker's first task would wait for it."""
    program = "import sys, forebay.spark.reading.live_read; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stdout.strip() == "False"
