"""Lakes that a connection keeps for its union reads, and what another process changes meanwhile."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay import col
from forebay.client.table import Table
from forebay.lake.source import LakeSource
from forebay.lakes.paimon_source import PaimonLakeSource
from forebay.metadata.table import TableDescriptor
from forebay.paimon.catalog.catalog import Catalog
from forebay.paimon.io.local import LocalFileIO
from forebay.unionread.open_lakes import LAKES_KEPT, lake_of
from forebay.unionread.planning import plan_union
from tests.unionread.world import ICEBERG, PAIMON, World, compact, world

COLUMNS = {"id": "INT", "v": "STRING"}
ROWS = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]


@pytest.fixture(scope="module", params=[PAIMON, ICEBERG])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp(request.param), request.param) as running:
        yield running


@pytest.fixture(scope="module")
def paimon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("paimon"), PAIMON) as running:
        yield running


def tiered(lake: World) -> Table:
    table = lake.create(COLUMNS, primary_key="id")
    table.upsert(ROWS)
    lake.tier(table)
    return table


def source_of(table: Table) -> LakeSource:
    side = plan_union(table).reader.lake
    assert side is not None
    return side.source


def ids(table: Table) -> list[int]:
    found: list[int] = sorted(table.scan(["id"], source="union").to_arrow().column("id").to_pylist())
    return found


def test_a_connection_opens_a_lake_once_and_others_open_their_own(lake: World) -> None:
    table = tiered(lake)
    kept = lake_of(table)
    assert lake_of(lake.connection.table(str(table.path))) is kept
    assert source_of(table) is source_of(table)
    address = lake.connection.settings.bootstrap_servers[0]
    with forebay.connect(str(address)) as other:
        assert lake_of(other.table(str(table.path))) is not kept


def test_a_plan_sees_what_was_written_and_tiered_since_the_last_one(lake: World) -> None:
    table = tiered(lake)
    assert ids(table) == [1, 2]
    table.upsert([{"id": 3, "v": "c"}])
    assert ids(table) == [1, 2, 3]
    lake.tier(table)
    assert ids(table) == [1, 2, 3]
    table.delete([{"id": 1}])
    compact(lake, table)
    assert ids(table) == [2, 3]


def test_a_plan_sees_a_snapshot_that_another_process_has_expired(lake: World) -> None:
    table = tiered(lake)
    assert plan_union(table).facts.expired_snapshot_id is None
    known = lake.admin.lake_snapshot(table.path).snapshot_id
    compact(lake, table, expire=True)
    table.upsert([{"id": 3, "v": "c"}])
    lake.commit_to_lake(table)
    compact(lake, table, expire=True)
    assert plan_union(table).facts.expired_snapshot_id == known
    assert ids(table) == [1, 2, 3]


def test_a_plan_sees_a_table_that_was_dropped_and_recreated(lake: World) -> None:
    table = tiered(lake)
    assert ids(table) == [1, 2]
    path = str(table.path)
    lake.connection.drop_table(path)
    if lake.lake == PAIMON:
        Catalog.open(lake_of(table).options).drop_table(path)  # type: ignore[attr-defined]
    else:
        from forebay.lakes.iceberg_tables import opened

        with opened(lake_of(table).options) as catalog:  # type: ignore[attr-defined]
            catalog.drop_table(path)
    options = {"table.datalake.enabled": "true"}
    again = lake.connection.create_table(
        path, {"id": "INT", "w": "BIGINT"}, primary_key="id", buckets=1, options=options
    )
    again.upsert([{"id": 7, "w": 70}])
    lake.tier(again)
    assert again.scan(source="union").to_arrow().to_pylist() == [{"id": 7, "w": 70}]


def test_a_plan_sees_a_column_that_another_process_adds(lake: World) -> None:
    table = tiered(lake)
    assert ids(table) == [1, 2]
    changed = table.alter(add_columns={"w": "INT"})
    changed.upsert([{"id": 3, "v": "c", "w": 9}])
    lake.tier(changed)
    rows = changed.scan(source="union").to_arrow().sort_by("id").to_pylist()
    assert [row["w"] for row in rows] == [None, None, 9]


def test_a_plan_of_the_same_snapshot_reads_no_manifests(paimon: World, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tiered(paimon)
    first = plan_union(table, filter=col("id") > 1)
    names: list[str] = []
    plain = LocalFileIO.read

    def noted(self: LocalFileIO, path: str) -> bytes:
        names.append(path.rpartition("/")[2].partition("-")[0])
        return plain(self, path)

    monkeypatch.setattr(LocalFileIO, "read", noted)
    again = plan_union(table, filter=col("id") > 1)
    assert again.splits == first.splits
    assert set(names) == {"schema", "snapshot"}
    plan_union(table, filter=col("id") > 0)
    assert "manifest" not in names, "what was read for another filter serves this one, too"


def test_other_options_of_the_lake_open_another_one(paimon: World, tmp_path: Path) -> None:
    table = tiered(paimon)
    kept = lake_of(table)
    descriptor: TableDescriptor = table.info.descriptor
    name = "table.datalake.paimon.warehouse"
    moved = replace(descriptor, properties={**descriptor.properties, name: str(tmp_path)})
    assert name in descriptor.properties
    other = lake_of(Table(table.connection, replace(table.info, descriptor=moved)))
    assert other is not kept
    assert other.options["warehouse"] == str(tmp_path)  # type: ignore[attr-defined]
    assert lake_of(table) is kept
    address, secret = str(paimon.connection.settings.bootstrap_servers[0]), {"s3.secret-key": "new"}
    with forebay.connect(address, lake_options=secret) as connection:
        assert lake_of(connection.table(str(table.path))).options["s3.secret-key"] == "new"  # type: ignore[attr-defined]


def test_a_connection_keeps_so_many_lakes_and_no_more(paimon: World) -> None:
    table = tiered(paimon)
    kept, descriptor = lake_of(table), table.info.descriptor

    def opened(number: int) -> object:
        properties = {**descriptor.properties, "table.datalake.paimon.number": str(number)}
        return lake_of(
            Table(table.connection, replace(table.info, descriptor=replace(descriptor, properties=properties)))
        )

    for number in range(LAKES_KEPT - 1):
        opened(number)
    assert lake_of(table) is kept
    for number in range(LAKES_KEPT):
        opened(number)
    assert lake_of(table) is not kept


def test_lakes_go_with_their_connection(paimon: World) -> None:
    table = tiered(paimon)
    address = str(paimon.connection.settings.bootstrap_servers[0])
    with forebay.connect(address) as connection:
        held = weakref.ref(lake_of(connection.table(str(table.path))))
        assert held() is not None
    del connection
    gc.collect()
    assert held() is None


def test_threads_of_one_connection_plan_alike(lake: World) -> None:
    table = tiered(lake)
    with ThreadPoolExecutor(4) as pool:
        plans = list(pool.map(lambda _: plan_union(lake.connection.table(str(table.path))), range(12)))
    assert all(plan.splits == plans[0].splits for plan in plans)


def test_a_handle_that_is_stale_reads_the_columns_that_it_has(paimon: World) -> None:
    table = tiered(paimon)
    source = source_of(table)
    assert isinstance(source, PaimonLakeSource)
    changed = table.alter(add_columns={"w": "INT"})
    assert source_of(changed) is not source
    assert table.scan(source="union").to_arrow().schema.names == ["id", "v"]
    assert changed.scan(source="union").to_arrow().schema.field("w").type == pa.int32()
