"""How a put merges: the compiled plan for a table, the columns that are written, and the kind of write."""

from __future__ import annotations

from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.codec.rows._layout import RowLayout
from forebay.codec.rows.keys import primary_key_encoder
from forebay.codec.rows.layout import row_layout
from forebay.codec.rows.row_format import RowFormat
from forebay.kv._aggregate import Aggregates
from forebay.kv._merge import MergePlan
from forebay.metadata.merge_engines import (
    AGGREGATION,
    DEFAULT_FUNCTION,
    FIRST_ROW,
    VERSIONED,
    delimiter_of,
    wraps_integers,
)
from forebay.metadata.table import AggregateFunction, TableInfo
from forebay.metadata.types import TypeRoot

_REFUSING = frozenset({"listagg", "string_agg", "rbm32", "rbm64"})
"""Functions that refuse some values: joined texts may be too long, and bytes may be no bitmap."""
_ARITHMETIC = frozenset({"sum", "product"})
"""Functions whose results may not fit into a DECIMAL or a whole number."""
_FLOATING = frozenset({TypeRoot.FLOAT, TypeRoot.DOUBLE})


def merge_plan(
    info: TableInfo,
    target_columns: tuple[int, ...],
    overwrite: bool = False,
    is_decided: bool = False,
    *,
    must_succeed: bool | None = None,
) -> MergePlan:
    """Return the merge plan for puts to these columns. Raises `InvalidRequest` (INVALID_TARGET_COLUMN).

    `overwrite`, `is_decided`: as in `PutRequest`. `must_succeed`: merges with other rows are not refused; by
    default `is_decided`. Raises `UnsupportedOperation` for a partial update where the merge engine takes whole rows.
    """
    deletes = info.descriptor.delete_behavior
    if overwrite or (is_decided and deletes == "disable"):
        deletes = "allow"
    schema = info.schema
    columns = schema.columns
    key_mask = bytes(column.name in schema.primary_key for column in columns)
    auto = -1 if schema.auto_increment_column is None else schema.index(schema.auto_increment_column)
    targets = _target_mask(info, target_columns, key_mask, auto)
    engine = None if overwrite else info.descriptor.merge_engine
    if engine in (FIRST_ROW, VERSIONED) and targets is not None:
        raise UnsupportedOperation(
            f"table {info.path} cannot be written in part: its merge engine '{engine}' takes whole rows",
            ErrorCode.UNKNOWN_SERVER_ERROR,  # what a Fluss cluster answers
        )
    version = -1
    if engine == VERSIONED:
        version = schema.index(info.descriptor.option("table.merge-engine.versioned.ver-column"))
    layout = row_layout(schema.types, RowFormat(info.descriptor.kv_format.value), ())
    return MergePlan(
        layout,
        info.schema_id,
        info.descriptor.has_full_changelog,
        deletes,
        key_mask,
        targets,
        auto,
        engine,
        version,
        None
        if engine != AGGREGATION
        else _aggregates(info, layout, targets, must_succeed=is_decided if must_succeed is None else must_succeed),
    )


def may_refuse_merges(info: TableInfo) -> bool:
    """whether a valid put may be refused because of the rows that are there."""
    if info.descriptor.merge_engine != AGGREGATION:
        return False
    wraps = wraps_integers(info.descriptor.custom_properties)
    functions = ((c.data_type.root, c.aggregate.name) for c in info.schema.columns if c.aggregate is not None)
    return any(
        name in _REFUSING
        or (name in _ARITHMETIC and root not in _FLOATING and not (wraps and root is not TypeRoot.DECIMAL))
        for root, name in functions
    )


def _aggregates(info: TableInfo, layout: RowLayout, targets: bytes | None, *, must_succeed: bool) -> Aggregates:
    """The functions of a table's columns; those that a partial update leaves out keep their values."""
    columns = []
    for position, column in enumerate(info.schema.columns):
        function = column.aggregate or AggregateFunction(DEFAULT_FUNCTION)
        name: str | None = "last_value" if column.name in info.schema.primary_key else function.name
        if targets is not None and not targets[position]:
            name = None
        is_decimal = column.data_type.root is TypeRoot.DECIMAL
        precision, scale = column.data_type.precision or 0, column.data_type.scale or 0
        digits = (precision, scale) if is_decimal else (0, 0)
        columns.append((column.name, name, delimiter_of(function).encode(), *digits))
    keys = primary_key_encoder(info.descriptor)
    return Aggregates(
        layout,
        columns,
        lambda key: f"table {info.path}, key {keys.shown([key])}",
        must_succeed,
        wraps_integers(info.descriptor.custom_properties),
    )


def _target_mask(info: TableInfo, target_columns: tuple[int, ...], key_mask: bytes, auto: int) -> bytes | None:
    """Return a byte for each column that a partial update writes; None for writes of whole rows."""
    schema = info.schema
    names = schema.names

    def refuse(reason: str) -> InvalidRequest:
        return InvalidRequest(f"table {info.path}: {reason}", ErrorCode.INVALID_TARGET_COLUMN)

    for position in target_columns:
        if not 0 <= position < len(names):
            raise refuse(f"target column {position} does not exist; there are {len(names)} columns")
    if auto >= 0 and (not target_columns or auto in target_columns):
        raise refuse(
            f"'{names[auto]}' is an auto-increment column, whose values the server gives: "
            "name the columns to write, without it"
        )
    if not target_columns or len(set(target_columns)) == len(names):
        return None
    mask = bytes(position in target_columns for position in range(len(names)))
    missing = [name for position, name in enumerate(names) if key_mask[position] and not mask[position]]
    if missing:
        raise refuse(f"a partial update must write the whole primary key; {', '.join(missing)} is missing")
    for position, column in enumerate(schema.columns):
        if not mask[position] and not column.data_type.nullable and position != auto:
            raise refuse(
                f"column '{column.name}' is NOT NULL, so a partial update cannot leave it out: a new row would "
                "have no value for it"
            )
    return mask
