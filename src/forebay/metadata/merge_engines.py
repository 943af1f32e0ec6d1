"""The merge engines of primary-key tables, and the functions of the `aggregation` engine.

Names, data types and parameters are Apache Fluss's (`AggFunctionType`). A column's function is part of its schema.
Connectors take it from the options `fields.<column>.agg` and `fields.<column>.<function>.<parameter>`, which stay
among the table's custom properties.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.metadata.table import AggregateFunction, Column, Schema, TableDescriptor
from forebay.metadata.types import TypeRoot

FIRST_ROW, VERSIONED, AGGREGATION = "first_row", "versioned", "aggregation"

DEFAULT_FUNCTION = "last_value_ignore_nulls"
"""The function of columns that name none."""

DEFAULT_DELIMITER = ","

INTEGER_OVERFLOW = "forebay.integer-overflow"
"""An option of Forebay, for live and lake tables: whether a sum or product of whole numbers that does not fit is an
error (`error`, the default) or keeps its lowest bits (`wrap`), as in Apache Fluss and in Java Paimon before 2.0.
"""

_NUMERIC = frozenset(
    {
        TypeRoot.TINYINT,
        TypeRoot.SMALLINT,
        TypeRoot.INT,
        TypeRoot.BIGINT,
        TypeRoot.FLOAT,
        TypeRoot.DOUBLE,
        TypeRoot.DECIMAL,
    }
)
_ORDERED = _NUMERIC | {
    TypeRoot.CHAR,
    TypeRoot.STRING,
    TypeRoot.DATE,
    TypeRoot.TIME,
    TypeRoot.TIMESTAMP,
    TypeRoot.TIMESTAMP_LTZ,
}
_ALL = frozenset(TypeRoot)

FUNCTIONS: Mapping[str, frozenset[TypeRoot]] = {
    "sum": _NUMERIC,
    "product": _NUMERIC,
    "max": _ORDERED,
    "min": _ORDERED,
    "last_value": _ALL,
    "last_value_ignore_nulls": _ALL,
    "first_value": _ALL,
    "first_value_ignore_nulls": _ALL,
    "listagg": frozenset({TypeRoot.STRING}),
    "string_agg": frozenset({TypeRoot.STRING}),
    "bool_and": frozenset({TypeRoot.BOOLEAN}),
    "bool_or": frozenset({TypeRoot.BOOLEAN}),
    "rbm32": frozenset({TypeRoot.BYTES}),
}
"""The data types that each function takes."""

_DELIMITED = ("listagg", "string_agg")
_DELIMITER = "delimiter"

_FUNCTION_OPTION = re.compile(r"fields\.(.+)\.agg", re.DOTALL)


def function_options(options: Mapping[str, str]) -> dict[str, AggregateFunction]:
    """The functions that options `fields.<column>.agg` name, with their parameters, by column."""
    functions: dict[str, AggregateFunction] = {}
    for key, text in options.items():
        match = _FUNCTION_OPTION.fullmatch(key)
        if match is None:
            continue
        name = text.strip().lower()
        prefix = f"fields.{match[1]}.{name}."
        parameters = {k[len(prefix) :]: v for k, v in options.items() if k.startswith(prefix)}
        functions[match[1]] = AggregateFunction.of(name, parameters)
    return functions


def with_function_options(descriptor: TableDescriptor) -> TableDescriptor:
    """The descriptor of an aggregating table whose columns have the functions that its custom properties name.

    Raises `InvalidRequest` (INVALID_CONFIG) if they name a missing column, or contradict the schema. Other tables are
    returned as they are.
    """
    functions = function_options(descriptor.custom_properties)
    if not functions or descriptor.merge_engine != AGGREGATION:
        return descriptor
    schema = descriptor.schema
    for name, function in functions.items():
        if name not in schema.names:
            raise _invalid(
                f"'fields.{name}.agg' = '{function.name}': there is no column '{name}'; "
                f"the columns are {', '.join(schema.names)}"
            )
        column_function = schema.column(name).aggregate
        if column_function is not None and column_function != function:
            raise _invalid(
                f"column '{name}' has aggregate function {column_function}, but the options "
                f"'fields.{name}.*' ask for {function}"
            )
    columns = tuple(replace(c, aggregate=functions.get(c.name, c.aggregate)) for c in schema.columns)
    return replace(descriptor, schema=replace(schema, columns=columns))


def check_functions(schema: Schema) -> None:
    """Raise unless each column's aggregate function exists and takes the column's type.

    `InvalidRequest` (INVALID_CONFIG), or `UnsupportedOperation` for functions that Fluss has and Forebay has not.
    """
    for column in schema.columns:
        if column.aggregate is not None:
            _check_function(schema, column, column.aggregate)


def _check_function(schema: Schema, column: Column, function: AggregateFunction) -> None:
    if column.name in schema.primary_key:
        raise _invalid(
            f"column '{column.name}' is part of the primary key, so it cannot have aggregate function {function}"
        )
    if function.name == "rbm64":
        raise UnsupportedOperation(
            f"column '{column.name}': Forebay does not serve aggregate function 'rbm64', whose values only Java's "
            "Roaring64Bitmap reads (docs/limits.md); 'rbm32' takes bitmaps of 32-bit numbers",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    roots = FUNCTIONS.get(function.name)
    if roots is None:
        raise _invalid(
            f"column '{column.name}' has aggregate function '{function.name}', which does not exist; "
            f"the functions are {', '.join(FUNCTIONS)}"
        )
    if column.data_type.root not in roots:
        raise _invalid(
            f"column '{column.name}' has type {column.data_type}, but aggregate function '{function.name}' takes "
            f"{', '.join(sorted(root.value for root in roots))}"
        )
    for parameter, text in function.parameters:
        if function.name not in _DELIMITED or parameter != _DELIMITER:
            parameter_names = f"'{_DELIMITER}'" if function.name in _DELIMITED else "none"
            raise _invalid(
                f"column '{column.name}': aggregate function '{function.name}' has no parameter '{parameter}'; "
                f"its parameters: {parameter_names}"
            )
        if not text:
            raise _invalid(f"column '{column.name}': the delimiter of '{function.name}' must not be empty")


def wraps_integers(options: Mapping[str, str]) -> bool:
    """Whether sums and products of whole numbers that do not fit keep their lowest bits.

    Raises `InvalidRequest` (INVALID_CONFIG) for an option that is neither 'error' nor 'wrap'.
    """
    value = options.get(INTEGER_OVERFLOW, "error").strip().lower()
    if value not in ("error", "wrap"):
        raise _invalid(f"option '{INTEGER_OVERFLOW}' is 'error' or 'wrap', not '{value}'")
    return value == "wrap"


def delimiter_of(function: AggregateFunction) -> str:
    """The text between the values that 'listagg' and 'string_agg' join."""
    return dict(function.parameters).get(_DELIMITER, DEFAULT_DELIMITER)


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, ErrorCode.INVALID_CONFIG_EXCEPTION)
