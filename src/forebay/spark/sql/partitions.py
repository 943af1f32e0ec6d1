"""Partitions as Spark manages them: the part of a table proxy that implements `SupportsAtomicPartitionManagement`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql.types import StructType

from forebay.base.errors import AlreadyExists, InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata.partitions import partition_text, partition_value
from forebay.metadata.table import Column, PartitionInfo, TableInfo
from forebay.spark.filters import literal_values
from forebay.spark.jvm.exceptions import analysis_exception
from forebay.spark.jvm.expressions import Literal
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.spark_jobs import run_job
from forebay.spark.jvm.spark_values import internal_rows, struct_type
from forebay.spark.jvm.values import java_map
from forebay.spark.schemas import spark_arrow_schema, to_spark_schema
from forebay.spark.writing.live_deletes import delete_where


def partition_rows(keys: Sequence[Column], partitions: Sequence[PartitionInfo]) -> pa.Table:
    """The values of partitions, with Spark's Arrow schema."""
    schema = spark_arrow_schema(to_spark_schema(keys))
    arrays = []
    for position, key in enumerate(keys):
        values = [partition_value(key.data_type, partition.spec[position][1]) for partition in partitions]
        arrays.append(pa.array(values, schema.field(position).type))
    return pa.Table.from_arrays(arrays, schema=schema)


class PartitionManagement(JavaProxy):
    """SHOW, ADD and DROP PARTITION, as Spark calls them. A partition is named by the values of all partition keys.

    Subclasses know the partitions. Values are Python's, by the names of their keys.
    """

    interfaces: ClassVar[tuple[str, ...]] = (CONNECTOR + "catalog.SupportsAtomicPartitionManagement",)

    if TYPE_CHECKING:  # implemented by subclasses
        _context: Any
        _name: str

        def _keys(self) -> list[Column]:
            """The partition keys."""

        def _partitions_with(self, values: Mapping[str, Any]) -> pa.Table:
            """The values of the partitions with these values, one row each, with Spark's Arrow schema."""

        def _add_partition(self, values: Mapping[str, Any]) -> None:
            """Raises `AlreadyExists`."""

        def _remove_partitions(self, partitions: Sequence[Mapping[str, Any]]) -> None:
            """Drop them. Raises `NotFound`."""

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _partition_schema(self) -> StructType:
        return to_spark_schema(self._keys())

    def _values(self, row: JavaObject, names: Sequence[str] | None = None) -> dict[str, Any]:
        """The values in `row`, which has the partition keys `names`, or all."""
        by_name = {key.name: key for key in self._keys()}
        return {
            name: None if row.isNullAt(position) else self._value(row, position, by_name[name])
            for position, name in enumerate(by_name if names is None else names)
        }

    def _value(self, row: JavaObject, position: int, key: Column) -> Any:
        """A value of an internal row, converted through the text of a literal, which supports all types."""
        data_type = struct_type(self.jvm, to_spark_schema([key])).apply(0).dataType()
        literal = self.jvm.class_(CONNECTOR + "expressions.LiteralValue")(row.get(position, data_type), data_type)
        return literal_values(Literal(str(literal.toString()), str(data_type.json())))[0]

    def _create(self, values: Mapping[str, Any], properties: JavaObject, row: JavaObject) -> None:
        names = [str(key) for key in properties] if properties is not None else []
        if names:
            raise UnsupportedOperation(f"a partition of table {self._name} has no {', '.join(names)} of its own")
        try:
            self._add_partition(values)
        except AlreadyExists as e:
            raise analysis_exception(
                self.jvm, "PartitionsAlreadyExistException", self._name, row, self.partitionSchema()
            ) from e

    # ---- SupportsPartitionManagement --------------------------------------------------------------------------------

    def partitionSchema(self) -> JavaObject:
        return struct_type(self.jvm, self._partition_schema())

    def listPartitionIdentifiers(self, names: JavaObject, row: JavaObject) -> JavaObject:
        """The partitions with the values in `row` for the keys `names`."""
        partitions = self._partitions_with(self._values(row, [str(name) for name in names]))
        return internal_rows(self.jvm, self._context.session, self._partition_schema(), partitions)

    def partitionExists(self, row: JavaObject) -> bool:
        return bool(self._partitions_with(self._values(row)).num_rows)

    def loadPartitionMetadata(self, row: JavaObject) -> JavaObject:
        return java_map(self.jvm, {})

    def createPartition(self, row: JavaObject, properties: JavaObject) -> None:
        self._create(self._values(row), properties, row)

    def dropPartition(self, row: JavaObject) -> bool:
        try:
            self._remove_partitions([self._values(row)])
        except NotFound:
            return False
        return True

    # ---- SupportsAtomicPartitionManagement --------------------------------------------------------------------------

    def createPartitions(self, rows: JavaObject, properties: JavaObject) -> None:
        """Create all of them, or none if one cannot be created."""
        requested = [self._values(row) for row in rows]
        created: list[Mapping[str, Any]] = []
        try:
            for index, values in enumerate(requested):
                self._create(values, properties[index], rows[index])
                created.append(values)
        except BaseException:
            for partition in created:
                with contextlib.suppress(NotFound):
                    self._remove_partitions([partition])
            raise

    def replacePartitionMetadata(self, row: JavaObject, properties: JavaObject) -> None:
        raise UnsupportedOperation(f"partitions of table {self._name} have no properties")

    def truncatePartition(self, row: JavaObject) -> bool:
        raise UnsupportedOperation(f"partitions of table {self._name} cannot be emptied; drop them")

    def renamePartition(self, old: JavaObject, new: JavaObject) -> bool:
        raise UnsupportedOperation(f"partitions of table {self._name} cannot be renamed: their names are their values")


def first_key_values(table: JavaProxy) -> tuple[Column, list[Any]] | None:
    """The first partition key of `table` and its values that are not NULL; None for a table without partition keys."""
    keys = table._keys() if isinstance(table, PartitionManagement) else []
    if not keys:
        return None
    return keys[0], [value for value in table._partitions_with({}).column(0).to_pylist() if value is not None]


class Partitions(PartitionManagement):
    """The partitions of a table of the cluster."""

    if TYPE_CHECKING:
        _info: TableInfo

        def _check_deletable(self, statement: str) -> None: ...

    def _keys(self) -> list[Column]:
        return [self._info.schema.column(name) for name in self._info.descriptor.partition_keys]

    def _spec(self, values: Mapping[str, Any]) -> dict[str, str]:
        for name, value in values.items():
            if value is None:
                raise InvalidRequest(f"partition key '{name}' of table {self._name} cannot be NULL")
        return {name: partition_text(self._info.schema.column(name).data_type, value) for name, value in values.items()}

    def _partitions_with(self, values: Mapping[str, Any]) -> pa.Table:
        return partition_rows(self._keys(), self._context.connection.table(self._info).partitions(self._spec(values)))

    def _add_partition(self, values: Mapping[str, Any]) -> None:
        self._context.connection.table(self._info).create_partition(self._spec(values))

    def _remove_partitions(self, partitions: Sequence[Mapping[str, Any]]) -> None:
        for values in partitions:
            self._context.connection.table(self._info).drop_partition(self._spec(values))

    def dropPartitions(self, rows: JavaObject) -> bool:
        dropped = [self.dropPartition(row) for row in rows]
        return all(dropped)

    def truncatePartition(self, row: JavaObject) -> bool:
        return self.truncatePartitions([row])

    def truncatePartitions(self, rows: Iterable[JavaObject]) -> bool:
        """Delete the rows of the partitions in one transaction."""
        self._check_deletable("TRUNCATE TABLE ... PARTITION")
        specs = [self._spec(self._values(row)) for row in rows]
        run_tasks = partial(run_job, self.jvm.context)
        delete_where(self._context.connection, self._info, [], specs, run_tasks=run_tasks)
        return True
