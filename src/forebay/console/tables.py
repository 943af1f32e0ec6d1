"""Tables of a cluster: the list, and one table."""

from __future__ import annotations

from functools import partial
from typing import Any

from forebay.base.errors import AccessDenied, NotFound, UnsupportedOperation
from forebay.client.planning import EARLIEST, LATEST, list_offsets, plan_buckets
from forebay.client.results import LakeSnapshot
from forebay.console.session import Console, page_of
from forebay.metadata.table import TableBucket, TableInfo, TablePath
from forebay.tiering.lag import newest_known

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
    known = console.remembered("databases", _NAMES_SECONDS, lambda: _names(console))
    words = (search or "").lower().split()
    found = [
        path
        for name, paths in known.items()
        if database in (None, "", name)
        for path in paths
        if all(word in str(path).lower() for word in words)
    ]
    page, following = page_of(found, page_token, limit)
    lines = console.each(partial(_summary, console), page)
    return {
        "items": [line for line, _ in lines],
        "next": following,
        "total": len(found),
        "databases": [{"name": name, "tables": len(paths)} for name, paths in known.items()],
        "missing": sorted({sentence for _, missing in lines for sentence in missing}),
    }


def _names(console: Console) -> dict[str, list[TablePath]]:
    conn = console.conn
    databases = conn.list_databases()
    lists = console.each(conn.list_tables, databases)
    return {name: [TablePath(name, table) for table in found] for name, found in zip(databases, lists, strict=True)}


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
        "bytes": None,
        "last_write": None,
        "lake": info.descriptor.lake_format if info.lake_enabled else None,
        "lake_snapshot": None if figures.snapshot is None else figures.snapshot.snapshot_id,
        "lag_records": figures.lag if info.lake_enabled else None,
    }, figures.missing


class Figures:
    """What is known of a table's buckets, by a few requests to the servers that have them."""

    def __init__(self) -> None:
        self.missing: list[str] = []
        self.row_counts: dict[TableBucket, int | None] = {}
        self.starts: dict[TableBucket, int] = {}
        self.ends: dict[TableBucket, int] = {}
        self.snapshot: LakeSnapshot | None = None

    @classmethod
    def of(cls, console: Console, info: TableInfo, *, starts: bool = False) -> Figures:
        found = cls()
        cluster, admin = console.conn.cluster, console.conn.admin
        buckets = plan_buckets(cluster, info)
        found.ends = list_offsets(cluster, info, buckets, LATEST)
        if starts:
            found.starts = list_offsets(cluster, info, buckets, EARLIEST)
        try:
            found.row_counts = dict(admin.table_stats(info).row_counts)
        except UnsupportedOperation:
            found.missing.append(NO_ROW_COUNTS)
        if info.lake_enabled:
            found.snapshot = newest_known(admin, info)
        return found

    @property
    def rows(self) -> int | None:
        counts = list(self.row_counts.values())
        return None if len(counts) < len(self.ends) or None in counts else sum(each or 0 for each in counts)

    @property
    def lag(self) -> int:
        """The log records that the lake does not have."""
        tiered = {} if self.snapshot is None else self.snapshot.log_offsets
        return sum(max(end - tiered.get(bucket, 0), 0) for bucket, end in self.ends.items())
