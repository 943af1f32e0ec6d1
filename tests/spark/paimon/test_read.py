"""Batch reads of Paimon tables without Spark: plans, their distribution to tasks, and the rows of tasks."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from forebay.base.errors import InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata import types
from forebay.metadata.predicate import Predicate, col
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.read.change_planner import file_names
from forebay.paimon.read.snapshot_planner import SnapshotPlanner
from forebay.paimon.store.schema_changes import AddColumn, RenameColumn
from forebay.paimon.table import Table
from forebay.spark.lake_datasource import PaimonDataSource
from forebay.spark.lake_options import lake_read_options
from forebay.spark.reading.lake_plan import PaimonScan
from forebay.spark.reading.plan import Pushdown, ScanPlan
from forebay.spark.schemas import spark_arrow_schema
from tests.paimon.lake import ALL_TYPES, all_types_rows, altered, live_files, new_catalog, put
from tests.paimon.stream.model import COLUMNS
from tests.spark.releases import needs

Row = dict[str, Any]


@pytest.fixture
def catalog(tmp_path: Path) -> FileSystemCatalog:
    return new_catalog(tmp_path)


@pytest.fixture
def parts(catalog: FileSystemCatalog) -> Table:
    """Partitions a, b and c, each with two files of three rows."""
    table = catalog.create_table("db.parts", COLUMNS, partition_keys=["name"])
    for n, name in enumerate("abcabc"):
        put(table, [{"id": 10 * n + i, "name": name, "v": i} for i in range(3)])
    return table


@pytest.fixture
def keyed(catalog: FileSystemCatalog) -> Table:
    """A primary-key table with updates and deletes in several files."""
    table = catalog.create_table("db.keyed", COLUMNS, primary_key=["id"], options={"bucket": "2"})
    put(table, [{"id": i, "name": "old", "v": i} for i in range(20)])
    put(table, [{"id": i, "name": "new", "v": i} for i in range(5, 10)])
    table.delete([{"id": i} for i in range(3)])
    return table


def planned(
    table: Table | PaimonScan,
    columns: list[str] | None = None,
    where: Predicate | None = None,
    limit: int | None = None,
    schema: StructType | None = None,
) -> ScanPlan:
    scan = table if isinstance(table, PaimonScan) else PaimonScan.of(table, "t")
    full = scan.schema
    names = full.names if columns is None else columns
    wanted = Pushdown(tuple(names), (), where, limit)
    return scan.plan(2, wanted, schema or StructType([full[name] for name in names]))


def batches_of(plan: ScanPlan, *, beside_native: bool = False) -> list[list[pa.RecordBatch]]:
    """What each task yields, in another process than the one that planned."""
    read = pickle.loads(pickle.dumps(plan.read))
    tasks = [pickle.dumps(partition) for partition in plan.open(beside_native=beside_native).partitions]
    return [list(read([pa.record_batch({"partition": [task]})])) for task in tasks]


def rows_of(plan: ScanPlan, **how: Any) -> list[Row]:
    return [row for task in batches_of(plan, **how) for batch in task for row in batch.to_pylist()]


def by_id(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["id"])


def files_of(plan: ScanPlan) -> int:
    return sum(len(file_names(split)) for task in plan.tasks for split in task)


# ---- what is kept ---------------------------------------------------------------------------------------------------


@pytest.fixture
def plannings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the snapshots whose files are chosen."""
    found: list[int] = []
    plain = SnapshotPlanner.plan

    def noted(self: SnapshotPlanner, snapshot: Any, *rest: Any, **more: Any) -> Any:
        found.append(snapshot.id)
        return plain(self, snapshot, *rest, **more)

    monkeypatch.setattr(SnapshotPlanner, "plan", noted)
    return found


def test_the_latest_snapshot_is_planned_once_for_a_request(parts: Table, plannings: list[int]) -> None:
    first = planned(parts)
    assert (planned(parts).tasks, plannings) == (first.tasks, [6])
    for request in (
        {"columns": ["id"]}, {"columns": []}, {"where": col("id") > 1}, {"where": col("id") > 2}, {"limit": 1},
        {"limit": 2},
    ):  # fmt: skip
        plannings.clear()
        assert rows_of(planned(parts, **request)) == rows_of(planned(parts, **request))
        assert plannings == [6], request
    plannings.clear()
    scan = PaimonScan.of(parts, "t")
    wanted = Pushdown(("id",))
    for cores in (2, 3, 2, 3):
        scan.plan(cores, wanted, StructType([scan.schema["id"]]))
    assert plannings == [6], "the one with three cores"
    put(parts, [{"id": 99, "name": "a", "v": 9}])
    plannings.clear()
    assert files_of(planned(parts)) == files_of(first) + 1
    assert plannings == [7]


def test_a_rolled_back_snapshot_s_number_has_a_new_plan(parts: Table) -> None:
    before = rows_of(planned(parts))
    parts.rollback_to(5)
    put(parts, [{"id": 99, "name": "z", "v": 9}])
    after = rows_of(planned(parts))
    assert parts.context.snapshots.latest_id() == 6
    assert {row["id"] for row in after} - {row["id"] for row in before} == {99}


def test_plans_that_options_choose_are_made_each_time(parts: Table, plannings: list[int]) -> None:
    old = PaimonScan.of(parts, "t").with_options({"scan.snapshot-id": "2"})
    assert rows_of(planned(old)) == rows_of(planned(old))
    assert plannings == [2, 2]
    for options in ({"scan.mode": "latest-delta"}, {"incremental-between": "1,3"}):
        scan = PaimonScan.of(parts, "t").with_options(options)
        assert rows_of(planned(scan)) == rows_of(planned(scan))
    assert {row["id"] for row in rows_of(planned(old))} == {0, 1, 2, 10, 11, 12}


# ---- what is read ---------------------------------------------------------------------------------------------------


def test_rows_are_those_of_the_engine_with_spark_s_very_schema(parts: Table, keyed: Table) -> None:
    for table in (parts, keyed):
        plan = planned(table)
        assert by_id(rows_of(plan)) == by_id(table.scan().to_arrow().to_pylist())
        schema = spark_arrow_schema(PaimonScan.of(table, "t").schema)
        for batch in (batch for task in batches_of(plan) for batch in task):
            assert batch.schema.equals(schema, check_metadata=True)


@needs(4, 1, "type TIME")
def test_every_type_comes_with_spark_s_schema(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.all", ALL_TYPES)
    put(table, all_types_rows(20))
    plan = planned(table)
    (task,) = batches_of(plan)
    assert sum(batch.num_rows for batch in task) == 20
    assert all(batch.schema.equals(plan.read.schema, check_metadata=True) for batch in task)


def test_filters_leave_out_partitions_and_files(parts: Table) -> None:
    assert files_of(planned(parts)) == 6
    of_b = planned(parts, where=col("name") == "b")
    assert files_of(of_b) == 2
    assert sorted(row["id"] for row in rows_of(of_b)) == [10, 11, 12, 40, 41, 42]
    narrow = planned(parts, ["v"], where=(col("name") != "a") & (col("id") >= 42))
    assert files_of(narrow) == 2
    assert sorted(row["v"] for row in rows_of(narrow)) == [0, 1, 2, 2]


def test_a_filter_on_values_does_not_bring_old_rows_back(keyed: Table) -> None:
    assert by_id(rows_of(planned(keyed, ["id"], where=col("name") == "old"))) == [
        {"id": i} for i in range(20) if i in (3, 4) or i >= 10
    ]


def test_buckets_are_left_out_by_their_keys(keyed: Table) -> None:
    plan = planned(keyed, where=col("id") == 7)
    assert len({split.bucket for task in plan.tasks for split in task}) == 1
    assert rows_of(plan) == [{"id": 7, "name": "new", "v": 7}]


def test_parts_of_nested_rows_are_read_alone(catalog: FileSystemCatalog) -> None:
    inner = types.row(types.field("city", types.string()), types.field("zip", types.int_()))
    outer = types.row(types.field("home", inner), types.field("age", types.int_()))
    table = catalog.create_table("db.nested", {"id": types.bigint(), "who": outer, "l": types.array(inner)})
    home = {"city": "Rome", "zip": 7}
    put(table, [{"id": 1, "who": {"home": home, "age": 3}, "l": [home]}, {"id": 2, "who": None, "l": None}])
    asked = StructType(
        [
            StructField("who", StructType([StructField("home", StructType([StructField("city", StringType())]))])),
            StructField("l", PaimonScan.of(table, "t").schema["l"].dataType),
            StructField("id", LongType()),
        ]
    )
    plan = planned(table, ["who", "l", "id"], schema=asked)
    assert plan.read.columns == ("who.home.city", "l", "id")
    assert rows_of(plan) == [
        {"who": {"home": {"city": "Rome"}}, "l": [home], "id": 1},
        {"who": None, "l": None, "id": 2},
    ]


def test_a_limit_is_kept_by_one_task_that_reads_no_more_files_than_it_needs(parts: Table, keyed: Table) -> None:
    plan = planned(parts, limit=4)
    assert len(plan.tasks) == 1
    assert files_of(plan) == 2
    assert len(rows_of(plan)) == plan.rows == 4
    assert len(rows_of(planned(keyed, limit=5))) == 5


def test_counting_opens_no_file_where_metadata_is_exact(parts: Table) -> None:
    everything, of_b = planned(parts, []), planned(parts, [], where=col("name") == "b")
    for path in Path(parts.context.paths.root).glob("name=*/*/*.parquet"):
        path.unlink()
    for plan, rows in ((everything, 18), (of_b, 6)):
        assert sum(batch.num_rows for task in batches_of(plan) for batch in task) == rows
    with pytest.raises(NotFound):
        batches_of(planned(parts, [], where=col("id") > 1))


@pytest.mark.parametrize("vectors", ["false", "true"])
def test_counts_are_exact_with_updates_and_deletes(catalog: FileSystemCatalog, vectors: str) -> None:
    options = {"bucket": "1", "deletion-vectors.enabled": vectors}
    table = catalog.create_table("db.k", COLUMNS, primary_key=["id"], options=options)
    for step in range(3):
        put(table, [{"id": i, "name": "x", "v": step} for i in range(step, 10)])
        table.delete([{"id": step}])
        table.compact(full=step == 1)
        count = sum(batch.num_rows for task in batches_of(planned(table, [])) for batch in task)
        assert count == table.scan().to_arrow().num_rows


def test_a_plan_keeps_its_columns_when_the_table_gets_others(parts: Table) -> None:
    plan = planned(parts)
    altered(parts, [RenameColumn(("v",), "w"), AddColumn(("x",), types.int_())])
    assert set(rows_of(plan)[0]) == {"id", "name", "v"}


def test_an_expired_snapshot_is_told_by_the_task(parts: Table) -> None:
    plan = planned(parts)
    parts.overwrite([{"id": 1, "name": "a", "v": 1}], {})
    parts.expire_snapshots(retain_max=1, retain_min=1)
    with pytest.raises(NotFound, match=r"reading table t: .*expired"):
        rows_of(plan)


# ---- how it is dealt out --------------------------------------------------------------------------------------------


def test_files_are_dealt_out_to_tasks_of_about_equal_size(parts: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(planned(parts).tasks) == 1, "eighteen rows are not worth a second task"
    monkeypatch.setattr("forebay.spark.reading.plan.ROWS_PER_TASK_MIN", 1)
    plan = planned(parts.refresh())
    assert [sum(split.row_count for split in task) for task in plan.tasks] == [6, 6, 3, 3]
    assert plan.rows == 18
    assert len(rows_of(plan)) == 18


def test_what_must_be_merged_goes_to_one_task(keyed: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.spark.reading.plan.ROWS_PER_TASK_MIN", 1)
    tasks = batches_of(planned(keyed))
    ids = [[row["id"] for batch in task for row in batch.to_pylist()] for task in tasks]
    assert len(tasks) == 2
    assert sorted(i for task in ids for i in task) == list(range(3, 20))


@pytest.mark.parametrize("side", ["audit_log", "changelog", "binlog"])
def test_changes_of_a_bucket_are_read_by_one_task_in_their_order(
    catalog: FileSystemCatalog, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.spark.reading.plan.ROWS_PER_TASK_MIN", 1)
    options = {"bucket": "2", "changelog-producer": "input"}
    table = catalog.create_table("db.k", COLUMNS, primary_key=["id"], options=options)
    for step in range(4):
        put(table, [{"id": i, "v": step} for i in range(6)])
    plan = planned(PaimonScan.of(table, "t", side).with_options({"incremental-between": "0,4"}))
    tasks = [[row for batch in task for row in batch.to_pylist()] for task in batches_of(plan)]
    assert len(tasks) == 2
    for rows in tasks:
        steps = [row["v"][0] if side == "binlog" else row["v"] for row in rows]
        assert steps == sorted(steps)


def test_an_empty_table_has_no_tasks(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.empty", COLUMNS)
    assert planned(table).tasks == []
    assert planned(table, limit=3).tasks == []


# ---- files for Spark's own reader -----------------------------------------------------------------------------------


def test_files_that_need_nothing_are_offered_to_spark(parts: Table, keyed: Table) -> None:
    native = planned(parts, where=col("name") == "a").native
    assert native is not None
    assert native.is_all
    assert len(native.files) == 2
    assert planned(keyed).native is None, "these must be merged"
    keyed.compact(full=True)
    clean = planned(keyed).native
    assert clean is not None
    assert len(clean.files) == len(live_files(keyed))


def test_counts_and_changes_are_not_offered_to_spark(parts: Table) -> None:
    assert planned(parts, []).native is None
    for options in ({"incremental-between": "1,3"}, {"scan.mode": "latest-delta"}):
        assert planned(PaimonScan.of(parts, "t").with_options(options)).native is None
    assert planned(PaimonScan.of(parts, "t", "audit_log")).native is None


def test_many_rows_in_plain_files_are_mixed_with_few_that_must_be_merged(
    keyed: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed.compact(full=True)
    put(keyed, [{"id": 7, "name": "newest", "v": 7}])
    assert planned(keyed).native is None
    monkeypatch.setattr("forebay.spark.reading.lake_plan.ROWS_MIN", 1)
    plan = planned(keyed.refresh())
    assert plan.native is not None
    assert not plan.native.is_all
    in_files = [row for file in plan.native.files for row in _parquet(file, ["id", "name", "v"])]
    assert by_id([*in_files, *rows_of(plan, beside_native=True)]) == by_id(rows_of(plan))
    assert planned(keyed, limit=3).native is None


def _parquet(path: str, columns: list[str]) -> list[Row]:
    import pyarrow.parquet as pq

    found: list[Row] = pq.read_table(path, columns=columns).to_pylist()
    return found


# ---- options and side tables ----------------------------------------------------------------------------------------


MODES: dict[str, dict[str, str]] = {
    "a snapshot": {"scan.snapshot-id": "2"},
    "a tag": {"scan.tag-name": "t2"},
    "a version that is a tag": {"scan.version": "t2"},
    "a version that is an id": {"scan.version": "2"},
    "a time": {"scan.timestamp-millis": "9999999999999"},
    "changes between ids": {"incremental-between": "1,4"},
    "changes between tags": {"incremental-between": "t2,t4"},
    "changes between times": {"incremental-between-timestamp": "0,9999999999999"},
    "the difference": {"incremental-between": "2,4", "incremental-between-scan-mode": "diff"},
    "the last change": {"scan.mode": "latest-delta"},
    "files made since": {"scan.file-creation-time-millis": "5"},
    "the last compaction": {"scan.mode": "compacted-full"},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("producer", ["none", "input"])
def test_options_choose_what_a_read_reads(catalog: FileSystemCatalog, mode: str, producer: str) -> None:
    options = {"bucket": "2", "changelog-producer": producer}
    table = catalog.create_table("db.k", COLUMNS, primary_key=["id"], options=options)
    for i in range(1, 5):
        put(table, [{"id": i, "name": "x", "v": i}, {"id": i + 1, "name": "y", "v": i}])
        table.create_tag(f"t{i}")
    table.delete([{"id": 2}])
    expected = table.with_options(MODES[mode]).scan().to_arrow().to_pylist()
    found = rows_of(planned(PaimonScan.of(table, "t").with_options(MODES[mode])))
    assert sorted(map(str, found)) == sorted(map(str, expected))
    filtered = rows_of(planned(PaimonScan.of(table, "t").with_options(MODES[mode]), where=col("id") >= 3))
    assert sorted(map(str, filtered)) == sorted(str(row) for row in expected if row["id"] >= 3)


def test_time_travel_of_the_table_shows_the_columns_of_then_and_that_of_a_read_those_of_now(parts: Table) -> None:
    now = altered(parts, [AddColumn(("w",), types.int_())])
    put(now, [{"id": 1, "name": "z", "v": 1, "w": 1}])
    option = {"scan.snapshot-id": "1"}
    assert PaimonScan.of(now.with_options(option), "t").schema.names == ["id", "name", "v"]
    assert rows_of(planned(now.with_options(option)))[0] == {"id": 0, "name": "a", "v": 0}
    of_read = PaimonScan.of(now, "t").with_options(option)
    assert rows_of(planned(of_read))[0] == {"id": 0, "name": "a", "v": 0, "w": None}


@pytest.mark.parametrize("side", ["audit_log", "binlog", "ro"])
@pytest.mark.parametrize("options", [{}, {"scan.snapshot-id": "1"}, {"incremental-between": "0,3"}])
def test_side_tables_are_those_of_the_engine(keyed: Table, side: str, options: dict[str, str]) -> None:
    keyed.compact(full=True)
    put(keyed, [{"id": 7, "name": "newest", "v": 7}])
    then = keyed.with_options(options) if side != "ro" or "incremental-between" not in options else keyed
    expected = then.system(side).read().read_all()
    scan = PaimonScan.of(keyed, "t", side).with_options(options)
    assert scan.schema.names == expected.schema.names
    assert sorted(map(str, rows_of(planned(scan)))) == sorted(map(str, expected.to_pylist()))


def test_a_changelog_has_change_types_in_words(keyed: Table) -> None:
    scan = PaimonScan.of(keyed, "t", "changelog").with_options({"incremental-between": "2,3"})
    assert by_id(rows_of(planned(scan, ["_change_type", "id"]))) == [
        {"_change_type": "delete", "id": i} for i in range(3)
    ]
    with pytest.raises(NotFound, match=r"no '\$files'; there are audit_log, binlog, ro, changelog"):
        PaimonScan.of(keyed, "t", "files")


def test_options_have_any_case_and_the_read_s_go_before_the_session_s() -> None:
    given = lake_read_options({"SCAN.Snapshot-Id": "3"}, {"scan.snapshot-id": "1", "scan.mode": "from-snapshot"})
    assert given.table == {"scan.snapshot-id": "3", "scan.mode": "from-snapshot"}
    assert lake_read_options({}, {"write-only": "true", "write.merge-schema": "true"}).table == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scan.snapshot": "1"}, "there is no read option 'scan.snapshot'; did you mean 'scan.snapshot-id'"),
        ({"merge-engine": "first-row"}, "'merge-engine' of Paimon belongs to tables"),
        ({"bucket": "3"}, "it is no option of reads"),
        ({"scan.parallelism": "3"}, "does nothing here"),
        ({"maxFilesPerTrigger": "0"}, "not a positive whole number"),
        ({"read.changelog": "maybe"}, "read.changelog"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        lake_read_options(options)


def test_options_of_streams_are_refused_for_batches() -> None:
    for options in ({"maxRowsPerTrigger": "3"}, {"consumer-id": "c"}, {"scan.bounded.watermark": "3"}):
        with pytest.raises(UnsupportedOperation, match="is for streams"):
            lake_read_options(options).refuse_for_batches()


# ---- the format -----------------------------------------------------------------------------------------------------


def read_format(**options: str) -> list[Row]:
    """What `spark.read.format("forebay-paimon")` reads."""
    source = PaimonDataSource({key.replace("__", "."): value for key, value in options.items()})
    reader = source.reader(source.schema())
    tasks = [pickle.loads(pickle.dumps(task)) for task in reader.partitions()]
    remote = pickle.loads(pickle.dumps(source.reader(source.schema())))
    return [row for task in tasks for batch in remote.read(task) for row in batch.to_pylist()]


def test_the_format_finds_tables_by_path_and_by_catalog(catalog: FileSystemCatalog, parts: Table) -> None:
    root, warehouse = parts.context.paths.root, str(catalog.warehouse)
    expected = by_id(parts.scan().to_arrow().to_pylist())
    assert by_id(read_format(path=root)) == expected
    assert by_id(read_format(path=root + "/")) == expected
    assert by_id(read_format(table="db.parts", catalog__warehouse=warehouse)) == expected
    assert by_id(read_format(path="db.parts", catalog__warehouse=warehouse)) == expected
    assert by_id(read_format(path=f"{root}$audit_log"))[0] == {"rowkind": "+I", **expected[0]}
    with pytest.raises(NotFound, match="there is no table at"):
        read_format(path=root + "x")
    with pytest.raises(NotFound, match=r"there is no table 'db\.x'"):
        read_format(table="db.x", catalog__warehouse=warehouse)
    with pytest.raises(InvalidRequest, match="needs the directory of a table"):
        read_format()
    with pytest.raises(InvalidRequest, match="needs its catalog"):
        read_format(table="db.parts")


def test_the_format_takes_columns_filters_and_limits_as_options(parts: Table) -> None:
    root = parts.context.paths.root
    found = read_format(path=root, columns="v, id", filter="name IN ('a', 'b') AND v = 2", limit="3")
    assert len(found) == 3
    assert list(found[0]) == ["v", "id"]
    assert {row["v"] for row in found} == {2}
    assert len(read_format(path=root, limit="7", cores="8")) == 7
    with pytest.raises(NotFound, match="no column 'w'; it has id, name, v"):
        read_format(path=root, columns="id, w")
    with pytest.raises(UnsupportedOperation, match="takes no filter"):
        read_format(path=root + "$binlog", filter="id = 1")


@needs(4, 1, "filters of data sources written in Python")
def test_the_format_never_pushes_filters() -> None:
    """PySpark would keep them for other uses of the same DataFrame: wrong answers without a word."""
    from pyspark.sql.datasource import DataSourceReader

    from forebay.spark.datasource import BatchReader

    assert BatchReader.pushFilters is DataSourceReader.pushFilters
