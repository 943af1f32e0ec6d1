"""The servers of a cluster, what they serve, and the channels to them.

Nouns: a `ClusterView` is an immutable picture of the cluster: nodes, tables, partitions, the leader of each bucket. The
`ClusterClient` holds the newest view, one channel for each server, and the schemas of tables by id; every other part
of the client talks to servers through it.

Rules: the view is immutable and replaced as a whole. A "wrong server" failure refreshes only the part of the view that
failed. Operations that are safe to repeat are retried with backoff until `client.retry-timeout` has passed.

Flow: bootstrap address -> Metadata -> nodes -> channels. `tablet_call` and `coordinator_call` send one request;
`retrying` wraps operations that are safe to retry.

Prior art: MetadataUpdater of Fluss's Java client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from forebay.base import threads
from forebay.base.ambient import Clock, IdSource
from forebay.base.errors import (
    ErrorCode,
    ForebayError,
    InternalError,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    UnsupportedOperation,
)
from forebay.base.retrying import BackOff, WaitNotice, may_read_again, may_repeat
from forebay.client.cluster.rpc import Call, Callback, Channel, Dial
from forebay.client.counters import CallCounter, ClientCounters, add_calls
from forebay.client.settings import Address, Settings
from forebay.metadata import json_serde
from forebay.metadata.table import PhysicalTablePath, Schema, TableBucket, TableDescriptor, TableInfo, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, ServerNode, ServerRole, server_node_from_pb
from forebay.protocol.messages import Buffer, Message, physical_path_to_pb, table_path_from_pb, table_path_to_pb

if TYPE_CHECKING:
    from forebay.base.tracing import Tracing

T = TypeVar("T")
M = TypeVar("M", bound=Message)

BOOTSTRAP_RETRIES = 3
"""Further attempts at all bootstrap servers before a connection fails."""
_SCHEMAS_MAX = 1024
"""Maximum number of cached earlier schemas of tables."""
_WITHOUT_ANSWER = (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIME_OUT)


def connection_closed() -> Unavailable:
    """The error of every operation of a connection that its user has closed. It is never retried."""
    return Unavailable(
        "this connection is closed; open another one with forebay.connect()",
        ErrorCode.CLIENT_ERROR,  # those of the network are retried
    )


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as routing needs it."""

    partition_id: int
    bucket_count: int | None = None
    """Its own bucket count, if the server reports one."""


@dataclass(frozen=True)
class ClusterView:
    """The state of the cluster at one point in time."""

    coordinator: ServerNode | None = None
    tablet_servers: Mapping[int, ServerNode] = field(default_factory=dict)
    tables: Mapping[TablePath, TableInfo] = field(default_factory=dict)
    partitions: Mapping[PhysicalTablePath, Partition] = field(default_factory=dict)
    leaders: Mapping[TableBucket, int] = field(default_factory=dict)
    """Server ids. Buckets without a leader are absent."""

    @property
    def nodes(self) -> list[ServerNode]:
        """All servers, the coordinator first."""
        return [*([self.coordinator] if self.coordinator else []), *self.tablet_servers.values()]

    def leader(self, bucket: TableBucket) -> ServerNode | None:
        server_id = self.leaders.get(bucket)
        return None if server_id is None else self.tablet_servers.get(server_id)


class ClusterClient:
    """The latest view of the cluster, and the channels. Thread-safe; connects on first use."""

    def __init__(self, settings: Settings, clock: Clock, ids: IdSource, dial: Dial | None = None) -> None:
        """`dial` opens the connections to servers (default: TCP)."""
        self.settings = settings
        self.clock = clock
        self.ids = ids
        self._dial = dial
        self.request_seconds: float = settings["client.request-timeout"]
        self.retry_seconds: float = settings["client.retry-timeout"]
        self._lock = threads.lock()
        self._refresh_lock = threads.lock()
        self._connecting: dict[Address, threads.Lock] = {}
        self._channels: dict[Address, Channel] = {}
        self._schemas: dict[tuple[int, int], Schema] = {}
        self._view = ClusterView()
        self._closed = False
        self.counters = ClientCounters()
        self.tracing: Tracing | None = None
        if settings["client.tracing.enabled"]:
            from forebay.base.tracing import Tracing

            self.tracing = Tracing()

    @property
    def view(self) -> ClusterView:
        return self._view

    @property
    def closed(self) -> bool:
        return self._closed

    # ---- channels ---------------------------------------------------------------------------------------------------

    def channel(self, node: ServerNode | Address) -> Channel:
        """The channel to a server, opened if necessary. Raises `Unavailable`."""
        if isinstance(node, ServerNode):
            address, role = Address(node.host, node.port), node.role
        else:
            address, role = node, None
        channel = self._channels.get(address)
        if channel is not None and not channel.closed:
            return channel
        with self._lock:
            self._check_open()
            connecting = self._connecting.setdefault(address, threads.lock())
        with connecting:
            channel = self._channels.get(address)
            if channel is None or channel.closed:
                channel = self._open(address, role)
        return channel

    def _open(self, address: Address, role: ServerRole | None) -> Channel:
        channel = Channel.open(
            address,
            clock=self.clock,
            connect_seconds=self.settings["client.connect-timeout"],
            request_seconds=self.request_seconds,
            expected_role=role,
            credentials=self.settings.credentials,
            dial=self._dial,
            slow_seconds=self.settings["client.request.slow-log-threshold"],
            tracing=self.tracing,
            given_up=lambda: self._closed,
        )
        with self._lock:
            if not self._closed:
                self._count_past(self._channels.get(address))
                self._channels[address] = channel
                return channel
        channel.close()
        self._check_open()
        return channel

    def _check_open(self) -> None:
        if self._closed:
            raise connection_closed()

    def close(self) -> None:
        """Close all channels. In-flight calls fail. Nothing can be sent afterwards."""
        with self._lock:
            self._closed = True
            channels = list(self._channels.values())
            self._channels = {}
        for channel in channels:
            channel.close()
        for channel in channels:
            channel.join(1.0)
            self._count_past(channel)

    def _count_past(self, channel: Channel | None) -> None:
        """Keep what a closed channel has counted."""
        if channel is not None:
            with self.counters.lock:
                add_calls(self.counters.past_calls, channel.counters)

    def calls(self) -> tuple[dict[ApiKey, CallCounter], int, int]:
        """The requests by API since the beginning, how many wait for a response, and the open channels."""
        totals: dict[ApiKey, CallCounter] = {}
        with self._lock:
            channels = list(self._channels.values())
            with self.counters.lock:
                add_calls(totals, self.counters.past_calls)
            for channel in channels:
                add_calls(totals, channel.counters)
        return totals, sum(channel.in_flight for channel in channels), sum(not channel.closed for channel in channels)

    def adopt(self, view: ClusterView, closed: bool) -> None:
        """Start with the view of another client of the same cluster."""
        self._view, self._closed = view, closed

    def forget_channels(self) -> None:
        """Abandon the channels in a forked child: the sockets belong to the parent. New ones are opened when needed."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.forget()

    def is_answered(self, seconds: float) -> bool:
        """Whether a server answers within `seconds`, on a connection opened for this: the coordinator, or any
        bootstrap server while that is not known. Nothing is retried.
        """
        node, deadline = self._view.coordinator, self.clock.monotonic() + seconds
        for address in self.settings.bootstrap_servers if node is None else [Address(node.host, node.port)]:
            left = max(deadline - self.clock.monotonic(), 0.01)
            try:
                Channel.open(
                    address,
                    clock=self.clock,
                    connect_seconds=left,
                    request_seconds=left,
                    credentials=self.settings.credentials,
                    dial=self._dial,
                ).close()
            except Unavailable:
                continue
            except ForebayError:
                return True  # a refusal is an answer
            return True
        return False

    # ---- requests ---------------------------------------------------------------------------------------------------

    def call(
        self,
        node: ServerNode | Address,
        key: ApiKey,
        message: Message,
        response: type[M],
        seconds: float | None = None,
    ) -> M:
        """Send one request and wait for its response. Raises the server's error, or `Unavailable`."""
        limit = self.request_seconds if seconds is None else seconds
        return self.channel(node).send(key, message).result(limit).parse(response)

    def send(
        self,
        node: ServerNode,
        key: ApiKey,
        message: Message,
        payloads: Sequence[Buffer] = (),
        callback: Callback | None = None,
        traces: tuple[Any, ...] = (),
    ) -> Call:
        """Send one request without waiting. Raises `Unavailable` if that is not possible."""
        return self.channel(node).send(key, message, payloads, callback, traces=traces)

    def has_log_epochs(self, node: ServerNode) -> bool:
        """Whether a server says to which history its log offsets belong. Raises `Unavailable`."""
        return self.channel(node).versions.offers(ApiKey.CHECK_LOG_OFFSETS)

    def coordinator_call(
        self,
        key: ApiKey,
        message: Message,
        response: type[M],
        *,
        repeatable: bool,
        version_min: int = 0,
        retry_seconds: float | None = None,
    ) -> M:
        """Send a request to the coordinator.

        With `repeatable` it is retried after any transient failure; otherwise only while it is certain that the server
        has not received it. `retry_seconds` limits that further than `client.retry-timeout`. Raises
        `UnsupportedOperation` if the server does not offer `version_min` of the API.
        """

        sent = False

        def attempt() -> M:
            nonlocal sent
            node = self._view.coordinator
            if node is None:
                node = self.refresh().coordinator
            if node is None:
                raise Unavailable(
                    "the cluster has no coordinator at the moment", ErrorCode.NOT_COORDINATOR_LEADER_EXCEPTION
                )
            sent = False
            channel = self.channel(node)
            if channel.versions.version(key) < version_min:
                raise UnsupportedOperation(
                    f"this needs version {version_min} of {key.name}, which the server does not offer: it is older "
                    "than this client"
                )
            call = channel.send(key, message)
            sent = True
            return call.result(self.request_seconds).parse(response)

        def may_send_again(error: ForebayError) -> bool:
            return may_repeat(error) and (repeatable or not (sent and error.code in _WITHOUT_ANSWER))

        try:
            return self.retrying(attempt, allowed=may_send_again, seconds=retry_seconds)
        except Unavailable as e:
            if repeatable or not sent or e.code not in _WITHOUT_ANSWER:
                raise
            raise OutcomeUnknown(
                f"{e.message}. The server may have carried out {key.name} or not: check before retrying", e.code
            ) from e

    def any_call(self, key: ApiKey, message: Message, response: type[M]) -> M:
        """Send a request to any server: a tablet server if possible, else the coordinator. It must be safe to retry."""

        def attempt() -> M:
            if not self._nodes():
                self.refresh()
            return self.call(self._nodes()[0], key, message, response)

        return self.retrying(attempt)

    def retrying(
        self,
        attempt: Callable[[], T],
        stale: Callable[[], Any] | None = None,
        allowed: Callable[[ForebayError], bool] | None = None,
        seconds: float | None = None,
    ) -> T:
        """The result of `attempt`, which is retried after transient failures until `client.retry-timeout`, and for
        `seconds` at most.

        `stale` refreshes the view after a failure caused by a stale one (default: refresh the nodes). `allowed` decides
        which failures may be retried (default: `may_read_again`).
        """
        allowed = allowed or may_read_again
        limit = self.retry_seconds if seconds is None else min(seconds, self.retry_seconds)
        deadline = self.clock.monotonic() + limit
        pauses: tuple[BackOff, WaitNotice] | None = None  # once there was a failure
        while True:
            try:
                result = attempt()
            except ForebayError as e:
                back_off, notice = pauses = pauses or (BackOff(self.ids), WaitNotice(self.clock))
                pause = back_off.next_seconds()
                if not allowed(e) or self._closed or self.clock.monotonic() + pause > deadline:
                    raise
                notice.tell(f"{e.message}; giving up after {limit:g} s ('client.retry-timeout')")
                self.clock.sleep(pause)
                if e.stale_metadata:
                    self._refresh_quietly(stale or self.refresh)
            else:
                if pauses is not None:
                    pauses[1].over()
                return result

    def _refresh_quietly(self, refresh: Callable[[], Any]) -> None:
        try:
            refresh()
        except ForebayError as e:
            if not may_repeat(e):
                raise

    # ---- the view ---------------------------------------------------------------------------------------------------

    def bootstrap(self, retries: int = BOOTSTRAP_RETRIES) -> None:
        """Fetch the nodes from the bootstrap servers. Raises `Unavailable` if none responds, after `retries`."""
        back_off = BackOff(self.ids)
        errors: dict[Address, ForebayError] = {}
        notice = WaitNotice(self.clock)
        for attempt in range(1 + retries):
            if attempt:
                self.clock.sleep(5 * back_off.next_seconds())
            for address in self.settings.bootstrap_servers:
                self._check_open()
                try:
                    self._take(self.call(address, ApiKey.GET_METADATA, pb.MetadataRequest(), pb.MetadataResponse))
                except (Unavailable, InvalidRequest) as e:
                    errors[address] = e
                else:
                    notice.over()
                    return
            if all(isinstance(e, InvalidRequest) for e in errors.values()):
                raise next(iter(errors.values()))
            notice.tell("; ".join(e.message for e in errors.values()))
        reasons = "; ".join(e.message for e in errors.values())
        raise Unavailable(f"no bootstrap server responds: {reasons}. Is the server running, and is the address right?")

    def refresh(
        self,
        tables: Iterable[TablePath] = (),
        partitions: Iterable[PhysicalTablePath] = (),
        partition_ids: Mapping[TablePath, Iterable[int]] | None = None,
    ) -> ClusterView:
        """Fetch metadata of the nodes and of these tables and partitions; returns the new view.

        Raises `NotFound` for a table or partition that does not exist, `Unavailable` if no server responds.
        """
        ids = {path: sorted(id_list) for path, id_list in (partition_ids or {}).items()}
        request = pb.MetadataRequest(
            table_path=[table_path_to_pb(path) for path in {*tables, *ids}],
            partitions_path=[physical_path_to_pb(path) for path in set(partitions)],
            partitions_id=[partition_id for id_list in ids.values() for partition_id in id_list],
        )
        with self._refresh_lock:
            for node in self._nodes():
                try:
                    return self._take(self._metadata(node, request))
                except Unavailable:
                    if self._closed:
                        raise
            self.bootstrap()
            if not (request.table_path or request.partitions_path):
                return self._view
            return self._take(self._metadata(self._nodes()[0], request))

    def _metadata(self, node: ServerNode, request: pb.MetadataRequest) -> pb.MetadataResponse:
        try:
            return self.call(node, ApiKey.GET_METADATA, request, pb.MetadataResponse)
        except InternalError:
            # Fluss 0.9 responds like this for a table that does not exist.
            for path in request.table_path:
                answer = self.call(
                    node, ApiKey.TABLE_EXISTS, pb.TableExistsRequest(table_path=path), pb.TableExistsResponse
                )
                if not answer.exists:
                    raise NotFound(f"there is no table {table_path_from_pb(path)}") from None
            raise

    def _nodes(self) -> list[ServerNode]:
        """All nodes, the best-informed first."""
        view = self._view
        return [*view.tablet_servers.values(), *([view.coordinator] if view.coordinator else [])]

    def _take(self, response: pb.MetadataResponse) -> ClusterView:
        """Merge a server's response into a new view. Tables and partitions it does not mention stay unchanged."""
        with self._lock:
            view = self._view = _merge(self._view, response)
            addresses = {Address(node.host, node.port) for node in view.tablet_servers.values()}
            if view.coordinator is not None:
                addresses.add(Address(view.coordinator.host, view.coordinator.port))
            addresses.update(self.settings.bootstrap_servers)
            removed = [self._channels.pop(address) for address in list(self._channels) if address not in addresses]
        for channel in removed:
            channel.close()
            self._count_past(channel)
        return view

    def forget_leader(self, buckets: Iterable[TableBucket]) -> None:
        """Forget the leaders of these buckets, which have moved."""
        with self._lock:
            leaders = dict(self._view.leaders)
            for bucket in buckets:
                leaders.pop(bucket, None)
            self._view = replace(self._view, leaders=leaders)

    def forget_table(self, path: TablePath) -> None:
        """Forget everything about a table."""
        with self._lock:
            view = self._view
            info = view.tables.get(path)
            self._view = replace(
                view,
                tables={p: i for p, i in view.tables.items() if p != path},
                partitions={p: i for p, i in view.partitions.items() if p.table != path},
                leaders={b: s for b, s in view.leaders.items() if info is None or b.table_id != info.table_id},
            )

    def leader(self, path: TablePath, bucket: TableBucket) -> ServerNode:
        """The server that leads a bucket of table `path`, fetched if the view does not have it.

        Raises `Unavailable` (LEADER_NOT_AVAILABLE) while there is none, `NotFound` if the table or partition is gone.
        """
        node = self._view.leader(bucket)
        if node is None:
            view = self.refresh_bucket(path, bucket)
            node = view.leader(bucket)
            if node is None:
                self._check_same_table(view, path, bucket)
                raise Unavailable(
                    f"bucket {bucket.bucket} of {path} has no leader at the moment",
                    ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
                )
        return node

    def refresh_bucket(self, path: TablePath, bucket: TableBucket) -> ClusterView:
        """Refresh the leader of a bucket."""
        self.forget_leader([bucket])
        if bucket.partition_id is None:
            return self.refresh([path])
        return self.refresh(partition_ids={path: [bucket.partition_id]})

    @staticmethod
    def _check_same_table(view: ClusterView, path: TablePath, bucket: TableBucket) -> None:
        info = view.tables.get(path)
        if info is not None:
            ClusterClient._check_still(info, bucket.table_id)

    @staticmethod
    def _check_still(info: TableInfo, table_id: int) -> None:
        """Raise `NotFound` unless the table that has a name now is the one with this id."""
        if info.table_id != table_id:
            raise NotFound(
                f"table {info.path} was dropped and created again (its id was {table_id} and is {info.table_id} "
                "now); open it again with connection.table()"
            )

    # ---- tables and schemas -----------------------------------------------------------------------------------------

    def table_info(self, path: TablePath) -> TableInfo:
        """The current metadata of the table. Raises `NotFound`."""
        view = self.retrying(lambda: self.refresh([path]), stale=lambda: None)
        info = view.tables.get(path)
        if info is None:
            raise NotFound(f"there is no table {path}, or you may not see it")
        return info

    def schema(self, info: TableInfo, schema_id: int) -> Schema:
        """A version of a table's schema. Raises `NotFound` (SCHEMA_NOT_EXIST; also if the table was recreated)."""
        if schema_id == info.schema_id:
            return info.schema
        schema = self._schemas.get((info.table_id, schema_id))
        if schema is None:
            request = pb.GetTableSchemaRequest(table_path=table_path_to_pb(info.path), schema_id=schema_id)
            response = self.any_call(ApiKey.GET_TABLE_SCHEMA, request, pb.GetTableSchemaResponse)
            schema = json_serde.schema_from_json(json_serde.loads(response.schema_json, "table schema"))
            # The request names a table by its path. Only if that is still the same one now, it was then, too.
            self._check_still(self.table_info(info.path), info.table_id)
            with self._lock:
                if len(self._schemas) >= _SCHEMAS_MAX:
                    del self._schemas[next(iter(self._schemas))]
                self._schemas[info.table_id, schema_id] = schema
        return schema


def table_info_from_pb(message: Any, path: TablePath) -> TableInfo:
    """The table described by a PbTableMetadata or a GetTableInfoResponse."""
    return TableInfo(
        path,
        message.table_id,
        message.schema_id,
        _descriptor(message.table_json),
        message.created_time,
        message.modified_time,
    )


@lru_cache(maxsize=256)
def _descriptor(text: bytes) -> TableDescriptor:
    """The descriptor in a response; the same value for the same text, as most tables are described many times."""
    return json_serde.descriptor_from_json(json_serde.loads(text, "table descriptor"))


def _merge(view: ClusterView, response: pb.MetadataResponse) -> ClusterView:
    coordinator = view.coordinator
    if response.HasField("coordinator_server"):
        coordinator = server_node_from_pb(response.coordinator_server, ServerRole.COORDINATOR)
    if not response.tablet_servers:
        raise Unavailable(
            "the server knows of no tablet server (yet); it may have just been started",
            ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
        )
    servers = {node.node_id: server_node_from_pb(node, ServerRole.TABLET) for node in response.tablet_servers}
    tables, partitions, leaders = dict(view.tables), dict(view.partitions), dict(view.leaders)
    paths = {info.table_id: path for path, info in tables.items()}
    for table in response.table_metadata:
        path = table_path_from_pb(table.table_path)
        previous = tables.get(path)
        if previous is not None and previous.table_id != table.table_id:
            leaders = {bucket: server for bucket, server in leaders.items() if bucket.table_id != previous.table_id}
            partitions = {p: partition for p, partition in partitions.items() if p.table != path}
        tables[path] = table_info_from_pb(table, path)
        paths[table.table_id] = path
        _set_leaders(leaders, table.table_id, None, table.bucket_metadata)
    for message in response.partition_metadata:
        owner = paths.get(message.table_id)
        if owner is not None:
            count = message.bucket_count if message.HasField("bucket_count") else None
            name = PhysicalTablePath(owner, message.partition_name)
            partitions[name] = Partition(message.partition_id, count)
        _set_leaders(leaders, message.table_id, message.partition_id, message.bucket_metadata)
    return ClusterView(coordinator, servers, tables, partitions, leaders)


def _set_leaders(
    leaders: dict[TableBucket, int], table_id: int, partition_id: int | None, buckets: Iterable[pb.PbBucketMetadata]
) -> None:
    for message in buckets:
        bucket = TableBucket(table_id, message.bucket_id, partition_id)
        if message.HasField("leader_id"):
            leaders[bucket] = message.leader_id
        else:
            leaders.pop(bucket, None)
