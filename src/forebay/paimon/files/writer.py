"""Writing data files: takes batches, returns `DataFileMeta`.

A `RollingWriter` writes the rows of one bucket, in the given order, to as many files as `target-file-size` requires. It
buffers rows until they fill a row group (`file.block-size`), and measures files by the bytes actually written, so that
well compressed tables get large files, too.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import UnsupportedOperation
from forebay.codec.arrow.empty_offsets import with_offsets
from forebay.codec.arrow.parquet_dictionaries import ROWS_MIN as SAMPLED_ROWS_MIN
from forebay.codec.arrow.parquet_dictionaries import dictionary_paths, worth_a_dictionary
from forebay.metadata.types import bigint, tinyint
from forebay.paimon.files.column_stats import (
    FLOATS,
    columns_with_nan,
    dense_stats,
    footer_ranges,
    in_mode,
    leaf_positions,
    stamp_ranges,
)
from forebay.paimon.files.parquet_layout import has_nanoseconds, open_writer, parquet_schema
from forebay.paimon.format.binary_row import RowLayout, row_layout
from forebay.paimon.format.file_meta import EMPTY_ROW, EMPTY_STATS, DataFileMeta, FileSource
from forebay.paimon.format.schema import (
    KEY_PREFIX,
    SEQUENCE_NUMBER,
    SEQUENCE_NUMBER_ID,
    VALUE_KIND,
    VALUE_KIND_ID,
    DataField,
    TableSchema,
)
from forebay.paimon.format.stats import ColumnStats, StatsMode, pack_stats, parse_mode
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.merge.order import fixed_values
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.paths import DataFileNames

BLOCK_SIZE_DEFAULT = 32 << 20
"""The default for `file.block-size`, in bytes of Arrow data per row group: small enough for pruning."""
KEYED_GROUP_ROWS = 1 << 16
"""The maximum rows per row group in files sorted by key: a point lookup reads one row group of each file."""

DICTIONARY_OPTION = "parquet.enable.dictionary"
"""If false, no column gets a dictionary. With the suffix `#column`: this column gets none."""

_KIND, _NUMBER = np.dtype(np.int8), np.dtype(np.int64)

_SINK_BYTES = 1 << 16

_ROWS_MIN = 1024
"""The minimum number of rows for a separate row group."""


def key_value_fields(schema: TableSchema, thin: bool = False) -> tuple[DataField, ...]:
    """The columns of a primary-key table's data files; `thin` files omit the keys, which are columns anyway."""
    system = (
        DataField(SEQUENCE_NUMBER_ID, SEQUENCE_NUMBER, bigint().not_null()),
        DataField(VALUE_KIND_ID, VALUE_KIND, tinyint().not_null()),
    )
    return (*(() if thin else schema.key_fields), *system, *schema.fields)


@dataclass(frozen=True)
class FileSettings:
    """The common settings of all data files of one kind in a table. Can be pickled."""

    schema: TableSchema
    fields: tuple[DataField, ...]
    level: int
    compression: str
    zstd_level: int
    block_size: int
    target_size: int
    target_rows: int
    stats: tuple[StatsMode, ...]
    dense: bool
    changelog: bool
    source: FileSource
    without_dictionaries: frozenset[str] | None
    """Columns with plain encoding; None: all."""

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        return parquet_schema(self.fields)

    @cached_property
    def has_int96(self) -> bool:
        """Whether the files have timestamps of more than six digits."""
        return has_nanoseconds(f.type for f in self.fields)

    @cached_property
    def is_nested(self) -> bool:
        """Whether a column has a nested type."""
        return any(f.type.is_nested for f in self.fields)

    @cached_property
    def key_layout(self) -> RowLayout:
        """The layout of the smallest and the greatest key in a file's metadata."""
        return row_layout(self.schema.fields_named(self.schema.trimmed_primary_keys))

    @cached_property
    def leaves(self) -> dict[str, int]:
        """The positions in the Parquet files of the columns that are not nested."""
        return leaf_positions(self.arrow_schema)

    @cached_property
    def small_dictionaries(self) -> list[str]:
        """The paths of the columns that have dictionaries in files of few rows."""
        return (
            [] if self.without_dictionaries is None else dictionary_paths(self.arrow_schema, self.without_dictionaries)
        )

    def dictionaries(self, first: pa.Table) -> list[str]:
        """The paths of the columns that have dictionaries in a file that begins with the rows `first`."""
        if self.without_dictionaries is None or first.num_rows < SAMPLED_ROWS_MIN:
            return self.small_dictionaries
        return worth_a_dictionary(first, self.without_dictionaries)

    @cached_property
    def floats(self) -> tuple[DataField, ...]:
        """The columns that may contain NaN."""
        return tuple(f for f in self.schema.fields if f.type.root in FLOATS)

    @classmethod
    def of_table(
        cls, table: TableContext, level: int = 0, source: FileSource = FileSource.APPEND, changelog: bool = False
    ) -> FileSettings:
        """The settings of data files (or `changelog` files) at `level` of a table, created once."""
        return table.once(
            (cls, level, source, changelog), lambda: cls.of(table.schema, table.options, level, source, changelog)
        )

    @classmethod
    def of(
        cls,
        schema: TableSchema,
        options: CoreOptions,
        level: int = 0,
        source: FileSource = FileSource.APPEND,
        changelog: bool = False,
    ) -> FileSettings:
        """The settings of data files (or `changelog` files) at `level` of a table."""
        keyed = schema.has_primary_key
        tier = level if keyed else None  # options by level only apply to primary-key tables
        file_format, compression = options.file_format, options.file_compression
        if tier is not None:
            file_format = options.file_format_per_level.get(tier, file_format)
            compression = options.file_compression_per_level.get(tier, compression)
        if changelog:
            file_format = options.changelog_file_format or file_format
            compression = options.changelog_file_compression or compression
        if file_format.lower() != "parquet":
            raise UnsupportedOperation(f"file.format '{file_format}' can be read but not written; set it to 'parquet'")
        fields = key_value_fields(schema, options.data_file_thin_mode) if keyed else schema.fields
        return cls(
            schema=schema,
            fields=fields,
            level=level,
            compression=compression,
            zstd_level=options.file_compression_zstd_level,
            block_size=options.file_block_size or BLOCK_SIZE_DEFAULT,
            target_size=options.target_file_size(keyed),
            target_rows=options.target_file_row_num,
            stats=_stats_modes(schema, options, tier, changelog),
            dense=options.stats_dense_store,
            changelog=changelog,
            source=source,
            without_dictionaries=_plain(schema, options),
        )


def _plain(schema: TableSchema, options: CoreOptions) -> frozenset[str] | None:
    """The columns that options exclude from dictionaries, and those without repeated values; None means all."""
    mapping = options.mapping
    if _is_false(mapping.get(DICTIONARY_OPTION, "true")):
        return None
    prefix = DICTIONARY_OPTION + "#"
    refused = [key.removeprefix(prefix) for key, text in mapping.items() if key.startswith(prefix) and _is_false(text)]
    keys = schema.trimmed_primary_keys if schema.has_primary_key else ()
    unique = [SEQUENCE_NUMBER, *([keys[0], KEY_PREFIX + keys[0]] if len(keys) == 1 else ())]
    return frozenset([*refused, *unique])


def _is_false(text: str) -> bool:
    return text.strip().lower() == "false"


def _stats_modes(schema: TableSchema, options: CoreOptions, tier: int | None, changelog: bool) -> tuple[StatsMode, ...]:
    first = options.stats_keep_first_n_columns
    modes = []
    for position, f in enumerate(schema.fields):
        text = options.stats_mode_of(f.name, tier)
        if changelog and options.changelog_file_stats_mode:
            text = options.changelog_file_stats_mode
        if 0 <= first <= position and options.field_option(f.name, "stats-mode") is None:
            text = "none"
        modes.append(parse_mode(text))
    return tuple(modes)


class RollingWriter:
    """Writes one bucket's rows to data files in `directory`. Not thread-safe.

    Rows have the columns `settings.fields` in order; in primary-key tables they are sorted by unique keys. Append
    tables pass `next_sequence`, the sequence number of the first row; others have a column of sequence numbers.
    """

    def __init__(
        self,
        io: FileIO,
        directory: str,
        settings: FileSettings,
        names: DataFileNames,
        next_sequence: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._io = io
        self._directory = directory
        self._settings = settings
        self._schema = settings.arrow_schema
        self._group_rows = KEYED_GROUP_ROWS if settings.schema.has_primary_key else settings.target_rows
        self._clock = clock
        self._names = names
        self.next_sequence = next_sequence
        self._pending: list[pa.Table] = []
        self._pending_bytes = self._pending_rows = 0
        self._file: _OpenFile | None = None
        self._ratio = 1.0
        self._done: list[DataFileMeta] = []

    @property
    def buffered_bytes(self) -> int:
        """The bytes of Arrow data that are buffered."""
        return self._pending_bytes

    def write(self, data: pa.Table | pa.RecordBatch) -> None:
        """Append rows. After an error the writer can only be aborted."""
        if data.num_rows == 0:
            return
        if isinstance(data, pa.RecordBatch):
            table = pa.Table.from_batches([with_offsets(data) if self._settings.is_nested else data])
        else:
            table = data
        if table.schema.names != self._schema.names:
            table = table.select(self._schema.names)
        self._pending.append(table)
        self._pending_bytes += table.nbytes
        self._pending_rows += table.num_rows
        while self._pending_bytes >= self._group_bytes() or self._pending_rows >= self._group_rows:
            self._write_group(*self._take(self._group_bytes()))

    def flush(self) -> None:
        """Write the buffered rows as a row group, to free memory."""
        while self._pending:
            self._write_group(*self._take(self._pending_bytes))

    def finish_file(self) -> None:
        """Close the open file, so that following rows go to another."""
        self.flush()
        self._finish_file()

    def close(self) -> list[DataFileMeta]:
        """Finish the last file; return the metadata of all files."""
        self.finish_file()
        return self._done

    def abort(self) -> None:
        """Delete all files written so far."""
        self._pending, self._pending_bytes, self._pending_rows = [], 0, 0
        if self._file is not None:
            self._file.abandon()
            self._file = None
        for meta in self._done:
            with contextlib.suppress(Exception):
                self._io.delete(f"{self._directory}/{meta.file_name}")
        self._done = []

    # -- row groups ---------------------------------------------------------------------------------------------------

    def _group_bytes(self) -> int:
        """The target size of the next row group in bytes of Arrow data."""
        file_bytes = self._file.size if self._file is not None else 0
        target_bytes = (self._settings.target_size - file_bytes) / self._ratio
        return max(1, min(self._settings.block_size, int(target_bytes)))

    def _take(self, target_bytes: int) -> tuple[pa.Table, int]:
        """Remove about `target_bytes` bytes from the front of the buffer; the rows, and their size in bytes."""
        table = pa.concat_tables(self._pending) if len(self._pending) > 1 else self._pending[0]
        per_row = max(1e-9, self._pending_bytes / table.num_rows)
        rows = min(table.num_rows, max(_ROWS_MIN, int(target_bytes / per_row) + 1))
        rows = min(rows, self._rows_left(), self._group_rows)
        if rows >= table.num_rows:
            size = self._pending_bytes
            self._pending, self._pending_bytes, self._pending_rows = [], 0, 0
            return table, size
        rest = table.slice(rows)
        self._pending = [rest]
        self._pending_bytes -= int(per_row * rows)
        self._pending_rows -= rows
        first = table.slice(0, rows)
        return first, first.nbytes

    def _rows_left(self) -> int:
        return self._settings.target_rows - (self._file.rows if self._file is not None else 0)

    def _write_group(self, table: pa.Table, size: int) -> None:
        file = self._file
        if file is None:
            s = self._settings
            name = (self._names.changelog if s.changelog else self._names.data)("parquet", s.compression)
            file = self._file = _OpenFile(self._io, f"{self._directory}/{name}", name, s, self._schema, table)
        file.write(table, size)
        if size:
            self._ratio = min(1.0, max(1e-3, (file.size or 1) / file.arrow_bytes))
        if file.size >= self._settings.target_size * 0.98 or self._rows_left() <= 0:
            self._finish_file()

    def _finish_file(self) -> None:
        if self._file is None:
            return
        file = self._file
        meta = file.finish(self.next_sequence, local_millis(self._clock))
        self._file = None
        if not self._settings.schema.has_primary_key:
            self.next_sequence += meta.row_count
        self._done.append(meta)


def local_millis(clock: Clock) -> int:
    """Local wall-clock time as if it were UTC, like Java's `LocalDateTime.now()` in a file's metadata."""
    now = clock.now_ms()
    offset = datetime.datetime.fromtimestamp(now / 1000, datetime.UTC).astimezone().utcoffset()
    return now + int((offset or datetime.timedelta()).total_seconds() * 1000)


@dataclass
class _Keys:
    """Key information collected while a primary-key file is written: the first and the last key as rows of `layout`."""

    layout: RowLayout
    first: bytes = EMPTY_ROW
    last: bytes = EMPTY_ROW
    deletes: int = 0
    least: int = (1 << 63) - 1
    greatest: int = -(1 << 63)

    def see(self, table: pa.Table) -> None:
        keys = table.select(self.layout.names)
        ends = pa.concat_tables([keys.slice(0, 1), keys.slice(table.num_rows - 1)])
        first, self.last = self.layout.encode(ends).to_pylist()
        if self.first is EMPTY_ROW:
            self.first = first
        for batch in table.to_batches():
            if not batch.num_rows:
                continue
            kinds = fixed_values(batch.column(VALUE_KIND), _KIND).astype(_KIND, copy=False)
            numbers = fixed_values(batch.column(SEQUENCE_NUMBER), _NUMBER).astype(_NUMBER, copy=False)
            self.deletes += int(np.count_nonzero(kinds & 1))
            self.least = min(self.least, int(numbers.min()))
            self.greatest = max(self.greatest, int(numbers.max()))


class _LeftOpen:
    """An output for Arrow, whose streams close it when they are destroyed. Here that is no end: a file that its writer
    has left must not appear."""

    closed = False

    def __init__(self, output: BinaryIO) -> None:
        self.write, self.flush = output.write, output.flush

    def close(self) -> None:
        """Leave it open."""


class _OpenFile:
    """One Parquet file that is being written."""

    def __init__(
        self, io: FileIO, path: str, name: str, settings: FileSettings, schema: pa.Schema, first: pa.Table
    ) -> None:
        """`first` has the rows of the first row group."""
        self._io = io
        self._path = path
        self._name = name
        self._settings = settings
        self._output: BinaryIO = io.open_output(path)
        # Arrow writes many small pieces. Each would wait for the GIL.
        self._sink = pa.BufferedOutputStream(pa.PythonFile(_LeftOpen(self._output), mode="w"), _SINK_BYTES)
        self._footers: list[Any] = []
        self._schema = schema
        self._writer = open_writer(
            self._sink,
            schema,
            settings.has_int96,
            settings.compression,
            settings.zstd_level,
            self._footers,
            settings.dictionaries(first),
        )
        self._nan: set[str] = set()
        self._stamps: dict[str, ColumnStats] = {}
        self._keys = _Keys(settings.key_layout)
        self.rows = 0
        self.arrow_bytes = 0
        self.size = 0
        """The bytes that are written, up to the last row group."""

    def write(self, table: pa.Table, arrow_bytes: int) -> None:
        """Write a row group. `arrow_bytes` is the size of `table`."""
        labelled = table if table.schema == self._schema else _labelled(table, self._schema)
        self._writer.write_table(labelled, row_group_size=table.num_rows)
        self.size = self._sink.tell()
        self._nan |= columns_with_nan(table, self._settings.floats)
        if self._settings.has_int96:
            self._stamps = stamp_ranges(table, self._settings.schema.fields, self._stamps)
        if self._settings.schema.has_primary_key:
            self._keys.see(table)
        self.rows += table.num_rows
        self.arrow_bytes += arrow_bytes

    def abandon(self) -> None:
        """Abandon and delete the file."""
        with contextlib.suppress(Exception):
            self._writer.close()  # otherwise its destructor would write to a closed file
        self._writer.is_open = False
        with contextlib.suppress(Exception):
            self._sink.detach()  # likewise
        abort = getattr(self._output, "abort", None)
        if abort is not None:
            abort()
            return
        with contextlib.suppress(Exception):
            self._output.close()
        with contextlib.suppress(Exception):
            self._io.delete(self._path)

    def finish(self, next_sequence: int, created: int) -> DataFileMeta:
        self._writer.close()
        size = self._sink.tell()
        self._sink.detach()
        self._output.close()
        s = self._settings
        columns = s.schema.fields
        ranges = footer_ranges(self._footers[0], columns, self._nan, leaves=s.leaves) | self._stamps
        stats = {f.name: in_mode(ranges[f.name], mode) for f, mode in zip(columns, s.stats, strict=True)}
        value_stats, stats_columns = dense_stats(columns, stats, s.dense)
        common: dict[str, Any] = {
            "file_name": self._name,
            "file_size": size,
            "row_count": self.rows,
            "value_stats": value_stats,
            "value_stats_cols": stats_columns,
            "schema_id": s.schema.id,
            "level": s.level,
            "creation_time": created,
            "file_source": s.source,
        }
        if s.schema.has_primary_key:
            return DataFileMeta(**common, **self._key_range(ranges))
        return DataFileMeta(
            min_key=EMPTY_ROW,
            max_key=EMPTY_ROW,
            key_stats=EMPTY_STATS,
            min_sequence_number=next_sequence,
            max_sequence_number=next_sequence + self.rows - 1,
            delete_row_count=0,
            **common,
        )

    def _key_range(self, ranges: dict[str, ColumnStats]) -> dict[str, Any]:
        """The keys of the first and the last row, and the other key metadata of a primary-key file."""
        keys = self._keys
        fields = keys.layout.fields
        return {
            "min_key": keys.first,
            "max_key": keys.last,
            "key_stats": pack_stats(fields, [ranges[f.name] for f in fields]),
            "min_sequence_number": keys.least,
            "max_sequence_number": keys.greatest,
            "delete_row_count": keys.deletes,
        }


def _labelled(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same columns with `schema`, which may differ in nullability, metadata, and integers for timestamps."""
    columns: Sequence[pa.ChunkedArray] = [
        column if column.type.equals(f.type, check_metadata=True) else column.cast(f.type)
        for column, f in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(list(columns), schema=schema)
