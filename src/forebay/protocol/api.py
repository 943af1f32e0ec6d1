"""The APIs of the protocol: keys, messages, versions, and which server serves what.

Nouns: an `ApiKey` is the number on the wire; an `Api` is the row of the one table below that says what travels under
that key; a `ServerRole` is what a port answers as (each role has a port of its own, because clients check it).

The rule: a client uses min(its own newest version, the server's newest version) of an API, and an API that the
server does not list does not exist. So a server must list exactly what it implements: which keys those are is a
parameter here (`offered`), and the table only knows which of their versions our code understands.

Versions above 0, and what they mean:

* ProduceLog 1 and PutKv 3 know *historical partitions*: the request may name, per bucket, the expired partition for
  which the table's shared historical partition stands in (`original_partition_name`), and the answer echoes it. A
  client sends the name only for a table with historical partitions switched on. A server that has no such tables
  may offer these versions, but must refuse a bucket that carries the name: the rows would land in the wrong place.
* PutKv 2 understands error 72 (write back-pressure) and the `pressure` field. A client of version 0 or 1 gets the
  retriable error 11 instead.
* PutKv 1, Lookup 1 and PrefixLookup 1: for a table of kv format version 2 whose bucket key is not its whole primary
  key, keys are in Fluss's compacted encoding; in version 0 they are in the lake's encoding. So a server answers
  version 0 with error 2 where the two would differ.
* OpenTableSnapshot 1 (Forebay's own): the server answers ScanKv in Arrow where a request asks for it (`as_arrow`).
* CommitTransaction 1 (Forebay's own) knows conditions (`unchanged_since`).

Source: `api_key.rs` of fluss-rs 1.0.0 and `ApiKeys.java`, and the gateways of Fluss's servers for the roles.
Keys below 1000 belong to the Kafka protocol. Keys from 20000 on are Forebay's own: a client uses them where a server
lists them, and clients of Fluss pass over keys that they do not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from forebay.base.errors import UnsupportedOperation
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.messages import Message


class ServerRole(IntEnum):
    """The role in which a server answers; the numbers are `server_type` of the protocol."""

    COORDINATOR = 1
    TABLET = 2

    @classmethod
    def from_wire(cls, server_type: int | None) -> ServerRole | None:
        """The role of a number; None for "unknown" (absent, or a number that this version does not know)."""
        return cls(server_type) if server_type in (1, 2) else None


class ApiKey(IntEnum):
    """Numbers of the APIs that clients and tiering workers use."""

    API_VERSIONS = 1000
    CREATE_DATABASE = 1001
    DROP_DATABASE = 1002
    LIST_DATABASES = 1003
    DATABASE_EXISTS = 1004
    CREATE_TABLE = 1005
    DROP_TABLE = 1006
    GET_TABLE_INFO = 1007
    LIST_TABLES = 1008
    LIST_PARTITION_INFOS = 1009
    TABLE_EXISTS = 1010
    GET_TABLE_SCHEMA = 1011
    GET_METADATA = 1012
    PRODUCE_LOG = 1014
    FETCH_LOG = 1015
    PUT_KV = 1016
    LOOKUP = 1017
    LIST_OFFSETS = 1021
    GET_LATEST_KV_SNAPSHOTS = 1023
    GET_KV_SNAPSHOT_METADATA = 1024
    GET_FILESYSTEM_SECURITY_TOKEN = 1025
    INIT_WRITER = 1026
    COMMIT_LAKE_TABLE_SNAPSHOT = 1030
    GET_LAKE_SNAPSHOT = 1032
    LIMIT_SCAN = 1033
    PREFIX_LOOKUP = 1034
    GET_DATABASE_INFO = 1035
    CREATE_PARTITION = 1036
    DROP_PARTITION = 1037
    AUTHENTICATE = 1038
    CREATE_ACLS = 1039
    LIST_ACLS = 1040
    DROP_ACLS = 1041
    LAKE_TIERING_HEARTBEAT = 1042
    ALTER_TABLE = 1044
    DESCRIBE_CLUSTER_CONFIGS = 1045
    ALTER_CLUSTER_CONFIGS = 1046
    ADD_SERVER_TAG = 1047
    REMOVE_SERVER_TAG = 1048
    REBALANCE = 1049
    LIST_REBALANCE_PROGRESS = 1050
    CANCEL_REBALANCE = 1051
    PREPARE_LAKE_TABLE_SNAPSHOT = 1052
    REGISTER_PRODUCER_OFFSETS = 1053
    GET_PRODUCER_OFFSETS = 1054
    DELETE_PRODUCER_OFFSETS = 1055
    ACQUIRE_KV_SNAPSHOT_LEASE = 1056
    RELEASE_KV_SNAPSHOT_LEASE = 1057
    DROP_KV_SNAPSHOT_LEASE = 1058
    GET_TABLE_STATS = 1059
    ALTER_DATABASE = 1060
    SCAN_KV = 1061
    GET_CLUSTER_HEALTH = 1062
    LIST_REMOTE_LOG_MANIFESTS = 1063
    LIST_KV_SNAPSHOTS = 1064
    OPEN_TABLE_SNAPSHOT = 20001
    RENEW_TABLE_SNAPSHOT = 20002
    RELEASE_TABLE_SNAPSHOT = 20003
    LIST_TABLE_SNAPSHOTS = 20004
    BEGIN_TRANSACTION = 20005
    STAGE_ROWS = 20006
    FINISH_STAGE = 20007
    COMMIT_TRANSACTION = 20008
    ABORT_TRANSACTION = 20009
    LIST_TRANSACTIONS = 20010
    DESCRIBE_SERVER = 20011
    CHECK_LOG_OFFSETS = 20012

    @property
    def fluss_name(self) -> str:
        """The name in Fluss's metrics, such as produceLog."""
        first, *rest = self.name.lower().split("_")
        return first + "".join(word.capitalize() for word in rest)


BULK_REQUESTS = frozenset({ApiKey.PRODUCE_LOG, ApiKey.PUT_KV, ApiKey.STAGE_ROWS})
"""APIs whose requests carry records; requests of all others are small."""


class VersionRange(NamedTuple):
    """Versions from `min` to `max`, inclusive."""

    min: int
    max: int

    def __str__(self) -> str:
        return f"{self.min}..{self.max}"


_V0 = VersionRange(0, 0)


@dataclass(frozen=True, slots=True)
class Api:
    """One API: its messages, the roles that serve it, and the versions that our server and our client understand."""

    key: ApiKey
    request: type[Message]
    response: type[Message]
    roles: frozenset[ServerRole]
    server_versions: VersionRange = _V0
    client_versions: VersionRange = _V0


_COORDINATOR = frozenset({ServerRole.COORDINATOR})
_TABLET = frozenset({ServerRole.TABLET})
_BOTH = _COORDINATOR | _TABLET

_K = ApiKey
_V1 = (VersionRange(0, 1), VersionRange(0, 1))
_V3 = (VersionRange(0, 3), VersionRange(0, 3))
_TABLE = (
    Api(_K.API_VERSIONS, pb.ApiVersionsRequest, pb.ApiVersionsResponse, _BOTH),
    Api(_K.AUTHENTICATE, pb.AuthenticateRequest, pb.AuthenticateResponse, _BOTH),
    Api(_K.GET_METADATA, pb.MetadataRequest, pb.MetadataResponse, _BOTH),
    Api(_K.GET_CLUSTER_HEALTH, pb.GetClusterHealthRequest, pb.GetClusterHealthResponse, _BOTH),
    Api(
        _K.GET_FILESYSTEM_SECURITY_TOKEN,
        pb.GetFileSystemSecurityTokenRequest,
        pb.GetFileSystemSecurityTokenResponse,
        _BOTH,
    ),
    # databases
    Api(_K.CREATE_DATABASE, pb.CreateDatabaseRequest, pb.CreateDatabaseResponse, _COORDINATOR),
    Api(_K.ALTER_DATABASE, pb.AlterDatabaseRequest, pb.AlterDatabaseResponse, _COORDINATOR),
    Api(_K.DROP_DATABASE, pb.DropDatabaseRequest, pb.DropDatabaseResponse, _COORDINATOR),
    Api(_K.LIST_DATABASES, pb.ListDatabasesRequest, pb.ListDatabasesResponse, _BOTH),
    Api(_K.DATABASE_EXISTS, pb.DatabaseExistsRequest, pb.DatabaseExistsResponse, _BOTH),
    Api(_K.GET_DATABASE_INFO, pb.GetDatabaseInfoRequest, pb.GetDatabaseInfoResponse, _BOTH),
    # tables
    Api(_K.CREATE_TABLE, pb.CreateTableRequest, pb.CreateTableResponse, _COORDINATOR),
    Api(_K.ALTER_TABLE, pb.AlterTableRequest, pb.AlterTableResponse, _COORDINATOR),
    Api(_K.DROP_TABLE, pb.DropTableRequest, pb.DropTableResponse, _COORDINATOR),
    Api(_K.GET_TABLE_INFO, pb.GetTableInfoRequest, pb.GetTableInfoResponse, _BOTH),
    Api(_K.GET_TABLE_SCHEMA, pb.GetTableSchemaRequest, pb.GetTableSchemaResponse, _BOTH),
    Api(_K.LIST_TABLES, pb.ListTablesRequest, pb.ListTablesResponse, _BOTH),
    Api(_K.TABLE_EXISTS, pb.TableExistsRequest, pb.TableExistsResponse, _BOTH),
    Api(_K.GET_TABLE_STATS, pb.GetTableStatsRequest, pb.GetTableStatsResponse, _TABLET),
    # partitions
    Api(_K.CREATE_PARTITION, pb.CreatePartitionRequest, pb.CreatePartitionResponse, _COORDINATOR),
    Api(_K.DROP_PARTITION, pb.DropPartitionRequest, pb.DropPartitionResponse, _COORDINATOR),
    Api(_K.LIST_PARTITION_INFOS, pb.ListPartitionInfosRequest, pb.ListPartitionInfosResponse, _BOTH),
    # writing
    Api(_K.INIT_WRITER, pb.InitWriterRequest, pb.InitWriterResponse, _TABLET),
    Api(_K.PRODUCE_LOG, pb.ProduceLogRequest, pb.ProduceLogResponse, _TABLET, *_V1),
    Api(_K.PUT_KV, pb.PutKvRequest, pb.PutKvResponse, _TABLET, *_V3),
    # reading
    Api(_K.FETCH_LOG, pb.FetchLogRequest, pb.FetchLogResponse, _TABLET),
    Api(_K.LIST_OFFSETS, pb.ListOffsetsRequest, pb.ListOffsetsResponse, _TABLET),
    Api(_K.LOOKUP, pb.LookupRequest, pb.LookupResponse, _TABLET, *_V1),
    Api(_K.PREFIX_LOOKUP, pb.PrefixLookupRequest, pb.PrefixLookupResponse, _TABLET, *_V1),
    Api(_K.LIMIT_SCAN, pb.LimitScanRequest, pb.LimitScanResponse, _TABLET),
    Api(_K.SCAN_KV, pb.ScanKvRequest, pb.ScanKvResponse, _TABLET),
    # table snapshots (Forebay)
    Api(_K.OPEN_TABLE_SNAPSHOT, pb.OpenTableSnapshotRequest, pb.OpenTableSnapshotResponse, _TABLET, *_V1),
    Api(_K.RENEW_TABLE_SNAPSHOT, pb.RenewTableSnapshotRequest, pb.RenewTableSnapshotResponse, _TABLET),
    Api(_K.RELEASE_TABLE_SNAPSHOT, pb.ReleaseTableSnapshotRequest, pb.ReleaseTableSnapshotResponse, _TABLET),
    Api(_K.LIST_TABLE_SNAPSHOTS, pb.ListTableSnapshotsRequest, pb.ListTableSnapshotsResponse, _TABLET),
    # transactions (Forebay)
    Api(_K.BEGIN_TRANSACTION, pb.BeginTransactionRequest, pb.BeginTransactionResponse, _COORDINATOR),
    Api(_K.STAGE_ROWS, pb.StageRowsRequest, pb.StageRowsResponse, _TABLET),
    Api(_K.FINISH_STAGE, pb.FinishStageRequest, pb.FinishStageResponse, _TABLET),
    Api(_K.COMMIT_TRANSACTION, pb.CommitTransactionRequest, pb.CommitTransactionResponse, _COORDINATOR, *_V1),
    Api(_K.ABORT_TRANSACTION, pb.AbortTransactionRequest, pb.AbortTransactionResponse, _COORDINATOR),
    Api(_K.LIST_TRANSACTIONS, pb.ListTransactionsRequest, pb.ListTransactionsResponse, _COORDINATOR, *_V1),
    # epochs of logs (Forebay)
    Api(_K.CHECK_LOG_OFFSETS, pb.CheckLogOffsetsRequest, pb.CheckLogOffsetsResponse, _TABLET),
    # what a server does (Forebay)
    Api(_K.DESCRIBE_SERVER, pb.DescribeServerRequest, pb.DescribeServerResponse, _BOTH),
    # KV snapshots, remote log, producer offsets
    Api(_K.GET_LATEST_KV_SNAPSHOTS, pb.GetLatestKvSnapshotsRequest, pb.GetLatestKvSnapshotsResponse, _BOTH),
    Api(_K.GET_KV_SNAPSHOT_METADATA, pb.GetKvSnapshotMetadataRequest, pb.GetKvSnapshotMetadataResponse, _BOTH),
    Api(_K.LIST_KV_SNAPSHOTS, pb.ListKvSnapshotsRequest, pb.ListKvSnapshotsResponse, _COORDINATOR),
    Api(
        _K.ACQUIRE_KV_SNAPSHOT_LEASE,
        pb.AcquireKvSnapshotLeaseRequest,
        pb.AcquireKvSnapshotLeaseResponse,
        _COORDINATOR,
    ),
    Api(
        _K.RELEASE_KV_SNAPSHOT_LEASE,
        pb.ReleaseKvSnapshotLeaseRequest,
        pb.ReleaseKvSnapshotLeaseResponse,
        _COORDINATOR,
    ),
    Api(_K.DROP_KV_SNAPSHOT_LEASE, pb.DropKvSnapshotLeaseRequest, pb.DropKvSnapshotLeaseResponse, _COORDINATOR),
    Api(
        _K.LIST_REMOTE_LOG_MANIFESTS,
        pb.ListRemoteLogManifestsRequest,
        pb.ListRemoteLogManifestsResponse,
        _COORDINATOR,
    ),
    Api(
        _K.REGISTER_PRODUCER_OFFSETS,
        pb.RegisterProducerOffsetsRequest,
        pb.RegisterProducerOffsetsResponse,
        _COORDINATOR,
    ),
    Api(_K.GET_PRODUCER_OFFSETS, pb.GetProducerOffsetsRequest, pb.GetProducerOffsetsResponse, _COORDINATOR),
    Api(
        _K.DELETE_PRODUCER_OFFSETS,
        pb.DeleteProducerOffsetsRequest,
        pb.DeleteProducerOffsetsResponse,
        _COORDINATOR,
    ),
    # lake
    Api(_K.GET_LAKE_SNAPSHOT, pb.GetLakeSnapshotRequest, pb.GetLakeSnapshotResponse, _BOTH),
    Api(_K.LAKE_TIERING_HEARTBEAT, pb.LakeTieringHeartbeatRequest, pb.LakeTieringHeartbeatResponse, _COORDINATOR),
    Api(
        _K.PREPARE_LAKE_TABLE_SNAPSHOT,
        pb.PrepareLakeTableSnapshotRequest,
        pb.PrepareLakeTableSnapshotResponse,
        _COORDINATOR,
    ),
    Api(
        _K.COMMIT_LAKE_TABLE_SNAPSHOT,
        pb.CommitLakeTableSnapshotRequest,
        pb.CommitLakeTableSnapshotResponse,
        _COORDINATOR,
    ),
    # access control and cluster administration
    Api(_K.CREATE_ACLS, pb.CreateAclsRequest, pb.CreateAclsResponse, _COORDINATOR),
    Api(_K.LIST_ACLS, pb.ListAclsRequest, pb.ListAclsResponse, _BOTH),
    Api(_K.DROP_ACLS, pb.DropAclsRequest, pb.DropAclsResponse, _COORDINATOR),
    Api(_K.DESCRIBE_CLUSTER_CONFIGS, pb.DescribeClusterConfigsRequest, pb.DescribeClusterConfigsResponse, _BOTH),
    Api(_K.ALTER_CLUSTER_CONFIGS, pb.AlterClusterConfigsRequest, pb.AlterClusterConfigsResponse, _COORDINATOR),
    Api(_K.ADD_SERVER_TAG, pb.AddServerTagRequest, pb.AddServerTagResponse, _COORDINATOR),
    Api(_K.REMOVE_SERVER_TAG, pb.RemoveServerTagRequest, pb.RemoveServerTagResponse, _COORDINATOR),
    Api(_K.REBALANCE, pb.RebalanceRequest, pb.RebalanceResponse, _COORDINATOR),
    Api(
        _K.LIST_REBALANCE_PROGRESS,
        pb.ListRebalanceProgressRequest,
        pb.ListRebalanceProgressResponse,
        _COORDINATOR,
    ),
    Api(_K.CANCEL_REBALANCE, pb.CancelRebalanceRequest, pb.CancelRebalanceResponse, _COORDINATOR),
)

APIS: Mapping[int, Api] = {int(api.key): api for api in _TABLE}
"""The table: every API of `ApiKey`, by its number."""


def offered(implemented: Iterable[ApiKey], role: ServerRole) -> dict[int, Api]:
    """The APIs that a server in `role` offers if it implements `implemented`, by number."""
    return {int(key): APIS[key] for key in sorted(set(implemented)) if role in APIS[key].roles}


def api_versions_response(offered_apis: Mapping[int, Api], role: ServerRole) -> pb.ApiVersionsResponse:
    """The ApiVersions response of a server in `role` that offers `offered_apis`."""
    return pb.ApiVersionsResponse(
        api_versions=[
            pb.PbApiVersion(api_key=key, min_version=api.server_versions.min, max_version=api.server_versions.max)
            for key, api in offered_apis.items()
        ],
        server_type=int(role),
    )


class NegotiatedVersions:
    """The APIs that a client may call on one server, from its ApiVersions response.

    `role` is the server's role, or None if it did not report one.
    """

    def __init__(self, response: pb.ApiVersionsResponse) -> None:
        self.role = ServerRole.from_wire(response.server_type if response.HasField("server_type") else None)
        self._server = {v.api_key: VersionRange(v.min_version, v.max_version) for v in response.api_versions}
        self.newest: dict[int, int] = {}
        """The newest version that both sides support of each API, by number."""
        for key, theirs in self._server.items():
            ours = APIS[key].client_versions if key in APIS else None
            if ours is not None and min(theirs.max, ours.max) >= max(theirs.min, ours.min):
                self.newest[key] = min(theirs.max, ours.max)

    def offers(self, key: ApiKey) -> bool:
        """Whether the server offers a version of `key` that this client supports."""
        return key in self.newest

    def version(self, key: ApiKey) -> int:
        """The newest version of `key` that both sides support. Raises `UnsupportedOperation` if there is none."""
        newest = self.newest.get(key)
        if newest is None:
            theirs, ours = self._server.get(key), APIS[key].client_versions
            offer = "does not offer it" if theirs is None else f"offers versions {theirs}, this client speaks {ours}"
            raise UnsupportedOperation(f"{key.name} is not possible here: the server {offer}")
        return newest

    @property
    def has_additions(self) -> bool:
        """Whether the server is a Forebay server, which passes over fields that it does not know."""
        return ApiKey.OPEN_TABLE_SNAPSHOT in self.newest or ApiKey.BEGIN_TRANSACTION in self.newest  # by its role

    @property
    def scans_in_arrow(self) -> bool:
        """Whether the server answers ScanKv in Arrow."""
        return self.newest.get(ApiKey.OPEN_TABLE_SNAPSHOT, 0) >= 1


@dataclass(frozen=True, slots=True)
class ServerNode:
    """A server as clients see it: its address is that of the listener they connected to."""

    node_id: int
    host: str
    port: int
    role: ServerRole
    rack: str | None = None

    def __str__(self) -> str:
        kind = "coordinator" if self.role is ServerRole.COORDINATOR else "tablet server"
        return f"{kind} {self.node_id} at {self.host}:{self.port}"


def server_node_to_pb(node: ServerNode) -> pb.PbServerNode:
    return pb.PbServerNode(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)


def server_node_from_pb(message: pb.PbServerNode, role: ServerRole) -> ServerNode:
    """Return the node; the field of MetadataResponse that contains it determines its role."""
    rack = message.rack if message.HasField("rack") else None
    return ServerNode(message.node_id, message.host, message.port, role, rack)
