"""Marks the rows of a bucket's lake files that a range of its changelog overrides, by their positions in the files.

For engines that read the files directly (`LakeSide.plain_files`): they skip these rows, and the tail's rows come from
`UnionReader`. Keys are compared here, so an engine's own notion of equal keys does not matter. Only the key columns of
the files are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.base import locations
from forebay.base.errors import ErrorCode, InternalError, InvalidRequest, NotFound
from forebay.client.connection import shared_connection
from forebay.metadata.table import TableBucket
from forebay.unionread.changed_keys import read_changed_keys

if TYPE_CHECKING:
    from forebay.unionread.lake_side import LakeSide
    from forebay.unionread.reading import UnionReader

_BATCH_ROWS = 1 << 17
"""Rows of a lake file that are compared at a time."""

_WORD_BITS = 64
"""Bits of a word of the bitmaps that are returned."""


@dataclass(frozen=True)
class OverriddenRows:
    """The overridden rows of one file: a bit for each row, in 64-bit words, least bit first."""

    path: str
    words: bytes


@dataclass(frozen=True)
class MarkBucket:
    """Marks the rows of plain, local `files` of `bucket` that changes from offset `start` to before `stop` override.

    Picklable: it is sent to workers.
    """

    reader: UnionReader
    bucket: TableBucket
    start: int
    stop: int
    files: tuple[str, ...]

    def __call__(self) -> list[OverriddenRows]:
        """Return the marks. Raises `NotFound` (LAKE_SNAPSHOT_NOT_EXIST) for a missing file, and errors of log reads."""
        side, info = self.reader.lake, self.reader.info
        if side is None:
            raise InternalError(f"rows of files of table {info.path} are marked, and its plan has no lake")
        keys = tuple(info.schema.column(name) for name in info.descriptor.physical_primary_key)
        connection = shared_connection(self.reader.settings)
        changed = read_changed_keys(connection, info, self.bucket, self.start, self.stop)
        by_key = replace(side, columns=keys)
        results = []
        for path in self.files:
            flags = [changed.contains(batch) for batch in _key_batches(path, by_key)]
            results.append(OverriddenRows(path, _words(flags)))
        return results


def _key_batches(path: str, side: LakeSide) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a file in their order; the columns of `side`, in the stream's types."""
    import pyarrow.parquet as pq  # few processes read files, and those of streams have little time to start

    try:
        with pq.ParquetFile(local_path(path)) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=[c.name for c in side.columns], use_threads=False):
                yield side.stored(batch)
    except FileNotFoundError as e:
        raise gone(path) from e


def gone(path: str) -> NotFound:
    """Return the error for a missing lake file."""
    return NotFound(
        f"file {path} does not exist: the lake snapshot that has it has expired", ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
    )


def _words(flags: list[npt.NDArray[np.bool_]]) -> bytes:
    rows = sum(map(len, flags))
    padded = np.zeros(-(-rows // _WORD_BITS) * _WORD_BITS, np.uint8)
    if rows:
        np.concatenate([batch.view(np.uint8) for batch in flags], out=padded[:rows])
    return np.packbits(padded, bitorder="little").tobytes()


def local_path(path: str) -> str | None:
    """Return the local path of a file that a lake names, which is not encoded.

    None for other stores, and for paths that are not in the usual form, which the lake's own readers may understand.
    """
    try:
        return locations.local_path(path) if locations.is_local(path) else None
    except InvalidRequest:
        return None
