"""What tests of short requests look at and send."""

from __future__ import annotations

from forebay.metadata.table import TableBucket
from forebay.server.storage.replica import BucketReplica
from tests.server.raw_client import pb
from tests.server.running import Bench


def replica_of(bench: Bench, table_id: int) -> BucketReplica:
    """The open replica of a table's only bucket."""
    found = bench.server.server.context.replicas.opened(TableBucket(table_id, 0))
    assert found is not None
    return found


def open_bytes(bench: Bench) -> int:
    return bench.server.server.connections.memory_pools.requests.used


def produce(table_id: int, records: bytes, *, timeout_ms: int = 10_000) -> pb.ProduceLogRequest:
    request = pb.ProduceLogRequest(acks=-1, table_id=table_id, timeout_ms=timeout_ms)
    request.buckets_req.add(bucket_id=0, records=records)
    return request
