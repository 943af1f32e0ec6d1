"""Reading one snapshot of a Paimon table: the source, its splits, planner and readers.

A source keeps the schema that the table had when the source was created, so that the indexes of a projection stay
valid; snapshots and files with other schemas are read with it. Paimon's splits of a bucket with a primary key hold
disjoint keys, and the sorted reader merges all files of a bucket in key order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.lake.source import (
    BUCKET_COLUMN,
    OFFSET_COLUMN,
    UNAWARE_BUCKET,
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
from forebay.lakes.paimon_history import newest_tiered, tiering_properties, was_undone
from forebay.metadata.partitions import partition_text
from forebay.metadata.predicate import Predicate, all_of
from forebay.metadata.types import DataType
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import EMPTY_STATS, DataFileMeta
from forebay.paimon.format.schema import DataField
from forebay.paimon.format.snapshot import CommitKind, Snapshot
from forebay.paimon.format.split import DataSplit
from forebay.paimon.format.split_codec import DataSplitCodec
from forebay.paimon.read.key_order import RowKeyOrder as EngineKeyOrder
from forebay.paimon.read.plain_files import plain_files
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.snapshot_planner import SnapshotPlanner
from forebay.paimon.read.split_reader import SplitReader
from forebay.paimon.store.context import TableContext
from forebay.paimon.write.bucketing import UNAWARE

_SPLIT_VERSION = 1
_HEAD = struct.Struct(">iiH")


@dataclass(frozen=True, slots=True)
class PaimonLakeSplit(LakeSplit):
    """A Paimon split, with its bucket and partition in terms of the stream table."""

    stream_bucket: int
    values: tuple[str, ...]
    data: DataSplit

    def bucket(self) -> int:
        return self.stream_bucket

    def partition(self) -> tuple[str, ...]:
        return self.values

    def bucket_count(self) -> int | None:
        return None if self.stream_bucket == UNAWARE_BUCKET else self.data.total_buckets

    def rows(self) -> int:
        return sum(file.row_count for file in self.data.files)


class PaimonSplitSerializer(SplitSerializer[LakeSplit]):
    """Version 1: bucket, partition values, and the split in Java Paimon's serialization."""

    def __init__(self, table: TableContext) -> None:
        self._table = table
        self._codec = DataSplitCodec(len(table.schema.partition_keys), len(table.schema.trimmed_primary_keys))

    @property
    def version(self) -> int:
        return _SPLIT_VERSION

    def serialize(self, split: LakeSplit) -> bytes:
        """The split's bucket and partition values, then Java Paimon's split, whose directory is that of this table."""
        split = _ours(split)
        texts = [value.encode() for value in split.values]
        head = _HEAD.pack(_SPLIT_VERSION, split.stream_bucket, len(texts))
        place = b"".join(struct.pack(">H", len(text)) + text for text in texts)
        directory = self._table.paths.bucket_directory(split.data.partition, split.data.bucket)
        return head + place + self._codec.encode(split.data, directory)

    def deserialize(self, version: int, data: bytes) -> PaimonLakeSplit:
        """The split. Raises `CorruptData` for malformed bytes, `UnsupportedOperation` for a newer version."""
        if version > _SPLIT_VERSION:
            raise UnsupportedOperation(f"a split of version {version} is newer than this release, which reads 1")
        try:
            _, bucket, count = _HEAD.unpack_from(data)
            at, values = _HEAD.size, []
            for _ in range(count):
                (length,) = struct.unpack_from(">H", data, at)
                values.append(data[at + 2 : at + 2 + length].decode())
                at += 2 + length
        except (struct.error, UnicodeDecodeError) as e:
            raise CorruptData(f"these bytes are not a split of a Paimon table: {e}") from e
        decoded, _ = self._codec.decode(data[at:])
        return PaimonLakeSplit(bucket, tuple(values), _slim(decoded))


def _slim(split: DataSplit) -> DataSplit:
    """The split without the fields that only planners need."""
    return replace(split, files=tuple(map(_slim_file, split.files)))


def _slim_file(file: DataFileMeta) -> DataFileMeta:
    return replace(
        file,
        key_stats=EMPTY_STATS,
        value_stats=EMPTY_STATS,
        value_stats_cols=None,
        creation_time=None,
        file_source=None,
    )


def snapshot_not_found(
    table: TableContext, snapshot_id: int, e: NotFound, snapshot: Snapshot | None = None
) -> NotFound:
    """The error to raise for `e`: that the snapshot does not exist, if so, otherwise `e` itself.

    If the `snapshot` itself is given, another one with its id does not count.
    """
    current = table.snapshots.find(snapshot_id)
    if current is not None and (snapshot is None or current == snapshot):
        return e
    return NotFound(
        f"lake snapshot {snapshot_id} of {table.paths.root} does not exist, or has expired: {e.message}",
        ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
    )


# ---- planning -------------------------------------------------------------------------------------------------------


class PaimonSplitPlanner(Planner[LakeSplit]):
    """Plans one snapshot."""

    def __init__(self, source: PaimonLakeSource, snapshot_id: int) -> None:
        self._source, self._table = source, source.table
        table = source.table
        snapshot = table.snapshots.find(snapshot_id)
        if snapshot is None:
            raise snapshot_not_found(table, snapshot_id, NotFound("there is no such file"))
        self._snapshot = snapshot

    @property
    def identity(self) -> str:
        return self._snapshot.delta_manifest_list

    @property
    def properties(self) -> Mapping[str, str] | None:
        """The tiering properties of the snapshot. None with deletion vectors: Fluss makes a compaction readable,
        whichever writer committed it, so its properties say nothing."""
        return None if self._table.options.deletion_vectors_enabled else tiering_properties(self._snapshot)

    def plan(self) -> list[LakeSplit]:
        """See `Planner.plan`. The plan of a snapshot and its filters is cached by the table."""
        table, snapshot = self._table, self._snapshot
        try:
            if not table.snapshots.exists(snapshot.id):  # its plan may be cached for longer than it exists
                raise NotFound("there is no such file any more")
            request = "lake splits", repr(self._source.filters)
            planned = table.manifests.planned(snapshot, table.schema, request, lambda: self._planned(snapshot))
        except NotFound as e:
            raise snapshot_not_found(table, snapshot.id, e, snapshot) from e
        return list(planned)

    def _planned(self, snapshot: Snapshot) -> tuple[LakeSplit, ...]:
        table = self._table
        splits = SnapshotPlanner(table).plan(snapshot, self._source.scan_filter).splits
        unaware = table.options.bucket == UNAWARE
        names = _PartitionNames(table)
        return tuple(
            PaimonLakeSplit(UNAWARE_BUCKET if unaware else s.bucket, names.of(s.partition), _slim(s)) for s in splits
        )


class _PartitionNames:
    """Partitions as strings, as in their names in the stream."""

    def __init__(self, table: TableContext) -> None:
        self._fields = table.schema.partition_fields
        self._layout = row_layout(self._fields)
        self._null = table.options.partition_default_name
        self._cache: dict[bytes, tuple[str, ...]] = {}

    def of(self, partition: bytes) -> tuple[str, ...]:
        """The values of `partition`; a null, which no partition of a stream has, becomes Paimon's name for it."""
        values = self._cache.get(partition)
        if values is None:
            row = self._layout.decode_all([partition])
            values = tuple(self._text(f.type, row.column(i)[0]) for i, f in enumerate(self._fields))
            self._cache[partition] = values
        return values

    def _text(self, t: DataType, value: pa.Scalar) -> str:
        return partition_text(t, value.as_py()) if value.is_valid else self._null


# ---- reading --------------------------------------------------------------------------------------------------------


class PaimonRecordReader(RecordReader):
    """Reads one split."""

    def __init__(self, table: TableContext, reader: SplitReader, split: PaimonLakeSplit, limit: int | None) -> None:
        self._table, self._reader, self._split, self._limit = table, reader, split, limit

    @property
    def schema(self) -> pa.Schema:
        return self._reader.schema

    def read(self) -> Iterator[pa.RecordBatch]:
        return _limited(_guarded(self._table, self._split.data, self._reader.read(self._split.data)), self._limit)


class PaimonSortedReader(SortedRecordReader):
    """Reads a bucket in key order: all files of its splits are merged as if they were one split."""

    def __init__(
        self, table: TableContext, reader: SplitReader, splits: Sequence[PaimonLakeSplit], limit: int | None
    ) -> None:
        self._table, self._reader, self._limit = table, reader, limit
        self._splits = [s.data for s in splits]

    @property
    def schema(self) -> pa.Schema:
        return self._reader.schema

    @property
    def order(self) -> KeyOrder:
        return PaimonKeyOrder(self._table.schema.fields_named(self._table.schema.trimmed_primary_keys))

    def read(self) -> Iterator[pa.RecordBatch]:
        if not self._splits:
            return iter(())
        rows = self._reader.read_bucket(self._splits)
        return _limited(_guarded(self._table, self._splits[0], rows), self._limit)


def _guarded(table: TableContext, split: DataSplit, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches; a file that is missing because its snapshot expired is reported as such."""
    try:
        yield from batches
    except NotFound as e:
        raise snapshot_not_found(table, split.snapshot_id, e) from e


def _limited(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    remaining = limit
    for batch in batches:
        if remaining is None:
            yield batch
            continue
        if remaining <= 0:
            return
        yield batch.slice(0, remaining)
        remaining -= batch.num_rows


@dataclass(frozen=True, slots=True)
class PaimonKeyOrder(KeyOrder):
    """Paimon's order of keys: see `forebay.paimon.merge.order`."""

    fields: tuple[DataField, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.fields)

    def comparable(self, keys: pa.RecordBatch) -> pa.BinaryArray:
        return EngineKeyOrder(self.fields).comparable(keys).cast(pa.binary())


# ---- the source -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PaimonLakeSource(LakeSource):
    """A scan of one Paimon table."""

    table: TableContext
    paths: tuple[tuple[int, ...], ...] | None = None
    filters: tuple[Predicate, ...] = ()
    limit: int | None = None
    _readers: dict[tuple[str, ...], SplitReader] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return PaimonLakeSource, (self.table, self.paths, self.filters, self.limit)

    @property
    def schema(self) -> pa.Schema:
        return arrow_schema(self.table.schema.fields)

    def with_project(self, paths: Sequence[Sequence[int]]) -> PaimonLakeSource:
        source = replace(self, paths=tuple(tuple(path) for path in paths))
        source._reader(())  # rejects missing columns
        return source

    def with_limit(self, limit: int) -> PaimonLakeSource:
        if limit < 0:
            raise InvalidRequest(f"a limit is a number of rows, 0 or more; got {limit}")
        return replace(self, limit=limit)

    def with_filters(self, filters: Sequence[Predicate]) -> FilterResult:
        """See `LakeSource.with_filters`. Accepts filters that Paimon can apply to the table's columns."""
        accepted: list[Predicate] = []
        remaining: list[Predicate] = []
        for predicate in filters:
            (accepted if self._understands(predicate) else remaining).append(predicate)
        source = replace(self, filters=(*self.filters, *accepted))
        return FilterResult(source, tuple(accepted), tuple(remaining))

    def _understands(self, predicate: Predicate) -> bool:
        try:
            ScanFilter.of(self.table.schema, predicate)
        except (InvalidRequest, NotFound, UnsupportedOperation):
            return False
        return True

    def create_planner(self, snapshot_id: int) -> PaimonSplitPlanner:
        return PaimonSplitPlanner(self, snapshot_id)

    def successor(self, snapshot_id: int) -> SnapshotSuccessor | None:
        """See `LakeSource.successor`: the oldest remaining snapshot after it. None if it is the newest."""
        snapshots = self.table.snapshots
        next_id = next((s for s in sorted(snapshots.ids()) if s > snapshot_id), None)
        snapshot = None if next_id is None else snapshots.find(next_id)
        if snapshot is None:
            return None
        compacted = snapshot.id == snapshot_id + 1 and snapshot.commit_kind is CommitKind.COMPACT
        return SnapshotSuccessor(snapshot.id, compacted)

    def newest_tiered(self) -> CommittedLakeSnapshot | None:
        return newest_tiered(self.table.snapshots)

    def was_undone(self, snapshot_id: int, offsets_name: str | None) -> bool:
        return was_undone(self.table, snapshot_id, offsets_name)

    def tagged(self, name: str) -> int | None:
        tag = self.table.tags.find(name)
        return None if tag is None else tag.snapshot.id

    def snapshots_until(self, time_ms: int) -> Iterator[int]:
        for snapshot_id in sorted(self.table.snapshots.ids(), reverse=True):
            snapshot = self.table.snapshots.find(snapshot_id)
            if snapshot is not None and snapshot.time_millis <= time_ms:
                yield snapshot_id

    def create_record_reader(self, split: LakeSplit) -> PaimonRecordReader:
        return PaimonRecordReader(self.table, self._reader(()), _ours(split), self.limit)

    def create_sorted_reader(self, splits: Sequence[LakeSplit]) -> PaimonSortedReader | None:
        if not self.table.schema.has_primary_key:
            return None
        reader = self._reader(self.table.schema.trimmed_primary_keys)
        return PaimonSortedReader(self.table, reader, [_ours(s) for s in splits], self.limit)

    def plain_files(self, split: LakeSplit) -> tuple[str, ...] | None:
        if self.paths is not None and any(len(path) > 1 for path in self.paths):
            return None
        fields = self.table.schema.fields
        projection = fields if self.paths is None else [fields[path[0]] for path in self.paths]
        return plain_files(self.table, _ours(split).data, projection)

    def store_options(self) -> Mapping[str, str]:
        return self.table.store_options

    def split_serializer(self) -> PaimonSplitSerializer:
        return PaimonSplitSerializer(self.table)

    @cached_property
    def scan_filter(self) -> ScanFilter:
        """The conjunction of all filters, bound to the lake table's schema: for the planner and for readers."""
        return ScanFilter.of(self.table.schema, all_of(self.filters))

    def _reader(self, keys: Sequence[str]) -> SplitReader:
        """A reader of the projected columns, followed by those of `keys` that are not projected: the same each time."""
        reader = self._readers.get(tuple(keys))
        if reader is None:
            columns = None if self.paths is None else [self._dotted(path) for path in self.paths]
            if columns is not None:
                columns += [key for key in keys if key not in columns]
            reader = self._readers[tuple(keys)] = SplitReader(self.table, columns, self.scan_filter)
        return reader

    def _dotted(self, path: Sequence[int]) -> str:
        """A path as the engine writes it: `column.field.field`."""
        level: list[tuple[str, DataType]] = [(f.name, f.type) for f in self.table.schema.fields]
        names = []
        for index in path:
            if not 0 <= index < len(level):
                raise InvalidRequest(f"there is no column {list(path)} in {self.table.paths.root}")
            name, t = level[index]
            names.append(name)
            level = [(f.name, f.data_type) for f in t.fields]
        if not names:
            raise InvalidRequest("a path to a column has at least one index")
        if len(names) > 1 and any("." in name for name in names):
            raise UnsupportedOperation(f"'{names[-1]}' cannot be read alone: a name on the way to it has a dot")
        return ".".join(names)


def held_offsets(source: PaimonLakeSource, snapshot_id: int) -> dict[tuple[tuple[str, ...], int], int]:
    """How much of each log a snapshot of a table with system columns has at least, by its rows."""
    names = source.schema.names
    projection = source.with_project([[names.index(name)] for name in (BUCKET_COLUMN, OFFSET_COLUMN)])
    offsets: dict[tuple[tuple[str, ...], int], int] = {}
    for split in projection.create_planner(snapshot_id).plan():
        for batch in projection.create_record_reader(split).read():
            newest = pa.table({"bucket": batch.column(0), "offset": batch.column(1)}).group_by("bucket")
            for row in newest.aggregate([("offset", "max")]).to_pylist():
                if row["bucket"] is not None and row["offset_max"] is not None:
                    place = split.partition(), row["bucket"]
                    offsets[place] = max(offsets.get(place, 0), row["offset_max"] + 1)
    return offsets


def _ours(split: LakeSplit) -> PaimonLakeSplit:
    if not isinstance(split, PaimonLakeSplit):
        raise InvalidRequest(f"a {type(split).__name__} is not a split of a Paimon table")
    return split
