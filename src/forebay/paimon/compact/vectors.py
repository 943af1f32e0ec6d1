"""The deletion vectors of a bucket, for compaction, which removes the deleted rows and their vectors."""

from __future__ import annotations

import numpy as np

from forebay.paimon.commit.file_changes import DELETION_VECTORS
from forebay.paimon.compact.rewrite import BucketVectors
from forebay.paimon.format.deletion_vector import OVERHEAD_BYTES, read_deletion_vector
from forebay.paimon.format.file_meta import IndexFileMeta
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.store.context import TableContext


def bucket_vectors(table: TableContext, snapshot: Snapshot | None, partition: bytes, bucket: int) -> BucketVectors:
    """The deletion vectors of a bucket in `snapshot`."""
    if snapshot is None or not table.options.deletion_vectors_enabled:
        return BucketVectors()
    indexes = tuple(
        e.index_file
        for e in table.manifests.read_index(snapshot.index_manifest)
        if e.index_file.index_type == DELETION_VECTORS and (e.partition, e.bucket) == (partition, bucket)
    )
    return load_vectors(table, partition, bucket, indexes)


def load_vectors(
    table: TableContext, partition: bytes, bucket: int, indexes: tuple[IndexFileMeta, ...]
) -> BucketVectors:
    """The deletion vectors in the index files of a bucket."""
    positions = {}
    for index in indexes:
        with table.io.open_input(table.paths.index_file(index, partition, bucket)) as source:
            for vector in index.dv_ranges or ():
                source.seek(vector.offset)
                data = source.read(vector.length + OVERHEAD_BYTES)
                positions[vector.data_file_name] = np.asarray(read_deletion_vector(data), np.int64)
    return BucketVectors(positions, indexes)
