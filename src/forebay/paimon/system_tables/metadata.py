"""System tables about a table's metadata: commits, tags, branches, consumers, and schemas."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from forebay.base.errors import NotFound
from forebay.paimon.format.local_time import local_millis
from forebay.paimon.format.schema_json import format_field
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.format.types_json import format_type
from forebay.paimon.maintain.analyze import columns_json, read_statistics
from forebay.paimon.read.facade import snapshot_by_options
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.schemas import SchemaManager
from forebay.paimon.system_tables.text import duration_text, row_text

TIME = pa.timestamp("ms")


def schema_of(*columns: tuple[str, pa.DataType] | tuple[str, pa.DataType, bool]) -> pa.Schema:
    """An Arrow schema; columns with True as third value are nullable."""
    return pa.schema([pa.field(c[0], c[1], nullable=len(c) == 3) for c in columns])


_TEXT, _LONG = pa.string(), pa.int64()

SNAPSHOTS = schema_of(
    ("snapshot_id", _LONG),
    ("schema_id", _LONG),
    ("commit_user", _TEXT),
    ("commit_identifier", _LONG),
    ("commit_kind", _TEXT),
    ("commit_time", TIME),
    ("base_manifest_list", _TEXT),
    ("delta_manifest_list", _TEXT),
    ("changelog_manifest_list", _TEXT, True),
    ("total_record_count", _LONG, True),
    ("delta_record_count", _LONG, True),
    ("changelog_record_count", _LONG, True),
    ("watermark", _LONG, True),
    ("next_row_id", _LONG, True),
    ("operation", _TEXT, True),
    ("writer_version", _TEXT, True),
)
SCHEMAS = schema_of(
    ("schema_id", _LONG),
    ("fields", _TEXT),
    ("partition_keys", _TEXT),
    ("primary_keys", _TEXT),
    ("options", _TEXT),
    ("comment", _TEXT, True),
    ("update_time", TIME),
)
OPTIONS = schema_of(("key", _TEXT), ("value", _TEXT))
MANIFESTS = schema_of(
    ("file_name", _TEXT),
    ("file_size", _LONG),
    ("num_added_files", _LONG),
    ("num_deleted_files", _LONG),
    ("schema_id", _LONG),
    ("min_partition_stats", _TEXT, True),
    ("max_partition_stats", _TEXT, True),
    ("min_row_id", _LONG, True),
    ("max_row_id", _LONG, True),
)
TAGS = schema_of(
    ("tag_name", _TEXT),
    ("snapshot_id", _LONG),
    ("schema_id", _LONG),
    ("commit_time", TIME),
    ("record_count", _LONG, True),
    ("create_time", TIME, True),
    ("time_retained", _TEXT, True),
)
BRANCHES = schema_of(("branch_name", _TEXT), ("create_time", TIME))
CONSUMERS = schema_of(("consumer_id", _TEXT), ("next_snapshot_id", _LONG))
STATISTICS = schema_of(
    ("snapshot_id", _LONG),
    ("schema_id", _LONG),
    ("mergedRecordCount", _LONG, True),
    ("mergedRecordSize", _LONG, True),
    ("colstat", _TEXT, True),
)

AGGREGATION_FIELDS = schema_of(
    ("field_name", _TEXT),
    ("field_type", _TEXT),
    ("function", _TEXT, True),
    ("function_options", _TEXT, True),
    ("comment", _TEXT, True),
)


def aggregation_fields(table: TableContext) -> pa.Table:
    """The columns with the values of their `fields.<column>.*` options, then the names of these options."""
    rows = []
    for f in SchemaManager(table.io, table.paths).latest().fields:
        field_options = {k: v for k, v in table.schema.options.items() if k.startswith("fields.") and k.count(".") > 1}
        own = {k: v for k, v in field_options.items() if k.split(".")[1] == f.name}
        rows.append(
            {
                "field_name": f.name,
                "field_type": format_type(f.type) if not f.type.is_nested else str(f.type),
                "function": f"[{', '.join(own.values())}]",
                "function_options": f"[{', '.join(own)}]",
                "comment": f.description,
            }
        )
    return _table(AGGREGATION_FIELDS, rows)


def snapshots(table: TableContext) -> pa.Table:
    """The snapshots, oldest first."""
    return _table(SNAPSHOTS, map(_snapshot, table.snapshots.snapshots()))


def _snapshot(s: Snapshot) -> dict[str, Any]:
    return {
        "snapshot_id": s.id,
        "schema_id": s.schema_id,
        "commit_user": s.commit_user,
        "commit_identifier": s.commit_identifier,
        "commit_kind": str(s.commit_kind),
        "commit_time": local_millis(s.time_millis),
        "base_manifest_list": s.base_manifest_list,
        "delta_manifest_list": s.delta_manifest_list,
        "changelog_manifest_list": s.changelog_manifest_list,
        "total_record_count": s.total_record_count,
        "delta_record_count": s.delta_record_count,
        "changelog_record_count": s.changelog_record_count,
        "watermark": s.watermark,
        "next_row_id": s.next_row_id,
        "operation": s.operation,
        "writer_version": s.writer_version,
    }


def schemas(table: TableContext) -> pa.Table:
    """All versions of the schema, oldest first."""
    versions = SchemaManager(table.io, table.paths).all()
    return _table(
        SCHEMAS,
        (
            {
                "schema_id": s.id,
                "fields": _json([format_field(f) for f in s.fields]),
                "partition_keys": _json(list(s.partition_keys)),
                "primary_keys": _json(list(s.primary_keys)),
                "options": _json(dict(s.options)),
                "comment": s.comment,
                "update_time": local_millis(s.time_millis),
            }
            for s in versions
        ),
    )


def options(table: TableContext) -> pa.Table:
    """The options that are set on the table."""
    return _table(OPTIONS, ({"key": k, "value": v} for k, v in table.schema.options.items()))


def manifests(table: TableContext) -> pa.Table:
    """The manifests of the latest snapshot (or of the one chosen by option `scan.snapshot-id` or a tag)."""
    store = table.manifests
    snapshot = scanned_snapshot(table)
    fields, layout = table.schema.partition_fields, store.partitions
    records = []
    for m in () if snapshot is None else store.data_manifests(snapshot):
        has_bounds = len(m.partition_stats.null_counts) == len(fields)
        low, high = (
            row_text(fields, layout.decode(bound)) if has_bounds else None
            for bound in (m.partition_stats.min_values, m.partition_stats.max_values)
        )
        records.append(
            {
                "file_name": m.file_name,
                "file_size": m.file_size,
                "num_added_files": m.num_added_files,
                "num_deleted_files": m.num_deleted_files,
                "schema_id": m.schema_id,
                "min_partition_stats": low,
                "max_partition_stats": high,
                "min_row_id": m.min_row_id,
                "max_row_id": m.max_row_id,
            }
        )
    return _table(MANIFESTS, records)


def tags(table: TableContext) -> pa.Table:
    """The tags, by name."""
    entries = table.tags.tags()
    return _table(
        TAGS,
        (
            {
                "tag_name": t.name,
                "snapshot_id": t.snapshot.id,
                "schema_id": t.snapshot.schema_id,
                "commit_time": local_millis(t.snapshot.time_millis),
                "record_count": t.snapshot.total_record_count,
                "create_time": t.created,
                "time_retained": None if t.retained is None else duration_text(t.retained),
            }
            for t in sorted(entries, key=lambda t: t.name)
        ),
    )


def branches(table: TableContext) -> pa.Table:
    """The branches except main, with their creation times."""
    created = {}
    for status in table.io.list(table.paths.branches_directory):
        created[status.path.rstrip("/").rpartition("/")[2].removeprefix("branch-")] = status.modified_ms or 0
    rows = ({"branch_name": n, "create_time": local_millis(created.get(n, 0))} for n in table.branches.names())
    return _table(BRANCHES, rows)


def consumers(table: TableContext) -> pa.Table:
    """The consumers, with their next snapshots."""
    positions = table.consumers.all()
    return _table(CONSUMERS, ({"consumer_id": k, "next_snapshot_id": v} for k, v in positions.items()))


def statistics(table: TableContext) -> pa.Table:
    """The results of the last ANALYZE; empty if it never ran, or the schema has changed since."""
    snapshot = scanned_snapshot(table)
    if snapshot is None or snapshot.statistics is None:
        return _table(STATISTICS, ())
    s = read_statistics(table, snapshot.statistics)
    row = {
        "snapshot_id": s.snapshot_id,
        "schema_id": s.schema_id,
        "mergedRecordCount": s.merged_record_count,
        "mergedRecordSize": s.merged_record_size,
        "colstat": json.dumps(columns_json(s.columns), indent=2, separators=(",", " : "), ensure_ascii=False),
    }
    return _table(STATISTICS, [row])


_TRAVELS = ("scan.timestamp", "scan.timestamp-millis", "scan.watermark", "scan.version")


def scanned_snapshot(table: TableContext) -> Snapshot | None:
    """The snapshot that the table's options choose, or the latest. Raises `NotFound`."""
    o = table.options
    manager, tags = table.snapshots, table.tags
    if o.scan_snapshot_id is not None:
        try:
            return manager.snapshot(o.scan_snapshot_id)
        except NotFound:
            tagged = [s for s in tags.tagged_snapshots() if s.id == o.scan_snapshot_id]
            if not tagged:
                raise
            return tagged[0]
    if o.scan_tag_name is not None:
        return tags.tag(o.scan_tag_name).snapshot
    if not o.mapping.keys().isdisjoint(_TRAVELS):
        return snapshot_by_options(table)
    return manager.latest()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _table(schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([dict(row) for row in rows], schema)
