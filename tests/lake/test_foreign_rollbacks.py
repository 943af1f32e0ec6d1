"""Java Paimon rolls tiered tables back, and commits on top: union reads and rounds lose no row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.lakes.paimon import PaimonLakeStorage
from forebay.paimon.catalog.catalog import Catalog
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.testing.lake_rounds import in_order
from forebay.tiering.repair import lake_state
from tests.paimon.foreign.conftest import JavaTableOf, java, java_table
from tests.paimon.lake import new_catalog, put, stream_of
from tests.tiering.running import LakeCluster, lake_cluster, paimon_storage

__all__ = ["java", "java_table"]
pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]
SCHEMA = {"k": "INT", "v": "STRING"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LakeCluster]:
    with lake_cluster(tmp_path, paimon_storage) as running:
        yield running


@pytest.mark.parametrize(
    ("keyed", "compacted"), [(False, False), (True, False), (True, True)], ids=["log", "keyed", "keyed, compacted"]
)
def test_rows_that_java_has_undone_are_read_and_come_into_the_lake_again(
    cluster: LakeCluster, java_table: JavaTableOf, keyed: bool, compacted: bool
) -> None:
    more = {"primary_key": ["k"]} if keyed else {"bucket_keys": ["k"]}
    table = cluster.create("t", SCHEMA, buckets=1, **more)
    write = table.upsert if keyed else table.append
    for keys in ([1, 2], [2, 3, 4]):
        write([{"k": k, "v": f"{k} of {keys}"} for k in keys])
        cluster.tier(table)
    write([{"k": 5, "v": "in the log"}])
    storage = cluster.storage
    assert isinstance(storage, PaimonLakeStorage)
    catalog = Catalog.open(storage.options)
    assert isinstance(catalog, FileSystemCatalog)
    theirs = java_table(catalog, str(table.path))
    theirs.ask("rollback", snapshot=1)
    if compacted:
        theirs.ask("compact", full=True)  # snapshot 2, which the server knows as its own, is Java's now
        assert catalog.table(str(table.path)).context.snapshots.latest_id() == 2
    assert lake_state(cluster.connection, table.path, cluster.lake).state == "rolled back"
    expected = in_order(cluster.connection.table(table.path).scan().to_arrow().to_pylist())
    scan = cluster.connection.table(table.path).scan(source="union")
    assert in_order(scan.to_arrow().to_pylist()) == expected
    assert "snapshot 2 was undone by a rollback of the lake table, so snapshot 1 is read" in scan.explain()
    assert cluster.tier(table).lag_records == 0
    assert cluster.check_complete(table) == expected
    assert sorted(row[:2] for row in theirs.rows()) == sorted([row["k"], row["v"]] for row in expected)


def test_java_reads_and_rewrites_the_files_of_our_consumers_and_its_rollback_leaves_them(
    tmp_path: Path, java_table: JavaTableOf
) -> None:
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", {"id": "INT"}, primary_key="id", options={"bucket": "1"})
    reader = table.with_options({"consumer-id": "job"})
    for i in range(3):
        put(table, [{"id": i}])
    assert sum(batch.num_rows for batch in stream_of(reader, ["id"], follow=False)) == 3
    path = f"{table.context.paths.root}/consumer/consumer-job"
    assert set(json.loads(table.context.io.read(path))) == {"nextSnapshot", "forebay.passed"}
    theirs = java_table(catalog, "db.t")
    [listed] = theirs.system("consumers")
    assert (listed["consumer_id"], listed["next_snapshot_id"]) == ("job", 4)
    before = table.context.io.read(path)
    theirs.ask("rollback", snapshot=1)
    assert table.context.io.read(path) == before
