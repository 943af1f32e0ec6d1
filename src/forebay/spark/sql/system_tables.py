"""Tables beside every table: `t$snapshots`, `t$files`, `t$audit_log` and the others that forebay.paimon has.

Those that tell about the table are answered on the driver, without a task. Those that show its rows are scans like any
other (forebay.spark.reading.lake_plan), and may be followed by streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from forebay.base.errors import NotFound
from forebay.codec.arrow_types import from_arrow_type
from forebay.paimon.system_tables.registry import METADATA_NAMES
from forebay.spark.jvm.gateway import JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.reading.scan_builder import Readable
from forebay.spark.schemas import to_spark_type
from forebay.spark.sql.table_proxy import TableProxy
from forebay.spark.sql.virtual_tables import LocalScanProxy

if TYPE_CHECKING:
    from forebay.paimon.table import Table
    from forebay.spark.lake_context import PaimonContext

SEPARATOR = "$"


class LakeMetadataTable(TableProxy):
    """A table that tells about a table; the driver has its rows."""

    _context: PaimonContext

    def __init__(self, context: PaimonContext, name: str, table: Table, system: str, version: str) -> None:
        super().__init__(context, name, spark_schema(table.system(system).schema), version)
        self._table = table
        self._system = system

    def newScanBuilder(self, options: JavaObject) -> JavaProxy:
        given = self.jvm.options(options)
        system = (self._table.with_options(given) if given else self._table).system(self._system)
        return LocalScanProxy(self._context, self._name, self._spark_schema, lambda: system.read().read_all())


class LakeRowsTable(TableProxy):
    """A table that shows the rows of a table in another way."""

    capability_names: ClassVar[tuple[str, ...]] = ("BATCH_READ", "MICRO_BATCH_READ")

    _context: PaimonContext

    def __init__(self, context: PaimonContext, name: str, table: Table, side: str, version: str) -> None:
        from forebay.spark.reading.lake_plan import PaimonScan

        super().__init__(context, name, PaimonScan.of(table, name, side).schema, version)
        self._table = table
        self._side = side

    def _partition_keys(self) -> tuple[str, ...]:
        return self._table.schema.partition_keys

    def _readable(self, options: dict[str, str]) -> Readable:
        from forebay.spark.reading.lake_readable import readable

        return readable(self._context, self._name, self._table, options, system=self._side)


def spark_schema(schema: pa.Schema) -> StructType:
    """Spark's schema for what the engine yields."""
    return StructType([StructField(f.name, to_spark_type(from_arrow_type(f.type)), f.nullable) for f in schema])


def system_table_names() -> tuple[str, ...]:
    """What may stand behind a table's name."""
    from forebay.spark.reading.lake_plan import SIDE_TABLES

    return (*METADATA_NAMES, *SIDE_TABLES)


def system_table(
    context: PaimonContext, name: str, table: Table, system: str, as_of: Mapping[str, str] | None = None
) -> JavaProxy:
    """The proxy for a system table; `as_of` are the options of `table` by which it is an old one.

    Raises `NotFound` naming those there are.
    """
    from forebay.spark.reading.lake_plan import SIDE_TABLES

    version = ".".join([str(table.schema.id), *(f"{key}={value}" for key, value in (as_of or {}).items())])
    if system in SIDE_TABLES:
        return LakeRowsTable(context, name, table, system, version)
    if system in METADATA_NAMES:
        return LakeMetadataTable(context, name, table, system, version)
    known = ", ".join(SEPARATOR + other for other in system_table_names())
    raise NotFound(f"there is no table {name}; beside a table there are {known}")
