"""Projection of log batches without decoding them: the same rows as decoding and selecting."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest, NotFound
from forebay.codec.arrow import arrow_message
from forebay.codec.arrow.arrow_message import Projection
from forebay.codec.log.header import HEADER_SIZES, iter_headers, parse_header, seal, stamp
from forebay.codec.log.log_batch import (
    align_batch,
    build_arrow_batch,
    build_empty_batch,
    change_types,
    decode_arrow_batch,
    validate_arrow_body,
)
from forebay.metadata import types
from forebay.metadata.table import Column, Schema
from tests.codec.log_batch_strategies import batch_of, compressions, schema_of, tables
from tests.codec.log_batch_text import golden_bytes, golden_schema
from tests.every_run import examples


def projected_schema(schema: Schema, positions) -> tuple[Column, ...]:
    return tuple(schema.columns[position] for position in positions)


@settings(max_examples=examples(60))
@given(table=tables(min_rows=1), compression=compressions, kinds=st.none() | st.binary(min_size=6, max_size=6))
def test_projection_equals_selection_for_every_subset_of_columns(table, compression, kinds):
    schema, batch = table
    kinds = None if kinds is None else bytes(kind % 5 for kind in kinds[: batch.num_rows])
    data = bytes(
        build_arrow_batch(batch, schema_id=1, change_types=kinds, compression=compression, statistics_columns=[0])
    )
    width = len(schema.columns)
    for positions in itertools.chain.from_iterable(
        itertools.combinations(range(width), n) for n in range(1, width + 1)
    ):
        projected, count, next_position = Projection(schema, positions, lambda _: schema).project(data)
        assert (count, next_position) == (1, len(data))
        header = parse_header(projected)
        assert header.size_bytes == len(projected)
        assert header.statistics_length == 0
        assert len(projected) % 8 == (HEADER_SIZES[header.magic] + (0 if kinds is None else batch.num_rows)) % 8
        columns = projected_schema(schema, positions)
        validate_arrow_body(projected, 0, header, columns)
        assert decode_arrow_batch(projected, 0, header, columns).equals(batch.select(list(positions)))
        read = change_types(projected, 0, header)
        assert (None if read is None else bytes(read.to_pylist())) == kinds


@pytest.mark.parametrize(
    ("name", "writer"),
    [
        ("java_arrow", "java"),
        ("java_arrow_lz4_changelog", "java"),
        ("java_arrow_zstd_changelog_statistics", "java"),
        ("pyfluss_all_types_statistics", "pyfluss"),
    ],
)
def test_batches_of_other_writers_are_projected_column_by_column(name, writer):
    data, schema = golden_bytes(f"{name}.hex"), golden_schema(f"{writer}_schema.json")
    whole = decode_arrow_batch(data, 0, parse_header(data), schema)
    for position in range(len(schema.columns)):
        projected = Projection(schema, [position], lambda _: schema).project(data).data
        columns = projected_schema(schema, [position])
        decoded = decode_arrow_batch(projected, 0, parse_header(projected), columns)
        assert str(decoded.column(0)) == str(whole.column(position))


def test_the_header_keeps_what_the_server_stamped_and_the_crc_goes_stale():
    schema = schema_of(types.int_(), types.string())
    data = build_arrow_batch(batch_of(schema, [[1, "a"], [2, "b"]]), schema_id=1, writer_id=5, batch_sequence=6)
    stamp(data, 0, 1000, 123_456)
    original = parse_header(data)
    projected = bytearray(Projection(schema, [1], lambda _: schema).project(data).data)
    header = parse_header(projected)
    assert header._replace(length=0) == original._replace(length=0)
    assert seal(projected) != original.crc


def test_many_batches_of_one_buffer_are_projected_in_one_call():
    schema = schema_of(types.int_(), types.string(), types.array(types.int_()))
    batches = [batch_of(schema, [[i, f"v{i}", [i] * (i % 3)]] * (i % 4)) for i in range(50)]
    data = b"".join(build_arrow_batch(b, schema_id=1, change_types=bytes([1] * b.num_rows)) for b in batches)
    projected = Projection(schema, [0, 2], lambda _: schema).project(data)
    assert (projected.batch_count, projected.next_position) == (50, len(data))
    columns = projected_schema(schema, [0, 2])
    decoded = [decode_arrow_batch(projected.data, p, h, columns) for p, h in iter_headers(projected.data)]
    assert [d.to_pylist() for d in decoded] == [b.select([0, 2]).to_pylist() for b in batches]


def test_empty_batches_pass_so_that_readers_advance():
    schema = schema_of(types.int_(), types.int_())
    data = b"".join(
        build_empty_batch(schema_id=1, writer_id=i, batch_sequence=0, magic=magic) for i, magic in enumerate((0, 1, 2))
    )
    assert Projection(schema, [1], lambda _: schema).project(data).data == data


def test_the_byte_budget_counts_projected_bytes_and_the_first_batch_always_fits():
    schema = schema_of(types.int_(), types.string())
    data = b"".join(build_arrow_batch(batch_of(schema, [[i, "x" * 1000]]), schema_id=1) for i in range(10))
    projection = Projection(schema, [0], lambda _: schema)
    one = len(projection.project(data, bytes_max=0).data)
    assert one < 300
    assert projection.project(data, bytes_max=0).batch_count == 1
    assert projection.project(data, bytes_max=0, take_first=False) == (b"", 0, 0)
    three = projection.project(data, bytes_max=3 * one + one - 1)
    assert (three.batch_count, three.next_position) == (3, 3 * len(data) // 10)
    rest = projection.project(data, three.next_position)
    assert three.data + rest.data == projection.project(data).data


def test_chosen_batches_only_and_a_cut_off_one_is_left_out():
    schema = schema_of(types.int_(), types.string())
    parts = [bytes(build_arrow_batch(batch_of(schema, [[i, "x" * i]]), schema_id=1)) for i in range(6)]
    data = b"".join(parts)
    positions = np.cumsum([0] + [len(part) for part in parts])[:-1]
    projection = Projection(schema, [0], lambda _: schema)
    chosen = projection.project(data, positions=positions[[1, 4]])
    expected = [projection.project(parts[1]).data, projection.project(parts[4]).data]
    assert (chosen.data, chosen.batch_count) == (b"".join(expected), 2)
    assert projection.project(data, positions=[]).data == b""
    torn = projection.project(data[:-1])
    assert (torn.batch_count, torn.next_position) == (5, positions[5])
    with pytest.raises(ValueError, match="not ascending"):
        projection.project(data, positions=[int(positions[2]), int(positions[1])])


@settings(max_examples=examples(60))
@given(table=tables(min_rows=1), compression=compressions, extra=st.lists(st.sampled_from(range(8)), max_size=8))
def test_a_column_that_older_batches_lack_comes_out_null(table, compression, extra):
    old, batch = table
    candidates = [
        types.int_(), types.string(), types.boolean(), types.binary(3), types.decimal(30, 2),
        types.array(types.row(types.field("x", types.string()))), types.map_(types.string(), types.boolean()),
        types.row(types.field("x", types.array(types.bigint())), types.field("y", types.boolean().not_null())),
    ]  # fmt: skip
    added = [Column(f"n{i}", candidates[i], None, 100 + n) for n, i in enumerate(extra)]
    new = (*added[::2], *old.columns, *added[1::2])
    data = bytes(build_arrow_batch(batch, schema_id=1, change_types=bytes(batch.num_rows), compression=compression))
    current = Schema(new)
    projected = Projection(current, range(len(new)), lambda _: old).project(data).data
    header = parse_header(projected)
    validate_arrow_body(projected, 0, header, new)
    decoded = decode_arrow_batch(projected, 0, header, new)
    decoded.validate(full=True)
    expected = align_batch(batch, old, new)
    assert decoded.equals(expected)


def test_each_batch_is_projected_by_its_own_schema():
    old = Schema((Column("a", types.int_(), None, 0), Column("b", types.string(), None, 1)))
    new = Schema((*old.columns, Column("c", types.bigint(), None, 2)))
    asked = []

    def schema_of_id(schema_id: int) -> Schema:
        asked.append(schema_id)
        return {1: old, 2: new}[schema_id]

    old_batch = build_arrow_batch(batch_of(old, [[1, "x"]]), schema_id=1)
    new_batch = build_arrow_batch(batch_of(new, [[2, "y", 3]]), schema_id=2)
    data = b"".join([old_batch, new_batch, old_batch, old_batch])
    projection = Projection(new, [1, 2], schema_of_id)
    projected = projection.project(data).data
    columns = projected_schema(new, [1, 2])
    rows = [decode_arrow_batch(projected, p, h, columns).to_pylist()[0] for p, h in iter_headers(projected)]
    assert rows == [{"b": "x", "c": None}, {"b": "y", "c": 3}, {"b": "x", "c": None}, {"b": "x", "c": None}]
    projection.project(data)
    assert asked == [1, 2, 1, 2]  # once a call


def test_impossible_projections_are_refused_as_the_protocol_says():
    schema = schema_of(types.int_(), types.string())
    for positions in ([], [1, 0], [0, 0], [2], [-1]):
        with pytest.raises(InvalidRequest) as caught:
            Projection(schema, positions, lambda _: schema)
        assert caught.value.code == ErrorCode.INVALID_COLUMN_PROJECTION
    data = build_arrow_batch(batch_of(schema, [[1, "a"]]), schema_id=1)
    changed = Schema((Column("c0", types.bigint(), None, 0),))
    with pytest.raises(InvalidRequest, match="has type BIGINT now, but INT"):
        Projection(changed, [0], lambda _: schema).project(data)
    strict = Schema((Column("n", types.int_().not_null(), None, 9),))
    with pytest.raises(InvalidRequest, match="'n' is NOT NULL"):
        Projection(strict, [0], lambda _: schema).project(data)


def test_errors_of_the_schema_source_come_through():
    schema = schema_of(types.int_())

    def missing(schema_id: int) -> Schema:
        raise NotFound(f"there is no schema {schema_id}", ErrorCode.SCHEMA_NOT_EXIST)

    with pytest.raises(NotFound, match="no schema 3"):
        Projection(schema, [0], missing).project(build_arrow_batch(batch_of(schema, [[1]]), schema_id=3))


def test_a_batch_that_does_not_fit_its_schema_is_corrupt():
    schema = schema_of(types.int_())
    data = build_arrow_batch(pa.record_batch({"a": [1], "b": [2]}), schema_id=1)
    with pytest.raises(CorruptData, match="byte 0: its Arrow message is malformed: it has 2 field nodes"):
        Projection(schema, [0], lambda _: schema).project(data)
    with pytest.raises(CorruptData, match="header"):
        Projection(schema, [0], lambda _: schema).project(b"\0" * 12 + b"\x09" + bytes(60))


def test_codecs_and_plans_are_found_again_and_their_number_is_bounded(monkeypatch):
    monkeypatch.setattr(arrow_message, "_RECENT_MAX", 3)
    monkeypatch.setattr(arrow_message, "_recent_codecs", {})
    monkeypatch.setattr(arrow_message, "_recent_plans", {})
    schemas = [schema_of(types.int_(), types.string()) for _ in range(10)]
    codecs = [arrow_message.message_codec(schema) for schema in schemas[:3]]
    assert all(arrow_message.message_codec(s) is c for s, c in zip(schemas, codecs, strict=False))
    plans = [Projection(s, [0], lambda _, s=s: s)._projector(1) for s in schemas[:3]]
    assert [Projection(s, [0], lambda _, s=s: s)._projector(1) for s in schemas[:3]] == plans
    for schema in schemas:
        Projection(schema, [1], lambda _, schema=schema: schema)._projector(1)
        assert len(arrow_message._recent_codecs) <= 3
        assert len(arrow_message._recent_plans) <= 3
