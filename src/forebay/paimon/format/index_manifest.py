"""Index manifests: all index files of a snapshot (hashes of dynamic buckets, deletion vectors), by bucket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forebay.base.errors import CorruptData
from forebay.paimon.format import avro
from forebay.paimon.format.avro_schemas import INDEX_ENTRY
from forebay.paimon.format.binary_row import with_arity, without_arity
from forebay.paimon.format.file_meta import (
    DeletionVectorMeta,
    FileKind,
    GlobalIndexMeta,
    IndexFileMeta,
    IndexManifestEntry,
)

_VERSION = 1


def read_index_manifest(data: bytes) -> list[IndexManifestEntry]:
    """The entries of an index manifest. Raises `CorruptData`."""
    try:
        return [_entry(record) for record in avro.read_records(data)]
    except (KeyError, TypeError, ValueError) as e:
        raise CorruptData(f"an entry of an index manifest is malformed: {type(e).__name__} {e}") from e


def write_index_manifest(
    entries: Sequence[IndexManifestEntry], partition_arity: int, compression: str = "zstd"
) -> bytes:
    """The index manifest of `entries`; `partition_arity` is the number of partition columns."""
    return avro.write_records(INDEX_ENTRY, [_record(e, partition_arity) for e in entries], compression)


def _entry(record: dict[str, Any]) -> IndexManifestEntry:
    if record["_VERSION"] != _VERSION:
        raise CorruptData(f"index manifest version {record['_VERSION']} is not known; version {_VERSION} is")
    partition = without_arity(record["_PARTITION"])
    return IndexManifestEntry(FileKind(record["_KIND"]), partition, record["_BUCKET"], _index_file(record))


def _index_file(record: dict[str, Any]) -> IndexFileMeta:
    """The index file in a record of Java's `IndexFileMeta.SCHEMA`."""
    ranges = record.get("_DELETIONS_VECTORS_RANGES")
    return IndexFileMeta(
        index_type=record["_INDEX_TYPE"],
        file_name=record["_FILE_NAME"],
        file_size=record["_FILE_SIZE"],
        row_count=record["_ROW_COUNT"],
        dv_ranges=None
        if ranges is None
        else tuple(DeletionVectorMeta(r["f0"], r["f1"], r["f2"], r.get("_CARDINALITY")) for r in ranges if r),
        external_path=record.get("_EXTERNAL_PATH"),
        global_index=_global_index(record.get("_GLOBAL_INDEX")),
    )


def _global_index(record: dict[str, Any] | None) -> GlobalIndexMeta | None:
    if record is None:
        return None
    extra = record.get("_EXTRA_FIELD_IDS")
    return GlobalIndexMeta(
        record["_ROW_RANGE_START"],
        record["_ROW_RANGE_END"],
        record["_INDEX_FIELD_ID"],
        None if extra is None else tuple(extra),
        record.get("_INDEX_META"),
        record.get("_SOURCE_META"),
    )


def _record(e: IndexManifestEntry, partition_arity: int) -> dict[str, Any]:
    return {
        "_VERSION": _VERSION,
        "_KIND": int(e.kind),
        "_PARTITION": with_arity(e.partition, partition_arity),
        "_BUCKET": e.bucket,
        **_index_file_record(e.index_file),
    }


def _index_file_record(index: IndexFileMeta) -> dict[str, Any]:
    """The record of `index` in Java's `IndexFileMeta.SCHEMA`."""
    g = index.global_index
    return {
        "_INDEX_TYPE": index.index_type,
        "_FILE_NAME": index.file_name,
        "_FILE_SIZE": index.file_size,
        "_ROW_COUNT": index.row_count,
        "_DELETIONS_VECTORS_RANGES": None
        if index.dv_ranges is None
        else [
            {"f0": r.data_file_name, "f1": r.offset, "f2": r.length, "_CARDINALITY": r.cardinality}
            for r in index.dv_ranges
        ],
        "_EXTERNAL_PATH": index.external_path,
        "_GLOBAL_INDEX": None
        if g is None
        else {
            "_ROW_RANGE_START": g.row_range_start,
            "_ROW_RANGE_END": g.row_range_end,
            "_INDEX_FIELD_ID": g.index_field_id,
            "_EXTRA_FIELD_IDS": None if g.extra_field_ids is None else list(g.extra_field_ids),
            "_INDEX_META": g.index_meta,
            "_SOURCE_META": g.source_meta,
        },
    }
