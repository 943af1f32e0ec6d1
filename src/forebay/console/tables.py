"""Tables of a cluster: the list, and one table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from forebay.base.errors import AccessDenied, NotFound, UnsupportedOperation
from forebay.client.results import LakeSnapshot, TableStats
from forebay.console.rows import cell
from forebay.console.session import Console, iso_text, page_of, time_text
from forebay.lake.public_options import without_secrets
from forebay.metadata.ddl import column_role, create_statement
from forebay.metadata.table import Column, Schema, TableBucket, TableInfo, TablePath
from forebay.tiering.lag import newest_lake_snapshot

_NAMES_SECONDS = 3.0
_FIGURES_SECONDS = 3.0
"""How long answers are remembered: several visitors who look at one list cost what one does."""

NO_ROW_COUNTS = "this cluster does not count rows"
NO_SIZES = "this cluster does not tell the size of tables, nor when they were written to"


def tables(
    console: Console,
    *,
    search: str | None = None,
    database: str | None = None,
    page_token: str | None = None,
    limit: int = 100,
) -> dict[str, Any]:
    """A page of the tables, by name; `search` are parts of names, all of which a table's must have.

    Only tables of the page are asked for: rows, bytes and lag of thousands would take long.
    """
    names_by_database = console.remembered("databases", _NAMES_SECONDS, lambda: _names(console))
    words = (search or "").lower().split()
    matches = [
        path
        for name, paths in names_by_database.items()
        if database in (None, "", name)
        for path in paths
        if all(word in str(path).lower() for word in words)
    ]
    page, following = page_of(matches, page_token, limit)
    lines = console.each(partial(_summary, console), page)
    return {
        "items": [line for line, _ in lines],
        "next": following,
        "total": len(matches),
        "databases": [{"name": name, "tables": len(paths)} for name, paths in names_by_database.items()],
        "missing": sorted({sentence for _, missing in lines for sentence in missing}),
    }


_COMPLETIONS_MAX = 8
_MENTIONED_MAX = 20
_MENTIONED = re.compile(r"\b([A-Za-z_]\w*)\.([A-Za-z_]\w*)")


def completions(console: Console, *, word: str, statement: str = "") -> dict[str, Any]:
    """Names that complete a word of a statement: columns of the tables that the statement names, and then tables.

    Tables are found by any part of their name, columns by their beginning.
    """
    names_by_database = console.remembered("databases", _NAMES_SECONDS, lambda: _names(console))
    paths = {str(path): path for paths in names_by_database.values() for path in paths}
    mentioned = dict.fromkeys(f"{database}.{table}" for database, table in _MENTIONED.findall(statement))
    columns = [
        {"text": column.name, "kind": f"column of {name}", "type": str(column.data_type)}
        for name in [name for name in mentioned if name in paths][:_MENTIONED_MAX]
        for column in _columns(console, paths[name])
        if column.name.lower().startswith(word.lower()) and column.name != word
    ]
    tables = [name for name in paths if word.lower() in name.lower() and name != word] if word else []
    tables.sort(key=lambda name: (not name.lower().startswith(word.lower()), name))
    items = columns + [{"text": name, "kind": "table", "type": None} for name in tables]
    return {"items": items[:_COMPLETIONS_MAX]}


def _columns(console: Console, path: TablePath) -> Sequence[Column]:
    """The columns of a table; none of a table that was dropped meanwhile, or that the user may not see."""
    try:
        return console.remembered(
            ("columns", path), _FIGURES_SECONDS, lambda: console.conn.admin.table_info(path).schema.columns
        )
    except (AccessDenied, NotFound):
        return ()


def _names(console: Console) -> dict[str, list[TablePath]]:
    conn = console.conn
    databases = conn.list_databases()
    lists = console.each(conn.list_tables, databases)
    return {name: [TablePath(name, table) for table in tables] for name, tables in zip(databases, lists, strict=True)}


def _summary(console: Console, path: TablePath) -> tuple[dict[str, Any], list[str]]:
    """A line of the list, and what the cluster did not tell."""
    return console.remembered(("summary", path), _FIGURES_SECONDS, lambda: _line(console, path))


def _line(console: Console, path: TablePath) -> tuple[dict[str, Any], list[str]]:
    line = {"database": path.database, "table": path.table}
    try:
        info = console.conn.admin.table_info(path)
        figures = Figures.of(console, info)
    except (AccessDenied, NotFound) as e:  # of this table alone: it was dropped meanwhile, or is not for this user
        return line | {"error": e.message}, []
    return line | {
        "id": info.table_id,
        "kind": "primary key" if info.has_primary_key else "log",
        "merge_engine": info.descriptor.merge_engine,
        "partitioned": info.is_partitioned,
        "buckets": info.bucket_count,
        "all_buckets": len(figures.ends),
        "comment": info.descriptor.comment,
        "rows": figures.rows,
        "bytes": figures.bytes,
        "last_write": figures.last_write,
        "lake": info.descriptor.lake_format if info.lake_enabled else None,
        "lake_snapshot": None if figures.snapshot is None else figures.snapshot.snapshot_id,
        "lag_records": figures.lag if info.lake_enabled else None,
    }, figures.missing


class Figures:
    """Figures of a table's buckets (of some of them), by a few requests to the servers that have them."""

    def __init__(self) -> None:
        self.missing: list[str] = []
        self.stats = TableStats({})
        self.starts: dict[TableBucket, int] = {}
        self.ends: dict[TableBucket, int] = {}
        self.snapshot: LakeSnapshot | None = None

    @classmethod
    def of(cls, console: Console, info: TableInfo) -> Figures:
        """Of all buckets. The lake's snapshot is asked for before the ends of logs, so that no lag is negative."""
        figures = cls()
        admin = console.conn.admin
        if info.lake_enabled:
            figures.snapshot = newest_lake_snapshot(admin, info)
        figures.ends = admin.list_offsets(info, "latest")
        try:
            figures.stats = admin.table_stats(info)
        except UnsupportedOperation:
            figures.missing.append(NO_ROW_COUNTS)
        if len(figures.stats.log_sizes) < len(figures.stats.row_counts):
            figures.missing.append(NO_SIZES)
        return figures

    @property
    def rows(self) -> int | None:
        return self.stats.row_count if self.stats.row_counts or not self.ends else None

    @property
    def bytes(self) -> int | None:
        sizes = self.stats.log_sizes
        return sum(sizes.values()) if len(sizes) == len(self.ends) else None

    @property
    def last_write(self) -> str | None:
        return iso_text(max((time for time in self.stats.last_writes.values() if time is not None), default=None))

    @property
    def lag(self) -> int:
        """The log records that the lake does not have."""
        tiered = {} if self.snapshot is None else self.snapshot.log_offsets
        return sum(max(end - tiered.get(bucket, 0), 0) for bucket, end in self.ends.items())


# ---- one table ------------------------------------------------------------------------------------------------------

_VERSIONS_MAX = 50
_SECRET = re.compile(
    r"secret|password|passwd|credential|token|private|jaas|access.?key(?!.?id)|signature", re.IGNORECASE
)
HIDDEN = "••••••"


def table(console: Console, database: str, name: str) -> dict[str, Any]:
    """All of one table but its buckets and partitions, which have pages."""
    path = TablePath(database, name)
    info = console.conn.admin.table_info(path)
    figures = console.remembered(("figures", path), _FIGURES_SECONDS, lambda: Figures.of(console, info))
    descriptor = info.descriptor
    shown = replace(
        descriptor,
        properties=_masked(descriptor.properties),
        custom_properties=_masked(descriptor.custom_properties),
    )
    history, versions_missing = _history(console, info)
    return {
        "database": database,
        "table": name,
        "id": info.table_id,
        "schema_id": info.schema_id,
        "kind": "primary key" if info.has_primary_key else "log",
        "merge_engine": descriptor.merge_engine,
        "comment": descriptor.comment,
        "created": time_text(info.created_ms),
        "changed": time_text(info.modified_ms),
        "columns": [
            {
                "name": column.name,
                "type": str(column.data_type),
                "role": column_role(info.schema, column),
                "comment": column.comment,
                "aggregate": None if column.aggregate is None else str(column.aggregate),
            }
            for column in info.schema.columns
        ],
        "primary_key": list(info.schema.primary_key),
        "partition_keys": list(descriptor.partition_keys),
        "bucket_keys": list(descriptor.bucket_keys),
        "auto_increment": info.schema.auto_increment_column,
        "buckets": info.bucket_count,
        "all_buckets": len(figures.ends),
        "partitions": len({bucket.partition_id for bucket in figures.ends}) if info.is_partitioned else None,
        "rows": figures.rows,
        "bytes": figures.bytes,
        "last_write": figures.last_write,
        "lake": descriptor.lake_format if info.lake_enabled else None,
        "lake_snapshot": None if figures.snapshot is None else figures.snapshot.snapshot_id,
        "lag_records": figures.lag if info.lake_enabled else None,
        "ddl": create_statement(path, shown),
        "settings": [
            {"key": key, "value": value, "server": key in shown.properties}
            for key, value in sorted({**shown.properties, **shown.custom_properties}.items())
        ],
        "history": history,
        "missing": [*figures.missing, *versions_missing],
    }


def _masked(options: Mapping[str, str]) -> dict[str, str]:
    """Options whose secrets are hidden: by their names, and in addresses."""
    return {key: masked(key, value) for key, value in options.items()}


def masked(key: str, value: str) -> str:
    """The value of a setting, for visitors."""
    if _SECRET.search(key):
        return HIDDEN
    if "://" in value or "@" in value:
        return without_secrets(value) or HIDDEN
    return value


def _history(console: Console, info: TableInfo) -> tuple[list[dict[str, Any]], list[str]]:
    """The versions of a table's schema, the newest first: what each changed."""
    first = max(1, info.schema_id - _VERSIONS_MAX + 1)
    ids = range(first, info.schema_id + 1)
    try:
        schemas = console.each(lambda schema_id: console.conn.cluster.schema(info, schema_id), ids)
    except (NotFound, UnsupportedOperation) as e:
        return [], [f"earlier versions of the schema are not known: {e.message}"]
    before: Schema | None = None
    versions = []
    for schema_id, schema in zip(ids, schemas, strict=True):
        versions.append({"schema_id": schema_id, "columns": len(schema.columns), "changes": _changes(before, schema)})
        before = schema
    missing = [] if first == 1 else [f"versions of the schema before {first} are not shown"]
    return versions[::-1], missing


def _changes(before: Schema | None, after: Schema) -> list[str]:
    if before is None:
        return []
    old, new = ({column.column_id: column for column in schema.columns} for schema in (before, after))
    changes = [f"added {column.name} {column.data_type}" for key, column in new.items() if key not in old]
    changes += [f"dropped {column.name}" for key, column in old.items() if key not in new]
    for key, column in new.items():
        earlier = old.get(key)
        if earlier is not None and earlier.name != column.name:
            changes.append(f"renamed {earlier.name} to {column.name}")
        if earlier is not None and earlier.data_type != column.data_type:
            changes.append(f"changed {column.name} from {earlier.data_type} to {column.data_type}")
    return changes


def buckets(
    console: Console,
    database: str,
    name: str,
    *,
    partition: str | None = None,
    page_token: str | None = None,
    limit: int = 100,
) -> dict[str, Any]:
    """A page of a table's buckets: where they are, and what they have."""
    admin = console.conn.admin
    info = admin.table_info(TablePath(database, name))
    names = _partition_names(console, info)
    every = console.conn.table(info).buckets(None if partition in (None, "") else [partition])
    page, following = page_of(every, page_token, limit)
    snapshot = newest_lake_snapshot(admin, info) if info.lake_enabled else None
    starts, ends = (admin.list_offsets(info, place, buckets=page) for place in ("earliest", "latest"))
    try:
        stats, missing = admin.table_stats(info, buckets=page), list[str]()
    except UnsupportedOperation:
        stats, missing = TableStats({}), [NO_ROW_COUNTS]
    if len(stats.log_sizes) < len(page):
        missing.append(NO_SIZES)
    items = []
    for bucket in page:
        node = console.conn.cluster.leader(info.path, bucket)
        items.append(
            {
                "bucket": bucket.bucket,
                "partition": None if bucket.partition_id is None else names.get(bucket.partition_id),
                "leader": f"{node.host}:{node.port}",
                "start": starts[bucket],
                "end": ends[bucket],
                "rows": stats.row_counts.get(bucket),
                "bytes": stats.log_sizes.get(bucket),
                "last_write": iso_text(stats.last_writes.get(bucket)),
                "lake_offset": None if snapshot is None else snapshot.log_offsets.get(bucket, 0),
            }
        )
    return {"items": items, "next": following, "total": len(every), "missing": missing}


def _partition_names(console: Console, info: TableInfo) -> dict[int, str]:
    if not info.is_partitioned:
        return {}
    infos = console.remembered(
        ("partitions", info.path), _NAMES_SECONDS, lambda: list(console.conn.table(info).partitions())
    )
    return {each.partition_id: each.name for each in infos}


def partitions(
    console: Console, database: str, name: str, *, page_token: str | None = None, limit: int = 100
) -> dict[str, Any]:
    """A page of a table's partitions, by name, with their rows and sizes."""
    admin = console.conn.admin
    info = admin.table_info(TablePath(database, name))
    names = sorted((text, number) for number, text in _partition_names(console, info).items())
    page, following = page_of(names, page_token, limit)
    partition_ids = {number for _, number in page}
    buckets = [bucket for bucket in console.conn.table(info).buckets() if bucket.partition_id in partition_ids]
    try:
        stats, missing = admin.table_stats(info, buckets=buckets), list[str]()
    except UnsupportedOperation:
        stats, missing = TableStats({}), [NO_ROW_COUNTS]
    items = []
    for text, number in page:
        of = [bucket for bucket in buckets if bucket.partition_id == number]
        counts = [stats.row_counts.get(bucket) for bucket in of]
        sizes = [stats.log_sizes[bucket] for bucket in of if bucket in stats.log_sizes]
        write_times = [time for bucket in of if (time := stats.last_writes.get(bucket)) is not None]
        items.append(
            {
                "partition": text,
                "id": number,
                "buckets": len(of),
                "rows": None if None in counts else sum(count or 0 for count in counts),
                "bytes": sum(sizes) if len(sizes) == len(of) else None,
                "last_write": iso_text(max(write_times, default=None)),
            }
        )
    return {"items": items, "next": following, "total": len(names), "missing": missing}


NO_HISTORIES = "this cluster has no histories of tables"


def commits(
    console: Console, database: str, name: str, *, page_token: str | None = None, limit: int = 100
) -> dict[str, Any]:
    """A page of a table's history, the newest commit first: each with a statement that reads the table as of it."""
    info = console.conn.admin.table_info(TablePath(database, name))
    try:
        history = console.remembered(
            ("commits", info.path), _FIGURES_SECONDS, lambda: console.conn.admin.history(info).to_pylist()[::-1]
        )
    except UnsupportedOperation:
        return {"items": [], "next": None, "total": 0, "missing": [NO_HISTORIES]}
    page, following = page_of(history, page_token, limit)
    items = [
        {
            **{key: cell(value) for key, value in commit.items()},
            "committed_at": iso_text(commit["committed_at"]),
            "statement": _as_of(info, commit),
        }
        for commit in page
    ]
    return {"items": items, "next": following, "total": len(history), "missing": []}


def _as_of(info: TableInfo, commit: Mapping[str, Any]) -> str:
    """The statement that reads a table as of a commit. With a lake, versions are its snapshots."""
    at = f"TIMESTAMP => '{iso_text(commit['committed_at'])}'" if info.lake_enabled else f"VERSION => {commit['number']}"
    return f'SELECT *\nFROM "{info.path.database}"."{info.path.table}" AT ({at})\nLIMIT 100'
