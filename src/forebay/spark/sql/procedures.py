"""Procedures: `CALL <catalog>.sys.<name>(...)`.

A procedure is a function that runs on the driver, declared with `procedure`. Its parameters are those of the function:
each is annotated with Spark's type, an optional parser and a comment, and may have a default. `ProcedureProxy` converts
the returned rows to Spark's values. Each side declares its procedures in a module: forebay.spark.sql.live_procedures,
forebay.spark.sql.lake_procedures.
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
    """Errors that are raised inside get the name of the argument in their message."""
    try:
        yield
    except ForebayError as e:
        raise type(e)(f"argument '{argument}': {e.message}", e.code) from e


@dataclass(frozen=True)
class Parameter:
    """A parameter. It is optional if it has a default, which is SQL text. `parse` converts values other than NULL."""

    name: str
    data_type: DataType
    comment: str = ""
    parse: Parser | None = None
    default: str | None = None

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> Parameter:
        """The parameter of a procedure's function; its annotation has the type, an optional parser, and a comment."""
        data_type, *parse, comment = parameter.annotation.__metadata__
        default = _DEFAULTS[parameter.default]
        return cls(parameter.name, data_type, comment, parse[0] if parse else None, default)

    def read(self, row: JavaObject, position: int) -> Any:
        """The argument at `position` of Spark's internal row; None for NULL."""
        if row.isNullAt(position):
            return None
        value = read_argument(row, position, self.data_type)
        with naming(self.name):
            return value if self.parse is None else self.parse(value)


_DEFAULTS = {inspect.Parameter.empty: None, None: "NULL", False: "false"}
"""The SQL text of each default value."""

Rows = Iterable[tuple[object, ...]]


def result_of(required: Sequence[str] = (), /, **columns: DataType) -> StructType:
    """The schema of a result; the `required` columns are NOT NULL."""
    return StructType([StructField(name, data_type, name not in required) for name, data_type in columns.items()])


DONE = result_of(result=BOOLEAN)
"""The result of a procedure that returns no data: one row, with true."""


@dataclass(frozen=True)
class Procedure:
    """A procedure. `run` takes the context of its catalog and the arguments; rows of None mean one row, with true."""

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
    """A decorator that declares a function as a procedure in `registry`, under its own name and the name `also`.

    The description is the first paragraph of its docstring. Its first parameter is the context; all others are the
    procedure's parameters.
    """

    def declared(run: Run) -> Run:
        _context, *parameters = inspect.signature(run, eval_str=True).parameters.values()
        description = " ".join((inspect.getdoc(run) or "").partition("\n\n")[0].split())
        for name in filter(None, (run.__name__, also)):
            registry[name] = Procedure(name, description, tuple(map(Parameter.of, parameters)), result, run)
        return run

    return declared


class ProcedureProxy(JavaProxy):
    """A procedure in a catalog, bound and unbound: its parameters do not depend on the arguments."""

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
        """Run the procedure and return an iterator over one scan, which has the rows."""
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
    """The partition spec in a text such as "dt=2024-01-15, region=EMEA". A missing key matches all its values."""
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
