"""Where the rows of a table come from: sources, registered under a name.

    table.scan()                       the rows as they are now: source "live"
    table.scan(source="log")           what a log table has been appended

"live" and "log" are the client's own; others ("union") are brought by packages above this one, by `register_source` or
by an entry point of the group `forebay.scan_sources`.
"""

from __future__ import annotations

from typing import TypeAlias, cast

from forebay.api.scan import RowReader, ScanRequest
from forebay.base.errors import InvalidRequest
from forebay.client.session import Session
from forebay.client.table_scan import OpenReader, TableScan
from forebay.metadata.table import TableInfo

Source: TypeAlias = "OpenReader | type[TableScan]"
"""Begins a reading; or a kind of scan, for sources that plan in their own way."""

ENTRY_POINTS = "forebay.scan_sources"

_sources: dict[str, Source] = {}


def register_source(name: str, source: Source) -> None:
    """Let `table.scan(source=name)` read from `source`. A later registration replaces an earlier one."""
    _sources[name] = source


def scan_source(name: str) -> Source:
    """The source called `name`. Raises `InvalidRequest`, which lists those there are."""
    source = _sources.get(name)
    if source is None:
        from importlib.metadata import entry_points

        for entry in entry_points(group=ENTRY_POINTS):
            if entry.name == name:
                source = _sources[name] = entry.load()
    if source is None:
        known = ", ".join(repr(known) for known in sorted(_sources))
        raise InvalidRequest(f"there is no scan source {name!r}; there are {known}")
    return source


def scan_of(session: Session, info: TableInfo, request: ScanRequest, name: str) -> TableScan:
    """The scan that the source called `name` gives. Raises `InvalidRequest`, which lists the sources there are."""
    source = scan_source(name)
    if isinstance(source, type) and issubclass(source, TableScan):
        return source(session, info, request, name)
    return TableScan(session, info, request, name, cast(OpenReader, source))


def _live(session: Session, info: TableInfo, request: ScanRequest) -> RowReader:
    from forebay.client.live_scan import LiveReader

    return LiveReader(session, info, request) if info.has_primary_key else _log(session, info, request)


def _log(session: Session, info: TableInfo, request: ScanRequest) -> RowReader:
    from forebay.client.log_plan import LogRowReader

    return LogRowReader(session, info, request)


register_source("live", _live)
register_source("log", _log)
