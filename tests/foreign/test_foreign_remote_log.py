"""Log segments in a store: ours read by the Java client, and those of a real cluster by our client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("fluss", reason="pyfluss has no wheel for this Python")

import java_client
from exams_cache import ExamUnavailable
from fluss_cluster import RealFluss

import forebay
from forebay.inprocess import EmbeddedConnection
from forebay.metadata.table import TableBucket
from tests.patience import until

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 600
SMALL = {
    "log.segment.file-size": "2kb",
    "remote.log.task-interval-duration": "100 ms",
    "kv.checkpoint.records": "100",
    "kv.snapshot.interval": "100 ms",
}


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({
        "id": pa.array(numbers, pa.int64()),
        "v": [None if n % 7 == 0 else f"row {n} of the log" for n in numbers],
        "x": [n / 4 for n in numbers],
    })  # fmt: skip


def fill(table: forebay.Table, write: Callable[[pa.Table], Any]) -> None:
    """`ROWS` rows, twenty in a batch, so that there are many segments."""
    for first in range(0, ROWS, 20):
        write(rows(first, 20))


@pytest.fixture(params=["server", "direct"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedConnection]:
    """A server that moves its segments to a store, and reads them for its clients or names them."""
    settings = {**SMALL, "store": str(tmp_path / "store"), "store.interval": "20 ms", "store.segment-age": "1 d"}
    settings["store.client-access"] = request.param
    with forebay.embedded(tmp_path / "data", settings=settings) as conn:
        yield conn


def wait_until_moved(conn: EmbeddedConnection, table: forebay.Table, buckets: int = 1) -> None:
    """Wait until the first segment of each bucket is in the store alone."""
    replicas = conn.server.server.context.replicas
    for number in range(buckets):
        with replicas.using(TableBucket(table.info.table_id, number)) as replica:
            log = replica.log
            until(lambda log=log: log.local_start_offset > 0, "segments move to the store")


def records(table: forebay.Table) -> list[Any]:
    """What `java_client.read_log` returns, as our client reads it from local segments."""
    changes = table.changes("earliest", "latest").to_arrow()
    kinds = {"insert": "+I", "update_before": "-U", "update_after": "+U", "delete": "-D"}
    if not table.info.has_primary_key:
        kinds = {"insert": "+A"}
    found = [
        [row["__bucket"], row["_log_offset"], kinds[row["_change_type"]],
         [row["id"], row["v"], row["x"]]]
        for row in changes.to_pylist()
    ]  # fmt: skip
    return sorted(found)


@pytest.mark.parametrize("log_format", ["arrow", "indexed", "compacted"])
def test_the_java_client_reads_our_segments_of_each_format(stored: EmbeddedConnection, log_format: str) -> None:
    columns = {"id": "BIGINT", "v": "STRING", "x": "DOUBLE"}
    table = stored.create_table("fluss.log", columns, buckets=2, options={"table.log.format": log_format})
    fill(table, table.append)
    expected = records(table)
    wait_until_moved(stored, table, 2)
    found = java_client.read_log(stored.bootstrap_servers, "fluss", "log", ROWS)
    assert sorted(found) == expected
    assert len(found) == ROWS


def test_the_java_client_reads_columns_and_changelogs_in_our_store(stored: EmbeddedConnection) -> None:
    columns = {"id": "BIGINT", "v": "STRING", "x": "DOUBLE"}
    log = stored.create_table("fluss.log", columns)
    fill(log, log.append)
    keyed = stored.create_table("fluss.keyed", columns, primary_key=["id"])
    fill(keyed, keyed.upsert)
    keyed.upsert(rows(0, 50).set_column(1, "v", pa.array(["changed"] * 50)))
    keyed.delete(rows(100, 20).select(["id"]))
    expected = records(keyed)
    wait_until_moved(stored, log)
    wait_until_moved(stored, keyed)
    address = stored.bootstrap_servers
    assert [record[3] for record in java_client.read_log(address, "fluss", "log", ROWS, [2, 0])] == [
        [n / 4, n] for n in range(ROWS)
    ]
    assert java_client.read_log(address, "fluss", "keyed", len(expected)) == expected


def test_our_client_reads_the_segments_of_a_real_cluster() -> None:
    settings = {
        "log.segment.file-size": "16kb",
        "remote.log.task-interval-duration": "1s",
        "kv.snapshot.interval": "1s",
    }
    cluster = RealFluss(settings=settings)
    with ExitStack() as inside:
        try:
            inside.enter_context(cluster)
        except ExamUnavailable as reason:
            pytest.skip(f"no real Fluss cluster here: {reason}")
        conn = inside.enter_context(forebay.connect(cluster.bootstrap_servers))
        columns = {"id": "BIGINT", "v": "STRING", "x": "DOUBLE"}
        table = conn.create_table("fluss.stored", columns, buckets=1, options={"table.log.tiered.local-segments": "1"})
        keyed = conn.create_table(
            "fluss.keyed", columns, primary_key=["id"], buckets=1, options={"table.log.tiered.local-segments": "1"}
        )
        for _ in range(10):
            fill(table, table.append)
            fill(keyed, keyed.upsert)
        for each, name in ((table, "fluss.stored"), (keyed, "fluss.keyed")):
            before = each.changes("earliest", "latest").to_arrow()

            def is_read_remotely(each: forebay.Table = each, name: str = name, before: pa.Table = before) -> bool:
                assert each.changes("earliest", "latest").to_arrow().equals(before)
                return conn.metrics()["readers"][name]["remote_segments"] > 0

            until(is_read_remotely, "segments move to the remote storage", 1.0)
            assert (
                each.changes({0: 4321}, "latest")
                .to_arrow()
                .equals(before.filter(pa.compute.greater_equal(before["_log_offset"], 4321)))
            )
