"""The sources that the rows of a table can be read from, by name.

    table.scan()                       the rows as they are now: source "live"
    table.scan(source="log")           what a log table has been appended

"live" and "log" are the client's own. Packages above this one add others ("union") by `register_source`, or by an entry
point of the group `forebay.scan_sources`.
"""

from __future__ import annotations

from typing import TypeAlias, cast

from forebay.api.scan import ScanRequest
from forebay.base.errors import InvalidRequest
from forebay.client.reading.table_scan import FunctionScan, LiveTableScan, LogScan, OpenReader, TableScan
from forebay.client.session import Session
from forebay.metadata.table import TableInfo

Source: TypeAlias = "OpenReader | type[TableScan]"
"""A function that opens a reader; or a class of scans, for sources with their own planning."""

ENTRY_POINTS = "forebay.scan_sources"

_sources: dict[str, Source] = {"live": LiveTableScan, "log": LogScan}


def register_source(name: str, source: Source) -> None:
    """Register `source` for `table.scan(source=name)`. A later registration replaces an earlier one."""
    _sources[name] = source


def scan_source(name: str) -> Source:
    """The source called `name`. Raises `InvalidRequest`, which lists the registered ones."""
    source = _sources.get(name)
    if source is None:
        from importlib.metadata import entry_points

        installed = entry_points(group=ENTRY_POINTS)
        if name not in installed.names:
            names = ", ".join(map(repr, sorted({*_sources, *installed.names})))
            raise InvalidRequest(f"there is no scan source {name!r}; there are {names}")
        source = _sources[name] = installed[name].load()
    return source


def scan_of(session: Session, info: TableInfo, request: ScanRequest, name: str) -> TableScan:
    """The scan that the source called `name` creates.

    Raises `InvalidRequest` for an unknown source, and for a table that the source cannot read.
    """
    source = scan_source(name)
    if isinstance(source, type) and issubclass(source, TableScan):
        return source.create(session, info, request, name)
    return FunctionScan(session, info, request, name, cast(OpenReader, source))
