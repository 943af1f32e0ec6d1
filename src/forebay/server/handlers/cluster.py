"""Metadata, health, settings and security tokens of the cluster, which is this one server."""

from __future__ import annotations

from forebay.base.errors import AccessDenied, ErrorCode, NotFound
from forebay.metadata import json_serde
from forebay.metadata.table import PartitionInfo, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.convert import physical_path_from_pb, server_node_to_pb, table_path_from_pb, table_path_to_pb
from forebay.protocol.messages import Message
from forebay.server.catalog import LiveTable
from forebay.server.context import Call, ServerContext, serves

_GREEN, _RED = 0, 2
_LEADER_EPOCH = 0


@serves(ApiKey.GET_METADATA)
def get_metadata(context: ServerContext, call: Call) -> Message:
    """Nodes as this listener's clients see them, and the tables and partitions that were asked for."""
    request = call.message
    coordinator, tablet_server = context.nodes[call.listener]
    response = pb.MetadataResponse(
        coordinator_server=server_node_to_pb(coordinator), tablet_servers=[server_node_to_pb(tablet_server)]
    )
    tables: list[LiveTable] = []
    for message in request.table_path:
        table = context.catalog.table(table_path_from_pb(message))
        tables.append(table)
        response.table_metadata.append(_table_metadata(context, table.info, tablet_server.node_id))
    for message in request.partitions_path:
        path = physical_path_from_pb(message)
        table = context.catalog.table(path.table)
        partition = table.current.partition(path.partition or "")
        response.partition_metadata.append(_partition_metadata(table.info, partition, tablet_server.node_id))
    for partition_id in request.partitions_id:
        response.partition_metadata.append(_partition_by_id(context, tables, partition_id, tablet_server.node_id))
    return response


def _partition_by_id(
    context: ServerContext, tables: list[LiveTable], partition_id: int, leader: int
) -> pb.PbPartitionMetadata:
    for table in tables or context.catalog.tables():
        partition = table.current.partitions_by_id.get(partition_id)
        if partition is not None:
            return _partition_metadata(table.info, partition, leader)
    raise NotFound(f"there is no partition with id {partition_id}", ErrorCode.PARTITION_NOT_EXISTS)


def _buckets(info: TableInfo, leader: int) -> list[pb.PbBucketMetadata]:
    return [
        pb.PbBucketMetadata(bucket_id=b, leader_id=leader, replica_id=[leader], leader_epoch=_LEADER_EPOCH)
        for b in range(info.bucket_count)
    ]


def _table_metadata(context: ServerContext, info: TableInfo, leader: int) -> pb.PbTableMetadata:
    return pb.PbTableMetadata(
        table_path=table_path_to_pb(info.path),
        table_id=info.table_id,
        schema_id=info.schema_id,
        table_json=json_serde.dumps(json_serde.descriptor_to_json(context.lake.tables.described(info.descriptor))),
        bucket_metadata=[] if info.is_partitioned else _buckets(info, leader),
        created_time=info.created_ms,
        modified_time=info.modified_ms,
    )


def _partition_metadata(info: TableInfo, partition: PartitionInfo, leader: int) -> pb.PbPartitionMetadata:
    return pb.PbPartitionMetadata(
        table_id=info.table_id,
        partition_name=partition.name,
        partition_id=partition.partition_id,
        bucket_metadata=_buckets(info, leader),
    )


@serves(ApiKey.GET_CLUSTER_HEALTH)
def get_cluster_health(context: ServerContext, _call: Call) -> Message:
    """Every bucket has its one replica here; those that a failed disk took offline serve no more writes."""
    count = sum(
        table.info.bucket_count * (len(table.current.partitions_by_id) if table.info.is_partitioned else 1)
        for table in context.catalog.tables()
    )
    offline = sum(replica.log.is_offline for replica in context.replicas.replicas())
    return pb.GetClusterHealthResponse(
        num_replicas=count,
        in_sync_replicas=count - offline,
        num_leader_replicas=count,
        active_leader_replicas=count - offline,
        status=_RED if offline else _GREEN,
    )


@serves(ApiKey.GET_FILESYSTEM_SECURITY_TOKEN)
def get_filesystem_security_token(_context: ServerContext, _call: Call) -> Message:
    """Clients ask before their first log scan and wait for an answer; local files need no token."""
    return pb.GetFileSystemSecurityTokenResponse(schema="file", token=b"")


@serves(ApiKey.DESCRIBE_CLUSTER_CONFIGS)
def describe_cluster_configs(context: ServerContext, _call: Call) -> Message:
    """All settings with their values; what may be secret is not shown."""
    response = pb.DescribeClusterConfigsResponse()
    for key, value in sorted(context.config.shown().items()):
        response.configs.add(config_key=key, config_value=value, config_source="INITIAL_SERVER_CONFIG")
    return response


@serves(ApiKey.CREATE_ACLS)
@serves(ApiKey.LIST_ACLS)
@serves(ApiKey.DROP_ACLS)
def access_control(_context: ServerContext, _call: Call) -> Message:
    """As a Fluss cluster without an authorizer answers."""
    raise AccessDenied(
        "this server has no access control lists: everybody who may connect may do everything",
        ErrorCode.SECURITY_DISABLED_EXCEPTION,
    )
