"""One lookup for each live or lake table of a process, for functions that Spark's workers run in many tasks.

    def with_customers(batches):                                     # in mapInArrow; `table` pickles small
        customers = shared_lookup(table, ["name"])
        for batch in batches:
            yield from customers.join(batch, on=["customer"]).to_batches()

A lookup caches rows, so it must outlive a task: a worker process runs many tasks. Rows of live tables are cached in
memory. Files of lake tables are copied; the copies are deleted when the process ends. Spark ends workers by a signal,
so their copies are in Spark's local directories (SPARK_LOCAL_DIRS), which Spark deletes with the application.
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
"""The default maximum age of cached rows of a live table in seconds; the same as for a lake table."""

_LOCAL_DIRS = "SPARK_LOCAL_DIRS"
_DISCOVERY = "continuous.discovery-interval"

LOOKUPS_MAX = 64
"""Maximum number of lookups in a process; beyond it, the caches of the oldest ones are dropped."""

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
    """The lookup of this process for `table`, with its current options and schema. Do not close it.

    Rows are at most `max_age` (a duration) old: by default 10 s, or a lake table's option
    `continuous.discovery-interval`. Up to `max_rows` rows (100,000) of a live table are cached; the `lookup.*` options
    limit the cache of a lake table. Other arguments, options or schemas have a lookup of their own, and so does a
    forked process. Raises as `Table.lookup_table` does.
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
    """Spark's local directory of this application; None outside of Spark: the directory for temporary files."""
    first = os.environ.get(_LOCAL_DIRS, "").split(",")[0]
    return first if first and os.path.isdir(first) else None


@atexit.register
def _close_own() -> None:
    """Close all lookups at the end of this process; a fork does not close those of its parent."""
    for key, lookup in _lookups.items():
        if key[0] == os.getpid():
            lookup.close()
