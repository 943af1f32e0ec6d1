"""Changelog batches of a primary-key table: built from the result of a merge, and read back to restore the state.

Exactly one log batch per KV batch, in the table's log format and with its latest schema. A batch without any change
is still written, empty, and takes one offset: it remembers its writer's sequence.

The log is the source of truth, so everything is checked before it is appended: rows decode under the table's schema,
NOT NULL columns have values, and the key bytes are the encoding of the row's key columns. Otherwise a restart, which
restores the state from the log, would not restore the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import pyarrow as pa

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest
from forebay.codec._slices import RowSlices
from forebay.codec.keys import primary_key_encoder
from forebay.codec.kv_batch import KvBatch
from forebay.codec.log_batch import (
    ChangeType,
    LogBatchHeader,
    build_arrow_batch,
    build_empty_batch,
    build_row_batch,
    change_types,
    decode_arrow_batch,
    decode_row_batch,
)
from forebay.codec.rows import RowFormat, row_codec
from forebay.codec.value_batch import STORED_PREFIX_BYTES, ValueDecoder, stored_schema_id, stored_value
from forebay.metadata.table import ArrowCompression, LogFormat, Schema, TableInfo, arrow_compression

SchemaById = Callable[[int], Schema]
Writes = dict[bytes, bytes | None]


class _StoredPrefixes(dict[int, bytes]):
    """The prefix of a row in its stored value, by the row's length: few lengths serve many rows."""

    def __init__(self, schema_id: int) -> None:
        self._schema_id = schema_id

    def __missing__(self, row_bytes: int) -> bytes:
        prefix = self[row_bytes] = stored_value(self._schema_id, bytes(row_bytes))[:STORED_PREFIX_BYTES]
        return prefix


class ChangelogCodec:
    """Builds and reads the changelog of one table at one version of its schema."""

    def __init__(self, info: TableInfo, schema_by_id: SchemaById) -> None:
        self.info = info
        self._schema_by_id = schema_by_id
        self._columns = info.schema.columns
        self._row_format = RowFormat(info.descriptor.kv_format.value)
        self._log_format = info.descriptor.log_format
        self._keys = primary_key_encoder(info.descriptor)
        self._rows = row_codec(self._columns, self._row_format)
        self._upgrade = ValueDecoder(self._columns, self._row_format, schema_by_id)
        self._required = [position for position, c in enumerate(self._columns) if not c.data_type.nullable]

    @cached_property
    def _compression(self) -> ArrowCompression:
        return arrow_compression(self.info.descriptor)

    # ---- writing ----------------------------------------------------------------------------------------------------

    def build(
        self, kinds: bytes, rows: RowSlices, keys: list[bytes], writer_id: int, sequence: int
    ) -> bytes | bytearray:
        """Return the log batch of a merge's outcome: a change type, a row and a key for each changelog record.

        Raises `CorruptData` for rows that do not decode or do not match their key, and `InvalidRequest` for a null in a
        NOT NULL column.
        """
        schema_id = self.info.schema_id
        if not kinds:
            return build_empty_batch(schema_id=schema_id, writer_id=writer_id, batch_sequence=sequence)
        batch = self._rows.decode(rows)
        try:
            batch.validate(full=True)  # text that is not UTF-8 would look like damage to every reader, and to recovery
        except pa.ArrowInvalid as e:
            raise CorruptData(
                f"a row written to table {self.info.path} is malformed: {e}", ErrorCode.CORRUPT_RECORD_EXCEPTION
            ) from e
        self._check(batch, keys)
        if self._log_format is LogFormat.ARROW:
            return build_arrow_batch(
                batch,
                schema_id=schema_id,
                change_types=kinds,
                writer_id=writer_id,
                batch_sequence=sequence,
                compression=self._compression.codec,
                level=self._compression.level,
            )
        encoded = rows.to_arrow()
        if self._log_format.value != self._row_format.value:
            encoded = row_codec(self._columns, RowFormat(self._log_format.value)).encode(batch)
        return build_row_batch(
            encoded, schema_id=schema_id, change_types=kinds, writer_id=writer_id, batch_sequence=sequence
        )

    def _check(self, batch: pa.RecordBatch, keys: list[bytes]) -> None:
        for position in self._required:
            column = batch.column(position)
            if column.null_count:
                raise InvalidRequest(
                    f"column '{self._columns[position].name}' of table {self.info.path} is NOT NULL, "
                    f"but {column.null_count} of the rows written have no value for it",
                    ErrorCode.INVALID_TARGET_COLUMN,
                )
        if not self._keys.encode(batch).equals(pa.array(keys, pa.binary())):
            raise CorruptData(
                f"a record for table {self.info.path} has a key that is not the key of its row",
                ErrorCode.CORRUPT_RECORD_EXCEPTION,
            )

    def upgrade(self, values: list[bytes]) -> list[bytes]:
        """Return stored values of older schema versions as stored values of the latest one."""
        ids = np.fromiter((stored_schema_id(value) for value in values), np.int16, len(values))
        encoded = self._rows.encode(self._upgrade.decode(ids, RowSlices.from_values(values, 6)))
        return [stored_value(self.info.schema_id, row) for row in encoded.to_pylist()]

    def upgrade_rows(self, rows: RowSlices, schema_id: int) -> RowSlices:
        """Return rows of an older schema as rows of the latest one; nulls (deletes) stay."""
        present = np.flatnonzero(~rows.nulls())
        ids = np.full(len(present), schema_id, np.int16)
        encoded = self._rows.encode(self._upgrade.decode(ids, rows.take(present))).to_pylist()
        upgraded: list[bytes | None] = [None] * len(rows)
        for position, row in zip(present.tolist(), encoded):
            upgraded[position] = row
        return RowSlices.from_values(upgraded)

    def with_canonical_keys(self, batch: KvBatch, rows: RowSlices) -> tuple[KvBatch, RowSlices]:
        """Return a batch and its rows (of the latest schema) with zeros and NaNs in keys in canonical form."""
        keys = self._keys.canonical(batch.keys)
        if keys is batch.keys:
            return batch, rows
        present = np.flatnonzero(~rows.nulls())
        values: list[bytes | None] = [None] * len(rows)
        encoded = self._rows.encode(self._keys.canonical_columns(self._rows.decode(rows.take(present))))
        for position, row in zip(present.tolist(), encoded.to_pylist()):
            values[position] = row
        return batch._replace(keys=list(keys)), RowSlices.from_values(values)

    # ---- reading back -----------------------------------------------------------------------------------------------

    def replay(self, header: LogBatchHeader, data: memoryview) -> tuple[Writes, int]:
        """Return the effect of a log batch: the last value of each key (None: deleted), and the rows added."""
        if header.record_count == 0:
            return {}, 0
        columns = self._schema_by_id(header.schema_id).columns
        if self._log_format is LogFormat.ARROW:
            kind_array = change_types(data, 0, header)
            batch = decode_arrow_batch(data, 0, header, columns)
        else:
            rows, kind_array = decode_row_batch(data, 0, header)
            batch = row_codec(columns, RowFormat(self._log_format.value)).decode(rows)
        if kind_array is None:
            raise CorruptData(
                f"the changelog of {self.info.path} has a batch of appends at offset {header.base_offset}",
                ErrorCode.CORRUPT_RECORD_EXCEPTION,
            )
        kinds = kind_array.to_numpy()
        effective = np.flatnonzero(kinds != ChangeType.UPDATE_BEFORE)
        selected = batch.take(pa.array(effective))
        keys = self._keys.encode(selected).to_pylist()
        encoded = row_codec(columns, self._row_format).encode(selected).to_pylist()
        prefixes = _StoredPrefixes(header.schema_id)
        values: list[bytes | None] = [prefixes[len(row)] + row for row in encoded]
        for position in np.flatnonzero(kinds[effective] == ChangeType.DELETE).tolist():
            values[position] = None
        writes: Writes = dict(zip(keys, values))
        added = int(np.count_nonzero(kinds == ChangeType.INSERT)) - int(np.count_nonzero(kinds == ChangeType.DELETE))
        return writes, added
