"""Requests of a key-value scan: the first, the next, and any other."""

from __future__ import annotations

from typing import Any

from tests.server.raw_client import ApiKey, RawClient, pb


def open_request(
    table_id: int, bucket: int = 0, call: int | None = 0, size: int = 200, **target: Any
) -> pb.ScanKvRequest:
    request = pb.ScanKvRequest(batch_size_bytes=size)
    request.bucket_scan_req.table_id = table_id
    request.bucket_scan_req.bucket_id = bucket
    for field, value in target.items():
        setattr(request.bucket_scan_req, field, value)
    if call is not None:
        request.call_seq_id = call
    return request


def scan(client: RawClient, request: pb.ScanKvRequest) -> Any:
    return client.call(ApiKey.SCAN_KV, request)


def go_on(client: RawClient, scanner_id: bytes, call: int | None, size: int = 200) -> Any:
    request = pb.ScanKvRequest(scanner_id=scanner_id, batch_size_bytes=size)
    if call is not None:
        request.call_seq_id = call
    return scan(client, request)
