"""The format "forebay-paimon": `spark.read`, `spark.readStream` and `df.write`, also with Spark Connect.

A table is named by its directory (`.load("lake/sales.db/orders")`, option `path`), or by `table` (`sales.orders`) and
the options of its catalog with the prefix `catalog.` (`catalog.warehouse`). Object stores take their options with that
prefix, too. Behind the name may stand a branch and a side table: `orders$branch_test$audit_log`. For reads: `columns`
("a, b"), `filter` (forebay.spark.filter_text), `limit`, and Paimon's options (forebay.spark.lake_options).

Rule: columns, filters and limits come as options, never by `pushFilters`. PySpark keeps one read plan for all uses of a
DataFrame, so a filter that is pushed once filters all of them: silently wrong results. The catalog of
`forebay.spark.attach` does not have this problem, and pushes everything down automatically.

Everything here runs in Python processes of Spark, some of them without a Spark session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from forebay.base.errors import ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata.predicate import Predicate
from forebay.paimon.io.opening import open_file_io
from forebay.paimon.store.paths import MAIN_BRANCH
from forebay.paimon.table import Table
from forebay.spark.filter_text import parse_filter
from forebay.spark.jvm.releases import streams_have_limits, streams_write_arrow
from forebay.spark.lake_context import shared_catalog
from forebay.spark.lake_options import (
    CATALOG_PREFIX,
    COLUMNS,
    CORES,
    FILTER,
    FORMAT_NAME,
    LIMIT,
    MAX_ROWS,
    OWN,
    SCHEMA_ID,
    PaimonReadOptions,
    paimon_read_options,
)
from forebay.spark.options import positive_integer, split_names
from forebay.spark.reading.lake_plan import READ_OPTIMIZED, PaimonScan
from forebay.spark.reading.lake_read import PaimonPartition
from forebay.spark.reading.scan_plan import Pushdown
from forebay.spark.reading.task_sizes import DEFAULT_CORES, keeping_limit
from forebay.spark.worker_errors import short_errors

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

_SIDE, _BRANCH = "$", "branch_"
_TABLE_OPTIONS = ("table", "path", "branch", SCHEMA_ID)


class PaimonDataSource(DataSource):
    """What Spark makes of `format("forebay-paimon")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Return the schema of the table, or of the requested columns."""
        with short_errors():
            return PaimonSource.of(self.options).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        with short_errors():
            return PaimonSource.of(self.options).reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with short_errors():
            return PaimonSource.of(self.options).stream_reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from forebay.spark.writing.lake_sink import PaimonSink

        with short_errors():
            return PaimonSink(*_to_write(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Raises `UnsupportedOperation` before Spark 4.1, whose stream writers take rows one by one."""
        with short_errors():
            if not streams_write_arrow():
                raise UnsupportedOperation(
                    f"writeStream.format('{FORMAT_NAME}') needs Spark 4.1 or newer; toTable() of a catalog's table "
                    "(forebay.spark.attach) works"
                )
            from forebay.spark.writing.lake_stream_sink import PaimonStreamSink

            return PaimonStreamSink(*_to_write(self.options), schema, overwrite)


@dataclass(frozen=True)
class LakeAddress:
    """Where a table is. `name` is its directory or, with a `catalog`, its name there; what it is called in errors.

    `side` is what stands beside the table ("audit_log"); None is the table itself.
    """

    name: str
    catalog: tuple[tuple[str, str], ...]
    is_path: bool
    branch: str = MAIN_BRANCH
    side: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> LakeAddress:
        """Raises `InvalidRequest` where no table is named, or two are."""
        given = {key.lower(): value for key, value in options.items()}
        catalog = tuple(
            sorted((key.removeprefix(CATALOG_PREFIX), v) for key, v in given.items() if key.startswith(CATALOG_PREFIX))
        )
        path, table = given.get("path"), given.get("table")
        if table is None and catalog and "/" not in (path or "/"):
            table, path = path, None  # .load("sales.orders") beside the options of a catalog
        if (path is None) == (table is None):
            raise InvalidRequest(
                f"format '{FORMAT_NAME}' needs the directory of a table (load(path)), or the option 'table' "
                f"(database.table) and a catalog's options, such as '{CATALOG_PREFIX}warehouse'; not both",
                ErrorCode.CONFIG_EXCEPTION,
            )
        if table is not None and not catalog:
            raise InvalidRequest(
                f"option 'table' ('{table}') needs its catalog: '{CATALOG_PREFIX}warehouse' and, where it is no "
                f"directory, '{CATALOG_PREFIX}metastore' and '{CATALOG_PREFIX}uri'",
                ErrorCode.CONFIG_EXCEPTION,
            )
        name, branch, side = _divided(table or path or "")
        return cls(name.rstrip("/"), catalog, path is not None, given.get("branch") or branch or MAIN_BRANCH, side)

    def open(self) -> Table:
        """Raises `NotFound`."""
        if not self.is_path:
            return shared_catalog(self.catalog).table(self.name, branch=self.branch)
        try:
            return Table(open_file_io(self.name, dict(self.catalog)), self.name, branch=self.branch)
        except NotFound as e:
            raise NotFound(f"there is no table at {self.name}", ErrorCode.TABLE_NOT_EXIST) from e


def _divided(name: str) -> tuple[str, str | None, str | None]:
    """(table, branch, side table) of `orders$branch_test$files`."""
    folder, slash, last = name.rpartition("/")
    table, *parts = last.split(_SIDE)
    branch = parts.pop(0).removeprefix(_BRANCH) if parts and parts[0].startswith(_BRANCH) else None
    return folder + slash + table, branch, _SIDE.join(parts) or None


def _to_write(options: Mapping[str, str]) -> tuple[str, Table, dict[str, str]]:
    """Name and table of a write, and its other options."""
    address = LakeAddress.of(options)
    if address.side is not None:
        raise InvalidRequest(f"{address.name}${address.side} can only be read")
    return address.name, address.open(), _others(options)


def _others(options: Mapping[str, str]) -> dict[str, str]:
    """The options that do not say where a table is."""
    return {
        key: value
        for key, value in options.items()
        if key.lower() not in _TABLE_OPTIONS and not key.lower().startswith(CATALOG_PREFIX)
    }


@dataclass(frozen=True)
class PaimonSource:
    """The table that options name, and how it is to be read."""

    scan: PaimonScan
    options: PaimonReadOptions
    table: Table

    @classmethod
    def of(cls, options: Mapping[str, str]) -> PaimonSource:
        """Raises `InvalidRequest` for missing and unknown options, `NotFound` for a missing table."""
        address = LakeAddress.of(options)
        read = paimon_read_options(_others(options), own=OWN)
        side = address.side
        if read.changelog:
            if side is not None:
                raise InvalidRequest(f"'read.changelog' is for tables, and not for {address.name}${side}")
            side = "changelog"
        table = address.open()
        # Of the columns of now: Spark asks for these before it says whether a snapshot is where a stream begins.
        scan = PaimonScan.of(table, address.name, side).with_options(read.table)
        schema_id = {key.lower(): value for key, value in options.items()}.get(SCHEMA_ID)
        if schema_id is not None and int(schema_id) != scan.table.schema.id:
            planned = table.context.schemas.schema(int(schema_id)).with_options(scan.table.schema.options)
            scan = replace(scan, table=scan.table.with_schema(planned))
        return cls(scan, read, table)

    @property
    def schema(self) -> StructType:
        """The fields of the columns that were asked for, in that order."""
        named = self.options.own.get(COLUMNS)
        return self._fields(self.scan.schema.names if named is None else split_names(named))

    def _fields(self, names: tuple[str, ...] | list[str]) -> StructType:
        full = self.scan.schema
        missing = [name for name in names if name not in full.names]
        if missing:
            raise NotFound(
                f"table {self.scan.name} has no column {', '.join(map(repr, missing))}; it has {', '.join(full.names)}",
                ErrorCode.CLIENT_ERROR,
            )
        return StructType([full[name] for name in names])

    def wanted(self, schema: StructType) -> Pushdown:
        """What is asked for, with Spark's `schema`. Raises `InvalidRequest` for bad filters and limits."""
        self._fields(schema.fieldNames())
        limit = self.options.own.get(LIMIT)
        return Pushdown(
            tuple(schema.fieldNames()),
            (),
            self._predicate(),
            None if limit is None else positive_integer(LIMIT, limit),
        )

    def _predicate(self) -> Predicate | None:
        text = self.options.own.get(FILTER)
        if text is None:
            return None
        if not self.scan.columns:
            raise UnsupportedOperation(f"{self.scan.name}${self.scan.side} has lists for columns, and takes no filter")
        return parse_filter(text, self.scan.columns)

    @property
    def cores(self) -> int:
        text = self.options.own.get(CORES)
        return DEFAULT_CORES if text is None else positive_integer(CORES, text)

    def reader(self, schema: StructType) -> PaimonReader:
        self.options.refuse_for_batches()
        return PaimonReader(self.scan, self.wanted(schema), schema, self.cores)

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """Raises `UnsupportedOperation` before Spark 4.2, and for what has no changes."""
        if not streams_have_limits():
            raise UnsupportedOperation(f"readStream.format('{FORMAT_NAME}') needs Spark 4.2 or newer")
        if self.scan.side == READ_OPTIMIZED:
            raise UnsupportedOperation(f"{self.scan.name}$ro cannot be read as a stream; the table can")
        if LIMIT in self.options.own:
            raise InvalidRequest(f"a stream has no option '{LIMIT}', but '{MAX_ROWS}'", ErrorCode.CONFIG_EXCEPTION)
        from forebay.spark.streaming.lake_reader import PaimonStreamReader

        return PaimonStreamReader(self.scan, self.wanted(schema), schema, self.options.limits, self.cores)


class PaimonReader(DataSourceReader):
    """Plans in `partitions`, reads in `read`. Spark pickles it for the workers before it plans."""

    def __init__(self, scan: PaimonScan, wanted: Pushdown, schema: StructType, cores: int) -> None:
        self._scan, self._wanted, self._schema, self._cores = scan, wanted, schema, cores
        self._function = scan.read_function(wanted, schema)

    def partitions(self) -> list[InputPartition]:
        with short_errors(f"planning a read of table {self._scan.name}"):
            tasks = self._scan.plan(self._cores, self._wanted, self._schema).tasks
        return [PaimonPartition(task) for task in keeping_limit(tasks, self._wanted.limit)] or [PaimonPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, PaimonPartition):
            raise InvalidRequest(f"{partition!r} is not a partition of this reader")
        yield from self._function.read(partition)
