"""Manifests (added and deleted data files) and manifest lists (the manifests of a snapshot).

Both are Avro files. There, rows (partitions, keys, bounds) are preceded by their number of fields; in our values, they
are not.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from forebay.base.errors import CorruptData, InvalidRequest
from forebay.paimon.format import avro
from forebay.paimon.format._avro import Records
from forebay.paimon.format._manifest_encode import encode_entries, encode_manifests
from forebay.paimon.format.avro_columns import AvroField, read_columns
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
from forebay.paimon.format.manifest_rows import VERSION
from forebay.paimon.format.stats import bounds

_ENTRY_SCHEMA = json.dumps(MANIFEST_ENTRY).encode()
_LIST_SCHEMA = json.dumps(MANIFEST_FILE).encode()
_SOURCES = tuple(FileSource)
_ARITY = struct.Struct(">i")
_EMPTY_ROW_BYTES = 12  # including the number of fields

_LIST_FIELDS = (
    AvroField("_VERSION", "number"),
    AvroField("_FILE_NAME", "text"),
    AvroField("_FILE_SIZE", "number"),
    AvroField("_NUM_ADDED_FILES", "number"),
    AvroField("_NUM_DELETED_FILES", "number"),
    AvroField("_SCHEMA_ID", "number"),
    AvroField("_PARTITION_STATS._MIN_VALUES", "bytes"),
    AvroField("_PARTITION_STATS._MAX_VALUES", "bytes"),
    AvroField("_PARTITION_STATS._NULL_COUNTS", "numbers", required=False),
    AvroField("_MIN_BUCKET", "number", required=False),
    AvroField("_MAX_BUCKET", "number", required=False),
    AvroField("_MIN_LEVEL", "number", required=False),
    AvroField("_MAX_LEVEL", "number", required=False),
    AvroField("_MIN_ROW_ID", "number", required=False),
    AvroField("_MAX_ROW_ID", "number", required=False),
)
_NAME_SLOT, _STATS_SLOT, _BORDERS_SLOT = 1, 6, 9
_NUMBER_SLOTS = (0, 2, 3, 4, 5)


def write_manifest(entries: Sequence[ManifestEntry], layouts: Arities, compression: str = "zstd") -> bytes:
    """The manifest of `entries`. `layouts` has the number of fields of partitions and keys."""
    blocks = []
    for start in range(0, len(entries), avro.BLOCK_RECORDS):
        chunk = entries[start : start + avro.BLOCK_RECORDS]
        try:
            blocks.append((len(chunk), encode_entries(chunk, VERSION, layouts.partition, layouts.key)))
        except (TypeError, OverflowError) as e:
            raise InvalidRequest(f"a manifest entry does not fit its Avro schema: {e}") from e
    return avro.write_container(_ENTRY_SCHEMA, blocks, compression)


def read_manifest_list(data: bytes) -> list[ManifestFileMeta]:
    """The manifests in a manifest list, in order. Raises `CorruptData`."""
    try:
        records = read_columns(data, _LIST_FIELDS)
        return [_manifest(records, i) for i in range(records.count)]
    except UnicodeDecodeError as e:
        raise CorruptData(f"a text in a manifest list is not UTF-8: {e}") from e


def write_manifest_list(
    manifests: Sequence[ManifestFileMeta], partition_arity: int, compression: str = "zstd"
) -> bytes:
    """The manifest list of `manifests`; `partition_arity` is the number of partition columns."""
    try:
        records = encode_manifests(manifests, VERSION, _ARITY.pack(partition_arity))
    except (TypeError, OverflowError) as e:
        raise InvalidRequest(f"an entry of a manifest list does not fit its Avro schema: {e}") from e
    return avro.write_container(_LIST_SCHEMA, [(len(manifests), records)] if manifests else [], compression)


class Arities:
    """The number of fields of the rows in a table's manifests. For value statistics, null counts determine it."""

    def __init__(self, partition: int, key: int) -> None:
        self.partition = _ARITY.pack(partition)
        self.key = _ARITY.pack(key)
        self.none = _ARITY.pack(0)


def describe_manifest(
    name: str, size: int, entries: Sequence[ManifestEntry], partitions: RowLayout, schema_id: int
) -> ManifestFileMeta:
    """The manifest list entry of the manifest `name` with `entries` (at least one)."""
    added = [e.kind for e in entries].count(FileKind.ADD)
    buckets, levels = [e.bucket for e in entries], [e.file.level for e in entries]
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
        min_bucket=min(buckets),
        max_bucket=max(buckets),
        min_level=min(levels),
        max_level=max(levels),
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


def parse_data_file(f: dict[str, Any]) -> DataFileMeta:
    """The data file in a record of Java's `DataFileMeta.SCHEMA`; fields of newer versions may be absent."""
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


def data_file_record(f: DataFileMeta, arities: Arities) -> dict[str, Any]:
    """The record of `f` in Java's `DataFileMeta.SCHEMA`."""
    # Append tables have the row without fields as key, and so do files without rows in primary-key tables.
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


def _manifest(records: Records, row: int) -> ManifestFileMeta:
    version, size, added, deleted, schema_id = (records.number_at(row, slot) or 0 for slot in _NUMBER_SLOTS)
    if version != VERSION:
        raise CorruptData(f"manifest list version {version} is not known; version {VERSION} is")
    low, high = records.bytes_at(row, _STATS_SLOT) or b"", records.bytes_at(row, _STATS_SLOT + 1) or b""
    counts = records.array_at(row, _STATS_SLOT + 2) or ()
    stats = EMPTY_STATS if not counts and len(low) <= _EMPTY_ROW_BYTES else SimpleStats(_row(low), _row(high), counts)
    borders = (records.number_at(row, slot) for slot in range(_BORDERS_SLOT, len(_LIST_FIELDS)))
    name = records.text_at(row, _NAME_SLOT) or ""
    return ManifestFileMeta(name, size, added, deleted, stats, schema_id, *borders)
