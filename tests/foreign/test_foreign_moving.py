"""Our lake tables on a released Fluss cluster: moved there, read and tiered by Fluss itself, and moved back.

Fluss's readers and its tiering service are those of 0.9.1 in Flink's mini cluster, with the Paimon of its pom.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from exams_cache import ExamUnavailable
from fluss_cluster import RealFluss, paimon_lake
from java_flink import FlussFlink

import forebay
from forebay.base.errors import AlreadyExists, UnsupportedOperation
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.metadata.table import TablePath
from forebay.moving import move_table
from forebay.testing.server import ServerProcess
from forebay.tiering.now import tier_now, tier_table
from tests.patience import PATIENCE

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(900)]

SCHEMA = {"k": pa.int32(), "p": pa.string(), "v": pa.string()}
LAKE = {"table.datalake.enabled": "true", "table.datalake.freshness": "1 s"}
KINDS = [(keyed, partitioned) for keyed in (False, True) for partitioned in (False, True)]


class Both:
    """Our server and a real cluster, with one lake."""

    def __init__(self, ours: Connection, real: Connection, bootstrap: str, lake: Path) -> None:
        self.ours, self.real, self.bootstrap, self.lake = ours, real, bootstrap, lake


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    lake = tmp_path / "lake"
    real = RealFluss(lake=paimon_lake(lake))
    try:
        real.start()
    except ExamUnavailable as reason:
        pytest.skip(f"no real Fluss cluster with a lake here: {reason}")
    settings = {"datalake.format": "paimon", "datalake.paimon.warehouse": str(lake)}
    server = ServerProcess(tmp_path / "ours", settings=settings)
    try:
        server.start()
        with (
            warnings.catch_warnings(),
            forebay.connect(server.bootstrap_servers) as ours,
            forebay.connect(real.bootstrap_servers, request_timeout=f"{PATIENCE:g} s") as theirs,
        ):
            warnings.simplefilter("ignore", RuntimeWarning)  # no ScanKv in Fluss 0.9
            yield Both(ours, theirs, real.bootstrap_servers, lake)
    finally:
        server.kill()
        real.stop()


@pytest.fixture
def flink(both: Both) -> Iterator[FlussFlink]:
    try:
        running = FlussFlink(both.bootstrap, both.lake)
    except ExamUnavailable as reason:
        pytest.skip(f"no Flink here: {reason}")
    with running:
        yield running


def make(connection: Connection, name: str, *, keyed: bool, partitioned: bool, **options: Any) -> Table:
    key = ["k", "p"] if partitioned else ["k"]
    connection.create_table(
        f"fluss.{name}",
        SCHEMA,
        primary_key=key if keyed else [],
        partition_keys=["p"] if partitioned else [],
        bucket_keys=["k"] if keyed else [],
        buckets=2,
        **{"options": LAKE, **options},
    )
    for partition in ("x", "y") if partitioned else ():
        connection.table(f"fluss.{name}").create_partition({"p": partition})
    return connection.table(f"fluss.{name}")


def write(table: Table, *keys: int, said: str = "value") -> None:
    data = [{"k": k, "p": "xy"[k % 2], "v": f"{said} {k}"} for k in keys]
    (table.upsert if table.has_primary_key else table.append)(data)


def delete(table: Table, key: int) -> None:
    if table.has_primary_key:
        row = {"k": key, "p": "xy"[key % 2]}
        table.delete([{name: row[name] for name in table.schema.primary_key}])


def rows_of(table: Table) -> list[str]:
    """The rows of lake and stream, as Flink writes them."""
    read = table.refresh().scan(source="union").to_arrow().to_pylist()
    return sorted(f"+I[{', '.join('null' if v is None else str(v) for v in row.values())}]" for row in read)


def wait_until_tiered(connection: Connection, path: TablePath) -> None:
    deadline = time.monotonic() + 120
    while not is_tiered(connection, path):
        assert time.monotonic() < deadline, f"Fluss does not tier {path}"
        time.sleep(0.3)


def is_tiered(connection: Connection, path: TablePath) -> bool:
    ends = connection.table(path).changes("earliest", "latest").stop_offsets or {}
    return dict(connection.admin.lake_snapshot(path).log_offsets) == {b: o for b, o in ends.items() if o}


def test_tables_move_to_a_real_cluster_that_reads_and_tiers_them_and_back(both: Both, flink: FlussFlink) -> None:
    paths = []
    for keyed, partitioned in KINDS:
        table = make(both.ours, f"t{int(keyed)}{int(partitioned)}", keyed=keyed, partitioned=partitioned)
        paths.append(table.path)
        write(table, *range(20))
        delete(table, 3)
        tier_table(both.ours, table.path)
        write(table, *range(15, 25), said="newer")  # the move has to tier these
    for path in paths:
        before = rows_of(both.ours.table(path))
        report = move_table(both.ours, both.real, path, drop_source=True)
        assert report.rows.rows == len(before)
        moved = both.real.table(path)
        assert rows_of(moved) == before
        assert flink.sql(f"SELECT * FROM {path}") == before

        write(moved, 30, 31, 16, said="theirs")
        delete(moved, 5)
        assert flink.sql(f"SELECT * FROM {path}") == rows_of(moved) != before
    flink.tier()
    for path in paths:
        wait_until_tiered(both.real, path)
        there = rows_of(both.real.table(path))
        assert flink.sql(f"SELECT * FROM {path}") == there
        assert [row for row in there if "theirs" in row]

    both.real.table(paths[0]).alter(add_columns=pa.schema([("more", pa.int64())]))
    wider = both.real.table(paths[0])
    wider.append([{"k": 50, "p": "x", "v": "wider", "more": 7}])
    wait_until_tiered(both.real, paths[0])
    assert len([r for r in flink.sql(f"SELECT * FROM {paths[0]}") if r == "+I[50, x, wider, 7]"]) == 1

    for path in paths:
        there = rows_of(both.real.table(path))
        report = move_table(both.real, both.ours, path, drop_source=True)
        assert report.rows.rows == len(there)
        back = both.ours.table(path)
        assert rows_of(back) == there
        write(back, 60, 61)
    assert [outcome.error for outcome in tier_now(both.ours, paths)] == [None] * len(paths)
    for path in paths:
        new = {"+I[60, x, value 60]", "+I[61, y, value 61]"}
        assert len([row for row in rows_of(both.ours.table(path)) if row.replace(", null]", "]") in new]) == 2


def test_tables_without_a_lake_move_there_and_back(both: Both) -> None:
    for keyed, partitioned in KINDS:
        name = f"plain{int(keyed)}{int(partitioned)}"
        table = make(both.ours, name, keyed=keyed, partitioned=partitioned, options={}, comment="kept")
        write(table, *range(50))
        delete(table, 7)
        before = sorted(map(repr, table.scan().to_arrow().to_pylist()))
        move_table(both.ours, both.real, table.path, drop_source=True)
        moved = both.real.table(table.path)
        assert moved.info.descriptor.comment == "kept"
        write(moved, 100)
        move_table(both.real, both.ours, table.path, drop_source=True)
        after = sorted(map(repr, both.ours.table(table.path).scan().to_arrow().to_pylist()))
        assert set(after) - set(before) == {repr({"k": 100, "p": "x", "v": "value 100"})}
        assert len(after) == len(before) + 1


def test_tables_of_a_real_cluster_are_read_and_tiered_by_us_and_it_continues_with_them(
    both: Both, flink: FlussFlink
) -> None:
    tables = [
        make(both.real, f"r{int(keyed)}{int(partitioned)}", keyed=keyed, partitioned=partitioned)
        for keyed, partitioned in KINDS
    ]
    for table in tables:
        write(table, *range(10))
    assert [outcome.error for outcome in tier_now(both.real)] == [None] * len(tables)
    for table in tables:
        write(table, *range(8, 12), said="newer")
        assert flink.sql(f"SELECT * FROM {table.path}") == rows_of(table)
    flink.tier()
    for table in tables:
        wait_until_tiered(both.real, table.path)
        assert flink.sql(f"SELECT * FROM {table.path}") == rows_of(table)


def test_a_table_without_system_columns_is_not_moved_to_a_release_that_cannot_read_it(both: Both) -> None:
    plain = {"paimon.forebay.system-columns": "false"}
    table = make(both.ours, "clean", keyed=True, partitioned=False, options={**LAKE, **plain})
    write(table, 1, 2)
    with pytest.raises(UnsupportedOperation, match="system columns"):
        move_table(both.ours, both.real, table.path)
    write(table, 3)
    tier_table(both.ours, table.path)
    assert len(rows_of(table)) == 3


def test_a_refusal_of_the_cluster_gives_the_lake_table_back(both: Both) -> None:
    table = make(both.ours, "refused", keyed=False, partitioned=False)
    write(table, *range(5))
    tier_table(both.ours, table.path)
    # Somebody gave the lake table another column than the stream has, which the cluster's check finds.
    lake = forebay.paimon.Catalog.open(str(both.lake)).table(str(table.path))
    lake.context.schemas.change([forebay.paimon.store.schema_changes.UpdateColumnComment(("v",), "another")])
    with pytest.raises(AlreadyExists) as refused:
        move_table(both.ours, both.real, table.path)
    assert any("given back" in note for note in refused.value.__notes__)
    write(table, *range(5, 8))
    tier_table(both.ours, table.path)
    assert len(rows_of(table)) == 8
