"""The index manifest of a new snapshot: the previous one, with index files added and deleted."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.base.errors import Conflict
from forebay.paimon.commit.file_changes import DELETION_VECTORS, HASH
from forebay.paimon.format.file_meta import FileKind, IndexManifestEntry
from forebay.paimon.format.schema import TableSchema


def combine_index_files(
    schema: TableSchema, previous: Sequence[IndexManifestEntry], changed: Sequence[IndexManifestEntry]
) -> list[IndexManifestEntry]:
    """The index files after applying `changed` to `previous`.

    A bucket has one index file of each type, so a new one replaces the old. Deletion vectors of tables without buckets,
    and indexes of other types, are identified by file name. Raises `Conflict` if such a file is added twice, or is
    deleted and does not exist.
    """
    unaware = schema.options.get("bucket", "-1").strip() == "-1" and not schema.has_primary_key
    replaced: dict[tuple[object, ...], IndexManifestEntry] = {}
    by_name: dict[tuple[object, ...], IndexManifestEntry] = {}
    by_bucket = {HASH} if unaware else {HASH, DELETION_VECTORS}

    def place(e: IndexManifestEntry) -> tuple[dict[tuple[object, ...], IndexManifestEntry], tuple[object, ...]]:
        index_type = e.index_file.index_type
        if index_type in by_bucket:
            return replaced, (index_type, e.partition, e.bucket)
        return by_name, (index_type, e.index_file.file_name)

    for e in previous:
        entries, key = place(e)
        entries[key] = e
    for e in sorted(changed, key=lambda e: e.kind is FileKind.ADD):  # deletions first
        entries, key = place(e)
        if e.kind is FileKind.DELETE:
            if entries.pop(key, None) is None and entries is by_name:
                raise Conflict(f"the index file {e.index_file.file_name} is gone already; reread the table")
        elif entries is by_name and key in by_name:
            raise Conflict(f"the index file {e.index_file.file_name} was added before")
        else:
            entries[key] = e
    return [*replaced.values(), *by_name.values()]
