"""The format "forebay": `spark.read`, `spark.readStream` and `df.write.format("forebay")`, also with Spark Connect.

Options: `bootstrap.servers` and `table` (or the path: `.load("sales.orders")`); `user`, `password`; `columns` ("a, b");
for reads `filter` (forebay.spark.filter_text) and `limit`; `client.*`. The table may be a `$changelog`.

Rule: columns, filters and limits come as options, never by `pushFilters`. PySpark keeps one read plan for all uses of a
DataFrame, so a filter that is pushed once filters all of them: silently wrong results. The catalog of
`forebay.spark.attach` does not have this problem, and pushes everything down automatically.

Everything here runs in Python processes of Spark, some of them without a Spark session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from forebay.base.errors import ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.client.connection import Connection, shared_connection
from forebay.client.settings import LAKE_OPTIONS, Settings, make_settings
from forebay.metadata.table import TableInfo, TablePath
from forebay.spark.filter_text import parse_filter
from forebay.spark.jvm.releases import streams_have_limits
from forebay.spark.options import FORMAT_NAME, LAKE_PREFIX, GivenOptions, positive_integer, read_options, split_names
from forebay.spark.reading.live_plan import CHANGELOG, VIRTUAL_SEPARATOR, LiveScan, task_partitions
from forebay.spark.reading.live_read import SplitsPartition
from forebay.spark.reading.scan_plan import Pushdown
from forebay.spark.reading.task_sizes import DEFAULT_CORES, keeping_limit
from forebay.spark.schemas import spark_arrow_schema
from forebay.spark.streaming_options import MAX_ROWS, stream_options
from forebay.spark.worker_errors import short_errors
from forebay.spark.writing.live_write import WriteFunction, write_function

_CHANGELOG_SUFFIX = VIRTUAL_SEPARATOR + CHANGELOG

_OWN = ("bootstrap.servers", "table", "path", "user", "password", "columns", "filter", "limit", "cores")


class ForebayDataSource(DataSource):
    """What Spark makes of `format("forebay")`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Return the schema of the table, or of the requested columns."""
        with short_errors():
            target = Target.of(self.options)
            return target.schema(target.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        with short_errors():
            return Target.of(self.options).reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        with short_errors():
            target = Target.of(self.options)
            if overwrite:
                raise UnsupportedOperation(
                    f"table {target.info.path} cannot be overwritten as a whole: use mode('append'), which upserts "
                    "into tables with a primary key"
                )
            return target.writer(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        with short_errors():
            return Target.of(self.options).stream_reader(schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        raise UnsupportedOperation(
            "writeStream.format('forebay') is not served yet: write each batch in foreachBatch with df.write"
        )


class Target:
    """The table that options name, and how it is to be read or written."""

    def __init__(self, settings: Settings, name: str, given: GivenOptions) -> None:
        self.settings = settings
        self.given = given
        self.is_changelog = name.endswith(_CHANGELOG_SUFFIX)
        self.info: TableInfo = self.connection.admin.table_info(TablePath.parse(name.removesuffix(_CHANGELOG_SUFFIX)))
        columns = given.take("columns")
        self.columns = None if columns is None else split_names(columns)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Target:
        """Raises `InvalidRequest` for missing options, `NotFound` for a missing table."""
        given = GivenOptions.of("format 'forebay'", options, _OWN)
        table, path = given.take("table"), given.take("path")
        if table is None and path is None:
            raise InvalidRequest(
                "format 'forebay' needs the option 'table' (database.table)", ErrorCode.CONFIG_EXCEPTION
            )
        if table is not None and path is not None and table != path:
            raise InvalidRequest(f"two tables were named: '{table}' and '{path}'", ErrorCode.CONFIG_EXCEPTION)
        servers = given.take("bootstrap.servers")
        if servers is None:
            raise InvalidRequest(
                "format 'forebay' needs the option 'bootstrap.servers' (host:port)", ErrorCode.CONFIG_EXCEPTION
            )
        client: dict[str, Any] = {n: given.values.pop(n) for n in list(given.values) if n.startswith("client.")}
        lake = {name: given.values.pop(name) for name in list(given.values) if name.startswith(LAKE_PREFIX)}
        client_and_lake = {**client, LAKE_OPTIONS: {name.removeprefix(LAKE_PREFIX): v for name, v in lake.items()}}
        settings = make_settings(servers, given.take("user"), given.take("password"), client_and_lake)
        return cls(settings, table or path or "", given)

    @property
    def connection(self) -> Connection:
        return shared_connection(self.settings)

    def scan(self, options: Mapping[str, str]) -> LiveScan:
        """The scan of the table with these read options."""
        chosen = read_options(self.settings, self.info.descriptor, options)
        return LiveScan(self.info, chosen, self.is_changelog)

    def schema(self, columns: tuple[str, ...] | None) -> StructType:
        """The fields of `columns`, in that order. Raises `NotFound` for one that the table does not have."""
        full = self.scan({}).schema
        if columns is None:
            return full
        missing = [name for name in columns if name not in full.names]
        if missing:
            raise NotFound(
                f"table {self.info.path} has no column {', '.join(map(repr, missing))}; it has {', '.join(full.names)}",
                ErrorCode.CLIENT_ERROR,
            )
        return StructType([full[name] for name in columns])

    def reader(self, schema: StructType) -> ForebayReader:
        """Raises `InvalidRequest` for unknown options and bad filters."""
        self.schema(tuple(schema.fieldNames()))
        given = self.given
        limit, cores, text = given.take("limit"), given.take("cores"), given.take("filter")
        predicate = None if text is None else parse_filter(text, self.info.schema.columns)
        of_partitions = predicate is not None and predicate.columns() <= set(self.info.descriptor.partition_keys)
        wanted = Pushdown(
            tuple(schema.fieldNames()),
            (predicate,) if predicate is not None and of_partitions else (),
            None if of_partitions else predicate,
            None if limit is None else positive_integer("limit", limit),
        )
        planned_cores = DEFAULT_CORES if cores is None else positive_integer("cores", cores)
        return ForebayReader(self.scan(given.values), wanted, schema, planned_cores)

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """Raises `InvalidRequest` for unknown options and bad filters, `UnsupportedOperation` before Spark 4.2."""
        if not streams_have_limits():
            raise UnsupportedOperation("readStream.format('forebay') needs Spark 4.2 or newer")
        from forebay.spark.streaming.live_reader import ForebayStreamReader

        self.schema(tuple(schema.fieldNames()))
        given = self.given
        if given.take("limit") is not None:
            raise InvalidRequest(f"a stream has no option 'limit', but '{MAX_ROWS}'", ErrorCode.CONFIG_EXCEPTION)
        cores, text = given.take("cores"), given.take("filter")
        predicate = None if text is None else parse_filter(text, self.info.schema.columns)
        options = stream_options(self.settings, self.info.descriptor, given.values, is_changelog=self.is_changelog)
        return ForebayStreamReader(
            LiveScan(self.info, options.read, self.is_changelog),
            options,
            Pushdown(tuple(schema.fieldNames()), (), predicate),
            schema,
            DEFAULT_CORES if cores is None else positive_integer("cores", cores),
        )

    def writer(self, schema: StructType) -> ForebayWriter:
        """Raises `InvalidRequest` for unknown options and for what cannot be written."""
        for name in ("filter", "limit"):
            if self.given.take(name) is not None:
                raise InvalidRequest(f"a write has no option '{name}'", ErrorCode.CONFIG_EXCEPTION)
        self.given.take("cores")
        self.given.refuse_rest()
        if self.is_changelog:
            raise InvalidRequest(f"{self.info.path}{_CHANGELOG_SUFFIX} can only be read")
        columns = self.columns
        if columns is None and len(schema.names) < len(self.info.schema.names):
            columns = tuple(schema.names)
        function = write_function(self.info, self.settings, columns)
        function.check(spark_arrow_schema(schema))
        return ForebayWriter(function)


class ForebayReader(DataSourceReader):
    """Plans in `partitions`, reads in `read`. Spark pickles it for the workers before it plans."""

    def __init__(self, scan: LiveScan, wanted: Pushdown, schema: StructType, cores: int) -> None:
        self._scan = scan
        self._wanted = wanted
        self._cores = cores
        self._function = scan.read_function(wanted, schema)

    def partitions(self) -> list[InputPartition]:
        connection = shared_connection(self._scan.options.settings)
        tasks = keeping_limit(self._scan.tasks(connection, self._cores, self._wanted), self._wanted.limit)
        snapshot = None
        if self._scan.options.lease.is_asked_for:
            # This process ends before the tasks begin, and is not notified when the last one has ended.
            opened = self._scan.open_snapshot(connection, tasks)
            snapshot = None if opened is None else opened.keep()
        return [*task_partitions(tasks, snapshot)] or [SplitsPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SplitsPartition):
            raise InvalidRequest(f"{partition!r} is not a partition of this reader")
        with short_errors(f"reading table {self._scan.info.path}"):
            yield from self._function.read(partition)


class ForebayWriter(DataSourceArrowWriter):
    """Writes tasks; nothing is left to commit."""

    def __init__(self, function: WriteFunction) -> None:
        self._function = function

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with short_errors(f"writing to table {self._function.info.path}"):
            return self._function.write(iterator)
