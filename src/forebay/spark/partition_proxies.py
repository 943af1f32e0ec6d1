"""Partitions as Spark manages them: the part of a table proxy that implements `SupportsAtomicPartitionManagement`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql.types import StructType

from forebay.base.errors import AlreadyExists, InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata.partitions import partition_text, partition_value
from forebay.metadata.table import Column, PartitionInfo, TableInfo
from forebay.spark.filters import Literal, parse_literal
from forebay.spark.jvm import CONNECTOR, JavaObject
from forebay.spark.proxy import JavaProxy
from forebay.spark.schemas import spark_arrow_schema, to_spark_schema

if TYPE_CHECKING:
    from forebay.spark.context import CatalogContext


def partition_rows(keys: Sequence[Column], partitions: Sequence[PartitionInfo]) -> pa.Table:
    """The values of partitions, with Spark's Arrow schema."""
    schema = spark_arrow_schema(to_spark_schema(keys))
    arrays = []
    for position, key in enumerate(keys):
        values = [partition_value(key.data_type, partition.spec[position][1]) for partition in partitions]
        arrays.append(pa.array(values, schema.field(position).type))
    return pa.Table.from_arrays(arrays, schema=schema)


class Partitions(JavaProxy):
    """SHOW, ADD and DROP PARTITION. A partition is named by the values of all partition keys."""

    interfaces: ClassVar[tuple[str, ...]] = (CONNECTOR + "catalog.SupportsAtomicPartitionManagement",)

    if TYPE_CHECKING:
        _context: CatalogContext
        _info: TableInfo
        _name: str

    def _keys(self) -> list[Column]:
        return [self._info.schema.column(name) for name in self._info.descriptor.partition_keys]

    def _partition_schema(self) -> StructType:
        return to_spark_schema(self._keys())

    def _spec(self, row: JavaObject, names: Sequence[str]) -> dict[str, str]:
        """The texts of the values in `row`, which has the partition keys `names`."""
        spec = {}
        for position, name in enumerate(names):
            t = self._info.schema.column(name).data_type
            if row.isNullAt(position):
                raise InvalidRequest(f"partition key '{name}' of table {self._name} cannot be NULL")
            spec[name] = partition_text(t, self._value(row, position, name))
        return spec

    def _value(self, row: JavaObject, position: int, name: str) -> Any:
        """A value of an internal row, by way of a literal's text, which has the same form for all types."""
        struct = self.jvm.struct_type(to_spark_schema([self._info.schema.column(name)]))
        data_type = struct.apply(0).dataType()
        literal = self.jvm.class_(CONNECTOR + "expressions.LiteralValue")(row.get(position, data_type), data_type)
        return parse_literal(Literal(str(literal.toString()), str(data_type.json())))

    # ---- SupportsPartitionManagement --------------------------------------------------------------------------------

    def partitionSchema(self) -> JavaObject:
        return self.jvm.struct_type(self._partition_schema())

    def listPartitionIdentifiers(self, names: JavaObject, row: JavaObject) -> JavaObject:
        """The partitions that have the values in `row` for the keys `names`."""
        partial = self._spec(row, [str(name) for name in names])
        found = self._context.admin.list_partitions(self._info.path, partial)
        return self.jvm.rows(self._context.session, self._partition_schema(), partition_rows(self._keys(), found))

    def partitionExists(self, row: JavaObject) -> bool:
        spec = self._spec(row, self._info.descriptor.partition_keys)
        return bool(self._context.admin.list_partitions(self._info.path, spec))

    def loadPartitionMetadata(self, row: JavaObject) -> JavaObject:
        return self.jvm.map({})

    def createPartition(self, row: JavaObject, properties: JavaObject) -> None:
        self._create(self._spec(row, self._info.descriptor.partition_keys), properties, row)

    def _create(self, spec: Mapping[str, str], properties: JavaObject, row: JavaObject) -> None:
        given = [str(key) for key in properties] if properties is not None else []
        if given:
            raise UnsupportedOperation(f"a partition of table {self._name} has no {', '.join(given)} of its own")
        try:
            self._context.admin.create_partition(self._info.path, spec)
        except AlreadyExists as e:
            raise self.jvm.thrown("PartitionsAlreadyExistException", self._name, row, self.partitionSchema()) from e

    def dropPartition(self, row: JavaObject) -> bool:
        try:
            self._context.admin.drop_partition(self._info.path, self._spec(row, self._info.descriptor.partition_keys))
        except NotFound:
            return False
        return True

    # ---- SupportsAtomicPartitionManagement --------------------------------------------------------------------------

    def createPartitions(self, rows: JavaObject, properties: JavaObject) -> None:
        """All of them, or, when one cannot be made, none."""
        specs = [self._spec(row, self._info.descriptor.partition_keys) for row in rows]
        made: list[dict[str, str]] = []
        try:
            for index, spec in enumerate(specs):
                self._create(spec, properties[index], rows[index])
                made.append(spec)
        except BaseException:
            for spec in made:
                self._context.admin.drop_partition(self._info.path, spec, ignore_if_not_exists=True)
            raise

    def dropPartitions(self, rows: JavaObject) -> bool:
        dropped = [self.dropPartition(row) for row in rows]
        return all(dropped)

    def replacePartitionMetadata(self, row: JavaObject, properties: JavaObject) -> None:
        raise UnsupportedOperation(f"partitions of table {self._name} have no properties")

    def truncatePartition(self, row: JavaObject) -> bool:
        raise UnsupportedOperation(f"partitions of table {self._name} cannot be emptied; drop them")

    def renamePartition(self, old: JavaObject, new: JavaObject) -> bool:
        raise UnsupportedOperation(f"partitions of table {self._name} cannot be renamed: their names are their values")
