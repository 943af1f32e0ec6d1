"""Types, in both directions."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as spark_types
from pyspark.sql.types import StructField, StructType

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.metadata import types
from forebay.metadata.table import Column
from forebay.metadata.types import DataType
from forebay.spark.jvm.releases import (
    TIME_TYPE,
    arrow_schema,
    checkpoints_by_rename,
    counts_rows_without_columns,
    release,
)
from forebay.spark.schemas import (
    catalog_schema,
    from_spark_schema,
    from_spark_type,
    spark_arrow_schema,
    to_spark_schema,
    to_spark_type,
    uses_time,
)
from tests.spark.releases import SPARK, needs

SAME_BOTH_WAYS = [
    (types.boolean(), spark_types.BooleanType()),
    (types.tinyint(), spark_types.ByteType()),
    (types.smallint(), spark_types.ShortType()),
    (types.int_(), spark_types.IntegerType()),
    (types.bigint(), spark_types.LongType()),
    (types.float_(), spark_types.FloatType()),
    (types.double(), spark_types.DoubleType()),
    (types.string(), spark_types.StringType()),
    (types.bytes_(), spark_types.BinaryType()),
    (types.decimal(38, 10), spark_types.DecimalType(38, 10)),
    (types.date(), spark_types.DateType()),
    (types.timestamp(6), spark_types.TimestampNTZType()),
    (types.timestamp_ltz(6), spark_types.TimestampType()),
    *([] if TIME_TYPE is None else [(types.time(3), TIME_TYPE(3))]),
    (types.array(types.int_().not_null()), spark_types.ArrayType(spark_types.IntegerType(), False)),
    (types.array(types.string()), spark_types.ArrayType(spark_types.StringType(), True)),
    (
        types.map_(types.string(), types.bigint().not_null()),
        spark_types.MapType(spark_types.StringType(), spark_types.LongType(), False),
    ),
    (
        types.row(types.field("a", types.int_(), "what a is"), types.field("b", types.array(types.date()).not_null())),
        StructType(
            [
                StructField("a", spark_types.IntegerType(), True, {"comment": "what a is"}),
                StructField("b", spark_types.ArrayType(spark_types.DateType()), False),
            ]
        ),
    ),
]


@pytest.mark.parametrize(("fluss", "spark"), SAME_BOTH_WAYS, ids=lambda t: str(t)[:40])
def test_types_map_to_their_namesakes_and_back(fluss: DataType, spark: spark_types.DataType) -> None:
    assert to_spark_type(fluss) == spark
    assert from_spark_type(spark, "c") == fluss


@pytest.mark.parametrize(
    ("fluss", "spark"),
    [
        (types.char(5), spark_types.StringType()),
        (types.binary(16), spark_types.BinaryType()),
        (types.timestamp(9), spark_types.TimestampNTZType()),
        (types.timestamp(0), spark_types.TimestampNTZType()),
        (types.timestamp_ltz(3), spark_types.TimestampType()),
        *([] if TIME_TYPE is None else [(types.time(9), TIME_TYPE(6))]),
    ],
    ids=str,
)
def test_types_that_spark_lacks_show_as_wider_ones(fluss: DataType, spark: spark_types.DataType) -> None:
    assert to_spark_type(fluss) == spark


@pytest.mark.parametrize(
    ("spark", "fluss"),
    [(spark_types.VarcharType(10), types.string(10)), (spark_types.CharType(3), types.char(3))],
    ids=str,
)
def test_char_and_varchar_may_be_created(spark: spark_types.DataType, fluss: DataType) -> None:
    assert from_spark_type(spark, "c") == fluss


def test_catalogs_show_lengths_where_spark_keeps_them() -> None:
    columns = [Column("c", types.char(3)), Column("v", types.string(5).not_null(), "note"), Column("s", types.string())]
    shown = catalog_schema(columns)
    assert [f.dataType for f in shown] == [spark_types.StringType()] * 3
    sized = [(f.metadata or {}).get("__CHAR_VARCHAR_TYPE_STRING") for f in shown]
    assert sized == ["varchar(3)", "varchar(5)", None]
    assert [c.data_type for c in from_spark_schema(shown)] == [
        types.string(3),
        types.string(5).not_null(),
        types.string(),
    ]


@pytest.mark.parametrize(
    "spark",
    [
        spark_types.DayTimeIntervalType(),
        spark_types.VariantType(),
        spark_types.NullType(),
        spark_types.StringType("UTF8_LCASE"),
        spark_types.ArrayType(spark_types.CalendarIntervalType()),
    ],
    ids=str,
)
def test_a_type_that_tables_cannot_have_is_refused_with_the_column_s_name(spark: spark_types.DataType) -> None:
    with pytest.raises(InvalidRequest, match=r"column 'price(\.element)?' has type"):
        from_spark_schema(StructType([StructField("price", spark)]))


def test_comments_and_not_null_travel_both_ways() -> None:
    columns = [
        Column("id", types.bigint().not_null(), "the key"),
        Column("name", types.string()),
    ]
    schema = to_spark_schema(columns)
    assert schema["id"].metadata == {"comment": "the key"}
    assert not schema["id"].nullable
    assert from_spark_schema(schema) == columns


def test_the_arrow_schema_is_spark_s_own_without_comments() -> None:
    schema = to_spark_schema([Column("at", types.timestamp_ltz(3).not_null(), "when"), Column("n", types.int_())])
    assert spark_arrow_schema(schema).equals(
        pa.schema([pa.field("at", pa.timestamp("us", "UTC"), nullable=False), pa.field("n", pa.int32())]),
        check_metadata=True,
    )


def test_time_is_found_inside_nested_types() -> None:
    assert (
        uses_time([Column("a", types.int_()), Column("b", types.array(types.row(types.field("t", types.time()))))])
        == "b"
    )
    assert uses_time([Column("a", types.timestamp())]) is None


@needs(4, 1, "type TIME")
def test_times_travel_as_nanoseconds() -> None:
    assert spark_arrow_schema(to_spark_schema([Column("n", types.time(3))])).field("n").type == pa.time64("ns")


@pytest.mark.skipif(TIME_TYPE is not None, reason="this Spark has the type TIME")
def test_a_spark_without_time_says_which_one_has_it() -> None:
    with pytest.raises(UnsupportedOperation, match=r"type TIME needs Spark 4\.1 or newer"):
        to_spark_type(types.array(types.time(3)))


# ---- releases of PySpark --------------------------------------------------------------------------------------------


def test_instants_are_exchanged_in_utc_whatever_the_release() -> None:
    schema = StructType([StructField("a", spark_types.ArrayType(spark_types.TimestampType()))])
    assert arrow_schema(schema).field("a").type.value_type == pa.timestamp("us", "UTC")


def test_releases_are_compared_by_number() -> None:
    assert release("4.10.2") > release("4.2.0.dev1") > release("4.0.5")
    assert checkpoints_by_rename("4.0.5").endswith(".streaming.FileSystemBasedCheckpointFileManager")
    assert checkpoints_by_rename("4.1.0").endswith(".streaming.checkpointing.FileSystemBasedCheckpointFileManager")


def test_a_release_is_known_to_count_rows_without_columns_or_not() -> None:
    assert counts_rows_without_columns() is (SPARK >= (4, 1))
