"""Lake files read by Spark's own Parquet reader: the same rows as by Python tasks, or not at all."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay.client.table import Table
from forebay.metadata import types
from forebay.metadata.table import Column, Schema
from forebay.spark.reading import native_files
from forebay.unionread.splits import LakeSnapshotSplit
from tests.every_run import every_run
from tests.spark.scan_metrics import FILES as LAKE_FILES
from tests.spark.scan_metrics import shown
from tests.spark.tables import ROWS_SCHEMA, rows
from tests.unionread.world import ICEBERG, PAIMON, SAME_IN_EACH_LAKE, World, world

pytestmark = pytest.mark.spark

FILES, TASKS = "ParquetScan", "by lake and stream"
"""What plans say of files that Spark reads, and of tasks in Python."""
MIXED = "both"
"""What they say of both together."""


@pytest.fixture(scope="module", params=[PAIMON, ICEBERG])
def lake(request: pytest.FixtureRequest, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server with a lake, attached to the session as catalog `native`."""
    import forebay.spark

    with world(tmp_path_factory.mktemp("native"), request.param) as running:
        server = running.connection.settings.bootstrap_servers[0]
        forebay.spark.attach(spark, "native", bootstrap_servers=f"{server.host}:{server.port}")
        yield running


@pytest.fixture(autouse=True)
def small_tables_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ROWS_MIN", 1), ("MARKED_ROWS_MIN", 1), ("MARKED_SHARE_MAX", 10)):
        monkeypatch.setattr(native_files, name, value)


def way_of(frame: Any) -> str:
    """How its plan says that a frame is read."""
    text = str(frame._jdf.queryExecution().executedPlan().toString())
    if FILES in text and TASKS in text:
        return MIXED
    (way,) = [way for way in (FILES, TASKS) if way in text]
    return way


def scanned_rows(frame: Any) -> int:
    """The rows that came from the table of catalog `native` when the frame was read."""

    def scans(node: Any) -> Iterator[Any]:
        if str(node.getClass().getSimpleName()) == "AdaptiveSparkPlanExec":
            yield from scans(node.executedPlan())
        elif "QueryStage" in str(node.getClass().getSimpleName()):
            yield from scans(node.plan())
        elif str(node.nodeName()).startswith("BatchScan native."):
            yield node
        for index in range(node.children().size()):
            yield from scans(node.children().apply(index))

    plan = frame._jdf.queryExecution().executedPlan()
    return sum(int(scan.metrics().apply("numOutputRows").value()) for scan in scans(plan))


def in_order(frame: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def ways(spark: Any, table: Table, query: str = "SELECT * FROM {t}") -> tuple[str, list[tuple[Any, ...]]]:
    """How a query is read, and its rows, which are those of Python tasks."""
    frame = spark.sql(query.replace("{t}", f"native.{table.path}"))
    found = in_order(frame)
    by_tasks = spark.sql(query.replace("{t}", f"native.{table.path} WITH ('read.native' = 'false')"))
    assert way_of(by_tasks) == TASKS
    assert in_order(by_tasks) == found
    return way_of(frame), found


def moved_on(lake: World, **options: Any) -> Table:
    """Rows 0 to 29 in the lake; since then 20 to 29 were changed, 30 to 39 came, and 0 was deleted."""
    table = lake.create(ROWS_SCHEMA, buckets=3, primary_key=["id"], **options)
    table.upsert([{**row, "name": "old"} if row["id"] >= 20 else row for row in rows(0, 30).to_pylist()])
    lake.tier(table)
    table.upsert(rows(20, 40))
    table.delete([{"id": 0}])
    return table


def test_files_that_spark_reads_are_counted(spark: Any, lake: World) -> None:
    table = lake.create(ROWS_SCHEMA, buckets=3, primary_key=["id"])
    table.upsert(rows(0, 30))
    lake.tier(table)
    found = shown(spark, f"SELECT * FROM native.{table.path}")
    assert found[LAKE_FILES] == ["3"]
    moved = shown(spark, f"SELECT * FROM native.{moved_on(lake).path}")
    assert sorted(moved[LAKE_FILES])[-1] == "3", "beside them are the tasks of the stream, and those that mark rows"


# ---- files alone ----------------------------------------------------------------------------------------------------

COLUMNS = [
    Column("id", types.bigint().not_null()),
    Column("boolean", types.boolean()),
    Column("tiny", types.tinyint()),
    Column("small", types.smallint()),
    Column("int", types.int_()),
    Column("float", types.float_()),
    Column("double", types.double()),
    Column("short", types.decimal(9, 2)),
    Column("long", types.decimal(18, 4)),
    Column("huge", types.decimal(38, 10)),
    Column("char", types.char(4)),
    Column("string", types.string()),
    Column("fixed", types.binary(3)),
    Column("bytes", types.bytes_()),
    Column("date", types.date()),
    Column("milli", types.timestamp(3)),
    Column("micro", types.timestamp(6)),
    Column("instant", types.timestamp_ltz(3)),
    Column("exact", types.timestamp_ltz(6)),
]
OLD, NEW = dt.datetime(1500, 2, 28, 1, 2, 3, 4000), dt.datetime(2026, 1, 31, 23, 59, 59, 999000)
UTC = dt.UTC
EXTREMES = [
    [1, True, -128, -(2**15), -(2**31), -0.0, math.inf, "-9999999.99", "-1.0001", "-" + "9" * 28 + ".1", "a", "",
     b"abc", b"", OLD.date(), OLD, OLD, OLD.replace(tzinfo=UTC), OLD.replace(tzinfo=UTC)],
    [2, False, 127, 2**15 - 1, 2**31 - 1, 1.5, 1e300, "0.01", "99999999999999.9999", "0.0000000001", "abcd", "ü🙂",
     b"\0\xff1", b"\0", NEW.date(), NEW, NEW, NEW.replace(tzinfo=UTC), NEW.replace(tzinfo=UTC)],
    [3, *[None] * 18],
]  # fmt: skip


def extremes() -> list[dict[str, Any]]:
    made = []
    for values in EXTREMES:
        row = dict(zip((column.name for column in COLUMNS), values, strict=True))
        for name in ("short", "long", "huge"):
            row[name] = None if row[name] is None else Decimal(row[name])
        made.append(row)
    return made


FLOATS_FOUND = {
    "v = 0.0": [1, 2],
    "v = -0.0D": [1, 2],
    "v IN (0.0, 7.0)": [1, 2],
    "v <=> CAST('-0.0' AS DOUBLE)": [1, 2],
    "v >= 0.0": [1, 2, 3, 4, 5],
    "v <= -0.0D": [1, 2],
    "v = CAST('NaN' AS DOUBLE)": [3, 4],
    "v > 1e300": [3, 4],
    "v >= CAST('Infinity' AS DOUBLE)": [3, 4],
    "v <> 1.5": [1, 2, 3, 4],
    "v NOT IN (1.5)": [1, 2, 3, 4],
    "NOT v < 1.5": [3, 4, 5],
    "v = 1.5": [5],
    "v < 1.5": [1, 2],
}


@pytest.mark.parametrize(
    ("lake", "kind"),
    every_run(
        [(lake, kind) for lake in (PAIMON, ICEBERG) for kind in ("double", "float")],
        {(PAIMON, "double")}.__contains__,
    ),
    indirect=["lake"],
)
@pytest.mark.slow
def test_zeros_and_nan_are_found_whatever_their_bits(spark: Any, lake: World, kind: str) -> None:
    """Dictionaries and statistics of Parquet know two zeros, and leave NaN out."""
    table = lake.create(
        Schema.of(
            [Column("id", types.bigint()), Column("v", types.float_() if kind == "float" else types.double())], []
        )
    )
    for piece in ([(1, -0.0)], [(2, 0.0)], [(3, math.nan), (5, 1.5)], [(4, math.nan)]):
        table.append([{"id": number, "v": value} for number, value in piece])
        lake.tier(table)
    for condition, ids in FLOATS_FOUND.items():
        way, found = ways(spark, table, f"SELECT id FROM {{t}} WHERE {condition}")
        assert (way, [row[0] for row in found]) == (FILES, ids), condition


@pytest.mark.slow
def test_milliseconds_are_compared_with_microseconds(spark: Any, lake: World) -> None:
    table = lake.create(Schema.of([Column("id", types.bigint()), Column("v", types.timestamp(3))], []))
    table.append([{"id": 1, "v": dt.datetime(2024, 1, 1, 0, 0, 0, 123000)}])
    lake.tier(table)
    for condition in ("v < TIMESTAMP_NTZ'2024-01-01 00:00:00.1234'", "v <> TIMESTAMP_NTZ'2024-01-01 00:00:00.1234'"):
        assert ways(spark, table, f"SELECT id FROM {{t}} WHERE {condition}") == (FILES, [(1,)]), condition


@pytest.mark.parametrize(
    ("lake", "keyed"),
    every_run(
        [(lake, keyed) for lake in (PAIMON, ICEBERG) for keyed in (True, False)],
        {(PAIMON, True), (ICEBERG, False)}.__contains__,
    ),
    indirect=["lake"],
)
def test_values_of_all_plain_types_are_the_same_whatever_the_session_says_of_old_dates(
    spark: Any, lake: World, keyed: bool
) -> None:
    table = lake.create(Schema.of(COLUMNS, ["id"] if keyed else []))
    (table.upsert if keyed else table.append)(extremes())
    lake.tier(table)
    names = ("spark.sql.parquet.datetimeRebaseModeInRead", "spark.sql.parquet.int96RebaseModeInRead")
    for name in names:
        spark.conf.set(name, "LEGACY")
    try:
        way, found = ways(spark, table)
    finally:
        for name in names:
            spark.conf.unset(name)
    assert way == FILES
    assert [row[0] for row in found] == [1, 2, 3]
    assert found[0][1:5] == (True, -128, -(2**15), -(2**31))
    assert found[2][1:] == (None,) * 18


@SAME_IN_EACH_LAKE
def test_filters_columns_and_counts_of_files_alone(spark: Any, lake: World) -> None:
    table = lake.create(ROWS_SCHEMA, buckets=2)
    table.append(rows(0, 30))
    lake.tier(table)
    assert ways(spark, table, "SELECT name FROM {t} WHERE id IN (3, 7) OR amount > 14") == (
        FILES, [("n29",), ("n3",), ("n7",)]
    )  # fmt: skip
    assert ways(spark, table, "SELECT count(*) FROM {t}")[1] == [(30,)]
    frame = spark.table(f"native.{table.path}")
    assert frame.schema["id"].nullable is False
    assert frame.limit(4).count() == 4
    plan = str(frame.where("id = 3")._jdf.queryExecution().executedPlan().toString())
    assert "EqualTo(id,3)" in plan


@pytest.mark.slow
@pytest.mark.one_in(2)
def test_types_that_engines_read_in_several_ways_are_left_to_python(spark: Any, lake: World) -> None:
    table = lake.create(pa.schema([("id", pa.int64()), ("list", pa.list_(pa.int32()))]))
    table.append([{"id": 1, "list": [1, None]}, {"id": 2, "list": None}])
    lake.tier(table)
    assert ways(spark, table) == (TASKS, [(1, [1, None]), (2, None)])
    assert ways(spark, table, "SELECT id FROM {t}") == (FILES, [(1,), (2,)])


def test_rows_that_the_lake_has_to_merge_or_leave_out_are_left_to_python(spark: Any, lake: World) -> None:
    table = moved_on(lake)
    lake.tier(table)
    way, found = ways(spark, table)
    assert way == TASKS
    assert [row[0] for row in sorted(found)] == list(range(1, 40))


@SAME_IN_EACH_LAKE
def test_a_file_that_is_missing_is_an_error_also_where_the_session_passes_over_such(spark: Any, lake: World) -> None:
    table = lake.create(ROWS_SCHEMA, buckets=2)
    table.append(rows(0, 30))
    lake.tier(table)
    frame = spark.table(f"native.{table.path}")
    assert way_of(frame) == FILES
    plan = lake.plan(table)
    assert plan.reader.lake is not None
    files = [
        Path(path.removeprefix("file://"))
        for split in plan.splits
        if isinstance(split, LakeSnapshotSplit)
        for path in plan.reader.lake.plain_files(split.lake) or ()
    ]
    assert files
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        files[0].unlink()
        with pytest.raises(Exception, match=files[0].name):
            frame.collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


@SAME_IN_EACH_LAKE
def test_a_session_can_have_everything_read_by_python(spark: Any, lake: World) -> None:
    table = lake.create(ROWS_SCHEMA)
    table.append(rows(0, 3))
    lake.tier(table)
    spark.conf.set("spark.sql.forebay.read.native", "false")
    try:
        assert way_of(spark.table(f"native.{table.path}")) == TASKS
    finally:
        spark.conf.unset("spark.sql.forebay.read.native")
    assert way_of(spark.table(f"native.{table.path}")) == FILES


# ---- files and tasks ------------------------------------------------------------------------------------------------


@SAME_IN_EACH_LAKE
def test_rows_of_files_give_way_to_those_of_the_stream(spark: Any, lake: World) -> None:
    table = moved_on(lake)
    way, found = ways(spark, table)
    assert way == MIXED
    assert found == sorted((tuple(row.values()) for row in rows(1, 40).to_pylist()), key=repr)
    assert ways(spark, table, "SELECT count(*), sum(amount) FROM {t}")[1] == [(39, sum(range(40)) / 2)]
    assert ways(spark, table, "SELECT id FROM {t} WHERE name = 'old'")[1] == []
    assert ways(spark, table, "SELECT name FROM {t} WHERE id IN (0, 5, 25, 35)")[1] == [("n25",), ("n35",), ("n5",)]
    joined = "SELECT count(*) FROM {t} a JOIN (SELECT amount, max(id) m FROM {t} GROUP BY amount) b ON a.id = b.m"
    assert spark.sql(joined.replace("{t}", f"native.{table.path}")).collect()[0][0] == 39


@SAME_IN_EACH_LAKE
def test_values_of_all_plain_types_keep_their_places_when_rows_between_them_give_way(spark: Any, lake: World) -> None:
    table = lake.create(Schema.of(COLUMNS, ["id"]), buckets=1)
    olds = [{**row, "id": number + 10 * turn} for turn in range(5) for number, row in enumerate(extremes())]
    table.upsert(olds)
    lake.tier(table)
    table.delete([{"id": row["id"]} for row in olds if row["id"] % 10 == 0])
    table.upsert([{**olds[1], "string": "new"}])
    way, found = ways(spark, table)
    assert way == MIXED
    assert [row[0] for row in found] == [1, 11, 12, 2, 21, 22, 31, 32, 41, 42]
    assert [row[11] for row in found if row[0] % 10 == 1] == ["new", *["ü🙂"] * 4]
    assert {row[1:] for row in found if row[0] % 10 == 2} == {(None,) * 18}


@pytest.mark.slow
@SAME_IN_EACH_LAKE
def test_where_spark_reads_files_by_rows_python_reads_all(spark: Any, lake: World) -> None:
    table = moved_on(lake)
    for name, value in (("spark.sql.parquet.enableVectorizedReader", "false"), ("spark.sql.codegen.maxFields", "1")):
        spark.conf.set(name, value)
        try:
            frame = spark.table(f"native.{table.path}")
            assert (way_of(frame), frame.count()) == (TASKS, 39), name
        finally:
            spark.conf.unset(name)


@pytest.mark.slow
@SAME_IN_EACH_LAKE
def test_a_union_stands_wherever_a_table_may_stand(spark: Any, lake: World) -> None:
    table = moved_on(lake)
    for query, found in (
        ("SELECT count(*) FROM {t} WHERE amount > (SELECT avg(amount) FROM {t} WHERE id IN (SELECT id FROM {t}))", 19),
        ("SELECT count(*) FROM (SELECT id FROM {t} UNION ALL SELECT id + 1 FROM {t})", 78),
        ("WITH c AS (SELECT id, name FROM {t}) SELECT count(*) FROM c a JOIN c b ON a.id = b.id + 1", 38),
        ("SELECT count(DISTINCT a.id) FROM {t} a LEFT ANTI JOIN {t} b ON a.id = b.id + 10", 10),
    ):
        assert ways(spark, table, query) == (MIXED, [(found,)])
    cached = spark.table(f"native.{table.path}").cache()
    try:
        assert (cached.count(), cached.where("id < 10").count()) == (39, 9)
    finally:
        cached.unpersist()


@SAME_IN_EACH_LAKE
def test_a_query_is_planned_without_running_anything(spark: Any, lake: World) -> None:
    frame = spark.table(f"native.{moved_on(lake).path}")
    context, group = spark.sparkContext, f"only planned, {lake.lake}"
    context.setJobGroup(group, "planning")
    try:
        assert way_of(frame) == MIXED
        frame.explain("cost")
        assert list(context.statusTracker().getJobIdsForGroup(group)) == []
        assert frame.count() == 39
        assert list(context.statusTracker().getJobIdsForGroup(group))
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)


@SAME_IN_EACH_LAKE
def test_a_session_without_our_rule_has_the_same_rows(spark: Any, lake: World) -> None:
    table = moved_on(lake)
    methods = spark._jsparkSession.experimental()
    rules = methods.extraOptimizations()
    assert str(rules.toString()).count("ForebayScans") == 1, "attached twice, added once"
    getattr(methods, "extraOptimizations_$eq")(rules.take(0))
    try:
        way, found = ways(spark, table)
    finally:
        getattr(methods, "extraOptimizations_$eq")(rules)
    assert way == TASKS
    assert len(found) == 39


def test_a_log_is_read_behind_the_files(spark: Any, lake: World) -> None:
    table = lake.create(ROWS_SCHEMA, buckets=2)
    table.append(rows(0, 30))
    lake.tier(table)
    table.append(rows(30, 40))
    way, found = ways(spark, table)
    assert way == MIXED
    assert len(found) == 40
    assert ways(spark, table, "SELECT name FROM {t} WHERE id > 28")[1] == [(f"n{i}",) for i in range(29, 40)]


@SAME_IN_EACH_LAKE
def test_values_of_a_join_choose_files_or_are_looked_up(spark: Any, lake: World) -> None:
    spark.range(100).selectExpr("id AS k", "id % 7 AS kind", "concat('d', id) AS day").createOrReplaceTempView("small")

    def read(table: Table, query: str) -> tuple[str, list[tuple[Any, ...]], int]:
        """How it was read, the rows, and the number of rows that came of the table."""
        frame = spark.sql(query.replace("{t}", f"native.{table.path}"))
        found = in_order(frame)
        return way_of(frame), found, scanned_rows(frame)

    parts = lake.create(ROWS_SCHEMA.append(pa.field("day", pa.string(), False)), partition_keys=["day"])
    for day in ("d1", "d2", "d8"):
        parts.append(rows(0, 10).append_column("day", pa.array([day] * 10)))
    lake.tier(parts)
    by_day = "SELECT /*+ BROADCAST(small) */ id, day FROM {t} JOIN small USING (day) WHERE kind = 1"
    way, found, count = read(parts, by_day)
    assert (way, len(found), count) == (FILES, 20, 20)
    assert read(parts, by_day.replace("= 1", "= 5"))[1:] == ([], 0)

    by_key = "SELECT /*+ BROADCAST(small) */ id, name FROM {t} JOIN small ON id = k WHERE kind = 3 AND k > 10"
    expected = [(i, f"n{i}") for i in (17, 24, 31, 38)]
    assert read(moved_on(lake), by_key) == (TASKS, expected, 4)
    table = lake.create(ROWS_SCHEMA, primary_key=["id"])
    table.upsert(rows(0, 40))
    lake.tier(table)
    assert way_of(spark.table(f"native.{table.path}")) == FILES
    assert read(table, by_key) == (TASKS, expected, 4)
    by_name = by_key.replace("id = k", "name = concat('n', k)")
    assert read(table, by_name)[:2] == (FILES, expected)


@SAME_IN_EACH_LAKE
def test_few_rows_and_limits_are_not_mixed(spark: Any, lake: World, monkeypatch: pytest.MonkeyPatch) -> None:
    table = moved_on(lake)
    limited = spark.table(f"native.{table.path}").limit(5)
    assert way_of(limited) == TASKS
    assert limited.count() == 5
    for name, value in (("MARKED_ROWS_MIN", 31), ("MARKED_SHARE_MAX", 0.1), ("ROWS_MIN", 31)):
        with monkeypatch.context() as patch:
            patch.setattr(native_files, name, value)
            way, found = ways(spark, table)
        assert way == TASKS
        assert len(found) == 39


@pytest.mark.slow
@pytest.mark.one_in(2)
def test_a_key_of_several_columns_and_partitions_finds_its_own_row(spark: Any, lake: World) -> None:
    schema = pa.schema(
        [
            pa.field("day", pa.string(), nullable=False),
            pa.field("a", pa.string(), nullable=False),
            pa.field("b", pa.float64() if lake.lake == PAIMON else pa.int64(), nullable=False),
            ("v", pa.int32()),
        ]
    )
    table = lake.create(schema, primary_key=["day", "a", "b"], partition_keys=["day"], bucket_keys=["a"], buckets=2)
    for day in ("x", "y"):
        table.create_partition({"day": day})
    made = [{"day": d, "a": f"k{i % 3}", "b": b, "v": i} for d in "xy" for i in range(9) for b in (i, i + 100)]
    table.upsert(made)
    lake.tier(table)
    table.upsert([{"day": "y", "a": "k1", "b": 1, "v": 100}])
    table.delete([{"day": "x", "a": "k1", "b": 4}])
    way, found = ways(spark, table)
    assert way == MIXED
    assert [row for row in found if row[3] == 100] == [("y", "k1", 1, 100)]
    assert (
        ways(spark, table, "SELECT sum(v) FROM {t} WHERE day = 'y'")[1]
        != ways(spark, table, "SELECT sum(v) FROM {t} WHERE day = 'x'")[1]
    )


def test_a_column_that_was_added_since_is_null_in_old_files(spark: Any, lake: World) -> None:
    table = moved_on(lake)
    spark.sql(f"ALTER TABLE native.{table.path} ADD COLUMN later INT")
    table = lake.connection.table(table.path)
    table.upsert(
        [{"id": 50, "name": "n", "amount": 0.0, "later": 7}, {"id": 3, "name": "m", "amount": 1.0, "later": 8}]
    )
    _, found = ways(spark, table)
    assert {row[0]: row[3] for row in found if row[3] is not None} == {50: 7, 3: 8}
    assert len(found) == 40


@pytest.mark.slow
def test_zeros_of_both_signs_and_all_nans_are_one_key_each_in_every_way(lake: World, spark: Any) -> None:
    if lake.lake == ICEBERG:
        pytest.skip("Iceberg refuses keys of floating-point numbers, and so do we")
    schema = pa.schema([pa.field("k", pa.float64(), nullable=False), ("v", pa.int64())])
    table = lake.create(schema, primary_key=["k"], buckets=2)
    patterns = np.array([0x7FF8 << 48, 0xFFF8000000000001, 1 << 63, 0, 0x3FF0 << 48], np.uint64).view(np.float64)
    data = pa.table([pa.array(patterns), pa.array(range(5), pa.int64())], schema=schema)

    def check(*expected: int) -> None:
        _, found = ways(spark, table, "SELECT v FROM {t}")
        assert found == [(v,) for v in sorted(expected)]
        one, nan, zero = expected
        for condition, value in (
            ("k = 0.0D", zero), ("k = -0.0D", zero), ("k <=> -0.0D", zero), ("k IN (-0.0D, 7D)", zero),
            ("k = CAST('NaN' AS DOUBLE)", nan), ("k > 1e300", nan), ("k = 1D", one),
        ):  # fmt: skip
            assert ways(spark, table, f"SELECT v FROM {{t}} WHERE {condition}")[1] == [(value,)], condition

    table.upsert(data)
    lake.tier(table)
    check(4, 1, 3)
    table.upsert(data.slice(0, 1))
    spark.sql(f"INSERT INTO native.{table.path} VALUES (-0.0D, 9)")
    check(4, 0, 9)
    lake.tier(table)
    check(4, 0, 9)
