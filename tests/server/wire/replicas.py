"""The open replica of a table's only bucket."""

from __future__ import annotations

from forebay.metadata.table import TableBucket
from forebay.server.storage.replica import BucketReplica
from tests.server.running import Bench


def replica_of(bench: Bench, table_id: int) -> BucketReplica:
    found = bench.server.server.context.replicas.opened(TableBucket(table_id, 0))
    assert found is not None
    return found
