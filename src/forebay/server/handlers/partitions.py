"""Partitions: create, drop, list."""

from __future__ import annotations

from forebay.base.errors import ErrorCode, InvalidRequest, NotFound
from forebay.metadata.partitions import matches_partial
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.convert import partition_info_to_pb, partition_spec_from_pb, table_path_from_pb
from forebay.protocol.messages import Message
from forebay.server.catalog import partition_folder
from forebay.server.context import ServerCall, ServerContext, serves


@serves(ApiKey.CREATE_PARTITION)
async def create_partition(context: ServerContext, call: ServerCall) -> Message:
    """Create a partition of a table."""
    request = call.message
    spec = dict(partition_spec_from_pb(request.partition_spec))
    # The field is called ignore_if_not_exists; its meaning is "ignore if exists" (reference fluss.md, Partitions).
    await context.in_coordinator(
        context.catalog.create_partition, table_path_from_pb(request.table_path), spec, request.ignore_if_not_exists
    )
    return pb.CreatePartitionResponse()


@serves(ApiKey.DROP_PARTITION)
async def drop_partition(context: ServerContext, call: ServerCall) -> Message:
    """Drop a partition, and remove its data."""
    request = call.message
    path = table_path_from_pb(request.table_path)
    table = context.catalog.table(path)
    spec = dict(partition_spec_from_pb(request.partition_spec))
    try:
        partition = await context.in_coordinator(context.catalog.drop_partition, path, spec)
    except NotFound as e:
        if e.code != ErrorCode.PARTITION_NOT_EXISTS or not request.ignore_if_not_exists:
            raise
        return pb.DropPartitionResponse()
    folder = partition_folder(table.info, partition)
    await context.remove_data(table.info, [partition.partition_id], folder)
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
    partitions = [p for p in table.current.partitions_by_id.values() if matches_partial(p, partial)]
    return pb.ListPartitionInfosResponse(partitions_info=[partition_info_to_pb(p) for p in partitions])
