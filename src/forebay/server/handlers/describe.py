"""The server's present state: counters, and lists of what is open, a page at a time.

A Forebay extension of the protocol, with its own API key (docs/protocol.md). Whoever may connect may ask. The answer
takes time in proportion to tables, open buckets and the items of one page, most of it in a thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, TypeVar

from forebay.base.counting import SECONDS, Histogram
from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest
from forebay.base.host import resident_bytes
from forebay.base.version import __version__
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Message, parse, table_path_to_pb
from forebay.server.connections import ConnectionDescription, Connections
from forebay.server.context import ServerCall, ServerContext, serves
from forebay.server.handlers.staging import transaction_to_pb
from forebay.server.handlers.table_snapshots import table_snapshot_to_pb
from forebay.server.lake.lake_tiering import TieringState
from forebay.server.transactions.transaction import TransactionState

T = TypeVar("T")

_ITEMS, _ITEMS_MAX = 100, 1000
"""Items of a page: by default, and at most."""

_DAMAGED_MAX = 20
"""Damaged buckets that are described; all are counted."""


@serves(ApiKey.DESCRIBE_SERVER)
async def describe_server(context: ServerContext, call: ServerCall) -> Message:
    """Return counters since the start and, if one is requested, a page of one list."""
    request = call.message
    skip, items_max = request.skip, request.items_max if request.HasField("items_max") else _ITEMS
    if request.list not in (_NO_LIST, _CONNECTIONS, *_LISTS):
        raise _invalid(f"there is no list {request.list}; there are {_CONNECTIONS} to {max(_LISTS)}")
    if skip < 0 or not 0 <= items_max <= _ITEMS_MAX:
        raise _invalid(f"there is no page of {items_max} items after {skip} others; one has up to {_ITEMS_MAX}")
    response = pb.DescribeServerResponse()
    if context.connections is not None:
        _add_memory(context.connections, response)
        if request.list == _CONNECTIONS:
            _add_connections(context, context.connections, response, skip, items_max)
    await context.in_io(_add_load, context, response)
    if request.list in _LISTS:
        await context.in_io(_LISTS[request.list], context, response, skip, items_max)
        _add_names(context, response)
    return response


def _add_names(context: ServerContext, response: pb.DescribeServerResponse) -> None:
    table_ids = {each.table_id for each in response.scans} | {each.table_id for each in response.table_snapshots}
    for table_id in table_ids:
        table = context.catalog.table_by_id(table_id)
        if table is not None:
            response.table_names.add(table_id=table_id, table_path=table_path_to_pb(table.info.path))


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, ErrorCode.INVALID_SCAN_REQUEST)


# ---- counters -------------------------------------------------------------------------------------------------------


def _add_memory(connections: Connections, response: pb.DescribeServerResponse) -> None:
    requests, responses = connections.memory_pools.requests, connections.memory_pools.responses
    response.request_bytes, response.request_bytes_max = requests.used, requests.limit
    response.answer_bytes, response.answer_bytes_max = responses.used, responses.limit
    response.connection_count = len(connections)


def _add_load(context: ServerContext, response: pb.DescribeServerResponse) -> None:
    counters, replicas = context.counters, context.replicas
    response.started_ms, response.now_ms, response.version = context.started_ms, context.clock.now_ms(), __version__
    response.seconds_bounds.extend(SECONDS)
    for key, counter in sorted(counters.requests.items()):
        load = response.apis.add(api_key=key, bytes_in=counter.bytes_in, errors=sum(list(counter.errors.values())))
        _fill(load.times, counter.times)
    _fill(response.syncs, counters.syncs)
    done = list(replicas.written_and_read().values())
    response.records_in = sum(each.records for each in done)
    response.bytes_in = sum(each.bytes_in for each in done)
    response.bytes_out = sum(each.bytes_out for each in done)
    response.refused_connections, response.failed_logins = counters.refused_connections, counters.failed_logins
    tables, open_replicas = context.catalog.tables(), replicas.replicas()
    response.tables = len(tables)
    epoch = context.epochs.current
    response.log_epoch, response.log_epoch_since_ms = epoch.epoch, epoch.began_ms
    response.log_epoch_reason = epoch.reason
    response.buckets = sum(
        table.info.bucket_count * (len(table.current.partitions_by_id) if table.info.is_partitioned else 1)
        for table in tables
    )
    response.open_buckets = len(open_replicas)
    response.offline_buckets = replicas.offline_count
    for bucket, error in list(replicas.damaged().items())[:_DAMAGED_MAX]:
        table = context.catalog.table_by_id(bucket.table_id)
        if table is not None:
            response.damaged_buckets.add(
                table_path=table_path_to_pb(table.info.path), table_id=bucket.table_id,
                partition_id=bucket.partition_id, bucket_id=bucket.bucket, message=error.message,
            )  # fmt: skip
    response.disk_bytes, response.disk_free_bytes = replicas.disk_bytes()
    response.accepts_writes = replicas.accepts_writes
    memory = resident_bytes()
    if memory is not None:
        response.resident_bytes = memory
    response.queued_reads, response.queued_writes = context.queued_jobs, replicas.waiting_write_queues
    response.waiting_fetches = context.notifier.waiting
    response.scan_count = context.scanners.session_count
    response.table_snapshot_count = len(context.table_snapshots.describe())
    for state, count, staged in context.transactions.totals():
        if state is TransactionState.OPEN:
            response.open_transactions = count
        else:
            response.decided_transactions = count
        response.staged_bytes += staged
    if context.standby is not None:
        response.standby_as_of_ms, stale_seconds = context.standby()
        if math.isfinite(stale_seconds):
            response.standby_stale_ms = round(1000 * stale_seconds)
    states = context.lake.tiering.state_counts()
    response.tiered_tables = states.total()
    response.pending_tables, response.tiering_tables = states[TieringState.PENDING], states[TieringState.TIERING]


def _fill(message: pb.PbHistogram, histogram: Histogram) -> None:
    message.seconds = histogram.seconds
    message.counts.extend(histogram.buckets)


# ---- lists ----------------------------------------------------------------------------------------------------------


def _add_connections(
    context: ServerContext, connections: Connections, response: pb.DescribeServerResponse, skip: int, items_max: int
) -> None:
    """Add connections in the order in which they were opened. In the thread of the event loop, to which they belong."""
    response.list_total = len(connections)
    now_ms = context.clock.now_ms()
    for connection in islice(islice(connections, min(skip, len(connections)), None), items_max):
        description = connection.description()
        client, version = _client_of(description)
        response.connections.add(
            address=description.address,
            user=description.user,
            client=client,
            client_version=version,
            role=int(description.role),
            listener=description.listener,
            open_requests=description.open_requests,
            open_bytes=description.open_bytes,
            unsent_bytes=description.unsent_bytes,
            opened_ms=now_ms - round(1000 * description.age_seconds),
            idle_ms=round(1000 * description.idle_seconds),
        )


def _client_of(connection: ConnectionDescription) -> tuple[str | None, str | None]:
    """Return the name that the client has given itself, and its version."""
    if not connection.greeting:
        return None, None
    try:
        greeting = parse(pb.ApiVersionsRequest, connection.greeting)
    except CorruptData:
        return None, None
    return greeting.client_software_name, greeting.client_software_version


def _add_scans(context: ServerContext, response: pb.DescribeServerResponse, skip: int, items_max: int) -> None:
    for each in _page(response, context.scanners.describe(), skip, items_max):
        response.scans.add(
            table_id=each.bucket.table_id,
            partition_id=each.bucket.partition_id,
            bucket_id=each.bucket.bucket,
            log_offset=each.log_offset,
            pages=each.pages,
            age_ms=round(1000 * each.age_seconds),
            idle_ms=round(1000 * each.idle_seconds),
        )


def _add_table_snapshots(
    context: ServerContext, response: pb.DescribeServerResponse, skip: int, items_max: int
) -> None:
    snapshots = _page(response, context.table_snapshots.describe(), skip, items_max)
    response.table_snapshots.extend(map(table_snapshot_to_pb, snapshots))


def _add_transactions(context: ServerContext, response: pb.DescribeServerResponse, skip: int, items_max: int) -> None:
    """Add those under way in the order of their beginning, then those committed, the latest first."""
    transactions = context.transactions.describe()
    under_way = [each for each in transactions if each.state is not TransactionState.COMMITTED]
    committed = [each for each in reversed(transactions) if each.state is TransactionState.COMMITTED]
    response.transactions.extend(map(transaction_to_pb, _page(response, under_way + committed, skip, items_max)))


def _add_tiering(context: ServerContext, response: pb.DescribeServerResponse, skip: int, items_max: int) -> None:
    """Add lake-enabled tables in the order of their ids."""
    tiering = context.lake.tiering
    statuses = tiering.statuses(_page(response, sorted(tiering.table_ids), skip, items_max))
    for table_id, status in statuses.items():
        table = context.catalog.table_by_id(table_id)
        if table is None:  # dropped just now
            continue
        took = status.last_duration_seconds
        response.tiering.add(
            table_id=table_id,
            table_path=table_path_to_pb(table.info.path),
            state=status.state.value,
            epoch=status.epoch,
            freshness_ms=round(1000 * status.freshness_seconds),
            since_last_round_ms=round(1000 * status.since_last_round_seconds),
            since_ms=round(1000 * status.in_state_seconds),
            round_ms=None if took is None else round(1000 * took),
            failures=status.failures,
            file_bytes=status.file_bytes,
            rows=status.rows,
            untiered=context.untiered(table),
        )


def _page(response: pb.DescribeServerResponse, items: Sequence[T], skip: int, items_max: int) -> Sequence[T]:
    response.list_total = len(items)
    return items[skip : skip + items_max]


_NO_LIST, _CONNECTIONS = 0, 1
_LISTS: dict[int, Callable[[ServerContext, Any, int, int], None]] = {
    2: _add_scans,
    3: _add_table_snapshots,
    4: _add_transactions,
    5: _add_tiering,
}
"""The lists that threads make, by their numbers on the wire."""
