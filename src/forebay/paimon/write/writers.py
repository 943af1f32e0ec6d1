"""Writers of a single bucket: take rows, write files."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.paimon.files.writer import KEYED_GROUP_ROWS, FileSettings, RollingWriter, key_value_fields
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.format.commit_message import DataIncrement
from forebay.paimon.format.schema import KEY_PREFIX
from forebay.paimon.merge.buffers import sort_and_merge_buffer, sort_buffer
from forebay.paimon.merge.spec import MergeSpec
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.paths import DataFileNames
from forebay.paimon.write.compaction import FreshRows

FRESH_BYTES_MAX = 1 << 20
"""The size of a buffer whose rows are kept in memory until the bucket is compacted. To read back a larger file costs
little in comparison."""


class BucketWriter(Protocol):
    """Writes the rows of one bucket. Not thread-safe."""

    @property
    def buffered_bytes(self) -> int:
        """The bytes of memory that `flush` would free."""
        ...

    def write(self, batch: pa.RecordBatch, kinds: npt.NDArray[np.int8]) -> None: ...

    def flush(self, *, end_file: bool = False) -> None:
        """Flush rows from memory; with `end_file`, also close the open file."""
        ...

    def prepare(self) -> tuple[DataIncrement, FreshRows]:
        """Finish the files of all rows so far, and return them. The writer continues with new files."""
        ...

    def abort(self) -> None:
        """Delete the files written since the last `prepare`."""
        ...


class AppendWriter:
    """Writes a bucket of an append table. Sequence numbers count its rows, starting at `next_sequence`."""

    def __init__(self, table: TableContext, directory: str, names: DataFileNames, next_sequence: int) -> None:
        self._table, self._directory, self._names = table, directory, names
        self._settings = FileSettings.of_table(table)
        self._next_sequence = next_sequence
        self._files = self._new_files()

    def _new_files(self) -> RollingWriter:
        return RollingWriter(
            self._table.io, self._directory, self._settings, self._names, self._next_sequence, self._table.clock
        )

    @property
    def buffered_bytes(self) -> int:
        return self._files.buffered_bytes

    def write(self, batch: pa.RecordBatch, kinds: npt.NDArray[np.int8]) -> None:
        if (kinds & 1).any():
            raise InvalidRequest("an append table takes no deletes: it has no primary key to find rows by")
        self._files.write(batch)

    def flush(self, *, end_file: bool = False) -> None:
        if end_file:
            self._files.finish_file()
        else:
            self._files.flush()

    def prepare(self) -> tuple[DataIncrement, FreshRows]:
        files = self._files.close()
        self._next_sequence = self._files.next_sequence
        self._files = self._new_files()
        return DataIncrement(new_files=tuple(files)), {}

    def abort(self) -> None:
        self._files.abort()
        self._files = self._new_files()


class KeyValueWriter:
    """Writes a bucket of a primary-key table: rows are buffered, sorted and merged, and written to level 0."""

    def __init__(
        self,
        table: TableContext,
        spec: MergeSpec,
        directory: str,
        names: DataFileNames,
        next_sequence: int,
        step: int = 1,
    ) -> None:
        """Rows are numbered from `next_sequence`, in steps of `step`."""
        self._table, self._directory, self._names = table, directory, names
        self._settings = FileSettings.of_table(table)
        self._changelog_settings: FileSettings | None = None
        if table.options.changelog_producer == "input":
            self._changelog_settings = FileSettings.of_table(table, changelog=True)
        self._schema = table.once(KeyValueWriter, lambda: arrow_schema(key_value_fields(table.schema)))
        self._keys = tuple(name.removeprefix(KEY_PREFIX) for name in spec.key_columns)
        # Key columns are copies of value columns. They are added last, so that nothing is sorted twice.
        self._buffer_spec = replace(spec, key_columns=self._keys)
        self._buffer_schema = pa.schema(list(self._schema)[len(self._keys) :])
        self._next_sequence, self._step = next_sequence, step
        self._pending: list[tuple[pa.RecordBatch, npt.NDArray[np.int8]]] = []
        self._pending_rows = self._pending_bytes = 0
        self._files = self._new_files(self._settings)
        self._changelog = self._new_files(self._changelog_settings) if self._changelog_settings else None

    def _new_files(self, settings: FileSettings) -> RollingWriter:
        return RollingWriter(self._table.io, self._directory, settings, self._names, clock=self._table.clock)

    @property
    def buffered_bytes(self) -> int:
        return self._pending_bytes + self._files.buffered_bytes

    def write(self, batch: pa.RecordBatch, kinds: npt.NDArray[np.int8]) -> None:
        self._pending.append((batch, kinds))
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes + kinds.nbytes

    def _take_pending(self) -> list[pa.RecordBatch]:
        """The buffered rows, with their sequence numbers and kinds as the first columns."""
        first, self._next_sequence = self._next_sequence, self._next_sequence + self._pending_rows * self._step
        numbers = pa.array(np.arange(first, self._next_sequence, self._step, dtype=np.int64))
        batches, offset = [], 0
        for batch, kinds in self._pending:
            columns = [numbers.slice(offset, batch.num_rows), pa.array(kinds, pa.int8()), *batch.columns]
            batches.append(pa.RecordBatch.from_arrays(columns, schema=self._buffer_schema))
            offset += batch.num_rows
        self._forget()
        return batches

    def _forget(self) -> None:
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def flush(self, *, end_file: bool = True) -> None:
        """Sort and merge the buffered rows, and write them as one sorted run at the end of level 0."""
        self._write_run()

    def _write_run(self) -> list[pa.RecordBatch]:
        """The rows that were written, if they are few."""
        if not self._pending:
            return []
        fresh: list[pa.RecordBatch] = []
        is_small = self._pending_bytes <= FRESH_BYTES_MAX
        pending = self._take_pending()
        if self._changelog is not None:
            for piece in sort_buffer(pending, self._buffer_spec, KEYED_GROUP_ROWS):
                self._changelog.write(self._with_keys(piece))
        for piece in sort_and_merge_buffer(pending, self._buffer_spec, KEYED_GROUP_ROWS):
            rows = self._with_keys(piece)
            self._files.write(rows)
            if is_small:
                fresh.append(rows)
        # A file of level 0 is a sorted run, so no file may hold rows of two buffers.
        self._files.finish_file()
        return fresh

    def _with_keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = [batch.column(name) for name in self._keys]
        return pa.RecordBatch.from_arrays([*keys, *batch.columns], schema=self._schema)

    def prepare(self) -> tuple[DataIncrement, FreshRows]:
        """Flush the buffer and finish all files, including changelog files. The writer continues with new files."""
        rows = self._write_run()
        files = self._files.close()
        changes = self._changelog.close() if self._changelog is not None else []
        self._files = self._new_files(self._settings)
        if self._changelog_settings is not None:
            self._changelog = self._new_files(self._changelog_settings)
        is_one_file = bool(rows) and files[-1].row_count == sum(batch.num_rows for batch in rows)
        fresh = {files[-1].file_name: rows} if is_one_file else {}
        return DataIncrement(new_files=tuple(files), changelog_files=tuple(changes)), fresh

    def abort(self) -> None:
        """Discard the buffered rows and delete the files, including changelog files, since the last `prepare`."""
        self._forget()
        self._files.abort()
        self._files = self._new_files(self._settings)
        if self._changelog is not None and self._changelog_settings is not None:
            self._changelog.abort()
            self._changelog = self._new_files(self._changelog_settings)
