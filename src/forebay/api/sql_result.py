"""The rows of an SQL statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from forebay.api.scan import ArrowStream
from forebay.base.errors import InvalidRequest
from forebay.base.markup import abbreviated, grid, heading

_SHOWN_ROWS = 20


class Result(ArrowStream):
    """The rows of a statement: `forebay.sql(...)`.

    Iterate over record batches, once, without having them all in memory; or call `to_arrow()`, `to_pandas()`,
    `to_polars()`, `show()` any number of times: they keep the rows. Until all rows are read, the states of tables that
    it reads stay pinned on their servers; `close()`, or the end of a `with` block, releases them.

    `is_one_instant`: all live tables of the statement are of the same instant. It is False for several tables that were
    written to each time they were pinned: then each is of one instant.
    """

    def __init__(self, rows: pa.RecordBatchReader, close: Callable[[], None], on_failure: Callable[[], None]) -> None:
        """`failed` raises a better error than DuckDB's, if there is one."""
        self._rows, self._close, self._on_failure = rows, close, on_failure
        self._table: pa.Table | None = None
        self._begun = False
        self.is_one_instant = True
        self.schema: pa.Schema = rows.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._table is not None:
            yield from self._table.to_batches()
            return
        if self._begun:
            raise InvalidRequest("the rows of this result are read: run the statement again, or begin with to_arrow()")
        self._begun = True
        try:
            while True:
                try:
                    batch = self._rows.read_next_batch()
                except StopIteration:
                    return
                except (pa.ArrowException, OSError) as e:
                    self._on_failure()
                    raise InvalidRequest(f"the statement failed: {e}") from e
                if batch.num_rows:
                    yield batch
        finally:
            self.close()

    def to_arrow(self) -> pa.Table:
        """All rows as a pyarrow table."""
        if self._table is None:
            self._table = pa.Table.from_batches(list(self), schema=self.schema)
        return self._table

    def to_pandas(self, **options: Any) -> Any:
        """All rows as a `pandas.DataFrame`; `options` are those of `pyarrow.Table.to_pandas`."""
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> Any:
        """All rows as a `polars.DataFrame`. Raises `UnsupportedOperation` if polars is not installed."""
        from forebay.api.scan import _library

        return _library("polars", "to_polars").from_arrow(self.to_arrow())

    def to_pylist(self) -> list[dict[str, Any]]:
        """All rows as dicts."""
        return self.to_arrow().to_pylist()  # type: ignore[no-any-return]

    def show(self, n: int = _SHOWN_ROWS) -> None:
        """Print the first `n` rows as a table, and the number of rows."""
        print(self._text(n))

    def _text(self, n: int) -> str:
        from forebay.api.text_table import row_lines

        table = self.to_arrow()
        parts = table.slice(0, n).combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
        lines = [line for batch in parts for line in row_lines(batch)]
        rest = "" if table.num_rows <= n else f", {n} shown"
        return "\n".join([*lines, f"({table.num_rows:,} row{'' if table.num_rows == 1 else 's'}{rest})"])

    def close(self) -> None:
        """Release what the rest of the rows needs. Idempotent."""
        self._begun = True
        close, self._close = self._close, _nothing
        close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.RecordBatchReader.from_batches(self.schema, iter(self)).__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        state = f"{self._table.num_rows:,} rows" if self._table is not None else "read" if self._begun else "not read"
        return f"<forebay.Result, columns {abbreviated(self.schema.names)}, {state}>"

    def _repr_html_(self) -> str:
        table = self.to_arrow()
        rows = table.slice(0, _SHOWN_ROWS).to_pylist()
        rest = "" if table.num_rows <= _SHOWN_ROWS else f", {_SHOWN_ROWS} shown"
        return heading("Result", f"{table.num_rows:,} rows{rest}") + grid(
            self.columns, [[row[name] for name in self.columns] for row in rows]
        )


def _nothing() -> None:
    return
