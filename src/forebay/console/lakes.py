"""Lakes: how far they are behind their streams, and the health of their tables.

A lake table is that of a live table, or one in a lake that the console was started with (`lake`: its name). Ids of
snapshots are text: those of Iceberg are numbers that a browser cannot represent.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from forebay.base.errors import AccessDenied, ForebayError, InvalidRequest, NotFound, Unavailable, UnsupportedOperation
from forebay.base.progress import OnProgress
from forebay.base.quantity import parse_span
from forebay.client.admin.server_description import TieringInfo
from forebay.console.background import Task
from forebay.console.session import Console, first_of, iso_text, page_of, time_text, token_after
from forebay.console.tables import masked
from forebay.lakes.health import FileColumns, LakeHealth, LakeSnapshotInfo, PlannedRewrite
from forebay.lakes.table_health import iceberg_health, paimon_health
from forebay.metadata.table import TablePath
from forebay.paimon import Catalog
from forebay.tiering.lag import table_lag
from forebay.tiering.now import lake_tables
from forebay.tiering.repair import ROLLED_BACK, lake_state

_TIERING_SECONDS = 5.0
_LAG_SECONDS = 5.0
_NAMES_SECONDS = 30.0
_HEALTH_SECONDS = 2.0
_PLAN_SECONDS = 60.0
_CATALOG_SECONDS = 300.0

_TIERING_PAGE = 1000
_BUCKETS_MAX = 64
"""Buckets of a table whose oldest record outside of the lake is looked up, to know the lag in seconds."""

_LARGEST = 20
"""Partitions and buckets that a summary shows."""

ORPHANS_AGE = "1 d"
NO_TIERING = (
    "this cluster does not tell the state of tiering: who tiers a table, the last round, and failures are unknown"
)

_ORDERS: dict[str, Callable[[TieringInfo], Any]] = {
    "behind": lambda info: (-(info.untiered or 0), str(info.path)),
    "last": lambda info: (-info.since_last_round, str(info.path)),
    "failures": lambda info: (-info.failures, -(info.untiered or 0), str(info.path)),
    "name": lambda info: str(info.path),
}


# ---- tiering and lag ------------------------------------------------------------------------------------------------


def tiering(
    console: Console,
    *,
    search: str | None = None,
    sort: str = "behind",
    page_token: str | None = None,
    limit: int = 50,
) -> dict[str, Any]:
    """A page of the tables with a lake: what waits, their last rounds, and how far they are behind.

    `sort`: "behind" (most records first), "last" (the longest since a round first), "failures", or "name".
    """
    if sort not in _ORDERS:
        raise InvalidRequest(f"sort={sort!r} is none of {', '.join(_ORDERS)}")
    words = (search or "").lower().split()
    try:
        infos = console.remembered("tiering", _TIERING_SECONDS, lambda: _all_tiering(console))
    except UnsupportedOperation:
        return _lag_alone(console, words, page_token, limit)
    matches = [info for info in infos if all(word in str(info.path).lower() for word in words)]
    page, following = page_of(sorted(matches, key=_ORDERS[sort]), page_token, limit)
    lags = console.each(partial(_lag, console), [info.path if info.untiered != 0 else None for info in page])
    return {
        "items": [_tiering_line(info) | lag for info, lag in zip(page, lags, strict=True)],
        "next": following,
        "total": len(matches),
        "summary": {
            "tables": len(infos),
            "tiering": sum(info.state == "Tiering" for info in infos),
            "waiting": sum(info.state == "Pending" for info in infos),
            "failures": sum(info.failures for info in infos),
            "untiered": sum(info.untiered or 0 for info in infos),
            "late": sum(map(_is_late, infos)),
        },
        "missing": [],
    }


def _all_tiering(console: Console) -> list[TieringInfo]:
    infos: list[TieringInfo] = []
    while True:
        page = console.conn.admin.describe_server("tiering", skip=len(infos), limit=_TIERING_PAGE)
        infos += page.items
        if not page.items or len(infos) >= (page.total or 0):
            return infos


def _is_late(info: TieringInfo) -> bool:
    """Whether a table with records that the lake lacks has had no round for three times its freshness."""
    return bool(info.untiered) and info.since_last_round > max(3 * info.freshness, dt.timedelta(minutes=1))


def _tiering_line(info: TieringInfo) -> dict[str, Any]:
    return {
        "database": info.path.database,
        "table": info.path.table,
        "state": info.state,
        "state_seconds": info.since.total_seconds(),
        "freshness_seconds": info.freshness.total_seconds(),
        "last_round_seconds": info.since_last_round.total_seconds(),
        "round_seconds": None if info.round_time is None else info.round_time.total_seconds(),
        "failures": info.failures,
        "lag_records": info.untiered,
        "lake_bytes": info.lake_bytes,
        "lake_rows": info.lake_rows,
        "is_late": _is_late(info),
    }


def _lag(console: Console, path: TablePath | None) -> dict[str, Any]:
    """The lag in seconds of a table; of None, which is not behind, it is 0."""
    if path is None:
        return {"lag_seconds": 0.0}

    def measured() -> dict[str, Any]:
        try:
            lag = table_lag(console.conn, path, buckets_max=_BUCKETS_MAX)
        except (AccessDenied, NotFound, Unavailable) as e:  # of this table alone: dropped meanwhile, no leader, ...
            return {"lag_seconds": None, "lag_error": e.message}
        snapshot = None if lag.snapshot_id is None else str(lag.snapshot_id)
        return {"lag_seconds": lag.seconds, "lag_records": lag.records, "lake_snapshot": snapshot}

    return console.remembered(("lag", path), _LAG_SECONDS, measured)


def _lag_alone(console: Console, words: Sequence[str], page_token: str | None, limit: int) -> dict[str, Any]:
    """Return the rounds, as `tiering` does, for a cluster that does not report them."""
    paths = console.remembered("lake tables", _NAMES_SECONDS, lambda: lake_tables(console.conn))
    matches = [path for path in paths if all(word in str(path).lower() for word in words)]
    page, following = page_of(matches, page_token, limit)
    unknown = dict.fromkeys(("state", "last_round_seconds", "round_seconds", "failures", "lake_bytes", "lake_rows"))
    lines = [
        {"database": path.database, "table": path.table, **unknown, "lag_records": None, **lag}
        for path, lag in zip(page, console.each(partial(_lag, console), page), strict=True)
    ]
    return {"items": lines, "next": following, "total": len(matches), "summary": None, "missing": [NO_TIERING]}


# ---- which table ----------------------------------------------------------------------------------------------------


def lakes(
    console: Console, *, search: str | None = None, page_token: str | None = None, limit: int = 100
) -> dict[str, Any]:
    """A page of all lake tables: those of live tables (`lake` is null), then those of the lakes of this console."""
    words = (search or "").lower().split()
    tables, failures = console.remembered("all lakes", _NAMES_SECONDS, lambda: _all_lake_tables(console))
    matches = [each for each in tables if all(word in f"{each[0] or ''} {each[1]}".lower() for word in words)]
    page, following = page_of(matches, page_token, limit)
    items = [{"lake": lake, "database": path.database, "table": path.table} for lake, path in page]
    return {"items": items, "next": following, "total": len(matches), "missing": failures}


def _all_lake_tables(console: Console) -> tuple[list[tuple[str | None, TablePath]], list[str]]:
    """The tables, and which lakes could not be listed."""
    try:
        live = [info.path for info in _all_tiering(console)]
    except UnsupportedOperation:
        live = lake_tables(console.conn)
    tables: list[tuple[str | None, TablePath]] = [(None, path) for path in sorted(live)]
    failures = []
    for name, lake in console.warehouses.items():
        try:
            tables += [(name, path) for path in _tables_in(lake)]
        except ForebayError as e:  # the others are shown
            failures.append(f"lake {name!r} cannot be listed: {e.message}")
    return tables, failures


def _tables_in(lake: Any) -> list[TablePath]:
    if not isinstance(lake, Catalog):
        return list(lake.list_tables())
    catalog = lake.renewed()
    databases = catalog.list_databases() if catalog.warehouse_exists() else []
    return [TablePath(d, t) for d in databases for t in catalog.list_tables(d)]


def _key(database: str, table: str, lake: str | None) -> tuple[str, str, str, str]:
    return "health", lake or "", database, table


def _health(console: Console, database: str, table: str, lake: str | None) -> LakeHealth:
    """The table's health. Raises `NotFound`, `AccessDenied`, `InvalidRequest` for a table without a lake."""

    def open_health() -> LakeHealth:
        if lake is None:
            return _of_live_table(console, TablePath(database, table))
        if lake not in console.warehouses:
            lake_names = ", ".join(console.warehouses) or "none: start the console with --warehouse"
            raise NotFound(f"this console has no lake {lake!r}; there are {lake_names}")
        return _in(console.warehouses[lake], f"{database}.{table}")

    return console.remembered(_key(database, table, lake), _HEALTH_SECONDS, open_health)


def _of_live_table(console: Console, path: TablePath) -> LakeHealth:
    info = console.conn.admin.table_info(path)
    lake_format = info.descriptor.lake_format
    if not info.lake_enabled or lake_format is None:
        raise InvalidRequest(f"table {path} has no lake: 'table.datalake.enabled' is not true for it")
    options = console.conn.settings.lake_options_of(info)
    if lake_format == "paimon":
        key = "catalog", frozenset(options.items())
        return _in(console.remembered(key, _CATALOG_SECONDS, lambda: Catalog.open(options)), str(path))
    if lake_format == "iceberg":
        return iceberg_health(options, str(path))
    raise UnsupportedOperation(
        f"the console shows lakes of formats paimon and iceberg; table {path} has {lake_format!r}"
    )


def _in(lake: Any, path: str) -> LakeHealth:
    return paimon_health(lake, path) if isinstance(lake, Catalog) else iceberg_health(lake.options, path)


# ---- one table ------------------------------------------------------------------------------------------------------


def lake(console: Console, database: str, table: str, *, lake: str | None = None) -> dict[str, Any]:
    """A lake table: its current snapshot, and its files by size, level and partition (the largest ones)."""
    health = _health(console, database, table, lake)
    snapshot, files = health.latest(), _files(console, health, database, table, lake)
    partitions = [] if files is None else files.by_partition()
    return {
        "format": health.format,
        "location": masked("location", health.location),
        "partition_keys": list(health.partition_keys),
        "options": {key: masked(key, value) for key, value in health.options.items()},
        "snapshot": None if snapshot is None else _snapshot(snapshot),
        "files": None
        if files is None
        else {
            "count": len(files),
            "bytes": int(files.sizes.sum()),
            "rows": int(files.rows.sum()),
            "with_deletes": int((files.deletes > 0).sum()),
            "by_size": [{"up_to": up, "files": count, "bytes": size} for up, count, size in files.by_size()],
            "by_level": [
                {"level": level, "files": count, "bytes": size, "rows": rows}
                for level, count, size, rows in files.by_level()
            ],
        },
        "partitions": [_partition(each) for each in partitions[:_LARGEST]],
        "partition_count": len(partitions),
        "readers": [{"name": name, "next_snapshot": str(next_id)} for name, next_id in health.readers().items()],
        "warnings": _warnings(console, TablePath(database, table)) if lake is None else [],
    }


def _warnings(console: Console, path: TablePath) -> list[str]:
    """Return what is wrong between a live table and its lake table: that others have rolled it back, which rows are
    lost, and what can be done.
    """

    def describe() -> list[str]:
        try:
            state = lake_state(console.conn, path)
        except (AccessDenied, NotFound, Unavailable) as e:  # dropped meanwhile, no leader, ...
            return [e.message]
        if state.state != ROLLED_BACK:
            return []
        repair = [f"Decide by: forebay tiering repair {path}"] if state.needs_decision else []
        return [*str(state).splitlines(), *repair]

    warnings: list[str] = console.remembered(("warnings", path), _HEALTH_SECONDS, describe)
    return warnings


def _files(console: Console, health: LakeHealth, database: str, table: str, lake: str | None) -> FileColumns | None:
    """The files of the current snapshot, kept until there is another one."""
    snapshot = health.latest()
    if snapshot is None:
        return None
    key = *_key(database, table, lake), health.location, snapshot.snapshot_id, snapshot.at
    return console.read_once(key, health.files)


def _partition(values: tuple[str, int, int, int, int]) -> dict[str, Any]:
    return dict(zip(("partition", "buckets", "files", "bytes", "rows"), values, strict=True))


def lake_files(
    console: Console,
    database: str,
    table: str,
    *,
    lake: str | None = None,
    sort: str = "size",
    partition: str | None = None,
    page_token: str | None = None,
    limit: int = 100,
) -> dict[str, Any]:
    """A page of the data files of the current snapshot. `sort`: size, -size, rows, -rows or partition."""
    health = _health(console, database, table, lake)
    files = _files(console, health, database, table, lake)
    if files is None:
        return {"items": [], "next": None, "total": 0}
    first, total = first_of(page_token, limit), files.count(partition)
    following = token_after(first, limit, total)
    at = files.page(first, limit, sort, partition)
    root = health.location.rstrip("/") + "/"
    items = [
        {
            "path": file.path.removeprefix(root),
            "partition": files.names[int(files.partitions[i])],
            "bucket": int(files.buckets[i]),
            "level": None if files.levels is None else int(files.levels[i]),
            "bytes": int(files.sizes[i]),
            "rows": int(files.rows[i]),
            "deletes": int(files.deletes[i]),
            "created": iso_text(file.created),
        }
        for i, file in zip(at.tolist(), files.describe(at), strict=True)
    ]
    return {"items": items, "next": following, "total": total}


def lake_partitions(
    console: Console,
    database: str,
    table: str,
    *,
    lake: str | None = None,
    page_token: str | None = None,
    limit: int = 100,
) -> dict[str, Any]:
    """A page of the partitions, those of most files first."""
    files = _files(console, _health(console, database, table, lake), database, table, lake)
    partitions = [] if files is None else files.by_partition()
    page, following = page_of(partitions, page_token, limit)
    return {"items": [_partition(each) for each in page], "next": following, "total": len(partitions)}


def lake_snapshots(
    console: Console,
    database: str,
    table: str,
    *,
    lake: str | None = None,
    page_token: str | None = None,
    limit: int = 100,
) -> dict[str, Any]:
    """A page of the snapshots, the newest first, with the tags on them."""
    health = _health(console, database, table, lake)
    first = first_of(page_token, limit)
    snapshots, total = health.snapshots(first, limit)
    following = token_after(first, limit, total)
    tagged: dict[int, list[str]] = {}
    for tag in health.tags():
        tagged.setdefault(tag.snapshot_id, []).append(tag.name)
    items = [_snapshot(each) | {"tags": tagged.get(each.snapshot_id, [])} for each in snapshots]
    return {"items": items, "next": following, "total": total}


def _snapshot(snapshot: LakeSnapshotInfo) -> dict[str, Any]:
    return {
        "snapshot_id": str(snapshot.snapshot_id),
        "at": iso_text(snapshot.at),
        "kind": snapshot.kind,
        "user": snapshot.user,
        "rows": snapshot.rows,
        "added_rows": snapshot.added_rows,
        "schema_id": snapshot.schema_id,
    }


def lake_tags(
    console: Console,
    database: str,
    table: str,
    *,
    lake: str | None = None,
    page_token: str | None = None,
    limit: int = 100,
) -> dict[str, Any]:
    """A page of the tags."""
    tags = _health(console, database, table, lake).tags()
    page, following = page_of(tags, page_token, limit)
    items = [
        {
            "name": tag.name,
            "snapshot_id": str(tag.snapshot_id),
            "at": iso_text(tag.at),
            "created": iso_text(tag.created),
            "retained_seconds": None if tag.retained is None else tag.retained.total_seconds(),
            "rows": tag.rows,
        }
        for tag in page
    ]
    return {"items": items, "next": following, "total": len(tags)}


def lake_compaction(
    console: Console, database: str, table: str, *, lake: str | None = None, full: bool = False
) -> dict[str, Any]:
    """Return what a compaction would rewrite now: totals, and the buckets with most to do."""
    health = _health(console, database, table, lake)
    snapshot = health.latest()
    if snapshot is None:
        return {"tasks": 0, "files": 0, "bytes": 0, "rows": 0, "items": []}
    key = "planned", *_key(database, table, lake), snapshot.snapshot_id, snapshot.at, full
    plan: list[PlannedRewrite] = console.remembered(key, _PLAN_SECONDS, lambda: health.planned(full=full))
    largest = sorted(plan, key=lambda each: -each.files)[:_LARGEST]
    return {
        "tasks": len(plan),
        "files": sum(each.files for each in plan),
        "bytes": sum(each.size for each in plan),
        "rows": sum(each.rows for each in plan),
        "items": [
            {
                "partition": each.partition,
                "bucket": each.bucket,
                "files": each.files,
                "bytes": each.size,
                "rows": each.rows,
            }
            for each in largest
        ],
    }


# ---- what takes long ------------------------------------------------------------------------------------------------


def lake_orphans(console: Console, database: str, table: str, *, lake: str | None = None) -> dict[str, Any]:
    """The latest search for orphans of a table that was started in this console; null before the first one."""
    task = console.tasks.latest("orphans", _subject(database, table, lake))
    return {"task": None if task is None else task_line(task)}


def find_orphans(
    console: Console, database: str, table: str, *, lake: str | None = None, older_than: str = ORPHANS_AGE
) -> dict[str, Any]:
    """Start a search for files that nothing refers to, last modified before a duration ago. It deletes nothing."""
    age = parse_span(older_than)
    health = _health(console, database, table, lake)
    root = health.location.rstrip("/") + "/"

    def search(progress: OnProgress) -> dict[str, Any]:
        orphans = health.orphans(age, progress)
        paths = [path.removeprefix(root) for path in orphans.paths]
        return {"files": orphans.count, "bytes": orphans.size, "paths": paths, "older_than": older_than}

    return {"task": task_line(console.tasks.start("orphans", _subject(database, table, lake), search))}


def compact(
    console: Console, database: str, table: str, *, lake: str | None = None, full: bool = False
) -> dict[str, Any]:
    """Start a compaction of what is due, or with `full` of all that can be compacted."""
    health = _health(console, database, table, lake)

    def run(progress: OnProgress) -> dict[str, Any]:
        snapshot_id = health.compact(full=full, progress=progress)
        console.forget(_key(database, table, lake))
        return {"snapshot_id": None if snapshot_id is None else str(snapshot_id)}

    return {"task": task_line(console.tasks.start("compact", _subject(database, table, lake), run))}


def create_tag(
    console: Console,
    database: str,
    table: str,
    *,
    name: str,
    lake: str | None = None,
    snapshot_id: str | None = None,
    retain: str | None = None,
) -> dict[str, Any]:
    """Tag a snapshot, by default the current one, for a duration such as "30 d", or for good."""
    if not name.strip():
        raise InvalidRequest("a tag needs a name")
    if snapshot_id is not None and not snapshot_id.isdecimal():
        raise InvalidRequest(f"snapshot_id={snapshot_id!r} is not the number of a snapshot")
    retained = parse_span(retain) if retain else None
    health = _health(console, database, table, lake)
    health.create_tag(name.strip(), None if snapshot_id is None else int(snapshot_id), retained)
    console.forget(_key(database, table, lake))
    return {"name": name.strip()}


def delete_tag(console: Console, database: str, table: str, *, name: str, lake: str | None = None) -> dict[str, Any]:
    """Delete a tag. Files that only it needs are deleted with it."""
    _health(console, database, table, lake).delete_tag(name)
    console.forget(_key(database, table, lake))
    return {"name": name}


def _subject(database: str, table: str, lake: str | None) -> dict[str, Any]:
    return {"lake": lake, "database": database, "table": table}


def task_line(task: Task) -> dict[str, Any]:
    """A task as screens show it."""
    return {
        "task_id": task.task_id,
        "kind": task.kind,
        **task.subject,
        "state": task.state,
        "asked": time_text(task.asked_ms),
        "began": time_text(task.began_ms),
        "ended": time_text(task.ended_ms),
        "done": task.done,
        "to_do": task.total or None,
        "result": task.result,
        "error": task.error,
        "is_ending": task.must_end and not task.is_over,
    }
