"""Lookups by primary key, for joins with dimension tables.

    with table.lookup_table(columns=["name"]) as customers:
        customers.lookup([7, 8])                       # their rows
        customers.join(orders, on=["customer_id"])     # orders, with the customer's columns added

The partition and bucket of a key are computed. The bucket's files that may contain the key are copied to the local disk
once (`forebay.paimon.lookup.local_files`) and searched there. Their rows are merged as in any read, so that every merge
engine returns what a read would. New snapshots only change the set of files.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.api.data import Missing, Rows
from forebay.api.joins import KeyJoin, as_table
from forebay.api.keys import check_missing, key_rows
from forebay.base.errors import InvalidRequest, NotFound, UnsupportedOperation
from forebay.codec.casting.encodings import takeable
from forebay.paimon.bucket_function import bucket_function
from forebay.paimon.files.reader import DataFileReader
from forebay.paimon.format.binary_row import RowLayout, row_layout
from forebay.paimon.format.file_meta import DataFileMeta
from forebay.paimon.format.split import DataSplit, DeletionFile
from forebay.paimon.lookup.local_files import LocalFiles, Probe, copy_name, encoded_keys
from forebay.paimon.lookup.table_files import TableFiles
from forebay.paimon.merge.intervals import rank_keys
from forebay.paimon.read.split_reader import SplitReader
from forebay.paimon.store.context import TableContext
from forebay.paimon.write.bucketing import PartitionSplitter, parts_of
from forebay.paimon.write.incoming import Intake

_RETRIES = 3

Int64s = npt.NDArray[np.int64]


class LakeLookupTable:
    """Finds rows of a primary-key table by key. Thread-safe; close it to delete its local copies.

    It follows the table: a lookup first checks for a new snapshot, at most once per `continuous.discovery-interval`.
    Memory and disk usage are limited by `lookup.cache-max-memory-size` and `lookup.cache-max-disk-size`; a file too
    large for that disk space is read remotely. Copies not used for `lookup.cache-file-retention` are deleted.
    """

    def __init__(
        self,
        table: TableContext,
        *,
        columns: Sequence[str] | None = None,
        directory: str | None = None,
    ) -> None:
        """`columns` of the rows (None: all). `directory` holds the local copies while the table is open."""
        schema, options = table.schema, table.options
        if not schema.has_primary_key:
            raise InvalidRequest(f"{table.paths.root} has no primary key to look rows up by; read it with a filter")
        if not set(schema.partition_keys) <= set(schema.primary_keys):
            raise UnsupportedOperation(
                f"lookups in {table.paths.root} are not supported: its partition ({', '.join(schema.partition_keys)}) "
                f"does not follow from its primary key ({', '.join(schema.primary_keys)})"
            )
        self._table = table
        self._keys = schema.primary_keys
        self._names = list(columns) if columns is not None else list(schema.names)
        fields = schema.fields_named(self._names)
        self._layout = row_layout(schema.fields_named(schema.trimmed_primary_keys))
        self._bucket_function = bucket_function(schema)
        self._partitions = PartitionSplitter(schema)
        self._intake = Intake(schema, self._keys)
        self._files = TableFiles(table)
        self._local = LocalFiles(
            row_layout(schema.key_fields),
            directory=directory,
            memory_bytes_max=options.lookup_cache_max_memory_size,
            disk_bytes_max=options.lookup_cache_max_disk_size,
            retention_ms=options.lookup_cache_file_retention_ms,
            clock=table.clock,
        )
        column_names = [f.name for f in fields] + [k for k in self._layout.names if k not in self._names]
        self._reader = _KeyReader(table, column_names, self._local)
        self.schema: pa.Schema = pa.schema([self._reader.schema.field(name) for name in self._names])
        self._checked_at: float | None = None
        self._interval_s = options.continuous_discovery_interval_ms / 1000
        self._guard = threading.Lock()

    def __enter__(self) -> LakeLookupTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Delete the local copies. The lookup table can be used again, and then starts over."""
        with self._guard:
            self._local.close()
            self._checked_at = None

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that rows are looked up in; None before the first lookup and in a table without snapshots."""
        return self._files.snapshot_id

    def refresh(self) -> bool:
        """Check for a new snapshot now; return whether there was one."""
        with self._guard:
            return self._refresh()

    def lookup(self, keys: Any, *, missing: Missing = "null") -> pa.Table:
        """One row per key, in order; `keys` and `missing` are as in `Table.lookup`."""
        check_missing(missing)
        rows = key_rows(keys, self._keys, self._table.paths.root)
        if missing == "error" and not isinstance(rows, list):
            rows = as_table(rows)
        matches, positions = self._find(rows)
        lost = positions < 0
        if missing == "null":
            nullable = pa.schema([field.with_nullable(True) for field in self.schema])
            return matches.take(pa.array(positions, mask=lost)).cast(nullable)
        if missing == "error" and lost.any():
            first = int(np.argmax(lost))
            row = rows[first] if isinstance(rows, list) else rows.select(self._keys).slice(first, 1).to_pylist()[0]
            raise NotFound(
                f"table {self._table.paths.root} has no row for {int(lost.sum())} of {len(lost)} keys; the first is "
                f"key {first}: {row}"
            )
        return matches.take(pa.array(positions[~lost]))

    def join(self, data: Rows, on: Sequence[str] | str | None = None, how: str = "left") -> pa.Table:
        """The rows of `data`, with the columns of the table's rows added; null for keys without a row.

        With how="inner", rows without a match are dropped. `data` is Arrow data, a data frame or a list of dicts. `on`
        are its columns that hold the primary key, in key order; by default those of the same names, which are then not
        repeated. A key with a null has no row. Raises `InvalidRequest` if both sides have a column of the same name.
        """
        join = KeyJoin.of(data, on, how, self._keys, self._names)
        matches, positions = self._find(join.keys)
        return join.rows(matches, pa.array(positions, mask=positions < 0))

    # -- finding ------------------------------------------------------------------------------------------------------

    def _find(self, keys: Any) -> tuple[pa.Table, Int64s]:
        """The found rows of the requested columns, and for each of `keys` the index of its row (-1: none)."""
        if isinstance(keys, pa.RecordBatch):
            keys = pa.table(keys)
        key_places: Int64s | None = None
        if isinstance(keys, pa.Table):
            keys, key_places = self._without_nulls(takeable(keys))
        batches = list(self._intake.batches(keys, deletes=True))
        with self._guard:
            if self._checked_at is None or self._table.clock.monotonic() - self._checked_at >= self._interval_s:
                self._refresh()
            for _ in range(_RETRIES):
                try:
                    matches, positions = self._find_all(batches)
                    break
                except NotFound:  # the snapshot of a file has expired, so there is a newer one
                    if not self._refresh():
                        raise
            else:
                matches, positions = self._find_all(batches)
        if key_places is None:
            return matches, positions
        spread = np.full(len(key_places), -1, np.int64)
        spread[key_places >= 0] = positions
        return matches, spread

    def _without_nulls(self, keys: pa.Table) -> tuple[pa.Table, Int64s]:
        """The keys without nulls; and for each key its index among them, or -1."""
        missing = [name for name in self._keys if name not in keys.schema.names]
        if missing:
            raise InvalidRequest(f"a key lacks column '{missing[0]}'; the primary key is ({', '.join(self._keys)})")
        key_columns = keys.select(self._keys)
        whole = np.ones(key_columns.num_rows, bool)
        for column in key_columns.columns:
            if column.null_count:
                whole &= pc.is_valid(column).to_numpy()
        position = np.where(whole, np.cumsum(whole) - 1, -1)
        return (key_columns if whole.all() else key_columns.filter(pa.array(whole))), position

    def _find_all(self, batches: Sequence[pa.RecordBatch]) -> tuple[pa.Table, Int64s]:
        tables: list[pa.RecordBatch] = []
        all_positions = [np.empty(0, np.int64)]
        count = 0
        for batch in batches:
            positions = np.full(batch.num_rows, -1, np.int64)
            encoded = encoded_keys(self._layout, batch)
            for rows, splits in self._places(batch):
                probe_keys = encoded if rows is None else encoded.take(rows)
                at = np.full(len(probe_keys), -1, np.int64)
                for split in splits:
                    for matches in self._reader.find(split, probe_keys.unique(), self._layout):
                        hit = (
                            pc.index_in(probe_keys, value_set=encoded_keys(self._layout, matches))
                            .fill_null(-1)
                            .to_numpy()
                        )
                        at = np.where(hit >= 0, hit + count, at)
                        count += matches.num_rows
                        tables.append(matches.select(self._names))
                positions[slice(None) if rows is None else rows.to_numpy()] = at
            all_positions.append(positions)
        return pa.Table.from_batches(tables, schema=self.schema), np.concatenate(all_positions)

    def _places(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.Array | None, list[DataSplit]]]:
        """The splits that may contain keys of `batch`, with the indexes of these keys (None: all)."""
        partitions, partition_of = self._partitions.split(batch)
        bucket_of = np.zeros(batch.num_rows, np.int32)
        dynamic = set()
        for i, partition in enumerate(partitions):
            total = self._files.total_buckets(partition)
            if total is None or total < 1:  # any bucket may contain the key
                dynamic.add(partition)
            elif total > 1:
                rows = np.flatnonzero(partition_of == i)
                bucket_of[rows] = self._bucket_function.buckets(batch.take(pa.array(rows)), total)
        for part in parts_of(partitions, partition_of, bucket_of):
            bucket = None if part.partition in dynamic else part.bucket
            splits = self._files.splits(part.partition, bucket)
            if splits:
                yield part.rows, splits

    # -- following ----------------------------------------------------------------------------------------------------

    def _refresh(self) -> bool:
        checked_at, self._checked_at = self._table.clock.monotonic(), None  # after a failure, the next lookup retries
        changed = self._files.refresh()
        self._checked_at = checked_at
        self._local.keep_only(self._files.names())
        return changed


class _KeyReader(SplitReader):
    """Reads the rows of a split that have certain keys, from local copies."""

    def __init__(self, table: TableContext, columns: Sequence[str], local: LocalFiles) -> None:
        super().__init__(table, columns)
        self._local = local
        self._key_layout = row_layout(table.schema.key_fields)
        self._probe = Probe(pa.array([], pa.binary()))
        self._copied, _ = self._merge_fields()

    def find(self, split: DataSplit, keys: pa.BinaryArray, layout: RowLayout) -> Iterable[pa.RecordBatch]:
        """The rows of the distinct `keys` (encoded by `layout`), merged."""
        files: list[DataFileMeta] = []
        deletions: list[DeletionFile | None] = []
        vectors = split.deletion_files or (None,) * len(split.files)
        touched = _touched(split.files, keys, layout)
        for file, deletion, hit in zip(split.files, vectors, touched, strict=True):
            if hit:
                files.append(file)
                deletions.append(deletion)
        if not files:
            return ()
        self._probe = Probe(keys)
        pruned = DataSplit(
            split.snapshot_id, split.partition, split.bucket, split.total_buckets, tuple(files), False,
            deletion_files=tuple(deletions) if any(deletions) else None,
        )  # fmt: skip
        return self.read_sorted(pruned)

    def _run_file(
        self, split: DataSplit, file: DataFileMeta, deletion: DeletionFile | None, part_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        def whole() -> Iterator[pa.RecordBatch]:
            reader = DataFileReader(self._table.io, self._table.schemas.schema, self._copied)
            path = self._table.paths.data_file(split.partition, split.bucket, file)
            return reader.read(file, path, self._deleted(deletion))

        copy = self._local.open(copy_name(file, deletion), whole)
        if copy is not None:
            yield from copy.find(self._probe, self._key_layout)
            return
        for batch in whole():
            matches = batch.filter(pc.is_in(encoded_keys(self._key_layout, batch), value_set=self._probe.keys))
            if matches.num_rows:
                yield matches


def _touched(files: Sequence[DataFileMeta], keys: pa.BinaryArray, layout: RowLayout) -> npt.NDArray[np.bool_]:
    """For each file, whether one of `keys` is in its key range."""
    ends = pa.array([f.min_key for f in files] + [f.max_key for f in files], pa.binary())
    ranks = np.asarray(rank_keys(layout.decode_all(pa.concat_arrays([ends, keys])).columns))
    low, high, probe = ranks[: len(files)], ranks[len(files) : 2 * len(files)], np.sort(ranks[2 * len(files) :])
    touched: npt.NDArray[np.bool_] = np.searchsorted(probe, low, "left") < np.searchsorted(probe, high, "right")
    return touched
