"""Metadata, health, settings and security tokens of the cluster, which is this one server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from forebay.base.errors import AccessDenied, ErrorCode, NotFound
from forebay.metadata.table import PartitionInfo, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, server_node_to_pb
from forebay.protocol.messages import Message, physical_path_from_pb, table_path_from_pb, table_path_to_pb
from forebay.server.context import ServerCall, ServerContext, serves
from forebay.server.metadata.catalog import LiveTable

_GREEN, _RED = 0, 2
_LEADER_EPOCH = 0
_SESSION_KEYS_MS = 15 * 60 * 1000
"""When keys of a session are said to expire: the shortest session of AWS. Its end is not among the settings."""


@serves(ApiKey.GET_METADATA)
async def get_metadata(context: ServerContext, call: ServerCall) -> Message:
    """Return the nodes as this listener's clients see them, and the requested tables and partitions, each once."""
    request, limits = call.message, context.limits
    requested = len(request.table_path) + len(request.partitions_path) + len(request.partitions_id)
    limits.check_items(requested, "tables and partitions")
    paths = await limits.distinct(map(table_path_from_pb, request.table_path), len(request.table_path))
    tables = [context.catalog.table(path) for path in paths]
    physical_paths = await limits.distinct(
        map(physical_path_from_pb, request.partitions_path), len(request.partitions_path)
    )
    partitions: dict[int, tuple[TableInfo, PartitionInfo]] = {}
    for path in physical_paths:
        table = context.catalog.table(path.table)
        partition = table.current.partition(path.partition or "")
        partitions[partition.partition_id] = (table.info, partition)
    if request.partitions_id:
        await _add_partitions_by_id(context, tables, request.partitions_id, partitions)

    infos = [table.info for table in tables]
    described = [info for info in infos if not info.is_partitioned] + [info for info, _ in partitions.values()]
    count = requested + sum(info.bucket_count for info in described)
    limits.check_items(count, "tables, partitions and their buckets")
    await call.memory.enter_for(count)
    coordinator, tablet_server = context.nodes[call.listener]
    response = pb.MetadataResponse(
        coordinator_server=server_node_to_pb(coordinator), tablet_servers=[server_node_to_pb(tablet_server)]
    )
    leader = tablet_server.node_id

    def unfilled() -> Iterator[tuple[Any, int]]:
        """Yield each bucket with its response, which is created on the way."""
        answer_bytes = 0
        for info in infos:
            answer: Any = response.table_metadata.add(
                table_path=table_path_to_pb(info.path),
                table_id=info.table_id,
                schema_id=info.schema_id,
                table_json=context.descriptions.table(info),
                created_time=info.created_ms,
                modified_time=info.modified_ms,
            )
            answer_bytes += len(answer.table_json)
            limits.check_answer_bytes(answer_bytes, f"descriptions of {len(infos)} tables")
            yield from ((answer, bucket) for bucket in range(0 if info.is_partitioned else info.bucket_count))
        for info, partition in partitions.values():
            answer = response.partition_metadata.add(
                table_id=info.table_id, partition_name=partition.name, partition_id=partition.partition_id
            )
            yield from ((answer, bucket) for bucket in range(info.bucket_count))

    def fill(unit: tuple[Any, int]) -> None:
        answer, bucket = unit
        answer.bucket_metadata.add(bucket_id=bucket, leader_id=leader, replica_id=[leader], leader_epoch=_LEADER_EPOCH)

    columns = sum(len(info.schema.columns) for info in infos)
    await limits.each(unfilled(), count + columns, fill)
    return response


async def _add_partitions_by_id(
    context: ServerContext,
    tables: list[LiveTable],
    partition_ids: Iterable[int],
    partitions: dict[int, tuple[TableInfo, PartitionInfo]],
) -> None:
    """Look partitions up in `tables`, or in all tables if none is named."""
    requested = set(partition_ids)
    candidates = tables or context.catalog.tables()

    def look(table: LiveTable) -> None:
        by_id = table.current.partitions_by_id
        for partition_id in requested & by_id.keys():
            partitions[partition_id] = (table.info, by_id[partition_id])

    await context.limits.each(candidates, len(candidates), look)
    for partition_id in requested:
        if partition_id not in partitions:
            raise NotFound(f"there is no partition with id {partition_id}", ErrorCode.PARTITION_NOT_EXISTS)


@serves(ApiKey.GET_CLUSTER_HEALTH)
def get_cluster_health(context: ServerContext, _call: ServerCall) -> Message:
    """Return counts: every bucket has its one replica here; those taken offline by a failed disk accept no writes, and
    those with damaged logs serve nothing."""
    count = sum(
        table.info.bucket_count * (len(table.current.partitions_by_id) if table.info.is_partitioned else 1)
        for table in context.catalog.tables()
    )
    offline = context.replicas.offline_count
    return pb.GetClusterHealthResponse(
        num_replicas=count,
        in_sync_replicas=count - offline,
        num_leader_replicas=count,
        active_leader_replicas=count - offline,
        status=_RED if offline else _GREEN,
    )


@serves(ApiKey.GET_FILESYSTEM_SECURITY_TOKEN)
def get_filesystem_security_token(context: ServerContext, _call: ServerCall) -> Message:
    """Return what clients need to read the store themselves, if they may (`store.client-access` = `direct`).

    Without keys the token is empty: local files need none, but clients wait for the response before their first log
    scan. The form is that of Apache Fluss's `S3DelegationTokenProvider`. Clients ask again before the expiration time
    that the response has for keys of a session; other keys do not expire.
    """
    keys = context.config.store_client_keys
    if not keys:
        return pb.GetFileSystemSecurityTokenResponse(schema="file", token=b"")
    token = {
        "access_key_id": keys["s3.access-key"],
        "access_key_secret": keys["s3.secret-key"],
        "security_token": keys.get("s3.session-token"),
    }
    response = pb.GetFileSystemSecurityTokenResponse(schema="s3", token=json.dumps(token).encode())
    if "s3.session-token" in keys:
        response.expiration_time = context.clock.now_ms() + _SESSION_KEYS_MS
    options = context.config.store_options
    for name, key in (("s3.endpoint", "fs.s3a.endpoint"), ("s3.region", "fs.s3a.endpoint.region")):
        if name in options:
            response.addition_info.add(key=key, value=options[name])
    if "s3.endpoint" in options:
        response.addition_info.add(key="fs.s3a.path.style.access", value="true")
    return response


@serves(ApiKey.DESCRIBE_CLUSTER_CONFIGS)
def describe_cluster_configs(context: ServerContext, _call: ServerCall) -> Message:
    """Return all settings with their values; possible secrets are hidden."""
    response = pb.DescribeClusterConfigsResponse()
    for key, value in sorted(context.config.shown().items()):
        response.configs.add(config_key=key, config_value=value, config_source="INITIAL_SERVER_CONFIG")
    return response


@serves(ApiKey.CREATE_ACLS)
@serves(ApiKey.LIST_ACLS)
@serves(ApiKey.DROP_ACLS)
def access_control(_context: ServerContext, _call: ServerCall) -> Message:
    """Refuse, as a Fluss cluster without an authorizer does."""
    raise AccessDenied(
        "this server has no access control lists: every user who can connect may do everything",
        ErrorCode.SECURITY_DISABLED_EXCEPTION,
    )
