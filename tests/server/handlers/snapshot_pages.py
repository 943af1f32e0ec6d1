"""Requests that open a table snapshot and read its pages."""

from __future__ import annotations

from typing import Any

from tests.server.raw_client import ApiKey, pb
from tests.server.running import Bench


def open_snapshot(bench: Bench, table_id: int, **fields: Any) -> Any:
    return bench.tablet.call(ApiKey.OPEN_TABLE_SNAPSHOT, pb.OpenTableSnapshotRequest(table_id=table_id, **fields))


def page_request(opened: Any, table_id: int, bucket: int = 0, size: int = 200, **fields: Any) -> pb.ScanKvRequest:
    request = pb.ScanKvRequest(table_snapshot_id=opened.table_snapshot_id, batch_size_bytes=size, **fields)
    request.bucket_scan_req.table_id = table_id
    request.bucket_scan_req.bucket_id = bucket
    return request
