"""Tables of a lake as Spark sees them: the proxies that `loadTable` returns.

A table reads, appends, overwrites and deletes, also by streams (forebay.spark.reading, forebay.spark.writing). A
partitioned one also has SHOW and DROP PARTITION. A proxy shows the table as it was when the statement was analysed;
Spark reloads it for every statement.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from forebay.base.errors import NotFound
from forebay.base.ids import SYSTEM_IDS
from forebay.metadata.predicate import Predicate
from forebay.paimon.format.schema import TableSchema
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.lake_schemas import columns_of, table_schema
from forebay.spark.reading.scan_builder import Readable
from forebay.spark.sql.lake_ddl import LOCATION, MANAGED, table_properties
from forebay.spark.sql.lake_partitions import LakePartitions
from forebay.spark.sql.table_proxy import CATALOG, TableProxy, delete_filters

if TYPE_CHECKING:
    from forebay.paimon.table import Table
    from forebay.spark.lake_context import PaimonContext


class PaimonTable(TableProxy):
    """A table, or a branch of one. `schema` is that of the snapshot that is read, which may be an old one."""

    interfaces: ClassVar[tuple[str, ...]] = (
        CATALOG + "SupportsWrite",
        CATALOG + "SupportsDeleteV2",
        CONNECTOR + "read.streaming.ReportsSinkMetrics",
    )
    capability_names: ClassVar[tuple[str, ...]] = (
        "BATCH_READ",
        "BATCH_WRITE",
        "MICRO_BATCH_READ",
        "STREAMING_WRITE",
        "OVERWRITE_BY_FILTER",
        "OVERWRITE_DYNAMIC",
        "TRUNCATE",
    )

    _context: PaimonContext

    def __init__(
        self,
        context: PaimonContext,
        name: str,
        table: Table,
        schema: TableSchema | None = None,
        as_of: Mapping[str, str] | None = None,
    ) -> None:
        """`name` is how the table is written in SQL; `as_of` are the options of `table` by which it is an old one."""
        shown = schema or table.schema
        version = ".".join([str(shown.id), str(shown.time_millis), *(f"{k}={v}" for k, v in (as_of or {}).items())])
        super().__init__(context, name, table_schema(shown.fields), version)
        self._table = table

    def _partition_keys(self) -> tuple[str, ...]:
        return self._table.schema.partition_keys

    def _table_properties(self) -> dict[str, str]:
        return {**table_properties(self._table.schema), LOCATION: self._table.context.paths.root, MANAGED: "true"}

    def _readable(self, options: dict[str, str]) -> Readable:
        from forebay.spark.reading.lake_readable import readable

        return readable(self._context, self._name, self._table, options)

    # ---- SupportsWrite ----------------------------------------------------------------------------------------------

    def newWriteBuilder(self, info: JavaObject) -> JavaProxy:
        from forebay.spark.writing.lake_write_builder import write_builder

        return write_builder(self._context, self._name, self._table, self.jvm.options(info.options()), info)

    def metrics(self) -> JavaObject:
        """For `sink.metrics` in the progress of a streaming query that writes this table."""
        from forebay.spark.writing.stream_commits import sink_metrics

        return self.jvm.map(sink_metrics(self._table))

    # ---- SupportsDeleteV2 -------------------------------------------------------------------------------------------

    def canDeleteWhere(self, predicates: JavaObject) -> bool:
        self._delete_filters(predicates)
        return True

    def deleteWhere(self, predicates: JavaObject, *options: Any) -> None:
        from forebay.spark.writing.lake_deletes import delete_where

        filters = self._delete_filters(predicates)
        if filters is not None:
            delete_where(self._table, filters)

    def truncateTable(self, *options: Any) -> bool:
        from forebay.spark.writing.lake_deletes import truncate

        truncate(self._table)
        return True

    def _delete_filters(self, predicates: JavaObject) -> list[Predicate] | None:
        return delete_filters(self.jvm, self._name, columns_of(self._table.schema), predicates)


class PartitionedLakeTable(LakePartitions, PaimonTable):
    """A table that has partitions."""


class StagedLakeTable(PaimonTable):
    """A table that a statement has just made and will fill: CREATE TABLE AS SELECT. It goes if filling it fails."""

    interfaces: ClassVar[tuple[str, ...]] = (CATALOG + "StagedTable",)

    def __init__(self, context: PaimonContext, name: str, table: Table) -> None:
        super().__init__(context, name, table)

    def commitStagedChanges(self) -> None:
        """Nothing to do: the table and its rows are there."""

    def abortStagedChanges(self) -> None:
        # Another client may have dropped it in the meantime and created a new one.
        with contextlib.suppress(NotFound):
            there = self._context.lake.table(self._table.name).context.schemas.schema(0)
            if there.time_millis == self._table.schema.time_millis:
                self._context.lake.drop_table(self._table.name)


class ReplacingLakeTable(StagedLakeTable):
    """A table that is filled under a name of its own, and then takes the place of table `replaced`.

    Readers find the old table until the new one is complete. If the process dies in between, the old table is there
    under its name or, in the moment between two renames, as `<name>__replaced_<number>`.
    """

    def __init__(self, context: PaimonContext, name: str, table: Table, replaced: str) -> None:
        super().__init__(context, name, table)
        self._replaced = replaced

    def commitStagedChanges(self) -> None:
        lake, old = self._context.lake, beside(self._replaced, "replaced")
        lake.rename_table(self._replaced, old)
        try:
            lake.rename_table(self._table.name, self._replaced)
        except BaseException:
            lake.rename_table(old, self._replaced)
            raise
        lake.drop_table(old)


def beside(name: str, what: str) -> str:
    """A new name beside table `name`, which says what it is for."""
    return f"{name}__{what}_{SYSTEM_IDS.token_hex()[:8]}"


def table_proxy(
    context: PaimonContext,
    name: str,
    table: Table,
    schema: TableSchema | None = None,
    as_of: Mapping[str, str] | None = None,
) -> JavaProxy:
    """The proxy for a table that is there."""
    kind = PartitionedLakeTable if table.schema.partition_keys else PaimonTable
    return kind(context, name, table, schema, as_of)
