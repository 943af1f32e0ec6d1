"""The format "forebay-paimon": `spark.read`, `spark.readStream` and `df.write`, also with Spark Connect.

A table is named by its directory (`.load("lake/sales.db/orders")`, option `path`), or by `table` (`sales.orders`) and
the options of its catalog with the prefix `catalog.` (`catalog.warehouse`). Options of object stores have that prefix,
too. The name may have a branch and a system table: `orders$branch_test$audit_log`. Options of reads: `columns`
("a, b"), `filter` (SQL), `limit`, and Paimon's options (forebay.spark.lake_options).

forebay.spark.datasource has the classes that both formats share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
)
from pyspark.sql.types import StructType

from forebay.base.errors import ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.base.locations import located, location
from forebay.metadata.predicate import Predicate
from forebay.paimon.io.opening import open_file_io
from forebay.paimon.store.paths import MAIN_BRANCH
from forebay.paimon.table import Table
from forebay.spark.context import shared_catalog
from forebay.spark.datasource import SideDataSource, Target
from forebay.spark.filters import predicate_of
from forebay.spark.jvm.releases import streams_write_arrow
from forebay.spark.lake_options import (
    CATALOG_PREFIX,
    FORMAT_NAME,
    lake_read_options,
)
from forebay.spark.options import OF_FORMATS
from forebay.spark.reading.lake_plan import READ_OPTIMIZED, PaimonScan
from forebay.spark.reading.plan import SYSTEM_SEPARATOR
from forebay.spark.workers import short_errors

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    from forebay.spark.streaming.planner import StreamPlanner

_BRANCH = "branch_"
_TABLE_OPTIONS = ("table", "path", "branch")


class PaimonDataSource(SideDataSource):
    """The format "forebay-paimon"."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def target(self) -> LakeTarget:
        return LakeTarget(self.options)

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
    """The address of a table. `name` is its directory or, with a `catalog`, its name there; errors contain it.

    `system` is a system table ("audit_log"); None is the table itself.
    """

    name: str
    catalog: tuple[tuple[str, str], ...]
    is_path: bool
    branch: str = MAIN_BRANCH
    system: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> LakeAddress:
        """Raises `InvalidRequest` unless the options name exactly one table."""
        by_name = {key.lower(): value for key, value in options.items()}
        # Absolute: workers also open the table, and have other working directories.
        of_catalog = {
            key.removeprefix(CATALOG_PREFIX): v for key, v in by_name.items() if key.startswith(CATALOG_PREFIX)
        }
        catalog = tuple(sorted(located(of_catalog).items()))
        path, table = by_name.get("path"), by_name.get("table")
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
        name, branch, system = _divided(table or path or "")
        name = location(name, "the directory of the table") if path is not None else name.rstrip("/")
        return cls(name, catalog, path is not None, by_name.get("branch") or branch or MAIN_BRANCH, system)

    def open(self) -> Table:
        """Raises `NotFound`."""
        if not self.is_path:
            return shared_catalog(self.catalog).table(self.name, branch=self.branch)
        try:
            return Table(open_file_io(self.name, dict(self.catalog)), self.name, branch=self.branch)
        except NotFound as e:
            raise NotFound(f"there is no table at {self.name}", ErrorCode.TABLE_NOT_EXIST) from e


def _divided(name: str) -> tuple[str, str | None, str | None]:
    """(table, branch, system table) of `orders$branch_test$files`."""
    folder, slash, last = name.rpartition("/")
    table, *parts = last.split(SYSTEM_SEPARATOR)
    branch = parts.pop(0).removeprefix(_BRANCH) if parts and parts[0].startswith(_BRANCH) else None
    return folder + slash + table, branch, SYSTEM_SEPARATOR.join(parts) or None


def _to_write(options: Mapping[str, str]) -> tuple[str, Table, dict[str, str]]:
    """The name and the table of a write, and its other options."""
    address = LakeAddress.of(options)
    if address.system is not None:
        raise InvalidRequest(f"{address.name}${address.system} can only be read")
    return address.name, address.open(), _others(options)


def _others(options: Mapping[str, str]) -> dict[str, str]:
    """The options that do not locate a table."""
    return {
        key: value
        for key, value in options.items()
        if key.lower() not in _TABLE_OPTIONS and not key.lower().startswith(CATALOG_PREFIX)
    }


class LakeTarget(Target):
    """A lake table, or one of its system tables."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Raises `InvalidRequest` for missing and unknown options, `NotFound` for a missing table."""
        address = LakeAddress.of(options)
        read = lake_read_options(_others(options), own=OF_FORMATS)
        system = address.system
        if read.changelog:
            if system is not None:
                raise InvalidRequest(f"'read.changelog' is for tables, and not for {address.name}${system}")
            system = "changelog"
        table = address.open()
        # The current columns: Spark requests them before it tells whether a snapshot is the start of a stream.
        scan = PaimonScan.of(table, address.name, system).with_options(read.table)
        self._scan, self._options = scan, read
        super().__init__(address.name, read.own)

    @property
    def full_schema(self) -> StructType:
        return self._scan.schema

    def predicate(self, text: str) -> Predicate:
        if not self._scan.columns:
            raise UnsupportedOperation(f"{self.name}${self._scan.system} has lists for columns, and takes no filter")
        return predicate_of(text, self._scan.columns)

    def scan(self) -> PaimonScan:
        self._options.refuse_for_batches()
        return self._scan

    def stream_planner(self, schema: StructType) -> StreamPlanner[Any]:
        """Raises `UnsupportedOperation` for system tables without changes."""
        from forebay.spark.streaming.lake_planner import LakeStreamPlanner

        if self._scan.system == READ_OPTIMIZED:
            raise UnsupportedOperation(f"{self.name}$ro cannot be read as a stream; the table can")
        self.refuse_limit()
        return LakeStreamPlanner(self._scan, self.pushdown(schema), schema, self._options.limits, self.cores)
