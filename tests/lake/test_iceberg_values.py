"""Types, values, conditions and ranges of keys between the stream, Iceberg and Arrow."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue
from pyiceberg.expressions.visitors import expression_evaluator
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from forebay import col
from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.lakes.iceberg_conditions import between, condition_of, partition_condition
from forebay.lakes.iceberg_keys import KeyColumns, KeyRange
from forebay.lakes.iceberg_types import (
    FIELD_ID,
    arrow_field,
    arrow_type,
    iceberg_type,
    internal_value,
    numbered,
    python_value,
    shape,
    stream_type,
)
from forebay.metadata import types
from forebay.metadata.predicate import Predicate
from forebay.metadata.types import DataType

NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 7)


# ---- types ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("t", "made"),
    [
        (types.time(6), TimeType()),
        (types.timestamp(0), TimestampType()),
        (types.timestamp_ltz(6), TimestamptzType()),
        (types.decimal(38, 10), DecimalType(38, 10)),
        (types.decimal(5, 0), DecimalType(5, 0)),
        (types.array(types.int_().not_null()), ListType(10, IntegerType(), True)),
        (types.array(types.int_()), ListType(10, IntegerType(), False)),
        (types.map_(types.string(), types.int_()), MapType(10, StringType(), 11, IntegerType(), False)),
        (types.map_(types.string(), types.int_().not_null()), MapType(10, StringType(), 11, IntegerType(), True)),
        (
            types.row(types.field("a", types.int_(), "said"), types.field("b", types.string().not_null())),
            StructType(NestedField(10, "a", IntegerType(), False, "said"), NestedField(11, "b", StringType(), True)),
        ),
    ],
    ids=str,
)
def test_types_of_the_stream_have_one_in_iceberg(t: DataType, made: IcebergType) -> None:
    assert iceberg_type(t, numbered(10)) == made


@pytest.mark.parametrize("t", [types.time(7), types.timestamp(9), types.array(types.timestamp_ltz(8))], ids=str)
def test_more_digits_than_six_are_refused(t: DataType) -> None:
    with pytest.raises(UnsupportedOperation, match="has more digits than the six that Iceberg tables keep"):
        iceberg_type(t, numbered(1))


def test_shapes_are_types_without_the_ids_of_fields() -> None:
    t = types.row(types.field("m", types.map_(types.string(), types.array(types.int_()))))
    same = [iceberg_type(t, numbered(start)) for start in (1, 50)]
    assert same[0] != same[1]
    assert shape(same[0]) == shape(same[1])
    others = [
        types.row(types.field("n", types.map_(types.string(), types.array(types.int_())))),
        types.row(types.field("m", types.map_(types.string(), types.array(types.int_().not_null())))),
        types.row(types.field("m", types.map_(types.string(), types.array(types.int_()).not_null()))),
        types.row(types.field("m", types.map_(types.string(), types.array(types.int_())).not_null())),
        types.row(types.field("m", types.map_(types.int_(), types.array(types.int_())))),
    ]
    assert len({repr(shape(iceberg_type(other, numbered(1)))) for other in (t, *others)}) == 6


@pytest.mark.parametrize(
    ("t", "arrow", "stream"),
    [
        (FixedType(5), pa.binary(5), types.binary(5)),
        (UUIDType(), pa.binary(16), types.binary(16)),
        (DecimalType(9, 2), pa.decimal128(9, 2), types.decimal(9, 2)),
        (LongType(), pa.int64(), types.bigint()),
    ],
    ids=str,
)
def test_types_of_iceberg_in_arrow_and_in_the_stream(t: IcebergType, arrow: pa.DataType, stream: DataType) -> None:
    assert (arrow_type(t), stream_type(t)) == (arrow, stream)


def test_nested_types_in_arrow_carry_ids_where_they_are_wanted() -> None:
    nested = StructType(
        NestedField(3, "m", MapType(4, StringType(), 5, IntegerType(), True), False),
        NestedField(6, "l", ListType(7, IntegerType(), False), True),
    )
    field = arrow_field(NestedField(2, "s", nested, True), with_ids=True)
    plain = arrow_field(NestedField(2, "s", nested, True))
    assert field.type == plain.type
    assert field.type == pa.struct(
        [
            pa.field("m", pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False))),
            pa.field("l", pa.list_(pa.field("element", pa.int32())), nullable=False),
        ]
    )
    assert (field.nullable, field.metadata, plain.metadata) == (False, {FIELD_ID: b"2"}, None)
    assert field.type.field("l").type.value_field.metadata == {FIELD_ID: b"7"}
    assert field.type.field("m").type.key_field.metadata == {FIELD_ID: b"4"}
    assert plain.type.field("l").type.value_field.metadata is None
    with pytest.raises(InvalidRequest, match="cannot be compared"):
        stream_type(nested)
    with pytest.raises(UnsupportedOperation, match="is not supported"):
        arrow_type(UnknownType())


@pytest.mark.parametrize(
    ("t", "value", "internal"),
    [
        (DateType(), dt.date(1970, 1, 3), 2),
        (TimeType(), dt.time(0, 0, 1), 1_000_000),
        (TimestampType(), dt.datetime(1970, 1, 1, 0, 0, 0, 7), 7),
        (TimestamptzType(), dt.datetime(1970, 1, 1, 0, 0, 0, 7, tzinfo=dt.UTC), 7),
        (IntegerType(), 5, 5),
        (StringType(), "5", "5"),
        (BooleanType(), True, True),
    ],
    ids=str,
)
def test_values_of_partitions_and_back(t: IcebergType, value: Any, internal: Any) -> None:
    assert internal_value(value) == internal
    back = python_value(t, internal)
    assert (back, type(back)) == (value, type(value))


# ---- conditions -----------------------------------------------------------------------------------------------------

SCHEMA = Schema(
    NestedField(1, "n", IntegerType()), NestedField(2, "s", StringType()), NestedField(3, "d", DoubleType())
)
ROWS = [Record(n, s, 1.0) for n in (None, 1, 2, 3) for s in (None, "a", "ab", "b")]


def holding(predicate: Predicate | None) -> list[tuple[Any, Any]]:
    evaluate = expression_evaluator(SCHEMA, condition_of(predicate, SCHEMA), True)
    return [(row[0], row[1]) for row in ROWS if evaluate(row)]


@pytest.mark.parametrize(
    ("predicate", "rule"),
    [
        (None, lambda n, s: True),
        (col("n") == 2, lambda n, s: n == 2),
        (col("n") < 2, lambda n, s: n is not None and n < 2),
        (col("n") >= 2, lambda n, s: n is not None and n >= 2),
        (col("n").is_null(), lambda n, s: n is None),
        (col("n").is_not_null(), lambda n, s: n is not None),
        (col("n").is_in([1, 3]), lambda n, s: n in (1, 3)),
        (col("n").is_in([]), lambda n, s: False),
        (col("s").starts_with("a"), lambda n, s: s is not None and s.startswith("a")),
        ((col("n") == 1) & (col("s") == "b"), lambda n, s: n == 1 and s == "b"),
        ((col("n") == 1) | (col("s") == "b"), lambda n, s: n == 1 or s == "b"),
        # What pyiceberg cannot say, or says otherwise than Spark, rules nothing out.
        (col("n") != 2, lambda n, s: True),
        (col("s").contains("b"), lambda n, s: True),
        (col("d") < 0.5, lambda n, s: True),
        (col("n") == "no number", lambda n, s: True),
        (col("n").is_in(range(201)), lambda n, s: True),
        (col("n").is_in(range(4, 204)), lambda n, s: False),
    ],
    ids=lambda given: "rule" if callable(given) else str(given)[:80],
)
def test_conditions_hold_where_filters_do(predicate: Predicate | None, rule: Any) -> None:
    assert holding(predicate) == [(row[0], row[1]) for row in ROWS if rule(row[0], row[1])]


def test_conditions_that_hold_always_or_never_are_called_so() -> None:
    assert condition_of(None, SCHEMA) == AlwaysTrue()
    for name in ("n", "d"):
        assert condition_of(col(name).is_in([]), SCHEMA) == AlwaysFalse()
    assert condition_of(col("d") == 1.0, SCHEMA) == AlwaysTrue()


def test_a_partition_is_found_by_all_its_values() -> None:
    spec = PartitionSpec(
        PartitionField(2, 1000, IdentityTransform(), "s"), PartitionField(1, 1001, BucketTransform(4), "bucket")
    )
    own = Schema(NestedField(1000, "s", StringType()), NestedField(1001, "bucket", IntegerType()))
    places = [Record(s, n) for s in (None, "a") for n in (None, 0, 1)]
    for wanted in places:
        evaluate = expression_evaluator(own, partition_condition(spec, wanted), True)
        assert [place for place in places if evaluate(place)] == [wanted]
    assert partition_condition(PartitionSpec(), Record()) == AlwaysTrue()


def test_between_has_both_ends() -> None:
    evaluate = expression_evaluator(SCHEMA, between("n", 1, 2), True)
    assert sorted({row[0] for row in ROWS if evaluate(row)}) == [1, 2]


# ---- keys -----------------------------------------------------------------------------------------------------------


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def test_the_range_of_keys_grows_with_the_rows_and_leaves_out_types_that_are_not_ordered_alike() -> None:
    fields = (NestedField(1, "n", IntegerType(), True), NestedField(3, "d", DoubleType(), True))
    keys = KeyRange(fields)
    assert keys.condition() is None
    keys.add(batch(n=pa.array([], pa.int32()), d=pa.array([], pa.float64())))
    assert keys.condition() is None
    for numbers in ([5, 7], [6], [3], [9, 4]):
        keys.add(batch(n=pa.array(numbers, pa.int32()), d=pa.array([float(n) for n in numbers])))
    assert keys.condition() == between("n", 3, 9)
    both = KeyRange((NestedField(1, "n", IntegerType(), True), NestedField(2, "s", StringType(), True)))
    both.add(batch(n=pa.array([1, 2], pa.int32()), s=pa.array(["b", "a"])))
    condition = both.condition()
    assert condition is not None
    evaluate = expression_evaluator(SCHEMA, condition, True)
    assert [(r[0], r[1]) for r in ROWS if evaluate(r)] == [(n, s) for n in (1, 2) for s in ("a", "ab", "b")]


def test_keys_of_wider_types_are_those_of_the_lake_and_nulls_have_one_of_their_own() -> None:
    needed = KeyColumns([NestedField(1, "n", IntegerType(), True)])
    narrow, wide = (needed.encode(batch(n=pa.array([1, 2], t))) for t in (pa.int16(), pa.int32()))
    assert narrow.equals(wide)
    for t, zero in ((IntegerType(), 0), (StringType(), ""), (DecimalType(9, 2), Decimal(0)), (BooleanType(), False)):
        keys = KeyColumns([NestedField(1, "k", t)])
        encoded = keys.encode(batch(k=pa.array([zero, None, zero], arrow_type(t)))).to_pylist()
        assert encoded[0] == encoded[2] != encoded[1]
