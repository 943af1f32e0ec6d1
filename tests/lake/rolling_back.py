"""What other people's software does to a lake table: roll it back, and commit on top.

pyiceberg does it for Iceberg, our own engine for Paimon (like Java's, it deletes the snapshots behind the kept one),
and a list is cut for the lake in memory, whose ids come again then, as Paimon's do.
"""

from __future__ import annotations

import pyarrow as pa

from forebay.lake.storage import LakeStorage
from forebay.lakes.iceberg import IcebergLakeStorage
from forebay.lakes.iceberg_tables import load_table, opened
from forebay.lakes.paimon import PaimonLakeStorage
from forebay.metadata.table import TablePath
from forebay.paimon.catalog.catalog import Catalog
from forebay.testing.memory_lake import MemoryLakeStorage, commit_as_somebody_else, roll_back


def undo(storage: LakeStorage, path: TablePath, to: int | None) -> None:
    """Roll the lake table back to a snapshot; None: to the state before its first one."""
    if isinstance(storage, MemoryLakeStorage):
        ids = [snapshot.snapshot_id for snapshot in storage.table(path).snapshots]
        roll_back(storage, path, len(ids) - (0 if to is None else ids.index(to) + 1))
    elif isinstance(storage, PaimonLakeStorage):
        table = Catalog.open(storage.options).table(str(path))
        if to is not None:
            table.rollback_to(to)
            return
        for snapshot_id in reversed(table.context.snapshots.ids()):
            table.context.snapshots.delete(snapshot_id)
    else:
        assert isinstance(storage, IcebergLakeStorage)
        _undo_iceberg(storage, path, to)


def _undo_iceberg(storage: IcebergLakeStorage, path: TablePath, to: int | None) -> None:
    with opened(storage.options) as catalog:
        table, name = load_table(catalog, path), (path.database, path.table)
        if to is not None:
            with table.manage_snapshots() as change:
                change.set_current_snapshot(to)
            return
        catalog.drop_table(name)
        made = table.schema(), table.spec(), table.sort_order(), table.properties
        catalog.create_table(name, made[0], partition_spec=made[1], sort_order=made[2], properties=made[3])


def disturb(storage: LakeStorage, path: TablePath) -> None:
    """Commit a snapshot without rows of its own, as a compaction does."""
    if isinstance(storage, MemoryLakeStorage):
        commit_as_somebody_else(storage, path)
    elif isinstance(storage, PaimonLakeStorage):
        Catalog.open(storage.options).table(str(path)).new_commit("somebody else", ignore_empty=False).commit([])
    else:
        assert isinstance(storage, IcebergLakeStorage)
        with opened(storage.options) as catalog:
            table = load_table(catalog, path)
            table.append(pa.Table.from_pylist([], schema=table.schema().as_arrow()))


def lake_rows(storage: LakeStorage, path: TablePath) -> pa.Table:
    """All rows of a Paimon or an Iceberg lake table, with its system columns."""
    if isinstance(storage, PaimonLakeStorage):
        return Catalog.open(storage.options).table(str(path)).scan().to_arrow()
    assert isinstance(storage, IcebergLakeStorage)
    with opened(storage.options) as catalog:
        return load_table(catalog, path).scan().to_arrow()


def add(storage: LakeStorage, path: TablePath, rows: pa.Table) -> None:
    """Append rows that `lake_rows` returned, as a cherry-pick of their snapshot does."""
    if isinstance(storage, PaimonLakeStorage):
        Catalog.open(storage.options).table(str(path)).append(rows)
        return
    assert isinstance(storage, IcebergLakeStorage)
    with opened(storage.options) as catalog:
        load_table(catalog, path).append(rows)
