"""Commits with deletion vectors, and the index files that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from forebay.paimon.format.commit_message import CommitMessage, DataIncrement
from forebay.paimon.format.file_meta import DeletionVectorMeta, IndexFileMeta
from forebay.paimon.table import Table
from tests.paimon.read.commit_messages import deletion_vector

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.int64())])


def with_deleted(table: Table, ids: list[int], deleted: list[int], level: int) -> None:
    """Commit a file of `ids` at `level`, of which the rows at positions `deleted` are deleted by a vector."""
    commit_marked(table, [(ids, deleted)], level)


def commit_marked(table: Table, marked: Sequence[tuple[Sequence[int], list[int]]], level: int) -> None:
    """Commit a file of each (ids, positions of deleted rows), and one index file with the vectors of all of them."""
    idle = table.with_options({"write-only": "true"})
    files, vectors, content = [], [], b"\1"
    for ids, deleted in marked:
        with idle.new_write() as writer:
            writer.write(pa.table({"id": list(ids), "v": [0] * len(ids)}))
            (message,) = writer.prepare_commit()
        (file,) = message.data.new_files
        vector = deletion_vector(deleted)
        vectors.append(DeletionVectorMeta(file.file_name, len(content), len(vector) - 8, len(deleted)))
        files.append(file.upgrade(level))
        content += vector
    index = IndexFileMeta("DELETION_VECTORS", f"index-{files[0].file_name}", len(content), len(files), tuple(vectors))
    path = Path(table.context.paths.index_file(index, message.partition, message.bucket))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    commit(table, replace(message, data=DataIncrement(tuple(files), new_index_files=(index,))))


def commit(table: Table, message: CommitMessage) -> None:
    table.new_commit().commit([message])


def index_files(table: Table) -> list[IndexFileMeta]:
    snapshot = table.context.snapshots.latest()
    assert snapshot is not None
    return [e.index_file for e in table.context.manifests.read_index(snapshot.index_manifest)]
