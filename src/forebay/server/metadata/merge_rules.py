"""The rules of merge engines in CREATE TABLE and ALTER TABLE: those of Fluss's coordinator, with its error codes."""

from __future__ import annotations

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.kv._aggregate import bitmap_class
from forebay.metadata.merge_engines import (
    AGGREGATION,
    INTEGER_OVERFLOW,
    VERSIONED,
    check_functions,
    function_options,
    with_function_options,
    wraps_integers,
)
from forebay.metadata.table import Schema, TableDescriptor
from forebay.metadata.types import TypeRoot

_VERSION_OPTION = "table.merge-engine.versioned.ver-column"
_VERSION_ROOTS = (TypeRoot.INT, TypeRoot.BIGINT, TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, ErrorCode.INVALID_CONFIG_EXCEPTION)


def check_merge_engine(descriptor: TableDescriptor) -> None:
    """Raise `InvalidRequest` (INVALID_CONFIG) unless a table's merge engine suits its schema and its other options."""
    engine = descriptor.merge_engine
    check_schema_functions(descriptor, descriptor.schema)
    if engine is None:
        return
    if not descriptor.has_primary_key:
        raise _invalid("'table.merge-engine' is for primary-key tables only")
    if engine == AGGREGATION:
        if not descriptor.has_full_changelog:
            raise _invalid("'table.changelog.image' must be 'full' with the merge engine 'aggregation'")
        return
    if descriptor.delete_behavior == "allow":
        raise _invalid(
            f"'table.delete.behavior' must be 'ignore' or 'disable', not 'allow', with the merge engine '{engine}'"
        )
    automatic = descriptor.schema.auto_increment_column
    if automatic is not None:
        raise _invalid(
            f"the merge engine '{engine}' takes whole rows, and rows of a table with an auto-increment column "
            f"('{automatic}') are written without it: choose another merge engine, or number the rows yourself"
        )
    if engine == VERSIONED:
        _check_version_column(descriptor)


def _check_version_column(descriptor: TableDescriptor) -> None:
    name = descriptor.option(_VERSION_OPTION)
    if name is None:
        raise _invalid(f"the merge engine 'versioned' needs '{_VERSION_OPTION}', the column that has the version")
    if name not in descriptor.schema.names:
        raise _invalid(
            f"'{_VERSION_OPTION}' = '{name}' is not a column; the columns are {', '.join(descriptor.schema.names)}"
        )
    data_type = descriptor.schema.column(name).data_type
    if data_type.root not in _VERSION_ROOTS:
        raise _invalid(
            f"version column '{name}' has type {data_type}; it must be INT, BIGINT, TIMESTAMP or TIMESTAMP_LTZ"
        )


def check_schema_functions(descriptor: TableDescriptor, schema: Schema) -> None:
    """Raise unless the aggregate functions of `schema`, and of the table's options, suit the table's merge engine.

    `InvalidRequest` (INVALID_CONFIG), or `UnsupportedOperation` for functions that Forebay does not serve, or only with
    a package that is not installed.
    """
    if descriptor.merge_engine == AGGREGATION:
        check_functions(schema)
        wraps_integers(descriptor.custom_properties)
        if any(column.aggregate is not None and column.aggregate.name == "rbm32" for column in schema.columns):
            bitmap_class()
        return
    for column in schema.columns:
        if column.aggregate is not None:
            raise _invalid(
                f"column '{column.name}' has aggregate function '{column.aggregate}', "
                "which only the aggregation merge engine uses ('table.merge-engine' = 'aggregation')"
            )
    for name, function in function_options(descriptor.custom_properties).items():
        raise _invalid(
            f"'fields.{name}.agg' = '{function.name}' asks for an aggregate function, which only the aggregation "
            "merge engine uses ('table.merge-engine' = 'aggregation')"
        )
    if INTEGER_OVERFLOW in descriptor.custom_properties:
        raise _invalid(
            f"'{INTEGER_OVERFLOW}' is for sums and products, which only the aggregation merge engine has "
            "('table.merge-engine' = 'aggregation')"
        )


def check_altered_options(descriptor: TableDescriptor) -> None:
    """Raise `InvalidRequest` if options that were altered ask for other aggregate functions than the columns have."""
    check_schema_functions(descriptor, descriptor.schema)
    requested = with_function_options(descriptor).schema
    for column, requested_column in zip(descriptor.schema.columns, requested.columns):
        if column.aggregate != requested_column.aggregate:
            raise InvalidRequest(
                f"'fields.{column.name}.agg' = '{requested_column.aggregate}' cannot be set: the function of a column "
                "is fixed when the column is created",
                ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
            )
