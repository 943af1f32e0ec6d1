"""Types, schemas and snapshots as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from forebay.base.errors import CorruptData, InvalidRequest, UnsupportedOperation
from forebay.metadata import types
from forebay.metadata.types import DataType, RowField, TypeRoot
from forebay.paimon.format.schema import DataField, TableSchema
from forebay.paimon.format.schema_json import format_schema, highest_field_id, parse_schema
from forebay.paimon.format.snapshot import CommitKind, Snapshot
from forebay.paimon.format.snapshot_json import format_snapshot, parse_snapshot
from forebay.paimon.format.types_json import format_type, parse_type

CANONICAL: list[tuple[Any, DataType]] = [
    ("BOOLEAN", types.boolean()),
    ("TINYINT NOT NULL", types.tinyint().not_null()),
    ("INT", types.int_()),
    ("DOUBLE", types.double()),
    ("STRING", types.string()),
    ("VARCHAR(20)", DataType(TypeRoot.STRING, length=20)),
    ("CHAR(3) NOT NULL", types.char(3).not_null()),
    ("BYTES", types.bytes_()),
    ("VARBINARY(7)", DataType(TypeRoot.BYTES, length=7)),
    ("BINARY(4)", types.binary(4)),
    ("DECIMAL(10, 2)", types.decimal(10, 2)),
    ("DATE", types.date()),
    ("TIME(3)", types.time(3)),
    ("TIMESTAMP(9) NOT NULL", types.timestamp(9).not_null()),
    ("TIMESTAMP(3) WITH LOCAL TIME ZONE", types.timestamp_ltz(3)),
    ({"type": "ARRAY NOT NULL", "element": "INT"}, types.array(types.int_()).not_null()),
    (
        {"type": "MULTISET", "element": "STRING"},
        DataType(TypeRoot.MAP, key=types.string(), value=types.int_().not_null(), length=-1),
    ),
    (
        {"type": "MAP", "key": "STRING NOT NULL", "value": {"type": "ARRAY", "element": "BIGINT NOT NULL"}},
        types.map_(types.string(), types.array(types.bigint().not_null())),
    ),
    (
        {
            "type": "ROW",
            "fields": [
                {"id": 5, "name": "a b", "type": "INT"},
                {"id": 6, "name": "c", "type": "DATE", "description": "d"},
            ],
        },
        DataType(
            TypeRoot.ROW, fields=(RowField("a b", types.int_(), None, 5), RowField("c", types.date(), "d", 6))
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("json_type", "expected"), CANONICAL, ids=[str(t) for _, t in CANONICAL])
def test_a_type_is_read_and_written_as_java_writes_it(json_type: Any, expected: DataType) -> None:
    assert parse_type(json_type) == expected
    assert format_type(expected) == json_type


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("integer", "INT"),
        ("numeric(5)", "DECIMAL(5, 0)"),
        ("DEC", "DECIMAL(10, 0)"),
        ("DOUBLE PRECISION", "DOUBLE"),
        ("TIMESTAMP", "TIMESTAMP(6)"),
        ("TIMESTAMP_LTZ(9)", "TIMESTAMP(9) WITH LOCAL TIME ZONE"),
        ("TIMESTAMP(3) WITHOUT TIME ZONE NULL", "TIMESTAMP(3)"),
        ("VARCHAR(2147483647)", "STRING"),
        ("varchar", "VARCHAR(1)"),
    ],
)
def test_other_spellings_mean_the_same(text: str, canonical: str) -> None:
    assert format_type(parse_type(text)) == canonical


@pytest.mark.parametrize("text", ["INT(3)", "DECIMAL(50, 2)", "", "FOO", "INT NOT", "DATE WITH LOCAL TIME ZONE"])
def test_what_is_no_type_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptData):
        parse_type(text)


@pytest.mark.parametrize("json_type", ["VARIANT", "BLOB NOT NULL", {"type": "VECTOR", "element": "INT", "length": 3}])
def test_types_that_are_not_built_are_refused_by_name(json_type: Any) -> None:
    with pytest.raises(UnsupportedOperation, match=r"VARIANT|BLOB|VECTOR"):
        parse_type(json_type)


def test_nested_fields_without_ids_are_numbered_by_column() -> None:
    nested = {"type": "ROW", "fields": [{"name": "a", "type": "INT"}, {"name": "b", "type": "INT"}]}
    assert [f.field_id for f in parse_type(nested).fields] == [0, 1]
    with pytest.raises(InvalidRequest, match="has no id"):
        format_type(types.row(types.field("a", types.int_())))


SCHEMA = TableSchema(
    3,
    (DataField(0, "k", types.int_().not_null(), "the key"), DataField(7, "v", types.string(), default="x")),
    9,
    ("k",),
    (),
    {"bucket": "-1"},
    "a table",
    1234,
)


def test_a_schema_survives_the_round_trip() -> None:
    assert parse_schema(format_schema(SCHEMA)) == SCHEMA
    node = json.loads(format_schema(SCHEMA))
    assert list(node) == [
        "version", "id", "fields", "highestFieldId", "partitionKeys", "primaryKeys", "options", "comment", "timeMillis",
    ]  # fmt: skip
    assert node["fields"][1] == {"id": 7, "name": "v", "type": "STRING", "defaultValue": "x"}


def test_schemas_of_old_versions_get_the_defaults_of_their_time() -> None:
    node = json.loads(format_schema(replace(SCHEMA, options={})))
    for version, options in ((None, {"bucket": "1", "file.format": "orc"}), (2, {"file.format": "orc"}), (3, {})):
        assert parse_schema(
            json.dumps({**node, "version": version} if version else _without(node, "version"))
        ).options == (options)


def _without(node: dict[str, Any], name: str) -> dict[str, Any]:
    return {k: v for k, v in node.items() if k != name}


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"id": 1}', b"\xff"])
def test_a_damaged_schema_or_snapshot_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptData):
        parse_schema(data)
    with pytest.raises(CorruptData):
        parse_snapshot(data)


def test_the_highest_id_counts_nested_fields() -> None:
    row = DataType(TypeRoot.ROW, fields=(RowField("a", types.int_(), None, 11),))
    assert highest_field_id((DataField(1, "x", types.array(types.map_(types.int_(), row))),)) == 11
    assert highest_field_id(()) == -1


def test_a_snapshot_survives_the_round_trip_and_unknown_members_are_ignored() -> None:
    snapshot = Snapshot(
        5, 1, "b", "d", "u", 9, CommitKind.COMPACT, 77, 10, -2, 1, 2, "c", 3, 4, "i", 8, "s", {"a": "b"}, 0, "id", "w"
    )
    node = json.loads(format_snapshot(snapshot))
    assert "operation" not in node
    assert parse_snapshot(json.dumps({**node, "unheardOf": {}})) == snapshot
