"""Our tiering service against a real Fluss cluster with a Paimon lake: the lake tables equal the cluster's tables."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from exams_cache import ExamUnavailable
from fluss_cluster import RealFluss, paimon_lake

import forebay
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.lake.formats import create_lake_storage
from forebay.testing.lake_rounds import Row, TieredTable, in_order
from forebay.tiering.now import tier_now
from forebay.tiering.service import TieringService
from tests.patience import PATIENCE

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

SCHEMA = {"k": pa.int32(), "p": pa.string(), "v": pa.string()}
PROPERTIES = {"table.datalake.enabled": "true", "table.datalake.freshness": "1 s"}


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    real = RealFluss(lake=paimon_lake(tmp_path / "lake"))
    try:
        real.start()
    except ExamUnavailable as reason:
        pytest.skip(f"no real Fluss cluster with a lake here: {reason}")
    try:
        with (
            warnings.catch_warnings(),
            forebay.connect(real.bootstrap_servers, request_timeout=f"{PATIENCE:g} s") as opened,
        ):
            warnings.simplefilter("ignore", RuntimeWarning)  # no ScanKv in Fluss 0.9
            yield opened
    finally:
        real.stop()


def make(connection: Connection, name: str, *, keyed: bool, partitioned: bool) -> Table:
    path = f"fluss.{name}"
    key = ["k", "p"] if partitioned else ["k"]
    connection.create_table(
        path,
        SCHEMA,
        primary_key=key if keyed else [],
        partition_keys=["p"] if partitioned else [],
        bucket_keys=["k"],
        buckets=2,
        options=PROPERTIES,
    )
    for partition in ("x", "y") if partitioned else ():
        connection.table(path).create_partition({"p": partition})
    return connection.table(path)


def write(table: Table, *keys: int) -> None:
    data = [{"k": k, "p": "xy"[k % 2], "v": f"value {k}"} for k in keys]
    (table.upsert if table.has_primary_key else table.append)(data)


def rows_of(connection: Connection, table: Table) -> tuple[list[Row], list[Row]]:
    """The lake's rows, and the cluster's."""
    snapshot = connection.admin.lake_snapshot(table.path, readable=False)
    storage = create_lake_storage("paimon", table.info.lake_options())
    return (
        TieredTable(storage, table.info, snapshot.snapshot_id).read(),
        in_order(table.scan().to_arrow().to_pylist()),
    )


def test_tables_of_a_real_cluster_are_tiered_by_hand_and_by_the_service(connection: Connection) -> None:
    tables = [
        make(connection, f"t{int(keyed)}{int(partitioned)}", keyed=keyed, partitioned=partitioned)
        for keyed in (False, True)
        for partitioned in (False, True)
    ]
    for table in tables:
        write(table, *range(20))
    outcomes = tier_now(connection)
    assert [(outcome.path, outcome.error) for outcome in outcomes] == [(table.path, None) for table in tables]
    for table in tables:
        in_lake, in_stream = rows_of(connection, table)
        assert len(in_lake) == 20
        assert in_lake == in_stream

    for table in tables:
        write(table, 5, 100)
        if table.has_primary_key:
            keys = {"k": 2, "p": "x"}
            table.delete([{name: keys[name] for name in table.schema.primary_key}])
    with TieringService(connection, poll_seconds=0.1) as service:
        deadline = time.monotonic() + 120
        while sum(status.rows > 0 for status in service.status().tables) < len(tables):
            assert time.monotonic() < deadline, service.status()
            time.sleep(0.1)
        assert service.status().failures == 0
    for table in tables:
        in_lake, in_stream = rows_of(connection, table)
        assert len(in_lake) == (20 if table.has_primary_key else 22)
        assert in_lake == in_stream
