"""A server with a lake, tables in it, and the expected lake rows: a replay of the log up to the tiered offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import forebay
from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.lake.storage import LakeStorage
from forebay.lakes.iceberg import IcebergLakeStorage
from forebay.lakes.paimon import PaimonLakeStorage
from forebay.metadata.table import TableInfo
from forebay.server.embedded import EmbeddedServer
from forebay.server.server import Injected
from forebay.testing.lake_rounds import Row, TieredTable, in_order
from forebay.testing.memory_lake import MemoryLakeStorage, forget_lake
from forebay.tiering.control import RoundControl
from forebay.tiering.now import tier_table
from forebay.tiering.report import RoundReport
from forebay.tiering.round import TieringLake
from forebay.tiering.runner import SplitRunner

MEMORY = "tests of tiering"
TIERED = {"table.datalake.enabled": "true", "table.datalake.freshness": "1 h"}

Storage = Callable[[str, Mapping[str, str]], LakeStorage]


def memory_storage(_name: str, options: Mapping[str, str]) -> LakeStorage:
    return MemoryLakeStorage(options)


def paimon_storage(_name: str, options: Mapping[str, str]) -> LakeStorage:
    return PaimonLakeStorage(options)


def iceberg_storage(_name: str, options: Mapping[str, str]) -> LakeStorage:
    return IcebergLakeStorage(options)


LAKES: dict[str, Storage] = {"memory": memory_storage, "paimon": paimon_storage, "iceberg": iceberg_storage}


@dataclass
class LakeCluster:
    """A running server, a connection, and its lake."""

    server: EmbeddedServer
    connection: Connection
    lake: TieringLake
    lake_options: dict[str, str]

    @property
    def storage(self) -> LakeStorage:
        return self.lake.create_storage("paimon", self.lake_options)

    def create(self, name: str, schema: Any, *, options: Mapping[str, str] | None = None, **more: Any) -> Table:
        path = f"fluss.{name}"
        more.setdefault("buckets", 2)
        return self.connection.create_table(path, schema, options={**TIERED, **(options or {})}, **more)

    def tier(self, table: Table, control: RoundControl | None = None, runner: SplitRunner | None = None) -> RoundReport:
        return tier_table(self.connection, table.path, runner, self.lake, control)

    # ---- what is where ----------------------------------------------------------------------------------------------

    def lake_rows(self, table: Table, snapshot_id: int | None = None) -> list[Row]:
        """The rows of a lake snapshot, by default of the newest one that the cluster knows."""
        info = self.connection.admin.table_info(table.path)
        chosen = self.connection.admin.lake_snapshot(table.path).snapshot_id if snapshot_id is None else snapshot_id
        return TieredTable(self.storage, info, chosen).read()

    def expected_rows(self, table: Table, snapshot_id: int | None = None) -> list[Row]:
        """What the lake snapshot must hold: the log up to the offsets that the cluster knows of it, replayed."""
        info = self.connection.admin.table_info(table.path)
        offsets = self.connection.admin.lake_snapshot(table.path, snapshot_id=snapshot_id).log_offsets
        log = self.connection.table(info).changes(dict.fromkeys(offsets, 0), dict(offsets))
        return replayed(info, list(log))

    def check(self, table: Table) -> list[Row]:
        """The lake's rows, which are exactly those of the log up to the tiered offsets."""
        rows = self.lake_rows(table)
        assert rows == self.expected_rows(table)
        return rows

    def check_complete(self, table: Table) -> list[Row]:
        """The lake's rows, which are all there are."""
        rows = self.check(table)
        scanned = self.connection.table(table.path).scan().to_arrow().to_pylist()
        assert rows == in_order(scanned)
        return rows


def replayed(info: TableInfo, batches: list[pa.RecordBatch]) -> list[Row]:
    """The rows after all changes, in a fixed order."""
    keys = info.schema.primary_key
    appended: list[Row] = []
    state: dict[tuple[Any, ...], Row] = {}
    for batch in batches:
        for record in batch.to_pylist():
            row = {name: record[name] for name in info.schema.names}
            if not keys:
                appended.append(row)
                continue
            key = tuple(row[name] for name in keys)
            if record["_change_type"] == "delete":
                del state[key]
            elif record["_change_type"] != "update_before":
                state[key] = row
    return in_order(appended if not keys else state.values())


@contextmanager
def lake_cluster(
    directory: Path,
    create_storage: Storage,
    *,
    clock: Clock = SYSTEM_CLOCK,
    settings: Mapping[str, str] | None = None,
    ports: tuple[int, int] = (0, 0),
) -> Iterator[LakeCluster]:
    """A server with a lake in memory, or one of Paimon or Iceberg below `directory`, as `create_storage` makes it."""
    name = "iceberg" if create_storage is iceberg_storage else "paimon"
    if create_storage is memory_storage:
        lake_options = {"name": f"{MEMORY} {directory}"}
    else:
        lake_options = {"warehouse": str(directory / "warehouse")}
    given = {"datalake.format": name, **{f"datalake.{name}.{k}": v for k, v in lake_options.items()}}
    injected = Injected(clock=clock, create_lake_storage=create_storage)
    try:
        with (
            EmbeddedServer(
                directory / "data",
                settings={**given, **(settings or {})},
                injected=injected,
                coordinator_port=ports[0],
                tablet_port=ports[1],
            ) as server,
            forebay.connect(server.bootstrap_servers) as connection,
        ):
            yield LakeCluster(server, connection, TieringLake(create_storage=create_storage), lake_options)
    finally:
        if create_storage is memory_storage:
            forget_lake(lake_options["name"])
