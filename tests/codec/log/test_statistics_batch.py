"""Batch statistics: the block, the columns that have one, and pruning that never loses a row."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest
from forebay.codec.filters import bind, mask
from forebay.codec.log.header import parse_header
from forebay.codec.log.log_batch import build_arrow_batch
from forebay.codec.log.statistics import (
    BatchStatistics,
    StatisticsFilter,
    encode_statistics,
    is_supported,
    parse_statistics,
    statistics_columns,
)
from forebay.codec.rows import aligned_row
from forebay.metadata import types
from forebay.metadata.predicate import col
from forebay.metadata.table import Column, Schema
from forebay.metadata.types import DataType
from tests.codec.log_batch_strategies import batch_of, filtered_batches, schema_of, tables, values_and_nan
from tests.codec.log_batch_text import golden_bytes
from tests.codec.row_strategies import scalar_types
from tests.every_run import examples

NEGATIVE_NAN_32 = struct.unpack("<f", struct.pack("<I", 0xFFC00000))[0]
NEGATIVE_NAN_64 = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000000))[0]


# ---- the block ------------------------------------------------------------------------------------------------------


def _statistics(data: bytes) -> bytes:
    header = parse_header(data)
    return data[header.statistics_start : header.body_start]


def test_the_statistics_block_is_the_one_that_java_and_rust_agree_on():
    schema = schema_of(
        types.boolean(), types.tinyint(), types.smallint(), types.int_(), types.bigint(), types.float_(),
        types.double(), types.string(), types.decimal(5, 2), types.decimal(20, 3), types.date(), types.time(3),
        types.timestamp(3), types.timestamp(6), types.timestamp_ltz(3), types.timestamp_ltz(6), types.string(),
        types.float_(), types.double(),
    )  # fmt: skip
    ms, us = [1700000000123, 1600000000000, 1800000000999], [1700000000123456, 1600000000000001, 1800000000999999]
    columns: list[list[Any]] = [
        [True, False, True], [1, -3, 7], [100, 200, -50], [10, None, 30], [1000, -2000, 3000], [1.5, -2.5, 0.5],
        [3.25, 1.25, 9.75], ["banana", "apple", "cherry"], [Decimal("123.45"), Decimal("67.89"), Decimal("500.00")],
        [Decimal("12345678.901"), Decimal("1.234"), Decimal("99999999999999.999")], [19000, 18000, 20000],
        [3600000, 7200000, 1800000], ms, us, ms, us, [None] * 3, [-0.0, NEGATIVE_NAN_32, 0.0],
        [0.0, -0.0, NEGATIVE_NAN_64],
    ]  # fmt: skip
    batch = batch_of(schema, [list(row) for row in zip(*columns, strict=True)])
    block = golden_bytes("statistics_block.hex")
    assert encode_statistics(batch, range(19)) == block
    parsed = parse_statistics(block, schema)
    assert parsed is not None
    assert parsed.null_counts == (0, 0, 0, 1) + (0,) * 12 + (3, 0, 0)
    assert parsed.minimums[:17] == (
        False, -3, -50, 10, -2000, -2.5, 1.25, "apple", Decimal("67.89"), Decimal("1.234"), 18000, 1800000,
        ms[1], us[1], ms[1], us[1], None,
    )  # fmt: skip
    assert parsed.maximums[7:11] == ("cherry", Decimal("500.00"), Decimal("99999999999999.999"), 20000)
    assert [str(v) for v in (*parsed.minimums[17:], *parsed.maximums[17:])] == ["-0.0", "-0.0", "nan", "nan"]


def _java_order(value: Any) -> Any:
    """Java's order of floats: -0.0 before 0.0, NaN after everything."""
    return (value != value, value, math.copysign(1, value)) if isinstance(value, float) else value


def _reference_block(schema: Schema, batch: pa.RecordBatch, rows: list[list[Any]], positions: list[int]) -> bytes:
    """The block made of plain Python: bounds by min and max, rows by the aligned-row codec."""
    block = struct.pack(f"<bh{len(positions)}h", 1, len(positions), *positions)
    present = [[row[p] for row in rows if row[p] is not None] for p in positions]
    block += struct.pack(f"<{len(positions)}i", *(len(rows) - len(column) for column in present))
    for choose in (min, max):
        bounds = [
            choose(column, key=_java_order) if column and is_supported(schema.types[p]) else None
            for p, column in zip(positions, present, strict=True)
        ]
        row = aligned_row.encode_row([schema.types[p] for p in positions], bounds)
        block += struct.pack("<i", len(row)) + row
    return block


@settings(max_examples=examples(120))
@given(data=st.data())
def test_the_kernel_collects_what_plain_python_collects(data):
    schema = schema_of(
        *data.draw(st.lists(scalar_types() | st.just(types.array(types.int_())), min_size=1, max_size=6))
    )
    rows = data.draw(st.lists(st.tuples(*(st.none() | values_and_nan(t) for t in schema.types)).map(list), min_size=1,
                              max_size=12))  # fmt: skip
    positions = data.draw(st.permutations(range(len(schema.columns))))
    batch = batch_of(schema, [[None] * len(schema.columns), *rows]).slice(1)
    assert encode_statistics(batch, positions) == _reference_block(schema, batch, rows, positions)


@settings(max_examples=examples(40))
@given(table=tables(min_rows=1))
def test_blocks_parse_to_what_they_say(table):
    schema, batch = table
    positions = tuple(range(batch.num_columns))
    parsed = parse_statistics(encode_statistics(batch, positions), schema)
    assert isinstance(parsed, BatchStatistics)
    assert parsed.positions == positions
    assert parsed.null_counts == tuple(column.null_count for column in batch.columns)


def test_no_rows_or_no_columns_give_no_block():
    schema = schema_of(types.int_())
    assert encode_statistics(batch_of(schema, []), [0]) == b""
    assert encode_statistics(batch_of(schema, [[1]]), []) == b""
    with pytest.raises(InvalidRequest, match="no column 1"):
        encode_statistics(batch_of(schema, [[1]]), [1])


def test_the_block_of_no_columns_that_java_writes_is_no_statistics():
    block = struct.pack("<bhiqiq", 1, 0, 8, 0, 8, 0)
    assert len(block) == 27
    assert parse_statistics(block, schema_of(types.int_())) is None
    everything = StatisticsFilter(bind(col("c0") == 1, schema_of(types.int_())), schema_of(types.int_()))
    assert everything.test(block, 1)


def test_a_block_of_a_later_version_is_no_statistics():
    schema = schema_of(types.int_())
    block = b"\x02" + encode_statistics(batch_of(schema, [[1]]), [0])[1:]
    assert parse_statistics(block, schema) is None
    assert StatisticsFilter(bind(col("c0") == 5, schema), schema).test(block, 1)


def test_malformed_blocks_are_corrupt_and_keep_their_batch():
    schema = schema_of(types.int_(), types.string())
    block = encode_statistics(batch_of(schema, [[1, "a long text"], [2, None]]), [0, 1])
    assert parse_statistics(block, schema) is not None
    for size in range(len(block)):
        with pytest.raises(CorruptData):
            parse_statistics(block[:size], schema)
    for at, value in ((1, 9), (3, 7), (15, 0), (15, 200), (16, 0xFF)):
        broken = bytearray(block)
        broken[at] = value
        with pytest.raises(CorruptData):
            parse_statistics(broken, schema)
    data = build_arrow_batch(batch_of(schema, [[1, "a"]]), schema_id=1, statistics_columns=[0, 1])
    nothing = StatisticsFilter(bind(col("c0") == 5, schema), schema)
    assert not nothing.may_match(_statistics(data), parse_header(data).record_count)
    data[52 + 15] = 200
    assert nothing.may_match(_statistics(data), parse_header(data).record_count)


# ---- the option -----------------------------------------------------------------------------------------------------


def test_the_option_names_columns_or_all_that_can():
    schema = Schema.of([Column("a", types.int_()), Column("b", types.bytes_()), Column("c", types.string()),
                        Column("d", types.array(types.int_())), Column("e", types.char(2))])  # fmt: skip
    assert statistics_columns(schema, None) is None
    assert statistics_columns(schema, "*") == (0, 2, 4)
    assert statistics_columns(schema, " c , a ") == (2, 0)
    for option, match in (("x", "'x' does not exist"), ("a,b", "'b' has type BYTES"), ("d", "ARRAY"), (" , ", "empty")):
        with pytest.raises(InvalidRequest, match=match) as caught:
            statistics_columns(schema, option)
        assert caught.value.code == ErrorCode.INVALID_CONFIG_EXCEPTION
    keyed = Schema.of([Column("a", types.int_())], ["a"])
    with pytest.raises(InvalidRequest, match="primary key"):
        statistics_columns(keyed, "*")


# ---- decisions ------------------------------------------------------------------------------------------------------

NUMBERS = schema_of(types.int_())


def decide(predicate, rows: list[Any], t: DataType | None = None) -> bool:
    schema = NUMBERS if t is None else schema_of(t)
    block = encode_statistics(batch_of(schema, [[row] for row in rows]), [0])
    return StatisticsFilter(bind(predicate, schema), schema).test(block, len(rows))


c0 = col("c0")


@pytest.mark.parametrize(
    ("predicate", "kept"),
    [
        (c0 == 10, True), (c0 == 15, True), (c0 == 20, True), (c0 == 9, False), (c0 == 21, False),
        (c0 != 10, True), (c0 < 10, False), (c0 < 11, True), (c0 <= 9, False), (c0 <= 10, True),
        (c0 > 20, False), (c0 > 19, True), (c0 >= 21, False), (c0 >= 20, True),
        (c0.is_null(), False), (c0.is_not_null(), True),
        (c0.is_in([1, 15]), True), (c0.is_in([1, 99]), False), (c0.is_in([]), False), (c0.not_in([15]), True),
        (c0.not_in([1, None]), False), (c0 == None, False), (c0 < 10.5, True), (c0 == 10.5, False),  # noqa: E711
        ((c0 > 20) | (c0 < 11), True), ((c0 > 20) | (c0 < 10), False),
        ((c0 > 15) & (c0 < 12), True), ((c0 > 20) & (c0 < 12), False),
    ],
)  # fmt: skip
def test_batches_are_kept_by_the_rules_of_the_protocol(predicate, kept):
    assert decide(predicate, [10, 15, 20]) is kept


def test_nulls_decide_only_null_tests():
    assert decide(c0.is_null(), [1, None])
    assert not decide(c0.is_not_null(), [None, None])
    for predicate in (c0 == 1, c0 != 1, c0 < 1, c0.is_in([1]), c0.not_in([1]), c0.not_in([])):
        assert not decide(predicate, [None, None])
    assert decide(c0.is_null(), [None, None])


def test_one_value_in_the_whole_batch_decides_inequality():
    assert not decide(c0 != 5, [5, 5, None])
    assert not decide(c0.not_in([4, 5]), [5, 5])
    assert decide(c0.not_in([4, 6]), [5, 5])


def test_prefixes_are_compared_as_utf8_bytes():
    rows = ["\ud7ff", "\U0001f600"]  # UTF-16 would order a supplementary character before U+E000
    assert decide(c0.starts_with("\ue000"), rows, types.string())
    assert decide(c0.starts_with("\U0001f600"), rows, types.string())
    assert not decide(c0.starts_with("a"), rows, types.string())
    assert decide(c0.starts_with("appl"), ["apple", "banana"], types.string())
    assert not decide(c0.starts_with("c"), ["apple", "banana"], types.string())
    assert decide(c0.contains("zz"), ["apple"], types.string())
    assert decide(c0.ends_with("zz"), ["apple"], types.string())


def test_floating_points_are_ordered_as_the_filters_order_them():
    assert decide(c0 == 0.0, [-0.0], types.double())
    assert decide(c0 >= 0.0, [-0.0], types.double())
    assert decide(c0 > 1e300, [1.0, math.nan], types.double())
    assert decide(c0 == math.nan, [1.0, math.nan], types.double())
    assert not decide(c0 < 1.0, [math.nan], types.double())
    assert not decide(c0 == math.nan, [1.0], types.double())


def test_a_time_between_two_milliseconds_is_found():
    # Bounds of TIME are whole milliseconds: 1.9 ms is stored as 1.
    assert decide(c0 > dt.time(0, 0, 0, 1500), [1_900], types.time(6))
    assert decide(c0 == pa.scalar(1_999_999, pa.time64("ns")), [1_999_999], types.time(9))
    assert not decide(c0 > dt.time(0, 0, 0, 2000), [1_900], types.time(6))


def test_columns_without_statistics_keep_the_batch_but_do_not_spoil_an_and():
    schema = schema_of(types.int_(), types.int_())
    block = encode_statistics(batch_of(schema, [[1, 1]]), [0])
    keep, drop = bind(col("c1") == 9, schema), bind((col("c1") == 9) & (col("c0") == 9), schema)
    assert StatisticsFilter(keep, schema).test(block, 1)
    assert not StatisticsFilter(drop, schema).test(block, 1)
    either = bind((col("c1") == 9) | (col("c0") == 9), schema)
    assert StatisticsFilter(either, schema).test(block, 1)


def test_a_missing_bound_or_an_impossible_null_count_keeps_the_batch():
    # Java collects no bounds for CHAR columns: the slots are null although the column is not.
    schema = schema_of(types.char(3))
    row = aligned_row.encode_row([types.char(3)], [None])
    block = struct.pack("<bhhi", 1, 1, 0, 0) + 2 * (struct.pack("<i", len(row)) + row)
    assert StatisticsFilter(bind(c0 == "a", schema), schema).test(block, 5)
    assert not StatisticsFilter(bind(c0.is_null(), schema), schema).test(block, 5)
    for nulls in (-1, 6):
        lie = block[:5] + struct.pack("<i", nulls) + block[9:]
        for predicate in (c0.is_null(), c0.is_not_null(), c0 == "a"):
            assert StatisticsFilter(bind(predicate, schema), schema).test(lie, 5)


def test_columns_are_found_by_id_in_batches_of_another_schema():
    old = Schema((Column("a", types.int_(), None, 0), Column("b", types.string(), None, 1)))
    new = Schema((Column("B", types.string(), None, 1), Column("c", types.int_(), None, 2), old.columns[0]))
    block = encode_statistics(batch_of(old, [[5, "x"]]), [0, 1])
    for predicate, kept in ((col("a") == 5, True), (col("a") == 6, False), (col("B") == "x", True),
                            (col("B") == "y", False), (col("c") == 1, True)):  # fmt: skip
        assert StatisticsFilter(bind(predicate, new), old).test(block, 1) is kept
    changed = Schema((Column("a", types.bigint(), None, 0),))
    assert StatisticsFilter(bind(col("a") == 6, changed), old).test(block, 1)


def test_batches_without_statistics_or_rows_are_kept():
    schema = schema_of(types.int_())
    pruner = StatisticsFilter(bind(c0 == 5, schema), schema)
    for data in (
        build_arrow_batch(batch_of(schema, [[1]]), schema_id=1),
        build_arrow_batch(batch_of(schema, [[1]]), schema_id=1, statistics_columns=[]),
        build_arrow_batch(batch_of(schema, []), schema_id=1, statistics_columns=[0]),
    ):
        assert pruner.may_match(_statistics(data), parse_header(data).record_count)


@settings(max_examples=examples(400))
@given(case=filtered_batches())
def test_pruning_never_drops_a_batch_with_a_matching_row(case):
    schema, rows, predicate = case
    batch = batch_of(schema, rows)
    bound = bind(predicate, schema)
    block = encode_statistics(batch, [i for i, t in enumerate(schema.types) if is_supported(t)])
    kept = not block or StatisticsFilter(bound, schema).test(block, batch.num_rows)
    if mask(bound, batch).true_count:
        assert kept


@pytest.mark.parametrize("text", ["", "1234567", "12345678", "é" * 8])
def test_text_bounds_of_any_length_up_to_the_end_of_the_row_are_read(text):
    schema = schema_of(types.string())
    block = encode_statistics(batch_of(schema, [[text]]), [0])
    assert parse_statistics(block, schema) == BatchStatistics((0,), (0,), (text,), (text,))
    assert not StatisticsFilter(bind(col("c0") > text, schema), schema).test(block, 1)
    assert StatisticsFilter(bind(col("c0") >= text, schema), schema).test(block, 1)


def test_a_batch_without_rows_is_never_pruned():
    schema = schema_of(types.int_())
    block = encode_statistics(batch_of(schema, [[1]]), [0])
    beyond = StatisticsFilter(bind(col("c0") > 5, schema), schema)
    assert (beyond.test(block, 1), beyond.test(block, 0)) == (False, True)


@pytest.mark.parametrize("bounds", [(None, 5), (5, None)])
def test_a_bound_on_one_side_only_keeps_the_batch(bounds):
    schema = schema_of(types.int_())
    rows = [aligned_row.encode_row([types.int_()], [bound]) for bound in bounds]
    block = struct.pack("<bhhi", 1, 1, 0, 0) + b"".join(struct.pack("<i", len(row)) + row for row in rows)
    for predicate in (c0 == 9, c0 < 0, c0 > 9):
        assert StatisticsFilter(bind(predicate, schema), schema).test(block, 5)


@pytest.mark.parametrize(("start", "size"), [(16, 9), (17, 8), (24, 1)])
def test_a_text_bound_that_does_not_lie_in_its_row_is_corrupt(start, size):
    schema = schema_of(types.string())
    good = aligned_row.encode_row([types.string()], ["12345678"])
    bad = good[:8] + struct.pack("<ii", size, start) + good[16:]
    for rows in ((good, bad), (bad, good)):
        block = struct.pack("<bhhi", 1, 1, 0, 0) + b"".join(struct.pack("<i", len(row)) + row for row in rows)
        with pytest.raises(CorruptData, match="a text outside its row"):
            parse_statistics(block, schema)
