"""The layout of a snapshot of an Iceberg table: data files, their deletes, and their buckets and partitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
)
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.typedef import Record

from forebay.base.errors import NotFound
from forebay.lake.source import BUCKET_COLUMN, UNAWARE_BUCKET
from forebay.lakes.iceberg_conditions import partition_condition
from forebay.lakes.iceberg_files import PATH_FIELD
from forebay.lakes.iceberg_types import python_value, stream_type
from forebay.metadata.partitions import partition_text

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The name of the null partition, which a stream table does not have."""


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A delete file. `equality_ids`: the columns that identify deleted rows by value; () for position deletes."""

    path: str
    form: str
    sequence: int
    equality_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of a snapshot and the deletes that apply to it."""

    file: DataFile
    sequence: int
    deletes: tuple[DeleteFile, ...] = ()


@dataclass
class _Deletes:
    """The delete files of one partition; those of unpartitioned specs apply to all."""

    entries: list[tuple[DeleteFile, DataFile]] = field(default_factory=list)

    def applying_to(self, data: ManifestEntry) -> Iterator[DeleteFile]:
        sequence, path = data.sequence_number or 0, data.data_file.file_path.encode()
        for delete, file in self.entries:
            if delete.equality_ids:
                if delete.sequence > sequence:
                    yield delete
            elif delete.sequence >= sequence and _may_have(file, path):
                yield delete


def _may_have(file: DataFile, path: bytes) -> bool:
    """Whether a position delete file may have entries for the data file `path`."""
    low = (file.lower_bounds or {}).get(PATH_FIELD.field_id)
    high = (file.upper_bounds or {}).get(PATH_FIELD.field_id)
    return (low is None or low <= path) and (high is None or path[: len(high)] <= high)


def live_files(
    metadata: TableMetadata,
    snapshot: Snapshot | None,
    io: FileIO,
    *,
    partition: Record | None = None,
    schema: Schema | None = None,
    condition: BooleanExpression | None = None,
) -> list[LiveFile]:
    """The data files of `snapshot` with their deletes, oldest first.

    If given, only those of `partition`, and that may have rows for which `condition` (on columns of `schema`) holds.
    Raises `NotFound` if files of the snapshot are gone.
    """
    if snapshot is None:
        return []
    selection = _FileFilter(metadata, schema or metadata.schema(), condition or AlwaysTrue(), partition)
    deletes: dict[tuple[int, Record], _Deletes] = {}
    everywhere = _Deletes()
    data: list[ManifestEntry] = []
    for entry in _entries(snapshot, io, selection):
        file = entry.data_file
        if file.content is DataFileContent.DATA:
            if selection.may_match(file):
                data.append(entry)
            continue
        ids = tuple(file.equality_ids or ()) if file.content is DataFileContent.EQUALITY_DELETES else ()
        delete_file = DeleteFile(file.file_path, file.file_format.value, entry.sequence_number or 0, ids)
        is_global = bool(ids) and not metadata.specs()[file.spec_id].fields
        scope = everywhere if is_global else deletes.setdefault((file.spec_id, file.partition), _Deletes())
        scope.entries.append((delete_file, file))
    live = []
    for entry in data:
        own = deletes.get((entry.data_file.spec_id, entry.data_file.partition), _Deletes())
        applying = (*own.applying_to(entry), *everywhere.applying_to(entry))
        live.append(LiveFile(entry.data_file, entry.sequence_number or 0, applying))
    return sorted(live, key=lambda f: (f.sequence, f.file.file_path))


def _entries(snapshot: Snapshot, io: FileIO, selection: _FileFilter) -> Iterator[ManifestEntry]:
    try:
        for manifest in snapshot.manifests(io):
            # Deletes are selected by partition alone, because their statistics do not describe rows.
            if selection.has_partitions(manifest):
                for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
                    if manifest.content is ManifestContent.DELETES or selection.has_partition(entry.data_file):
                        yield entry
    except FileNotFoundError as e:
        raise NotFound(f"a manifest of snapshot {snapshot.snapshot_id} is gone: {e}") from e


class _FileFilter:
    """Selects the manifests and files that a scan needs."""

    def __init__(
        self, metadata: TableMetadata, schema: Schema, condition: BooleanExpression, partition: Record | None
    ) -> None:
        self._schema, self._condition, self._partition = schema, condition, partition
        self._specs = metadata.specs()
        self._own_schema = metadata.schema()
        self._spec_id = metadata.default_spec_id
        self._everything = isinstance(condition, AlwaysTrue)
        self._projected: dict[int, BooleanExpression] = {}
        self._metrics = None if self._everything else _InclusiveMetricsEvaluator(schema, condition)

    def _projection(self, spec: PartitionSpec) -> BooleanExpression:
        if spec.spec_id not in self._projected:
            self._projected[spec.spec_id] = inclusive_projection(self._schema, spec)(self._condition)
        return self._projected[spec.spec_id]

    def has_partitions(self, manifest: ManifestFile) -> bool:
        """Whether a manifest may have selected files, or deletes of such files."""
        if self._partition is not None and not self._has_the_partition(manifest, self._partition):
            return False
        if self._everything:
            return True
        spec = self._specs[manifest.partition_spec_id]
        return bool(manifest_evaluator(spec, self._own_schema, self._projection(spec), True)(manifest))

    def _has_the_partition(self, manifest: ManifestFile, partition: Record) -> bool:
        spec = self._specs[manifest.partition_spec_id]
        if spec.spec_id != self._spec_id:
            return manifest.content is ManifestContent.DELETES and not spec.fields
        return bool(manifest_evaluator(spec, self._own_schema, partition_condition(spec, partition), True)(manifest))

    def has_partition(self, file: DataFile) -> bool:
        if self._partition is not None and (file.spec_id, file.partition) != (self._spec_id, self._partition):
            return False
        if self._everything:
            return True
        spec = self._specs[file.spec_id]
        kind = spec.partition_type(self._own_schema)
        return bool(expression_evaluator(Schema(*kind.fields), self._projection(spec), True)(file.partition))

    def may_match(self, file: DataFile) -> bool:
        return self._metrics is None or bool(self._metrics.eval(file))


# ---- where files belong ---------------------------------------------------------------------------------------------


class Places:
    """The bucket and the partition of files, in terms of the stream table."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._specs, self._schema = metadata.specs(), metadata.schema()
        self._cache: dict[tuple[int, Record], tuple[int, tuple[str, ...]]] = {}

    def of(self, file: DataFile) -> tuple[int, tuple[str, ...]]:
        """The bucket, or `UNAWARE_BUCKET`, and the partition's values as strings."""
        key = file.spec_id, file.partition
        if key not in self._cache:
            self._cache[key] = self._place(self._specs[file.spec_id], file.partition)
        return self._cache[key]

    def _place(self, spec: PartitionSpec, partition: Record) -> tuple[int, tuple[str, ...]]:
        bucket, values = UNAWARE_BUCKET, []
        for i, f in enumerate(spec.fields):
            name = self._schema.find_column_name(f.source_id)
            is_bucket = name == BUCKET_COLUMN or isinstance(f.transform, BucketTransform)
            if is_bucket:
                bucket = UNAWARE_BUCKET if partition[i] is None else int(partition[i])
            elif isinstance(f.transform, IdentityTransform):
                t = self._schema.find_type(f.source_id)
                value = partition[i]
                has_value = value is not None
                values.append(partition_text(stream_type(t), python_value(t, value)) if has_value else NULL_PARTITION)
        return bucket, tuple(values)
