"""The tables of an in-memory lake; see `forebay.testing.memory_lake`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa

from forebay.base.errors import ErrorCode, NotFound
from forebay.lake.tiering import CommittedLakeSnapshot, offsets_name
from forebay.metadata.table import Column, TableDescriptor, TablePath

Row = dict[str, Any]
Place = tuple[tuple[str, ...], int]
Changes = tuple[pa.RecordBatch, tuple[int, ...]]
"""Rows, and the number of the change type of each."""

_FIRST_ID, _ID_STEP, _ID_MODULUS = 500, 7919, 10007


@dataclass(frozen=True)
class MemoryLakeSnapshot:
    """All rows of a table, by partition and bucket; `tiered` if a round created it, `previous` is the one before.

    `identity` is unique, where ids come again after a rollback.
    """

    snapshot_id: int
    parts: Mapping[Place, tuple[Row, ...]]
    properties: Mapping[str, str]
    tiered: bool
    previous: int | None = None
    identity: str = ""


@dataclass
class MemoryTable:
    """A table: its definition, its snapshots in the order of commits, and its files by name."""

    columns: tuple[Column, ...]
    descriptor: TableDescriptor
    options: dict[str, str]
    snapshots: list[MemoryLakeSnapshot] = field(default_factory=list)
    files: dict[str, list[Changes]] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)
    created_count: int = 0
    expired: set[int] = field(default_factory=set)
    _identities: count[int] = field(default_factory=count)

    def snapshot(self, snapshot_id: int, identity: str | None = None) -> MemoryLakeSnapshot:
        """The snapshot with this id, and this identity if one is named. Raises `NotFound` (LAKE_SNAPSHOT_NOT_EXIST)."""
        for snapshot in self.snapshots:
            if snapshot.snapshot_id == snapshot_id and identity in (None, snapshot.identity):
                return snapshot
        raise NotFound(f"lake snapshot {snapshot_id} does not exist", ErrorCode.LAKE_SNAPSHOT_NOT_EXIST)

    def newest_tiered(self) -> CommittedLakeSnapshot | None:
        for snapshot in reversed(self.snapshots):
            if snapshot.tiered:
                return CommittedLakeSnapshot(snapshot.snapshot_id, snapshot.properties)
        return None

    def add(self, parts: Mapping[Place, tuple[Row, ...]], properties: Mapping[str, str], *, tiered: bool) -> int:
        """Add a snapshot; return its id."""
        self.created_count += 1
        snapshot_id = _FIRST_ID + self.created_count * _ID_STEP % _ID_MODULUS
        previous = self.snapshots[-1].snapshot_id if self.snapshots else None
        identity = f"snapshot {next(self._identities)}"
        self.snapshots.append(MemoryLakeSnapshot(snapshot_id, parts, properties, tiered, previous, identity))
        return snapshot_id

    def expire(self) -> None:
        """Expire all snapshots but the newest."""
        self.expired |= {snapshot.snapshot_id for snapshot in self.snapshots[:-1]}
        self.snapshots = self.snapshots[-1:]

    def roll_back(self, count: int) -> None:
        """Undo the last `count` snapshots; the next ones get their ids."""
        self.snapshots = self.snapshots[: len(self.snapshots) - count]
        self.created_count -= count

    def was_undone(self, snapshot_id: int, name: str | None) -> bool:
        """Whether a tiering snapshot, with this name of its offsets, was rolled back."""
        for snapshot in self.snapshots:
            if snapshot.snapshot_id == snapshot_id:
                return not snapshot.tiered or (name is not None and offsets_name(snapshot.properties) != name)
        return snapshot_id not in self.expired


@dataclass
class MemoryLake:
    """The tables of one name."""

    tables: dict[TablePath, MemoryTable] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    numbers: count[int] = field(default_factory=lambda: count(1))


_lakes: dict[str, MemoryLake] = {}
_lakes_lock = threading.Lock()


def lake_named(name: str) -> MemoryLake:
    """The lake of this name, created if necessary."""
    with _lakes_lock:
        return _lakes.setdefault(name, MemoryLake())


def table_of(name: str, path: TablePath) -> MemoryTable:
    """A table of the lake `name`. Raises `NotFound`."""
    table = lake_named(name).tables.get(path)
    if table is None:
        raise NotFound(f"there is no table {path} in the lake in memory '{name}'")
    return table


def forget_lake(name: str) -> None:
    """Drop the in-memory lake of this name, if it exists."""
    with _lakes_lock:
        _lakes.pop(name, None)
