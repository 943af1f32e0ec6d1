"""Values to messages and back, per-bucket errors, and filters with their literals."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest, NotFound, error_from_wire
from forebay.metadata import types as t
from forebay.metadata.predicate import Compound, CompoundFunction, Leaf, LeafFunction, Predicate, col
from forebay.metadata.table import Column, PartitionInfo, PhysicalTablePath, Schema, TableBucket, TablePath
from forebay.protocol import api
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol import messages as convert
from forebay.protocol.api import ServerRole
from forebay.protocol.literals import literal_from_pb, literal_to_pb
from forebay.protocol.messages import parse
from forebay.protocol.predicates import PREDICATE_DEPTH_MAX, predicate_from_pb, predicate_to_pb
from tests.protocol.golden_frames import golden_frames

names = st.text(min_size=1, max_size=8)
ids = st.integers(0, 2**63 - 1)
small_ids = st.integers(0, 2**31 - 1)
paths = st.builds(TablePath, names, names)
specs = st.lists(st.tuples(names, names), max_size=4).map(tuple)


@given(
    paths,
    st.builds(PhysicalTablePath, paths, st.none() | names),
    st.builds(TableBucket, ids, small_ids, st.none() | ids),
    st.builds(PartitionInfo, ids, specs),
    st.builds(api.ServerNode, small_ids, names, small_ids, st.sampled_from(ServerRole), st.none() | names),
)
def test_values_come_back_from_their_messages(
    path: TablePath,
    physical: PhysicalTablePath,
    bucket: TableBucket,
    partition: PartitionInfo,
    node: api.ServerNode,
) -> None:
    def sent(message: Any) -> Any:
        return parse(type(message), message.SerializeToString())

    assert convert.table_path_from_pb(sent(convert.table_path_to_pb(path))) == path
    assert convert.physical_path_from_pb(sent(convert.physical_path_to_pb(physical))) == physical
    message = sent(convert.table_bucket_to_pb(bucket))
    assert (message.table_id, convert.partition_id_of(message), message.bucket_id) == (
        bucket.table_id, bucket.partition_id, bucket.bucket
    )  # fmt: skip
    assert convert.partition_spec_from_pb(sent(convert.partition_spec_to_pb(partition.spec))) == partition.spec
    assert convert.partition_info_from_pb(sent(convert.partition_info_to_pb(partition))) == partition
    assert api.server_node_from_pb(sent(api.server_node_to_pb(node)), node.role) == node


@pytest.mark.parametrize(
    "answer", [pb.PbPutKvRespForBucket(bucket_id=0), pb.ScanKvResponse(), pb.PbTableStatsRespForBucket(bucket_id=0)]
)
def test_a_per_bucket_error_becomes_the_exception_that_it_was(answer: Any) -> None:
    assert convert.error_of(answer) is None
    answer.error_code = 0
    assert convert.error_of(answer) is None
    error = NotFound("no such partition", ErrorCode.PARTITION_NOT_EXISTS)
    answer.error_code, answer.error_message = convert.error_to_wire(error)
    found = convert.error_of(answer)
    assert isinstance(found, NotFound)
    assert (found.code, found.message) == (ErrorCode.PARTITION_NOT_EXISTS, "no such partition")


@pytest.mark.parametrize("code", [*(c for c in ErrorCode if c not in (0, -2)), 4711])
def test_every_error_code_crosses_the_wire_and_comes_back(code: int) -> None:
    error = error_from_wire(code, "text")
    answer = pb.PbPutKvRespForBucket(bucket_id=0)
    answer.error_code, answer.error_message = convert.error_to_wire(error)
    found = convert.error_of(answer)
    assert found is not None
    assert (type(found), found.code, found.message) == (type(error), code, "text")


def test_an_exception_that_is_not_ours_crosses_as_a_bug() -> None:
    assert convert.error_to_wire(KeyError("x")) == (ErrorCode.UNKNOWN_SERVER_ERROR, "KeyError: 'x'")


def test_a_server_is_named_by_its_role_its_id_and_its_address() -> None:
    assert str(api.ServerNode(0, "host", 9123, ServerRole.COORDINATOR)) == "coordinator 0 at host:9123"
    assert str(api.ServerNode(3, "h", 1, ServerRole.TABLET, "rack")) == "tablet server 3 at h:1"


# --- literals --------------------------------------------------------------------------------------------------

LTZ = dt.timezone(dt.timedelta(hours=2))
naive = st.datetimes()
EXACT: list[tuple[t.DataType, st.SearchStrategy[Any]]] = [
    (t.boolean(), st.booleans()),
    (t.tinyint(), st.integers(-(2**7), 2**7 - 1)),
    (t.smallint(), st.integers(-(2**15), 2**15 - 1)),
    (t.int_(), st.integers(-(2**31), 2**31 - 1)),
    (t.bigint(), st.integers(-(2**63), 2**63 - 1)),
    (t.float_(), st.floats(width=32, allow_nan=False)),
    (t.double(), st.floats(allow_nan=False)),
    (t.char(5), st.text(max_size=9)),
    (t.string(), st.text(max_size=9)),
    (t.binary(3), st.binary(max_size=5)),
    (t.bytes_(), st.binary(max_size=5)),
    (t.decimal(10, 2), st.integers(-(10**10) + 1, 10**10 - 1).map(lambda n: Decimal(n).scaleb(-2))),
    (t.decimal(38, 4), st.integers(-(10**28) + 1, 10**28 - 1).map(lambda n: Decimal(n).scaleb(-4))),
    (t.date(), st.dates()),
    (t.time(3), st.times().map(lambda x: x.replace(microsecond=x.microsecond // 1000 * 1000))),
    (t.timestamp(6), naive),
    (t.timestamp_ltz(6), naive.map(lambda x: x.replace(tzinfo=dt.UTC))),
]


@given(st.data())
def test_literals_of_every_type_come_back_exactly(data: st.DataObject) -> None:
    data_type, values = data.draw(st.sampled_from(EXACT))
    value = data.draw(values)
    literal = parse(pb.PbLiteralValue, literal_to_pb(value, data_type, "c").SerializeToString())
    back = literal_from_pb(literal, data_type, "c")
    assert back == value
    assert type(back) is type(value)
    assert literal_from_pb(literal_to_pb(None, data_type, "c"), data_type, "c") is None


def timestamp_fields(literal_type: int, millis: int, nanos: int) -> dict[str, int]:
    return {
        "literal_type": literal_type,
        "timestamp_millis_value": millis,
        "timestamp_nano_of_millis_value": nanos,
    }


@pytest.mark.parametrize(
    ("data_type", "value", "fields"),
    [
        (t.bigint(), 7, {"literal_type": 4, "bigint_value": 7}),
        (t.date(), dt.date(2024, 1, 15), {"literal_type": 10, "bigint_value": 19737}),
        (t.date(), dt.date(1969, 12, 31), {"literal_type": 10, "bigint_value": -1}),
        (t.time(3), dt.time(10, 11, 12, 345000), {"literal_type": 11, "int_value": 36672345}),
        (t.timestamp(3), dt.datetime(1969, 12, 31, 23, 59, 59, 999999), timestamp_fields(12, -1, 999_000)),
        (t.timestamp_ltz(9), dt.datetime(1970, 1, 1, 2, tzinfo=LTZ), timestamp_fields(13, 0, 0)),
        (t.timestamp(9), np.datetime64(1_500_001, "ns"), timestamp_fields(12, 1, 500_001)),
        (t.timestamp(9), pd.Timestamp(1_500_001), timestamp_fields(12, 1, 500_001)),
        (t.decimal(18, 2), Decimal("1.5"), {"literal_type": 9, "decimal_value": 150}),
        (t.decimal(18, 2), -3, {"literal_type": 9, "decimal_value": -300}),
        (t.decimal(19, 2), Decimal("-1.28"), {"literal_type": 9, "decimal_bytes": b"\x80"}),
        (t.decimal(19, 2), Decimal("1.28"), {"literal_type": 9, "decimal_bytes": b"\x00\x80"}),
        (t.decimal(19, 2), Decimal("0E-90"), {"literal_type": 9, "decimal_bytes": b"\x00"}),
        (t.double(), 3, {"literal_type": 6, "double_value": 3.0}),
        (t.float_(), np.float32(0.1), {"literal_type": 5, "float_value": float(np.float32(0.1))}),
        (t.int_(), np.int64(5), {"literal_type": 3, "int_value": 5}),
        (t.char(3), "abc", {"literal_type": 7, "string_value": "abc"}),
        (t.bytes_(), bytearray(b"ab"), {"literal_type": 15, "binary_value": b"ab"}),
    ],
)  # fmt: skip
def test_literals_travel_in_the_field_of_their_columns_type(
    data_type: t.DataType, value: Any, fields: dict[str, Any]
) -> None:
    assert literal_to_pb(value, data_type, "c") == pb.PbLiteralValue(is_null=False, **fields)


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (t.boolean(), 1),
        (t.tinyint(), 128),
        (t.tinyint(), -129),
        (t.smallint(), 2**15),
        (t.int_(), 2**31),
        (t.bigint(), 2**63),
        (t.int_(), True),
        (t.int_(), 1.0),
        (t.int_(), "1"),
        (t.float_(), 0.1),
        (t.float_(), 1e300),
        (t.float_(), 2**24 + 1),
        (t.double(), 2**53 + 1),
        (t.double(), 10**400),
        (t.double(), "1"),
        (t.double(), True),
        (t.string(), b"a"),
        (t.string(), "\ud800"),
        (t.bytes_(), "a"),
        (t.decimal(10, 2), Decimal("0.001")),
        (t.decimal(10, 2), Decimal("123456789.00")),
        (t.decimal(10, 2), Decimal("100000000.00")),
        (t.decimal(10, 2), -(10**8)),
        (t.decimal(10, 2), Decimal("1E+1000000")),
        (t.decimal(10, 2), Decimal("1E-1000000")),
        (t.decimal(10, 2), Decimal("NaN")),
        (t.decimal(10, 2), Decimal("Infinity")),
        (t.decimal(10, 2), 1.5),
        (t.date(), dt.datetime(2024, 1, 1)),
        (t.date(), "2024-01-01"),
        (t.time(0), dt.time(1, 2, 3, 4)),
        (t.time(0), dt.time(1, tzinfo=dt.UTC)),
        (t.timestamp(6), dt.date(2024, 1, 1)),
        (t.timestamp(6), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        (t.timestamp(6), pd.NaT),
        (t.timestamp(6), np.datetime64("NaT", "us")),
        (t.timestamp(6), np.datetime64("3000-01-01", "s")),
        (t.timestamp_ltz(6), dt.datetime(2024, 1, 1)),
        (t.timestamp_ltz(6), pd.NaT),
        (t.timestamp_ltz(6), dt.date(2024, 1, 1)),
        (t.date(), 19737),
        (t.time(0), 3),
        (t.array(t.int_()), [1]),
        (t.array(t.int_()), None),
    ],
)
def test_a_literal_that_its_column_cannot_hold_exactly_is_refused(data_type: t.DataType, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot filter column 'c'"):
        literal_to_pb(value, data_type, "c")


@pytest.mark.parametrize(
    ("data_type", "fields"),
    [
        (t.int_(), {"literal_type": 4, "bigint_value": 1}),
        (t.int_(), {"literal_type": 99}),
        (t.int_(), {"literal_type": 3}),
        (t.int_(), {"literal_type": 3, "bigint_value": 1}),
        (t.tinyint(), {"literal_type": 1, "int_value": 200}),
        (t.string(), {"literal_type": 15, "binary_value": b"a"}),
        (t.boolean(), {"literal_type": 0}),
        (t.decimal(5, 2), {"literal_type": 9, "decimal_value": 10**5}),
        (t.decimal(38, 2), {"literal_type": 9, "decimal_bytes": b"\x7f" + bytes(15)}),
        (t.decimal(38, 2), {"literal_type": 9, "decimal_bytes": b""}),
        (t.decimal(38, 2), {"literal_type": 9, "decimal_bytes": bytes(17)}),
        (t.date(), {"literal_type": 10, "bigint_value": 10**7}),
        (t.date(), {"literal_type": 10, "bigint_value": -(2**63)}),
        (t.time(0), {"literal_type": 11, "int_value": 86_400_000}),
        (t.time(0), {"literal_type": 11, "int_value": -1}),
        (t.timestamp(9), {"literal_type": 12, "timestamp_millis_value": 0, "timestamp_nano_of_millis_value": 10**6}),
        (t.timestamp(9), {"literal_type": 12, "timestamp_millis_value": 2**62}),
        (t.timestamp(9), {"literal_type": 12, "timestamp_millis_value": 2**62, "timestamp_nano_of_millis_value": 1}),
        (t.row(t.field("a", t.int_())), {"literal_type": 3, "int_value": 1}),
    ],
)
def test_a_literal_from_the_wire_that_does_not_fit_its_column_is_refused(
    data_type: t.DataType, fields: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot filter column 'c'"):
        literal_from_pb(pb.PbLiteralValue(is_null=False, **fields), data_type, "c")


@pytest.mark.parametrize(
    ("data_type", "value", "reason"),
    [
        (t.timestamp_ltz(6), dt.datetime(2024, 1, 1), "must have a zone"),
        (t.timestamp(6), dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "must not have a zone"),
        (t.timestamp(6), np.datetime64("NaT", "us"), "is not a time"),
        (t.timestamp(6), pd.NaT, "is not a datetime"),
        (t.timestamp(6), np.datetime64("3000-01-01", "s"), "too far from 1970"),
        (t.time(0), dt.time(1, 2, 3, 4), "finer than a millisecond"),
        (t.time(0), dt.time(1, tzinfo=dt.UTC), "without a zone"),
        (t.int_(), True, "is not a whole number"),
        (t.tinyint(), 128, "is out of range"),
        (t.float_(), 0.1, "is not exactly a 32-bit float"),
        (t.double(), 10**400, "is too large for a float"),
        (t.double(), 2**53 + 1, "is not exactly a float"),
        (t.double(), "1", "is not a number"),
        (t.decimal(10, 2), Decimal("100000000.00"), "does not fit"),
    ],
)
def test_why_a_literal_cannot_be_held_is_told(data_type: t.DataType, value: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        literal_to_pb(value, data_type, "c")


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (t.tinyint(), -128),
        (t.tinyint(), 127),
        (t.smallint(), -(2**15)),
        (t.int_(), -(2**31)),
        (t.bigint(), -(2**63)),
        (t.float_(), float("inf")),
        (t.time(3), dt.time()),
        (t.time(3), dt.time(23, 59, 59, 999000)),
        (t.date(), dt.date.min),
        (t.date(), dt.date.max),
        (t.timestamp(6), dt.datetime.min),
        (t.timestamp(6), dt.datetime.max),
        (t.decimal(10, 2), Decimal("99999999.99")),
        (t.decimal(10, 2), Decimal("-99999999.99")),
        (t.decimal(38, 0), Decimal(10**38 - 1)),
        (t.decimal(38, 0), Decimal(-(10**38) + 1)),
        (t.decimal(38, 0), Decimal(-128)),
        (t.decimal(38, 0), Decimal(0)),
    ],
)  # fmt: skip
def test_the_first_and_the_last_value_of_each_type_come_back(data_type: t.DataType, value: Any) -> None:
    literal = parse(pb.PbLiteralValue, literal_to_pb(value, data_type, "c").SerializeToString())
    back = literal_from_pb(literal, data_type, "c")
    assert (back, str(back)) == (value, str(value))  # zero has no sign


def test_any_text_fits_any_text_and_any_binary_any_binary() -> None:
    assert literal_from_pb(pb.PbLiteralValue(literal_type=7, is_null=False, string_value="a"), t.string(), "c") == "a"
    assert (
        literal_from_pb(pb.PbLiteralValue(literal_type=15, is_null=False, binary_value=b"a"), t.binary(1), "c") == b"a"
    )


def test_timestamps_finer_than_a_microsecond_come_as_numpy_values() -> None:
    literal = literal_to_pb(np.datetime64(-1, "ns"), t.timestamp_ltz(9), "c")
    back = literal_from_pb(literal, t.timestamp_ltz(9), "c")
    assert (back, back.dtype) == (np.datetime64(-1, "ns"), np.dtype("datetime64[ns]"))


# --- filters ---------------------------------------------------------------------------------------------------

SCHEMA = Schema(
    (
        Column("id", t.bigint(), column_id=7),
        Column("name", t.string(), column_id=3),
        Column("tags", t.array(t.string()), column_id=9),
    ),
    highest_field_id=10,
)


@st.composite
def leaves(draw: st.DrawFn) -> Leaf:
    column, values = draw(st.sampled_from([("id", st.integers(-(2**63), 2**63 - 1)), ("name", st.text(max_size=4))]))
    function = draw(st.sampled_from(LeafFunction))
    if function in (LeafFunction.IS_NULL, LeafFunction.IS_NOT_NULL):
        return Leaf(function, draw(st.sampled_from(["id", "name", "tags"])))
    if function in (LeafFunction.IN, LeafFunction.NOT_IN):
        return Leaf(function, column, tuple(draw(st.lists(values | st.none(), max_size=3))))
    if function in (LeafFunction.STARTS_WITH, LeafFunction.CONTAINS, LeafFunction.ENDS_WITH):
        return Leaf(function, "name", (draw(st.text(max_size=4)),))
    return Leaf(function, column, (draw(values),))


predicates = st.recursive(
    leaves(),
    lambda inner: st.builds(
        Compound, st.sampled_from(CompoundFunction), st.lists(inner, min_size=1, max_size=3).map(tuple)
    ),
    max_leaves=12,
)


def flat(predicate: Predicate) -> Predicate:
    if not isinstance(predicate, Compound):
        return predicate
    children: list[Predicate] = []
    for child in map(flat, predicate.children):
        same = isinstance(child, Compound) and child.function is predicate.function
        children += child.children if same else [child]  # type: ignore[attr-defined]
    return Compound(predicate.function, tuple(children))


@pytest.mark.parametrize(("total", "fits"), [
    (2**63 - 1, True), (2**63 + 1, False), (1 - 2**63, True), (-(2**63) - 1, False),
])  # fmt: skip
def test_nanoseconds_reach_as_far_as_64_bits(total: int, fits: bool) -> None:
    millis, nanos = divmod(total, 1_000_000)
    literal = pb.PbLiteralValue(is_null=False, **timestamp_fields(12, millis, nanos))
    if fits:
        assert literal_from_pb(literal, t.timestamp(9), "c") == np.datetime64(total, "ns")
        return
    with pytest.raises(InvalidRequest, match="too far from 1970"):
        literal_from_pb(literal, t.timestamp(9), "c")


@given(predicates)
def test_filters_come_back_flat_and_flat_ones_as_they_went(predicate: Predicate) -> None:
    message = parse(pb.PbPredicate, predicate_to_pb(predicate, SCHEMA).SerializeToString())
    back = predicate_from_pb(message, SCHEMA)
    assert back == flat(predicate)
    assert predicate_to_pb(back, SCHEMA) == message


def test_columns_travel_by_id_and_not_by_position() -> None:
    message = predicate_to_pb(col("name") == "x", SCHEMA)
    assert message == pb.PbPredicate(
        type=0,
        leaf=pb.PbLeafPredicate(
            function=0, field_id=3, literals=[pb.PbLiteralValue(literal_type=8, is_null=False, string_value="x")]
        ),
    )


def test_a_thousand_conditions_joined_one_by_one_stay_two_levels_deep() -> None:
    predicate: Predicate = col("id") == 0
    for number in range(1, 1000):
        predicate = predicate & (col("id") != number)
    message = predicate_to_pb(predicate, SCHEMA)
    assert len(message.compound.children) == 1000
    fetch = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1)
    fetch.tables_req.add(table_id=1, projection_pushdown_enabled=False, filter_predicate=message, filter_schema_id=1)
    assert parse(pb.FetchLogRequest, fetch.SerializeToString()) == fetch


def nested(depth: int) -> Predicate:
    predicate: Predicate = col("id") == 0
    for level in range(depth - 1):
        predicate = Compound(CompoundFunction(level % 2), (predicate, col("id") == level))
    return predicate


def test_filters_as_deep_as_allowed_are_read_and_deeper_ones_refused() -> None:
    message = predicate_to_pb(nested(PREDICATE_DEPTH_MAX), SCHEMA)
    fetch = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1)
    fetch.tables_req.add(table_id=1, projection_pushdown_enabled=False, filter_predicate=message)
    read = parse(pb.FetchLogRequest, fetch.SerializeToString()).tables_req[0].filter_predicate
    assert predicate_from_pb(read, SCHEMA) == nested(PREDICATE_DEPTH_MAX)
    with pytest.raises(InvalidRequest, match="deep"):
        predicate_to_pb(nested(PREDICATE_DEPTH_MAX + 1), SCHEMA)


@pytest.mark.parametrize(
    ("predicate", "reason"),
    [
        (col("nix") == 1, "no column 'nix'"),
        (col("id") == None, "null"),  # noqa: E711
        (Leaf(LeafFunction.EQUAL, "id", (1, 2)), r"takes 1 value\(s\), not 2"),
        (Leaf(LeafFunction.IS_NULL, "id", (1,)), r"takes 0 value\(s\), not 1"),
        (col("id").starts_with("1"), "needs a text column"),
        (col("tags") == ["a"], "cannot be compared"),
        (col("tags").is_in([None]), "cannot be compared"),
        (Compound(CompoundFunction.AND, ()), "no conditions"),
        (Compound(CompoundFunction.AND, (col("id") == 1, Compound(CompoundFunction.AND, ()))), "no conditions"),
        (Predicate(), "not a Predicate"),
    ],
)
def test_a_filter_that_does_not_fit_its_schema_is_refused(predicate: Predicate, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        predicate_to_pb(predicate, SCHEMA)


def test_a_schema_without_ids_cannot_carry_a_filter() -> None:
    with pytest.raises(InvalidRequest, match="no id yet"):
        predicate_to_pb(col("a") == 1, Schema((Column("a", t.int_()),)))


ONE = pb.PbLiteralValue(literal_type=4, is_null=False, bigint_value=1)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (pb.PbPredicate(type=2), "type 2"),
        (pb.PbPredicate(type=0), "type 0"),
        (pb.PbPredicate(type=1, leaf=pb.PbLeafPredicate(function=0, field_id=7, literals=[ONE])), "type 1"),
        (pb.PbPredicate(type=1, compound=pb.PbCompoundPredicate(function=0)), "no conditions"),
        (pb.PbPredicate(type=1, compound=pb.PbCompoundPredicate(function=2)), "function 2"),
        (pb.PbPredicate(type=0, leaf=pb.PbLeafPredicate(function=13, field_id=7, literals=[ONE])), "function 13"),
        (pb.PbPredicate(type=0, leaf=pb.PbLeafPredicate(function=0, field_id=8, literals=[ONE])), "column id 8"),
        (pb.PbPredicate(type=0, leaf=pb.PbLeafPredicate(function=0, field_id=10, literals=[ONE])), "column id 10"),
        (pb.PbPredicate(type=0, leaf=pb.PbLeafPredicate(function=0, field_id=7)), "takes 1"),
        (
            pb.PbPredicate(
                type=0,
                leaf=pb.PbLeafPredicate(
                    function=0, field_id=7, literals=[pb.PbLiteralValue(literal_type=4, is_null=True)]
                ),
            ),
            "null",
        ),
    ],
)  # fmt: skip
def test_a_filter_from_the_wire_that_cannot_be_evaluated_is_refused(message: pb.PbPredicate, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        predicate_from_pb(message, SCHEMA)


@given(st.binary(max_size=80))
def test_random_filters_are_read_or_refused(body: bytes) -> None:
    try:
        message = parse(pb.PbPredicate, body)
        predicate = predicate_from_pb(message, SCHEMA)
    except ForebayError:
        return
    assert predicate.columns() <= {"id", "name", "tags"}


WIDE = Schema.of(
    [
        Column(name, data_type)
        for name, data_type in (
            ("b", t.boolean()), ("i8", t.tinyint()), ("i16", t.smallint()), ("i32", t.int_()), ("i64", t.bigint()),
            ("f32", t.float_()), ("f64", t.double()), ("s", t.string()), ("bin", t.bytes_()), ("d1", t.decimal(10, 2)),
            ("d2", t.decimal(30, 4)), ("day", t.date()), ("t", t.time(3)), ("ts", t.timestamp(6)),
            ("ltz", t.timestamp_ltz(6)),
        )
    ]
)  # fmt: skip
"""The table for which record_golden.py makes pyfluss send its filters."""


def test_filters_that_pyfluss_sends_are_read_as_they_were_written_and_reproduced() -> None:
    messages: list[pb.PbPredicate] = []
    for name, frame in golden_frames():
        if name == "fetch_log":
            request = parse(pb.FetchLogRequest, frame[12:])
            messages += [table.filter_predicate for table in request.tables_req if table.HasField("filter_predicate")]
    moment = dt.datetime(2024, 1, 15, 10, 11, 12, 345678)
    assert [predicate_from_pb(message, WIDE) for message in messages] == [
        col("b") == True,  # noqa: E712
        col("i8") == -2,
        col("i16") != 300,
        col("i32") < 7,
        col("i64") <= -1,
        col("f32") > 1.5,
        col("f64") >= -2.25,
        col("s").starts_with("h\u00e9"),
        col("s").contains("l"),
        col("s").ends_with("o"),
        col("bin") == b"\x00\xff",
        col("d1") == Decimal("-123.45"),
        col("d2") == Decimal("-12345678901234567890.1234"),
        col("day") == dt.date(2024, 1, 15),
        col("t") == dt.time(10, 11, 12, 345000),
        col("ts") == moment,
        col("ltz") == moment.replace(tzinfo=dt.UTC),
        col("s").is_null(),
        Compound(
            CompoundFunction.AND,
            (
                col("i32").is_in([1, 2, 3]) | col("s").is_not_null(),
                col("i64").not_in([4]),
                col("i8") > 0,
            ),
        ),
    ]
    for message in messages:
        assert predicate_to_pb(predicate_from_pb(message, WIDE), WIDE) == message
