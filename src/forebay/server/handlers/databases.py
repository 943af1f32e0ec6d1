"""Databases: create, alter, drop, list."""

from __future__ import annotations

from forebay.base.errors import ErrorCode, NotFound
from forebay.metadata import json_serde
from forebay.metadata.table import DatabaseInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Message
from forebay.server.context import ServerCall, ServerContext, serves
from forebay.server.handlers.tables import config_changes
from forebay.server.metadata.catalog import table_folder


@serves(ApiKey.CREATE_DATABASE)
async def create_database(context: ServerContext, call: ServerCall) -> Message:
    """Create a database from its name and JSON document."""
    request = call.message
    info = DatabaseInfo(request.database_name)
    if request.HasField("database_json"):
        info = json_serde.database_from_json(
            request.database_name,
            json_serde.loads(request.database_json, "database descriptor", ErrorCode.INVALID_DATABASE_EXCEPTION),
        )
    await context.in_coordinator(context.catalog.create_database, info, request.ignore_if_exists)
    return pb.CreateDatabaseResponse()


@serves(ApiKey.ALTER_DATABASE)
async def alter_database(context: ServerContext, call: ServerCall) -> Message:
    """Change the properties and the comment of a database."""
    request = call.message
    to_set, to_reset = config_changes(request.config_changes)
    comment = request.comment if request.HasField("comment") else None
    try:
        await context.in_coordinator(context.catalog.alter_database, request.database_name, to_set, to_reset, comment)
    except NotFound:
        if not request.ignore_if_not_exists:
            raise
    return pb.AlterDatabaseResponse()


@serves(ApiKey.DROP_DATABASE)
async def drop_database(context: ServerContext, call: ServerCall) -> Message:
    """Drop a database, with its tables if requested, and remove their data."""
    request = call.message

    async def drop() -> None:
        dropped = await context.in_coordinator(context.catalog.drop_database, request.database_name, request.cascade)
        for table in dropped:
            await context.remove_data(table.info, list(table.partitions_by_id), table_folder(table.info))

    try:
        await context.to_the_end(drop())
    except NotFound:
        if not request.ignore_if_not_exists:
            raise
    return pb.DropDatabaseResponse()


@serves(ApiKey.DATABASE_EXISTS)
def database_exists(context: ServerContext, call: ServerCall) -> Message:
    return pb.DatabaseExistsResponse(exists=context.catalog.database_exists(call.message.database_name))


@serves(ApiKey.LIST_DATABASES)
def list_databases(context: ServerContext, call: ServerCall) -> Message:
    """Return the names of all databases, with summaries if requested."""
    databases = context.catalog.databases()
    response = pb.ListDatabasesResponse(database_name=[info.name for info in databases])
    if call.message.include_summary:
        for info in databases:
            response.database_summary.add(
                database_name=info.name, created_time=info.created_ms, table_count=info.table_count or 0
            )
    return response


@serves(ApiKey.GET_DATABASE_INFO)
def get_database_info(context: ServerContext, call: ServerCall) -> Message:
    """Return the JSON document and the times of a database."""
    info = context.catalog.database(call.message.database_name)
    return pb.GetDatabaseInfoResponse(
        database_json=json_serde.dumps(json_serde.database_to_json(info)),
        created_time=info.created_ms,
        modified_time=info.modified_ms,
    )
