"""Tables as Spark sees them: the proxies that `loadTable` returns.

A log table reads and appends. A primary-key table reads, upserts, and deletes by `DELETE FROM` and `TRUNCATE TABLE`
(forebay.spark.writing.live_deletes). A partitioned table also has SHOW, ADD and DROP PARTITION
(forebay.spark.sql.partition_proxies). A proxy shows the table as it was when the statement was analysed; Spark reloads
it for every statement.
"""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

from pyspark.sql.types import StructType

from forebay.base.errors import ErrorCode, InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import TableInfo
from forebay.spark.context import CatalogContext
from forebay.spark.jvm.gateway import JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.reading.live_readable import readable
from forebay.spark.reading.scan_builder import Readable
from forebay.spark.schemas import to_spark_schema
from forebay.spark.sql import live_ddl as ddl
from forebay.spark.sql.partition_proxies import Partitions
from forebay.spark.sql.table_proxy import CATALOG, TableProxy, delete_filters
from forebay.spark.writing.live_deletes import delete_where
from forebay.spark.writing.live_write_builder import NewTableWriteBuilder, WriteBuilder


class ClusterTable(TableProxy):
    """What all tables of a cluster answer, virtual ones too."""

    _context: CatalogContext

    def __init__(self, context: CatalogContext, info: TableInfo, schema: StructType, suffix: str = "") -> None:
        super().__init__(context, context.full_name(info.path) + suffix, schema, f"{info.table_id}.{info.schema_id}")
        self._info = info

    def id(self) -> str:
        """Return an id that changes when a table is recreated; Spark then refuses to use old plans."""
        return str(self._info.table_id)


class SparkLiveTable(ClusterTable):
    """A table of the cluster."""

    interfaces: ClassVar[tuple[str, ...]] = (CATALOG + "SupportsWrite", CATALOG + "SupportsDeleteV2")
    capability_names: ClassVar[tuple[str, ...]] = ("BATCH_READ", "BATCH_WRITE", "MICRO_BATCH_READ")

    def __init__(self, context: CatalogContext, info: TableInfo) -> None:
        super().__init__(context, info, to_spark_schema(info.schema.columns))

    def _partition_keys(self) -> tuple[str, ...]:
        return self._info.descriptor.partition_keys

    def _table_properties(self) -> dict[str, str]:
        return {**ddl.table_properties(self._info), ddl.PROVIDER: ddl.PROVIDERS[0]}

    def _readable(self, options: dict[str, str]) -> Readable:
        return readable(self._context, self._name, self._info, options)

    # ---- SupportsWrite ----------------------------------------------------------------------------------------------

    def newWriteBuilder(self, info: JavaObject) -> JavaProxy:
        return WriteBuilder(self._context, self._info, self.jvm.options(info.options()), info.schema())

    # ---- SupportsDeleteV2 -------------------------------------------------------------------------------------------

    def canDeleteWhere(self, predicates: JavaObject) -> bool:
        self._require_primary_key("DELETE FROM")
        self._delete_filters(predicates)
        return True

    def deleteWhere(self, predicates: JavaObject, *options: Any) -> None:
        self._require_primary_key("DELETE FROM")
        filters = self._delete_filters(predicates)
        if filters is not None:
            delete_where(self._context.connection, self._info, filters)

    def truncateTable(self, *options: Any) -> bool:
        self._require_primary_key("TRUNCATE TABLE")
        delete_where(self._context.connection, self._info, [])
        return True

    def _require_primary_key(self, statement: str) -> None:
        if not self._info.has_primary_key:
            raise UnsupportedOperation(
                f"{statement} {self._name}: a log table cannot lose rows, only its partitions can be dropped; rows can "
                "be deleted from tables with a primary key",
                ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
            )

    def _delete_filters(self, predicates: JavaObject) -> list[Predicate] | None:
        return delete_filters(self.jvm, self._name, self._info.schema.columns, predicates)


class PartitionedTable(Partitions, SparkLiveTable):
    """A table of the cluster that has partitions."""


class StagedTable(SparkLiveTable):
    """A table that a statement has just made and will fill: CREATE TABLE AS SELECT. It goes if filling it fails."""

    interfaces: ClassVar[tuple[str, ...]] = (CATALOG + "StagedTable",)
    # CREATE OR REPLACE TABLE AS SELECT "overwrites" also where there was no table before.
    capability_names: ClassVar[tuple[str, ...]] = ("BATCH_READ", "BATCH_WRITE", "TRUNCATE")

    def newWriteBuilder(self, info: JavaObject) -> JavaProxy:
        # OPTIONS of CREATE TABLE come here too, although they have become properties of the table.
        properties = self._table_properties()
        options = self.jvm.options(info.options())
        left = {name: value for name, value in options.items() if properties.get(name) != value}
        for name in left:
            if ddl.is_property(name):
                raise InvalidRequest(
                    f"there is no write option '{name}': it is a property of the new table {self._name}, which "
                    "df.writeTo(table).tableProperty(name, value).create() sets"
                )
        return NewTableWriteBuilder(self._context, self._info, left, info.schema())

    def commitStagedChanges(self) -> None:
        """Nothing to do: the table and its rows are there."""

    def abortStagedChanges(self) -> None:
        connection, path = self._context.connection, self._info.path
        # Another client may have dropped it in the meantime and created a new one.
        with contextlib.suppress(NotFound):
            if connection.admin.table_info(path).table_id == self._info.table_id:
                connection.drop_table(path)


def table_proxy(context: CatalogContext, info: TableInfo) -> JavaProxy:
    """The proxy for a table of the cluster."""
    return (PartitionedTable if info.is_partitioned else SparkLiveTable)(context, info)
