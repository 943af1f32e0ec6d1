"""Procedures: `CALL <catalog>.sys.<name>(...)`.

A procedure is a function that runs on the driver, declared by `procedure`. Its signature has the parameters: each is
annotated with Spark's type, a parser and a comment, and may have a default. It returns rows, of which `ProcedureProxy`
makes Spark's values. Each side has its own: forebay.spark.sql.live_procedures, forebay.spark.sql.lake_procedures.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

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

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest
from forebay.base.options import Parser
from forebay.spark.context import SessionContext
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.spark_values import struct_type
from forebay.spark.jvm.values import java_list
from forebay.spark.schemas import spark_arrow_schema
from forebay.spark.sql.tables import LocalScanProxy

SYSTEM_NAMESPACE = "sys"
_PROCEDURES = CONNECTOR + "catalog.procedures."

BOOLEAN, INT, LONG, TEXT = BooleanType(), IntegerType(), LongType(), StringType()
TEXTS = ArrayType(TEXT)


@contextmanager
def naming(argument: str) -> Iterator[None]:
    """Name the argument in errors raised inside."""
    try:
        yield
    except ForebayError as e:
        raise type(e)(f"argument '{argument}': {e.message}", e.code) from e


@dataclass(frozen=True)
class Parameter:
    """A parameter; one that has a default (SQL text) may be left out. `parse` converts values other than NULL."""

    name: str
    data_type: DataType
    comment: str = ""
    parse: Parser | None = None
    default: str | None = None

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> Parameter:
        """The parameter for one of a function, whose annotation has the type, a parser if there is one, a comment."""
        data_type, *parse, comment = parameter.annotation.__metadata__
        default = _DEFAULTS[parameter.default]
        return cls(parameter.name, data_type, comment, parse[0] if parse else None, default)

    def read(self, row: JavaObject, position: int) -> Any:
        """The argument in Spark's internal row; None for NULL."""
        if row.isNullAt(position):
            return None
        value = read_argument(row, position, self.data_type)
        with naming(self.name):
            return value if self.parse is None else self.parse(value)


_DEFAULTS = {inspect.Parameter.empty: None, None: "NULL", False: "false"}
"""The SQL of default values."""

Rows = Iterable[tuple[object, ...]]


def result_of(required: Sequence[str] = (), /, **columns: DataType) -> StructType:
    """The schema of a result; the columns that are `required` have a value in every row."""
    return StructType([StructField(name, data_type, name not in required) for name, data_type in columns.items()])


DONE = result_of(result=BOOLEAN)
"""The result of a procedure that only says that it is done."""


@dataclass(frozen=True)
class Procedure:
    """Something to call. `run` gets the context of the procedure's catalog; None as its rows is one row: true."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    result: StructType
    run: Callable[..., Rows | None]

    def call(self, context: Any, arguments: Mapping[str, Any]) -> pa.Table:
        """The result, with Spark's Arrow schema."""
        rows = self.run(context, **arguments)
        values = [(True,)] if rows is None else list(rows)
        table = pa.table({name: [row[i] for row in values] for i, name in enumerate(self.result.names)})
        return table.cast(spark_arrow_schema(self.result))


Run = TypeVar("Run", bound=Callable[..., Rows | None])


def procedure(registry: dict[str, Procedure], result: StructType = DONE, *, also: str = "") -> Callable[[Run], Run]:
    """Declare the function below as a procedure in `registry`, under its own name and that of `also`.

    The description is the first paragraph of its docstring. All parameters behind the context are the procedure's.
    """

    def declared(run: Run) -> Run:
        _context, *parameters = inspect.signature(run, eval_str=True).parameters.values()
        description = " ".join((inspect.getdoc(run) or "").partition("\n\n")[0].split())
        for name in filter(None, (run.__name__, also)):
            registry[name] = Procedure(name, description, tuple(map(Parameter.of, parameters)), result, run)
        return run

    return declared


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
        """Spark's ProcedureParameter[], with comments and default values."""
        make = getattr(self.jvm.class_(_PROCEDURES + "ProcedureParameter"), "in")
        parameters = []
        for parameter in self._procedure.parameters:
            struct = struct_type(self.jvm, StructType([StructField(parameter.name, parameter.data_type)]))
            builder = make(parameter.name, struct.apply(0).dataType()).comment(parameter.comment)
            if parameter.default is not None:
                builder = builder.defaultValue(parameter.default)
            parameters.append(builder.build())
        return self.jvm.array(_PROCEDURES + "ProcedureParameter", parameters)

    def call(self, row: JavaObject) -> JavaObject:
        """Run it; the result is an iterator over one scan, which has the rows."""
        parameters = self._procedure.parameters
        arguments = {parameter.name: parameter.read(row, position) for position, parameter in enumerate(parameters)}
        table = self._procedure.call(self._context, arguments)
        name = f"{SYSTEM_NAMESPACE}.{self._procedure.name}"
        return java_list(
            self.jvm, [LocalScanProxy(self._context, name, self._procedure.result, lambda: table)]
        ).iterator()


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
        entries = row.getMap(position)
        return dict(zip(_strings(entries.keyArray()), _strings(entries.valueArray()), strict=True))
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
