"""Avro schemas of manifests, manifest lists and index manifests, equal to those of Java's converter.

A nullable type is a union with null and has the default null. Nested records are named by their path.
"""

from __future__ import annotations

from typing import Any

_ROOT = "org.apache.paimon.avro.generated.record"

Kind = str | list[Any] | dict[str, Any]


def _nullable(kind: Kind) -> list[Any]:
    return ["null", kind]


def _array(items: Kind) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _record(name: str, fields: list[tuple[str, Kind]]) -> dict[str, Any]:
    rendered: list[dict[str, Any]] = []
    for field_name, kind in fields:
        field: dict[str, Any] = {"name": field_name, "type": kind}
        if isinstance(kind, list):
            field["default"] = None
        rendered.append(field)
    return {"type": "record", "name": name, "fields": rendered}


def _stats(name: str) -> dict[str, Any]:
    counts = _nullable(_array(_nullable("long")))
    return _record(name, [("_MIN_VALUES", "bytes"), ("_MAX_VALUES", "bytes"), ("_NULL_COUNTS", counts)])


_FILE = f"{_ROOT}__FILE"
_DATA_FILE = _record(
    _FILE,
    [
        ("_FILE_NAME", "string"),
        ("_FILE_SIZE", "long"),
        ("_ROW_COUNT", "long"),
        ("_MIN_KEY", "bytes"),
        ("_MAX_KEY", "bytes"),
        ("_KEY_STATS", _stats(f"{_FILE}__KEY_STATS")),
        ("_VALUE_STATS", _stats(f"{_FILE}__VALUE_STATS")),
        ("_MIN_SEQUENCE_NUMBER", "long"),
        ("_MAX_SEQUENCE_NUMBER", "long"),
        ("_SCHEMA_ID", "long"),
        ("_LEVEL", "int"),
        ("_EXTRA_FILES", _array("string")),
        ("_CREATION_TIME", _nullable({"type": "long", "logicalType": "timestamp-millis"})),
        ("_DELETE_ROW_COUNT", _nullable("long")),
        ("_EMBEDDED_FILE_INDEX", _nullable("bytes")),
        ("_FILE_SOURCE", _nullable("int")),
        ("_VALUE_STATS_COLS", _nullable(_array("string"))),
        ("_EXTERNAL_PATH", _nullable("string")),
        ("_FIRST_ROW_ID", _nullable("long")),
        ("_WRITE_COLS", _nullable(_array("string"))),
        ("_WRITE_COLS_SEQUENCES", _nullable(_array("long"))),
    ],
)

MANIFEST_ENTRY = _record(
    _ROOT,
    [
        ("_VERSION", "int"),
        ("_KIND", "int"),
        ("_PARTITION", "bytes"),
        ("_BUCKET", "int"),
        ("_TOTAL_BUCKETS", "int"),
        ("_FILE", _DATA_FILE),
    ],
)

MANIFEST_FILE = _record(
    _ROOT,
    [
        ("_VERSION", "int"),
        ("_FILE_NAME", "string"),
        ("_FILE_SIZE", "long"),
        ("_NUM_ADDED_FILES", "long"),
        ("_NUM_DELETED_FILES", "long"),
        ("_PARTITION_STATS", _stats(f"{_ROOT}__PARTITION_STATS")),
        ("_SCHEMA_ID", "long"),
        ("_MIN_BUCKET", _nullable("int")),
        ("_MAX_BUCKET", _nullable("int")),
        ("_MIN_LEVEL", _nullable("int")),
        ("_MAX_LEVEL", _nullable("int")),
        ("_MIN_ROW_ID", _nullable("long")),
        ("_MAX_ROW_ID", _nullable("long")),
    ],
)

_DV_RANGE = _record(
    f"{_ROOT}__DELETIONS_VECTORS_RANGES",
    [("f0", "string"), ("f1", "int"), ("f2", "int"), ("_CARDINALITY", _nullable("long"))],
)
_GLOBAL_INDEX = _record(
    f"{_ROOT}__GLOBAL_INDEX",
    [
        ("_ROW_RANGE_START", "long"),
        ("_ROW_RANGE_END", "long"),
        ("_INDEX_FIELD_ID", "int"),
        ("_EXTRA_FIELD_IDS", _nullable(_array("int"))),
        ("_INDEX_META", _nullable("bytes")),
        ("_SOURCE_META", _nullable("bytes")),
    ],
)

INDEX_ENTRY = _record(
    _ROOT,
    [
        ("_VERSION", "int"),
        ("_KIND", "int"),
        ("_PARTITION", "bytes"),
        ("_BUCKET", "int"),
        ("_INDEX_TYPE", "string"),
        ("_FILE_NAME", "string"),
        ("_FILE_SIZE", "long"),
        ("_ROW_COUNT", "long"),
        ("_DELETIONS_VECTORS_RANGES", _nullable(_array(_nullable(_DV_RANGE)))),
        ("_EXTERNAL_PATH", _nullable("string")),
        ("_GLOBAL_INDEX", _nullable(_GLOBAL_INDEX)),
    ],
)
