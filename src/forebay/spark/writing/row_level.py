"""UPDATE, MERGE, and DELETE with any condition: the proxies that both sides share.

Spark rewrites such a statement into a query of the rows that change, and a write of them. Its *operation* says how: a
`DeltaOperation` takes deletes, updates and inserts by primary key; a `RowLevelOperation` that is none replaces whole
groups of rows. The proxies answer Spark on the driver. In tasks, a Java class of ours
(forebay.spark.jvm.executor_classes) passes rows from Spark to the Python writers, because Spark pushes deltas row by
row, and its own Python writer takes iterators.

Tasks get a delta as rows with a column `_change_type`: `update_after` and `insert` with all columns, `delete` with the
primary key and the metadata columns that the operation requires. An update that changes the primary key comes as a
delete and an insert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql.types import StringType, StructField, StructType

from forebay.api.changes import CHANGE_TYPE_COLUMN
from forebay.spark.context import SessionContext
from forebay.spark.jvm.executor_classes import executor_class
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject, Jvm
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.python_tasks import python_metrics, writer_factory
from forebay.spark.jvm.spark_values import column_reference, python_options, struct_type
from forebay.spark.jvm.values import int_array
from forebay.spark.reading.relation import Relation
from forebay.spark.reading.scan_builder import ScanBuilder
from forebay.spark.writing.write_builder import WRITE, BatchTasks, WriteProxy

_FACTORY = "ForebayRowWriterFactory"
DELETE, UPDATE, MERGE = "DELETE", "UPDATE", "MERGE"

OpenRelation = Callable[[dict[str, str]], Relation]
"""Opens the table of a statement for reading, with the options of the read."""


class OperationBuilder(JavaProxy):
    """A builder that returns an existing operation."""

    interfaces = (WRITE + "RowLevelOperationBuilder",)

    def __init__(self, operation: RowLevelOperation) -> None:
        super().__init__(operation.jvm)
        self._operation = operation

    def build(self) -> JavaProxy:
        return self._operation


class RowLevelOperation(JavaProxy):
    """One statement on one table: its scan of the table, and its write. Subclasses define the write."""

    interfaces: ClassVar[tuple[str, ...]] = (WRITE + "RowLevelOperation",)

    def __init__(
        self,
        context: SessionContext,
        name: str,
        command: JavaObject,
        open_relation: OpenRelation,
    ) -> None:
        """`name` is the table's name in SQL, `command` Spark's constant for the statement.

        `open_relation` opens the table as the statement reads it.
        """
        super().__init__(context.jvm)
        self._context = context
        self._name = name
        self._command = command
        self._open_relation = open_relation

    def command(self) -> JavaObject:
        return self._command

    @property
    def statement(self) -> str:
        """DELETE, UPDATE or MERGE."""
        return str(self._command.toString())

    def description(self) -> str:
        return f"forebay: {self.statement} {self._name}"

    def toString(self) -> str:
        return self.description()

    def requiredMetadataAttributes(self) -> JavaObject:
        return self._references(())

    def newScanBuilder(self, options: JavaObject) -> JavaProxy:
        return ScanBuilder(self._context, self._target(python_options(options)))

    def _target(self, options: dict[str, str]) -> Relation:
        """The table, read with `options` to be changed."""
        relation = self._open_relation(options)
        relation.is_target = True
        return relation

    def _references(self, names: Sequence[str]) -> JavaObject:
        return self.jvm.array(
            CONNECTOR + "expressions.NamedReference", [column_reference(self.jvm, name) for name in names]
        )


class DeltaOperation(RowLevelOperation):
    """A statement on a table with a primary key."""

    interfaces: ClassVar[tuple[str, ...]] = (WRITE + "SupportsDelta",)

    def rowId(self) -> JavaObject:
        return self._references(self._key())

    def _key(self) -> tuple[str, ...]:
        raise NotImplementedError(f"{type(self).__name__} does not say what the primary key is")

    def representUpdateAsDeleteAndInsert(self) -> bool:
        """False: an update is one row. The writer splits an update that changes the primary key."""
        return False

    def newWriteBuilder(self, info: JavaObject) -> JavaProxy:
        return DeltaWriteBuilder(self.jvm, lambda: self._write(python_options(info.options())))

    def _write(self, options: dict[str, str]) -> DeltaWrite:
        raise NotImplementedError(f"{type(self).__name__} does not say how the table is written")


class DeltaWriteBuilder(JavaProxy):
    """Builds the write of one statement."""

    interfaces = (WRITE + "DeltaWriteBuilder",)

    def __init__(self, jvm: Jvm, make: Callable[[], DeltaWrite]) -> None:
        super().__init__(jvm)
        self._make = make

    def build(self) -> JavaProxy:
        return self._make()


@dataclass(frozen=True)
class DeltaRows:
    """The rows that Python gets for the deltas of a table with `columns`.

    For deleted rows, Spark's row id fills the columns `key`, and the metadata fills the columns `old`. `moved_keys` is
    the error for an update that changes the primary key; None: it becomes a delete and an insert. Without kinds they
    are rows of a table whose files are replaced.
    """

    columns: StructType
    key: tuple[str, ...]
    old: tuple[str, ...] = ()
    moved_keys: str | None = None
    has_kinds: bool = True

    @property
    def schema(self) -> StructType:
        """The schema of the rows. All columns are nullable, since deleted rows may have only the key."""
        if not self.has_kinds:
            return self.columns
        fields = [StructField(f.name, f.dataType, True, f.metadata) for f in self.columns.fields]
        return StructType([StructField(CHANGE_TYPE_COLUMN, StringType(), False), *fields])


def row_writer_factory(jvm: Jvm, command: bytes, rows: DeltaRows) -> JavaObject:
    """A DeltaWriterFactory whose tasks run the pickled `command` of a Python writer on `rows`."""
    row_type = struct_type(jvm, rows.schema)
    names = rows.schema.names
    places = [int_array(jvm, [names.index(name) for name in part]) for part in (rows.key, rows.old)]
    python = writer_factory(jvm, command, row_type)
    return executor_class(jvm, _FACTORY)(python, row_type, *places, rows.moved_keys)


class DeltaWrite(WriteProxy, BatchTasks):
    """The write of a delta, and its batch. Subclasses define the function that workers run, and commit."""

    interfaces: ClassVar[tuple[str, ...]] = (WRITE + "DeltaWrite", WRITE + "DeltaBatchWrite")

    def __init__(self, jvm: Jvm, text: str) -> None:
        super().__init__(jvm)
        self._text = text

    def description(self) -> str:
        return self._text

    def toBatch(self) -> JavaProxy:
        return self

    def _rows(self) -> DeltaRows:
        raise NotImplementedError(f"{type(self).__name__} does not say what rows it writes")

    def createBatchWriterFactory(self, physical: JavaObject) -> JavaObject:
        return row_writer_factory(self.jvm, self._command(physical), self._rows())

    def supportedCustomMetrics(self) -> JavaObject:
        return python_metrics(self.jvm)

    def commit(self, messages: JavaObject, *summary: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not commit")
