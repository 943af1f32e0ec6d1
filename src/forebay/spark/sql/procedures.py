"""Procedures: `CALL <catalog>.sys.<name>(...)`.

A `Procedure` is a name, parameters, the schema of its result, and a function that runs on the driver and returns the
result as an Arrow table. Each side has its own: forebay.spark.sql.live_procedures, forebay.spark.sql.lake_procedures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.spark.context import SessionContext
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.schemas import spark_arrow_schema
from forebay.spark.sql.tables import LocalScanProxy

SYSTEM_NAMESPACE = "sys"
_PROCEDURES = CONNECTOR + "catalog.procedures."


@dataclass(frozen=True)
class Parameter:
    """A parameter; one that has a default (SQL text) may be left out."""

    name: str
    data_type: DataType
    default: str | None = None
    comment: str = ""


Arguments = Mapping[str, Any]
"""Python values by parameter name; None for NULL."""


@dataclass(frozen=True)
class Procedure:
    """Something to call."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    result: StructType
    run: Callable[[Any, Arguments], pa.Table]
    """Gets the context of the catalog that the procedure is in."""


RESULT = StructType([StructField("result", BooleanType())])


def optional(name: str, data_type: DataType, comment: str) -> Parameter:
    """A parameter that may be left out, and is None then."""
    return Parameter(name, data_type, "NULL", comment)


def result_of(required: Sequence[str] = (), /, **columns: DataType) -> StructType:
    """The schema of a result; the columns that are `required` have a value in every row."""
    return StructType([StructField(name, data_type, name not in required) for name, data_type in columns.items()])


def rows(result: StructType, *values: tuple[object, ...]) -> pa.Table:
    """A table with the columns of `result`."""
    return pa.table({name: [row[i] for row in values] for i, name in enumerate(result.names)})


def simple(
    name: str, description: str, parameters: tuple[Parameter, ...], run: Callable[[Any, Arguments], None]
) -> Procedure:
    """A procedure that has nothing to tell but that it is done."""

    def run_and_say(context: Any, arguments: Arguments) -> pa.Table:
        run(context, arguments)
        return pa.table({"result": [True]})

    return Procedure(name, description, parameters, RESULT, run_and_say)


class ProcedureProxy(JavaProxy):
    """A procedure in a catalog, bound and unbound: it has the same parameters whatever it is called with."""

    interfaces = (_PROCEDURES + "UnboundProcedure", _PROCEDURES + "BoundProcedure")

    def __init__(self, context: SessionContext, procedure: Procedure) -> None:
        super().__init__(context.jvm)
        self._context = context
        self._procedure = procedure

    def name(self) -> str:
        return self._procedure.name

    def description(self) -> str:
        return self._procedure.description

    def bind(self, inputs: JavaObject) -> JavaProxy:
        return self

    def isDeterministic(self) -> bool:
        return False

    def parameters(self) -> JavaObject:
        make = getattr(self.jvm.class_(_PROCEDURES + "ProcedureParameter"), "in")
        made = []
        for parameter in self._procedure.parameters:
            struct = self.jvm.struct_type(StructType([StructField(parameter.name, parameter.data_type)]))
            builder = make(parameter.name, struct.apply(0).dataType()).comment(parameter.comment)
            if parameter.default is not None:
                builder = builder.defaultValue(parameter.default)
            made.append(builder.build())
        return self.jvm.array(_PROCEDURES + "ProcedureParameter", made)

    def call(self, row: JavaObject) -> JavaObject:
        """Run it; the result is an iterator over one scan, which has the rows."""
        arguments = {
            parameter.name: None if row.isNullAt(position) else read_argument(row, position, parameter.data_type)
            for position, parameter in enumerate(self._procedure.parameters)
        }
        table = self._procedure.run(self._context, arguments).cast(spark_arrow_schema(self._procedure.result))
        scans = self.jvm.class_("java.util.ArrayList")()
        name = f"{SYSTEM_NAMESPACE}.{self._procedure.name}"
        scans.add(LocalScanProxy(self._context, name, self._procedure.result, lambda: table))
        return scans.iterator()


def read_argument(row: JavaObject, position: int, t: DataType) -> Any:
    """The Python value of an argument in Spark's internal row."""
    if isinstance(t, StringType):
        return str(row.getUTF8String(position).toString())
    if isinstance(t, BooleanType):
        return bool(row.getBoolean(position))
    if isinstance(t, IntegerType):
        return int(row.getInt(position))
    if isinstance(t, LongType):
        return int(row.getLong(position))
    if isinstance(t, ArrayType) and isinstance(t.elementType, StringType):
        return _strings(row.getArray(position))
    if isinstance(t, MapType) and isinstance(t.keyType, StringType) and isinstance(t.valueType, StringType):
        found = row.getMap(position)
        return dict(zip(_strings(found.keyArray()), _strings(found.valueArray()), strict=True))
    raise InvalidRequest(f"a procedure's parameter cannot be of type {t.simpleString()}")


def _strings(array: JavaObject) -> list[str]:
    return [str(array.getUTF8String(index).toString()) for index in range(array.numElements())]


def parse_partition(text: str) -> dict[str, str]:
    """The spec in "dt=2024-01-15, region=EMEA"; keys that are left out mean all their values."""
    spec = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise InvalidRequest(
                f"'{text}' does not name partitions: write key=value, key=value",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            )
        spec[key.strip()] = value.strip().strip("'")
    return spec


_STRINGS = ArrayType(StringType())
