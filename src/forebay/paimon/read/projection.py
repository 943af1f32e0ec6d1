"""Column projection, including nested fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from forebay.base.arguments import did_you_mean, name_list
from forebay.base.errors import InvalidRequest
from forebay.metadata.types import DataType, TypeRoot
from forebay.paimon.files.casts import evolve
from forebay.paimon.format.arrow import arrow_field
from forebay.paimon.format.schema import DataField, TableSchema


def project(schema: TableSchema, columns: Sequence[str] | None) -> tuple[DataField, ...]:
    """The named columns, in that order; all columns for None.

    `address.city` is column `address` with only its field `city`; several such names of one column make one column.
    Raises `InvalidRequest` for unknown and duplicate names.
    """
    if columns is None:
        return schema.fields
    paths: dict[str, list[tuple[str, ...]]] = {}
    for name in name_list(columns, "columns"):
        is_column = name in schema.names
        head, *rest = [name] if is_column else name.split(".")
        if head in paths and (not rest or () in paths[head]):
            raise InvalidRequest(f"column '{head}' is asked for twice")
        paths.setdefault(head, []).append(tuple(rest))
    return tuple(_narrowed(schema.field_named(head), parts) for head, parts in paths.items())


def _narrowed(field: DataField, parts: Sequence[tuple[str, ...]]) -> DataField:
    return field if () in parts else replace(field, type=_cut(field.type, parts, field.name))


def _cut(t: DataType, parts: Sequence[tuple[str, ...]], where: str) -> DataType:
    if () in parts:
        return t
    if t.root is not TypeRoot.ROW:
        raise InvalidRequest(f"'{where}' has type {t}, which has no fields to choose from")
    paths: dict[str, list[tuple[str, ...]]] = {}
    for head, *rest in parts:
        paths.setdefault(head, []).append(tuple(rest))
    fields = {f.name: f for f in t.fields}
    for name in paths:
        if name not in fields:
            hint = did_you_mean(name, fields)
            raise InvalidRequest(f"'{where}' has no field '{name}'; its fields are {', '.join(fields)}{hint}")
    projected = [
        replace(f, data_type=_cut(f.data_type, paths[f.name], f"{where}.{f.name}")) for f in t.fields if f.name in paths
    ]
    return replace(t, fields=tuple(projected))


def read_schema(fields: Sequence[DataField]) -> pa.Schema:
    """The Arrow schema of the batches returned for `fields`."""
    return pa.schema([arrow_field(f) for f in fields])


def cut_batch(batch: pa.RecordBatch, file_fields: dict[str, DataField], fields: Sequence[DataField]) -> pa.RecordBatch:
    """The columns `fields` of a batch whose columns have the types of `file_fields`."""
    columns = [evolve(batch.column(f.name), file_fields[f.name].type, f.type) for f in fields]
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), batch.num_rows, [None]))
    return pa.RecordBatch.from_arrays(columns, schema=read_schema(fields))
