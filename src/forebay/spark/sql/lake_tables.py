"""Tables of a lake as Spark sees them: the proxies that `loadTable` returns.

A table reads, appends, overwrites and deletes, also by streams (forebay.spark.reading, forebay.spark.writing). A
partitioned one also has SHOW and DROP PARTITION. A proxy shows the table as it was when the statement was analysed;
Spark reloads it for every statement.

Every table has system tables: `t$snapshots`, `t$files`, `t$audit_log` and the others of forebay.paimon. The driver
answers those with metadata, without a task. Those that show rows of the table are scans like any other
(forebay.spark.reading.lake_plan), and streams can follow them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from forebay.base.ambient import SYSTEM_IDS
from forebay.base.errors import AlreadyExists, NotFound, UnsupportedOperation
from forebay.codec.arrow.arrow_types import arrow_type, from_arrow_type
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import Column
from forebay.paimon.commit.partition_filter import partition_filter
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import ManifestEntry
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.system_tables.registry import METADATA_NAMES
from forebay.paimon.table import Table
from forebay.spark.context import LakeContext
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.spark_values import python_options
from forebay.spark.jvm.values import java_map
from forebay.spark.reading.lake_metadata import metadata_fields
from forebay.spark.reading.lake_plan import SYSTEM_TABLES, PaimonScan
from forebay.spark.reading.plan import SYSTEM_SEPARATOR
from forebay.spark.schemas import columns_of, spark_arrow_schema, table_schema, to_spark_type
from forebay.spark.sql.lake_ddl import LOCATION, table_properties
from forebay.spark.sql.lake_relation import LakeRelation
from forebay.spark.sql.live_ddl import MANAGED
from forebay.spark.sql.partitions import PartitionManagement
from forebay.spark.sql.requests import without_travel
from forebay.spark.sql.tables import (
    LocalSystemTable,
    StagedTable,
    StreamedSystemTable,
    TableProxy,
    WrittenTable,
)
from forebay.spark.writing.row_level import RowLevelOperation


class LakeTableProxy(WrittenTable):
    """A table, or a branch of one. `schema` is that of the snapshot being read."""

    interfaces: ClassVar[tuple[str, ...]] = (CONNECTOR + "read.streaming.ReportsSinkMetrics",)

    _context: LakeContext

    def __init__(
        self,
        context: LakeContext,
        name: str,
        table: Table,
        schema: TableSchema | None = None,
        as_of: Mapping[str, str] | None = None,
    ) -> None:
        """`name` is the table's name in SQL; `as_of` are the options of `table` that select a past state."""
        displayed = schema or table.schema
        version = ".".join(
            [str(displayed.id), str(displayed.time_millis), *(f"{k}={v}" for k, v in (as_of or {}).items())]
        )
        super().__init__(context, name, table_schema(displayed.fields), version)
        self._table, self._is_old = table, as_of is not None
        self._changed: Snapshot | None = None
        """The snapshot of an UPDATE, MERGE or DELETE: all scans of its statement read it."""

    def _partition_keys(self) -> tuple[str, ...]:
        return self._table.schema.partition_keys

    def _table_properties(self) -> dict[str, str]:
        return {**table_properties(self._table.schema), LOCATION: self._table.context.paths.root, MANAGED: "true"}

    def _relation(self, options: dict[str, str]) -> LakeRelation:
        pinned = None if self._changed is None else str(self._changed.id)
        of_read = without_travel(options) if self._is_old else options
        return LakeRelation(self._context, self._name, self._table, of_read, snapshot=pinned)

    # ---- SupportsWrite ----------------------------------------------------------------------------------------------

    def newWriteBuilder(self, info: JavaObject) -> JavaProxy:
        from forebay.spark.writing.lake_write_builder import write_builder

        return write_builder(self._context, self._name, self._table, python_options(info.options()), info)

    def metrics(self) -> JavaObject:
        """The metrics of a streaming query that writes this table: `sink.metrics` in its progress."""
        from forebay.spark.writing.stream_commits import sink_metrics

        return java_map(self.jvm, sink_metrics(self._table))

    def _columns(self) -> tuple[Column, ...]:
        return columns_of(self._table.schema)

    def _delete(self, filters: Sequence[Predicate]) -> None:
        from forebay.spark.writing.lake_deletes import delete_where

        delete_where(self._table, filters)

    def _deletes_directly(self, filters: Sequence[Predicate]) -> bool:
        schema, has_vectors = self._table.schema, self._table.context.options.deletion_vectors_enabled
        names_partitions = all(f.columns() <= set(schema.partition_keys) for f in filters)
        return names_partitions or schema.has_primary_key or not has_vectors

    def _operation(self, command: JavaObject) -> RowLevelOperation:
        from forebay.spark.writing.lake_deltas import LakeDelta
        from forebay.spark.writing.lake_rewrites import LakeRewrite

        self._changed = self._table.context.snapshots.latest()
        kind = LakeDelta if self._table.schema.has_primary_key else LakeRewrite
        return kind(self._context, self._name, self._table, self._changed, command, self._relation)

    def _metadata_fields(self) -> Sequence[StructField]:
        return metadata_fields(self._table.schema).fields


class LakePartitions(PartitionManagement):
    """The partitions of a lake table in its latest snapshot."""

    if TYPE_CHECKING:
        _table: Table

    def _keys(self) -> list[Column]:
        return [Column(f.name, f.type, f.description) for f in self._table.schema.partition_fields]

    def _entries(self, values: Mapping[str, Any]) -> list[ManifestEntry]:
        """The files of the partitions that have these values."""
        latest = self._table.context.snapshots.latest()
        if latest is None:
            return []
        matches = partition_filter(self._table.schema, values)
        return [e for e in self._table.context.manifests.live_files(latest) if matches is None or matches(e.partition)]

    def _partitions_with(self, values: Mapping[str, Any]) -> pa.Table:
        fields = self._table.schema.partition_fields
        layout = row_layout(fields)
        partitions = sorted({e.partition for e in self._entries(values)})
        rows = [layout.decode(partition) for partition in partitions]
        schema = spark_arrow_schema(self._partition_schema())
        columns = [pa.array([row[i] for row in rows], arrow_type(f.type)) for i, f in enumerate(fields)]
        return pa.Table.from_arrays([c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)

    def _add_partition(self, values: Mapping[str, Any]) -> None:
        if self._entries(values):
            raise AlreadyExists(f"partition {dict(values)} of table {self._name} is there already")
        raise UnsupportedOperation(
            f"partitions of table {self._name} cannot be added: a partition is there as soon as rows are in it"
        )

    def _remove_partitions(self, partitions: Sequence[Mapping[str, Any]]) -> None:
        self._table.new_commit().drop_partitions(partitions)

    def dropPartitions(self, rows: JavaObject) -> bool:
        """Drop partitions in one commit. Missing partitions are ignored: Spark has checked them before."""
        self._remove_partitions([self._values(row) for row in rows])
        return True

    def truncatePartition(self, row: JavaObject) -> bool:
        return bool(self.dropPartition(row))

    def truncatePartitions(self, rows: JavaObject) -> bool:
        return bool(self.dropPartitions(rows))

    def loadPartitionMetadata(self, row: JavaObject) -> JavaObject:
        """The properties that DESCRIBE ... PARTITION and SHOW TABLE EXTENDED show, by the names of `$partitions`."""
        files = [e.file for e in self._entries(self._values(row))]
        return java_map(
            self.jvm,
            {
                "record_count": str(sum(f.row_count for f in files)),
                "file_size_in_bytes": str(sum(f.file_size for f in files)),
                "file_count": str(len(files)),
            },
        )


class PartitionedLakeTable(LakePartitions, LakeTableProxy):
    """A partitioned lake table."""


class StagedLakeTable(LakeTableProxy, StagedTable):
    """A lake table that a statement has just created."""

    def _drop_own(self) -> None:
        current = self._context.lake.table(self._table.name).context.schemas.schema(0)
        if current.time_millis == self._table.schema.time_millis:
            self._context.lake.drop_table(self._table.name)


class ReplacingLakeTable(StagedLakeTable):
    """A table that is filled under a temporary name, and then replaces table `replaced`.

    Readers see the old table until the new one is complete. If the process dies in between, the old table still has
    its name or, in the moment between two renames, as `<name>__replaced_<number>`.
    """

    def __init__(self, context: LakeContext, name: str, table: Table, replaced: str) -> None:
        super().__init__(context, name, table)
        self._replaced = replaced

    def commitStagedChanges(self) -> None:
        """Replace the old table by the new one, and drop the old one at the end."""
        lake, old = self._context.lake, beside(self._replaced, "replaced")
        lake.rename_table(self._replaced, old)
        try:
            lake.rename_table(self._table.name, self._replaced)
        except BaseException:
            lake.rename_table(old, self._replaced)
            raise
        lake.drop_table(old)


def beside(name: str, what: str) -> str:
    """A temporary name next to `name` that states its purpose."""
    return f"{name}__{what}_{SYSTEM_IDS.token_hex()[:8]}"


def table_proxy(
    context: LakeContext,
    name: str,
    table: Table,
    schema: TableSchema | None = None,
    as_of: Mapping[str, str] | None = None,
) -> WrittenTable:
    """The proxy for an existing table."""
    kind = PartitionedLakeTable if table.schema.partition_keys else LakeTableProxy
    return kind(context, name, table, schema, as_of)


def spark_schema(schema: pa.Schema) -> StructType:
    """Spark's schema for the engine's Arrow schema."""
    return StructType([StructField(f.name, to_spark_type(from_arrow_type(f.type)), f.nullable) for f in schema])


def system_table(
    context: LakeContext, name: str, table: Table, system: str, as_of: Mapping[str, str] | None = None
) -> TableProxy:
    """The proxy for a system table; `as_of` are the options of `table` that select a past state.

    Raises `NotFound` naming the system tables that there are.
    """
    version = ".".join([str(table.schema.id), *(f"{key}={value}" for key, value in (as_of or {}).items())])
    if system in SYSTEM_TABLES:

        def open_relation(options: dict[str, str]) -> LakeRelation:
            return LakeRelation(context, name, table, options, system=system)

        schema = PaimonScan.of(table, name, system).schema
        return StreamedSystemTable(context, name, schema, version, open_relation, table.schema.partition_keys)
    if system in METADATA_NAMES:

        def rows(options: dict[str, str]) -> Callable[[], pa.Table]:
            opened = (table.with_options(options) if options else table).system(system)
            return lambda: opened.read().read_all()

        return LocalSystemTable(context, name, spark_schema(table.system(system).schema), version, rows)
    names = ", ".join(SYSTEM_SEPARATOR + other for other in (*METADATA_NAMES, *SYSTEM_TABLES))
    raise NotFound(f"there is no table {name}; beside a table there are {names}")
