"""One `LakeLookupTable` for each table of a process: for functions that Spark's workers run task after task.

    def with_customers(batches):                                     # in mapInArrow; `table` pickles small
        customers = shared_lookup(table, ["name"])
        for batch in batches:
            yield from customers.join(batch, on=["customer"]).to_batches()

A lookup is worth its copies only while it is kept. What a task opens goes with the task; a worker's process runs many
tasks. Copies are deleted when the process ends. But Spark ends workers by a signal, so theirs are put where Spark
deletes everything when the application ends (its own local directories, which it tells workers in SPARK_LOCAL_DIRS).
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence

from forebay.paimon.lookup.lake_lookup import LakeLookupTable
from forebay.paimon.table import Table

_LOCAL_DIRS = "SPARK_LOCAL_DIRS"

_Key = tuple[int, str, str, int, tuple[tuple[str, str], ...], tuple[str, ...] | None]

_lookups: dict[_Key, LakeLookupTable] = {}
_guard = threading.Lock()


def shared_lookup(table: Table, columns: Sequence[str] | None = None) -> LakeLookupTable:
    """The lookup of this process for `table`, with its options and its schema of now. Do not close it.

    Other columns, options or another schema are another lookup. A process that was forked begins with lookups of its
    own. Raises as `Table.lookup_table` does.
    """
    schema = table.schema
    key = (
        os.getpid(),
        table.context.paths.root,
        table.context.paths.branch,
        schema.id,
        tuple(sorted(schema.options.items())),
        None if columns is None else tuple(columns),
    )
    with _guard:
        if key not in _lookups:
            _lookups[key] = table.lookup_table(columns, directory=_local_directory())
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
