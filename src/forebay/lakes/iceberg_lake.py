"""An Iceberg lake for readers: its databases, its tables, and scans of them.

pyiceberg is imported when a catalog is first asked, so that this module can be imported without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import pyarrow as pa

from forebay.api.scan import BatchRowReader, RowReader, Scan, ScanRequest
from forebay.base.errors import InvalidRequest, NotFound, UnsupportedOperation
from forebay.base.quantity import moment_ms
from forebay.codec.arrow.arrow_types import from_arrow_schema
from forebay.codec.filters import bind, filter_rows
from forebay.lake.source import LakeSource
from forebay.metadata.predicate import Predicate, conjuncts
from forebay.metadata.table import TablePath


@dataclass(frozen=True)
class IcebergLake:
    """An Iceberg catalog, by pyiceberg's options."""

    options: Mapping[str, str]

    @classmethod
    def open(cls, options: Mapping[str, str]) -> IcebergLake:
        """The lake of `options`, whose catalog is not asked yet. Raises `UnsupportedOperation` without pyiceberg."""
        try:
            import pyiceberg  # noqa: F401
        except ImportError as e:
            raise UnsupportedOperation("Iceberg lakes need pip install 'forebay[iceberg]'") from e
        from forebay.lakes.iceberg_tables import settled

        return cls(settled(options))

    def list_databases(self) -> list[str]:
        """The names of the namespaces, sorted; levels are joined by dots."""
        from forebay.lakes.iceberg_tables import opened

        with opened(self.options) as catalog:
            return [".".join(space) for space in sorted(catalog.list_namespaces())]

    def list_tables(self, database: str) -> list[str]:
        """The names of the tables of a database, sorted. Raises `NotFound`."""
        from pyiceberg.exceptions import NoSuchNamespaceError

        from forebay.lakes.iceberg_tables import opened

        with opened(self.options) as catalog:
            try:
                return [table for *_, table in sorted(catalog.list_tables(tuple(database.split("."))))]
            except NoSuchNamespaceError as e:
                raise NotFound(f"there is no database {database!r} in this Iceberg catalog") from e

    def scan(self, path: TablePath, as_of: Any = None) -> IcebergScan:
        """A scan of the newest snapshot of a table, or of the one that `as_of` names: a number, a tag or a time."""
        return IcebergScan.of(self.options, path, as_of)


class IcebergScan(Scan):
    """A snapshot of an Iceberg table, without the system columns of tables that Forebay made."""

    def __init__(self, source: LakeSource, snapshot_id: int | None, request: ScanRequest | None = None) -> None:
        """`snapshot_id` is None for a table without rows."""
        super().__init__(request or ScanRequest())
        self._source, self._snapshot_id = source, snapshot_id
        names = self._request.columns
        schema = self._visible
        missing = [name for name in names or () if name not in schema.names]
        if missing:
            raise InvalidRequest(f"there is no column '{missing[0]}'; columns are {', '.join(schema.names)}")
        self._schema = schema if names is None else pa.schema([schema.field(name) for name in names])
        self._bound = None
        if self._request.predicate is not None:
            self._bound = bind(self._request.predicate, from_arrow_schema(self._read_schema).columns)

    @classmethod
    def of(cls, options: Mapping[str, str], path: TablePath, as_of: Any = None) -> IcebergScan:
        """The newest snapshot of a table, or the one that `as_of` names: a number, a tag or a time."""
        from forebay.lakes.iceberg_cache import TableCache
        from forebay.lakes.iceberg_source import IcebergLakeSource

        cache = TableCache(options)
        table = cache.table(path)
        source = IcebergLakeSource.of(options, path, table, cache)
        if as_of is None:
            return cls(source, table.metadata.current_snapshot_id)
        if isinstance(as_of, int):
            snapshot_id: int | None = as_of
        elif isinstance(as_of, str) and source.tagged(as_of) is not None:
            snapshot_id = source.tagged(as_of)
        else:
            snapshot_id = next(iter(source.snapshots_until(moment_ms(as_of, "as_of"))), None)
        return cls(source, snapshot_id)

    @cached_property
    def _visible(self) -> pa.Schema:
        hidden = ("__bucket", "__offset", "__timestamp")
        return pa.schema([field for field in self._source.schema if field.name not in hidden])

    @cached_property
    def _read_schema(self) -> pa.Schema:
        """The columns of the result, and those of the filter."""
        names = set(self._schema.names)
        if self._request.predicate is not None:
            names |= self._request.predicate.columns()
        return pa.schema([field for field in self._visible if field.name in names])

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def reader(self) -> RowReader:
        return BatchRowReader(self._schema, self._read(), self._request.limit)

    def _read(self) -> Iterator[pa.RecordBatch]:
        if self._snapshot_id is None:
            return
        source = self._narrowed()
        for split in source.create_planner(self._snapshot_id).plan():
            with source.create_record_reader(split) as reader:
                for batch in reader.read():
                    rows = batch if self._bound is None else filter_rows(batch, self._bound)
                    yield rows.select(self._schema.names)

    def _narrowed(self) -> LakeSource:
        positions = {name: index for index, name in enumerate(self._source.schema.names)}
        source = self._source.with_project([[positions[name]] for name in self._read_schema.names])
        parts: tuple[Predicate, ...] = conjuncts(self._request.predicate)
        return source.with_filters(parts).source if parts else source

    def pinned(self) -> Scan:
        return self

    def explain(self) -> str:
        return f"Iceberg table, snapshot {self._snapshot_id}, columns {', '.join(self._schema.names)}"

    def plan(self) -> Sequence[Any]:
        return [None]

    def read_split(self, split: Any) -> RowReader:
        return self.reader()

    def _with(self, request: ScanRequest) -> Self:
        if request.as_of is not None or request.partitions is not None or request.buckets is not None:
            raise UnsupportedOperation("a scan of an Iceberg table has columns, a filter and a limit")
        return type(self)(self._source, self._snapshot_id, request)
