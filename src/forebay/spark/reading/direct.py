"""Logs and buckets that Spark's executors read from the servers themselves, without a Python worker.

The driver prepares everything that depends on the protocol: addresses, the handshake, the requests without their
offsets and positions, and the order of the columns. Java (`ForebayDirectReader`) sends these requests and wraps the
batches of the responses in Spark columns. It reads log tables, and buckets of primary-key tables that a table snapshot
pins, if Spark has the same value layout as the wire, or differs only in the unit of time. Python workers read all other
scans. The driver decides this when it plans, and EXPLAIN shows the reason. If Java finds unexpected data, it reports
the position from which a worker continues (`SplitsPartition.resumed`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from forebay.base.errors import ForebayError
from forebay.client.cluster.rpc import SOFTWARE
from forebay.client.connection import Connection
from forebay.client.reading.pages import arrow_rows
from forebay.client.reading.table_snapshot import TableSnapshot
from forebay.codec.arrow.arrow_types import storage_schema
from forebay.metadata.table import TableBucket, TableInfo
from forebay.metadata.table_options import LogFormat
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Message
from forebay.protocol.sasl import PlainClient
from forebay.spark.reading.live_read import LiveRead
from forebay.spark.reading.plan import SplitsPartition
from forebay.unionread.splits import KvBucketSplit, LogSplit

_CHECK_CRC = "client.scanner.log.check-crc"
_CLIENT = -1
_SET_LATER = 0
"""A placeholder: Java appends the field again, and protobuf uses the last value."""

_ANSWER_BYTES = 4 << 20
"""Maximum bytes of a bucket's log in one response. A task processes one response while the next is in flight."""

_PAGE_BYTES = 2 << 20
_NARROW_PAGE_FACTOR_MAX = 4
"""Stored bytes of the rows in one page of a bucket. A page must fit into the processor's cache, but be large enough
that the server's fixed cost of a request is small. Pages are larger if few of the columns are requested:
2 of 8 columns of 4 M rows take 0.28, 0.24 and 0.23 s with 1, 2 and 4 MiB, all columns 0.66, 0.65 and 0.70 s."""

_CONNECT_SECONDS_MAX = 10.0
"""Afterwards a Python worker takes over, which waits for servers that are down."""

_MANY = (1 << 63) - 1
"""The row limit of a scan without a limit."""

_ANY_SCHEMA = -1
"""The schema id of batches that the server has projected to the requested columns."""

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True)
class DirectLogs:
    """How the logs of one scan are read. `source` is what Java's `ForebayLogReader` reads first, with the password."""

    connection: Connection
    info: TableInfo
    source: bytes = field(repr=False)

    def ranges(self, partitions: Sequence[SplitsPartition]) -> bytes:
        """The ranges of each task; empty for a task that only Python can read."""
        return b"".join(_text(self._ranges(partition)) for partition in partitions)

    def _ranges(self, partition: SplitsPartition) -> bytes:
        logs = [split for split in partition.splits if isinstance(split, LogSplit)]
        if not logs or len(logs) < len(partition.splits):
            return b""
        written = [struct.pack(">i", len(logs))]
        for log in logs:
            bucket = pb.PbFetchLogReqForBucket(
                partition_id=log.bucket.partition_id,
                bucket_id=log.bucket.bucket,
                fetch_offset=_SET_LATER,
                max_fetch_bytes=_SET_LATER,
            )
            address = _address(self.connection, self.info, log.bucket)
            if address is None:
                return b""
            written += [address, _text(bucket.SerializeToString()), struct.pack(">qq", log.start, log.stop)]
        return b"".join(written)


@dataclass(frozen=True)
class DirectBuckets:
    """How the buckets of one scan are read. `source` is what Java's `ForebayPageReader` reads first."""

    connection: Connection
    info: TableInfo
    as_arrow: pb.PbArrowRows
    limit: int | None
    source: bytes = field(repr=False)

    def ranges(self, partitions: Sequence[SplitsPartition]) -> bytes:
        """The buckets of each task; empty for a task that only Python can read."""
        return b"".join(_text(self._ranges(partition)) for partition in partitions)

    def _ranges(self, partition: SplitsPartition) -> bytes:
        buckets = [split.bucket for split in partition.splits if isinstance(split, KvBucketSplit)]
        snapshot = partition.snapshot
        if not buckets or len(buckets) < len(partition.splits) or snapshot is None or not snapshot.is_exact:
            return b""
        written = [struct.pack(">i", len(buckets))]
        for bucket in buckets:
            address = _address(self.connection, self.info, bucket)
            if address is None:
                return b""
            written += [address, _text(self._request(snapshot, bucket).SerializeToString())]
        return b"".join(written)

    def _request(self, snapshot: TableSnapshot, bucket: TableBucket) -> pb.ScanKvRequest:
        stored, projected = len(self.info.schema.columns), max(1, len(self.as_arrow.projected_fields))
        return pb.ScanKvRequest(
            table_snapshot_id=snapshot.raw_id,
            batch_size_bytes=_PAGE_BYTES * min(_NARROW_PAGE_FACTOR_MAX, stored // projected),
            bucket_scan_req=pb.PbScanReqForBucket(
                table_id=bucket.table_id,
                partition_id=bucket.partition_id,
                bucket_id=bucket.bucket,
                limit=self.limit,
            ),
            as_arrow=self.as_arrow,
        )


def direct_logs(connection: Connection, read: LiveRead) -> DirectLogs | str:
    """How executors read the logs of `read`, or the reason why Python workers must read them."""
    info = read.info
    if read.include:
        return f"metadata columns ({', '.join(read.include)})"
    if info.descriptor.log_format is not LogFormat.ARROW:
        return f"the log's format is {info.descriptor.log_format.value}"
    view = read.view
    # Rows without columns are counted by the headers of batches, which the server cuts down to a narrow column.
    positions = sorted(info.schema.indexes(read.columns)) or list(view.positions)
    columns = _columns(read, positions)
    if isinstance(columns, str):
        return columns
    # Batches of older schemas get the columns that they lack from the server.
    is_projected = len(positions) < len(info.schema.columns) or info.schema_id > 1
    table = pb.PbFetchLogReqForTable(
        table_id=info.table_id,
        projection_pushdown_enabled=is_projected,
        projected_fields=positions if is_projected else (),
        filter_predicate=view.wire_filter(),
    )
    is_filtered = table.HasField("filter_predicate")
    if is_filtered:
        table.filter_schema_id = info.schema_id
    request = pb.FetchLogRequest(follower_server_id=_CLIENT, max_bytes=_SET_LATER, max_wait_ms=500, min_bytes=1)
    source = [
        struct.pack(">?", False),
        _handshake(read),
        columns,
        _text(request.SerializeToString()),
        _text(table.SerializeToString()),
        struct.pack(">ii", _ANSWER_BYTES, _ANY_SCHEMA if is_projected else info.schema_id),
        struct.pack(">??", read.settings[_CHECK_CRC], is_filtered),
    ]
    return DirectLogs(connection, info, b"".join(source))


def direct_buckets(connection: Connection, read: LiveRead, buckets: Sequence[TableBucket]) -> DirectBuckets | str:
    """How executors read `buckets` of a primary-key table, or the reason why Python workers must read them."""
    info, cluster = read.info, connection.cluster
    if read.include:
        return f"metadata columns ({', '.join(read.include)})"
    try:
        nodes = {cluster.leader(info.path, bucket) for bucket in buckets}
        if not all(cluster.channel(node).versions.scans_in_arrow for node in nodes):
            return "the cluster does not scan in Arrow"
    except ForebayError as e:  # workers wait for servers
        return e.message
    if len(nodes) > 1:
        return f"the buckets are on {len(nodes)} servers, which have no snapshot of one instant"
    positions = sorted(info.schema.indexes(read.columns))
    columns = _columns(read, positions)
    if isinstance(columns, str):
        return columns
    as_arrow = arrow_rows(read.view, positions, read.settings)
    limit = read.limit if read.predicate is None else None
    source = [struct.pack(">?", True), _handshake(read), columns, struct.pack(">q", _MANY if limit is None else limit)]
    return DirectBuckets(connection, info, as_arrow, limit, b"".join(source))


def _address(connection: Connection, info: TableInfo, bucket: TableBucket) -> bytes | None:
    """The server of a bucket; None if there is none: then a Python worker waits for one, or raises the error."""
    try:
        node = connection.cluster.leader(info.path, bucket)
    except ForebayError:
        return None
    return _text(node.host.encode()) + struct.pack(">i", node.port)


def _handshake(read: LiveRead) -> bytes:
    """The handshake of a connection, and Java's timeouts."""
    settings = read.settings
    name, version = SOFTWARE
    hellos: list[tuple[ApiKey, Message]] = [
        (ApiKey.API_VERSIONS, pb.ApiVersionsRequest(client_software_name=name, client_software_version=version))
    ]
    if settings.credentials is not None:
        hellos.append((ApiKey.AUTHENTICATE, PlainClient(*settings.credentials).initial_request()))
    connect = min(settings["client.connect-timeout"], _CONNECT_SECONDS_MAX)
    milliseconds = [round(seconds * 1000) for seconds in (connect, settings["client.request-timeout"])]
    sent = (struct.pack(">h", key) + _text(message.SerializeToString()) for key, message in hellos)
    return struct.pack(">iii", *milliseconds, len(hellos)) + b"".join(sent)


def _columns(read: LiveRead, positions: Sequence[int]) -> bytes | str:
    """The index of each Spark column among those at `positions`, with its conversion; or why there is none."""
    info = read.info
    columns = [info.schema.columns[position] for position in positions]
    places = [positions.index(position) for position in info.schema.indexes(read.columns)]
    stored = storage_schema(columns)
    written = [struct.pack(">i", len(places))]
    for place, requested in zip(places, read.schema, strict=True):
        factor = _factor(stored.field(place).type, requested.type)
        if factor is None:
            return f"column '{requested.name}' is {columns[place].data_type}, and Spark asks for {requested.type}"
        written.append(struct.pack(">iq", place, factor))
    return b"".join(written)


def _factor(stored: pa.DataType, requested: pa.DataType) -> int | None:
    """The factor from the wire's number to Spark's; 1 if they are equal, -n to divide by n.

    None for values that Java cannot convert to Spark's type.
    """
    if _same(stored, requested):
        return 1
    if pa.types.is_timestamp(stored) and pa.types.is_timestamp(requested):
        have, want = _PER_SECOND[stored.unit], _PER_SECOND[requested.unit]
        return want // have if want > have else -(have // want)
    return None


def _same(stored: pa.DataType, requested: pa.DataType) -> bool:
    """Whether Arrow has the same layout for both types, ignoring time zones and names of nested fields."""
    if pa.types.is_timestamp(stored) and pa.types.is_timestamp(requested):
        return bool(stored.unit == requested.unit)
    if stored.id != requested.id:
        return False
    if pa.types.is_map(stored):
        return _same(stored.key_type, requested.key_type) and _same(stored.item_type, requested.item_type)
    if pa.types.is_list(stored):
        return _same(stored.value_type, requested.value_type)
    if pa.types.is_struct(stored):
        inner = stored.num_fields == requested.num_fields
        return inner and all(_same(stored.field(i).type, requested.field(i).type) for i in range(stored.num_fields))
    return bool(stored.equals(requested))


def _text(data: bytes) -> bytes:
    """`data` with its length as a prefix."""
    return struct.pack(">i", len(data)) + data
