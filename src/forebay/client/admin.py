"""What servers know of databases and tables, and offsets. What concerns the cluster itself is in
forebay.client.admin_cluster; databases and tables are made, listed and dropped on the connection.

Rule: what only reads is repeated after passing failures. What changes something is repeated only while it is certain
that the server has not seen it; a change that was sent and not answered raises `Unavailable` and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from forebay.base.errors import ErrorCode, ForebayError
from forebay.client.admin_cluster import ClusterAdmin
from forebay.client.definition import config_changes
from forebay.client.display import Listing
from forebay.client.planning import LogPlace, PartitionSelector, list_offsets, place_of, plan_buckets
from forebay.client.results import TableStats
from forebay.client.rpc import Call
from forebay.client.scatter import BucketItem, Scatter, pair_up
from forebay.metadata import json_serde
from forebay.metadata.table import DatabaseInfo, Schema, TableBucket, TableDescriptor, TableInfo, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.convert import ServerNode, table_path_to_pb

if TYPE_CHECKING:
    from forebay.client.cluster import ClusterClient
    from forebay.client.table_snapshot import TableSnapshotInfo


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
        """All databases with creation time and number of tables (older servers tell neither)."""
        request = pb.ListDatabasesRequest(include_summary=True)
        response = self._ask(ApiKey.LIST_DATABASES, request, pb.ListDatabasesResponse)
        told = {
            message.database_name: DatabaseInfo(
                message.database_name, created_ms=message.created_time, table_count=message.table_count
            )
            for message in response.database_summary
        }
        names = {*response.database_name, *told}
        return Listing([told.get(name) or DatabaseInfo(name) for name in sorted(names)])

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
        """Create a table from a whole descriptor. Raises as `Connection.create_table` does."""
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
        """The table as it is now. Raises `NotFound`."""
        return self._cluster.table_info(TablePath.parse(path))

    def table_schema(self, path: str | TablePath, schema_id: int | None = None) -> tuple[int, Schema]:
        """(schema id, schema) of a version of the table's schema, the newest unless given. Raises `NotFound`."""
        request = pb.GetTableSchemaRequest(table_path=table_path_to_pb(TablePath.parse(path)), schema_id=schema_id)
        response = self._ask(ApiKey.GET_TABLE_SCHEMA, request, pb.GetTableSchemaResponse)
        document = json_serde.loads(response.schema_json, "table schema")
        return response.schema_id, json_serde.schema_from_json(document)

    def table_stats(
        self, path: str | TablePath | TableInfo, partitions: Sequence[PartitionSelector] | None = None
    ) -> TableStats:
        """How many rows each bucket has: rows now of a primary-key table, records kept of a log table.

        Raises `UnsupportedOperation` on clusters that do not count (Fluss 0.9).
        """
        info = self._info(path)
        items = [BucketItem(bucket) for bucket in plan_buckets(self._cluster, info, partitions)]
        found = _TableStats(self._cluster, info).ask(self._cluster, info.path, items)
        return TableStats({item.bucket: count for item, count in found})

    def list_table_snapshots(self, path: str | TablePath | TableInfo | None = None) -> list[TableSnapshotInfo]:
        """The open table snapshots (of one table), the oldest first; none where the cluster does not have them."""
        from forebay.client.table_snapshot import list_table_snapshots

        return list_table_snapshots(self._cluster, None if path is None else self._info(path).table_id)

    # ---- offsets ----------------------------------------------------------------------------------------------------

    def list_offsets(
        self,
        table: str | TablePath | TableInfo,
        place: LogPlace = "latest",
        *,
        partitions: Sequence[PartitionSelector] | None = None,
        buckets: Iterable[int | TableBucket] | None = None,
    ) -> dict[TableBucket, int]:
        """The log offset at `place` of each bucket: "earliest", "latest" (the next record's), or a time.

        A time, as datetime or ISO text, means the first record written then or later.
        """
        info, at = self._info(table), place_of(place, "place")
        return list_offsets(self._cluster, info, plan_buckets(self._cluster, info, partitions, buckets), at)


class _TableStats(Scatter[BucketItem, "int | None"]):
    def __init__(self, cluster: ClusterClient, info: TableInfo) -> None:
        self._cluster = cluster
        self._info = info

    def send(self, node: ServerNode, items: Sequence[BucketItem]) -> Call:
        request = pb.GetTableStatsRequest(table_id=self._info.table_id)
        for item in items:
            request.buckets_req.add(partition_id=item.bucket.partition_id, bucket_id=item.bucket.bucket)
        return self._cluster.send(node, ApiKey.GET_TABLE_STATS, request)

    def answers(
        self, call: Call, items: Sequence[BucketItem]
    ) -> Iterable[tuple[BucketItem, int | ForebayError | None]]:
        response = call.response().parse(pb.GetTableStatsResponse)
        for item, message in pair_up(items, response.buckets_resp):
            if isinstance(message, ForebayError):
                # A table whose changelog image is WAL does not count its rows; that is an answer.
                yield item, None if message.code == ErrorCode.INVALID_TABLE_EXCEPTION else message
            else:
                yield item, message.row_count if message.HasField("row_count") else None
