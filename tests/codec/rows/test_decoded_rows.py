"""The quick proof that decoded rows are sound and have the keys that were sent: it never says so of others."""

from __future__ import annotations

import decimal
from typing import Any

import pyarrow as pa
import pytest

from forebay.codec.arrow.arrow_types import storage_schema
from forebay.codec.rows._slices import RowSlices
from forebay.codec.rows.keys import KeyEncoder
from forebay.codec.rows.row_codec import DecodedRows, row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.metadata import types
from forebay.metadata.table import Column
from forebay.metadata.types import DataType

D = decimal.Decimal


def decoded(columns: dict[str, DataType], rows: list[dict[str, Any]], row_format: RowFormat) -> DecodedRows:
    codec = row_codec(tuple(Column(name, t) for name, t in columns.items()), row_format)
    batch = pa.RecordBatch.from_pylist(rows, schema=storage_schema(codec.columns))
    return codec.decode_rows(RowSlices.from_arrow(codec.encode(batch)))


@pytest.mark.parametrize("row_format", [RowFormat.COMPACTED, RowFormat.INDEXED])
@pytest.mark.parametrize(
    ("data_type", "values", "sound"),
    [
        (types.int_(), [1, None, -5], True),
        (types.bigint(), [1, 2, 3], True),
        (types.boolean(), [True, None], True),
        (types.double(), [0.5, float("nan")], True),
        (types.bytes_(), [b"\xff", b""], True),
        (types.timestamp(6), [5, None], True),
        (types.string(), ["", "plain text, longer than a word", None], True),
        (types.string(), ["plain", "Zürich"], False),
        (types.string(), ["é" * 9], False),
        (types.decimal(12, 2), [D("9999999999.99"), D("-9999999999.99"), None], True),
        (types.decimal(30, 2), [D("1.00")], False),
        (types.time(0), [3], False),
        (types.array(types.int_()), [[1], None], False),
    ],
)
def test_types_whose_values_need_no_look_at_each_are_plainly_sound(
    row_format: RowFormat, data_type: DataType, values: list[Any], sound: bool
) -> None:
    made = decoded({"k": types.bigint(), "v": data_type}, [{"k": i, "v": v} for i, v in enumerate(values)], row_format)
    assert made.is_plainly_sound((0,)) is sound
    if None in values:
        assert not made.is_plainly_sound((0, 1))
    batch = made.to_batch()
    batch.validate(full=True)
    assert batch["k"].to_pylist() == list(range(len(values)))


def test_a_decimal_with_more_digits_than_its_column_and_text_that_is_not_utf8_are_not_sound() -> None:
    wide = decoded({"v": types.decimal(18, 0)}, [{"v": D(10**12)}], RowFormat.COMPACTED)
    narrow = row_codec((Column("v", types.decimal(12, 0)),), RowFormat.COMPACTED)
    assert wide.is_plainly_sound(())
    encoded = row_codec((Column("v", types.decimal(18, 0)),), RowFormat.COMPACTED).encode(wide.to_batch())
    assert not narrow.decode_rows(RowSlices.from_arrow(encoded)).is_plainly_sound(())
    text = row_codec((Column("v", types.string()),), RowFormat.COMPACTED)
    raw = row_codec((Column("v", types.bytes_()),), RowFormat.COMPACTED)
    for value in (b"\xff\xfe", b"12345678\x80", b"\xc3"):
        rows = raw.encode(pa.record_batch([pa.array([value], pa.binary())], names=["v"]))
        assert not text.decode_rows(RowSlices.from_arrow(rows)).is_plainly_sound(())


@pytest.mark.parametrize("row_format", [RowFormat.COMPACTED, RowFormat.INDEXED])
def test_keys_are_those_of_the_rows_or_not(row_format: RowFormat) -> None:
    columns = {"v": types.string(), "b": types.string(), "a": types.bigint()}
    rows = [{"v": "x" * i, "b": f"key {i}", "a": i * 1000} for i in range(100)]
    made = decoded(columns, rows, row_format)
    keys = KeyEncoder((Column("a", types.bigint()), Column("b", types.string())), None)
    codec = row_codec(tuple(Column(name, t) for name, t in columns.items()), row_format)
    right = keys.encode(codec.decode(codec.encode(made.to_batch()))).to_pylist()
    made = decoded(columns, rows, row_format)
    assert keys.match(made, RowSlices.from_values(right))
    for place in (0, 50, 99):
        for wrong in (right[place] + b"x", right[place][:-1], bytes([right[place][0] ^ 1]) + right[place][1:], b""):
            assert not keys.match(made, RowSlices.from_values([*right[:place], wrong, *right[place + 1 :]]))
    assert not keys.match(made, RowSlices.from_values(right[:-1]))
    assert not KeyEncoder((Column("a", types.bigint()),), "paimon").match(made, RowSlices.from_values(right))
    null = decoded(columns, [{"v": "x", "b": None, "a": 1}], row_format)
    assert not keys.match(null, RowSlices.from_values(right[:1]))


def test_no_rows_are_sound_and_have_no_keys() -> None:
    made = decoded({"k": types.bigint(), "v": types.string()}, [], RowFormat.COMPACTED)
    assert made.is_plainly_sound((0,))
    assert KeyEncoder((Column("k", types.bigint()),), None).match(made, RowSlices.from_values([]))
