"""Reading rows of a table: a `Scan` describes what to read, a `RowReader` reads it once.

    scan = table.scan(columns=["id", "amount"], filter="amount > 100")
    for batch in scan: ...                    # pyarrow record batches
    scan.to_arrow(), scan.to_pandas(), scan.to_polars(), scan.to_duckdb(), scan.count(), scan.head()

A scan reads nothing until it is consumed and can be consumed again; each time it reads the table's current state,
unless it scans a snapshot. Libraries that accept Arrow streams (polars, DuckDB, DataFusion) accept a scan directly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from operator import index
from types import TracebackType
from typing import Any, NoReturn, Self

import pyarrow as pa

from forebay.base.allocator import give_back_when_idle
from forebay.base.arguments import name_list
from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.base.markup import abbreviated, grid, heading
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import TableBucket

HEAD_ROWS = 10


class ArrowStream(ABC):
    """An object whose rows other libraries can consume as an Arrow stream (the Arrow PyCapsule interface)."""

    @abstractmethod
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The rows as a PyCapsule of an `ArrowArrayStream`."""

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `InvalidRequest`: `numpy` and `pandas.DataFrame(...)` would turn this into one column of objects."""
        raise InvalidRequest(
            f"{self!r} is not an array: its rows are tables of columns. Call to_pandas() or to_arrow()"
        )


class RowReader(ArrowStream):
    """A reader of rows, for a single pass: iterate over record batches, or take them all.

    Close it, or use it in a `with` block, when not reading to the end. Subclasses implement the source of the rows.
    """

    def __init__(self, schema: pa.Schema, limit: int | None = None) -> None:
        self.schema = schema
        self._left = limit
        self._is_read = False
        self.watched: Callable[[Iterator[Any]], Iterator[Any]] | None = None
        """What the rows go through on their way, for those who watch how they are read."""
        self._batches: Iterator[tuple[TableBucket | None, pa.RecordBatch]] | None = None

    @property
    def log_offsets(self) -> Mapping[TableBucket, int]:
        """The log offset per opened bucket up to which its changes are included.

        Reading the changes from there returns everything later, without duplicates. Complete at the end of the rows;
        empty if rows come from a lake only.
        """
        return {}

    def with_buckets(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        """Pairs of (bucket, record batch); the bucket is None if the source does not report it.

        Raises `InvalidRequest` if the reader is exhausted.
        """
        if self._is_read:
            raise InvalidRequest("this reader is exhausted: a reader reads once. Start another scan")
        return self._pairs()

    def _pairs(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        if self._batches is None:
            give_back_when_idle()
            self._batches = self._read() if self.watched is None else self.watched(self._read())
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
        """The rows, ignoring the limit."""

    def close(self) -> None:
        """Stop reading and release resources on the servers. Later reads return no rows."""
        batches, self._batches = self._batches, iter(())
        if batches is not None and hasattr(batches, "close"):
            batches.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (batch for _, batch in self.with_buckets())

    def read_all(self) -> pa.Table:
        """All remaining rows as a table."""
        return pa.Table.from_batches(list(self), schema=self.schema)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.RecordBatchReader.from_batches(self.schema, iter(self)).__arrow_c_stream__(requested_schema)

    def _described(self) -> str:
        """Return a description for `repr`."""
        return ""

    def __repr__(self) -> str:
        state = "read" if self._is_read else "not begun" if self._batches is None else "under way"
        return f"<forebay.{type(self).__name__}{self._described()}, columns {abbreviated(self.schema.names)}, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class ScanRequest:
    """The parts of a read: column names (None: all), a filter, a row limit, and an earlier state (None: now)."""

    columns: Sequence[str] | None = None
    predicate: Any = None
    limit: int | None = None
    partitions: Any = None
    buckets: Sequence[int | TableBucket] | None = None
    as_of: Any = None

    def __post_init__(self) -> None:
        if self.columns is not None:
            object.__setattr__(self, "columns", name_list(self.columns, "columns"))
        if self.limit is not None:
            object.__setattr__(self, "limit", row_count(self.limit, "limit"))


def row_count(value: Any, what: str) -> int:
    """`value` as a number of rows. Raises `InvalidRequest` unless it is a whole number of at least 0."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or index(value) < 0:
        raise InvalidRequest(f"{what}={value!r} is not a number of rows; give a whole number, 0 or more")
    return index(value)


class Scan(ArrowStream):
    """A lazy scan of a table: nothing is read until requested, and it may be read repeatedly."""

    def __init__(self, request: ScanRequest) -> None:
        self._request = request

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""

    @abstractmethod
    def reader(self) -> RowReader:
        """A reader of the current rows. Close it, or use it in a `with` block."""

    def _rows(self) -> RowReader:
        """A reader whose `log_offsets` are not asked for."""
        return self.reader()

    @abstractmethod
    def explain(self) -> str:
        """An explanation of what is read, and why: sources, files, log ranges, pushed-down filters."""

    @abstractmethod
    def plan(self) -> Sequence[Any]:
        """The parts of this scan, for engines that read with several workers. Picklable; see `read_split`."""

    @abstractmethod
    def read_split(self, split: Any) -> RowReader:
        """A reader of one part that `plan` returned. The limit applies per part."""

    @abstractmethod
    def _with(self, request: ScanRequest) -> Self:
        """The same scan with another request."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with self._rows() as rows:
            yield from rows

    def to_arrow(self) -> pa.Table:
        """All rows as a pyarrow table."""
        with self._rows() as rows:
            return rows.read_all()

    def to_pandas(self, **options: Any) -> Any:
        """All rows as a `pandas.DataFrame`; `options` are those of `pyarrow.Table.to_pandas`."""
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> Any:
        """All rows as a `polars.DataFrame`. Raises `UnsupportedOperation` if polars is not installed."""
        return _library("polars", "to_polars").from_arrow(self.to_arrow())

    def to_duckdb(self, connection: Any = None) -> Any:
        """A DuckDB relation over this scan, in `connection` or in DuckDB's default one.

        It has the rows of one instant, that of this call, in all queries. Each query reads only the columns and rows
        that it needs: DuckDB pushes columns and filters into the scan. Raises `UnsupportedOperation` if DuckDB is not
        installed, or older than 1.5.
        """
        duckdb = _library("duckdb", "to_duckdb")
        from forebay.api.duckdb import ScanDataset, check_version

        check_version(duckdb, self.schema)
        return (connection or duckdb).from_arrow(ScanDataset(self.pinned()))

    def pinned(self) -> Scan:
        """The same scan, fixed to the current instant: each run returns the same rows, also with other columns and
        filters. What it pins on a server is released by `release`, or when it is garbage-collected. Here: the rows, in
        memory.
        """
        return CachedScan(self)

    def release(self) -> None:
        """Release what a pinned scan holds on a server; it cannot be read any more. Idempotent."""
        return

    def narrowed(self, columns: Sequence[str] | None, predicate: Predicate | None) -> Scan:
        """This scan of only some of its columns (None: all), and only rows that match. Raises `InvalidRequest`."""
        request = self._request
        if columns is None or (request.columns is not None and tuple(request.columns) != tuple(self.schema.names)):
            columns = request.columns  # names of nested fields are not those of the result's columns
        if request.predicate is not None:
            predicate = request.predicate if predicate is None else request.predicate & predicate
        return self._with(replace(request, columns=columns, predicate=predicate))

    def limited(self, rows: int) -> Scan:
        """This scan of at most `rows` rows."""
        return self._with(replace(self._request, limit=rows))

    def count(self) -> int:
        """The number of rows; only the columns needed for counting are read."""
        with self._with(replace(self._request, columns=()))._rows() as rows:
            return sum(batch.num_rows for batch in rows)

    def head(self, n: int = HEAD_ROWS) -> pa.Table:
        """At most `n` rows as a pyarrow table, whichever arrive first."""
        limit = row_count(n, "n")
        if self._request.limit is not None:
            limit = min(limit, self._request.limit)
        return self.limited(limit).to_arrow()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.RecordBatchReader.from_batches(self.schema, iter(self)).__arrow_c_stream__(requested_schema)

    def _described(self) -> str:
        """Return a description for `repr`."""
        return ""

    def __repr__(self) -> str:
        return f"<forebay.{type(self).__name__}{self._described()}, columns {abbreviated(self.schema.names)}>"

    def _repr_html_(self) -> str:
        columns = [(field.name, field.type) for field in self.schema]
        return heading(repr(self), "call head(), to_arrow() or to_pandas() for rows") + grid(
            ("column", "type"), columns
        )


class CachedScan(Scan):
    """A scan of rows in memory: those that another scan returned the first time that they were needed."""

    def __init__(self, source: Scan, request: ScanRequest | None = None, rows: list[pa.Table] | None = None) -> None:
        super().__init__(request or ScanRequest())
        self._source = source
        self._cached_rows: list[pa.Table] = [] if rows is None else rows
        predicate, schema = self._request.predicate, source.schema
        self._bound: Any = None
        if predicate is not None:
            from forebay.codec.arrow.arrow_types import from_arrow_schema
            from forebay.codec.filters import bind

            self._bound = bind(predicate, from_arrow_schema(schema).columns)
        names = self._request.columns
        self._schema = schema if names is None else pa.schema([schema.field(name) for name in names])

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def reader(self) -> RowReader:
        """The cached rows, filtered and projected; the first call reads them from the source."""
        if not self._cached_rows:
            self._cached_rows.append(self._source.to_arrow())
        rows = self._cached_rows[0]
        if self._bound is not None:
            from forebay.codec.filters import filter_rows

            rows = filter_rows(rows, self._bound)
        if self._request.columns is not None:
            rows = rows.select(list(self._request.columns))
        return _CachedReader(rows, self._request.limit)

    def pinned(self) -> Scan:
        return self

    def explain(self) -> str:
        return f"rows in memory, read once by:\n{self._source.explain()}"

    def plan(self) -> Sequence[Any]:
        return [None]

    def read_split(self, split: Any) -> RowReader:
        return self.reader()

    def _with(self, request: ScanRequest) -> Self:
        return type(self)(self._source, request, self._cached_rows)

    def _described(self) -> str:
        return self._source._described()


class BatchRowReader(RowReader):
    """A reader of batches that an iterator yields, for scans of other sources."""

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], limit: int | None) -> None:
        super().__init__(schema, limit)
        self._source = batches

    def _read(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        for batch in self._source:
            yield None, batch


class _CachedReader(RowReader):
    def __init__(self, rows: pa.Table, limit: int | None) -> None:
        super().__init__(rows.schema, limit)
        self._rows = rows

    def _read(self) -> Iterator[tuple[None, pa.RecordBatch]]:
        for batch in self._rows.to_batches():
            yield None, batch


def _library(name: str, what: str) -> Any:
    try:
        return import_module(name)
    except ImportError as e:
        raise UnsupportedOperation(f"{what}() needs the package {name}: pip install {name}") from e
