"""The overview: rates, times of requests, disk, memory, and the lag of lakes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from forebay.base.counting import quantile
from forebay.base.errors import UnsupportedOperation
from forebay.client.admin.server_description import ServerDescription, ServerLoad, TieringInfo
from forebay.console.session import Console
from forebay.console.tables import masked

_SAMPLE_SECONDS = 1.8
_RATE_SECONDS = 10.0
"""Rates are those of about so long."""

_SLOWEST_MAX = 12
_WORST_MAX = 5
_LAG_SECONDS = 10.0
_LAKES_PAGE, _LAKES_MAX = 1000, 5000

NO_RATES = "this cluster does not report its rates, times of requests, disk and memory, as Forebay's servers do"


def overview(console: Console) -> dict[str, Any]:
    """The server as of now, and its rates since this console was first asked, at most for some minutes."""
    admin = console.conn.admin
    missing: list[str] = []
    try:
        health = admin.cluster_health()
        healthy = {
            "status": health.status.name.lower(),
            "buckets": health.leader_replicas,
            "serving": health.active_leader_replicas,
        }
    except UnsupportedOperation:
        healthy = None
        missing.append("this cluster does not report its health")
    nodes = console.remembered("nodes", 5.0, admin.server_nodes)
    content: dict[str, Any] = {
        "health": healthy,
        "nodes": [{"role": n.role.name.lower(), "id": n.node_id, "address": f"{n.host}:{n.port}"} for n in nodes],
        "databases": [
            {"name": each.name, "tables": each.table_count}
            for each in console.remembered("summaries", 5.0, admin.database_summaries)
        ],
    }
    try:
        description = console.sampled(_SAMPLE_SECONDS, admin.describe_server)
    except UnsupportedOperation:
        nothing: dict[str, Any] = {"server": None, "rates": None, "apis": [], "history": None, "lag": None}
        return content | nothing | {"missing": [*missing, NO_RATES]}
    samples = console.samples()
    recent = [s for s in samples if (description.now - s.now).total_seconds() >= _RATE_SECONDS]
    load = description.since(recent[-1] if recent else samples[0] if len(samples) > 1 else None)
    return content | {
        "server": _server(description),
        "rates": _rates(load),
        "apis": _apis(load),
        "history": _history(samples),
        "lag": console.remembered("lag", _LAG_SECONDS, lambda: _lag(console)),
        "missing": missing,
    }


def _server(d: ServerDescription) -> dict[str, Any]:
    names = (
        "version", "tables", "buckets", "open_buckets", "offline_buckets", "disk_bytes", "disk_free_bytes",
        "accepts_writes", "resident_bytes", "request_bytes", "request_bytes_max", "answer_bytes", "answer_bytes_max",
        "queued_reads", "queued_writes", "waiting_fetches", "connections", "refused_connections", "failed_logins",
        "scans", "table_snapshots", "open_transactions", "decided_transactions", "staged_bytes", "tiered_tables",
        "pending_tables", "tiering_tables",
    )  # fmt: skip
    damaged = [
        {"database": each.path.database, "table": each.path.table, "bucket": str(each.bucket), "message": each.message}
        for each in d.damaged
    ]
    counters = {name: getattr(d, name) for name in names}
    times = {"started": d.started.isoformat(), "now": d.now.isoformat()}
    return {**times, "damaged": damaged, "standby": _standby(d), **counters}


def _standby(d: ServerDescription) -> dict[str, Any] | None:
    """As of when the reads of a standby are, and for how many seconds it has not seen the end of the journal."""
    if d.standby_as_of is None or d.staleness is None:
        return None
    return {"as_of": d.standby_as_of.isoformat(), "staleness": round(d.staleness.total_seconds(), 3)}


def _rates(load: ServerLoad) -> dict[str, Any]:
    return {
        "seconds": round(load.seconds, 3),
        "requests": round(load.requests, 2),
        "errors": round(load.errors, 2),
        "records_in": round(load.records_in, 2),
        "bytes_in": round(load.bytes_in),
        "bytes_out": round(load.bytes_out),
        "p50": _quantile(load, 0.5),
        "p99": _quantile(load, 0.99),
        "sync_p99": load.syncs.quantile(0.99),
    }


def _quantile(load: ServerLoad, share: float) -> float | None:
    """Of all requests but those that wait for rows to be written."""
    times = [each.times for name, each in load.apis.items() if not name.startswith("fetch") and each.times.count]
    if not times:
        return None
    counts = [sum(column) for column in zip(*(each.counts for each in times), strict=True)]
    return quantile(share, counts, times[0].bounds)


def _apis(load: ServerLoad) -> list[dict[str, Any]]:
    """The APIs that were asked, those that took the most time first."""
    lines: list[dict[str, Any]] = [
        {
            "name": name,
            "requests": round(each.times.count / load.seconds, 2) if load.seconds > 0 else 0.0,
            "p50": each.times.quantile(0.5),
            "p99": each.times.quantile(0.99),
            "bytes_in": round(each.bytes_in / load.seconds) if load.seconds > 0 else 0,
            "errors": each.errors,
            "share": each.times.seconds,
        }
        for name, each in load.apis.items()
        if each.times.count
    ]
    return sorted(lines, key=lambda each: (-each["share"], each["name"]))[:_SLOWEST_MAX]


def _history(samples: list[ServerDescription]) -> dict[str, Any]:
    loads = [after.since(before) for before, after in pairwise(samples)]
    return {
        "times": [each.now.isoformat() for each in samples[1:]],
        "requests": [round(load.requests, 2) for load in loads],
        "records_in": [round(load.records_in, 2) for load in loads],
        "bytes_in": [round(load.bytes_in) for load in loads],
        "bytes_out": [round(load.bytes_out) for load in loads],
        "p99": [_quantile(load, 0.99) for load in loads],
    }


def _lag(console: Console) -> dict[str, Any]:
    """The records that lakes do not have, as the coordinator knows them."""
    admin, infos = console.conn.admin, list[TieringInfo]()
    total = 1
    while len(infos) < min(total, _LAKES_MAX):
        page = admin.describe_server("tiering", skip=len(infos), limit=_LAKES_PAGE)
        total = page.total or 0
        if not page.items:
            break
        infos += page.items
    worst = sorted(infos, key=lambda each: -(each.untiered or 0))[:_WORST_MAX]
    return {
        "tables": total,
        "records": sum(each.untiered or 0 for each in infos),
        "worst": [
            {"database": each.path.database, "table": each.path.table, "records": each.untiered, "state": each.state}
            for each in worst
            if each.untiered
        ],
    }


def settings(console: Console) -> dict[str, Any]:
    """The cluster's settings. What may be secret is hidden."""
    entries = console.conn.admin.describe_configs()
    return {
        "items": [
            {"key": each.key, "value": each.value and masked(each.key, each.value), "source": each.source}
            for each in sorted(entries, key=lambda entry: entry.key)
        ]
    }
