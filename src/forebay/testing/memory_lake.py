"""An in-memory lake for tests: it lives as long as the process, and is found by name, so that it can be pickled.

    storage = MemoryLakeStorage({"name": "mine"})

It is deliberately awkward where a real lake may be: snapshot ids do not ascend, keys are sorted in descending order, a
bucket has several unordered splits, batches are tiny, and some filters are applied exactly, some partly, some not at
all. Code that works with it and with Paimon does not depend on the habits of one format. It is not fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from forebay.base.errors import Conflict, ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.codec.arrow.arrow_types import user_schema
from forebay.codec.log.log_batch import ChangeType
from forebay.lake.records import ChangeRows
from forebay.lake.source import LakeSource
from forebay.lake.storage import LakeCatalog, LakeStorage
from forebay.lake.tiering import (
    CommittedLakeSnapshot,
    CommitterContext,
    LakeCommitResult,
    LakeCommitter,
    LakeTieringFactory,
    LakeWriter,
    TieringStats,
    WriterContext,
    check_base,
)
from forebay.metadata.table import TableDescriptor, TableInfo, TablePath
from forebay.testing.memory_lake_source import MemorySource
from forebay.testing.memory_lake_tables import Changes, MemoryLake, MemoryTable, Place, Row, lake_named, table_of
from forebay.testing.memory_lake_tables import forget_lake as forget_lake

OPTION_PREFIX = "memory."
_REMOVING = (ChangeType.UPDATE_BEFORE, ChangeType.DELETE)


class MemoryLakeStorage(LakeStorage):
    """The in-memory lake of a name, in this process."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """`options` has `name`."""
        if not options.get("name"):
            raise InvalidRequest("a lake in memory needs option 'name'")
        self.name = options["name"]

    @property
    def lake(self) -> MemoryLake:
        return lake_named(self.name)

    def table(self, path: TablePath) -> MemoryTable:
        """A table. Raises `NotFound`."""
        return table_of(self.name, path)

    @property
    def format(self) -> str:
        return "memory"

    def create_catalog(self) -> LakeCatalog:
        return _Catalog(self)

    def create_tiering_factory(self) -> LakeTieringFactory:
        return _TieringFactory(self)

    def create_source(self, path: TablePath) -> LakeSource:
        return MemorySource(self.name, path, self.table(path).columns)


# ---- tables ---------------------------------------------------------------------------------------------------------


def _options_of(descriptor: TableDescriptor) -> dict[str, str]:
    properties = {**descriptor.properties, **descriptor.custom_properties}
    return {
        k.removeprefix(OPTION_PREFIX) if k.startswith(OPTION_PREFIX) else f"fluss.{k}": v for k, v in properties.items()
    }


def _difference(table: MemoryTable, expected: TableDescriptor, *, wider: bool = False) -> str | None:
    a, b = table.descriptor, expected
    for what, actual, requested in (
        ("primary key", a.schema.primary_key, b.schema.primary_key),
        ("partition keys", a.partition_keys, b.partition_keys),
        ("bucket keys", a.bucket_keys, b.bucket_keys),
        ("bucket count", a.bucket_count, b.bucket_count),
    ):
        if actual != requested:
            return f"its {what}: {actual} should be {requested}"
    there_columns = [(c.name, str(c.data_type)) for c in table.columns]
    asked_columns = [(c.name, str(c.data_type)) for c in b.schema.columns]
    if there_columns[: len(asked_columns) if wider else None] != asked_columns:
        return f"its columns: {there_columns} should be {asked_columns}"
    return None


class _Catalog(LakeCatalog):
    def __init__(self, storage: MemoryLakeStorage) -> None:
        self._storage, self._lake = storage, storage.lake

    def create_table(self, path: TablePath, descriptor: TableDescriptor, *, creating: bool) -> None:
        with self._lake.lock:
            existing = self._lake.tables.get(path)
            if existing is None:
                table = MemoryTable(descriptor.schema.columns, descriptor, _options_of(descriptor))
                self._lake.tables[path] = table
                return
            problem = _difference(existing, descriptor)
            if problem is None and creating and existing.snapshots:
                problem = "it is not empty"
        if problem is not None:
            raise Conflict(f"table {path} exists already in the lake: {problem}", ErrorCode.LAKE_TABLE_ALREADY_EXIST)

    def alter_table(self, path: TablePath, current: TableDescriptor, expected: TableDescriptor) -> None:
        with self._lake.lock:
            table = self._storage.table(path)
            old, new = current.schema.columns, expected.schema.columns
            shapes = [
                (d.schema.primary_key, d.partition_keys, d.bucket_keys, d.bucket_count) for d in (current, expected)
            ]
            same = [(c.name, c.data_type) for c in new[: len(old)]] == [(c.name, c.data_type) for c in old]
            if not same or shapes[0] != shapes[1] or not all(c.data_type.nullable for c in new[len(old) :]):
                raise UnsupportedOperation("a lake table takes new options, and new nullable columns at the end")
            if _difference(table, current) is not None and _difference(table, expected) is not None:
                raise InvalidRequest(
                    f"the lake table {path} is neither as it was nor as it should be",
                    ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
                )
            table.columns, table.descriptor, table.options = new, expected, _options_of(expected)


# ---- tiering --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Written:
    """A writer's result for the committer: the name and the place of a file."""

    name: str
    place: Place


@dataclass(frozen=True)
class _TieringFactory(LakeTieringFactory):
    storage: MemoryLakeStorage

    def validate(self, info: TableInfo) -> None:
        problem = _difference(self.storage.table(info.path), info.descriptor, wider=True)
        if problem is not None:
            raise InvalidRequest(f"the lake table {info.path} does not fit the stream's: {problem}")

    def create_writer(self, context: WriterContext) -> LakeWriter:
        return _Writer(self.storage, context)

    def create_committer(self, context: CommitterContext) -> LakeCommitter:
        return _Committer(self.storage, context)


class _Writer(LakeWriter):
    def __init__(self, storage: MemoryLakeStorage, context: WriterContext) -> None:
        self._table = storage.table(context.info.path)
        self._context = context
        self._place = tuple((context.partition or {}).values()), context.bucket
        self._name = f"file-{next(storage.lake.numbers)}"
        self._changes: list[Changes] = []
        self._table.files[self._name] = self._changes
        self._completed = False

    def write(self, records: ChangeRows) -> None:
        names = [c.name for c in self._table.columns]
        if records.rows.schema.names != names[: records.rows.num_columns]:
            raise InvalidRequest(f"records have the columns {records.rows.schema.names}, the lake table has {names}")
        kinds = tuple([0] * len(records) if records.change_types is None else records.change_types.to_pylist())
        if not self._context.info.has_primary_key and any(kinds):
            raise InvalidRequest("a table without a primary key can only contain appended rows")
        target = user_schema(self._table.columns[: records.rows.num_columns])
        columns = [c.cast(f.type) for c, f in zip(records.rows.columns, target, strict=True)]
        self._changes.append((pa.RecordBatch.from_arrays(columns, schema=target), kinds))

    def complete(self) -> _Written:
        self._completed = True
        return _Written(self._name, self._place)

    def abort(self) -> None:
        if not self._completed:
            self._table.files.pop(self._name, None)


class _Committer(LakeCommitter):
    def __init__(self, storage: MemoryLakeStorage, context: CommitterContext) -> None:
        self._lock, self._context, self._base = storage.lake.lock, context, context.base
        self._table = storage.table(context.info.path)

    def commit(self, results: Sequence[_Written], properties: Mapping[str, str]) -> LakeCommitResult:
        mine = self._context.properties
        with self._lock:
            newest = self._table.newest_tiered()
            expired = self._base is not None and bool(self._table.snapshots) and not self.has_snapshot(self._base)
            expired = expired and not self._table.was_undone(self._base or 0, None)
            if newest is not None or not expired:
                check_base(self._context, self._base, newest)
            parts = dict(self._table.snapshots[-1].parts) if self._table.snapshots else {}
            for result in results:
                parts[result.place] = self._applied(parts.get(result.place, ()), result)
            self._base = self._table.add(parts, {**properties, **mine}, tiered=True)
            self._table.committed |= {r.name for r in results}
        rows = sum(len(part) for part in parts.values())
        return LakeCommitResult(self._base, self._base, stats=TieringStats(rows=rows))

    def _applied(self, rows: tuple[Row, ...], result: _Written) -> tuple[Row, ...]:
        keys = self._table.descriptor.schema.primary_key
        changes = [
            (kind, row)
            for batch, kinds in self._table.files[result.name]
            for kind, row in zip(kinds, batch.to_pylist(), strict=True)
        ]
        if not keys:
            return (*rows, *(row for _, row in changes))
        state = {_key(row, keys): row for row in rows}
        for kind, row in changes:
            key = _key(row, keys)
            if kind == ChangeType.DELETE:
                state.pop(key, None)
            elif kind not in _REMOVING:
                state[key] = row
        return tuple(state.values())

    def abort(self, results: Sequence[_Written]) -> None:
        with self._lock:
            for name in {r.name for r in results} - self._table.committed:
                self._table.files.pop(name, None)

    def get_missing_lake_snapshot(self, latest_known: int | None) -> CommittedLakeSnapshot | None:
        newest = self._table.newest_tiered()
        return None if newest is None or newest.snapshot_id == latest_known else newest

    def has_snapshot(self, snapshot_id: int) -> bool:
        return any(snapshot.snapshot_id == snapshot_id for snapshot in self._table.snapshots)

    def was_undone(self, snapshot_id: int, offsets_name: str | None) -> bool:
        return self._table.was_undone(snapshot_id, offsets_name)

    def has_rows(self) -> bool:
        return bool(self._table.snapshots) and any(self._table.snapshots[-1].parts.values())


def _key(row: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    """The key of a row for a dict: all NaNs are one object there, as no two would be equal otherwise."""
    return tuple(math.nan if row[name] != row[name] else row[name] for name in names)


# ---- what tests do to it --------------------------------------------------------------------------------------------


def commit_as_somebody_else(storage: MemoryLakeStorage, path: TablePath) -> None:
    """Commit a snapshot with the same rows outside of any round."""
    with storage.lake.lock:
        table = storage.table(path)
        table.add(table.snapshots[-1].parts if table.snapshots else {}, {}, tiered=False)


def expire_all_but_the_newest(storage: MemoryLakeStorage, path: TablePath) -> None:
    """Expire older snapshots."""
    with storage.lake.lock:
        storage.table(path).expire()


def roll_back(storage: MemoryLakeStorage, path: TablePath, count: int = 1) -> None:
    """Undo the last snapshots; the next ones get their ids."""
    with storage.lake.lock:
        storage.table(path).roll_back(count)
