"""Tables in Polars: `forebay.polars.scan("sales.orders", "127.0.0.1:9123")` is a LazyFrame.

Polars reads only what a query needs: columns, filters and row limits are pushed into the scan. What a filter of ours
cannot express (arithmetic, functions) Polars applies to the rows that come back. A frame has the rows of one instant,
that of `scan`, also if a query uses it twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay.api.filters import as_predicate, negated, python_value
from forebay.api.scan import Scan
from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.client.connection import Connection, shared_connection
from forebay.client.settings import LAKE_OPTIONS, make_settings
from forebay.client.table import Table
from forebay.metadata.predicate import Compound, CompoundFunction, Leaf, LeafFunction, Predicate, all_of
from forebay.unionread.scan import union_scan

if TYPE_CHECKING:
    from forebay.api.filters import FilterLike
    from forebay.query.tables import LakeLike

__all__ = ["scan"]


def scan(
    table: Any,
    bootstrap_servers: str | Connection | None = None,
    warehouse: LakeLike | None = None,
    *,
    columns: Sequence[str] | None = None,
    filter: FilterLike | None = None,  # noqa: A002 - the word of `Table.scan`
    as_of: Any = None,
    user: str | None = None,
    password: str | None = None,
    lake_options: Mapping[str, str] | None = None,
    **options: Any,
) -> Any:
    """A `polars.LazyFrame` over a table, as of now (or `as_of`, an earlier state).

    `table` is a live table or a lake table, a scan of one, or a name as in `forebay.sql`: "database.table" of the
    cluster at `bootstrap_servers`, "lake.database.table" of `warehouse`. Of live tables it reads lake and stream as
    one. `columns` and `filter` are as in `Table.scan`, and `user`, `password`, `lake_options` and `options` as in
    `forebay.connect`. Raises `UnsupportedOperation` if Polars is not installed.
    """
    try:
        import polars
        from polars.io.plugins import register_io_source
    except ImportError as e:
        raise UnsupportedOperation("forebay.polars needs Polars: pip install 'forebay[polars]'") from e
    if isinstance(table, str):
        connection_options = {**options, LAKE_OPTIONS: lake_options or {}}
        scan = _scan_of_name(table, bootstrap_servers, warehouse, as_of, user, password, connection_options)
    elif isinstance(table, Scan):
        if as_of is not None:
            raise InvalidRequest("a scan already has a state: pass as_of to table.scan(...)")
        scan = table.pinned()
    elif isinstance(table, Table):
        scan = union_scan(table, as_of).pinned()
    elif hasattr(table, "scan"):
        scan = table.scan(as_of=as_of).pinned()
    else:
        raise InvalidRequest(f"{table!r} is not a table: pass a table, a scan, or a name such as 'sales.orders'")
    if columns is not None or filter is not None:
        scan = scan.narrowed(columns, as_predicate(filter, scan.schema))
    schema: Any = polars.from_arrow(scan.schema.empty_table())
    pure: Any = {"is_pure": True} if "is_pure" in signature(register_io_source).parameters else {}  # since Polars 1.32
    return register_io_source(_IoSource(scan), schema=schema.schema, **pure)


def _scan_of_name(
    name: str,
    servers: str | Connection | None,
    warehouse: LakeLike | None,
    as_of: Any,
    user: str | None,
    password: str | None,
    options: Mapping[str, Any],
) -> Scan:
    from forebay.query.statement import TableName
    from forebay.query.tables import LAKE, Tables, opened_lake

    connection = servers if isinstance(servers, Connection) else None
    if connection is None and (servers is not None or warehouse is None):
        connection = shared_connection(make_settings(str(servers) if servers else None, user, password, options))
    lakes = {} if warehouse is None else {LAKE: opened_lake(warehouse)}
    scan = Tables(connection, lakes).scan(TableName(tuple(name.split("."))), as_of)
    if isinstance(scan, Scan):
        return scan
    raise UnsupportedOperation(f"{name} is a system table: polars.from_arrow(table.system(...).read()) has its rows")


class _IoSource:
    """The callback of Polars for the rows of a pinned scan."""

    def __init__(self, pinned: Scan) -> None:
        self._scan = pinned

    def __call__(
        self, with_columns: list[str] | None, predicate: Any, n_rows: int | None, batch_size: int | None
    ) -> Iterator[Any]:
        import polars

        if n_rows is not None:  # the first rows, of which those that match are wanted: a filter comes afterwards
            scan = self._scan.narrowed(with_columns, None).limited(n_rows)
        else:
            try:
                scan = self._scan.narrowed(with_columns, None if predicate is None else implied_by(predicate))
            except InvalidRequest:  # of a column that has no filters
                scan = self._scan.narrowed(with_columns, None)
        for batch in scan:
            frame: Any = polars.from_arrow(pa.Table.from_batches([batch]))
            if predicate is not None:
                frame = frame.filter(predicate)
            yield from [frame] if batch_size is None else frame.iter_slices(batch_size)


# ---- filters --------------------------------------------------------------------------------------------------------

_COMPARISONS = {
    "Eq": LeafFunction.EQUAL,
    "NotEq": LeafFunction.NOT_EQUAL,
    "Lt": LeafFunction.LESS_THAN,
    "LtEq": LeafFunction.LESS_OR_EQUAL,
    "Gt": LeafFunction.GREATER_THAN,
    "GtEq": LeafFunction.GREATER_OR_EQUAL,
}
_MIRRORED = {"Eq": "Eq", "NotEq": "NotEq", "Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
_SEARCHES = {"StartsWith": LeafFunction.STARTS_WITH, "EndsWith": LeafFunction.ENDS_WITH}
_CLOSED = {
    "Both": (LeafFunction.GREATER_OR_EQUAL, LeafFunction.LESS_OR_EQUAL),
    "Left": (LeafFunction.GREATER_OR_EQUAL, LeafFunction.LESS_THAN),
    "Right": (LeafFunction.GREATER_THAN, LeafFunction.LESS_OR_EQUAL),
    "None": (LeafFunction.GREATER_THAN, LeafFunction.LESS_THAN),
}


class _NotOurs(Exception):
    """A part of an expression that no filter of ours expresses."""


def implied_by(expression: Any) -> Predicate | None:
    """The conjuncts of a Polars expression that a predicate can express; None if it can express none.

    Expressions are read from their JSON, whose form Polars does not promise: a part that has another one is left out,
    so more rows may match the predicate.
    """
    from polars.exceptions import PolarsError

    parts = list[Predicate]()
    try:
        pending = [json.loads(expression.meta.serialize(format="json"))]
    except PolarsError:  # such as a function of Python
        return None
    while pending:
        node = pending.pop()
        binary = node.get("BinaryExpr") if isinstance(node, dict) else None
        if binary is not None and binary.get("op") in ("And", "LogicalAnd"):
            pending += [binary["right"], binary["left"]]
            continue
        try:
            parts.append(_predicate(node))
        except (_NotOurs, PolarsError, KeyError, TypeError, ValueError, InvalidRequest):
            continue
    return all_of(parts)


def _predicate(node: Any) -> Predicate:
    match node:
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd" | "Or" | "LogicalOr" as op, "right": right}}:
            function = CompoundFunction.AND if op.endswith("And") else CompoundFunction.OR
            return Compound(function, (_predicate(left), _predicate(right)))
        case {"BinaryExpr": {"left": left, "op": str(op), "right": right}} if op in _COMPARISONS:
            if "Literal" in left:
                left, right, op = right, left, _MIRRORED[op]
            return Leaf(_COMPARISONS[op], _column(left), (_value(right),))
        case {"Function": {"input": [first, *rest], "function": {"Boolean": function}}}:
            return _boolean(function, first, rest)
        case {"Function": {"input": [column, pattern], "function": {"StringExpr": str(name)}}} if name in _SEARCHES:
            return Leaf(_SEARCHES[name], _column(column), (_text(pattern),))
        case {"Function": {"input": [column, pattern], "function": {"StringExpr": {"Contains": {"literal": True}}}}}:
            return Leaf(LeafFunction.CONTAINS, _column(column), (_text(pattern),))
        case {"Column": str(name)}:
            return Leaf(LeafFunction.EQUAL, name, (True,))
    raise _NotOurs


def _boolean(function: Any, first: Any, rest: list[Any]) -> Predicate:
    match function:
        case "IsNull" | "IsNotNull":
            return Leaf(LeafFunction.IS_NULL if function == "IsNull" else LeafFunction.IS_NOT_NULL, _column(first))
        case "Not":
            return negated(_predicate(first))
        case {"IsBetween": {"closed": closed}}:
            low, high = _CLOSED[closed]
            column = _column(first)
            return Leaf(low, column, (_value(rest[0]),)) & Leaf(high, column, (_value(rest[1]),))
        case {"IsIn": {"nulls_equal": False}}:
            values = _scalar(rest[0])
            if not isinstance(values, pa.ListScalar | pa.LargeListScalar | pa.FixedSizeListScalar):
                raise _NotOurs
            elements = [python_value(value) for value in values.values]
            return Leaf(LeafFunction.IN, _column(first), tuple(value for value in elements if value is not None))
    raise _NotOurs


def _column(node: Any) -> str:
    match node:
        case {"Column": str(name)}:
            return name
    raise _NotOurs


def _text(node: Any) -> str:
    value = _value(node)
    if not isinstance(value, str):
        raise _NotOurs
    return value


def _value(node: Any) -> Any:
    return python_value(_scalar(node))


def _scalar(node: Any) -> pa.Scalar:
    """The value of a literal; Polars itself reads its form."""
    import polars

    if set(node) != {"Literal"}:
        raise _NotOurs
    expression = polars.Expr.deserialize(json.dumps(node).encode(), format="json")
    return polars.select(expression).to_series().to_arrow()[0]
