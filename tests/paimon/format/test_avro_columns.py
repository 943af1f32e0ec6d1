"""Avro records as columns: any writer schema, and no bytes that crash."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest

from forebay.base.errors import CorruptData, UnsupportedOperation
from forebay.paimon.format import avro
from forebay.paimon.format.avro_columns import AvroField, compile_program, read_columns
from forebay.paimon.format.manifest_codec import read_manifest_list
from forebay.paimon.format.manifest_rows import read_manifest_rows

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*/manifest/manifest-*"))

WANTED = (
    AvroField("id", "number"),
    AvroField("name", "text", required=False),
    AvroField("inner.data", "bytes", required=False),
    AvroField("inner.counts", "numbers", required=False),
    AvroField("names", "texts", required=False),
)


def record(*fields: tuple[str, Any], name: str = "r") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def written(schema: dict[str, Any], records: list[dict[str, Any]], codec: str = "deflate") -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, schema, records, codec=codec, sync_interval=64)
    return out.getvalue()


def values(data: bytes) -> list[tuple[Any, ...]]:
    records = read_columns(data, WANTED)
    return [
        (
            records.number_at(i, 0),
            records.text_at(i, 1),
            records.bytes_at(i, 2),
            records.array_at(i, 3),
            records.array_at(i, 4, True),
        )
        for i in range(records.count)
    ]


INNER = record(("data", "bytes"), ("counts", array("long")), name="inner_record")
PLAIN = record(("id", "long"), ("name", "string"), ("inner", INNER), ("names", array("string")))
ROWS = [
    {"id": i, "name": f"n{i}" * 30, "inner": {"data": bytes([i]), "counts": [i, -i]}, "names": ["a"] * (i % 3)}
    for i in range(-5, 20)
    if i >= 0
]
EXPECTED = [
    (r["id"], r["name"], r["inner"]["data"], tuple(r["inner"]["counts"]), tuple(r["names"]))  # type: ignore[index]
    for r in ROWS
]


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_wanted_fields_of_several_blocks_are_found(codec: str) -> None:
    data = written(PLAIN, ROWS, codec)
    assert len(avro.read_container(data).blocks) > 5
    assert values(data) == EXPECTED


def test_a_nullable_field_may_be_null_and_its_branches_in_any_order() -> None:
    inner = record(("data", ["bytes", "null"]), ("counts", ["null", array(["null", "long"])]), name="i")
    schema = record(("id", ["int", "null"]), ("name", ["null", "string"]), ("inner", ["null", inner]))
    rows: list[dict[str, Any]] = [
        {"id": 1, "name": None, "inner": None},
        {"id": 2, "name": "two", "inner": {"data": None, "counts": [1, None]}},
        {"id": 3, "name": None, "inner": {"data": b"x", "counts": None}},
    ]
    assert values(written(schema, rows)) == [
        (1, None, None, None, None),
        (2, "two", None, (1, None), None),
        (3, None, b"x", None, None),
    ]


def test_fields_that_are_not_wanted_are_passed_over_whatever_they_are() -> None:
    tree = record(("left", ["null", "tree"]), ("label", "string"), name="tree")
    extra: list[tuple[str, Any, Any]] = [
        ("flag", "boolean", True),
        ("ratio", "double", 0.5),
        ("small", "float", 0.5),
        ("nothing", "null", None),
        ("code", {"type": "fixed", "name": "four", "size": 4}, b"1234"),
        ("again", ["null", "four"], b"5678"),
        ("suit", {"type": "enum", "name": "suits", "symbols": ["HEARTS", "SPADES"]}, "SPADES"),
        ("map", {"type": "map", "values": array("double")}, {"k": [0.5], "l": []}),
        ("rows", array(record(("x", "int"), ("y", ["null", "string"]), name="pair")), [{"x": 1, "y": None}] * 3),
        ("tree", tree, {"left": {"left": None, "label": "l"}, "label": "root"}),
        ("nulls", array("null"), [None] * 1000),
        ("time", {"type": "long", "logicalType": "timestamp-millis"}, 7),
    ]
    fields: list[tuple[str, Any]] = []
    for i, field in enumerate(PLAIN["fields"]):
        fields += [(name, kind) for name, kind, _ in extra[i * 3 : i * 3 + 3]]
        fields.append((field["name"], field["type"]))
    rows = [{**row, **{name: value for name, _, value in extra}} for row in ROWS]
    assert values(written(record(*fields), rows)) == EXPECTED


def test_a_type_may_be_defined_once_and_named_later() -> None:
    wanted = (AvroField("a.n", "number"), AvroField("b.n", "number"))
    for second in ("space.pair", "pair"):
        pair = {**record(("n", "long"), ("t", "string"), name="pair"), "namespace": "space"}
        schema = {**record(("a", pair), ("b", second)), "namespace": "space"}
        data = written(schema, [{"a": {"n": 1, "t": "x"}, "b": {"n": 2, "t": "y"}}])
        assert read_columns(data, wanted).values.tolist() == [[1, 2]]


def test_blocks_of_an_array_may_say_their_size() -> None:
    schema = json.dumps(record(("id", "long"), ("names", array("string")), ("name", "string"))).encode()
    names = b"\x03\x06\x02a\x02b" + b"\x02\x02c" + b"\x00"  # two items in 3 (of 4) bytes; one; the end
    data = avro.write_container(schema, [(1, b"\x0a" + names + b"\x02x")], "none")
    assert values(data) == [(5, "x", None, None, ("a", "b", "c"))]


def test_single_items_of_arrays_and_bytes_come_as_columns() -> None:
    records = read_columns(written(PLAIN, ROWS), WANTED)
    rows = np.array([3, 0, 7])
    assert records.item(rows, 3, 1, -9).tolist() == [-3, 0, -7]
    assert records.item(rows, 3, 2, -9).tolist() == [-9, -9, -9]
    assert records.binary(rows, 2).to_pylist() == [b"\x03", b"\x00", b"\x07"]
    assert records.binary(rows, 1, skip=59, instead=b"-").to_pylist() == [b"3", b"0", b"7"]
    assert records.binary(rows, 2, skip=1, instead=b"-").to_pylist() == [b"-"] * 3
    with pytest.raises(IndexError):
        records.binary(np.array([len(ROWS)]), 2)
    with pytest.raises(IndexError):
        records.item(np.array([-1]), 3, 0, 0)
    with pytest.raises(IndexError):
        records.array_at(0, 1)


@pytest.mark.parametrize(
    ("schema", "rows", "named"),
    [
        (record(("name", "string")), [{"name": "x"}], "lack the field id"),
        (record(("id", ["null", "long"])), [{"id": None}], "null that must not be"),
        (record(("id", "string")), [{"id": "x"}], "not a number"),
        (record(("id", ["long", "string"])), [{"id": "x"}], "several types"),
        (record(("id", "long"), ("inner", "long")), [{"id": 1, "inner": 1}], "inner of an Avro file is no record"),
        (record(("id", "long"), ("names", "string")), [{"id": 1, "names": "x"}], "not an array"),
        (record(("id", "long"), ("names", array("long"))), [{"id": 1, "names": [1]}], "not a text"),
    ],
)
def test_a_file_that_does_not_have_what_is_wanted_is_corrupt(
    schema: dict[str, Any], rows: list[dict[str, Any]], named: str
) -> None:
    with pytest.raises(CorruptData, match=named):
        read_columns(written(schema, rows), WANTED)


@pytest.mark.parametrize(
    "schema",
    [
        b"",
        b"[]",
        b'"long"',
        b'{"type": "record", "name": "r"}',
        b'{"type": "record", "name": "r", "fields": [{"name": "id", "type": "nowhere"}]}',
        b'{"type": "record", "name": "r", "fields": [{"name": [], "type": "long"}]}',
        b'{"type": "record", "name": "r", "fields": [{"name": "id", "type": {"type": "array"}}]}',
        b'{"type": "record", "name": "r", "fields": [{"name":"x", "type": {"type": "fixed", "name": "", "size": -1}}]}',
        b'{"type": "record", "name": "r", "fields": [{"name": "id", "type": {"type": ["null", "long"]}}]}',
        b'{"type": "record", "name": "r", "fields": [{"name": "x", "type": ' + b'{"type":' * 5000,
        b'{"type": "record", "name": "r", "fields": [{"name": "x", "type": ' + b"[" * 500 + b"]" * 500 + b"}]}",
    ],
)
def test_a_malformed_schema_is_corrupt(schema: bytes) -> None:
    with pytest.raises(CorruptData):
        compile_program(schema, WANTED)


def test_a_type_may_stand_inside_of_types() -> None:
    schema = record(("id", {"type": {"type": {"type": "long"}}}))
    data = avro.write_container(json.dumps(schema).encode(), [(1, b"\x08")], "none")
    assert read_columns(data, (AvroField("id", "number"),)).values.tolist() == [[4]]


def test_types_that_name_each_other_twice_are_compiled_once() -> None:
    kind: Any = "long"
    for i in range(40):  # written out, these would be 2 ** 40 fields
        kind = record(("a", kind), ("b", f"t{i - 1}" if i else "long"), name=f"t{i}")
    schema = record(("id", "long"), ("deep", ["null", kind]))
    data = avro.write_container(json.dumps(schema).encode(), [(1, b"\x08\x00")], "none")
    assert read_columns(data, (AvroField("id", "number"),)).values.tolist() == [[4]]


def test_numbers_outside_their_type_are_corrupt() -> None:
    for kind, body in (("int", b"\x80\x80\x80\x80\x10"), ("long", b"\xff" * 9 + b"\x02"), ("boolean", b"\x02")):
        data = avro.write_container(json.dumps(record(("id", kind))).encode(), [(1, body)], "none")
        with pytest.raises(CorruptData):
            read_columns(data, (AvroField("id", "number"),))


def test_a_record_nested_without_end_is_corrupt() -> None:
    schema = record(("id", "long"), ("x", ["null", "r"]))
    data = avro.write_container(json.dumps(schema).encode(), [(1, b"\x02\x02" * 100 + b"\x02\x00")], "none")
    with pytest.raises(CorruptData, match="deeply"):
        read_columns(data, (AvroField("id", "number"),))


@pytest.mark.parametrize("count", [0, 2, 1 << 40])
def test_a_block_with_another_number_of_records_is_corrupt(count: int) -> None:
    data = avro.write_container(json.dumps(record(("id", "long"))).encode(), [(count, b"\x02")], "none")
    with pytest.raises(CorruptData):
        read_columns(data, (AvroField("id", "number"),))


def damaged(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        yield data[:at]
        for bits in (1 << at % 8, 0xFF):
            yield data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]


def survives(data: bytes, is_list: bool) -> None:
    """Read all of a manifest or a list: any outcome but an error of another kind (or none at all, in a crash)."""
    try:
        if is_list:
            read_manifest_list(data)
            return
        rows = read_manifest_rows(data)
        rows.entries()
        for keys in (True, False):
            rows.least(rows.all, keys=keys)
            rows.null_counts(rows.all, 3, keys=keys)
            rows.by_statistics(rows.all, keys=keys)
        rows.bucket_counts()
    except (CorruptData, UnsupportedOperation):
        return


@pytest.mark.parametrize("path", GOLDEN[::2], ids=lambda p: f"{p.parent.parent.name}-{p.name[:16]}")
@pytest.mark.one_in(2)
def test_damaged_manifests_are_corrupt_or_read_but_never_worse(path: Path) -> None:
    data = path.read_bytes()
    is_list = "manifest-list" in path.name
    container = avro.read_container(data)
    for bad in damaged(data):
        survives(bad, is_list)
    # Compression hides most damage; here none does.
    blocks = [(n, container.body[start:end]) for n, start, end in container.blocks]
    for count, body in blocks:
        for bad in damaged(body):
            survives(avro.write_container(container.schema, [(count, bad)], "none"), is_list)
