"""A minimal tiering service: rounds of changes into one lake table, and reading the lake back as plain rows.

Objects that cross process boundaries in a real one (factories, results, sources, splits) are pickled here, too.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from forebay.codec.arrow.arrow_types import storage_schema, user_schema
from forebay.codec.filters import bind, filter_rows
from forebay.codec.log.log_batch import ChangeType
from forebay.codec.rows.buckets import bucket_ids
from forebay.codec.rows.keys import bucket_key_encoder
from forebay.lake.records import ChangeRows
from forebay.lake.source import LakeSource, LakeSplit
from forebay.lake.storage import LakeStorage
from forebay.lake.tiering import CommitterContext, LakeCommitResult, LakeCommitter, WriterContext
from forebay.metadata.partitions import partition_text
from forebay.metadata.predicate import Predicate, all_of
from forebay.metadata.table import TableDescriptor, TableInfo, TablePath

Row: TypeAlias = dict[str, Any]
Change: TypeAlias = tuple[str, Row]
Place: TypeAlias = tuple[tuple[str, ...], int]
"""The values of a partition, and a bucket."""

KINDS = {
    "+A": ChangeType.APPEND_ONLY,
    "+I": ChangeType.INSERT,
    "-U": ChangeType.UPDATE_BEFORE,
    "+U": ChangeType.UPDATE_AFTER,
    "-D": ChangeType.DELETE,
}
PATH = TablePath("db", "t")
T = TypeVar("T")


def travelled(value: T) -> T:
    """`value` after pickling and unpickling."""
    moved: T = pickle.loads(pickle.dumps(value))
    return moved


def changes_of(info: TableInfo, changes: Iterable[Change], first_offset: int = 0) -> ChangeRows:
    """Changes as a run of log records."""
    listed = list(changes)
    schema = storage_schema(info.schema.columns)
    rows = pa.RecordBatch.from_pylist([row for _, row in listed], schema=schema)
    offsets = pa.array(range(first_offset, first_offset + len(listed)), pa.int64())
    kinds = pa.array([KINDS[kind] for kind, _ in listed], pa.uint8())
    return ChangeRows(rows, offsets, pa.array([1_700_000_000_000] * len(listed), pa.int64()), kinds)


@dataclass
class TieredTable:
    """A lake table that is tiered into. `base` is the snapshot that the next round builds on."""

    storage: LakeStorage
    info: TableInfo
    base: int | None = None
    epoch: int = 1
    offsets: dict[Place, int] = field(default_factory=dict)

    # -- tiering ------------------------------------------------------------------------------------------------------

    def write(
        self,
        place: Place,
        changes: Iterable[Change],
        *,
        chunk: int | None = None,
        attempt: str = "",
        finish: bool = True,
    ) -> Any:
        """The result of a writer of one bucket; without `finish`, the writer, whose files are incomplete."""
        values, bucket = place
        partition = dict(zip(self.info.descriptor.partition_keys, values, strict=True)) or None
        factory = travelled(self.storage.create_tiering_factory())
        writer = factory.create_writer(travelled(WriterContext(self.info, bucket, partition, attempt)))
        start = self.offsets.get(place, 0)
        records = changes_of(self.info, changes, start)
        self.offsets[place] = start + len(records)
        for part in records.slices(chunk or max(1, len(records))):
            writer.write(part)
        return travelled(writer.complete()) if finish else writer

    def committer(self, *, base: int | None = -1, epoch: int | None = None) -> LakeCommitter:
        """A committer, by default with the base and epoch of this table."""
        round_base = self.base if base == -1 else base
        context = CommitterContext(self.info, self.epoch if epoch is None else epoch, round_base)
        return self.storage.create_tiering_factory().create_committer(context)

    def round(
        self,
        changes: Mapping[Place, Iterable[Change]],
        properties: Mapping[str, str] | None = None,
        chunk: int | None = None,
    ) -> LakeCommitResult:
        """Run one round, from writers to commit."""
        results = [self.write(place, listed, chunk=chunk) for place, listed in changes.items()]
        committed = self.committer().commit(results, properties or {})
        self.base = committed.snapshot_id
        return committed

    def changes(self, kind: str, rows: Iterable[Row]) -> dict[Place, list[Change]]:
        """`rows` as changes of one kind, at their places in the stream."""
        placed: dict[Place, list[Change]] = {}
        for row in rows:
            placed.setdefault(self.place_of(row), []).append((kind, row))
        return placed

    def upsert(self, *rows: Row) -> LakeCommitResult:
        """Run a round that inserts or updates."""
        return self.round(self.changes("+U", rows))

    def append(self, *rows: Row) -> LakeCommitResult:
        """Run a round of appended rows."""
        return self.round(self.changes("+A", rows))

    def delete(self, *rows: Row) -> LakeCommitResult:
        """Run a round that deletes."""
        return self.round(self.changes("-D", rows))

    def place_of(self, row: Row) -> Place:
        """The place of `row` in the stream: by the hash of its bucket key; rows without one go to bucket 0."""
        descriptor = self.info.descriptor
        values = tuple(
            partition_text(descriptor.schema.column(key).data_type, row[key]) for key in descriptor.partition_keys
        )
        encoder = bucket_key_encoder(descriptor)
        if encoder is None:
            return values, 0
        batch = pa.RecordBatch.from_pylist([row], schema=storage_schema(descriptor.schema.columns))
        return values, int(bucket_ids(encoder.encode(batch), self.info.bucket_count, descriptor.lake_format)[0])

    # -- schemas ------------------------------------------------------------------------------------------------------

    def altered(self, expected: TableDescriptor) -> TieredTable:
        """Alter the lake table and the stream table to `expected`."""
        with self.storage.create_catalog() as catalog:
            catalog.alter_table(self.info.path, self.info.descriptor, expected)
        return replace(self, info=replace(self.info, descriptor=expected, schema_id=self.info.schema_id + 1))

    # -- reading ------------------------------------------------------------------------------------------------------

    def source(self) -> LakeSource:
        return self.storage.create_source(self.info.path)

    def splits(self, snapshot_id: int | None = None, source: LakeSource | None = None) -> list[LakeSplit]:
        """The splits of a snapshot, by default of the base of the next round."""
        read_id = self.base if snapshot_id is None else snapshot_id
        assert read_id is not None, "nothing was tiered yet"
        return (source or self.source()).create_planner(read_id).plan()

    def read(
        self,
        snapshot_id: int | None = None,
        *,
        source: LakeSource | None = None,
        columns: Sequence[str] | None = None,
        remaining: Sequence[Predicate] = (),
    ) -> list[Row]:
        """The rows of a snapshot in a fixed order, by default with all columns of the stream table."""
        scan = source or self.source()
        rows: list[Row] = []
        for split in self.splits(snapshot_id, scan):
            with travelled(scan).create_record_reader(travelled(split)) as reader:
                for batch in reader.read():
                    assert batch.schema.equals(reader.schema)
                    rows += self.plain(batch, columns, remaining)
        return in_order(rows)

    def plain(
        self, batch: pa.RecordBatch, columns: Sequence[str] | None = None, remaining: Sequence[Predicate] = ()
    ) -> list[Row]:
        """The rows of a reader's batch that pass `remaining`, with the types of the stream table."""
        own = self.info.schema
        names = [n for n in batch.schema.names if n in own.names] if columns is None else columns
        schema = user_schema([own.column(name) for name in names])
        cast = [batch.column(name).cast(schema.field(name).type) for name in names]
        rows = pa.RecordBatch.from_arrays(cast, names=list(names)) if cast else batch
        residual = all_of(remaining)
        if residual is not None:
            rows = filter_rows(rows, bind(residual, [own.column(name) for name in names]))
        listed: list[Row] = rows.to_pylist() if cast else [{} for _ in range(batch.num_rows)]
        return listed


def in_order(rows: Iterable[Row], key: Callable[[Row], Any] = repr) -> list[Row]:
    """Rows in an order that depends only on their values."""
    return sorted(rows, key=key)
