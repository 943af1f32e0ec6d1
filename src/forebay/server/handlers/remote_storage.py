"""KV snapshots, their leases, and the remote log: what a Fluss cluster keeps in remote storage.

There are KV snapshots to download of tables that ask for them, if clients read the store
(`forebay.server.remote_state.kv_snapshots`). The state of others is read by ScanKv, or from the changelog, and the
responses are those of a cluster that has no snapshot so far. Log segments are in remote storage if the server has a
store.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forebay.base.errors import ErrorCode, InvalidRequest, NotFound
from forebay.log.remote import first_offset
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Message, partition_id_of, table_path_from_pb
from forebay.server.context import ServerCall, ServerContext, serves
from forebay.server.remote_state.kv_snapshot_list import StoredKvSnapshot


def _require_primary_key(info: TableInfo) -> None:
    if not info.has_primary_key:
        raise InvalidRequest(
            f"table {info.path} has no primary key and so no KV snapshots", ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION
        )


@serves(ApiKey.GET_LATEST_KV_SNAPSHOTS)
async def get_latest_kv_snapshots(context: ServerContext, call: ServerCall) -> Message:
    """Return the newest snapshot of each bucket. Of one without, clients read the changelog from its beginning.

    Clients go on in the changelog behind a snapshot, so one counts only if the changelog still has that place.
    """
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
        table_bucket = TableBucket(info.table_id, bucket, partition_id_of(response))
        latest = None
        if context.kv_snapshots is not None:
            latest = await context.in_io(context.kv_snapshots.latest, table_bucket)
        begin = await context.in_io(_first_offset, context, table_bucket)
        if latest is not None and latest.log_offset >= begin:
            _add(response.latest_snapshots, latest)
            continue
        if begin > 0:
            raise NotFound(
                f"the rows of table {info.path} cannot be rebuilt from its changelog, whose beginning has expired "
                f"('table.log.ttl'; bucket {bucket} begins at {begin}), and there is no KV snapshot to "
                "download that goes so far; read the table by ScanKv, or from its lake",
                ErrorCode.KV_SNAPSHOT_NOT_EXIST,
            )
        response.latest_snapshots.add(bucket_id=bucket)
    return response


def _first_offset(context: ServerContext, bucket: TableBucket) -> int:
    """Where the log of a bucket begins, here or in the store."""
    local = context.replicas.segment_offsets(bucket)
    if context.remote_logs is None:
        return local[0] if local else 0
    remote = context.remote_logs.log(bucket, context.replicas.physical_path(bucket))
    if local:
        return first_offset(remote, local[0])
    return 0 if remote.offsets is None else remote.offsets[0]


def _add(snapshots: Any, snapshot: StoredKvSnapshot) -> None:
    snapshots.add(bucket_id=snapshot.bucket.bucket, snapshot_id=snapshot.snapshot_id, log_offset=snapshot.log_offset)


@serves(ApiKey.GET_KV_SNAPSHOT_METADATA)
async def get_kv_snapshot_metadata(context: ServerContext, call: ServerCall) -> Message:
    """Return where the files of a KV snapshot are."""
    message, snapshots = call.message, context.kv_snapshots
    bucket = TableBucket(message.table_id, message.bucket_id, partition_id_of(message))
    snapshot = None if snapshots is None else await context.in_io(snapshots.find, bucket, message.snapshot_id)
    if snapshots is None or snapshot is None:
        raise NotFound(
            f"there is no KV snapshot {message.snapshot_id} of bucket {bucket} to download: ask for the latest one",
            ErrorCode.KV_SNAPSHOT_NOT_EXIST,
        )
    response = pb.GetKvSnapshotMetadataResponse(log_offset=snapshot.log_offset)
    for file in snapshot.files:
        response.snapshot_files.add(remote_path=snapshots.location_of(file), local_file_name=file.name)
    return response


@serves(ApiKey.LIST_KV_SNAPSHOTS)
async def list_kv_snapshots(context: ServerContext, call: ServerCall) -> Message:
    """Return the KV snapshots of a table or partition that can be downloaded."""
    table_id, partition = call.message.table_id, partition_id_of(call.message)
    response = pb.ListKvSnapshotsResponse(table_id=table_id, partition_id=partition)
    if context.kv_snapshots is not None:
        for snapshot in await context.in_io(context.kv_snapshots.all):
            if (snapshot.bucket.table_id, snapshot.bucket.partition_id) == (table_id, partition):
                _add(response.active_snapshots, snapshot)
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
async def acquire_kv_snapshot_lease(context: ServerContext, call: ServerCall) -> Message:
    """Keep KV snapshots for a while; return those that are gone."""
    message = call.message
    count = sum(len(table.bucket_snapshots) for table in message.snapshots_to_lease)
    context.limits.check_items(count, "buckets")
    if context.kv_snapshots is None:
        return pb.AcquireKvSnapshotLeaseResponse(unavailable_snapshots=message.snapshots_to_lease)

    def asked() -> Iterator[tuple[TableBucket, Any]]:
        for table in message.snapshots_to_lease:
            for each in table.bucket_snapshots:
                yield TableBucket(table.table_id, each.bucket_id, partition_id_of(each)), each

    wanted: dict[TableBucket, int] = {}
    await context.limits.each(asked(), count, lambda each: wanted.update({each[0]: each[1].snapshot_id}))
    gone = await context.in_io(context.kv_snapshots.lease, message.lease_id, wanted, message.lease_duration_ms)
    response = pb.AcquireKvSnapshotLeaseResponse()
    tables: dict[int, Any] = {}

    def put(asked: tuple[TableBucket, Any]) -> None:
        bucket, snapshot = asked
        if bucket in gone:
            if bucket.table_id not in tables:
                tables[bucket.table_id] = response.unavailable_snapshots.add(table_id=bucket.table_id)
            tables[bucket.table_id].bucket_snapshots.append(snapshot)

    await context.limits.each(asked(), count, put)
    return response


@serves(ApiKey.RELEASE_KV_SNAPSHOT_LEASE)
async def release_kv_snapshot_lease(context: ServerContext, call: ServerCall) -> Message:
    """End a lease for some buckets."""
    released = call.message.buckets_to_release
    context.limits.check_items(len(released), "buckets")
    if context.kv_snapshots is not None:
        buckets: list[TableBucket] = []

        def add(each: Any) -> None:
            buckets.append(TableBucket(each.table_id, each.bucket_id, partition_id_of(each)))

        await context.limits.each(released, len(released), add)
        await context.in_io(context.kv_snapshots.release, call.message.lease_id, buckets)
    return pb.ReleaseKvSnapshotLeaseResponse()


@serves(ApiKey.DROP_KV_SNAPSHOT_LEASE)
async def drop_kv_snapshot_lease(context: ServerContext, call: ServerCall) -> Message:
    """End a lease."""
    if context.kv_snapshots is not None:
        await context.in_io(context.kv_snapshots.release, call.message.lease_id)
    return pb.DropKvSnapshotLeaseResponse()
