"""Reading one snapshot of an Iceberg table: the source, its splits, planner and reader.

A source keeps the schema that the table had when the source was created, so that the indexes of a projection stay
valid. Each key of a table with a primary key is in one row of one file, so splits hold disjoint keys; they are
unordered.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import IcebergType, NestedField, StructType

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.codec.filters import BoundPredicate, bind, mask, normalize
from forebay.lake.source import (
    FilterResult,
    LakeSource,
    LakeSplit,
    Planner,
    RecordReader,
    SnapshotSuccessor,
    SplitSerializer,
)
from forebay.lake.tiering import CommittedLakeSnapshot
from forebay.lakes.iceberg_cache import TableCache
from forebay.lakes.iceberg_conditions import condition_of
from forebay.lakes.iceberg_errors import lake_errors
from forebay.lakes.iceberg_history import history, newest_tiered, tiering_properties, was_undone
from forebay.lakes.iceberg_keys import Deletes
from forebay.lakes.iceberg_layout import DeleteFile, LiveFile, Places, live_files
from forebay.lakes.iceberg_plain import PlainColumns
from forebay.lakes.iceberg_rows import live_batches
from forebay.lakes.iceberg_tables import load_table, opened
from forebay.lakes.iceberg_types import arrow_schema, stream_type
from forebay.metadata.predicate import Predicate, all_of
from forebay.metadata.table import Column, TablePath

_SPLIT_VERSION = 1
_TARGET, _TARGET_DEFAULT = "read.split.target-size", 128 << 20
_OPEN_COST, _OPEN_COST_DEFAULT = "read.split.open-file-cost", 4 << 20


# ---- splits ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SplitFile:
    """A data file of a split; `deletes` are indexes into the split's list."""

    path: str
    form: str
    deletes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class IcebergLakeSplit(LakeSplit):
    """Some files of one bucket, and the deletes that apply to them.

    `records` is the number of rows in the files, including deleted ones. `is_plain`: any Parquet reader finds the same
    rows, for the columns of the scan that planned the split.
    """

    stream_bucket: int
    values: tuple[str, ...]
    snapshot_id: int
    files: tuple[SplitFile, ...]
    deletes: tuple[DeleteFile, ...] = ()
    records: int | None = None
    is_plain: bool = False

    def bucket(self) -> int:
        return self.stream_bucket

    def partition(self) -> tuple[str, ...]:
        return self.values

    def rows(self) -> int | None:
        return self.records

    def deletes_of(self, file: SplitFile) -> tuple[DeleteFile, ...]:
        """The deletes that apply to one of the files."""
        return tuple(self.deletes[i] for i in file.deletes)


class IcebergSplitSerializer(SplitSerializer[LakeSplit]):
    """Version 1: compressed JSON. The first release wrote neither `records` nor `plain`."""

    @property
    def version(self) -> int:
        return _SPLIT_VERSION

    def serialize(self, split: LakeSplit) -> bytes:
        """The split as compressed JSON, without its table."""
        split = _ours(split)
        document = {
            "bucket": split.stream_bucket,
            "partition": split.values,
            "snapshot": split.snapshot_id,
            "files": [(f.path, f.form, f.deletes) for f in split.files],
            "deletes": [(d.path, d.form, d.sequence, d.equality_ids) for d in split.deletes],
            "records": split.records,
            "plain": split.is_plain,
        }
        return zlib.compress(json.dumps(document, separators=(",", ":")).encode())

    def deserialize(self, version: int, data: bytes) -> IcebergLakeSplit:
        """See `SplitSerializer.deserialize`. Fields that the first release did not write get their defaults."""
        if version > _SPLIT_VERSION:
            raise UnsupportedOperation(f"a split of version {version} is newer than this release, which reads 1")
        try:
            document = json.loads(zlib.decompress(data))
            return IcebergLakeSplit(
                int(document["bucket"]),
                tuple(document["partition"]),
                int(document["snapshot"]),
                tuple(SplitFile(path, form, tuple(deletes)) for path, form, deletes in document["files"]),
                tuple(DeleteFile(p, form, sequence, tuple(ids)) for p, form, sequence, ids in document["deletes"]),
                document.get("records"),
                bool(document.get("plain", False)),
            )
        except (zlib.error, ValueError, KeyError, TypeError) as e:
            raise CorruptData(f"these bytes are not a split of an Iceberg table: {e!r}") from e


def _ours(split: LakeSplit) -> IcebergLakeSplit:
    if not isinstance(split, IcebergLakeSplit):
        raise InvalidRequest(f"{split!r} is not a split of an Iceberg table")
    return split


# ---- planning -------------------------------------------------------------------------------------------------------


class IcebergSplitPlanner(Planner[LakeSplit]):
    """Plans one snapshot."""

    def __init__(self, source: IcebergLakeSource, snapshot_id: int) -> None:
        self._source, self._id = source, snapshot_id
        self._table = source.load()
        if self._table.metadata.snapshot_by_id(snapshot_id) is None:
            raise _snapshot_not_found(source.path, snapshot_id)

    @property
    def properties(self) -> Mapping[str, str] | None:
        snapshot = self._table.metadata.snapshot_by_id(self._id)
        return None if snapshot is None else tiering_properties(snapshot)

    @lake_errors("the metadata of the lake")
    def plan(self) -> list[LakeSplit]:
        source = self._source
        if source.tables is None:
            return list(self._planned()[0])
        request = self._id, repr(source.filters), source.paths, repr(source.table_schema)
        return list(source.tables.planned(self._table, request, self._planned))

    def _planned(self) -> tuple[tuple[LakeSplit, ...], int]:
        """The splits, and how many files they have."""
        table, source = self._table, self._source
        condition = condition_of(source.predicate, source.table_schema)
        snapshot = table.metadata.snapshot_by_id(self._id)
        try:
            files = live_files(table.metadata, snapshot, table.io, schema=source.table_schema, condition=condition)
        except NotFound as e:
            raise source.explained(e, self._id) from e
        places = Places(table.metadata)
        plain = PlainColumns(table.metadata, source.fields)
        groups: dict[tuple[int, tuple[str, ...]], list[LiveFile]] = {}
        for f in files:
            groups.setdefault(places.of(f.file), []).append(f)
        splits = tuple(
            _split(bucket, values, self._id, part, plain)
            for (bucket, values), group in groups.items()
            for part in _parts(group, table.properties)
        )
        return splits, len(files)


def _parts(files: Sequence[LiveFile], properties: Mapping[str, str]) -> Iterator[list[LiveFile]]:
    """Groups of files of about the size of a split."""
    target = int(properties.get(_TARGET, _TARGET_DEFAULT))
    cost = int(properties.get(_OPEN_COST, _OPEN_COST_DEFAULT))
    part: list[LiveFile] = []
    size = 0
    for f in files:
        weight = max(f.file.file_size_in_bytes, cost)
        if part and size + weight > target:
            yield part
            part, size = [], 0
        part.append(f)
        size += weight
    if part:
        yield part


def _split(
    bucket: int, values: tuple[str, ...], snapshot_id: int, files: Sequence[LiveFile], plain: PlainColumns
) -> IcebergLakeSplit:
    deletes = tuple(dict.fromkeys(d for f in files for d in f.deletes))
    places = {d: i for i, d in enumerate(deletes)}
    listed = tuple(
        SplitFile(f.file.file_path, f.file.file_format.value, tuple(places[d] for d in f.deletes)) for f in files
    )
    records = sum(f.file.record_count for f in files)
    return IcebergLakeSplit(bucket, values, snapshot_id, listed, deletes, records, all(plain.are_in(f) for f in files))


def _snapshot_not_found(path: TablePath, snapshot_id: int, why: str = "") -> NotFound:
    return NotFound(
        f"lake snapshot {snapshot_id} of {path} does not exist, or has expired{why}", ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
    )


# ---- reading --------------------------------------------------------------------------------------------------------


class IcebergRecordReader(RecordReader):
    """Reads one split, one file after the other."""

    def __init__(self, source: IcebergLakeSource, split: IcebergLakeSplit) -> None:
        self._source, self._split = source, split
        self._fields = source.fields
        self._schema = arrow_schema(self._fields)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def read(self) -> Iterator[pa.RecordBatch]:
        """See `RecordReader.read`. Raises `NotFound` (code LAKE_SNAPSHOT_NOT_EXIST) if the snapshot has expired."""
        remaining = self._source.limit
        try:
            for batch in self._reading():
                if remaining is not None:
                    batch = batch.slice(0, remaining)
                    remaining -= batch.num_rows
                if batch.num_rows:
                    yield batch
                if remaining == 0:
                    return
        except NotFound as e:
            raise self._source.explained(e, self._split.snapshot_id) from e

    def _reading(self) -> Iterator[pa.RecordBatch]:
        with lake_errors("a file of the lake"):
            yield from self._matching()

    def _matching(self) -> Iterator[pa.RecordBatch]:
        """The rows left after the deletes and the filters."""
        if self._source.limit == 0:
            return
        source, split = self._source, self._split
        predicate = source.bound
        more = [] if predicate is None else sorted(source.predicate_columns)
        fields = [*self._fields, *(source.table_schema.find_field(name) for name in more)]
        width = len(self._fields)
        io = source.io()
        deletes = Deletes(io, {f.path: split.deletes_of(f) for f in split.files}, source.table_schema)
        for file in split.files:
            for batch in live_batches(io, file.path, fields, deletes, file.form):
                if predicate is not None:
                    batch = batch.filter(mask(predicate, batch.select(range(width, len(fields)))))
                    batch = batch.select(range(width))
                yield batch


# ---- the source -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IcebergLakeSource(LakeSource):
    """A scan of one Iceberg table. `io_properties` let workers access its files without the catalog."""

    options: Mapping[str, str] = field(repr=False)
    path: TablePath
    table_schema: Schema
    location: str
    io_properties: Mapping[str, str] = field(repr=False)
    paths: tuple[tuple[int, ...], ...] | None = None
    filters: tuple[Predicate, ...] = ()
    limit: int | None = None
    tables: TableCache | None = field(default=None, compare=False, repr=False)
    """Tables that this process keeps; they stay behind where the source is pickled."""

    @classmethod
    def of(cls, options: Mapping[str, str], path: TablePath, table: Table, tables: TableCache) -> IcebergLakeSource:
        """A scan of all columns of a table."""
        properties = {k: v for k, v in table.io.properties.items() if isinstance(v, str)}
        return cls(dict(options), path, table.metadata.schema(), table.location(), properties, tables=tables)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "tables": None}

    @property
    def schema(self) -> pa.Schema:
        return arrow_schema(self.table_schema.fields)

    def with_project(self, paths: Sequence[Sequence[int]]) -> IcebergLakeSource:
        source = replace(self, paths=tuple(tuple(path) for path in paths))
        _projected(self.table_schema, source.paths or ())  # rejects missing columns
        return source

    def with_limit(self, limit: int) -> IcebergLakeSource:
        if limit < 0:
            raise InvalidRequest(f"a limit is a number of rows, 0 or more; got {limit}")
        return replace(self, limit=limit)

    def with_filters(self, filters: Sequence[Predicate]) -> FilterResult:
        """See `LakeSource.with_filters`. Accepts filters that Iceberg can express on the columns of the table."""
        accepted: list[Predicate] = []
        remaining: list[Predicate] = []
        for predicate in filters:
            (accepted if self._understands(predicate) else remaining).append(predicate)
        return FilterResult(
            replace(self, filters=(*self.filters, *accepted)), tuple(accepted), tuple(remaining)
        )  # fmt: skip

    def _understands(self, predicate: Predicate) -> bool:
        try:
            bind(predicate, self._columns)
        except InvalidRequest:
            return False
        return True

    def create_planner(self, snapshot_id: int) -> IcebergSplitPlanner:
        return IcebergSplitPlanner(self, snapshot_id)

    @lake_errors("the metadata of the lake")
    def successor(self, snapshot_id: int) -> SnapshotSuccessor | None:
        """See `LakeSource.successor`: the only child of the snapshot. None without a child or with several."""
        # When Java expires the parent, its id remains in the child; pyiceberg's expiry removes it.
        children = [s for s in self.load().metadata.snapshots if s.parent_snapshot_id == snapshot_id]
        if len(children) != 1:
            return None
        summary = children[0].summary
        return SnapshotSuccessor(
            children[0].snapshot_id, summary is not None and summary.operation is Operation.REPLACE
        )

    @lake_errors("the metadata of the lake")
    def newest_tiered(self) -> CommittedLakeSnapshot | None:
        return newest_tiered(self.load())

    @lake_errors("the metadata of the lake")
    def was_undone(self, snapshot_id: int, offsets_name: str | None) -> bool:
        return was_undone(self.load(), snapshot_id)

    @lake_errors("the metadata of the lake")
    def tagged(self, name: str) -> int | None:
        ref = self.load().metadata.refs.get(name)
        is_tag = ref is not None and ref.snapshot_ref_type == SnapshotRefType.TAG
        return ref.snapshot_id if is_tag and ref is not None else None

    def snapshots_until(self, time_ms: int) -> Iterator[int]:
        """Of the table's own history; snapshots of other branches do not count."""
        for snapshot in history(self.load().metadata):
            if snapshot.timestamp_ms <= time_ms:
                yield snapshot.snapshot_id

    def create_record_reader(self, split: LakeSplit) -> IcebergRecordReader:
        return IcebergRecordReader(self, _ours(split))

    def plain_files(self, split: LakeSplit) -> tuple[str, ...] | None:
        split = _ours(split)
        return tuple(file.path for file in split.files) if split.is_plain else None

    def split_serializer(self) -> IcebergSplitSerializer:
        return IcebergSplitSerializer()

    # -- for planners and readers -------------------------------------------------------------------------------------

    def load(self) -> Table:
        """The current table."""
        if self.tables is not None:
            return self.tables.table(self.path)
        with opened(self.options) as catalog:
            return load_table(catalog, self.path)

    def io(self) -> FileIO:
        """Access to the table's files."""
        return load_file_io(dict(self.io_properties), self.location)

    @cached_property
    def _columns(self) -> tuple[Column, ...]:
        """The columns that filters may use."""
        return tuple(
            Column(f.name, stream_type(f.field_type)) for f in self.table_schema.fields if f.field_type.is_primitive
        )

    @property
    def fields(self) -> list[NestedField]:
        """The columns to read, in order; only the selected fields of structs."""
        return list(self.table_schema.fields) if self.paths is None else _projected(self.table_schema, self.paths)

    @property
    def predicate(self) -> Predicate | None:
        """The conjunction of all filters, with literals of the columns' types."""
        conjunction = all_of(self.filters)
        return None if conjunction is None else normalize(conjunction, self._columns)

    @property
    def bound(self) -> BoundPredicate | None:
        """The conjunction of all filters, bound for rows."""
        conjunction = all_of(self.filters)
        return None if conjunction is None else bind(conjunction, self._columns)

    @property
    def predicate_columns(self) -> frozenset[str]:
        """The columns that the filters use."""
        return frozenset().union(*(f.columns() for f in self.filters))

    def explained(self, e: NotFound, snapshot_id: int) -> NotFound:
        """The error to raise for `e`: that the snapshot does not exist, if so, otherwise `e` itself."""
        if self.load().metadata.snapshot_by_id(snapshot_id) is not None:
            return e
        return _snapshot_not_found(self.path, snapshot_id, f": {e.message}")


def _projected(schema: Schema, paths: Sequence[Sequence[int]]) -> list[NestedField]:
    """The fields named by `paths`: one per column, in the order of the first path into it."""
    inner_paths: dict[int, list[Sequence[int]]] = {}
    for path in paths:
        if not path or not 0 <= path[0] < len(schema.fields):
            raise InvalidRequest(f"there is no column {list(path)}; the table has {len(schema.fields)}")
        inner_paths.setdefault(path[0], []).append(path[1:])
    return [_pruned(schema.fields[i], inner) for i, inner in inner_paths.items()]


def _pruned(f: NestedField, paths: Sequence[Sequence[int]]) -> NestedField:
    if any(not path for path in paths):
        if len(paths) > 1:
            raise InvalidRequest(f"column '{f.name}' is named twice")
        return f
    t = f.field_type
    if not isinstance(t, StructType):
        raise InvalidRequest(f"'{f.name}' of type {t} has no fields to choose from")
    inner: dict[int, list[Sequence[int]]] = {}
    for path in paths:
        if not 0 <= path[0] < len(t.fields):
            raise InvalidRequest(f"there is no field {path[0]} in '{f.name}'")
        inner.setdefault(path[0], []).append(path[1:])
    children: Any = [_pruned(t.fields[i], inner[i]) for i in sorted(inner)]
    struct: IcebergType = StructType(*children)
    return NestedField(f.field_id, f.name, struct, f.required, f.doc)
