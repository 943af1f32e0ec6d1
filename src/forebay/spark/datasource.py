"""The format "forebay" of `spark.read`, `spark.readStream` and `df.write.format(...)`, also with Spark Connect.

Both formats share `SideDataSource`, `Target` and `BatchReader`; forebay.spark.lake_datasource has "forebay-paimon".

Options of "forebay": `bootstrap.servers` and `table` (or the path: `.load("sales.orders")`); `user`, `password`;
`columns` ("a, b"); for reads `filter` (SQL) and `limit`; `client.*`. The table may be a `$changelog` or a `$binlog`.

Rule: columns, filters and limits are options; `pushFilters` is not implemented. PySpark keeps one read plan for all
uses of a DataFrame, so a filter of one use would silently apply to all of them. The catalog of `forebay.spark.attach`
does not have this problem and pushes everything down automatically.

Everything here runs in Python processes of Spark, some of them without a Spark session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)
from pyspark.sql.types import StructField, StructType

from forebay.base import options as parsers
from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest, NotFound, UnsupportedOperation
from forebay.base.options import Option, by_name
from forebay.client.connection import shared_connection
from forebay.client.settings import LAKE_OPTIONS, Settings
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import TableInfo, TablePath
from forebay.spark.filters import predicate_of
from forebay.spark.jvm.releases import streams_have_limits, streams_write_arrow
from forebay.spark.options import (
    ATOMIC,
    FORMAT_NAME,
    LAKE_PREFIX,
    MAX_ROWS,
    OF_FORMATS,
    SEQUENCE_FIELD,
    SINK_OPTIONS,
    TRANSACTION_OPTIONS,
    OptionReader,
    ReadOptions,
    cluster_settings,
    deletes_option,
    read_options,
    stream_options,
    transaction_option,
)
from forebay.spark.reading.live_changes import scan_of
from forebay.spark.reading.live_plan import BINLOG, CHANGELOG, ClusterScan, metadata_fields
from forebay.spark.reading.live_read import TaskRead
from forebay.spark.reading.plan import (
    DEFAULT_CORES,
    SYSTEM_SEPARATOR,
    Pushdown,
    SplitsPartition,
)
from forebay.spark.schemas import spark_arrow_schema
from forebay.spark.workers import hide_traceback, short_errors

if TYPE_CHECKING:  # a process of a stream, which has ten seconds to begin, needs nothing of writes
    from forebay.spark.streaming.planner import StreamPlanner
    from forebay.spark.writing.live_write import Replaced, WriteFunction

_OPTIONS = by_name(
    [
        *map(Option, ("bootstrap.servers", "table", "path", "user", "password")),
        *OF_FORMATS.values(),
        *TRANSACTION_OPTIONS,
        Option(ATOMIC, parsers.boolean, True),
        Option(SEQUENCE_FIELD),
        *SINK_OPTIONS,
    ]
)


class SideDataSource(DataSource):
    """The data source behind `format(...)`. Subclasses define how options name a table."""

    def target(self) -> Target:
        """The table that the options name. Raises `InvalidRequest` for wrong options, `NotFound` without the table."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its options mean")

    def schema(self) -> StructType:
        """Return the schema of the table, or of the requested columns."""
        with short_errors():
            return self.target().schema

    def reader(self, schema: StructType) -> DataSourceReader:
        with short_errors():
            return self.target().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader, which raises `UnsupportedOperation` before Spark 4.2."""
        try:
            if not streams_have_limits():
                raise UnsupportedOperation(
                    f"readStream.format('{self.name()}') needs Spark 4.2 or newer; readStream.table() of a catalog's "
                    "table does not (forebay.spark.attach)"
                )
            from forebay.spark.streaming.reader import StreamReader

            return StreamReader(self.target().stream_planner(schema))
        except ForebayError as e:
            return _NoStream(e)


class _NoStream(DataSourceStreamReader):
    """A reader whose methods raise an error: Spark's process loses the message of an error in creating a reader."""

    def __init__(self, reason: ForebayError) -> None:
        self._reason = reason

    def _refuse(self) -> NoReturn:
        hide_traceback()
        raise self._reason

    def initialOffset(self) -> dict[str, Any]:
        self._refuse()

    def latestOffset(self, *start_and_limit: Any) -> dict[str, Any]:
        self._refuse()

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._refuse()


class TaskScan(Protocol):
    """The scan of a format's target."""

    @property
    def schema(self) -> StructType:
        """The schema that Spark sees."""

    def read_function(self, pushdown: Pushdown, schema: StructType) -> TaskRead: ...

    def partitions(self, cores: int, pushdown: Pushdown, schema: StructType) -> Sequence[InputPartition]:
        """The input partitions of a batch: a single one with a limit, which Spark does not apply across tasks."""


class Target:
    """The table named by a format's options, and how to read it. Raises for unknown options and columns."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        """`options` are values of `OF_FORMATS`."""
        self.name = name
        self.columns: tuple[str, ...] | None = options.get("columns")
        self._filter, self._limit = options.get("filter"), options.get("limit")
        self.cores: int = options.get("cores") or DEFAULT_CORES

    # ---- what subclasses say ----------------------------------------------------------------------------------------

    def scan(self) -> TaskScan:
        """The scan of a batch."""
        raise NotImplementedError(f"{type(self).__name__} has no scan")

    def predicate(self, text: str) -> Predicate:
        """The filter parsed from `text`."""
        raise NotImplementedError(f"{type(self).__name__} has no filters")

    def stream_planner(self, schema: StructType) -> StreamPlanner[Any]:
        """The planner of a stream."""
        raise NotImplementedError(f"{type(self).__name__} has no streams")

    @property
    def full_schema(self) -> StructType:
        """The schema of all columns of the table."""
        raise NotImplementedError(f"{type(self).__name__} has no schema")

    @property
    def metadata_fields(self) -> Sequence[StructField]:
        """The fields of columns that are read only if they are requested by name."""
        return ()

    @property
    def partition_keys(self) -> tuple[str, ...]:
        """The partition keys, by which partitions are pruned before anything else is planned."""
        return ()

    # ---- what both sides share --------------------------------------------------------------------------------------

    @property
    def schema(self) -> StructType:
        """The fields of the requested columns, in that order."""
        return self.full_schema if self.columns is None else self._fields(self.columns)

    def _fields(self, names: Sequence[str]) -> StructType:
        full = self.full_schema
        if not set(names) <= set(full.names):
            full = StructType([*full.fields, *self.metadata_fields])
        missing = [name for name in names if name not in full.names]
        if missing:
            raise NotFound(
                f"table {self.name} has no column {', '.join(map(repr, missing))}; it has {', '.join(full.names)}",
                ErrorCode.CLIENT_ERROR,
            )
        return StructType([full[name] for name in names])

    def pushdown(self, schema: StructType) -> Pushdown:
        """The pushed-down columns, filters and limit for Spark's `schema`."""
        self._fields(schema.fieldNames())
        predicate = None if self._filter is None else self.predicate(self._filter)
        of_partitions = predicate is not None and predicate.columns() <= set(self.partition_keys)
        return Pushdown(
            tuple(schema.fieldNames()),
            (predicate,) if predicate is not None and of_partitions else (),
            None if of_partitions else predicate,
            self._limit,
        )

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(self.scan(), self.pushdown(schema), schema, self.cores)

    def refuse_limit(self) -> None:
        """Raise `InvalidRequest` for a limit, which streams do not support."""
        if self._limit is not None:
            raise InvalidRequest(f"a stream has no option 'limit', but '{MAX_ROWS}'", ErrorCode.CONFIG_EXCEPTION)


class BatchReader(DataSourceReader):
    """Plans in `partitions` and reads in `read`. Spark pickles it for the workers before planning."""

    def __init__(self, scan: TaskScan, pushdown: Pushdown, schema: StructType, cores: int) -> None:
        self._scan, self._pushdown, self._schema, self._cores = scan, pushdown, schema, cores
        self._function = scan.read_function(pushdown, schema)

    def partitions(self) -> list[InputPartition]:
        return [*self._scan.partitions(self._cores, self._pushdown, self._schema)] or [SplitsPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SplitsPartition):
            raise InvalidRequest(f"{partition!r} is not a partition of this reader")
        yield from self._function.read(partition)


# ---- tables of a cluster --------------------------------------------------------------------------------------------


class ForebayDataSource(SideDataSource):
    """The format "forebay"."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def target(self) -> LiveTarget:
        return LiveTarget.of(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        with short_errors():
            return self.target().writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Raises `UnsupportedOperation` before Spark 4.1."""
        with short_errors():
            if not streams_write_arrow():
                raise UnsupportedOperation(
                    f"writeStream.format('{self.name()}') needs Spark 4.1 or newer; toTable() of a catalog's table "
                    "does not"
                )
            return self.target().stream_writer(schema, overwrite)


class LiveTarget(Target):
    """A table of a cluster, its changelog or its binlog."""

    def __init__(self, settings: Settings, name: str, option_reader: OptionReader) -> None:
        self.settings = settings
        self.option_reader = option_reader
        table, separator, self.system = name.rpartition(SYSTEM_SEPARATOR)
        if not separator:
            table, self.system = name, ""
        elif self.system not in (CHANGELOG, BINLOG):
            raise NotFound(
                f"format '{FORMAT_NAME}' reads tables and their ${CHANGELOG} and ${BINLOG}, not '{name}'",
                ErrorCode.CLIENT_ERROR,
            )
        self.info: TableInfo = shared_connection(settings).admin.table_info(TablePath.parse(table))
        super().__init__(str(self.info.path), {name: option_reader.take(name) for name in OF_FORMATS})

    @classmethod
    def of(cls, options: Mapping[str, str]) -> LiveTarget:
        """Raises `InvalidRequest` for missing options, `NotFound` for a missing table."""
        option_reader = OptionReader.of("format 'forebay'", options, _OPTIONS)
        table, path = option_reader.take("table"), option_reader.take("path")
        if table is None and path is None:
            raise InvalidRequest(
                "format 'forebay' needs the option 'table' (database.table)", ErrorCode.CONFIG_EXCEPTION
            )
        if table is not None and path is not None and table != path:
            raise InvalidRequest(f"two tables were named: '{table}' and '{path}'", ErrorCode.CONFIG_EXCEPTION)
        servers = option_reader.take("bootstrap.servers")
        if servers is None:
            raise InvalidRequest(
                "format 'forebay' needs the option 'bootstrap.servers' (host:port)", ErrorCode.CONFIG_EXCEPTION
            )
        lake = {name.removeprefix(LAKE_PREFIX): value for name, value in option_reader.take_all(LAKE_PREFIX).items()}
        client = {**option_reader.take_all("client."), LAKE_OPTIONS: lake}
        settings = cluster_settings(servers, option_reader.take("user"), option_reader.take("password"), client)
        return cls(settings, table or path or "", option_reader)

    @property
    def full_schema(self) -> StructType:
        deletes = deletes_option(self.option_reader.values)
        return scan_of(self.info, ReadOptions(self.settings), self.system, deletes).schema

    @property
    def metadata_fields(self) -> Sequence[StructField]:
        return metadata_fields(self.info, self.system)

    @property
    def partition_keys(self) -> tuple[str, ...]:
        return self.info.descriptor.partition_keys

    def predicate(self, text: str) -> Predicate:
        if self.system == BINLOG:
            raise UnsupportedOperation(f"{self.name}${BINLOG} has rows in its columns, and takes no option 'filter'")
        return predicate_of(text, self.info.schema.columns)

    def scan(self) -> ClusterScan:
        options = read_options(self.settings, self.info.descriptor, self.option_reader.values)
        return scan_of(self.info, options, self.system)

    def stream_planner(self, schema: StructType) -> StreamPlanner[Any]:
        """Raises `InvalidRequest` and `UnsupportedOperation` for options that a stream of the table does not have."""
        from forebay.spark.streaming.live_planner import LiveStreamPlanner

        self.refuse_limit()
        of_log = self.system in (CHANGELOG, BINLOG)
        options = stream_options(self.settings, self.info.descriptor, self.option_reader.values, is_changelog=of_log)
        scan = scan_of(self.info, options.read, self.system, options.deletes)
        pushdown = self.pushdown(schema)  # a stream lists its partitions for each batch
        pushdown = Pushdown(pushdown.columns, (), pushdown.filter)
        return LiveStreamPlanner(scan, options, pushdown, schema, self.cores)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Raises `InvalidRequest` for unknown options and for a schema that cannot be written."""
        from forebay.spark.writing.live_sink import ForebayWriter
        from forebay.spark.writing.live_write import begin_statement

        transaction, is_atomic = transaction_option(self.option_reader), self.option_reader.take(ATOMIC)
        function, replaced = self._write(schema, overwrite)
        staged = begin_statement(self.settings, transaction, overwrite, self.info, is_atomic)
        return ForebayWriter(replace(function, staged=staged), replaced)

    def stream_writer(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer of a stream. Raises as `writer`."""
        from forebay.spark.writing.live_stream_sink import ForebayStreamWriter
        from forebay.spark.writing.live_write import require_transactions

        function, replaced = self._write(schema, overwrite)
        if overwrite:
            require_transactions(self.settings, self.info)
        return ForebayStreamWriter(replace(function, in_stream=True), replaced)

    def _write(self, schema: StructType, overwrite: bool) -> tuple[WriteFunction, Replaced | None]:
        from forebay.spark.writing.live_write import Replaced, check_replaceable, write_function

        for name, text in (("filter", self._filter), ("limit", self._limit)):
            if text is not None:
                raise InvalidRequest(f"a write has no option '{name}'", ErrorCode.CONFIG_EXCEPTION)
        if self.option_reader.take(SEQUENCE_FIELD) is not None:
            raise UnsupportedOperation(
                f"format '{FORMAT_NAME}' has no '{SEQUENCE_FIELD}', since it cannot move rows between tasks: write "
                "through a catalog (forebay.spark.attach), or use df.repartition(key).sortWithinPartitions(column)"
            )
        for own in SINK_OPTIONS:
            self.option_reader.take(own.name)
        self.option_reader.take_rest(self.settings)
        if self.system:
            raise InvalidRequest(f"{self.info.path}{SYSTEM_SEPARATOR}{self.system} can only be read")
        if overwrite:
            check_replaceable(self.info)
        function = write_function(self.info, self.settings, self.columns)
        function.check(spark_arrow_schema(schema))
        return function, Replaced() if overwrite else None
