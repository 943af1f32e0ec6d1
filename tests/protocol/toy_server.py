"""A toy server in asyncio that can answer every request of a real client.

It keeps databases and tables in dicts and log batches as bytes; it understands no rows. It serves to test frames,
errors and authentication of `forebay.protocol` against third-party clients, and to record their requests (`recorded`,
see record_golden.py).
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Mapping
from typing import Any

from forebay.base.errors import AlreadyExists, ErrorCode, ForebayError, NotFound
from forebay.metadata.table import TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import APIS, ApiKey, ServerRole, api_versions_response, offered
from forebay.protocol.connection import (
    ConnectionClosed,
    ProtocolViolation,
    RequestReceived,
    RequestRejected,
    ServerConnection,
)
from forebay.protocol.listeners import authenticator_factory, parse_listeners
from forebay.protocol.messages import Message, error_to_wire, partition_spec_from_pb, table_path_from_pb

NOW_MS = 1_700_000_000_000
_BATCH_LENGTH = struct.Struct("<qi")
_BATCH_LAST_OFFSET_DELTA_AT = 28


class ToyCluster:
    """What both roles know. `recorded` holds the frame of every request: (API number, bytes)."""

    def __init__(self) -> None:
        self.databases: dict[str, bytes] = {"fluss": b'{"version":1}'}
        self.tables: dict[TablePath, tuple[int, bytes]] = {}
        self.partitions: dict[TablePath, dict[int, tuple[tuple[str, str], ...]]] = {}
        self.log: dict[tuple[int, int | None, int], bytearray] = {}
        self.log_end: dict[tuple[int, int | None, int], int] = {}
        self.ids = itertools.count(1)
        self.addresses: dict[ServerRole, tuple[str, int]] = {}
        self.recorded: list[tuple[int, bytes]] = []
        self.seen_payload_sizes: list[int] = []
        self.connections: set[ToyConnection] = set()

    def table(self, path: TablePath) -> tuple[int, bytes]:
        if path not in self.tables:
            raise NotFound(f"table {path} does not exist", ErrorCode.TABLE_NOT_EXIST)
        return self.tables[path]


class ToyConnection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(
        self, cluster: ToyCluster, role: ServerRole, make_authenticator: Any, implemented: set[ApiKey]
    ) -> None:
        self.cluster, self.role = cluster, role
        self.authenticator = make_authenticator()
        self.offered = offered(implemented, role)
        self.connection = ServerConnection(self.offered, authenticate=self.authenticator.principal is None)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.cluster.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.cluster.connections.discard(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.connection.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self.connection.buffer_updated(nbytes)
        self._serve()

    def eof_received(self) -> None:
        self.connection.receive_eof()
        self._serve()

    def _serve(self) -> None:
        while (event := self.connection.next_event()) is not None:
            match event:
                case RequestReceived():
                    self._answer(event)
                case RequestRejected(request_id=request_id, error=error):
                    self.transport.writelines(self.connection.send_error(request_id, *error_to_wire(error)))
                case ProtocolViolation() | ConnectionClosed():
                    self.transport.close()

    def _answer(self, event: RequestReceived) -> None:
        header = struct.pack(">ihhi", len(event.body) + 8, event.api.key, event.api_version, event.request_id)
        self.cluster.recorded.append((event.api.key, header + bytes(event.body)))
        handler = getattr(self, "on_" + event.api.key.name.lower())
        try:
            request, payloads = event.parse_split(event.api.request)
            response = handler(request, payloads)
        except ForebayError as error:
            buffers = self.connection.send_error(event.request_id, *error_to_wire(error))
        else:
            message, out = response if isinstance(response, tuple) else (response, ())
            buffers = self.connection.send_response(event.request_id, message, out)
        self.transport.writelines(buffers)

    # --- handlers: request and payloads in, answer (and payloads) out ---------------------------------------------

    def on_api_versions(self, request: pb.ApiVersionsRequest, payloads: Any) -> Message:
        return api_versions_response(self.offered, self.role)

    def on_authenticate(self, request: pb.AuthenticateRequest, payloads: Any) -> Message:
        response = self.authenticator.receive(request)
        if self.connection.state.value == "authenticating":
            self.connection.authenticated()
        return response

    def on_get_filesystem_security_token(self, request: Any, payloads: Any) -> Message:
        return pb.GetFileSystemSecurityTokenResponse(schema="file", token=b"")

    def on_create_database(self, request: pb.CreateDatabaseRequest, payloads: Any) -> Message:
        if request.database_name in self.cluster.databases and not request.ignore_if_exists:
            raise AlreadyExists(f"database {request.database_name} exists", ErrorCode.DATABASE_ALREADY_EXIST)
        self.cluster.databases[request.database_name] = request.database_json or b'{"version":1}'
        return pb.CreateDatabaseResponse()

    def on_drop_database(self, request: pb.DropDatabaseRequest, payloads: Any) -> Message:
        if self.cluster.databases.pop(request.database_name, None) is None and not request.ignore_if_not_exists:
            raise NotFound(f"database {request.database_name} does not exist", ErrorCode.DATABASE_NOT_EXIST)
        return pb.DropDatabaseResponse()

    def on_list_databases(self, request: Any, payloads: Any) -> Message:
        return pb.ListDatabasesResponse(database_name=sorted(self.cluster.databases))

    def on_database_exists(self, request: pb.DatabaseExistsRequest, payloads: Any) -> Message:
        return pb.DatabaseExistsResponse(exists=request.database_name in self.cluster.databases)

    def on_get_database_info(self, request: pb.GetDatabaseInfoRequest, payloads: Any) -> Message:
        if request.database_name not in self.cluster.databases:
            raise NotFound(f"database {request.database_name} does not exist", ErrorCode.DATABASE_NOT_EXIST)
        return pb.GetDatabaseInfoResponse(
            database_json=self.cluster.databases[request.database_name], created_time=NOW_MS, modified_time=NOW_MS
        )

    def on_create_table(self, request: pb.CreateTableRequest, payloads: Any) -> Message:
        path = table_path_from_pb(request.table_path)
        if path in self.cluster.tables and not request.ignore_if_exists:
            raise AlreadyExists(f"table {path} exists", ErrorCode.TABLE_ALREADY_EXIST)
        self.cluster.tables.setdefault(path, (next(self.cluster.ids), request.table_json))
        return pb.CreateTableResponse()

    def on_drop_table(self, request: pb.DropTableRequest, payloads: Any) -> Message:
        path = table_path_from_pb(request.table_path)
        if not request.ignore_if_not_exists:
            self.cluster.table(path)
        self.cluster.tables.pop(path, None)
        return pb.DropTableResponse()

    def on_table_exists(self, request: pb.TableExistsRequest, payloads: Any) -> Message:
        return pb.TableExistsResponse(exists=table_path_from_pb(request.table_path) in self.cluster.tables)

    def on_list_tables(self, request: pb.ListTablesRequest, payloads: Any) -> Message:
        names = [path.table for path in self.cluster.tables if path.database == request.database_name]
        return pb.ListTablesResponse(table_name=names)

    def on_get_table_info(self, request: pb.GetTableInfoRequest, payloads: Any) -> Message:
        table_id, table_json = self.cluster.table(table_path_from_pb(request.table_path))
        return pb.GetTableInfoResponse(
            table_id=table_id, schema_id=1, table_json=table_json, created_time=NOW_MS, modified_time=NOW_MS
        )

    def on_get_metadata(self, request: pb.MetadataRequest, payloads: Any) -> Message:
        response = pb.MetadataResponse()
        for role, (host, port) in self.cluster.addresses.items():
            node = pb.PbServerNode(node_id=int(role) - 1, host=host, port=port)
            if role is ServerRole.COORDINATOR:
                response.coordinator_server.CopyFrom(node)
            else:
                response.tablet_servers.append(node)
        buckets = [
            pb.PbBucketMetadata(bucket_id=b, leader_id=1, replica_id=[1], leader_epoch=0, bucket_epoch=0, isr=[1])
            for b in range(2)
        ]
        for pb_path in request.table_path:
            path = table_path_from_pb(pb_path)
            table_id, table_json = self.cluster.table(path)
            response.table_metadata.add(
                table_path=pb_path,
                table_id=table_id,
                schema_id=1,
                table_json=table_json,
                bucket_metadata=buckets,
                created_time=NOW_MS,
                modified_time=NOW_MS,
            )
        self._add_partitions(request, response, buckets)
        return response

    def _add_partitions(
        self, request: pb.MetadataRequest, response: pb.MetadataResponse, buckets: list[pb.PbBucketMetadata]
    ) -> None:
        wanted = {(p.database_name, p.table_name, p.partition_name) for p in request.partitions_path}
        found = set()
        for path, partitions in self.cluster.partitions.items():
            for partition_id, spec in partitions.items():
                name = (path.database, path.table, "$".join(value for _, value in spec))
                if name in wanted or partition_id in request.partitions_id:
                    found.add(name)
                    response.partition_metadata.add(
                        table_id=self.cluster.tables[path][0],
                        partition_name=name[2],
                        partition_id=partition_id,
                        bucket_metadata=buckets,
                    )
        if wanted - found:
            raise NotFound(f"partitions {sorted(wanted - found)} do not exist", ErrorCode.PARTITION_NOT_EXISTS)

    def on_create_partition(self, request: pb.CreatePartitionRequest, payloads: Any) -> Message:
        path = table_path_from_pb(request.table_path)
        self.cluster.table(path)
        spec = partition_spec_from_pb(request.partition_spec)
        self.cluster.partitions.setdefault(path, {})[next(self.cluster.ids)] = spec
        return pb.CreatePartitionResponse()

    def on_drop_partition(self, request: pb.DropPartitionRequest, payloads: Any) -> Message:
        path, spec = table_path_from_pb(request.table_path), partition_spec_from_pb(request.partition_spec)
        known = self.cluster.partitions.get(path, {})
        found = [partition_id for partition_id, values in known.items() if values == spec]
        if not found and not request.ignore_if_not_exists:
            raise NotFound(f"partition {spec} does not exist", ErrorCode.PARTITION_NOT_EXISTS)
        for partition_id in found:
            del known[partition_id]
        return pb.DropPartitionResponse()

    def on_list_partition_infos(self, request: pb.ListPartitionInfosRequest, payloads: Any) -> Message:
        response = pb.ListPartitionInfosResponse()
        for partition_id, spec in self.cluster.partitions.get(table_path_from_pb(request.table_path), {}).items():
            response.partitions_info.add(partition_id=partition_id).partition_spec.SetInParent()
            entry = response.partitions_info[-1].partition_spec
            for key, value in spec:
                entry.partition_key_values.add(key=key, value=value)
        return response

    def on_get_lake_snapshot(self, request: pb.GetLakeSnapshotRequest, payloads: Any) -> Message:
        raise NotFound("the lake holds nothing of this table", ErrorCode.LAKE_SNAPSHOT_NOT_EXIST)

    def on_init_writer(self, request: Any, payloads: Any) -> Message:
        return pb.InitWriterResponse(writer_id=77)

    def on_produce_log(self, request: pb.ProduceLogRequest, payloads: list[memoryview]) -> Message:
        response = pb.ProduceLogResponse()
        for bucket, records in zip(request.buckets_req, payloads, strict=True):
            self.cluster.seen_payload_sizes.append(len(records))
            partition_id = bucket.partition_id if bucket.HasField("partition_id") else None
            key = (request.table_id, partition_id, bucket.bucket_id)
            base_offset = self.cluster.log_end.get(key, 0)
            self._append(key, records)
            response.buckets_resp.add(partition_id=partition_id, bucket_id=bucket.bucket_id, base_offset=base_offset)
        return response

    def _append(self, key: tuple[int, int | None, int], records: memoryview) -> None:
        log = self.cluster.log.setdefault(key, bytearray())
        at = 0
        while at < len(records):
            _, length = _BATCH_LENGTH.unpack_from(records, at)
            end = self.cluster.log_end.get(key, 0)
            log += struct.pack("<q", end) + records[at + 8 : at + 12 + length]
            (delta,) = struct.unpack_from("<i", records, at + _BATCH_LAST_OFFSET_DELTA_AT)
            self.cluster.log_end[key] = end + delta + 1
            at += 12 + length

    def on_fetch_log(self, request: pb.FetchLogRequest, payloads: Any) -> tuple[Message, list[memoryview]]:
        response, out = pb.FetchLogResponse(), []
        for table in request.tables_req:
            answer = response.tables_resp.add(table_id=table.table_id)
            for bucket in table.buckets_req:
                partition_id = bucket.partition_id if bucket.HasField("partition_id") else None
                key = (table.table_id, partition_id, bucket.bucket_id)
                end = self.cluster.log_end.get(key, 0)
                part = answer.buckets_resp.add(
                    partition_id=partition_id, bucket_id=bucket.bucket_id, high_watermark=end, log_start_offset=0
                )
                if bucket.fetch_offset < end and not table.projection_pushdown_enabled:
                    part.records = b""
                    out.append(memoryview(bytes(self.cluster.log[key])))
        return response, out

    def on_list_offsets(self, request: pb.ListOffsetsRequest, payloads: Any) -> Message:
        response = pb.ListOffsetsResponse()
        partition_id = request.partition_id if request.HasField("partition_id") else None
        for bucket_id in request.bucket_id:
            end = self.cluster.log_end.get((request.table_id, partition_id, bucket_id), 0)
            response.buckets_resp.add(bucket_id=bucket_id, offset=end if request.offset_type == 1 else 0)
        return response

    def on_put_kv(self, request: pb.PutKvRequest, payloads: list[memoryview]) -> Message:
        response = pb.PutKvResponse()
        for bucket, records in zip(request.buckets_req, payloads, strict=True):
            self.cluster.seen_payload_sizes.append(len(records))
            response.buckets_resp.add(bucket_id=bucket.bucket_id, log_end_offset=1)
        return response

    def on_lookup(self, request: pb.LookupRequest, payloads: Any) -> Message:
        response = pb.LookupResponse()
        for bucket in request.buckets_req:
            response.buckets_resp.add(bucket_id=bucket.bucket_id, values=[pb.PbValue() for _ in bucket.keys])
        return response

    def on_prefix_lookup(self, request: pb.PrefixLookupRequest, payloads: Any) -> Message:
        response = pb.PrefixLookupResponse()
        for bucket in request.buckets_req:
            response.buckets_resp.add(bucket_id=bucket.bucket_id, value_lists=[pb.PbValueList() for _ in bucket.keys])
        return response

    def on_limit_scan(self, request: pb.LimitScanRequest, payloads: Any) -> Message:
        return pb.LimitScanResponse(
            error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, error_message="this toy leads no bucket"
        )


IMPLEMENTED = {ApiKey(key) for key in APIS if hasattr(ToyConnection, "on_" + ApiKey(key).name.lower())}


class ToyServer:
    """Both roles on ports of their own, with the listener settings of `settings` (protocol and credentials)."""

    def __init__(self, settings: Mapping[str, str] | None = None, implemented: set[ApiKey] | None = None) -> None:
        self.settings = {"bind.listeners": "CLIENT://127.0.0.1:0", **(settings or {})}
        self.implemented = IMPLEMENTED if implemented is None else implemented
        self.cluster = ToyCluster()
        self._servers: list[asyncio.Server] = []

    @property
    def bootstrap(self) -> str:
        host, port = self.cluster.addresses[ServerRole.COORDINATOR]
        return f"{host}:{port}"

    async def __aenter__(self) -> ToyServer:
        loop = asyncio.get_running_loop()
        (listener,) = parse_listeners(self.settings)
        make = authenticator_factory(listener, self.settings)
        for role in ServerRole:
            server = await loop.create_server(
                lambda role=role: ToyConnection(self.cluster, role, make, self.implemented),
                listener.host,
                listener.port,
            )
            self._servers.append(server)
            self.cluster.addresses[role] = server.sockets[0].getsockname()[:2]
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        for connection in list(self.cluster.connections):
            connection.transport.abort()
        while self.cluster.connections:
            await asyncio.sleep(0)
