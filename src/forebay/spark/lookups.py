"""One lookup for each table of a process, live or of a lake: for functions that Spark's workers run task after task.

    def with_customers(batches):                                     # in mapInArrow; `table` pickles small
        customers = shared_lookup(table, ["name"])
        for batch in batches:
            yield from customers.join(batch, on=["customer"]).to_batches()

A lookup is worth what it keeps only while it is kept. What a task opens goes with the task; a worker's process runs
many tasks. Of live tables rows are kept in memory. Files of lake tables are copied, and the copies deleted when the
process ends. But Spark ends workers by a signal, so theirs are put where Spark deletes everything when the application
ends (its own local directories, which it tells workers in SPARK_LOCAL_DIRS).
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, overload

from forebay.base.quantity import Span, span_seconds
from forebay.client.table import Table as LiveTable

if TYPE_CHECKING:
    from forebay.client.lookups.lookup_table import LookupTable
    from forebay.paimon.lookup.lake_lookup import LakeLookupTable
    from forebay.paimon.table import Table as LakeTable

MAX_AGE_SECONDS = 10.0
"""How old rows of a live table may be, where the user does not say otherwise: as those of a lake table."""

_LOCAL_DIRS = "SPARK_LOCAL_DIRS"
_DISCOVERY = "continuous.discovery-interval"

LOOKUPS_MAX = 64
"""Lookups that a process keeps; if there are more, what the first of them keeps is dropped."""

_lookups: dict[tuple[object, ...], LookupTable | LakeLookupTable] = {}
_guard = threading.Lock()


@overload
def shared_lookup(
    table: LiveTable, columns: Sequence[str] | None = None, *, max_age: Span | None = None, max_rows: int | None = None
) -> LookupTable: ...


@overload
def shared_lookup(
    table: LakeTable, columns: Sequence[str] | None = None, *, max_age: Span | None = None
) -> LakeLookupTable: ...


def shared_lookup(
    table: LiveTable | LakeTable,
    columns: Sequence[str] | None = None,
    *,
    max_age: Span | None = None,
    max_rows: int | None = None,
) -> LookupTable | LakeLookupTable:
    """The lookup of this process for `table`, with its options and its schema of now. Do not close it.

    Rows are at most `max_age` (a span of time) old: by default 10 s, or what a lake table's option
    `continuous.discovery-interval` says. Of a live table up to `max_rows` rows (100,000) are kept; how much is kept of
    a lake table is said by its `lookup.*` options. Other arguments, options or another schema are another lookup. A
    process that was forked begins with lookups of its own. Raises as `Table.lookup_table` does.
    """
    names = None if columns is None else tuple(columns)
    if isinstance(table, LiveTable):
        live, info = table, table.info
        age = MAX_AGE_SECONDS if max_age is None else span_seconds(max_age, "max_age")
        of_table = table.connection.settings, info.table_id, info.schema_id
        return _shared(
            (*of_table, names, age, max_rows), lambda: live.lookup_table(names, max_age=age, max_rows=max_rows)
        )
    if max_age is not None:
        seconds = span_seconds(max_age, "max_age")
        table = table.with_options({_DISCOVERY: f"{round((seconds or 0) * 1000)} ms"})
    lake, schema, paths = table, table.schema, table.context.paths
    options = tuple(sorted(schema.options.items()))
    return _shared(
        (paths.root, paths.branch, schema.id, options, names),
        lambda: lake.lookup_table(names, directory=_local_directory()),
    )


def _shared(
    key: tuple[object, ...], make: Callable[[], LookupTable | LakeLookupTable]
) -> LookupTable | LakeLookupTable:
    key = (os.getpid(), *key)
    with _guard:
        if key not in _lookups:
            _lookups[key] = make()
            if len(_lookups) > LOOKUPS_MAX:
                first = next(iter(_lookups))
                dropped = _lookups.pop(first)
                if first[0] == os.getpid():
                    dropped.close()
        return _lookups[key]


def _local_directory() -> str | None:
    """Where Spark keeps files of this application; None outside of it, which is the directory for temporary files."""
    first = os.environ.get(_LOCAL_DIRS, "").split(",")[0]
    return first if first and os.path.isdir(first) else None


@atexit.register
def _close_own() -> None:
    """At the end of this process; a fork leaves alone what its parent uses."""
    for key, lookup in _lookups.items():
        if key[0] == os.getpid():
            lookup.close()
