"""Snapshots of key-value state: ours opened by the Java client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("fluss", reason="pyfluss has no wheel for this Python")

import java_client

import forebay
from forebay.inprocess import EmbeddedConnection
from forebay.metadata.table import TableBucket
from tests.patience import PATIENCE

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(600)]

BUCKETS = 2


@pytest.fixture(params=["hlog", "lmdb"])
def conn(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedConnection]:
    settings = {
        "store": str(tmp_path / "store"), "store.interval": "20 ms", "store.client-access": "direct",
        "kv.engine": request.param,
    }  # fmt: skip
    with forebay.embedded(tmp_path / "data", settings=settings) as conn:
        yield conn


def snapshot(conn: EmbeddedConnection, table: forebay.Table) -> None:
    """Let the server write checkpoints, and make snapshots of them."""
    server = conn.server.server
    for bucket in range(BUCKETS):
        with server.context.replicas.using(TableBucket(table.info.table_id, bucket)) as replica:
            replica.checkpoint_if_grown(1)
    assert server._journal is not None
    assert server._journal.wait_until_stored(PATIENCE)
    assert server._tiering is not None
    server._tiering.run()


@pytest.mark.parametrize("kv_format", ["compacted", "indexed"])
def test_the_java_client_downloads_a_snapshot_and_goes_on_in_the_log(conn: EmbeddedConnection, kv_format: str) -> None:
    table = conn.create_table(
        "fluss.kv", {"id": "BIGINT", "v": "STRING", "x": "DOUBLE"}, primary_key="id", buckets=BUCKETS,
        options={"forebay.kv.snapshot-files": "rocksdb", "table.kv.format": kv_format},
    )  # fmt: skip
    numbers, texts = range(3000), [f"row {n}" if n % 7 else None for n in range(3000)]
    table.upsert(pa.table({"id": numbers, "v": texts, "x": [n / 4 for n in numbers]}))
    table.delete([{"id": n} for n in range(0, 3000, 10)])
    snapshot(conn, table)
    expected = sorted(list(row.values()) for row in table.scan().to_arrow().to_pylist())
    table.upsert([{"id": 1, "v": "later", "x": 0.0}])
    found = java_client.read_snapshots(conn.bootstrap_servers, "fluss", "kv")
    assert sorted(row for _, rows in found for row in rows) == expected
    ends = conn.admin.list_offsets("fluss.kv")
    assert sum(ends.values()) == sum(offset for offset, _ in found) + 2  # the row that came later: before and after
