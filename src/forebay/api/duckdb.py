"""Scans in DuckDB: columns and filters of a query are pushed into them.

DuckDB pushes these into two kinds of Python objects: its own files, and `pyarrow.dataset.Dataset`, whose method
`scanner(columns=..., filter=...)` it calls each time a query reads the object. So a scan is given to it as a dataset.
DuckDB leaves out of the query what it has pushed, so a filter has to be applied completely, and in DuckDB's order of
floating-point numbers (NaN is greater than all others), which is that of `forebay.codec.filters` but not pyarrow's.

A query may read a dataset several times. Its scan is pinned, so that all of them read the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from forebay.api.filters import implied_by
from forebay.base.errors import ForebayError, InvalidRequest, UnsupportedOperation
from forebay.metadata.predicate import Predicate

_VERSION_MIN = (1, 5)
_VERSION_OF_NANOSECONDS = (2, 0)


class PinnedScan(Protocol):
    """A pinned `Scan`, which is the module above this one."""

    @property
    def schema(self) -> pa.Schema: ...

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def release(self) -> None: ...

    def narrowed(self, columns: Sequence[str] | None, predicate: Predicate | None) -> PinnedScan: ...


class ScanDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow is not typed
    """A pinned scan as a dataset, of which DuckDB uses `schema` and `scanner`. `error` is the last one of a read."""

    def __init__(self, scan: PinnedScan) -> None:
        """The base class has nothing to initialize: it refuses to be instantiated."""
        self.scan = scan
        self.error: ForebayError | None = None

    @property
    def schema(self) -> pa.Schema:
        return self.scan.schema

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> _Scanner:  # noqa: A002
        """One read. DuckDB applies `filter` again if the scan applies only a part of it."""
        predicate, is_all = (None, True) if filter is None else implied_by(filter)
        names = list(self.schema.names if columns is None else columns)
        try:
            scan = self.scan.narrowed(names if is_all else None, predicate)
        except InvalidRequest:  # of a column that has no filters
            scan, is_all = self.scan.narrowed(None, None), False
        return _Scanner(self, scan, names, None if is_all else filter)


class _Scanner:
    """One read of a dataset by DuckDB."""

    def __init__(
        self, dataset: ScanDataset, scan: PinnedScan, columns: Sequence[str], rest: pc.Expression | None
    ) -> None:
        self._dataset, self._scan, self._columns, self._rest = dataset, scan, columns, rest
        self.projected_schema = pa.schema([dataset.schema.field(name) for name in columns])

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._scan:
                rows = batch if self._rest is None else batch.filter(self._rest)
                yield rows if rows.schema.names == self._columns else rows.select(self._columns)
        except ForebayError as e:
            self._dataset.error = e  # DuckDB reports its text, but as an error of its own
            raise


def check_version(duckdb: Any, schema: pa.Schema) -> None:
    """Raise `UnsupportedOperation` for a DuckDB that is too old, or too old for one of the columns."""
    version = tuple(map(int, duckdb.__version__.split(".")[:2]))
    if version < _VERSION_MIN:
        raise UnsupportedOperation(f"to_duckdb() needs DuckDB 1.5 or later, and this is {duckdb.__version__}")
    if version < _VERSION_OF_NANOSECONDS:
        for field in schema:
            if _has_zoned_nanoseconds(field.type):
                raise UnsupportedOperation(
                    f"column '{field.name}' is {field.type}, of which DuckDB {duckdb.__version__} would drop the "
                    "nanoseconds: leave the column out, or install DuckDB 2.0 or later"
                )


def _has_zoned_nanoseconds(t: pa.DataType) -> bool:
    if pa.types.is_timestamp(t):
        return t.unit == "ns" and t.tz is not None
    return any(_has_zoned_nanoseconds(t.field(i).type) for i in range(t.num_fields))
