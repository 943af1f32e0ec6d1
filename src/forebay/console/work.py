"""Work under way: rounds, tasks, transactions, scans, table snapshots and their leases, clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.client.admin.server_description import ConnectionInfo, ScanInfo, ServerDescription, ServerList, TieringInfo
from forebay.client.results import TableSnapshotInfo, TransactionInfo
from forebay.console.lakes import task_line
from forebay.console.session import Console, first_of, iso_text, token_after
from forebay.metadata.table import TablePath

_SECONDS = 1.0
_SHOWN = 100

NOT_DESCRIBED = (
    "this cluster does not tell what its servers do: transactions, scans, table snapshots and clients are unknown"
)
ELSEWHERE = (
    "compactions are run by their clients, not by the server: those of other programs are seen when they have "
    "committed, in the snapshots of the lake"
)


def jobs(console: Console) -> dict[str, Any]:
    """Return the work under way: rounds of tiering, tasks of this console, transactions."""
    tasks = [task_line(task) for task in console.tasks.all()]
    try:
        transactions = _described(console, "transactions", 0, _SHOWN)
        tiered = _described(console, "tiering", 0, 1000)
    except UnsupportedOperation:
        return {
            "rounds": None, "rounds_waiting": None, "tasks": tasks, "transactions": None, "transactions_open": None,
            "missing": [NOT_DESCRIBED, ELSEWHERE],
        }  # fmt: skip
    rounds = [info for info in tiered.items if info.state == "Tiering"]
    waiting = [info for info in tiered.items if info.state == "Pending"]
    return {
        "rounds": [_round(info) for info in rounds[:_SHOWN]],
        "rounds_waiting": [_round(info) for info in waiting[:_SHOWN]],
        "rounds_tiering": tiered.tiering_tables,
        "rounds_pending": tiered.pending_tables,
        "tasks": tasks,
        "transactions": [_transaction(each) for each in transactions.items if each.state != "committed"],
        "transactions_open": transactions.open_transactions + transactions.decided_transactions,
        "staged_bytes": transactions.staged_bytes,
        "missing": [ELSEWHERE],
    }


def applications(console: Console, *, page_token: str | None = None, limit: int = 100) -> dict[str, Any]:
    """A page of the applications that write by transactions, streaming queries among them: what they committed last."""
    return _page(console, "transactions", lambda each, _: _transaction(each), page_token, limit)


def connections(console: Console, *, page_token: str | None = None, limit: int = 100) -> dict[str, Any]:
    """A page of the connections of clients, the oldest first."""
    return _page(console, "connections", lambda each, _: _connection(each), page_token, limit)


def scans(console: Console, *, page_token: str | None = None, limit: int = 100) -> dict[str, Any]:
    """A page of the open scans of buckets, the oldest first."""
    return _page(console, "scans", _scan, page_token, limit)


def snapshots(console: Console, *, page_token: str | None = None, limit: int = 100) -> dict[str, Any]:
    """A page of the open table snapshots and their leases, the oldest first."""
    return _page(console, "table_snapshots", _snapshot, page_token, limit)


def work(console: Console) -> dict[str, Any]:
    """How many scans, snapshots, connections and requests there are now."""
    try:
        description = _described(console, None, 0, 0)
    except UnsupportedOperation:
        return {"missing": [NOT_DESCRIBED]}
    return {
        "connections": description.connections,
        "scans": description.scans,
        "snapshots": description.table_snapshots,
        "transactions": description.open_transactions + description.decided_transactions,
        "waiting_fetches": description.waiting_fetches,
        "queued_reads": description.queued_reads,
        "queued_writes": description.queued_writes,
        "request_bytes": description.request_bytes,
        "request_bytes_max": description.request_bytes_max,
        "answer_bytes": description.answer_bytes,
        "answer_bytes_max": description.answer_bytes_max,
        "refused_connections": description.refused_connections,
        "failed_logins": description.failed_logins,
        "missing": [],
    }


# ---- changes --------------------------------------------------------------------------------------------------------


def abort_transaction(console: Console, *, transaction_id: int) -> dict[str, Any]:
    """End an open transaction, and drop what it has staged."""
    if not 0 <= transaction_id < 1 << 63:
        raise InvalidRequest(f"transaction_id={transaction_id} is not the id of a transaction")
    console.conn.admin.abort_transaction(transaction_id)
    return {"transaction_id": transaction_id}


def release_snapshot(console: Console, *, snapshot_id: str) -> dict[str, Any]:
    """End a table snapshot: scans of it fail."""
    console.conn.admin.release_table_snapshot(snapshot_id)
    return {"snapshot_id": snapshot_id}


def cancel_task(console: Console, *, task_id: str) -> dict[str, Any]:
    """Ask a task of this console to end."""
    return {"task": task_line(console.tasks.cancel(task_id))}


# ---- lines ----------------------------------------------------------------------------------------------------------


def _described(console: Console, listed: ServerList | None, skip: int, limit: int) -> ServerDescription:
    return console.remembered(
        ("described", listed, skip, limit),
        _SECONDS,
        lambda: console.conn.admin.describe_server(listed, skip=skip, limit=limit),
    )


def _page(
    console: Console,
    listed: ServerList,
    line: Callable[[Any, Mapping[int, TablePath]], dict[str, Any]],
    page_token: str | None,
    limit: int,
) -> dict[str, Any]:
    first = first_of(page_token, limit)
    try:
        description = _described(console, listed, first, limit)
    except UnsupportedOperation:
        return {"items": [], "next": None, "total": None, "missing": [NOT_DESCRIBED]}
    following = token_after(first, limit, description.total or 0)
    items = [line(item, description.paths) for item in description.items]
    return {"items": items, "next": following, "total": description.total, "missing": []}


def _round(info: TieringInfo) -> dict[str, Any]:
    return {
        "database": info.path.database,
        "table": info.path.table,
        "state": info.state,
        "state_seconds": info.since.total_seconds(),
        "round_seconds": None if info.round_time is None else info.round_time.total_seconds(),
        "lag_records": info.untiered,
        "failures": info.failures,
    }


def _transaction(info: TransactionInfo) -> dict[str, Any]:
    return {
        "transaction_id": info.transaction_id,
        "application": info.application,
        "version": info.version,
        "state": info.state,
        "since": iso_text(info.since),
        "stages": info.stages,
        "staged_bytes": info.staged_bytes,
    }


def _connection(info: ConnectionInfo) -> dict[str, Any]:
    return {
        "address": info.address,
        "user": info.user,
        "client": info.client,
        "client_version": info.client_version,
        "role": info.role,
        "listener": info.listener,
        "open_requests": info.open_requests,
        "open_bytes": info.open_bytes,
        "unsent_bytes": info.unsent_bytes,
        "opened": iso_text(info.opened),
        "idle_seconds": info.idle.total_seconds(),
    }


def _table_name(paths: Mapping[int, TablePath], table_id: int) -> dict[str, Any]:
    path = paths.get(table_id)
    return {
        "table_id": table_id,
        "database": None if path is None else path.database,
        "table": None if path is None else path.table,
    }


def _scan(info: ScanInfo, paths: Mapping[int, TablePath]) -> dict[str, Any]:
    return _table_name(paths, info.bucket.table_id) | {
        "bucket": info.bucket.bucket,
        "partition_id": info.bucket.partition_id,
        "log_offset": info.log_offset,
        "pages": info.pages,
        "age_seconds": info.age.total_seconds(),
        "idle_seconds": info.idle.total_seconds(),
    }


def _snapshot(info: TableSnapshotInfo, paths: Mapping[int, TablePath]) -> dict[str, Any]:
    return _table_name(paths, info.table_id) | {
        "snapshot_id": info.snapshot_id,
        "name": info.name,
        "age_seconds": info.age.total_seconds(),
        "lease_left_seconds": info.lease_left.total_seconds(),
        "buckets": info.bucket_count,
        "pages": info.pages,
        "read_bytes": info.read_bytes,
    }
