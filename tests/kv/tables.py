"""A small primary-key table for tests of the key-value state: builds put requests and reads results back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from forebay.base.errors import ErrorCode, NotFound
from forebay.codec.kv.kv_batch import encode_kv_batch
from forebay.codec.kv.value_batch import ValueDecoder, parse_value_batch, parse_values
from forebay.codec.log.log_batch import align_batch, change_types, decode_arrow_batch, decode_row_batch
from forebay.codec.rows.keys import primary_key_encoder
from forebay.codec.rows.row_codec import row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.kv.tablet import ACKS_ALL, PutRequest
from forebay.log.tablet import LogTablet
from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableDescriptor, TableInfo, TablePath, assign_ids

KINDS = "+A", "+I", "-U", "+U", "-D"
Row = dict[str, Any]


class FakeTable:
    """A `TableView` whose schema can grow: columns id INT (key), name STRING, score BIGINT, then what is added."""

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        columns: Sequence[Column] | None = None,
        auto_increment: str | None = None,
    ) -> None:
        columns = columns or [
            Column("id", types.int_()),
            Column("name", types.string()),
            Column("score", types.bigint()),
        ]
        schema = Schema.of(columns, ("id",), auto_increment)
        options = {"table.kv.format-version": "2", **(properties or {})}
        descriptor = TableDescriptor(
            schema,
            bucket_keys=("id",),
            bucket_count=1,
            properties={key: value for key, value in options.items() if key.startswith("table.")},
            custom_properties={key: value for key, value in options.items() if not key.startswith("table.")},
        )
        self.info = TableInfo(TablePath("db", "t"), 1, 1, descriptor)
        self.schemas = {1: schema}

    def schema_by_id(self, schema_id: int) -> Schema:
        if schema_id not in self.schemas:
            raise NotFound(f"no schema {schema_id}", ErrorCode.SCHEMA_NOT_EXIST)
        return self.schemas[schema_id]

    def add_column(self, column: Column) -> None:
        old = self.info.schema
        (added,), highest = assign_ids((column,), first_id=old.highest_field_id + 1)
        schema = Schema((*old.columns, added), old.primary_key, old.auto_increment_column, highest)
        schema_id = self.info.schema_id + 1
        self.schemas[schema_id] = schema
        self.info = replace(self.info, schema_id=schema_id, descriptor=replace(self.info.descriptor, schema=schema))

    @property
    def row_format(self) -> RowFormat:
        return RowFormat(self.info.descriptor.kv_format.value)

    def request(
        self,
        rows: Sequence[Row],
        deletes: Sequence[bool] | None = None,
        *,
        targets: Sequence[str] = (),
        schema_id: int | None = None,
        writer_id: int = -1,
        sequence: int = -1,
        acks: int = ACKS_ALL,
        overwrite: bool = False,
    ) -> PutRequest:
        """Puts of `rows`; where `deletes` says so, the row's key is deleted instead."""
        schema = self.schemas[schema_id or self.info.schema_id]
        codec = row_codec(schema.columns, self.row_format)
        batch = pa.RecordBatch.from_pylist([dict.fromkeys(schema.names) | row for row in rows], schema=codec.schema)
        keys = primary_key_encoder(self.info.descriptor).encode(batch)
        encoded = codec.encode(batch)
        if deletes is not None:
            gone = [value is not None and flag for value, flag in zip(encoded, deletes)]
            encoded = pa.array([None if flag else v.as_py() for v, flag in zip(encoded, gone)], pa.binary())
        records = encode_kv_batch(keys, encoded, schema_id or self.info.schema_id, writer_id, sequence)
        positions = tuple(self.info.schema.index(name) for name in targets)
        return PutRequest(records, positions, acks, overwrite)

    def key(self, key_id: int) -> bytes:
        encoder = primary_key_encoder(self.info.descriptor)
        return encoder.encode(pa.RecordBatch.from_pylist([{"id": key_id}], schema=pa.schema([("id", pa.int32())])))[
            0
        ].as_py()

    def rows_of_values(self, values: Sequence[bytes]) -> list[Row]:
        """Rows of values as lookups return them."""
        decoder = ValueDecoder(self.info.schema.columns, self.row_format, self.schema_by_id)
        return decoder.decode(*parse_values(values)).to_pylist()

    def rows_of_page(self, page: bytes) -> list[Row]:
        decoder = ValueDecoder(self.info.schema.columns, self.row_format, self.schema_by_id)
        return decoder.decode(*parse_value_batch(page)).to_pylist()

    def changelog(self, log: LogTablet, from_offset: int = 0) -> list[tuple[int, str, Row]]:
        """(offset, kind, row) of every record of the log, rows in the latest schema."""
        records = []
        for header, data in log.iterate_batches(from_offset):
            if header.record_count == 0:
                continue
            schema = self.schemas[header.schema_id]
            if self.info.descriptor.log_format.value == "ARROW":
                kinds = change_types(data, 0, header)
                batch = decode_arrow_batch(data, 0, header, schema)
            else:
                rows, kinds = decode_row_batch(data, 0, header)
                batch = row_codec(schema.columns, RowFormat(self.info.descriptor.log_format.value)).decode(rows)
            aligned = align_batch(batch, schema, self.info.schema)
            for i, (kind, row) in enumerate(zip(kinds.to_pylist(), aligned.to_pylist())):
                records.append((header.base_offset + i, KINDS[kind], row))
        return records
