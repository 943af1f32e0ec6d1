"""The base classes of the proxies that `loadTable` returns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from forebay.api.changes import CHANGE_TYPE_COLUMN
from forebay.base.errors import InternalError, InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import Column
from forebay.spark.context import SessionContext
from forebay.spark.filters import predicates_of
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.spark_values import internal_rows, python_options, struct_type
from forebay.spark.jvm.values import enum_set, java_map, proxy_array
from forebay.spark.options import CHANGES
from forebay.spark.reading.relation import Relation
from forebay.spark.reading.scan_builder import ScanBuilder
from forebay.spark.schemas import spark_arrow_schema
from forebay.spark.writing.row_level import DELETE, OpenRelation, OperationBuilder, RowLevelOperation

CATALOG = CONNECTOR + "catalog."

LocalRows = Callable[[dict[str, str]], Callable[[], pa.Table]]
"""Checks the options of a read, and returns the function that creates its rows."""


class TableProxy(JavaProxy):
    """A table, as it was when the statement was analysed. Subclasses add reading and writing."""

    interfaces: ClassVar[tuple[str, ...]] = (CATALOG + "SupportsRead",)
    capability_names: ClassVar[tuple[str, ...]] = ("BATCH_READ",)

    def __init__(
        self, context: SessionContext, name: str, schema: StructType, version: str, table_id: str | None = None
    ) -> None:
        """`version` is the same for the same version of the same table, so that cached data is found again.

        `table_id` changes when a table is recreated; Spark then refuses to use old plans.
        """
        super().__init__(context.jvm)
        self._context: SessionContext = context
        self._name = name
        self._version = version
        self._id = table_id
        self._spark_schema = schema
        self._schema = struct_type(self.jvm, schema)

    def _identity(self) -> str:
        return f"{self._name}@{self._version}"

    def name(self) -> str:
        return self._name

    def version(self) -> None:
        return None

    def id(self) -> str | None:
        """The id of the table, or None as in Spark's default method. Implementing it saves a call per query."""
        return self._id

    def schema(self) -> JavaObject:
        return self._schema

    def partitioning(self) -> JavaObject:
        identity = self.jvm.class_(CONNECTOR + "expressions.Expressions").identity
        keys = [identity(name) for name in self._partition_keys()]
        return self.jvm.array(CONNECTOR + "expressions.Transform", keys)

    def _partition_keys(self) -> tuple[str, ...]:
        return ()

    def properties(self) -> JavaObject:
        return java_map(self.jvm, self._table_properties())

    def _table_properties(self) -> dict[str, str]:
        return {}

    def capabilities(self) -> JavaObject:
        return enum_set(self.jvm, CATALOG + "TableCapability", self.capability_names)

    def newScanBuilder(self, options: JavaObject) -> JavaProxy:
        return ScanBuilder(self._context, self._relation(python_options(options)))

    def _relation(self, options: dict[str, str]) -> Relation:
        raise NotImplementedError(f"{type(self).__name__} does not say how it is read")


class ReadOnlyTable(TableProxy):
    """A system table. It accepts writes only to raise an error that says where to write instead."""

    interfaces: ClassVar[tuple[str, ...]] = (CATALOG + "SupportsWrite",)

    def capabilities(self) -> JavaObject:
        names = (*self.capability_names, "BATCH_WRITE", "STREAMING_WRITE")
        return enum_set(self.jvm, CATALOG + "TableCapability", names)

    def newWriteBuilder(self, info: JavaObject) -> JavaProxy:
        raise can_only_be_read(self._name)


def can_only_be_read(name: str) -> UnsupportedOperation:
    """The error for a statement that changes the system table `name` (`t$changelog`)."""
    return UnsupportedOperation(f"{name} can only be read: write into {name.rpartition('$')[0]}")


class LocalSystemTable(ReadOnlyTable):
    """A system table whose rows the driver returns, without a task."""

    def __init__(
        self,
        context: SessionContext,
        name: str,
        schema: StructType,
        version: str,
        rows: LocalRows,
        table_id: str | None = None,
    ) -> None:
        super().__init__(context, name, schema, version, table_id)
        self._rows = rows

    def newScanBuilder(self, options: JavaObject) -> JavaProxy:
        return LocalScanProxy(self._context, self._name, self._spark_schema, self._rows(python_options(options)))


class RowsSystemTable(ReadOnlyTable):
    """A system table whose rows tasks read, in batches only."""

    def __init__(
        self,
        context: SessionContext,
        name: str,
        schema: StructType,
        version: str,
        open_relation: OpenRelation,
        partition_keys: tuple[str, ...],
        table_id: str | None = None,
    ) -> None:
        super().__init__(context, name, schema, version, table_id)
        self._open_relation, self._keys_of_partitions = open_relation, partition_keys

    def _partition_keys(self) -> tuple[str, ...]:
        return self._keys_of_partitions

    def _relation(self, options: dict[str, str]) -> Relation:
        return self._open_relation(options)


class StreamedSystemTable(RowsSystemTable):
    """A system table whose rows tasks read, in batches and in streams."""

    capability_names: ClassVar[tuple[str, ...]] = ("BATCH_READ", "MICRO_BATCH_READ")


class MetadataTable(TableProxy):
    """A table with metadata columns, which subclasses name."""

    interfaces: ClassVar[tuple[str, ...]] = (CATALOG + "SupportsMetadataColumns",)

    def metadataColumns(self) -> JavaObject:
        columns = [MetadataColumnProxy(self._context, field) for field in self._metadata_fields()]
        return proxy_array(self.jvm, CATALOG + "MetadataColumn", columns)

    def _metadata_fields(self) -> Sequence[StructField]:
        raise NotImplementedError(f"{type(self).__name__} does not say which metadata columns it has")


class WrittenTable(MetadataTable):
    """A table with writes and deletes, which subclasses implement."""

    interfaces: ClassVar[tuple[str, ...]] = (
        CATALOG + "SupportsWrite",
        CATALOG + "SupportsDeleteV2",
        CATALOG + "SupportsRowLevelOperations",
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

    if TYPE_CHECKING:  # what subclasses answer

        def newWriteBuilder(self, info: JavaObject) -> JavaProxy: ...
        def _columns(self) -> Sequence[Column]: ...
        def _delete(self, filters: Sequence[Predicate]) -> None: ...
        def _deletes_directly(self, filters: Sequence[Predicate]) -> bool: ...
        def _operation(self, command: JavaObject) -> RowLevelOperation: ...

    def _taking_changes(self, key: Sequence[str], *, deletes_whole_rows: bool = False) -> WrittenTable:
        """This table for a write of changes, with `_change_type` as its first column.

        A delete needs only the columns of `key`, unless it `deletes_whole_rows`. Raises `InvalidRequest` for
        tables without primary key, and for those with a column of that name.
        """
        if not key:
            raise InvalidRequest(
                f"{self._name} has no primary key, so it takes inserts only: leave the option '{CHANGES}' out"
            )
        fields = self._spark_schema.fields
        if any(field.name == CHANGE_TYPE_COLUMN for field in fields):
            raise InvalidRequest(f"{self._name} has a column '{CHANGE_TYPE_COLUMN}' of its own")
        if not deletes_whole_rows:
            fields = [StructField(f.name, f.dataType, f.nullable or f.name not in key, f.metadata) for f in fields]
        self._spark_schema = StructType([StructField(CHANGE_TYPE_COLUMN, StringType(), False), *fields])
        self._schema = struct_type(self.jvm, self._spark_schema)
        return self

    def _check_deletable(self, statement: str) -> None:
        """Raise `UnsupportedOperation` for tables without deletes."""

    def newRowLevelOperationBuilder(self, info: JavaObject) -> JavaProxy:
        command = info.command()
        if str(command.toString()) == DELETE:
            self._check_deletable("DELETE FROM")
        return OperationBuilder(self._operation(command))

    def canDeleteWhere(self, predicates: JavaObject) -> bool:
        """Whether `deleteWhere` can delete these rows; otherwise a row-level operation deletes them."""
        self._check_deletable("DELETE FROM")
        filters, is_whole = predicates_of(predicates, self._columns())
        return is_whole and (not filters or self._deletes_directly(filters))

    def deleteWhere(self, predicates: JavaObject, *options: Any) -> None:
        """Delete the rows that match all `predicates`. Raises `InternalError` unless `canDeleteWhere` accepted them."""
        self._check_deletable("DELETE FROM")
        filters, is_whole = predicates_of(predicates, self._columns())
        if not is_whole:
            raise InternalError(f"DELETE FROM {self._name}: Spark asks for a condition that was refused")
        if filters is not None:
            self._delete(filters)

    def truncateTable(self, *options: Any) -> bool:
        self._check_deletable("TRUNCATE TABLE")
        self._delete([])
        return True


class StagedTable(WrittenTable):
    """A table that a statement has just created and will fill: CREATE TABLE AS SELECT. It is dropped if that fails."""

    interfaces: ClassVar[tuple[str, ...]] = (CATALOG + "StagedTable",)

    if TYPE_CHECKING:  # what subclasses answer

        def _drop_own(self) -> None:
            """Drop the table, unless another client has dropped it since and created a new one."""

    def commitStagedChanges(self) -> None:
        """Nothing to do: the table and its rows exist."""

    def abortStagedChanges(self) -> None:
        with contextlib.suppress(NotFound):
            self._drop_own()


class MetadataColumnProxy(JavaProxy):
    """A metadata column, which queries read only by name."""

    interfaces = (CATALOG + "MetadataColumn",)

    def __init__(self, context: SessionContext, field: StructField) -> None:
        super().__init__(context.jvm)
        self._field = field

    def name(self) -> str:
        return self._field.name

    def dataType(self) -> JavaObject:
        return struct_type(self.jvm, StructType([self._field])).apply(0).dataType()

    def isNullable(self) -> bool:
        return self._field.nullable


class LocalScanProxy(JavaProxy):
    """A scan of rows in memory, and its builder."""

    interfaces = (CONNECTOR + "read.LocalScan", CONNECTOR + "read.ScanBuilder")

    def __init__(self, context: SessionContext, name: str, schema: StructType, rows: Callable[[], pa.Table]) -> None:
        super().__init__(context.jvm)
        self._context = context
        self._name = name
        self._schema = schema
        self._make_rows = rows

    def build(self) -> JavaProxy:
        return self

    def readSchema(self) -> JavaObject:
        return struct_type(self.jvm, self._schema)

    def description(self) -> str:
        return f"forebay {self._name}"

    def rows(self) -> JavaObject:
        table = self._make_rows().cast(spark_arrow_schema(self._schema))
        return internal_rows(self.jvm, self._context.session, self._schema, table)
