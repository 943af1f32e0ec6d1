"""The rows of a table: a `Scan` says what to read, a `RowReader` reads it once.

    scan = table.scan(columns=["id", "amount"], filter="amount > 100")
    for batch in scan: ...                    # pyarrow record batches
    scan.to_arrow(), scan.to_pandas(), scan.to_polars(), scan.to_duckdb(), scan.count(), scan.head()

A scan reads nothing until it is consumed and can be consumed again; each time it reads the table's current state,
unless a snapshot was chosen. Libraries that accept Arrow streams (polars, DuckDB, DataFusion) accept a scan directly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from operator import index
from types import TracebackType
from typing import Any, NoReturn, Self

import pyarrow as pa

from forebay.base.arguments import name_list
from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.base.markup import grid, heading
from forebay.metadata.table import TableBucket

HEAD_ROWS = 10


class ArrowStream(ABC):
    """Anything whose rows other libraries may take as an Arrow stream (the Arrow PyCapsule interface)."""

    @abstractmethod
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The rows as a PyCapsule of an `ArrowArrayStream`."""

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `InvalidRequest`: `numpy` and `pandas.DataFrame(...)` would make one column of objects of this."""
        raise InvalidRequest(
            f"{self!r} is not an array: its rows are tables of columns. Call to_pandas() or to_arrow()"
        )


class RowReader(ArrowStream):
    """Rows being read, once: iterate over record batches, or take them all.

    Close it, or use it in a `with` block, when not reading to the end. Subclasses say where the rows come from.
    """

    def __init__(self, schema: pa.Schema, limit: int | None = None) -> None:
        self.schema = schema
        self._left = limit
        self._is_read = False
        self._batches: Iterator[tuple[TableBucket | None, pa.RecordBatch]] | None = None

    @property
    def log_offsets(self) -> Mapping[TableBucket, int]:
        """For each bucket that has been opened: the log offset up to which its changes are contained.

        Reading the changes from there gives everything that came later, and nothing twice. Complete at the end of the
        rows; empty where rows come from a lake alone.
        """
        return {}

    def with_buckets(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        """Pairs of (bucket, record batch); the bucket is None where a source does not tell.

        Raises `InvalidRequest` for a reader that has been read to its end already.
        """
        if self._is_read:
            raise InvalidRequest("these rows have been read to their end: a reader reads once. Begin another scan")
        return self._pairs()

    def _pairs(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        if self._batches is None:
            self._batches = self._read()
        for bucket, batch in self._batches:
            if self._left is not None:
                batch = batch.slice(0, self._left)
                self._left -= batch.num_rows
            if batch.num_rows:
                yield bucket, batch
            if self._left == 0:
                self.close()
                break
        self._is_read = True

    @abstractmethod
    def _read(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        """The rows, without regard to the limit."""

    def close(self) -> None:
        """End the reading and release what it holds on servers. Reading on afterwards finds nothing more."""
        batches, self._batches = self._batches, iter(())
        if batches is not None and hasattr(batches, "close"):
            batches.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (batch for _, batch in self.with_buckets())

    def read_all(self) -> pa.Table:
        """All rows that are left, as a table."""
        return pa.Table.from_batches(list(self), schema=self.schema)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.RecordBatchReader.from_batches(self.schema, iter(self)).__arrow_c_stream__(requested_schema)

    def _described(self) -> str:
        """What is read, for `repr`."""
        return ""

    def __repr__(self) -> str:
        state = "read" if self._is_read else "not begun" if self._batches is None else "under way"
        return f"<forebay.{type(self).__name__}{self._described()}, columns {shown(self.schema.names)}, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class ScanRequest:
    """What to read of a table: names of columns (None: all), a filter, how many rows."""

    columns: Sequence[str] | None = None
    predicate: Any = None
    limit: int | None = None
    partitions: Any = None
    buckets: Sequence[int | TableBucket] | None = None

    def __post_init__(self) -> None:
        if self.columns is not None:
            object.__setattr__(self, "columns", name_list(self.columns, "columns"))
        if self.limit is not None:
            object.__setattr__(self, "limit", row_count(self.limit, "limit"))


def row_count(value: Any, what: str) -> int:
    """`value` as a number of rows. Raises `InvalidRequest` for anything but a whole number from 0 on."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or index(value) < 0:
        raise InvalidRequest(f"{what}={value!r} is not a number of rows; give a whole number, 0 or more")
    return index(value)


class Scan(ArrowStream):
    """The rows of a table as a value: nothing is read before it is asked for, and it may be read again."""

    def __init__(self, request: ScanRequest) -> None:
        self._request = request

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""

    @abstractmethod
    def reader(self) -> RowReader:
        """A reader of the rows as they are now. Close it, or use it in a `with` block."""

    @abstractmethod
    def explain(self) -> str:
        """What is read, and why: sources, files, ranges of logs, filters that are pushed down."""

    @abstractmethod
    def plan(self) -> Sequence[Any]:
        """The parts of this scan, for engines that read with several workers. They pickle; see `read_split`."""

    @abstractmethod
    def read_split(self, split: Any) -> RowReader:
        """A reader of one part that `plan` returned. The limit holds for each part alone."""

    @abstractmethod
    def _with(self, request: ScanRequest) -> Self:
        """The same scan with another request."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with self.reader() as rows:
            yield from rows

    def to_arrow(self) -> pa.Table:
        """All rows as a pyarrow table."""
        with self.reader() as rows:
            return rows.read_all()

    def to_pandas(self, **options: Any) -> Any:
        """All rows as a `pandas.DataFrame`; `options` are those of `pyarrow.Table.to_pandas`."""
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> Any:
        """All rows as a `polars.DataFrame`. Raises `UnsupportedOperation` where polars is not installed."""
        return _library("polars", "to_polars").from_arrow(self.to_arrow())

    def to_duckdb(self, connection: Any = None) -> Any:
        """A DuckDB relation over this scan, in `connection` or in DuckDB's default one.

        The rows are streamed each time the relation is executed. Raises `UnsupportedOperation` where DuckDB is not
        installed, or older than 1.5, which takes a stream only once.
        """
        duckdb = _library("duckdb", "to_duckdb")
        if tuple(map(int, duckdb.__version__.split(".")[:2])) < (1, 5):
            raise UnsupportedOperation(f"to_duckdb() needs DuckDB 1.5 or later, and this is {duckdb.__version__}")
        return (connection or duckdb).from_arrow(self)

    def count(self) -> int:
        """The number of rows; no more columns are read than counting needs."""
        with self._with(replace(self._request, columns=())).reader() as rows:
            return sum(batch.num_rows for batch in rows)

    def head(self, n: int = HEAD_ROWS) -> pa.Table:
        """At most `n` rows as a pyarrow table, whichever come first."""
        limit = row_count(n, "n")
        if self._request.limit is not None:
            limit = min(limit, self._request.limit)
        return self._with(replace(self._request, limit=limit)).to_arrow()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.RecordBatchReader.from_batches(self.schema, iter(self)).__arrow_c_stream__(requested_schema)

    def _described(self) -> str:
        """What is read, for `repr`."""
        return ""

    def __repr__(self) -> str:
        return f"<forebay.{type(self).__name__}{self._described()}, columns {shown(self.schema.names)}>"

    def _repr_html_(self) -> str:
        columns = [(field.name, field.type) for field in self.schema]
        return heading(repr(self), "call head(), to_arrow() or to_pandas() for rows") + grid(
            ("column", "type"), columns
        )


def shown(names: Sequence[str], most: int = 8) -> str:
    """Column names for a `repr`: the first ones, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f", and {rest} more" if rest > 0 else "")


def _library(name: str, what: str) -> Any:
    try:
        return import_module(name)
    except ImportError as e:
        raise UnsupportedOperation(f"{what}() needs the package {name}: pip install {name}") from e
