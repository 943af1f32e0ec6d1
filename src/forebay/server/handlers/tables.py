"""Tables: create, alter, drop, describe."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from forebay.base.errors import ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata import json_serde
from forebay.metadata.partitions import matches_partial, partition_name
from forebay.metadata.table import AggregateFunction, Column, PartitionInfo, TableInfo, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Message, partition_info_to_pb, partition_spec_from_pb, table_path_from_pb
from forebay.server.context import ServerCall, ServerContext, serves
from forebay.server.maintenance.auto_partitions import follow_the_clock_for
from forebay.server.metadata.catalog import partition_folder, table_folder
from forebay.server.metadata.table_rules import check_column_count

_SET, _RESET = 0, 1
_POSITION_LAST = 0


@serves(ApiKey.CREATE_TABLE)
async def create_table(context: ServerContext, call: ServerCall) -> Message:
    """Create a table, its lake table if it has one, and its automatic partitions."""
    request = call.message
    path = table_path_from_pb(request.table_path)

    def create() -> None:
        document = json_serde.loads(request.table_json, "table descriptor")
        _check_columns(document.get("schema"))
        context.catalog.create_table(path, json_serde.descriptor_from_json(document), request.ignore_if_exists)

    await context.in_coordinator(create)
    await _follow_the_clock(context, path)
    return pb.CreateTableResponse()


def _check_columns(schema: Any) -> None:
    """Refuse far too many columns before they are parsed further."""
    columns = schema.get("columns") if isinstance(schema, dict) else None
    if isinstance(columns, list):
        check_column_count(len(columns), "the table")


async def _follow_the_clock(context: ServerContext, path: TablePath) -> None:
    """Create a table's automatic partitions before its client gets the response."""
    try:
        table = context.catalog.table(path)
    except NotFound:
        return  # another client has dropped it already
    await context.to_the_end(follow_the_clock_for(context, table))


@serves(ApiKey.DROP_TABLE)
async def drop_table(context: ServerContext, call: ServerCall) -> Message:
    """Drop a table, and remove its data; its lake table stays."""
    request = call.message

    async def drop() -> None:
        dropped = await context.in_coordinator(context.catalog.drop_table, table_path_from_pb(request.table_path))
        await context.remove_data(dropped.info, list(dropped.partitions_by_id), table_folder(dropped.info))

    try:
        await context.to_the_end(drop())
    except NotFound:
        if not request.ignore_if_not_exists:
            raise
    return pb.DropTableResponse()


@serves(ApiKey.ALTER_TABLE)
async def alter_table(context: ServerContext, call: ServerCall) -> Message:
    """Change options of a table, or add columns; its lake table is altered first."""
    request = call.message
    path = table_path_from_pb(request.table_path)
    for name, changes in (
        ("dropping", request.drop_columns),
        ("renaming", request.rename_columns),
        ("modifying", request.modify_columns),
    ):
        if changes:
            raise UnsupportedOperation(
                f"{name} columns is not supported; columns can only be added", ErrorCode.UNKNOWN_SERVER_ERROR
            )
    if request.HasField("modify_bucket_count"):
        raise UnsupportedOperation(
            "changing the number of buckets of a live table is not supported (docs/limits.md)",
            ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
        )
    if request.config_changes and request.add_columns:
        raise InvalidRequest(
            "alter either the options or the columns of a table in one request, not both",
            ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
        )
    try:
        if request.add_columns:
            context.limits.check_items(len(request.add_columns), "columns")
            await context.in_coordinator(
                lambda: context.catalog.add_columns(path, [_added_column(message) for message in request.add_columns])
            )
        else:
            context.limits.check_items(len(request.config_changes), "options")
            to_set, to_reset = config_changes(request.config_changes)
            await context.in_coordinator(context.catalog.alter_properties, path, to_set, to_reset)
            await _follow_the_clock(context, path)
    except NotFound:
        if not request.ignore_if_not_exists:
            raise
    return pb.AlterTableResponse()


def _added_column(message: Any) -> Column:
    if message.column_position_type != _POSITION_LAST:
        raise InvalidRequest(
            f"column '{message.column_name}' can only be added at the end",
            ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
        )
    data_type = json_serde.data_type_from_json(json_serde.loads(message.data_type_json, "data type"))
    function = None
    if message.HasField("agg_function_type"):
        parameters = {parameter.key: parameter.value for parameter in message.agg_function_params}
        function = AggregateFunction.of(message.agg_function_type, parameters)
    comment = message.comment if message.HasField("comment") else None
    return Column(message.column_name, data_type, comment, aggregate=function)


def config_changes(messages: Iterable[Any]) -> tuple[dict[str, str], list[str]]:
    """(options to set, options to reset) of an ALTER request."""
    to_set: dict[str, str] = {}
    to_reset: list[str] = []
    for message in messages:
        if message.op_type == _SET:
            if not message.HasField("config_value"):
                raise InvalidRequest(
                    f"option '{message.config_key}' is to be set, but no value is given",
                    ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
                )
            to_set[message.config_key] = message.config_value
        elif message.op_type == _RESET:
            to_reset.append(message.config_key)
        else:
            raise InvalidRequest(
                f"option '{message.config_key}' can be set or reset, not changed by operation {message.op_type}",
                ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
            )
    return to_set, to_reset


@serves(ApiKey.GET_TABLE_INFO)
def get_table_info(context: ServerContext, call: ServerCall) -> Message:
    """Return the id, current schema id, descriptor and times of a table."""
    info = context.catalog.table(table_path_from_pb(call.message.table_path)).info
    return pb.GetTableInfoResponse(
        table_id=info.table_id,
        schema_id=info.schema_id,
        table_json=context.descriptions.table(info),
        created_time=info.created_ms,
        modified_time=info.modified_ms,
    )


@serves(ApiKey.GET_TABLE_SCHEMA)
def get_table_schema(context: ServerContext, call: ServerCall) -> Message:
    """Return one version of a table's schema, by default the latest."""
    request = call.message
    table = context.catalog.table(table_path_from_pb(request.table_path))
    schema_id = request.schema_id if request.HasField("schema_id") else table.info.schema_id
    schema = table.schema_by_id(schema_id)
    return pb.GetTableSchemaResponse(
        schema_id=schema_id, schema_json=context.descriptions.schema(table.info.table_id, schema_id, schema)
    )


@serves(ApiKey.LIST_TABLES)
def list_tables(context: ServerContext, call: ServerCall) -> Message:
    return pb.ListTablesResponse(table_name=context.catalog.table_names(call.message.database_name))


@serves(ApiKey.TABLE_EXISTS)
def table_exists(context: ServerContext, call: ServerCall) -> Message:
    return pb.TableExistsResponse(exists=context.catalog.table_exists(table_path_from_pb(call.message.table_path)))


# Partitions: create, drop, list.


@serves(ApiKey.CREATE_PARTITION)
async def create_partition(context: ServerContext, call: ServerCall) -> Message:
    """Create a partition of a table."""
    request = call.message
    spec = dict(partition_spec_from_pb(request.partition_spec))
    # The field is called ignore_if_not_exists; Fluss takes it for "ignore if exists".
    await context.in_coordinator(
        context.catalog.create_partition, table_path_from_pb(request.table_path), spec, request.ignore_if_not_exists
    )
    return pb.CreatePartitionResponse()


@serves(ApiKey.DROP_PARTITION)
async def drop_partition(context: ServerContext, call: ServerCall) -> Message:
    """Drop a partition, and remove its data."""
    request = call.message
    path = table_path_from_pb(request.table_path)
    spec = dict(partition_spec_from_pb(request.partition_spec))

    def forget() -> tuple[TableInfo, PartitionInfo]:
        info = context.catalog.table(path).info  # here: another table may get the name before it is this request's turn
        return info, context.catalog.drop_partition(path, spec)

    async def drop() -> None:
        info, partition = await context.in_coordinator(forget)
        await context.remove_data(info, [partition.partition_id], partition_folder(info, partition))

    try:
        await context.to_the_end(drop())
    except NotFound as e:
        if e.code != ErrorCode.PARTITION_NOT_EXISTS or not request.ignore_if_not_exists:
            raise
    return pb.DropPartitionResponse()


@serves(ApiKey.LIST_PARTITION_INFOS)
def list_partition_infos(context: ServerContext, call: ServerCall) -> Message:
    """Return all partitions of a table, or those that match some keys."""
    request = call.message
    table = context.catalog.table(table_path_from_pb(request.table_path))
    if not table.info.is_partitioned:
        raise InvalidRequest(f"table {table.info.path} is not partitioned", ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION)
    partial: dict[str, str] = {}
    if request.HasField("partial_partition_spec"):
        partial = dict(partition_spec_from_pb(request.partial_partition_spec))
    unknown = [key for key in partial if key not in table.info.descriptor.partition_keys]
    if unknown:
        raise InvalidRequest(
            f"table {table.info.path} is partitioned by {list(table.info.descriptor.partition_keys)}, "
            f"not by {', '.join(unknown)}",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )
    current, keys = table.current, table.info.descriptor.partition_keys
    partitions: Iterable[PartitionInfo] = current.partitions_by_id.values()
    if len(partial) == len(keys):  # one, which writers look for before they create it: not among all
        partition_id = current.partition_ids.get(partition_name([partial[key] for key in keys]))
        partitions = [] if partition_id is None else [current.partitions_by_id[partition_id]]
    partitions = [p for p in partitions if matches_partial(p, partial)]
    return pb.ListPartitionInfosResponse(partitions_info=[partition_info_to_pb(p) for p in partitions])
