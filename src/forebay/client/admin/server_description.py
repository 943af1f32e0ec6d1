"""The present state of a Forebay server: `Admin.describe_server`.

Nouns: a *description* has counters that grow from the server's start on. Rates and quantiles of a time are those
between two descriptions (`ServerDescription.since`), or since the start.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from forebay.base.counting import quantile
from forebay.base.errors import InvalidRequest
from forebay.client.display import Listing
from forebay.client.reading.table_snapshot import snapshot_info_from_pb
from forebay.client.results import TableSnapshotInfo, TransactionInfo, transaction_from_pb
from forebay.metadata.table import TableBucket, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Message, partition_id_of, table_path_from_pb

ServerList = Literal["connections", "scans", "table_snapshots", "transactions", "tiering"]
_LISTS: tuple[str, ...] = ("", *get_args(ServerList))
"""By their numbers on the wire."""


@dataclass(frozen=True)
class Timings:
    """How many of something took how long: `counts` by the upper `bounds` in seconds, the last without one."""

    seconds: float
    counts: tuple[int, ...]
    bounds: tuple[float, ...]

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """The seconds that this share did not exceed, as exactly as the bounds allow; None if there were none."""
        return quantile(share, self.counts, self.bounds) if self.count else None

    def since(self, before: Timings | None) -> Timings:
        """Return the times that were added after an earlier state."""
        if before is None or before.bounds != self.bounds:
            return self
        counts = tuple(max(now - then, 0) for now, then in zip(self.counts, before.counts, strict=True))
        return Timings(max(self.seconds - before.seconds, 0.0), counts, self.bounds)


@dataclass(frozen=True)
class ApiLoad:
    """The requests of one API. `errors`: those that failed as a whole."""

    times: Timings
    bytes_in: int
    errors: int

    def since(self, before: ApiLoad | None) -> ApiLoad:
        """Return the requests that were added after an earlier state."""
        if before is None:
            return self
        return ApiLoad(
            self.times.since(before.times), max(self.bytes_in - before.bytes_in, 0), max(self.errors - before.errors, 0)
        )


@dataclass(frozen=True)
class ConnectionInfo:
    """A connection to a server. `user` is None without a login; `client` and `client_version` are what it calls itself,
    `unsent_bytes` what it has not read yet.
    """

    address: str
    user: str | None
    client: str | None
    client_version: str | None
    role: str
    listener: str
    open_requests: int
    open_bytes: int
    unsent_bytes: int
    opened: dt.datetime
    idle: dt.timedelta


@dataclass(frozen=True)
class ScanInfo:
    """An open scan of a bucket, as of `log_offset`, and how many pages it has returned."""

    bucket: TableBucket
    log_offset: int
    pages: int
    age: dt.timedelta
    idle: dt.timedelta


@dataclass(frozen=True)
class TieringInfo:
    """A table with a lake, as its coordinator sees it.

    `state` has been so for `since`. `round_time` is how long the last round took, `failures` how many failed since the
    server's start. `lake_bytes` and `lake_rows` are of the lake table, if its worker reported them. `untiered` counts
    the log records that its newest readable snapshot does not have.
    """

    path: TablePath
    table_id: int
    state: str
    since: dt.timedelta
    freshness: dt.timedelta
    since_last_round: dt.timedelta
    round_time: dt.timedelta | None
    failures: int
    lake_bytes: int | None
    lake_rows: int | None
    untiered: int | None


@dataclass(frozen=True)
class DamagedBucket:
    """A bucket that is offline because its files are damaged. `message` names file, position and lost offsets."""

    path: TablePath
    bucket: TableBucket
    message: str


@dataclass(frozen=True)
class ServerDescription:
    """The present state of a server. `apis` are by Fluss's names of requests; `items` are those of the requested list,
    and `total` is the length of the whole list. Unknown values are None.
    """

    started: dt.datetime
    now: dt.datetime
    version: str | None
    apis: Mapping[str, ApiLoad]
    syncs: Timings
    records_in: int
    bytes_in: int
    bytes_out: int
    refused_connections: int
    failed_logins: int
    tables: int
    buckets: int
    open_buckets: int
    offline_buckets: int
    disk_bytes: int | None
    disk_free_bytes: int | None
    accepts_writes: bool
    resident_bytes: int | None
    request_bytes: int
    request_bytes_max: int
    answer_bytes: int
    answer_bytes_max: int
    queued_reads: int
    queued_writes: int
    waiting_fetches: int
    connections: int
    scans: int
    table_snapshots: int
    open_transactions: int
    decided_transactions: int
    staged_bytes: int
    tiered_tables: int
    pending_tables: int
    tiering_tables: int
    log_epoch: str | None = None
    """The epoch of the server's logs, since when it has been theirs, and why it began."""
    log_epoch_since: dt.datetime | None = None
    log_epoch_reason: str | None = None
    total: int | None = None
    items: Sequence[Any] = field(default=(), repr=False)
    paths: Mapping[int, TablePath] = field(default_factory=dict, repr=False)
    """The tables of the `items` that have only an id."""
    damaged: Sequence[DamagedBucket] = ()
    """Buckets that were found damaged when they were opened, up to 20."""
    standby_as_of: dt.datetime | None = None
    """Of a standby that serves reads: as of when these are, by the clock of the server that it follows."""
    staleness: dt.timedelta | None = None
    """Of a standby: for how long it was not seen that reads have all that the server has stored; None if never."""

    def since(self, before: ServerDescription | None = None) -> ServerLoad:
        """The load between an earlier description and this one; without one, or after a restart, since the start."""
        if before is not None and before.started != self.started:
            before = None
        seconds = (self.now - (self.started if before is None else before.now)).total_seconds()
        apis = {name: load.since(None if before is None else before.apis.get(name)) for name, load in self.apis.items()}

        def rate(name: str) -> float:
            change = getattr(self, name) - (0 if before is None else getattr(before, name))
            return max(change, 0) / seconds if seconds > 0 else 0.0

        syncs = self.syncs.since(None if before is None else before.syncs)
        return ServerLoad(seconds, apis, syncs, rate("records_in"), rate("bytes_in"), rate("bytes_out"))


@dataclass(frozen=True)
class ServerLoad:
    """The load of a server over some `seconds`: requests by API, syncs, and rates of records and bytes a second."""

    seconds: float
    apis: Mapping[str, ApiLoad]
    syncs: Timings
    records_in: float
    bytes_in: float
    bytes_out: float

    @property
    def requests(self) -> float:
        """Requests a second."""
        return sum(load.times.count for load in self.apis.values()) / self.seconds if self.seconds > 0 else 0.0

    @property
    def errors(self) -> float:
        """Failed requests a second."""
        return sum(load.errors for load in self.apis.values()) / self.seconds if self.seconds > 0 else 0.0


def describe_server(
    ask: Callable[[Message], pb.DescribeServerResponse], listed: ServerList | None, skip: int, limit: int
) -> ServerDescription:
    """See `Admin.describe_server`. `ask` sends a request."""
    if (listed or "") not in _LISTS:
        raise InvalidRequest(f"{listed!r} is not a list of a server: there are {', '.join(_LISTS[1:])}")
    request = pb.DescribeServerRequest(list=_LISTS.index(listed or ""), skip=skip, items_max=limit)
    answer = ask(request)
    bounds = tuple(answer.seconds_bounds)
    apis = {
        _api_name(load.api_key): ApiLoad(_timings(load.times, bounds), load.bytes_in, load.errors)
        for load in answer.apis
    }
    return ServerDescription(
        started=_time(answer.started_ms),
        now=_time(answer.now_ms),
        version=answer.version if answer.HasField("version") else None,
        apis=apis,
        syncs=_timings(answer.syncs, bounds),
        disk_bytes=_optional_field(answer, "disk_bytes"),
        disk_free_bytes=_optional_field(answer, "disk_free_bytes"),
        resident_bytes=_optional_field(answer, "resident_bytes"),
        connections=answer.connection_count,
        scans=answer.scan_count,
        table_snapshots=answer.table_snapshot_count,
        log_epoch=_optional_field(answer, "log_epoch"),
        log_epoch_since=_time(answer.log_epoch_since_ms) if answer.HasField("log_epoch_since_ms") else None,
        log_epoch_reason=_optional_field(answer, "log_epoch_reason"),
        total=_optional_field(answer, "list_total"),
        items=Listing(_items(answer)),
        paths={each.table_id: table_path_from_pb(each.table_path) for each in answer.table_names},
        damaged=[
            DamagedBucket(
                table_path_from_pb(each.table_path),
                TableBucket(each.table_id, each.bucket_id, partition_id_of(each)),
                each.message,
            )
            for each in answer.damaged_buckets
        ],
        standby_as_of=_time(answer.standby_as_of_ms) if answer.HasField("standby_as_of_ms") else None,
        staleness=_span(answer.standby_stale_ms) if answer.HasField("standby_stale_ms") else None,
        **{name: getattr(answer, name) for name in _SAME},
    )


_SAME = (
    "records_in", "bytes_in", "bytes_out", "refused_connections", "failed_logins", "tables", "buckets", "open_buckets",
    "offline_buckets", "accepts_writes", "request_bytes", "request_bytes_max", "answer_bytes", "answer_bytes_max",
    "queued_reads", "queued_writes", "waiting_fetches", "open_transactions", "decided_transactions", "staged_bytes",
    "tiered_tables", "pending_tables", "tiering_tables",
)  # fmt: skip
"""Fields with the same name in the message."""


def _items(
    answer: pb.DescribeServerResponse,
) -> list[ConnectionInfo | ScanInfo | TableSnapshotInfo | TransactionInfo | TieringInfo]:
    return [
        *map(_connection, answer.connections),
        *map(_scan, answer.scans),
        *map(snapshot_info_from_pb, answer.table_snapshots),
        *map(transaction_from_pb, answer.transactions),
        *map(_tiering, answer.tiering),
    ]


def _connection(message: pb.PbConnectionInfo) -> ConnectionInfo:
    return ConnectionInfo(
        message.address,
        _optional_field(message, "user"),
        _optional_field(message, "client"),
        _optional_field(message, "client_version"),
        "coordinator" if message.role == 1 else "tablet server",
        message.listener,
        message.open_requests,
        message.open_bytes,
        message.unsent_bytes,
        _time(message.opened_ms),
        _span(message.idle_ms),
    )


def _scan(message: pb.PbScanInfo) -> ScanInfo:
    bucket = TableBucket(message.table_id, message.bucket_id, partition_id_of(message))
    return ScanInfo(bucket, message.log_offset, message.pages, _span(message.age_ms), _span(message.idle_ms))


def _tiering(message: pb.PbTieringInfo) -> TieringInfo:
    round_ms = _optional_field(message, "round_ms")
    return TieringInfo(
        table_path_from_pb(message.table_path),
        message.table_id,
        message.state,
        _span(message.since_ms),
        _span(message.freshness_ms),
        _span(message.since_last_round_ms),
        None if round_ms is None else _span(round_ms),
        message.failures,
        _optional_field(message, "file_bytes"),
        _optional_field(message, "rows"),
        _optional_field(message, "untiered"),
    )


def _timings(message: pb.PbHistogram, bounds: tuple[float, ...]) -> Timings:
    return Timings(message.seconds, tuple(message.counts), bounds)


def _api_name(key: int) -> str:
    try:
        return ApiKey(key).fluss_name
    except ValueError:  # of a newer server
        return str(key)


def _optional_field(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def _time(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)


def _span(milliseconds: int) -> dt.timedelta:
    return dt.timedelta(milliseconds=milliseconds)
