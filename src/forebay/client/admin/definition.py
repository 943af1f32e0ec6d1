"""From what users specify to the descriptor of a new table, or the change of an existing one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from forebay.api.schemas import SchemaLike, columns_of
from forebay.base.arguments import one_or_more_names
from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.metadata import json_serde
from forebay.metadata.merge_engines import with_function_options
from forebay.metadata.table import Column, Schema, TableDescriptor, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.messages import table_path_to_pb

SERVER_OPTIONS = "table."
"""The prefix of options that servers interpret; they store all others as they are."""

_SET, _RESET = 0, 1
_POSITION_LAST = 0


def new_descriptor(
    schema: SchemaLike,
    *,
    primary_key: Sequence[str] | str,
    partition_keys: Sequence[str] | str,
    bucket_keys: Sequence[str] | str,
    buckets: int | None,
    options: Mapping[str, Any] | None,
    comment: str | None,
    auto_increment: str | None,
) -> TableDescriptor:
    """The descriptor of a new table. Parameters are as in `Connection.create_table`."""
    key = one_or_more_names(primary_key, "primary_key")
    if isinstance(schema, Schema):
        key, auto_increment = key or schema.primary_key, auto_increment or schema.auto_increment_column
    texts = {name: option_text(value) for name, value in (options or {}).items()}
    descriptor = TableDescriptor(
        Schema.of(columns_of(schema), key, auto_increment),
        one_or_more_names(partition_keys, "partition_keys"),
        one_or_more_names(bucket_keys, "bucket_keys"),
        buckets,
        comment,
        {name: text for name, text in texts.items() if name.startswith(SERVER_OPTIONS)},
        {name: text for name, text in texts.items() if not name.startswith(SERVER_OPTIONS)},
    )
    return with_function_options(descriptor)


def alteration(
    path: TablePath,
    *,
    add_columns: SchemaLike | None,
    to_set: Mapping[str, Any] | None,
    to_reset: Iterable[str] | str,
    unsupported: Mapping[str, Any],
) -> pb.AlterTableRequest:
    """The request for a change. Raises `UnsupportedOperation` for kinds of changes that servers do not support."""
    for kind, change in unsupported.items():
        if change not in (None, (), [], {}):
            raise UnsupportedOperation(
                f"alter table {path}: {kind}={change!r} is not possible in a live table. Columns can be added "
                "(add_columns) and options be set and reset; for anything else make another table"
            )
    changes = config_changes(
        {name: option_text(value) for name, value in (to_set or {}).items()}, one_or_more_names(to_reset, "reset")
    )
    columns = [] if add_columns is None else columns_of(add_columns)
    if bool(changes) == bool(columns):
        raise InvalidRequest(f"alter table {path}: give either options to set or reset, or columns to add")
    return pb.AlterTableRequest(
        table_path=table_path_to_pb(path),
        ignore_if_not_exists=False,
        config_changes=changes,
        add_columns=[_add_column(column) for column in columns],
    )


def option_text(value: Any) -> str:
    """An option's value as text; Python values such as True and 4 are accepted."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def config_changes(to_set: Mapping[str, str] | None, to_reset: Iterable[str]) -> list[pb.PbAlterConfig]:
    """Options to set and to reset as messages."""
    changes = [pb.PbAlterConfig(config_key=k, config_value=v, op_type=_SET) for k, v in (to_set or {}).items()]
    return changes + [pb.PbAlterConfig(config_key=key, op_type=_RESET) for key in to_reset]


def _add_column(column: Column) -> pb.PbAddColumn:
    message = pb.PbAddColumn(
        column_name=column.name,
        data_type_json=json_serde.dumps(json_serde.data_type_to_json(column.data_type)),
        comment=column.comment,
        column_position_type=_POSITION_LAST,
    )
    if column.aggregate is not None:
        message.agg_function_type = column.aggregate.name
        for key, value in column.aggregate.parameters:
            message.agg_function_params.add(key=key, value=value)
    return message
