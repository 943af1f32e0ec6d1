"""A server that was restored from an older copy, beside a lake that is ahead of it (docs/how-to/back-up.md)."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import forebay.paimon
from forebay.base.errors import Conflict, InvalidRequest
from forebay.client.admin.lake import LakeTieringClient
from forebay.client.cluster.offsets import LATEST, list_offsets
from forebay.metadata.table import TableBucket
from forebay.tiering.now import tier_now
from tests.tiering.running import LakeCluster, lake_cluster, paimon_storage

SCHEMA = {"k": pa.int32()}


def append(cluster: LakeCluster, first: int, stop: int) -> None:
    cluster.connection.table("fluss.t").append([{"k": value} for value in range(first, stop)])


def test_a_lake_that_is_ahead_of_a_restored_server_is_refused_until_it_is_rolled_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    with lake_cluster(tmp_path, paimon_storage) as cluster:
        table = cluster.create("t", SCHEMA, buckets=1)
        append(cluster, 0, 3)
        known = cluster.tier(table).snapshot_id
    shutil.copytree(data, tmp_path / "copy")
    with lake_cluster(tmp_path, paimon_storage) as cluster:
        append(cluster, 3, 6)
        ahead = cluster.tier(cluster.connection.table("fluss.t")).snapshot_id
        assert ahead != known
        of_before = list_offsets(cluster.connection.cluster, table.info, [TableBucket(table.info.table_id, 0)], LATEST)
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "copy", data)
    with lake_cluster(tmp_path, paimon_storage) as cluster:
        table = cluster.connection.table("fluss.t")
        append(cluster, 100, 110)
        caplog.clear()
        (outcome,) = tier_now(cluster.connection, lake=cluster.lake)
        assert isinstance(outcome.error, Conflict)
        assert re.search(
            rf"snapshot {ahead}, which was tiered from logs of epoch.*to snapshot {known}.*back-up.md",
            str(outcome.error),
        )
        assert not [record for record in caplog.records if record.name.startswith("forebay.tiering")]
        # Nor does a round that was under way meanwhile end: its offsets are not of these logs.
        with pytest.raises(InvalidRequest, match="below offset 3 only"):
            LakeTieringClient(cluster.connection).prepare(table.info, of_before)
        lake = forebay.paimon.Catalog.open(str(tmp_path / "warehouse")).table("fluss.t")
        assert known is not None
        lake.rollback_to(known)
        cluster.tier(table)
        assert {row["k"] for row in cluster.check_complete(table)} == {0, 1, 2, *range(100, 110)}


def test_a_round_after_a_restore_goes_on_from_a_lake_of_the_same_time(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with lake_cluster(tmp_path, paimon_storage) as cluster:
        table = cluster.create("t", SCHEMA, buckets=1)
        append(cluster, 0, 3)
        cluster.tier(table)
    data.rename(tmp_path / "old")
    shutil.copytree(tmp_path / "old", data)
    with lake_cluster(tmp_path, paimon_storage) as cluster:
        append(cluster, 3, 5)
        table = cluster.connection.table("fluss.t")
        cluster.tier(table)
        assert len(cluster.check_complete(table)) == 5
