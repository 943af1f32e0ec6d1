"""Databases, tables, partitions and offsets. What concerns the cluster itself is in forebay.client.admin_cluster.

Rule: what only reads is repeated after passing failures. What changes something is repeated only while it is certain
that the server has not seen it; a change that was sent and not answered raises `Unavailable` and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest
from forebay.client.admin_cluster import ClusterAdmin
from forebay.client.display import Listing
from forebay.client.planning import (
    OffsetSpec,
    PartitionSelector,
    list_offsets,
    list_partitions,
    partition_texts,
    plan_buckets,
)
from forebay.client.results import TableStats
from forebay.client.rpc import Call
from forebay.client.scatter import BucketItem, Scatter, pair_up
from forebay.metadata import json_serde
from forebay.metadata.table import (
    Column,
    DatabaseInfo,
    PartitionInfo,
    Schema,
    TableBucket,
    TableDescriptor,
    TableInfo,
    TablePath,
)
from forebay.metadata.types import DataType
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.convert import ServerNode, partition_spec_to_pb, table_path_to_pb

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay.client.cluster import ClusterClient
    from forebay.client.table_snapshot import TableSnapshotInfo


SchemaLike: TypeAlias = "Schema | pa.Schema | Mapping[str, DataType | pa.DataType]"
"""How users give columns: a pyarrow schema, a dict of names and types (Fluss's or Arrow's), or a whole schema."""

_SET, _RESET = 0, 1
_POSITION_LAST = 0


class Admin(ClusterAdmin):
    """Administration of a cluster: `connection.admin`. Tables are named "database.table"."""

    # ---- databases --------------------------------------------------------------------------------------------------

    def create_database(
        self,
        name: str,
        comment: str | None = None,
        custom_properties: Mapping[str, str] | None = None,
        ignore_if_exists: bool = False,
    ) -> None:
        """Raises `AlreadyExists`, and `InvalidRequest` for a name that is not allowed."""
        request = pb.CreateDatabaseRequest(database_name=name, ignore_if_exists=ignore_if_exists)
        if comment is not None or custom_properties:
            info = DatabaseInfo(name, comment, dict(custom_properties or {}))
            request.database_json = json_serde.dumps(json_serde.database_to_json(info))
        self._change(ApiKey.CREATE_DATABASE, request, pb.CreateDatabaseResponse, safe=ignore_if_exists)

    def drop_database(self, name: str, ignore_if_not_exists: bool = False, cascade: bool = False) -> None:
        """Raises `NotFound`, and `InvalidRequest` (DATABASE_NOT_EMPTY) unless `cascade` drops the tables too."""
        request = pb.DropDatabaseRequest(database_name=name, ignore_if_not_exists=ignore_if_not_exists, cascade=cascade)
        self._change(ApiKey.DROP_DATABASE, request, pb.DropDatabaseResponse, safe=ignore_if_not_exists)

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
            config_changes=_config_changes(set, reset),
            comment=comment,
        )
        self._change(ApiKey.ALTER_DATABASE, request, pb.AlterDatabaseResponse, safe=True)

    def list_databases(self) -> list[str]:
        request = pb.ListDatabasesRequest()
        return sorted(self._ask(ApiKey.LIST_DATABASES, request, pb.ListDatabasesResponse).database_name)

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

    def database_exists(self, name: str) -> bool:
        request = pb.DatabaseExistsRequest(database_name=name)
        return self._ask(ApiKey.DATABASE_EXISTS, request, pb.DatabaseExistsResponse).exists

    def database_info(self, name: str) -> DatabaseInfo:
        """Raises `NotFound`."""
        request = pb.GetDatabaseInfoRequest(database_name=name)
        response = self._ask(ApiKey.GET_DATABASE_INFO, request, pb.GetDatabaseInfoResponse)
        document = json_serde.loads(response.database_json, "database descriptor")
        return json_serde.database_from_json(name, document, response.created_time, response.modified_time)

    # ---- tables -----------------------------------------------------------------------------------------------------

    def create_table(
        self,
        path: str | TablePath,
        schema: SchemaLike,
        *,
        primary_key: Sequence[str] = (),
        partition_keys: Sequence[str] = (),
        bucket_keys: Sequence[str] = (),
        buckets: int | None = None,
        properties: Mapping[str, Any] | None = None,
        custom_properties: Mapping[str, str] | None = None,
        comment: str | None = None,
        auto_increment: str | None = None,
        ignore_if_exists: bool = False,
    ) -> None:
        """Create a table.

        `schema` is a pyarrow schema (a timestamp with a zone becomes TIMESTAMP_LTZ), a dict of names and types, or a
        `forebay.metadata.table.Schema`. Without `primary_key` it is a log table. `bucket_keys` are what rows are
        distributed by: the primary key without partition keys unless given. `buckets` is left to the server unless
        given. `properties` are `table.*` options. `auto_increment` names the column that the server numbers.
        Raises `AlreadyExists`, `NotFound` (the database), `InvalidRequest` for anything that cannot be.
        """
        path = TablePath.parse(path)
        descriptor = TableDescriptor(
            _schema(schema, tuple(primary_key), auto_increment),
            tuple(partition_keys),
            tuple(bucket_keys),
            buckets,
            comment,
            {key: _text(value) for key, value in (properties or {}).items()},
            {key: _text(value) for key, value in (custom_properties or {}).items()},
        )
        self.create_table_as(path, descriptor, ignore_if_exists)

    def create_table_as(
        self, path: str | TablePath, descriptor: TableDescriptor, ignore_if_exists: bool = False
    ) -> None:
        """Create a table from a whole descriptor. Raises as `create_table` does."""
        path = TablePath.parse(path)
        if not descriptor.bucket_keys and descriptor.has_primary_key:
            from dataclasses import replace

            descriptor = replace(descriptor, bucket_keys=descriptor.physical_primary_key)
        request = pb.CreateTableRequest(
            table_path=table_path_to_pb(path),
            table_json=json_serde.dumps(json_serde.descriptor_to_json(descriptor)),
            ignore_if_exists=ignore_if_exists,
        )
        self._change(ApiKey.CREATE_TABLE, request, pb.CreateTableResponse, safe=ignore_if_exists)

    def drop_table(self, path: str | TablePath, ignore_if_not_exists: bool = False) -> None:
        """Raises `NotFound`."""
        path = TablePath.parse(path)
        request = pb.DropTableRequest(table_path=table_path_to_pb(path), ignore_if_not_exists=ignore_if_not_exists)
        self._change(ApiKey.DROP_TABLE, request, pb.DropTableResponse, safe=ignore_if_not_exists)
        self._cluster.forget_table(path)

    def alter_table(
        self,
        path: str | TablePath,
        *,
        set: Mapping[str, Any] | None = None,  # noqa: A002 - the word of SQL
        reset: Iterable[str] = (),
        add_columns: SchemaLike | Sequence[Column] | None = None,
        ignore_if_not_exists: bool = False,
    ) -> None:
        """Set and reset options, or add columns behind the last one; not both in one call, as in Fluss.

        Options that begin with `table.` are the server's, others are custom properties. Added columns are nullable.
        """
        path = TablePath.parse(path)
        changes = _config_changes({key: _text(value) for key, value in (set or {}).items()}, reset)
        columns = _columns(add_columns)
        if bool(changes) == bool(columns):
            raise InvalidRequest(f"alter table {path}: give either options to set or reset, or columns to add")
        request = pb.AlterTableRequest(
            table_path=table_path_to_pb(path),
            ignore_if_not_exists=ignore_if_not_exists,
            config_changes=changes,
            add_columns=[_add_column(column) for column in columns],
        )
        self._change(ApiKey.ALTER_TABLE, request, pb.AlterTableResponse, safe=not columns)

    def table_info(self, path: str | TablePath) -> TableInfo:
        """The table as it is now. Raises `NotFound`."""
        return self._cluster.table_info(TablePath.parse(path))

    def table_exists(self, path: str | TablePath) -> bool:
        request = pb.TableExistsRequest(table_path=table_path_to_pb(TablePath.parse(path)))
        return self._ask(ApiKey.TABLE_EXISTS, request, pb.TableExistsResponse).exists

    def table_schema(self, path: str | TablePath, schema_id: int | None = None) -> tuple[int, Schema]:
        """(schema id, schema) of a version of the table's schema, the newest unless given. Raises `NotFound`."""
        request = pb.GetTableSchemaRequest(table_path=table_path_to_pb(TablePath.parse(path)), schema_id=schema_id)
        response = self._ask(ApiKey.GET_TABLE_SCHEMA, request, pb.GetTableSchemaResponse)
        document = json_serde.loads(response.schema_json, "table schema")
        return response.schema_id, json_serde.schema_from_json(document)

    def list_tables(self, database: str) -> list[str]:
        """Names of the tables in a database. Raises `NotFound` if there is no such database."""
        request = pb.ListTablesRequest(database_name=database)
        return sorted(self._ask(ApiKey.LIST_TABLES, request, pb.ListTablesResponse).table_name)

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

    # ---- partitions and offsets -------------------------------------------------------------------------------------

    def create_partition(self, path: str | TablePath, spec: Mapping[str, Any], ignore_if_exists: bool = False) -> None:
        """Create a partition: `spec` has every partition key's value ({"dt": "2024-01-15"}, or a date)."""
        request = pb.CreatePartitionRequest(
            table_path=table_path_to_pb(TablePath.parse(path)),
            partition_spec=self._partition_spec(path, spec),
            ignore_if_not_exists=ignore_if_exists,  # the field's name in Fluss; "if exists" is what it means
        )
        self._change(ApiKey.CREATE_PARTITION, request, pb.CreatePartitionResponse, safe=ignore_if_exists)

    def drop_partition(
        self, path: str | TablePath, spec: Mapping[str, Any], ignore_if_not_exists: bool = False
    ) -> None:
        """Raises `NotFound` (PARTITION_NOT_EXISTS)."""
        request = pb.DropPartitionRequest(
            table_path=table_path_to_pb(TablePath.parse(path)),
            partition_spec=self._partition_spec(path, spec),
            ignore_if_not_exists=ignore_if_not_exists,
        )
        self._change(ApiKey.DROP_PARTITION, request, pb.DropPartitionResponse, safe=ignore_if_not_exists)

    def _partition_spec(self, path: str | TablePath, spec: Mapping[str, Any]) -> pb.PbPartitionSpec:
        if any(not isinstance(value, str) for value in spec.values()):
            spec = partition_texts(self._info(path), spec)
        return partition_spec_to_pb(list(spec.items()))

    def list_partitions(self, path: str | TablePath, partial: Mapping[str, Any] | None = None) -> list[PartitionInfo]:
        """The partitions of a table, those with the values of `partial` only."""
        return Listing(list_partitions(self._cluster, TablePath.parse(path), partial))

    def list_offsets(
        self,
        table: str | TablePath | TableInfo,
        spec: OffsetSpec = "latest",
        *,
        partitions: Sequence[PartitionSelector] | None = None,
        buckets: Iterable[int | TableBucket] | None = None,
    ) -> dict[TableBucket, int]:
        """The log offset at `spec` of each bucket: "earliest", "latest" (the next record's), or a time.

        A time, as datetime or milliseconds since the epoch, means the first record written then or later.
        """
        info = self._info(table)
        return list_offsets(self._cluster, info, plan_buckets(self._cluster, info, partitions, buckets), spec)


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


# ---- what users give -> messages ------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    """An option's value as text: true and 4 may be given as True and 4."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _config_changes(to_set: Mapping[str, str] | None, to_reset: Iterable[str]) -> list[pb.PbAlterConfig]:
    changes = [pb.PbAlterConfig(config_key=k, config_value=v, op_type=_SET) for k, v in (to_set or {}).items()]
    return changes + [pb.PbAlterConfig(config_key=key, op_type=_RESET) for key in to_reset]


def _schema(schema: SchemaLike, primary_key: tuple[str, ...], auto_increment: str | None) -> Schema:
    if isinstance(schema, Schema):
        primary_key = primary_key or schema.primary_key
        return Schema.of(schema.columns, primary_key, auto_increment or schema.auto_increment_column)
    return Schema.of(_columns(schema), primary_key, auto_increment)


def _columns(columns: SchemaLike | Sequence[Column] | None) -> list[Column]:
    if columns is None:
        return []
    if isinstance(columns, Schema):
        return list(columns.columns)
    from forebay.codec.arrow_types import from_arrow_schema, from_arrow_type

    if isinstance(columns, Mapping):
        return [Column(name, t if isinstance(t, DataType) else from_arrow_type(t)) for name, t in columns.items()]
    import pyarrow as pa

    if isinstance(columns, pa.Schema):
        from dataclasses import replace

        return [replace(column, column_id=None) for column in _without_ids(from_arrow_schema(columns).columns)]
    return list(columns)


def _without_ids(columns: Iterable[Column]) -> list[Column]:
    """Columns as a user writes them: the server gives ids."""
    from dataclasses import replace

    def plain(t: DataType) -> DataType:
        return replace(
            t,
            element=None if t.element is None else plain(t.element),
            key=None if t.key is None else plain(t.key),
            value=None if t.value is None else plain(t.value),
            fields=tuple(replace(f, field_id=None, data_type=plain(f.data_type)) for f in t.fields),
        )

    return [replace(column, column_id=None, data_type=plain(column.data_type)) for column in columns]


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
