"""Snapshot files (`snapshot/snapshot-<id>`), tags and long-lived changelogs as JSON."""

from __future__ import annotations

import json
from typing import Any

from forebay.base.errors import CorruptData
from forebay.paimon.format.snapshot import CommitKind, Snapshot

_REQUIRED = (
    ("id", "id", int),
    ("schemaId", "schema_id", int),
    ("baseManifestList", "base_manifest_list", str),
    ("deltaManifestList", "delta_manifest_list", str),
    ("commitUser", "commit_user", str),
    ("commitIdentifier", "commit_identifier", int),
    ("commitKind", "commit_kind", CommitKind),
    ("timeMillis", "time_millis", int),
)
_OPTIONAL = (
    ("baseManifestListSize", "base_manifest_list_size", int),
    ("deltaManifestListSize", "delta_manifest_list_size", int),
    ("changelogManifestList", "changelog_manifest_list", str),
    ("changelogManifestListSize", "changelog_manifest_list_size", int),
    ("changelogRecordCount", "changelog_record_count", int),
    ("indexManifest", "index_manifest", str),
    ("watermark", "watermark", int),
    ("statistics", "statistics", str),
    ("properties", "properties", dict),
    ("nextRowId", "next_row_id", int),
    ("uuid", "uuid", str),
    ("writerVersion", "writer_version", str),
    ("operation", "operation", str),
)
_ORDER = (
    "version", "uuid", "id", "schemaId", "baseManifestList", "baseManifestListSize", "deltaManifestList",
    "deltaManifestListSize", "changelogManifestList", "changelogManifestListSize", "indexManifest", "commitUser",
    "writerVersion", "commitIdentifier", "commitKind", "timeMillis", "totalRecordCount", "deltaRecordCount",
    "changelogRecordCount", "watermark", "statistics", "properties", "nextRowId", "operation",
)  # fmt: skip
_NAMES = {json_name: name for json_name, name, _ in (*_REQUIRED, *_OPTIONAL)} | {
    "version": "version",
    "totalRecordCount": "total_record_count",
    "deltaRecordCount": "delta_record_count",
}


def parse_snapshot(data: bytes | str) -> Snapshot:
    """The snapshot in a file. Unknown members are ignored. Raises `CorruptData`."""
    try:
        return snapshot_from_json(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CorruptData(f"this is not a snapshot file: {type(e).__name__} {e}") from e


def snapshot_from_json(node: dict[str, Any]) -> Snapshot:
    """The snapshot of a parsed JSON object. Raises the original error if a member is missing."""
    values: dict[str, Any] = {name: convert(node[json_name]) for json_name, name, convert in _REQUIRED}
    for json_name, name, convert in _OPTIONAL:
        if node.get(json_name) is not None:
            values[name] = convert(node[json_name])
    return Snapshot(
        **values,
        total_record_count=int(node.get("totalRecordCount") or 0),
        delta_record_count=int(node.get("deltaRecordCount") or 0),
        version=int(node.get("version") or 1),
    )


def snapshot_to_json(snapshot: Snapshot) -> dict[str, Any]:
    """The JSON object of `snapshot`, with members in Java's order, without those that are None."""
    values = ((name, getattr(snapshot, _NAMES[name])) for name in _ORDER)
    return {name: dict(v) if name == "properties" else v for name, v in values if v is not None}


def format_snapshot(snapshot: Snapshot) -> bytes:
    """The file of `snapshot`."""
    return json.dumps(snapshot_to_json(snapshot), indent=2, ensure_ascii=False).encode()
