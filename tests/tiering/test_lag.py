"""How far the lake is behind, measured at any time."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from forebay.base.ambient import ManualClock
from forebay.client.connection import Connection
from forebay.tiering.control import RoundControl
from forebay.tiering.lag import TableLag, table_lag
from tests.tiering.running import LakeCluster, lake_cluster, memory_storage

SCHEMA = {"k": pa.int32(), "p": pa.string()}


def test_the_lag_is_the_records_and_the_age_of_the_oldest_one_that_the_lake_has_not(tmp_path: Path) -> None:
    clock = ManualClock()
    with lake_cluster(tmp_path, memory_storage, clock=clock) as cluster:
        connection = Connection(cluster.connection.settings, clock=clock)
        table = cluster.create("t", SCHEMA, buckets=3, bucket_keys=["k"])
        assert table_lag(connection, table.path) == TableLag(table.path, None, 0, 0.0)
        table.append([{"k": k, "p": "a"} for k in range(10)])
        clock.advance(5)
        table.append([{"k": k, "p": "b"} for k in range(10)])
        clock.advance(2)
        assert table_lag(connection, table.path) == TableLag(table.path, None, 20, 7.0)
        snapshot = cluster.tier(table).snapshot_id
        assert table_lag(connection, table.path) == TableLag(table.path, snapshot, 0, 0.0)
        table.append([{"k": 1, "p": "c"}])
        clock.advance(3)
        assert table_lag(connection, table.path) == TableLag(table.path, snapshot, 1, 3.0)
        connection.close()


def test_partitions_that_were_never_tiered_count_and_changes_without_records_have_no_age(
    memory_lake: LakeCluster,
) -> None:
    table = memory_lake.create("t", SCHEMA, primary_key=["k", "p"], partition_keys=["p"], buckets=1)
    table.create_partition({"p": "x"})
    table.upsert([{"k": 1, "p": "x"}])
    assert table_lag(memory_lake.connection, table.path).records == 1
    memory_lake.tier(table, RoundControl())
    table.delete([{"k": 9, "p": "x"}])
    lag = table_lag(memory_lake.connection, table.path)
    assert (lag.records, lag.seconds) == (1, 0.0)
