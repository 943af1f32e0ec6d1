"""System tables about a snapshot's data files: one row for each file, partition, or bucket."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pyarrow as pa

from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import EMPTY_ROW, FileSource, ManifestEntry
from forebay.paimon.format.partition_path import value_text
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.format.stats import ColumnStats, unpack_stats
from forebay.paimon.store.context import TableContext
from forebay.paimon.system_tables.metadata import TIME, scanned_snapshot, schema_of
from forebay.paimon.system_tables.text import array_text, map_text, object_text, row_text

_TEXT, _LONG, _INT = pa.string(), pa.int64(), pa.int32()

FILES = schema_of(
    ("partition", _TEXT, True),
    ("bucket", _INT),
    ("file_path", _TEXT),
    ("file_format", _TEXT),
    ("schema_id", _LONG),
    ("level", _INT),
    ("record_count", _LONG),
    ("file_size_in_bytes", _LONG),
    ("min_key", _TEXT, True),
    ("max_key", _TEXT, True),
    ("null_value_counts", _TEXT),
    ("min_value_stats", _TEXT),
    ("max_value_stats", _TEXT),
    ("min_sequence_number", _LONG, True),
    ("max_sequence_number", _LONG, True),
    ("creation_time", TIME, True),
    ("deleteRowCount", _LONG, True),
    ("file_source", _TEXT, True),
    ("first_row_id", _LONG, True),
    ("write_cols", pa.list_(_TEXT), True),
)
PARTITIONS = schema_of(
    ("partition", _TEXT, True),
    ("record_count", _LONG),
    ("file_size_in_bytes", _LONG),
    ("file_count", _LONG),
    ("last_update_time", TIME, True),
    ("created_at", TIME, True),
    ("created_by", _TEXT, True),
    ("updated_by", _TEXT, True),
    ("options", _TEXT, True),
    ("total_buckets", _INT),
    ("done", pa.bool_()),
    ("deleted_record_count", _LONG, True),
)
BUCKETS = schema_of(
    ("partition", _TEXT, True),
    ("bucket", _INT),
    ("record_count", _LONG),
    ("file_size_in_bytes", _LONG),
    ("file_count", _LONG),
    ("last_update_time", TIME, True),
)


def files(table: TableContext) -> pa.Table:
    """The data files of the snapshot, including those of level 0."""
    describer = _Describer(table)
    return pa.Table.from_pylist([describer.row(e) for e in _entries(table)], FILES)


def partitions(table: TableContext) -> pa.Table:
    """The partitions of the snapshot, by name."""
    groups: dict[bytes, list[ManifestEntry]] = defaultdict(list)
    for e in _entries(table):
        groups[e.partition].append(e)
    updated = _last_updates(table, lambda e: e.partition)
    fields, default = table.schema.partition_fields, table.options.partition_default_name
    layout = row_layout(fields)
    rows = []
    for partition, entries in groups.items():
        values = zip(fields, layout.decode(partition), strict=True)
        texts = [f"{f.name}={default if v is None else value_text(f.type, v, legacy=False)}" for f, v in values]
        rows.append(
            {
                "partition": "/".join(texts),
                **_totals(entries),
                "last_update_time": updated[partition],
                "total_buckets": entries[-1].total_buckets,
                "done": False,
            }
        )
    return pa.Table.from_pylist(sorted(rows, key=lambda r: str(r["partition"])), PARTITIONS)


def buckets(table: TableContext) -> pa.Table:
    """The buckets of the snapshot, by partition and number."""
    groups: dict[tuple[bytes, int], list[ManifestEntry]] = defaultdict(list)
    for e in _entries(table):
        groups[(e.partition, e.bucket)].append(e)
    updated = _last_updates(table, lambda e: (e.partition, e.bucket))
    fields = table.schema.partition_fields
    layout = row_layout(fields)
    rows = [
        {
            "partition": row_text(fields, layout.decode(place[0])),
            "bucket": place[1],
            **_totals(entries),
            "last_update_time": updated[place],
        }
        for place, entries in groups.items()
    ]
    return pa.Table.from_pylist(sorted(rows, key=lambda r: (r["partition"], r["bucket"])), BUCKETS)


def _entries(table: TableContext) -> list[ManifestEntry]:
    snapshot = scanned_snapshot(table)
    return [] if snapshot is None else table.manifests.live_files(snapshot)


def _totals(entries: Iterable[ManifestEntry]) -> dict[str, Any]:
    metas = [e.file for e in entries]
    return {
        "record_count": sum(f.row_count for f in metas),
        "file_size_in_bytes": sum(f.file_size for f in metas),
        "file_count": len(metas),
    }


_Place = TypeVar("_Place")


def _last_updates(table: TableContext, place_of: Callable[[ManifestEntry], _Place]) -> dict[_Place, Any]:
    """The creation time of the newest file of each place, including deleted files that manifests still list."""
    snapshot = scanned_snapshot(table)
    store = table.manifests
    newest: dict[_Place, Any] = {}
    for e in () if snapshot is None else store.entries(store.data_manifests(snapshot)):
        place, time = place_of(e), e.file.creation_time
        newest[place] = max((t for t in (time, newest.get(place)) if t is not None), default=None)
    return newest


class _Describer:
    """Describes data files with the current schema."""

    def __init__(self, table: TableContext) -> None:
        self._table = table
        self._partition_layout = row_layout(table.schema.partition_fields)

    def row(self, e: ManifestEntry) -> dict[str, Any]:
        f, schema = e.file, self._table.schemas.schema(e.file.schema_id)
        stats = self._stats(e, schema)
        types = {field.name: field.type for field in self._table.schema.fields}
        path = self._table.paths.data_file(e.partition, e.bucket, f)
        fields = self._table.schema.partition_fields
        return {
            "partition": row_text(fields, self._partition_layout.decode(e.partition)),
            "bucket": e.bucket,
            "file_path": path,
            "file_format": path.rpartition(".")[2],
            "schema_id": f.schema_id,
            "level": f.level,
            "record_count": f.row_count,
            "file_size_in_bytes": f.file_size,
            "min_key": self._key(schema, f.min_key),
            "max_key": self._key(schema, f.max_key),
            "null_value_counts": map_text(
                {n: "null" if s.null_count is None else str(s.null_count) for n, s in stats.items()}
            ),
            "min_value_stats": map_text({n: object_text(types[n], s.min) for n, s in stats.items()}),
            "max_value_stats": map_text({n: object_text(types[n], s.max) for n, s in stats.items()}),
            "min_sequence_number": f.min_sequence_number,
            "max_sequence_number": f.max_sequence_number,
            "creation_time": f.creation_time,
            "deleteRowCount": f.delete_row_count,
            "file_source": None if f.file_source is None else FileSource(f.file_source).name,
            "first_row_id": f.first_row_id,
            "write_cols": None if f.write_cols is None else list(f.write_cols),
        }

    def _stats(self, e: ManifestEntry, schema: TableSchema) -> dict[str, ColumnStats]:
        """Statistics by the current column names; columns that were added later are all null."""
        stats = unpack_stats(e.file.value_stats, schema.fields, e.file.value_stats_cols)
        by_id = {field.id: stats.get(field.name, ColumnStats()) for field in schema.fields}
        added = ColumnStats(null_count=e.file.row_count)
        return {field.name: by_id.get(field.id, added) for field in self._table.schema.fields}

    @staticmethod
    def _key(schema: TableSchema, key: bytes) -> str | None:
        if key == EMPTY_ROW:  # in append tables
            return None
        fields = schema.fields_named(schema.trimmed_primary_keys)
        return array_text(fields, row_layout(fields).decode(key))
