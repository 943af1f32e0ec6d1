"""Names and manifest of a remote log, as Apache Fluss has them (docs/format/remote_log.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from forebay.base.ambient import IdSource
from forebay.fs import names
from forebay.log.remote import RemoteLogSegment
from forebay.metadata.table import PhysicalTablePath, TableBucket

_VERSION = 1


def new_id(ids: IdSource) -> str:
    """A random id, in the form of a UUID."""
    token = ids.token_hex()
    return "-".join((token[:8], token[8:12], token[12:16], token[16:20], token[20:]))


def tablet_name(table: PhysicalTablePath, bucket: TableBucket) -> str:
    """The folder of a bucket's remote log, relative to the store."""
    return f"log/{names.bucket_parent_folder(table, bucket)}/{bucket.bucket}"


def manifest_name(tablet: str, manifest_id: str) -> str:
    """The name of a manifest of the remote log in the folder `tablet`."""
    return f"{tablet}/metadata/{manifest_id}.manifest"


def tablet_of_manifest(name: str) -> str:
    """The folder of the remote log that a manifest is of."""
    return name.rsplit("/", 2)[0]


def encode_manifest(table: PhysicalTablePath, bucket: TableBucket, segments: Sequence[RemoteLogSegment]) -> bytes:
    """The content of a manifest."""
    document: dict[str, Any] = {"version": _VERSION, "database": table.table.database, "table": table.table.table}
    if table.partition is not None:
        document["partition_name"] = table.partition
    document["table_id"] = bucket.table_id
    if bucket.partition_id is not None:
        document["partition_id"] = bucket.partition_id
    document["bucket_id"] = bucket.bucket
    document["remote_log_segments"] = [
        {
            "segment_id": each.segment_id,
            "start_offset": each.start_offset,
            "end_offset": each.end_offset,
            "max_timestamp": each.max_timestamp_ms,
            "size_in_bytes": each.size_bytes,
        }
        for each in segments
    ]
    return json.dumps(document, separators=(",", ":")).encode()
