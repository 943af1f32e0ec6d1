"""Deletes and other retractions that a merge engine would ignore or cannot merge: they are refused when written.

Such a row would be committed, and either change nothing, or make each later read of its key fail.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.paimon.merge.functions import RETRACTING
from forebay.paimon.merge.spec import REMOVE_ON_DELETE, REMOVE_ON_SEQUENCE_GROUP, MergeEngine, MergeSpec
from forebay.paimon.write.incoming import UPDATE_BEFORE

_ONLY_PARTITIONS = "only whole partitions can be deleted"


def check_takes_deletes(spec: MergeSpec, what: str) -> None:
    """Raise `UnsupportedOperation`, which names the statement `what`, if a delete would leave the row in the table."""
    engine = spec.engine
    if engine is MergeEngine.FIRST_ROW:
        raise UnsupportedOperation(f"{what}: merge engine {engine} keeps rows for ever; {_ONLY_PARTITIONS}")
    if spec.ignore_delete:
        raise UnsupportedOperation(f"{what}: the table has 'ignore-delete' = 'true'; {_ONLY_PARTITIONS}")
    removes = spec.remove_record_on_delete or any(group.removes for group in spec.sequence_groups)
    if engine in REMOVE_ON_DELETE and not removes:
        option = f"'{REMOVE_ON_DELETE[engine]}' = 'true'"
        if spec.sequence_groups:
            option = f"'{REMOVE_ON_SEQUENCE_GROUP}' = '{','.join(spec.sequence_groups[0].sequence_fields)}'"
        raise UnsupportedOperation(
            f"{what}: merge engine {engine} takes no deletes unless the table has {option}; {_ONLY_PARTITIONS}"
        )


def check_delete_rows(spec: MergeSpec, rows: pa.RecordBatch, what: str) -> None:
    """Raise `InvalidRequest` if deletes `rows` lack a value that decides whether they are newer than their rows."""
    for name in spec.sequence_fields:
        if rows.column(name).null_count:
            raise InvalidRequest(
                f"{what}: a delete counts if its '{name}' (sequence.field) is not less than that of the row, and this "
                f"one has none; give '{name}' beside the primary key"
            )
    removing = [group for group in spec.sequence_groups if group.removes]
    if removing and not _any_valid(rows, [name for group in removing for name in group.sequence_fields]):
        fields = " or ".join(f"'{','.join(group.sequence_fields)}'" for group in removing)
        raise InvalidRequest(
            f"{what}: a delete removes a row if its {fields} ({REMOVE_ON_SEQUENCE_GROUP}) is not less than that of the "
            f"row, and this one has none; give it beside the primary key"
        )


def check_kinds(spec: MergeSpec, kinds: npt.NDArray[np.int8], what: str) -> None:
    """Raise `InvalidRequest` for -U and -D rows that the merge engine cannot merge with other rows of their key."""
    if not (kinds & 1).any():
        return
    if spec.engine is MergeEngine.FIRST_ROW:
        raise InvalidRequest(
            f"{what}: merge-engine 'first-row' cannot take -U and -D rows; set 'ignore-delete' to skip them"
        )
    partial = spec.engine is MergeEngine.PARTIAL_UPDATE
    if partial and not (spec.sequence_groups or spec.remove_record_on_delete):
        raise InvalidRequest(
            f"{what}: a partial-update table cannot take -U and -D rows unless an option says what they do: set "
            "'ignore-delete', 'partial-update.remove-record-on-delete', or sequence groups"
        )
    if spec.remove_record_on_delete and not (kinds == UPDATE_BEFORE).any():
        return
    for aggregator in spec.aggregators.values():
        if aggregator.function not in RETRACTING and not aggregator.ignore_retract:
            raise InvalidRequest(
                f"{what}: aggregate function '{aggregator.function}' of column '{aggregator.column}' cannot take back "
                f"rows (-U, -D); set 'fields.{aggregator.column}.ignore-retract' to leave them out"
            )


def check_group_columns(spec: MergeSpec, names: frozenset[str], what: str) -> None:
    """Raise `InvalidRequest` if data with the columns `names` has columns of a sequence group without its order.

    The merge engine would ignore them.
    """
    for group in spec.sequence_groups:
        given = [name for name in group.columns if name in names]
        if given and names.isdisjoint(group.sequence_fields):
            order = ", ".join(map(repr, group.sequence_fields))
            raise InvalidRequest(
                f"{what}: the data has '{given[0]}' without {order}, which orders its sequence group, so it would "
                "change nothing; give both"
            )


def _any_valid(rows: pa.RecordBatch, names: list[str]) -> bool:
    """Whether each row has a value in one of the columns."""
    valid = rows.column(names[0]).is_valid()
    for name in names[1:]:
        valid = pc.or_(valid, rows.column(name).is_valid())
    return bool(pc.all(valid, min_count=0).as_py())
