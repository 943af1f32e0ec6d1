"""Administration: the cluster itself, database and table metadata, and offsets. Databases and tables are created,
listed and dropped through the connection.

Rule: reads are retried after transient failures. Changes are retried only while it is certain that the server has not
received them; a change that was sent without a response raises `Unavailable` with that explanation.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from forebay.base.errors import ErrorCode, ForebayError, error_from_wire
from forebay.base.quantity import Span, span_ms
from forebay.client.admin.definition import config_changes
from forebay.client.cluster.buckets import plan_buckets
from forebay.client.cluster.offsets import LogPlace, list_offsets, place_of
from forebay.client.cluster.partitions import PartitionSelector
from forebay.client.cluster.rpc import Call
from forebay.client.cluster.scatter import BucketItem, Scatter, pair_up
from forebay.client.display import Listing
from forebay.client.results import (
    AccessRule,
    AclOperation,
    AclResourceType,
    ClusterHealth,
    ConfigEntry,
    HealthStatus,
    KvSnapshotFiles,
    KvSnapshotInfo,
    LakeSnapshot,
    ProducerOffsets,
    TableSnapshotInfo,
    TableStats,
    TransactionInfo,
    history_from_pb,
    transaction_from_pb,
)
from forebay.metadata import json_serde
from forebay.metadata.table import DatabaseInfo, Schema, TableBucket, TableDescriptor, TableInfo, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, ServerNode
from forebay.protocol.messages import Message, error_of, partition_id_of, table_bucket_to_pb, table_path_to_pb

if TYPE_CHECKING:
    from forebay.client.admin.server_description import ServerDescription, ServerList
    from forebay.client.cluster.cluster import ClusterClient
    from forebay.client.session import Session


# The cluster itself: servers, health, settings, access rules; snapshots, leases and registered offsets.

_HISTORIES = 1
"""The first version of ListTransactions with the histories of tables (`commits_of_table`)."""

M = TypeVar("M", bound=Message)

# Numbers of the protocol: operations on a setting, the kinds of permission, and the result of creating something.
_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3
_ALLOW = 2
_ANY_PERMISSION = 1
_CREATED = 0


class ClusterAdmin:
    """The part of `Admin` that concerns the cluster."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def _cluster(self) -> ClusterClient:
        return self._session.cluster

    def _ask(self, key: ApiKey, request: Message, response: type[M]) -> M:
        """Send a request that is safe to retry."""
        return self._cluster.coordinator_call(key, request, response, repeatable=True)

    def _change(self, key: ApiKey, request: Message, response: type[M], *, safe: bool) -> M:
        """Send a change; `safe` means that it is idempotent."""
        return self._cluster.coordinator_call(key, request, response, repeatable=safe)

    def _info(self, table: str | TablePath | TableInfo) -> TableInfo:
        return table if isinstance(table, TableInfo) else self._cluster.table_info(TablePath.parse(table))

    def __repr__(self) -> str:
        return f"<forebay.Admin of {self._session!r}>"

    # ---- servers and settings ---------------------------------------------------------------------------------------

    def server_nodes(self) -> list[ServerNode]:
        """The servers of the cluster with the addresses this client uses, the coordinator first."""
        return Listing(self._cluster.retrying(self._cluster.refresh).nodes)

    def cluster_health(self) -> ClusterHealth:
        """The health of the cluster. Raises `UnsupportedOperation` on clusters that do not report it (Fluss 0.9)."""
        answer = self._ask(ApiKey.GET_CLUSTER_HEALTH, pb.GetClusterHealthRequest(), pb.GetClusterHealthResponse)
        is_defined = answer.status in set(HealthStatus)
        return ClusterHealth(
            HealthStatus(answer.status) if is_defined else HealthStatus.UNKNOWN,
            answer.num_replicas,
            answer.in_sync_replicas,
            answer.num_leader_replicas,
            answer.active_leader_replicas,
        )

    def describe_server(
        self, listed: ServerList | None = None, *, skip: int = 0, limit: int = 100
    ) -> ServerDescription:
        """Return the server's present state: counters, and a page of one list, of up to 1,000 `items` after `skip`
        others.

        Lists are "connections", "scans", "table_snapshots", "transactions" (under way first) and "tiering" (tables with
        a lake). Raises `UnsupportedOperation` on clusters that do not describe their servers (Apache Fluss).
        """
        from forebay.client.admin.server_description import describe_server

        def ask(request: Message) -> pb.DescribeServerResponse:
            return self._ask(ApiKey.DESCRIBE_SERVER, request, pb.DescribeServerResponse)

        return describe_server(ask, listed, skip, limit)

    # ---- transactions -----------------------------------------------------------------------------------------------

    def transactions(self, application: str | None = None) -> list[TransactionInfo]:
        """The open transactions, and the last committed one of each application, in the order of their beginning.

        Raises `UnsupportedOperation` on clusters without transactions (Apache Fluss).
        """
        request = pb.ListTransactionsRequest(application=application)
        answer = self._ask(ApiKey.LIST_TRANSACTIONS, request, pb.ListTransactionsResponse)
        return Listing(map(transaction_from_pb, answer.transactions))

    def history(self, table: str | TablePath | TableInfo) -> pa.Table:
        """The last transactions that have written to a table, oldest first: at most 1,000 rows of `HISTORY_SCHEMA`.

        A commit is in it from its decision on. Rows that were written without a transaction are not. Raises
        `UnsupportedOperation` on servers without histories (Apache Fluss).
        """
        request = pb.ListTransactionsRequest(commits_of_table=self._info(table).table_id)
        answer = self._cluster.coordinator_call(
            ApiKey.LIST_TRANSACTIONS, request, pb.ListTransactionsResponse, repeatable=True, version_min=_HISTORIES
        )
        return history_from_pb(answer.commits)

    def abort_transaction(self, transaction_id: int) -> None:
        """End a transaction that is open, and drop its rows; does nothing for one that has ended.

        For operators: its application gets `Conflict`. Raises `Conflict` for one that is committed, or being committed.
        """
        request = pb.AbortTransactionRequest(transaction_id=transaction_id)
        self._change(ApiKey.ABORT_TRANSACTION, request, pb.AbortTransactionResponse, safe=True)

    def committed_version(self, application: str) -> int | None:
        """The version of an application that was committed last; None if there is none, or it was forgotten.

        Readers may see rows of a version from its decision on, and nothing undoes it, so it counts from then on.
        """
        committed = [each.version for each in self.transactions(application) if each.state in ("decided", "committed")]
        return max(committed, default=None)

    # ---- settings ---------------------------------------------------------------------------------------------------

    def describe_configs(self) -> list[ConfigEntry]:
        """The settings of the cluster; the server omits secrets."""
        request = pb.DescribeClusterConfigsRequest()
        answer = self._ask(ApiKey.DESCRIBE_CLUSTER_CONFIGS, request, pb.DescribeClusterConfigsResponse)
        return Listing(
            ConfigEntry(
                message.config_key,
                message.config_value if message.HasField("config_value") else None,
                message.config_source,
            )
            for message in answer.configs
        )

    def alter_configs(
        self,
        set: Mapping[str, Any] | None = None,  # noqa: A002 - the word of SQL
        reset: Iterable[str] = (),
        append: Mapping[str, Any] | None = None,
        subtract: Mapping[str, Any] | None = None,
    ) -> None:
        """Change dynamic settings; `append` and `subtract` apply to settings that are lists."""
        request = pb.AlterClusterConfigsRequest()
        for operation, changes in ((_SET, set), (_APPEND, append), (_SUBTRACT, subtract)):
            for key, value in (changes or {}).items():
                request.alter_configs.add(config_key=key, config_value=str(value), op_type=operation)
        for key in reset:
            request.alter_configs.add(config_key=key, op_type=_DELETE)
        safe = not (append or subtract)
        self._change(ApiKey.ALTER_CLUSTER_CONFIGS, request, pb.AlterClusterConfigsResponse, safe=safe)

    # ---- access rules -----------------------------------------------------------------------------------------------

    def create_acls(self, rules: Iterable[AccessRule]) -> None:
        """Create access rules. Raises `AccessDenied` if the cluster has no authorizer, or for the first rule that was
        refused.
        """
        request = pb.CreateAclsRequest(acl=[_rule_to_pb(rule) for rule in rules])
        for message in self._change(ApiKey.CREATE_ACLS, request, pb.CreateAclsResponse, safe=True).aclRes:
            error = error_of(message)
            if error is not None:
                raise error

    def list_acls(self, **filters: Any) -> list[AccessRule]:
        """The access rules that match: `resource_type`, `resource_name`, `principal`, `operation`, `host`."""
        request = pb.ListAclsRequest(acl_filter=_acl_filter(**filters))
        answer = self._ask(ApiKey.LIST_ACLS, request, pb.ListAclsResponse)
        return Listing(_rule_from_pb(message) for message in answer.acl)

    def drop_acls(self, **filters: Any) -> list[AccessRule]:
        """Drop the access rules that match (as in `list_acls`); returns the dropped ones."""
        request = pb.DropAclsRequest(acl_filter=[_acl_filter(**filters)])
        dropped = []
        for result in self._change(ApiKey.DROP_ACLS, request, pb.DropAclsResponse, safe=True).filter_results:
            if result.error_code:
                raise error_from_wire(result.error_code, result.error_message)
            for message in result.matching_acls:
                if message.error_code:
                    raise error_from_wire(message.error_code, message.error_message)
                dropped.append(_rule_from_pb(message.acl))
        return dropped

    # ---- KV snapshots -----------------------------------------------------------------------------------------------

    def latest_kv_snapshots(
        self, path: str | TablePath, partition: str | None = None
    ) -> dict[TableBucket, KvSnapshotInfo | None]:
        """The newest KV snapshot per bucket of a table or partition; None for buckets without one."""
        request = pb.GetLatestKvSnapshotsRequest(
            table_path=table_path_to_pb(TablePath.parse(path)), partition_name=partition
        )
        answer = self._ask(ApiKey.GET_LATEST_KV_SNAPSHOTS, request, pb.GetLatestKvSnapshotsResponse)
        partition_id = partition_id_of(answer)
        return {
            TableBucket(answer.table_id, message.bucket_id, partition_id): (
                KvSnapshotInfo(message.snapshot_id, message.log_offset) if message.HasField("snapshot_id") else None
            )
            for message in answer.latest_snapshots
        }

    def kv_snapshot_files(self, bucket: TableBucket, snapshot_id: int) -> KvSnapshotFiles:
        """The files of a KV snapshot and where they are. Raises `NotFound` (KV_SNAPSHOT_NOT_EXIST)."""
        request = pb.GetKvSnapshotMetadataRequest(
            table_id=bucket.table_id,
            partition_id=bucket.partition_id,
            bucket_id=bucket.bucket,
            snapshot_id=snapshot_id,
        )
        answer = self._ask(ApiKey.GET_KV_SNAPSHOT_METADATA, request, pb.GetKvSnapshotMetadataResponse)
        files = tuple((file.remote_path, file.local_file_name) for file in answer.snapshot_files)
        return KvSnapshotFiles(answer.log_offset, files)

    def acquire_kv_snapshot_lease(
        self, lease_id: str, snapshots: Mapping[TableBucket, int], duration: Span
    ) -> dict[TableBucket, int]:
        """Lease KV snapshots so that they are not removed; acquiring again renews the lease. Returns those already
        gone.
        """
        request = pb.AcquireKvSnapshotLeaseRequest(lease_id=lease_id, lease_duration_ms=span_ms(duration, "duration"))
        tables: dict[int, pb.PbKvSnapshotLeaseForTable] = {}
        for bucket, snapshot_id in snapshots.items():
            if bucket.table_id not in tables:
                tables[bucket.table_id] = request.snapshots_to_lease.add(table_id=bucket.table_id)
            tables[bucket.table_id].bucket_snapshots.add(
                partition_id=bucket.partition_id, bucket_id=bucket.bucket, snapshot_id=snapshot_id
            )
        answer = self._change(ApiKey.ACQUIRE_KV_SNAPSHOT_LEASE, request, pb.AcquireKvSnapshotLeaseResponse, safe=True)
        return {
            TableBucket(table.table_id, message.bucket_id, partition_id_of(message)): message.snapshot_id
            for table in answer.unavailable_snapshots
            for message in table.bucket_snapshots
        }

    def release_kv_snapshot_lease(self, lease_id: str, buckets: Iterable[TableBucket] | None = None) -> None:
        """Release the lease on the snapshots of `buckets`, or the whole lease."""
        if buckets is None:
            drop = pb.DropKvSnapshotLeaseRequest(lease_id=lease_id)
            self._change(ApiKey.DROP_KV_SNAPSHOT_LEASE, drop, pb.DropKvSnapshotLeaseResponse, safe=True)
            return
        release = pb.ReleaseKvSnapshotLeaseRequest(
            lease_id=lease_id, buckets_to_release=[table_bucket_to_pb(bucket) for bucket in buckets]
        )
        self._change(ApiKey.RELEASE_KV_SNAPSHOT_LEASE, release, pb.ReleaseKvSnapshotLeaseResponse, safe=True)

    # ---- producer offsets -------------------------------------------------------------------------------------------

    def register_producer_offsets(
        self, producer_id: str, offsets: Mapping[TableBucket, int], ttl: Span | None = None
    ) -> bool:
        """Register offsets under a producer id. The first to register wins: returns whether that was this call."""
        request = pb.RegisterProducerOffsetsRequest(
            producer_id=producer_id, ttl_ms=None if ttl is None else span_ms(ttl, "ttl")
        )
        tables: dict[int, pb.PbProducerTableOffsets] = {}
        for bucket, offset in offsets.items():
            if bucket.table_id not in tables:
                tables[bucket.table_id] = request.table_offsets.add(table_id=bucket.table_id)
            tables[bucket.table_id].bucket_offsets.add(
                partition_id=bucket.partition_id, bucket_id=bucket.bucket, log_end_offset=offset
            )
        answer = self._change(ApiKey.REGISTER_PRODUCER_OFFSETS, request, pb.RegisterProducerOffsetsResponse, safe=False)
        return answer.result == _CREATED

    def producer_offsets(self, producer_id: str) -> ProducerOffsets | None:
        """The offsets registered under a producer id; None if there are none, or they have expired."""
        request = pb.GetProducerOffsetsRequest(producer_id=producer_id)
        answer = self._ask(ApiKey.GET_PRODUCER_OFFSETS, request, pb.GetProducerOffsetsResponse)
        if not answer.HasField("producer_id"):
            return None
        offsets = {
            TableBucket(table.table_id, message.bucket_id, partition_id_of(message)): message.log_end_offset
            for table in answer.table_offsets
            for message in table.bucket_offsets
        }
        expires = dt.datetime.fromtimestamp(answer.expiration_time / 1000, dt.UTC)
        return ProducerOffsets(answer.producer_id, expires, offsets)

    def delete_producer_offsets(self, producer_id: str) -> None:
        request = pb.DeleteProducerOffsetsRequest(producer_id=producer_id)
        self._change(ApiKey.DELETE_PRODUCER_OFFSETS, request, pb.DeleteProducerOffsetsResponse, safe=True)

    # ---- lake -------------------------------------------------------------------------------------------------------

    def lake_snapshot(
        self, path: str | TablePath, snapshot_id: int | None = None, readable: bool = False
    ) -> LakeSnapshot:
        """A snapshot of the table's lake side: the latest, the latest readable one, or the one with the given id.

        Raises `NotFound` (LAKE_SNAPSHOT_NOT_EXIST).
        """
        request = pb.GetLakeSnapshotRequest(table_path=table_path_to_pb(TablePath.parse(path)), snapshot_id=snapshot_id)
        if readable:
            request.readable = True
        answer = self._ask(ApiKey.GET_LAKE_SNAPSHOT, request, pb.GetLakeSnapshotResponse)
        offsets, names = {}, {}
        for message in answer.bucket_snapshots:
            partition_id = partition_id_of(message)
            if message.HasField("log_offset"):
                offsets[TableBucket(answer.table_id, message.bucket_id, partition_id)] = message.log_offset
            if partition_id is not None and message.HasField("partition_name"):
                names[partition_id] = message.partition_name
        name = answer.offsets_name if answer.HasField("offsets_name") else None
        return LakeSnapshot(answer.table_id, answer.snapshotId, offsets, names, name)


def _rule_to_pb(rule: AccessRule) -> pb.PbAclInfo:
    return pb.PbAclInfo(
        resource_name=rule.resource_name,
        resource_type=int(rule.resource_type),
        principal_name=rule.principal,
        principal_type=rule.principal_type,
        host=rule.host,
        operation_type=int(rule.operation),
        permission_type=_ALLOW,
    )


def _rule_from_pb(message: pb.PbAclInfo) -> AccessRule:
    return AccessRule(
        AclResourceType(message.resource_type),
        message.resource_name,
        message.principal_name,
        AclOperation(message.operation_type),
        message.principal_type,
        message.host,
    )


def _acl_filter(
    resource_type: AclResourceType = AclResourceType.ANY,
    resource_name: str | None = None,
    principal: str | None = None,
    operation: AclOperation = AclOperation.ANY,
    host: str | None = None,
) -> pb.PbAclFilter:
    return pb.PbAclFilter(
        resource_name=resource_name,
        resource_type=int(resource_type),
        principal_name=principal,
        principal_type=None if principal is None else "User",
        host=host,
        operation_type=int(operation),
        permission_type=_ANY_PERMISSION,
    )


class Admin(ClusterAdmin):
    """Administration of a cluster: `connection.admin`. Tables are named "database.table"."""

    # ---- databases --------------------------------------------------------------------------------------------------

    def alter_database(
        self,
        name: str,
        set: Mapping[str, str] | None = None,  # noqa: A002 - the word of SQL
        reset: Iterable[str] = (),
        comment: str | None = None,
        ignore_if_not_exists: bool = False,
    ) -> None:
        """Set and reset custom properties, and the comment. Raises `NotFound`."""
        request = pb.AlterDatabaseRequest(
            database_name=name,
            ignore_if_not_exists=ignore_if_not_exists,
            config_changes=config_changes(set, reset),
            comment=comment,
        )
        self._change(ApiKey.ALTER_DATABASE, request, pb.AlterDatabaseResponse, safe=True)

    def database_summaries(self) -> list[DatabaseInfo]:
        """All databases with creation time and number of tables (older servers report neither)."""
        request = pb.ListDatabasesRequest(include_summary=True)
        response = self._ask(ApiKey.LIST_DATABASES, request, pb.ListDatabasesResponse)
        summaries = {
            message.database_name: DatabaseInfo(
                message.database_name, created_ms=message.created_time, table_count=message.table_count
            )
            for message in response.database_summary
        }
        names = {*response.database_name, *summaries}
        return Listing([summaries.get(name) or DatabaseInfo(name) for name in sorted(names)])

    def database_info(self, name: str) -> DatabaseInfo:
        """Raises `NotFound`."""
        request = pb.GetDatabaseInfoRequest(database_name=name)
        response = self._ask(ApiKey.GET_DATABASE_INFO, request, pb.GetDatabaseInfoResponse)
        document = json_serde.loads(response.database_json, "database descriptor")
        return json_serde.database_from_json(name, document, response.created_time, response.modified_time)

    # ---- tables -----------------------------------------------------------------------------------------------------

    def create_table_as(
        self, path: str | TablePath, descriptor: TableDescriptor, ignore_if_exists: bool = False
    ) -> None:
        """Create a table from a complete descriptor. Raises as `Connection.create_table` does."""
        path = TablePath.parse(path)
        if not descriptor.bucket_keys and descriptor.has_primary_key:
            descriptor = replace(descriptor, bucket_keys=descriptor.physical_primary_key)
        request = pb.CreateTableRequest(
            table_path=table_path_to_pb(path),
            table_json=json_serde.dumps(json_serde.descriptor_to_json(descriptor)),
            ignore_if_exists=ignore_if_exists,
        )
        self._change(ApiKey.CREATE_TABLE, request, pb.CreateTableResponse, safe=ignore_if_exists)

    def table_info(self, path: str | TablePath) -> TableInfo:
        """The current metadata of the table. Raises `NotFound`."""
        return self._cluster.table_info(TablePath.parse(path))

    def table_schema(self, path: str | TablePath, schema_id: int | None = None) -> tuple[int, Schema]:
        """(schema id, schema) of a version of the table's schema, the latest by default. Raises `NotFound`."""
        request = pb.GetTableSchemaRequest(table_path=table_path_to_pb(TablePath.parse(path)), schema_id=schema_id)
        response = self._ask(ApiKey.GET_TABLE_SCHEMA, request, pb.GetTableSchemaResponse)
        document = json_serde.loads(response.schema_json, "table schema")
        return response.schema_id, json_serde.schema_from_json(document)

    def table_stats(
        self,
        path: str | TablePath | TableInfo,
        partitions: Sequence[PartitionSelector] | None = None,
        *,
        buckets: Iterable[int | TableBucket] | None = None,
    ) -> TableStats:
        """The row counts per bucket: current rows of a primary-key table, retained records of a log table.

        Forebay's servers add the sizes of logs, and times of the last writes. Raises `UnsupportedOperation` on clusters
        that do not count rows (Fluss 0.9).
        """
        info = self._info(path)
        items = [BucketItem(bucket) for bucket in plan_buckets(self._cluster, info, partitions, buckets)]
        answers = _TableStats(self._cluster, info).ask(self._cluster, info.path, items)
        reports = [(item.bucket, message) for item, message in answers if message is not None]
        return TableStats(
            {item.bucket: _row_count(message) for item, message in answers},
            {bucket: message.log_bytes for bucket, message in reports if message.HasField("log_bytes")},
            {bucket: _last_write(message) for bucket, message in reports if message.HasField("last_write_ms")},
        )

    def list_table_snapshots(self, path: str | TablePath | TableInfo | None = None) -> list[TableSnapshotInfo]:
        """The open table snapshots (of one table), the oldest first; empty if the cluster does not support them."""
        from forebay.client.reading.table_snapshot import list_table_snapshots

        return list_table_snapshots(self._cluster, None if path is None else self._info(path).table_id)

    def release_table_snapshot(self, snapshot_id: str) -> None:
        """End a table snapshot, whoever opened it; does nothing if there is none with this id.

        For operators: scans of it fail. Raises `UnsupportedOperation` if the cluster has none (Apache Fluss).
        """
        from forebay.client.reading.table_snapshot import release_table_snapshot

        release_table_snapshot(self._cluster, snapshot_id)

    # ---- offsets ----------------------------------------------------------------------------------------------------

    def list_offsets(
        self,
        table: str | TablePath | TableInfo,
        place: LogPlace = "latest",
        *,
        partitions: Sequence[PartitionSelector] | None = None,
        buckets: Iterable[int | TableBucket] | None = None,
    ) -> dict[TableBucket, int]:
        """The log offset at `place` per bucket: "earliest", "latest" (of the next record), or a time.

        A time, as datetime or ISO text, means the first record written at that time or later.
        """
        info, at = self._info(table), place_of(place, "place")
        return list_offsets(self._cluster, info, plan_buckets(self._cluster, info, partitions, buckets), at)


def _row_count(message: Any) -> int | None:
    return None if message is None or not message.HasField("row_count") else int(message.row_count)


def _last_write(message: Any) -> dt.datetime | None:
    return None if message.last_write_ms < 0 else dt.datetime.fromtimestamp(message.last_write_ms / 1000, dt.UTC)


class _TableStats(Scatter[BucketItem, Any]):
    def __init__(self, cluster: ClusterClient, info: TableInfo) -> None:
        self._cluster = cluster
        self._info = info

    def send(self, node: ServerNode, items: Sequence[BucketItem]) -> Call:
        request = pb.GetTableStatsRequest(table_id=self._info.table_id)
        for item in items:
            request.buckets_req.add(partition_id=item.bucket.partition_id, bucket_id=item.bucket.bucket)
        return self._cluster.send(node, ApiKey.GET_TABLE_STATS, request)

    def answers(self, call: Call, items: Sequence[BucketItem]) -> Iterable[tuple[BucketItem, Any]]:
        response = call.response().parse(pb.GetTableStatsResponse)
        for item, message in pair_up(items, response.buckets_resp):
            if isinstance(message, ForebayError):
                # A table whose changelog image is WAL does not count its rows; that is a valid response.
                yield item, None if message.code == ErrorCode.INVALID_TABLE_EXCEPTION else message
            else:
                yield item, message
