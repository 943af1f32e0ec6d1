"""Where the rows of a table come from: sources, registered under a name.

    table.scan()                       the rows as they are now: source "live"
    table.scan(source="log")           what a log table has been appended

"live" and "log" are the client's own; others ("union") are brought by packages above this one, by `register_source` or
by an entry point of the group `forebay.scan_sources`.
"""

from __future__ import annotations

from collections.abc import Callable

from forebay.base.errors import InvalidRequest
from forebay.client.scan import Scan, ScanRequest
from forebay.client.session import Session
from forebay.metadata.table import TableInfo

Source = Callable[[Session, TableInfo, ScanRequest], Scan]
"""Begins a reading."""

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


def _live(session: Session, info: TableInfo, request: ScanRequest) -> Scan:
    from forebay.client.live_scan import LiveScan

    return LiveScan(session, info, request) if info.has_primary_key else _log(session, info, request)


def _log(session: Session, info: TableInfo, request: ScanRequest) -> Scan:
    from forebay.client.log_plan import LogScan

    return LogScan(session, info, request)


register_source("live", _live)
register_source("log", _log)
