"""Partial writes: which columns can be written without changing the others."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.base.arguments import did_you_mean, one_or_more_names
from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.paimon.merge.spec import MergeEngine, MergeSpec
from forebay.paimon.store.context import TableContext

_TAKES_NULLS = frozenset({"first_value", "last_value"})
"""Aggregate functions that treat a null like any other value."""


def partial_columns(table: TableContext, spec: MergeSpec | None, columns: Sequence[str] | str) -> tuple[str, ...]:
    """`columns`, checked for a write that keeps the values of the other columns.

    Raises `InvalidRequest` for unknown or missing columns, `UnsupportedOperation` if the merge engine would change the
    other columns.
    """
    name, schema = table.paths.root, table.schema
    names = one_or_more_names(columns, "columns")
    for column in names:
        if column not in schema.names:
            raise InvalidRequest(
                f"there is no column '{column}'; columns are {', '.join(schema.names)}"
                f"{did_you_mean(column, schema.names)}"
            )
    if missing := [key for key in schema.primary_keys if key not in names]:
        raise InvalidRequest(f"columns={list(names)} lacks '{missing[0]}' of the primary key; add it")
    if spec is None or spec.engine not in (MergeEngine.PARTIAL_UPDATE, MergeEngine.AGGREGATION):
        engine = "none" if spec is None else spec.engine
        raise UnsupportedOperation(
            f"table {name} cannot be written column by column: its merge engine is '{engine}'. Make it with option "
            "'merge-engine' = 'partial-update' or 'aggregation', or write whole rows"
        )
    for column in (other for other in schema.names if other not in names):
        aggregator = spec.aggregators.get(column)
        if aggregator is not None and aggregator.function in _TAKES_NULLS:
            raise UnsupportedOperation(
                f"column '{column}' of table {name} is merged by {aggregator.function}, which would take a null for "
                f"its value: write it as well, or choose last_non_null_value or first_non_null_value"
            )
    for group in spec.sequence_groups:
        together = (*group.sequence_fields, *group.columns)
        absent = [column for column in together if column not in names]
        if absent and len(absent) < len(together):
            raise InvalidRequest(
                f"columns={list(names)} lacks '{absent[0]}': {', '.join(together)} are one sequence group of table "
                f"{name}, and are written together or not at all"
            )
    return names
