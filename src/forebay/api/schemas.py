"""Schemas as users write them: pyarrow schemas, names with types, or data frames; all become columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa

from forebay.api.data import ArrowData, ArrowSchema
from forebay.base.errors import InvalidRequest
from forebay.codec.arrow.arrow_types import from_arrow_schema, from_arrow_type
from forebay.codec.casting.frames import arrow_stream, is_pandas_frame, is_series, with_named_index
from forebay.metadata.table import Column, Schema
from forebay.metadata.type_text import parse_type
from forebay.metadata.types import DataType

TypeLike: TypeAlias = DataType | ArrowSchema | str
"""A column's type: one of `forebay.types`, a pyarrow type, or text such as "DECIMAL(10, 2) NOT NULL"."""

SchemaLike: TypeAlias = (
    Schema | ArrowSchema | ArrowData | Mapping[str, TypeLike] | Sequence[Column | ArrowSchema | tuple[str, TypeLike]]
)
"""Columns: a pyarrow schema, a dict or a list of names and types, a data frame or Arrow data whose columns are used."""


def columns_of(schema: SchemaLike) -> list[Column]:
    """The columns of `schema`, without ids. Raises `InvalidRequest`, which names the invalid column."""
    if isinstance(schema, Schema):
        return _without_ids(schema.columns)
    if isinstance(schema, Mapping):
        return [Column(_name(name), type_of(t, name)) for name, t in schema.items()]
    arrow = _arrow_schema(schema)
    if arrow is not None:
        return _without_ids(from_arrow_schema(arrow).columns)
    if isinstance(schema, str | bytes) or not isinstance(schema, Iterable):
        raise _refused(schema)
    return [_column(item) for item in schema]


def type_of(value: Any, column: str) -> DataType:
    """The data type for `value`. Raises `InvalidRequest`, which names the column."""
    if isinstance(value, DataType):
        return value
    try:
        if isinstance(value, pa.DataType):
            return from_arrow_type(value)
        if isinstance(value, str):
            return parse_type(value)
    except InvalidRequest as e:
        raise InvalidRequest(f"column '{column}': {e.message}") from e
    label = value.__name__ if isinstance(value, type) else repr(value)
    raise InvalidRequest(
        f"column '{column}': {label} is not a data type; write text such as 'BIGINT', a pyarrow type such as "
        "pyarrow.int64(), or one of forebay.types such as types.bigint()"
    )


def _column(item: Any) -> Column:
    if isinstance(item, Column):
        return _without_ids([item])[0]
    if isinstance(item, pa.Field):
        return _without_ids(from_arrow_schema(pa.schema([item])).columns)[0]
    if isinstance(item, tuple | list) and len(item) == 2:
        return Column(_name(item[0]), type_of(item[1], item[0]))
    raise InvalidRequest(f"{item!r} is not a column: write (name, type), such as ('id', 'BIGINT')")


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidRequest(f"a column's name is text, not {name!r}")
    return name


def _arrow_schema(schema: Any) -> pa.Schema | None:
    """The Arrow schema of `schema`, if it is one or has one; None for anything else."""
    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
        return schema.schema
    if is_pandas_frame(schema):
        return pa.Schema.from_pandas(with_named_index(schema), preserve_index=False)
    if is_series(schema):
        raise _refused(schema)
    if hasattr(schema, "__arrow_c_schema__"):
        return pa.schema(schema)
    if hasattr(schema, "__arrow_c_stream__"):
        return arrow_stream(schema).schema
    inner = getattr(schema, "schema", None)
    return inner if isinstance(inner, pa.Schema) else None


def _refused(schema: Any) -> InvalidRequest:
    return InvalidRequest(
        f"{schema!r} is not a schema: write a pyarrow schema, a list such as [('id', 'BIGINT'), ('name', 'STRING')], "
        "or give a data frame whose columns to take"
    )


def _without_ids(columns: Iterable[Column]) -> list[Column]:
    """Columns as a user writes them: ids are assigned when the table is created."""

    def plain(t: DataType) -> DataType:
        return replace(
            t,
            element=None if t.element is None else plain(t.element),
            key=None if t.key is None else plain(t.key),
            value=None if t.value is None else plain(t.value),
            fields=tuple(replace(f, field_id=None, data_type=plain(f.data_type)) for f in t.fields),
        )

    return [replace(column, column_id=None, data_type=plain(column.data_type)) for column in columns]
