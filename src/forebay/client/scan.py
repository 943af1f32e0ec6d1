"""One reading of rows, as a value: a `ScanRequest` is what a user asks for, a `Scan` gives the rows, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.client.planning import PartitionSelector
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import TableBucket


@dataclass(frozen=True)
class ScanRequest:
    """What to read of a table."""

    columns: Sequence[str] | None = None
    predicate: Predicate | None = None
    limit: int | None = None
    partitions: Sequence[PartitionSelector] | PartitionSelector | None = None
    buckets: Sequence[int | TableBucket] | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and (isinstance(self.limit, bool) or self.limit < 0):
            raise InvalidRequest(f"a limit of {self.limit} rows makes no sense; give 0 or more")


class Scan:
    """Rows of a table, read once: iterate over record batches, or take them all.

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

        Reading the log from there gives everything that came later, and nothing twice. Complete at the scan's end.
        """
        return {}

    def with_buckets(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        """Pairs of (bucket, record batch); the bucket is None where a source does not tell.

        Raises `InvalidRequest` for a scan that has been read to its end already.
        """
        if self._is_read:
            raise InvalidRequest("this scan has been read to its end: its rows come once. Begin another table.scan()")
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

    def _read(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        raise NotImplementedError(type(self).__name__)

    def close(self) -> None:
        """End the reading, and give back what it holds on servers. Reading on afterwards finds nothing more."""
        batches, self._batches = self._batches, iter(())
        if batches is not None and hasattr(batches, "close"):
            batches.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (batch for _, batch in self.with_buckets())

    def reader(self) -> pa.RecordBatchReader:
        """The rows as a `pa.RecordBatchReader`, for libraries that read streams of Arrow data."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def to_arrow(self) -> pa.Table:
        """All rows as a table."""
        return pa.Table.from_batches(list(self), schema=self.schema)

    def to_pandas(self, **options: Any) -> Any:
        """All rows as a pandas DataFrame; `options` are those of `pa.Table.to_pandas`."""
        return self.to_arrow().to_pandas(**options)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.reader().__arrow_c_stream__(requested_schema)

    def _described(self) -> str:
        """What is read, for `repr`."""
        return ""

    def __repr__(self) -> str:
        from forebay.client.display import shown

        state = "read" if self._is_read else "not begun" if self._batches is None else "under way"
        return f"<forebay.{type(self).__name__}{self._described()}, columns {shown(self.schema.names)}, {state}>"

    def _repr_html_(self) -> str:
        from forebay.client.display import grid, heading

        rows = [(field.name, field.type) for field in self.schema]
        taken = "call to_arrow(), to_pandas() or reader() for the rows"
        return heading(repr(self), taken) + grid(("column", "type"), rows)

    def __enter__(self) -> Scan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
