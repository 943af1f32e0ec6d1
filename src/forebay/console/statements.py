"""The SQL box: one statement over all tables, in DuckDB on our scans, of bounded rows, memory and time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from forebay.base.errors import LimitExceeded
from forebay.console.rows import columns_of, rows_of
from forebay.console.session import Console, check_limit
from forebay.query.run import CLOSED_IN, Execution, SqlDatabase

SECONDS_MAX = 60.0
"""How long a statement may run."""

_CELLS_MAX = 200_000
_AT_ONCE = 4


def run(console: Console, execution: Execution, *, statement: str, limit: int = 1000) -> dict[str, Any]:
    """The first `limit` rows of a statement; `truncated` says that there are more."""
    check_limit(limit)
    clock = console.clock
    began = clock.monotonic()
    with console.room("sql", _AT_ONCE), execution.run(statement, insert=console.allow_changes) as result:
        limit = min(limit, max(_CELLS_MAX // max(len(result.columns), 1), 1))
        batches, count = list[pa.RecordBatch](), 0
        for batch in result:
            batches.append(batch)
            count += batch.num_rows
            if count > limit:
                break
        rows = pa.Table.from_batches(batches, result.schema)
        return {
            "columns": columns_of(result.schema),
            "rows": rows_of(rows.slice(0, limit)),
            "truncated": count > limit,
            "is_one_instant": result.is_one_instant,
            "seconds": round(clock.monotonic() - began, 4),
        }


def new_execution(console: Console) -> Execution:
    """Return the execution of a visitor's statement."""
    settings = {"memory_limit": "1GB", "threads": "2", "temp_directory": "", **CLOSED_IN}
    return SqlDatabase(console.conn, console.warehouses).execution(settings=settings)


def too_long() -> LimitExceeded:
    """The error of a statement that ran for too long."""
    return LimitExceeded(f"the statement ran for more than {SECONDS_MAX:.0f} s, and was stopped: ask for less")
