"""ScanKv: full scans of the key-value state, page by page (FIP-17). Errors travel in the answer, never as frames.

Rules, in the order in which they are checked: docs/design/0007-resumable-full-scans.md. Sessions: forebay.kv.scanner.
Rows are decoded to Arrow for those who ask for that (docs/protocol.md), and only then.
"""

from __future__ import annotations

from typing import Any

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.codec.casting.literals import is_floating
from forebay.codec.filters import BoundPredicate, leaves
from forebay.codec.kv.value_batch import ArrowRows
from forebay.codec.rows.row_format import RowFormat
from forebay.kv.engine import KvPage, KvRows
from forebay.kv.scanner import FIRST_CALL, ScanPage
from forebay.metadata.table import TableBucket
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import Buffer, partition_id_of
from forebay.server.context import Answer, ServerCall, ServerContext, put_error, serves
from forebay.server.handlers.request_filters import usable_filter
from forebay.server.metadata.catalog import CatalogTable, LiveTable

_COMPARISONS_MAX = 64
"""A filter that compares each row more often is ignored: a page would take seconds."""

_COMPRESSIONS = ("none", "lz4", "zstd")

_KEPT_MAX, _KEPT_BYTES_MAX = 64, 4096
"""How many ways of decoding are kept for the next page, of requests that are no longer than this."""

_kept: dict[tuple[int, bytes], tuple[CatalogTable, ArrowRows]] = {}


@serves(ApiKey.SCAN_KV)
async def scan_kv(context: ServerContext, call: ServerCall) -> Answer:
    """Open a scan, return its next page, or close it; or return a page of a table snapshot."""
    request = call.message
    response, payloads = pb.ScanKvResponse(), list[Buffer]()
    try:
        _check_shape(request)
        if request.HasField("table_snapshot_id"):
            await _snapshot_page(context, request, response, payloads)
        elif request.HasField("bucket_scan_req"):
            await _open(context, request, response, payloads)
        elif request.close_scanner:
            context.scanners.close(request.scanner_id)
            response.scanner_id = request.scanner_id
            response.has_more_results = False
        else:
            await _page(context, request, request.scanner_id, response, payloads)
    except Exception as e:  # noqa: BLE001 - errors of this API travel in its answer
        response, payloads = pb.ScanKvResponse(), []
        put_error(response, e)
    return Answer(response, payloads)


def _check_shape(request: Any) -> None:
    opens, continues = request.HasField("bucket_scan_req"), request.HasField("scanner_id")
    if opens and continues:
        raise _invalid("it names both a bucket to scan and a scanner to continue")
    if opens and request.close_scanner:
        raise _invalid("it both opens and closes a scanner")
    if not opens and not continues:
        raise _invalid("it names neither a bucket to scan nor a scanner")
    of_snapshot = request.HasField("table_snapshot_id")
    if of_snapshot and (not opens or request.close_scanner or request.HasField("call_seq_id")):
        raise _invalid("a page of a table snapshot is requested by its bucket and position alone")
    if request.HasField("resume_after") and not of_snapshot:
        raise _invalid("only a table snapshot can be resumed after a position")
    if request.HasField("as_arrow") and not opens:
        raise _invalid("a scan gives its rows in Arrow if that was asked for when it was opened")
    if not request.close_scanner and not (request.HasField("batch_size_bytes") and request.batch_size_bytes > 0):
        raise _invalid("its batch_size_bytes is missing or not positive")


def _invalid(reason: str) -> InvalidRequest:
    return InvalidRequest(f"the scan request is invalid: {reason}", ErrorCode.INVALID_SCAN_REQUEST)


async def _open(context: ServerContext, request: Any, response: Any, payloads: list[Buffer]) -> None:
    target = request.bucket_scan_req
    bucket = TableBucket(target.table_id, target.bucket_id, partition_id_of(target))
    limit = target.limit if target.HasField("limit") else None
    async with context.using(bucket) as replica:
        as_arrow = None
        if request.HasField("as_arrow"):
            as_arrow = await context.in_io(_arrow_rows, request.as_arrow, replica.table)
        session, log_offset = await context.in_io(context.scanners.open, bucket, replica.kv.snapshot, limit, as_arrow)
    response.log_offset = log_offset
    if request.with_log_epoch:
        response.log_epoch = context.epochs.epoch_at(bucket, log_offset)
    if session is None:
        response.has_more_results = False
        return
    await _page(context, request, session.scanner_id, response, payloads)


async def _page(context: ServerContext, request: Any, scanner_id: bytes, response: Any, payloads: list[Buffer]) -> None:
    call = request.call_seq_id if request.HasField("call_seq_id") else None
    if request.HasField("bucket_scan_req") and call != FIRST_CALL:
        context.scanners.close(scanner_id)
        raise _invalid(f"Out-of-order call: a scan begins with call {FIRST_CALL}, not {call}")
    page: ScanPage = await context.in_io(context.scanners.page, scanner_id, call, request.batch_size_bytes)
    response.scanner_id = scanner_id
    response.has_more_results = page.has_more
    if page.arrow_rows is not None:
        response.arrow_rows = page.arrow_rows
    response.records = b""
    payloads.append(page.records)


def _arrow_rows(request: pb.PbArrowRows, table: LiveTable) -> ArrowRows:
    """Return how rows are decoded to Arrow for a request; cached for later pages until the table is altered."""
    current, key = table.current, (table.info.table_id, request.SerializeToString())
    cached = _kept.get(key)
    if cached is not None and cached[0] is current:
        return cached[1]
    arrow_rows = _new_arrow_rows(request, table)
    if len(key[1]) <= _KEPT_BYTES_MAX:
        if len(_kept) >= _KEPT_MAX:
            _kept.clear()
        _kept[key] = current, arrow_rows
    return arrow_rows


def _new_arrow_rows(request: pb.PbArrowRows, table: LiveTable) -> ArrowRows:
    if not 0 <= request.compression < len(_COMPRESSIONS):
        raise _invalid(f"compression {request.compression} does not exist; there are 0 to {len(_COMPRESSIONS) - 1}")
    bound = None
    if request.HasField("filter_predicate"):
        bound = usable_filter(table, request.filter_predicate, request.schema_id)
        bound = None if bound is None or _comparisons(bound) > _COMPARISONS_MAX else bound
    return ArrowRows(
        table.schema_by_id(request.schema_id),
        request.projected_fields,
        RowFormat(table.info.descriptor.kv_format.value),
        table.schema_by_id,
        bound,
        _COMPRESSIONS[request.compression],
    )


def _comparisons(bound: BoundPredicate) -> int:
    """How often a filter compares each row. Lists of numbers and texts are looked up at once."""
    return sum(len(leaf.literals) if is_floating(leaf.column.data_type) else 1 for leaf in leaves(bound))


async def _snapshot_page(context: ServerContext, request: Any, response: Any, payloads: list[Buffer]) -> None:
    """Return a page of a table snapshot, which has no session and so no call number."""
    page, records, arrow_rows = await context.in_io(_read_page, context, request)
    response.has_more_results = page.has_more
    if page.position is not None:
        response.position = page.position
    if arrow_rows is not None:
        response.arrow_rows = arrow_rows
    response.records = b""
    payloads.append(records)


def _read_page(context: ServerContext, request: Any) -> tuple[KvPage | KvRows, Buffer, int | None]:
    """A page of a table snapshot, its rows as they are sent, and how many these are if they are in Arrow."""
    target, snapshots = request.bucket_scan_req, context.table_snapshots
    bucket = TableBucket(target.table_id, target.bucket_id, partition_id_of(target))
    rows_max = target.limit if target.HasField("limit") and target.limit > 0 else None
    after = request.resume_after if request.HasField("resume_after") else None
    place = request.table_snapshot_id, bucket, after
    table = context.catalog.table_by_id(bucket.table_id) if request.HasField("as_arrow") else None
    if table is None:
        page = snapshots.page(*place, request.batch_size_bytes, rows_max)
        return page, page.records, None
    as_arrow = _arrow_rows(request.as_arrow, table)
    bytes_max, most = as_arrow.limits(min(request.batch_size_bytes, snapshots.limits.page_bytes_max))
    page_rows = snapshots.rows(*place, bytes_max, most if rows_max is None else min(most, rows_max))
    return page_rows, *as_arrow.message(page_rows.schema_ids, page_rows.rows)
