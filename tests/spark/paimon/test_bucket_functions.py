"""Bucket functions in Spark: the buckets that our engine, client and server choose, files of writes, joins."""

from __future__ import annotations

import random
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException

from forebay.codec.arrow.arrow_types import arrow_type
from forebay.codec.rows.buckets import bucket_ids
from forebay.codec.rows.keys import KeyEncoder
from forebay.metadata import types
from forebay.metadata.table import Column
from forebay.paimon import Catalog
from forebay.paimon.bucket_function import BucketFunction
from forebay.paimon.format.schema import DataField
from forebay.spark.bucket_functions import TableBucketing, letter
from tests.spark.releases import SPARK

pytestmark = pytest.mark.spark

Sql = Callable[[str], list[tuple[Any, ...]]]

ROWS = 300
TOTAL = 13


# ---- values of every type -------------------------------------------------------------------------------------------


def texts(rng: random.Random, size: int) -> str:
    return "".join(rng.choice("aZ0 äß漢🙂") for _ in range(rng.randint(0, size)))


def decimals(rng: random.Random, precision: int, scale: int) -> Decimal:
    digits = rng.randint(0, precision)
    return Decimal(rng.randint(-(10**digits) + 1, 10**digits - 1)).scaleb(-scale)


def whole(bits: int) -> Any:
    return lambda rng: rng.choice((0, -1, 127, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), rng.getrandbits(bits - 1)))


def floating(width: str, bits: int) -> Any:
    def value(rng: random.Random) -> float:
        kinds = (0.0, -0.0, float("inf"), float("nan"), rng.uniform(-9, 9))
        return float(struct.unpack(width, struct.pack(width, rng.choice(kinds)))[0])

    return value


def instants(rng: random.Random, unit: int) -> int:
    return rng.randint(-(10**15) // unit, 4 * 10**15 // unit) * unit


COLUMNS: dict[str, tuple[types.DataType, pa.DataType, Any]] = {
    "flag": (types.boolean(), pa.bool_(), lambda rng: rng.random() < 0.5),
    "tiny": (types.tinyint(), pa.int8(), whole(8)),
    "small": (types.smallint(), pa.int16(), whole(16)),
    "number": (types.int_(), pa.int32(), whole(32)),
    "big": (types.bigint(), pa.int64(), whole(64)),
    "real": (types.float_(), pa.float32(), floating("<f", 32)),
    "double": (types.double(), pa.float64(), floating("<d", 64)),
    "money": (types.decimal(12, 3), pa.decimal128(12, 3), lambda rng: decimals(rng, 12, 3)),
    "huge": (types.decimal(38, 10), pa.decimal128(38, 10), lambda rng: decimals(rng, 38, 10)),
    "text": (types.string(), pa.string(), lambda rng: texts(rng, 20)),
    "code": (types.char(9), pa.string(), lambda rng: texts(rng, 5)),
    "raw": (types.bytes_(), pa.binary(), lambda rng: rng.randbytes(rng.randint(0, 40))),
    "clock": (types.time(3), pa.time64("us"), lambda rng: rng.randrange(86_400_000) * 1000),
    "day": (types.date(), pa.date32(), lambda rng: rng.randint(-99999, 99999)),
    "seconds": (types.timestamp(0), pa.timestamp("us"), lambda rng: instants(rng, 10**6)),
    "millis": (types.timestamp(3), pa.timestamp("us"), lambda rng: instants(rng, 1000)),
    "micros": (types.timestamp(6), pa.timestamp("us"), lambda rng: instants(rng, 1)),
    "zoned": (types.timestamp_ltz(6), pa.timestamp("us", "UTC"), lambda rng: instants(rng, 1)),
}
if SPARK < (4, 1):
    del COLUMNS["clock"]  # Spark has no TIME
KEYS = (*((name,) for name in COLUMNS), ("big", "text"), ("raw", "huge", "micros", "flag"))
_REFUSED = {"mod": {"number", "big"}, "hive": set(COLUMNS) - {"seconds", "millis", "micros", "zoned"}}
_ICEBERG = set(COLUMNS) - {"flag", "tiny", "small", "zoned"}


def values(rng: random.Random, *, has_nulls: bool) -> pa.Table:
    def column(arrow: pa.DataType, make: Any) -> pa.Array:
        found = [None if has_nulls and rng.random() < 0.1 else make(rng) for _ in range(ROWS)]
        whole = pa.types.is_temporal(arrow)
        return pa.array(found, arrow if not whole else pa.int32() if arrow == pa.date32() else pa.int64()).cast(arrow)

    return pa.table({name: column(arrow, make) for name, (_, arrow, make) in COLUMNS.items()})


def in_storage(table: pa.Table, key: tuple[str, ...], is_live: bool) -> pa.RecordBatch:
    """The key's columns as tables store them."""
    batch = table.select(key).combine_chunks().to_batches()[0]
    if not is_live:
        return batch
    columns = [batch.column(name).cast(arrow_type(COLUMNS[name][0])) for name in key]
    return pa.RecordBatch.from_arrays(columns, list(key))


def of_lake(table: pa.Table, kind: str, key: tuple[str, ...]) -> list[int]:
    fields = tuple(DataField(i, name, COLUMNS[name][0]) for i, name in enumerate(key))
    function = BucketFunction("default" if kind == "paimon" else kind, fields)
    return [int(b) for b in function.buckets(in_storage(table, key, False), TOTAL)]


def of_client(table: pa.Table, kind: str, key: tuple[str, ...]) -> list[int]:
    columns = tuple(Column(name, COLUMNS[name][0].as_nullable()) for name in key)
    lake = None if kind == "fluss" else kind
    return [int(b) for b in bucket_ids(KeyEncoder(columns, lake).encode(in_storage(table, key, True)), TOTAL, lake)]


def cases(*, is_live: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    for kind in ("fluss", "paimon", "iceberg") if is_live else ("paimon", "mod", "hive"):
        for key in KEYS:
            allowed = _ICEBERG if kind == "iceberg" else _REFUSED.get(kind, set(COLUMNS))
            if set(key) <= allowed and (kind not in ("iceberg", "mod") or len(key) == 1):
                yield kind, key


@pytest.mark.parametrize("is_live", [False, True], ids=["lake", "live"])
def test_the_functions_choose_the_buckets_that_engine_and_client_choose(spark: Any, is_live: bool) -> None:
    """Random rows of each type that a bucket key may have, and keys with several columns."""
    table = values(random.Random(5 + is_live), has_nulls=not is_live)
    calls, wanted = [], {}
    for number, (kind, key) in enumerate(cases(is_live=is_live)):
        letters = tuple(str(letter(COLUMNS[name][0], is_canonical=is_live)) for name in key)
        function = TableBucketing(kind, key, letters, TOTAL)
        calls.append(f"forebay.`{function.name}`({', '.join(key)}) AS f{number}")
        wanted[f"f{number}"] = (function.name, (of_client if is_live else of_lake)(table, kind, key))
    found = spark.createDataFrame(table).selectExpr(*calls).toArrow()
    assert len(wanted) > 30
    for column, (name, buckets) in wanted.items():
        assert found.column(column).to_pylist() == buckets, name
        assert len(set(buckets)) > 1 or "(Z)" in name, name


# ---- SQL ------------------------------------------------------------------------------------------------------------


def test_functions_in_sql(spark: Any) -> None:
    """The functions of the list, and arguments that are refused."""
    shown = spark.sql("SHOW USER FUNCTIONS IN forebay.sys").collect()
    assert {f"forebay.sys.{name}" for name in ("bucket", "fluss_bucket", "mod_bucket")} <= {row[0] for row in shown}
    found = spark.sql(
        "SELECT forebay.sys.mod_bucket(8, -3), forebay.sys.bucket(1, 'x', 2), "
        "count(DISTINCT forebay.sys.fluss_bucket(8, id)) FROM range(200)"
    )
    assert [tuple(row) for row in found.collect()] == [(5, 0, 8)]
    for call, reason in (
        ("bucket('a', 1)", "first argument is the number of buckets"),
        ("bucket(8)", "not 0 of them"),
        ("mod_bucket(8, 'a')", "cannot have type string"),
        ("iceberg_bucket(8, 1, 2)", "one column, not 2"),
        ("bucket(8, array(1))", "cannot have type array<int>"),
        ("nope(1)", "UNRESOLVED_ROUTINE"),
        ("`paimon_bucket[0](L)`(1)", "UNRESOLVED_ROUTINE"),
        ("`paimon_bucket[8](L)`(1, 2)", "takes 1 columns, not 2"),
    ):
        with pytest.raises(AnalysisException, match=re.escape(reason)):
            spark.sql(f"SELECT forebay.sys.{call}")
    with pytest.raises(Exception, match="positive number of buckets, not 0"):
        spark.sql("SELECT forebay.sys.bucket(0, id) FROM range(1)").collect()


def test_max_pt_is_the_last_partition(lake_session: Any, lake_sql: Sql, lake: str, spark: Any, database: str) -> None:
    """In the order of the key's type, of a lake table and a live one; it chooses partitions as a literal does."""
    lake_sql("CREATE TABLE {db}.t (id BIGINT, day INT) PARTITIONED BY (day)")
    assert lake_sql("SELECT lake.sys.max_pt('{db}.t')".replace("lake.db", "db")) == [(None,)]
    lake_sql("INSERT INTO {db}.t VALUES (1, 9), (2, 10), (3, NULL)")
    assert lake_sql("SELECT id FROM {db}.t WHERE day = lake.sys.max_pt('{db}.t')") == [(2,)]
    plan = lake_sql("EXPLAIN SELECT id FROM {db}.t WHERE day = lake.sys.max_pt('{db}.t')")[0][0]
    assert "Filter (" not in plan, plan
    spark.sql(f"CREATE TABLE forebay.{database}.t (id BIGINT, day DATE) PARTITIONED BY (day)")
    spark.sql(f"INSERT INTO forebay.{database}.t VALUES (1, DATE'2024-01-31'), (2, DATE'2023-12-31')")
    assert spark.sql(f"SELECT forebay.sys.max_pt('{database}.t')").collect() == [("2024-01-31",)]
    lake_sql("CREATE TABLE {db}.whole (id BIGINT)")
    for argument, reason in (
        ("'{db}.whole'", "has no partitions"),
        ("'{db}.nope'", "there is no table .*nope.* in catalog lake"),
        (f"'forebay.{database}.t'", "no table of catalog lake"),
        ("'t'", "write database.table"),
        ("cast(id AS STRING)", "must be a literal"),
    ):
        with pytest.raises(Exception, match=reason):
            lake_sql(f"SELECT lake.sys.max_pt({argument}) FROM {{db}}.t")


# ---- writes of lake tables ------------------------------------------------------------------------------------------


def files_of(lake_catalog: Catalog, name: str) -> Counter[tuple[bytes, int]]:
    """How many files each bucket of each partition has."""
    plan = lake_catalog.table(name).scan().plan()
    return Counter({(split.partition, split.bucket): len(split.files) for split in plan})


@pytest.mark.parametrize(
    ("columns", "options", "buckets"),
    [
        ("id BIGINT NOT NULL, name STRING, day INT", "'primary-key'='id', 'bucket'='5'", 5),
        ("id BIGINT, name STRING, day INT", "'bucket-key'='name,id', 'bucket'='5'", 5),
        ("id BIGINT, name STRING, day INT", "'bucket-key'='id', 'bucket'='4', 'bucket-function.type'='mod'", 4),
        ("id BIGINT NOT NULL, name STRING, day INT NOT NULL", "'primary-key'='id,day', 'bucket'='2'", 6),
    ],
    ids=["primary key", "append", "mod", "partitions"],
)
def test_a_commit_has_one_file_of_each_bucket(
    lake_session: Any, lake_sql: Sql, lake: str, lake_catalog: Catalog, columns: str, options: str, buckets: int
) -> None:
    """However many tasks write. All rows are there, in the buckets that the function says."""
    parts = "PARTITIONED BY (day)" if buckets == 6 else ""
    lake_sql(f"CREATE TABLE {{db}}.t ({columns}) {parts} TBLPROPERTIES ({options})")
    frame = lake_session.range(0, 3000, 1, 4).selectExpr("id", "concat('n', id) AS name", "cast(id % 3 AS int) AS day")
    frame.writeTo(f"lake.{lake}.t").option("sink.parallelism", "3").append()
    files = files_of(lake_catalog, f"{lake}.t")
    assert set(files.values()) == {1}
    assert len(files) == buckets
    key = "name, id" if "name,id" in options else "id"
    call = f"lake.sys.{'mod_' if 'mod' in options else ''}bucket({2 if buckets == 6 else buckets}, {key})"
    wrong = f"SELECT count(*), count_if({call} <> __paimon_bucket), sum(id), count(DISTINCT name) FROM {{db}}.t"
    assert lake_sql(wrong) == [(3000, 0, 2999 * 1500, 3000)]


def test_tasks_share_buckets_evenly(lake_session: Any, lake: str, lake_sql: Sql) -> None:
    """Each of the tasks that `sink.parallelism` asks for has as many buckets as the others."""
    lake_sql("CREATE TABLE {db}.t (id BIGINT NOT NULL) TBLPROPERTIES ('primary-key'='id', 'bucket'='6')")
    dealt = "lake.`paimon_bucket[6](L) of 3 tasks`(id)"
    frame = lake_session.range(600).selectExpr("lake.sys.bucket(6, id) AS bucket", f"pmod(hash({dealt}), 3) AS task")
    tasks = {row.bucket: row.task for row in frame.distinct().collect()}
    assert sorted(Counter(tasks.values()).values()) == [2, 2, 2]
    assert len(tasks) == 6


@pytest.mark.slow
def test_versions_of_a_key_keep_their_order(lake_session: Any, lake: str, lake_sql: Sql, lake_catalog: Catalog) -> None:
    """The last row of a key in a task's order wins; UPDATE, MERGE and DELETE write one file of each bucket, too."""
    lake_sql("CREATE TABLE {db}.t (id BIGINT NOT NULL, v BIGINT) TBLPROPERTIES ('primary-key'='id', 'bucket'='3')")
    frame = lake_session.range(0, 900, 1, 1).selectExpr("id % 30 AS id", "id AS v")
    frame.writeTo(f"lake.{lake}.t").option("sink.parallelism", "2").append()
    assert lake_sql("SELECT min(v), max(v), count(*) FROM {db}.t") == [(870, 899, 30)]
    lake_sql("UPDATE {db}.t SET v = -v WHERE id < 20")
    assert set(files_of(lake_catalog, f"{lake}.t").values()) == {2}
    lake_sql(
        "MERGE INTO {db}.t t USING (SELECT id FROM range(40)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = 1 WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 2)"
    )
    assert lake_sql("SELECT v, count(*) FROM {db}.t GROUP BY v ORDER BY v") == [(1, 30), (2, 10)]
    assert set(files_of(lake_catalog, f"{lake}.t").values()) == {3}


# ---- joins without a shuffle ----------------------------------------------------------------------------------------

BY_BUCKET = {
    "spark.sql.forebay.read.by-bucket": "true",
    "spark.sql.sources.v2.bucketing.enabled": "true",  # Spark's default from 4.1 on
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.fixture
def by_bucket(lake_session: Any) -> Callable[..., tuple[int, Any]]:
    """Run a query by bucket. Returns how many shuffles its plan has, and its rows, which are those of a plain read."""

    def run(query: str, **settings: str) -> tuple[int, Any]:
        plain = sorted(map(tuple, lake_session.sql(query).collect()), key=repr)
        with settings_of(lake_session, {**BY_BUCKET, **settings}):
            frame = lake_session.sql(query)
            shuffles = frame._jdf.queryExecution().executedPlan().toString().count("Exchange hashpartitioning")
            assert sorted(map(tuple, frame.collect()), key=repr) == plain
        return shuffles, plain

    return run


@contextmanager
def settings_of(session: Any, settings: dict[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            session.conf.unset(name)


JOIN = "SELECT l.id, l.name, r.name FROM {db}.l l {how} JOIN {db}.r r ON l.id = r.id"


@pytest.fixture
def two_tables(lake_session: Any, lake_sql: Sql, lake: str) -> Callable[[str, str], Callable[..., str]]:
    """Make `l` and `r` with these options and columns, and rows of which some match. Returns a query's text."""

    def make(left: str, right: str, key: str = "BIGINT") -> Callable[..., str]:
        for name, options, start in (("l", left, 0), ("r", right, 40)):
            columns, _, rest = options.partition(" WITH ")
            lake_sql(f"CREATE TABLE {{db}}.{name} ({columns.format(key=key)}, name STRING) {rest}")
            frame = lake_session.range(start, start + 60).selectExpr(
                f"cast(id AS {key}) AS id",
                *(["cast(id % 2 AS int) AS day"] if "day" in columns else []),
                f"concat('{name}', id) AS name",
            )
            frame.writeTo(f"lake.{lake}.{name}").append()
        return lambda text, **words: text.format(db=f"lake.{lake}", **words)

    return make


KEYED = "id {key} NOT NULL WITH TBLPROPERTIES ('primary-key' = 'id', 'bucket' = '4')"
PLAIN = "id {key} WITH TBLPROPERTIES ('bucket-key' = 'id', 'bucket' = '4')"
BY_DAY = "id {key}, day INT WITH PARTITIONED BY (day) TBLPROPERTIES ('bucket-key' = 'id', 'bucket' = '4')"


@pytest.mark.slow
def test_tables_with_the_same_buckets_are_joined_without_a_shuffle(
    two_tables: Any, by_bucket: Any, lake_sql: Sql, lake_session: Any
) -> None:
    """Of a primary-key table that must be merged, and of an append table that Spark reads itself; with null keys."""
    text = two_tables(KEYED, PLAIN)
    lake_sql("INSERT INTO {db}.l VALUES (50, 'new'), (500, 'other')")
    lake_sql("INSERT INTO {db}.r VALUES (NULL, 'none'), (50, 'again')")
    shuffles, rows = by_bucket(text(JOIN, how="INNER"))
    assert (shuffles, len(rows)) == (0, 21)
    assert "l50" not in str(rows)
    assert str(rows).count("'new'") == 2
    shuffles, rows = by_bucket(text(JOIN, how="FULL"))
    assert (shuffles, len(rows)) == (0, 103)
    assert by_bucket(text("SELECT id, count(*) FROM {db}.r GROUP BY id"))[0] == 0
    assert by_bucket(text("SELECT l.id FROM {db}.l l LEFT ANTI JOIN {db}.r r ON l.id = r.id WHERE l.id > 3"))[0] == 0
    partly = "spark.sql.sources.v2.bucketing.partiallyClusteredDistribution.enabled"
    assert by_bucket(text(JOIN, how="INNER"), **{partly: "true"})[0] == 0
    with settings_of(lake_session, BY_BUCKET):
        shown = lake_session.sql(text("SELECT * FROM {db}.r"))._jdf.queryExecution().executedPlan().toString()
    assert "by bucket of id" in shown
    assert "ColumnarToRow" in shown, "Spark reads the files itself"


@pytest.mark.slow
def test_partitions_are_a_part_of_the_buckets_that_are_joined(two_tables: Any, by_bucket: Any) -> None:
    text = two_tables(BY_DAY, BY_DAY)
    joined = "SELECT * FROM {db}.l l JOIN {db}.r r ON l.id = r.id AND l.day = r.day"
    shuffles, rows = by_bucket(text(joined))
    assert (shuffles, len(rows)) == (0, 20)
    assert by_bucket(text(JOIN, how="INNER"))[0] == 0, "days are not read"


@pytest.mark.parametrize(
    ("left", "right", "key", "reason"),
    [
        (KEYED, PLAIN.replace("'4'", "'3'"), "BIGINT", "other numbers of buckets"),
        pytest.param(KEYED, "id {key}", "BIGINT", "no buckets", marks=pytest.mark.slow),
        (PLAIN, PLAIN, "DOUBLE", "0.0 and -0.0 are equal, and in different buckets"),
        pytest.param(
            PLAIN, PLAIN.replace("'id'", "'id,name'"), "BIGINT", "a key of two columns", marks=pytest.mark.slow
        ),
        (PLAIN, PLAIN.replace("('b", "('bucket-function.type' = 'mod', 'b"), "BIGINT", "another function"),
    ],
    ids=lambda value: value if " WITH " not in str(value) and "{" not in str(value) else "",
)
@pytest.mark.one_in(3)
def test_other_tables_are_joined_with_a_shuffle(
    two_tables: Any, by_bucket: Any, left: str, right: str, key: str, reason: str
) -> None:
    text = two_tables(left, right, key)
    shuffles, rows = by_bucket(text(JOIN, how="INNER"))
    assert len(rows) == 20
    assert shuffles > 0, reason


@pytest.mark.slow
def test_rescaled_tables_are_read_by_the_buckets_that_their_files_have(
    two_tables: Any, by_bucket: Any, lake_sql: Sql, lake: str, lake_session: Any
) -> None:
    """A table whose files are of two numbers of buckets reports none."""
    text = two_tables(BY_DAY, BY_DAY)
    lake_sql("ALTER TABLE {db}.l SET TBLPROPERTIES ('bucket' = '2')")
    assert by_bucket(text(JOIN, how="INNER"))[0] == 0, "all files are still of 4 buckets"
    lake_sql("INSERT OVERWRITE {db}.l PARTITION (day = 1) SELECT id, name FROM {db}.l WHERE day = 1")
    shuffles, rows = by_bucket(text(JOIN, how="INNER"))
    assert shuffles > 0
    assert len(rows) == 20
