"""The SQL box: one statement over all tables, in a process of its own, of bounded rows, memory and time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from forebay.console.rows import columns_of, rows_of
from forebay.console.session import STATEMENTS_MAX, Console, check_limit
from forebay.query.isolated import IsolatedExecution
from forebay.query.run import CLOSED_IN

_CELLS_MAX = 200_000
_ROWS_BYTES_MAX = 64 << 20
"""So much is read for a page: cells show less of long values."""


def run(console: Console, execution: IsolatedExecution, *, statement: str, limit: int = 1000) -> dict[str, Any]:
    """The first `limit` rows of a statement; `truncated` says that there are more."""
    check_limit(limit)
    clock = console.clock
    began = clock.monotonic()
    with console.room("sql", STATEMENTS_MAX), execution.run(statement, insert=console.allow_changes) as result:
        limit = min(limit, max(_CELLS_MAX // max(len(result.columns), 1), 1))
        rows, size, is_truncated = list[list[Any]](), 0, False
        for batch in result:
            is_truncated = len(rows) + batch.num_rows > limit or size > _ROWS_BYTES_MAX
            rows += rows_of(pa.Table.from_batches([batch.slice(0, limit - len(rows))]))
            size += batch.nbytes
            if is_truncated:
                break
        return {
            "columns": columns_of(result.schema),
            "rows": rows,
            "truncated": is_truncated,
            "is_one_instant": result.is_one_instant,
            "seconds": round(clock.monotonic() - began, 4),
        }


def new_execution(console: Console) -> IsolatedExecution:
    """Return the execution of a visitor's statement."""
    settings = {"threads": "2", "temp_directory": "", **CLOSED_IN}
    return console.processes.execution(console.database, settings=settings)
