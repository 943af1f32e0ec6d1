"""Reading the in-memory lake; see `forebay.testing.memory_lake`."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

from forebay.base.errors import CorruptData, InvalidRequest, UnsupportedOperation
from forebay.codec.arrow.arrow_types import user_schema
from forebay.codec.filters import bind, filter_rows
from forebay.lake.source import (
    FilterResult,
    KeyOrder,
    LakeSource,
    LakeSplit,
    Planner,
    RecordReader,
    SnapshotSuccessor,
    SortedRecordReader,
    SplitSerializer,
)
from forebay.lake.tiering import CommittedLakeSnapshot
from forebay.metadata.predicate import Leaf, LeafFunction, Predicate, all_of
from forebay.metadata.table import Column, TablePath
from forebay.metadata.types import DataType, TypeRoot
from forebay.testing.memory_lake_tables import MemoryLakeSnapshot, Place, Row, table_of

_BATCH_ROWS = 3
_SPLITS = 2
_VERSION = 1


@dataclass(frozen=True)
class MemorySplit(LakeSplit):
    """Every second row (from `start` on) of one bucket in one snapshot.

    Splits of real lakes name files, which no other snapshot ever has. So a split names its snapshot by `identity`, too.
    """

    snapshot_id: int
    identity: str
    place: Place
    start: int
    step: int

    def bucket(self) -> int:
        return self.place[1]

    def partition(self) -> tuple[str, ...]:
        return self.place[0]


class _Serializer(SplitSerializer[LakeSplit]):
    @property
    def version(self) -> int:
        return _VERSION

    def serialize(self, split: LakeSplit) -> bytes:
        split = _ours(split)
        return json.dumps([split.snapshot_id, split.identity, split.place, split.start, split.step]).encode()

    def deserialize(self, version: int, data: bytes) -> LakeSplit:
        if version > _VERSION:
            raise UnsupportedOperation(f"a split of version {version} is newer than this release, which reads 1")
        try:
            snapshot_id, identity, (values, bucket), start, step = json.loads(data)
        except (ValueError, TypeError) as e:
            raise CorruptData(f"these bytes are not a split of a lake in memory: {e}") from e
        return MemorySplit(snapshot_id, identity, (tuple(values), bucket), start, step)


def _ours(split: LakeSplit) -> MemorySplit:
    if not isinstance(split, MemorySplit):
        raise InvalidRequest(f"a {type(split).__name__} is not a split of a lake in memory")
    return split


@dataclass(frozen=True)
class MemorySource(LakeSource):
    """A scan. Equalities are applied exactly, other single conditions to whole splits; anything else remains."""

    name: str
    path: TablePath
    columns: tuple[Column, ...]
    paths: tuple[tuple[int, ...], ...] | None = None
    exact: tuple[Predicate, ...] = ()
    rough: tuple[Predicate, ...] = ()
    limit: int | None = None

    @property
    def schema(self) -> pa.Schema:
        return user_schema(self.columns)

    @property
    def projected(self) -> tuple[Column, ...]:
        """The columns that are read, with their selected fields."""
        if self.paths is None:
            return self.columns
        paths_of: dict[int, list[tuple[int, ...]]] = {}
        for path in self.paths:
            if not path or not 0 <= path[0] < len(self.columns):
                raise InvalidRequest(f"there is no column {list(path)} in {self.path}")
            paths_below = paths_of.setdefault(path[0], [])
            if paths_below and (() in paths_below or not path[1:]):
                raise InvalidRequest(f"column '{self.columns[path[0]].name}' is asked for twice")
            paths_below.append(path[1:])
        columns = []
        for index, parts in paths_of.items():
            column = self.columns[index]
            columns.append(replace(column, data_type=_cut(column.data_type, parts)))
        return tuple(columns)

    def with_project(self, paths: Sequence[Sequence[int]]) -> MemorySource:
        source = replace(self, paths=tuple(tuple(path) for path in paths))
        assert source.projected is not None  # rejects missing columns
        return source

    def with_limit(self, limit: int) -> MemorySource:
        return replace(self, limit=limit)

    def with_filters(self, filters: Sequence[Predicate]) -> FilterResult:
        """Accepts all single conditions; those other than equalities also remain, because they prune only whole
        splits."""
        exact: list[Predicate] = []
        rough: list[Predicate] = []
        remaining: list[Predicate] = []
        for predicate in filters:
            if not isinstance(predicate, Leaf) or not self._understands(predicate):
                remaining.append(predicate)
            elif predicate.function is LeafFunction.EQUAL:
                exact.append(predicate)
            else:
                rough.append(predicate)
                remaining.append(predicate)
        source = replace(self, exact=(*self.exact, *exact), rough=(*self.rough, *rough))
        return FilterResult(source, (*exact, *rough), tuple(remaining))

    def _understands(self, predicate: Predicate) -> bool:
        try:
            bind(predicate, self.columns)
        except InvalidRequest:
            return False
        return True

    def matching(self, rows: Sequence[Row], filters: Sequence[Predicate]) -> list[Row]:
        """The rows that pass `filters`."""
        batch = _batch(rows, self.columns)
        joined = all_of(filters)
        listed: list[Row] = (batch if joined is None else filter_rows(batch, bind(joined, self.columns))).to_pylist()
        return listed

    def rows(self, split: MemorySplit) -> list[Row]:
        """The rows of `split` that pass the exact filters. Raises `NotFound` if its snapshot has gone."""
        snapshot = table_of(self.name, self.path).snapshot(split.snapshot_id, split.identity)
        return self.matching(snapshot.parts.get(split.place, ())[split.start :: split.step], self.exact)

    def create_planner(self, snapshot_id: int) -> Planner[LakeSplit]:
        return _Planner(self, table_of(self.name, self.path).snapshot(snapshot_id))

    def successor(self, snapshot_id: int) -> SnapshotSuccessor | None:
        for snapshot in table_of(self.name, self.path).snapshots:
            if snapshot.previous == snapshot_id:
                return SnapshotSuccessor(snapshot.snapshot_id, not snapshot.tiered)
        return None

    def newest_tiered(self) -> CommittedLakeSnapshot | None:
        return table_of(self.name, self.path).newest_tiered()

    def was_undone(self, snapshot_id: int, offsets_name: str | None) -> bool:
        return table_of(self.name, self.path).was_undone(snapshot_id, offsets_name)

    def create_record_reader(self, split: LakeSplit) -> RecordReader:
        return _Reader(self, self.projected, self.rows(_ours(split)))

    def create_sorted_reader(self, splits: Sequence[LakeSplit]) -> SortedRecordReader | None:
        """A reader in descending order of the key; None for tables without a primary key."""
        descriptor = table_of(self.name, self.path).descriptor
        if not descriptor.has_primary_key:
            return None
        keys = [c for c in self.columns if c.name in descriptor.physical_primary_key]
        keys.sort(key=lambda c: descriptor.physical_primary_key.index(c.name))
        rows = [row for split in splits for row in self.rows(_ours(split))]
        ranks = DescendingOrder(tuple(keys)).comparable(_batch(rows, keys)).to_pylist()
        ordered = [rows[i] for i in sorted(range(len(rows)), key=ranks.__getitem__)]
        projected = self.projected
        names = {c.name for c in projected}
        return _SortedReader(self, (*projected, *(k for k in keys if k.name not in names)), ordered, tuple(keys))

    def split_serializer(self) -> SplitSerializer[LakeSplit]:
        return _Serializer()


def _cut(t: DataType, parts: Sequence[tuple[int, ...]]) -> DataType:
    if () in parts:
        return t
    if t.root is not TypeRoot.ROW:
        raise InvalidRequest(f"{t} has no fields to choose from")
    paths_of: dict[int, list[tuple[int, ...]]] = {}
    for index, *rest in parts:
        if not 0 <= index < len(t.fields):
            raise InvalidRequest(f"{t} has no field {index}")
        paths_of.setdefault(index, []).append(tuple(rest))
    fields = [(t.fields[i], paths_of[i]) for i in sorted(paths_of)]
    return replace(t, fields=tuple(replace(f, data_type=_cut(f.data_type, rest)) for f, rest in fields))


def _batch(rows: Sequence[Row], columns: Sequence[Column]) -> pa.RecordBatch:
    """The columns of `rows`, which may have more, or (older rows) fewer; unwanted fields are dropped."""
    schema = user_schema(columns)
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), len(rows), [None]))
    return pa.RecordBatch.from_pylist([{c.name: row.get(c.name) for c in columns} for row in rows], schema=schema)


@dataclass(frozen=True)
class _Planner(Planner[LakeSplit]):
    source: MemorySource
    snapshot: MemoryLakeSnapshot

    @property
    def identity(self) -> str:
        return self.snapshot.identity

    @property
    def properties(self) -> Mapping[str, str]:
        return self.snapshot.properties if self.snapshot.tiered else {}

    def plan(self) -> list[LakeSplit]:
        table = table_of(self.source.name, self.source.path)
        table.snapshot(self.snapshot.snapshot_id, self.identity)
        splits: list[LakeSplit] = []
        for place, part in self.snapshot.parts.items():
            for start in range(min(_SPLITS, len(part))):
                split = MemorySplit(self.snapshot.snapshot_id, self.identity, place, start, _SPLITS)
                if self.source.matching(self.source.rows(split), self.source.rough):
                    splits.append(split)
        return splits


class _Reader(RecordReader):
    def __init__(self, source: MemorySource, columns: tuple[Column, ...], rows: list[Row]) -> None:
        self._columns, self._rows = columns, rows[: source.limit]

    @property
    def schema(self) -> pa.Schema:
        return user_schema(self._columns)

    def read(self) -> Iterator[pa.RecordBatch]:
        for i in range(0, len(self._rows), _BATCH_ROWS):
            yield _batch(self._rows[i : i + _BATCH_ROWS], self._columns)


class _SortedReader(_Reader, SortedRecordReader):
    def __init__(
        self, source: MemorySource, columns: tuple[Column, ...], rows: list[Row], keys: tuple[Column, ...]
    ) -> None:
        super().__init__(source, columns, rows)
        self._keys = keys

    @property
    def order(self) -> KeyOrder:
        return DescendingOrder(self._keys)


@dataclass(frozen=True)
class DescendingOrder(KeyOrder):
    """Descending by key."""

    keys: tuple[Column, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.keys)

    def comparable(self, keys: pa.RecordBatch) -> pa.BinaryArray:
        encoded = [_ascending(column) for column in keys.columns]
        rows = [b"".join(parts) for parts in zip(*encoded, strict=True)]
        return pa.array([bytes(255 - byte for byte in row) for row in rows], pa.binary())


def _ascending(column: pa.Array) -> list[bytes]:
    """Each value as order-preserving bytes, none of which is a prefix of another."""
    t = column.type
    if pa.types.is_temporal(t):
        column = column.cast(pa.int32() if t.bit_width == 32 else pa.int64())
    elif pa.types.is_decimal(t):
        unscaled = [int(v.scaleb(t.scale, None)) if isinstance(v, Decimal) else 0 for v in column.to_pylist()]
        return [(v + (1 << 127)).to_bytes(16, "big") for v in unscaled]
    elif pa.types.is_floating(t):
        return [_float_bytes(v) for v in column.to_pylist()]
    return [_value_bytes(v) for v in column.to_pylist()]


def _value_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return value.replace(b"\0", b"\0\xff") + b"\0\0"
    return (int(value) + (1 << 63)).to_bytes(8, "big")


def _float_bytes(value: float) -> bytes:
    (bits,) = struct.unpack(">Q", struct.pack(">d", value))
    ordered: int = (~bits & (1 << 64) - 1) if bits >> 63 else bits | 1 << 63
    return ordered.to_bytes(8, "big")
