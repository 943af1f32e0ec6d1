"""Manifests (which data files were added and deleted) and manifest lists (which manifests make up a snapshot).

Both are Avro files. Rows (partitions, keys, bounds) have their number of fields in front there, and not in our values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from forebay.base.errors import CorruptData
from forebay.paimon.format import avro
from forebay.paimon.format.avro_schemas import MANIFEST_ENTRY, MANIFEST_FILE
from forebay.paimon.format.binary_row import RowLayout
from forebay.paimon.format.file_meta import (
    EMPTY_ROW,
    EMPTY_STATS,
    DataFileMeta,
    FileKind,
    FileSource,
    ManifestEntry,
    ManifestFileMeta,
    SimpleStats,
)
from forebay.paimon.format.stats import bounds

_VERSION = 2
_KINDS = tuple(FileKind)
_SOURCES = tuple(FileSource)
_ARITY = struct.Struct(">i")
_EMPTY_ROW_BYTES = 12  # with its number of fields


def read_manifest(data: bytes) -> list[ManifestEntry]:
    """The entries of a manifest, in their order. Raises `CorruptData`."""
    try:
        return [_entry(record) for record in avro.read_records(data)]
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise CorruptData(f"a manifest entry is malformed: {type(e).__name__} {e}") from e


def write_manifest(entries: Sequence[ManifestEntry], layouts: Arities, compression: str = "zstd") -> bytes:
    """The manifest of `entries`. `layouts` says how many fields partitions and keys have."""
    return avro.write_records(MANIFEST_ENTRY, [_entry_record(e, layouts) for e in entries], compression)


def read_manifest_list(data: bytes) -> list[ManifestFileMeta]:
    """The manifests that a manifest list names, in their order. Raises `CorruptData`."""
    try:
        return [_manifest(record) for record in avro.read_records(data)]
    except (KeyError, TypeError, ValueError) as e:
        raise CorruptData(f"an entry of a manifest list is malformed: {type(e).__name__} {e}") from e


def write_manifest_list(
    manifests: Sequence[ManifestFileMeta], partition_arity: int, compression: str = "zstd"
) -> bytes:
    """The manifest list of `manifests`; `partition_arity` is the number of partition columns."""
    records = [_manifest_record(m, partition_arity) for m in manifests]
    return avro.write_records(MANIFEST_FILE, records, compression)


class Arities:
    """How many fields the rows in a table's manifests have. Value statistics say it themselves, by null counts."""

    def __init__(self, partition: int, key: int) -> None:
        self.partition = _ARITY.pack(partition)
        self.key = _ARITY.pack(key)
        self.none = _ARITY.pack(0)


def describe_manifest(
    name: str, size: int, entries: Sequence[ManifestEntry], partitions: RowLayout, schema_id: int
) -> ManifestFileMeta:
    """What a manifest list says of the manifest `name` with `entries` (at least one)."""
    added = sum(e.kind is FileKind.ADD for e in entries)
    row_ids = [e.file.first_row_id for e in entries]
    known_ids = [i for i in row_ids if i is not None]
    has_ids = len(known_ids) == len(row_ids)
    return ManifestFileMeta(
        file_name=name,
        file_size=size,
        num_added_files=added,
        num_deleted_files=len(entries) - added,
        partition_stats=_partition_stats(partitions, [e.partition for e in entries]),
        schema_id=schema_id,
        min_bucket=min(e.bucket for e in entries),
        max_bucket=max(e.bucket for e in entries),
        min_level=min(e.file.level for e in entries),
        max_level=max(e.file.level for e in entries),
        min_row_id=min(known_ids) if has_ids else None,
        max_row_id=max((e.file.first_row_id or 0) + e.file.row_count - 1 for e in entries) if has_ids else None,
    )


def _partition_stats(layout: RowLayout, partitions: Iterable[bytes]) -> SimpleStats:
    if not layout.fields:
        return SimpleStats()
    counts: dict[bytes, int] = {}
    for partition in partitions:
        counts[partition] = counts.get(partition, 0) + 1
    columns = list(zip(*(layout.decode(partition) for partition in counts), strict=True))
    weights = list(counts.values())
    least, greatest, nulls = [], [], []
    for values, t in zip(columns, layout.types, strict=True):
        low, high = bounds([v for v in values if v is not None], t)
        least.append(low)
        greatest.append(high)
        nulls.append(sum(n for v, n in zip(values, weights, strict=True) if v is None))
    return SimpleStats(layout.encode_one(least), layout.encode_one(greatest), tuple(nulls))


# ---- records --------------------------------------------------------------------------------------------------------


def _row(data: bytes) -> bytes:
    return data[4:] if len(data) > 4 else EMPTY_ROW


def _stats(record: dict[str, Any]) -> SimpleStats:
    if not record["_NULL_COUNTS"] and len(record["_MIN_VALUES"]) <= _EMPTY_ROW_BYTES:
        return EMPTY_STATS
    return SimpleStats(_row(record["_MIN_VALUES"]), _row(record["_MAX_VALUES"]), tuple(record["_NULL_COUNTS"] or ()))


def _strings(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)


def _entry(record: dict[str, Any]) -> ManifestEntry:
    if record["_VERSION"] != _VERSION:
        raise CorruptData(f"manifest version {record['_VERSION']} is not known; version {_VERSION} is")
    return ManifestEntry(
        _KINDS[record["_KIND"]],
        _row(record["_PARTITION"]),
        record["_BUCKET"],
        record["_TOTAL_BUCKETS"],
        parse_data_file(record["_FILE"]),
    )


def parse_data_file(f: dict[str, Any]) -> DataFileMeta:
    """The data file that a record of Java's `DataFileMeta.SCHEMA` describes; fields of newer versions may be absent."""
    get = f.get
    source = get("_FILE_SOURCE")
    sequences = get("_WRITE_COLS_SEQUENCES")
    return DataFileMeta(
        f["_FILE_NAME"],
        f["_FILE_SIZE"],
        f["_ROW_COUNT"],
        _row(f["_MIN_KEY"]),
        _row(f["_MAX_KEY"]),
        _stats(f["_KEY_STATS"]),
        _stats(f["_VALUE_STATS"]),
        f["_MIN_SEQUENCE_NUMBER"],
        f["_MAX_SEQUENCE_NUMBER"],
        f["_SCHEMA_ID"],
        f["_LEVEL"],
        tuple(f["_EXTRA_FILES"] or ()),
        get("_CREATION_TIME"),
        get("_DELETE_ROW_COUNT"),
        get("_EMBEDDED_FILE_INDEX"),
        None if source is None else _SOURCES[source],
        _strings(get("_VALUE_STATS_COLS")),
        get("_EXTERNAL_PATH"),
        get("_FIRST_ROW_ID"),
        _strings(get("_WRITE_COLS")),
        None if sequences is None else tuple(sequences),
    )


def _stats_record(stats: SimpleStats, arity: bytes | None = None) -> dict[str, Any]:
    prefix = _ARITY.pack(len(stats.null_counts)) if arity is None else arity
    return {
        "_MIN_VALUES": prefix + stats.min_values,
        "_MAX_VALUES": prefix + stats.max_values,
        "_NULL_COUNTS": list(stats.null_counts),
    }


def _list(values: Sequence[Any] | None) -> list[Any] | None:
    return None if values is None else list(values)


def _entry_record(e: ManifestEntry, arities: Arities) -> dict[str, Any]:
    return {
        "_VERSION": _VERSION,
        "_KIND": int(e.kind),
        "_PARTITION": arities.partition + e.partition,
        "_BUCKET": e.bucket,
        "_TOTAL_BUCKETS": e.total_buckets,
        "_FILE": data_file_record(e.file, arities),
    }


def data_file_record(f: DataFileMeta, arities: Arities) -> dict[str, Any]:
    """The record of `f` by Java's `DataFileMeta.SCHEMA`."""
    # Keys of append tables are the row without fields, in tables with a primary key too (a file without rows).
    key = arities.none if f.min_key == EMPTY_ROW else arities.key
    return {
        "_FILE_NAME": f.file_name,
        "_FILE_SIZE": f.file_size,
        "_ROW_COUNT": f.row_count,
        "_MIN_KEY": key + f.min_key,
        "_MAX_KEY": key + f.max_key,
        "_KEY_STATS": _stats_record(f.key_stats),
        "_VALUE_STATS": _stats_record(f.value_stats),
        "_MIN_SEQUENCE_NUMBER": f.min_sequence_number,
        "_MAX_SEQUENCE_NUMBER": f.max_sequence_number,
        "_SCHEMA_ID": f.schema_id,
        "_LEVEL": f.level,
        "_EXTRA_FILES": list(f.extra_files),
        "_CREATION_TIME": f.creation_time,
        "_DELETE_ROW_COUNT": f.delete_row_count,
        "_EMBEDDED_FILE_INDEX": f.embedded_index,
        "_FILE_SOURCE": None if f.file_source is None else int(f.file_source),
        "_VALUE_STATS_COLS": _list(f.value_stats_cols),
        "_EXTERNAL_PATH": f.external_path,
        "_FIRST_ROW_ID": f.first_row_id,
        "_WRITE_COLS": _list(f.write_cols),
        "_WRITE_COLS_SEQUENCES": _list(f.write_cols_sequences),
    }


def _manifest(record: dict[str, Any]) -> ManifestFileMeta:
    if record["_VERSION"] != _VERSION:
        raise CorruptData(f"manifest list version {record['_VERSION']} is not known; version {_VERSION} is")
    get = record.get
    return ManifestFileMeta(
        record["_FILE_NAME"],
        record["_FILE_SIZE"],
        record["_NUM_ADDED_FILES"],
        record["_NUM_DELETED_FILES"],
        _stats(record["_PARTITION_STATS"]),
        record["_SCHEMA_ID"],
        get("_MIN_BUCKET"),
        get("_MAX_BUCKET"),
        get("_MIN_LEVEL"),
        get("_MAX_LEVEL"),
        get("_MIN_ROW_ID"),
        get("_MAX_ROW_ID"),
    )


def _manifest_record(m: ManifestFileMeta, partition_arity: int) -> dict[str, Any]:
    return {
        "_VERSION": _VERSION,
        "_FILE_NAME": m.file_name,
        "_FILE_SIZE": m.file_size,
        "_NUM_ADDED_FILES": m.num_added_files,
        "_NUM_DELETED_FILES": m.num_deleted_files,
        "_PARTITION_STATS": _stats_record(m.partition_stats, _ARITY.pack(partition_arity)),
        "_SCHEMA_ID": m.schema_id,
        "_MIN_BUCKET": m.min_bucket,
        "_MAX_BUCKET": m.max_bucket,
        "_MIN_LEVEL": m.min_level,
        "_MAX_LEVEL": m.max_level,
        "_MIN_ROW_ID": m.min_row_id,
        "_MAX_ROW_ID": m.max_row_id,
    }
