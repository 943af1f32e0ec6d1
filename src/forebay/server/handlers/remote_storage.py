"""KV snapshots, their leases, and the remote log: what a Fluss cluster keeps in remote storage.

There are no downloadable KV snapshots here (state is read by ScanKv, or from the changelog); the responses are those of
a cluster that has none so far. Log segments are in remote storage if the server has a store.
"""

from __future__ import annotations

from forebay.base.errors import ErrorCode, InvalidRequest, NotFound
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Message, partition_id_of, table_path_from_pb
from forebay.server.context import ServerCall, ServerContext, serves


def _require_primary_key(info: TableInfo) -> None:
    if not info.has_primary_key:
        raise InvalidRequest(
            f"table {info.path} has no primary key and so no KV snapshots", ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION
        )


@serves(ApiKey.GET_LATEST_KV_SNAPSHOTS)
async def get_latest_kv_snapshots(context: ServerContext, call: ServerCall) -> Message:
    """Return every bucket without a snapshot: clients then read the changelog from its beginning, if it exists."""
    request = call.message
    table = context.catalog.table(table_path_from_pb(request.table_path))
    info = table.info
    _require_primary_key(info)
    response = pb.GetLatestKvSnapshotsResponse(table_id=info.table_id)
    if request.HasField("partition_name") != info.is_partitioned:
        missing = "needs a partition name" if info.is_partitioned else "is not partitioned"
        code = ErrorCode.PARTITION_NOT_EXISTS if info.is_partitioned else ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION
        raise InvalidRequest(f"table {info.path} {missing}", code)
    if info.is_partitioned:
        response.partition_id = table.current.partition(request.partition_name).partition_id
    for bucket in range(info.bucket_count):
        offsets = await context.in_io(
            context.replicas.segment_offsets, TableBucket(info.table_id, bucket, partition_id_of(response))
        )
        if offsets and offsets[0] > 0:
            raise NotFound(
                f"the rows of table {info.path} cannot be rebuilt from its changelog, whose beginning has expired "
                f"('table.log.ttl'; bucket {bucket} begins at {offsets[0]}), and there are no KV snapshots to "
                "download; read the table by ScanKv, or from its lake",
                ErrorCode.KV_SNAPSHOT_NOT_EXIST,
            )
        response.latest_snapshots.add(bucket_id=bucket)
    return response


@serves(ApiKey.GET_KV_SNAPSHOT_METADATA)
def get_kv_snapshot_metadata(_context: ServerContext, call: ServerCall) -> Message:
    """Refuse: there are no KV snapshots to download."""
    raise NotFound(
        f"there is no KV snapshot {call.message.snapshot_id}; this server has none to download",
        ErrorCode.KV_SNAPSHOT_NOT_EXIST,
    )


@serves(ApiKey.LIST_KV_SNAPSHOTS)
def list_kv_snapshots(_context: ServerContext, call: ServerCall) -> Message:
    """Return no KV snapshots: there are none to download."""
    response = pb.ListKvSnapshotsResponse(table_id=call.message.table_id)
    if call.message.HasField("partition_id"):
        response.partition_id = call.message.partition_id
    return response


@serves(ApiKey.LIST_REMOTE_LOG_MANIFESTS)
def list_remote_log_manifests(context: ServerContext, call: ServerCall) -> Message:
    """Return the manifests of a table's or partition's buckets that have log segments in the store."""
    response = pb.ListRemoteLogManifestsResponse()
    logs = context.remote_logs
    if logs is None:
        return response
    table_id, partition, ends = call.message.table_id, partition_id_of(call.message), logs.ends()
    for bucket, manifest in logs.known().items():
        if (bucket.table_id, bucket.partition_id) != (table_id, partition) or not manifest:
            continue
        entry = response.manifests.add(
            remote_log_manifest_path=f"{logs.location}/{manifest}", remote_log_end_offset=ends[bucket]
        )
        entry.table_bucket.table_id, entry.table_bucket.bucket_id = bucket.table_id, bucket.bucket
        if bucket.partition_id is not None:
            entry.table_bucket.partition_id = bucket.partition_id
    return response


@serves(ApiKey.ACQUIRE_KV_SNAPSHOT_LEASE)
def acquire_kv_snapshot_lease(_context: ServerContext, call: ServerCall) -> Message:
    """Return all requested snapshots as unavailable: there is nothing to lease."""
    return pb.AcquireKvSnapshotLeaseResponse(unavailable_snapshots=call.message.snapshots_to_lease)


@serves(ApiKey.RELEASE_KV_SNAPSHOT_LEASE)
def release_kv_snapshot_lease(_context: ServerContext, _call: ServerCall) -> Message:
    """Return success: there are no leases."""
    return pb.ReleaseKvSnapshotLeaseResponse()


@serves(ApiKey.DROP_KV_SNAPSHOT_LEASE)
def drop_kv_snapshot_lease(_context: ServerContext, _call: ServerCall) -> Message:
    """Return success: there are no leases."""
    return pb.DropKvSnapshotLeaseResponse()
