"""What every table answers to Spark, wherever it is: the base of the proxies that `loadTable` returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pyspark.sql.types import StructType

from forebay.base.errors import InvalidRequest
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import Column
from forebay.spark.context import SessionContext
from forebay.spark.filters import to_predicate
from forebay.spark.jvm.expressions import ALWAYS_FALSE, ALWAYS_TRUE
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject, Jvm
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.reading.scan_builder import Readable, ScanBuilder

CATALOG = CONNECTOR + "catalog."


class TableProxy(JavaProxy):
    """A table, as it was when the statement was analysed. Subclasses add reading and writing."""

    interfaces: ClassVar[tuple[str, ...]] = (CATALOG + "SupportsRead",)
    capability_names: ClassVar[tuple[str, ...]] = ("BATCH_READ",)

    def __init__(self, context: SessionContext, name: str, schema: StructType, version: str) -> None:
        """`version` is the same for the same version of the same table, so that cached data is found again."""
        super().__init__(context.jvm)
        self._context: SessionContext = context
        self._name = name
        self._version = version
        self._spark_schema = schema
        self._schema = self.jvm.struct_type(schema)

    def _identity(self) -> str:
        return f"{self._name}@{self._version}"

    def name(self) -> str:
        return self._name

    def version(self) -> None:
        return None

    def schema(self) -> JavaObject:
        return self._schema

    def partitioning(self) -> JavaObject:
        identity = self.jvm.class_(CONNECTOR + "expressions.Expressions").identity
        keys = [identity(name) for name in self._partition_keys()]
        return self.jvm.array(CONNECTOR + "expressions.Transform", keys)

    def _partition_keys(self) -> tuple[str, ...]:
        return ()

    def properties(self) -> JavaObject:
        return self.jvm.map(self._table_properties())

    def _table_properties(self) -> dict[str, str]:
        return {}

    def capabilities(self) -> JavaObject:
        return self.jvm.enum_set(CATALOG + "TableCapability", self.capability_names)

    def newScanBuilder(self, options: JavaObject) -> JavaProxy:
        return ScanBuilder(self._context, self._readable(self.jvm.options(options)))

    def _readable(self, options: dict[str, str]) -> Readable:
        raise NotImplementedError(f"{type(self).__name__} does not say how it is read")


def delete_filters(jvm: Jvm, name: str, columns: Sequence[Column], predicates: JavaObject) -> list[Predicate] | None:
    """What rows of table `name` must match to be deleted by `DELETE FROM`; None if no row can.

    Raises `InvalidRequest` for conditions that only Spark can evaluate.
    """
    found = []
    for java in predicates:
        expression = jvm.expression(java)
        if expression == ALWAYS_TRUE:
            continue
        if expression == ALWAYS_FALSE:
            return None
        predicate = to_predicate(expression, columns)
        if predicate is None:
            raise InvalidRequest(
                f"DELETE FROM {name}: cannot find the rows where {java.toString()}; compare columns with "
                "values, by =, <, IN, LIKE 'x%', IS NULL and the like"
            )
        found.append(predicate)
    return found
