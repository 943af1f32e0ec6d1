"""The merge engines: take sorted rows, return one row per key, column by column.

As in Paimon, a row that is the only one of its key passes unchanged; an engine sees only keys with two rows or more.
For most columns, an engine merely decides which row's value a key gets, so that the work is one gather per column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.paimon.format.schema import KEY_PREFIX, SEQUENCE_NUMBER, VALUE_KIND
from forebay.paimon.merge._groups import SequenceGroup, partial_update_events
from forebay.paimon.merge.folds import (
    ADD,
    ADD_OLDER,
    CLEAR,
    PICKS,
    RETRACT,
    SET,
    SET_RETRACT,
    SKIP,
    FoldFailure,
    Indices,
    KeyGroups,
    allowed_ops,
    fold_number,
    fold_picked,
    fold_text,
)
from forebay.paimon.merge.functions import Aggregator
from forebay.paimon.merge.nested import fold_nested
from forebay.paimon.merge.order import fixed_values, flag_values, sort_key, validity
from forebay.paimon.merge.spec import MergeEngine, MergeSpec

INSERT_KIND = 0
DELETE_KIND = 3

# The effect of a sequence group's events on its columns, in the order of `Event` in the kernels: skip, add, add older,
# retract, retract older, set, set and retract.
_SEQUENCE_OPS = np.array([SKIP, ADD, SKIP, ADD, SKIP, SET, SET], np.uint8)
_PLAIN_OPS = np.array([SKIP, ADD, SKIP, CLEAR, SKIP, SET, CLEAR], np.uint8)
_AGGREGATE_OPS = np.array([SKIP, ADD, ADD_OLDER, RETRACT, RETRACT, SET, SET_RETRACT], np.uint8)


@dataclass(frozen=True)
class SortedRows:
    """Rows and their order by key, sequence fields and sequence number; `starts` marks where each key begins in it.

    `columns` need not contain all columns of the table, only those of `MergeSpec.required_columns`.
    """

    columns: dict[str, pa.Array]
    order: Indices
    starts: Indices

    @property
    def kinds(self) -> npt.NDArray[np.int8]:
        return fixed_values(self.columns[VALUE_KIND], np.dtype(np.int8)).astype(np.int8, copy=False)


@dataclass
class _Result:
    """One row per key. `picks` has the row of each column's value (-1: null), `default` that of other columns.

    `computed` has new values: a pick of `height + i` means `computed[i]`.
    """

    default: Indices
    picks: dict[str, Indices]
    computed: dict[str, pa.Array]
    kinds: npt.NDArray[np.int8]

    def gather(self, rows: SortedRows, names: Sequence[str], keep_deletes: bool) -> list[pa.Array]:
        live = None if keep_deletes or not (self.kinds & 1).any() else np.flatnonzero((self.kinds & 1) == 0)
        default = pa.array(self.default if live is None else self.default[live])
        gathered = []
        for name in names:
            column = rows.columns[name]
            picks = self.picks.get(name)
            if name in self.computed:
                column = pa.concat_arrays([column, self.computed[name]])
            if picks is None:
                gathered.append(column.take(default))
                continue
            positions = picks if live is None else picks[live]
            gathered.append(column.take(pa.array(positions, mask=positions < 0)))
        return gathered


def merge_sorted_rows(
    rows: SortedRows, spec: MergeSpec, names: Sequence[str], *, keep_deletes: bool = True
) -> list[pa.Array]:
    """The columns `names` of the merged rows, ascending by key; deletes are dropped unless `keep_deletes`.

    Raises `InvalidRequest` if the engine cannot merge a row: retractions that no option allows, nulls in NOT NULL
    columns, overflow.
    """
    winners = winning_rows(rows, spec)
    if winners is None:
        result = _folded(rows, spec, np.diff(rows.starts), names)
    else:
        result = _Result(winners, {}, {}, rows.kinds[winners])
    return result.gather(rows, names, keep_deletes)


def winning_rows(rows: SortedRows, spec: MergeSpec) -> Indices | None:
    """For each key, the row that is its result unchanged; None if some keys combine values of several rows.

    Only the column of kinds is read. Raises `InvalidRequest` like `merge_sorted_rows`.
    """
    several = np.diff(rows.starts) > 1
    if not several.any():
        return _at(rows.order, rows.starts[:-1])
    if spec.engine in (MergeEngine.DEDUPLICATE, MergeEngine.FIRST_ROW):
        return _last_or_first(rows, spec, rows.kinds, several)
    return None


def _last_or_first(
    rows: SortedRows, spec: MergeSpec, kinds: npt.NDArray[np.int8], several: npt.NDArray[np.bool_]
) -> Indices:
    """The last or first row of each key; of keys with several rows, the last or first that is not a retraction."""
    first = spec.engine is MergeEngine.FIRST_ROW
    ends = rows.starts[1:] - 1
    plain = rows.starts[:-1] if first else ends
    if not (first or spec.ignore_delete):
        return _at(rows.order, plain)
    added = (kinds[rows.order] & 1) == 0
    if added.all():
        return _at(rows.order, plain)
    places = np.arange(len(rows.order), dtype=np.int64)
    if first:
        none = len(rows.order)
        best = np.minimum.reduceat(np.where(added, places, none), rows.starts[:-1])
        if not spec.ignore_delete and (~added & np.repeat(several, np.diff(rows.starts))).any():
            raise InvalidRequest(
                "merge-engine 'first-row' cannot take -U and -D rows; set 'ignore-delete' to skip them"
            )
    else:
        none = -1
        best = np.maximum.reduceat(np.where(added, places, none), rows.starts[:-1])
    best = np.where(several, best, plain)
    return _at(rows.order, best[best != none])


def _at(rows: Indices, places: Indices) -> Indices:
    values: Indices = rows[places]
    return values


def _folded(rows: SortedRows, spec: MergeSpec, sizes: Indices, names: Sequence[str]) -> _Result:
    several = sizes > 1
    members = rows.order[np.repeat(several, sizes)]
    starts = np.zeros(int(several.sum()) + 1, np.int64)
    np.cumsum(sizes[several], out=starts[1:])
    kinds = rows.kinds
    groups = KeyGroups(members, starts, np.zeros(len(members), np.uint8))
    folding = _aggregation if spec.engine is MergeEngine.AGGREGATION else _partial_update
    plan = folding(rows, spec, groups, kinds)
    alone = rows.order[rows.starts[:-1]]
    result = _Result(alone, {}, {}, kinds[alone])
    result.kinds[several] = np.where(plan.deleted, DELETE_KIND, INSERT_KIND)
    height = len(kinds)
    for name in names:
        if name in spec.key_columns:
            continue
        picks = alone.copy()
        if name == VALUE_KIND:
            result.computed[name] = pa.array(result.kinds)
            picks = height + np.arange(len(alone), dtype=np.int64)
        elif name == SEQUENCE_NUMBER:
            result.computed[name] = pa.array([0], pa.int64())
            picks[several] = np.where(plan.latest < 0, height, plan.latest)
        else:
            try:
                folded = plan.fold(name, rows.columns[name], spec)
            except FoldFailure as e:
                row = int(groups.rows[groups.starts[e.group]])
                raise InvalidRequest(f"{_described(rows, spec, row)}: {e.message}") from e
            if isinstance(folded, np.ndarray):
                picks[several] = folded
            else:
                # A fold may return `string` where the column has wide offsets.
                result.computed[name] = folded.cast(rows.columns[name].type)
                picks[several] = height + np.arange(len(folded), dtype=np.int64)
        result.picks[name] = picks
    return result


def _described(rows: SortedRows, spec: MergeSpec, row: int) -> str:
    """The key of a row, and the table, for error messages."""
    keys = [name for name in spec.key_columns if name in rows.columns]
    values = ", ".join(f"{name.removeprefix(KEY_PREFIX)} = {rows.columns[name][row].as_py()!r}" for name in keys)
    return f"table {spec.place or '(unknown)'}, key {values}"


@dataclass(frozen=True)
class _Plan:
    """The operations of rows on columns: `ops` for columns in general, `group_ops` for those in sequence groups."""

    groups: KeyGroups
    ops: npt.NDArray[np.uint8]
    events: dict[tuple[str, ...], npt.NDArray[np.uint8]]
    latest: Indices
    deleted: npt.NDArray[np.bool_]
    checks_added: bool

    def fold(self, name: str, column: pa.Array, spec: MergeSpec) -> Indices | pa.Array:
        aggregator = spec.aggregators.get(name)
        group = spec.group_of(name)
        function = "last_non_null_value" if group is None else "last_value"
        if group is None:
            ops = self.ops
        elif name in group.sequence_fields:
            ops = _SEQUENCE_OPS[self.events[group.sequence_fields]]
        elif aggregator is None:
            ops = _PLAIN_OPS[self.events[group.sequence_fields]]
        else:
            ops = _AGGREGATE_OPS[self.events[group.sequence_fields]]
        if name in spec.not_null and column.null_count:
            self._check_not_null(name, column, ops)
        groups = self.groups.with_ops(ops)
        return fold_picked(function, column, groups) if aggregator is None else _aggregate(aggregator, column, groups)

    def _check_not_null(self, name: str, column: pa.Array, ops: npt.NDArray[np.uint8]) -> None:
        taking = (ops == SET) | ((ops == ADD) if self.checks_added else False)
        present = validity(column)
        if present is not None and not present[self.groups.rows[taking]].all():
            raise InvalidRequest(f"column '{name}' is NOT NULL, but a row has null there")


def _aggregate(aggregator: Aggregator, column: pa.Array, groups: KeyGroups) -> Indices | pa.Array:
    groups = allowed_ops(aggregator, groups)
    function = aggregator.function
    if function in PICKS:
        return fold_picked(function, column, groups)
    if function in ("sum", "product"):
        return fold_number(aggregator, column, groups)
    if function == "listagg":
        return fold_text(aggregator, column, groups)
    return fold_nested(aggregator, column, groups)


def _aggregation(rows: SortedRows, spec: MergeSpec, groups: KeyGroups, kinds: npt.NDArray[np.int8]) -> _Plan:
    mine = kinds[groups.rows]
    ops = np.where(mine & 1, RETRACT, ADD).astype(np.uint8)
    last = groups.rows[groups.starts[1:] - 1]
    deleted = np.zeros(groups.count, np.bool_)
    if spec.remove_record_on_delete:
        ops[mine == DELETE_KIND] = SET
        deleted = kinds[last] == DELETE_KIND
    return _Plan(groups, ops, {}, last, deleted, checks_added=False)


def _partial_update(rows: SortedRows, spec: MergeSpec, groups: KeyGroups, kinds: npt.NDArray[np.int8]) -> _Plan:
    present = [g for g in spec.sequence_groups if all(name in rows.columns for name in g.sequence_fields)]
    sequences = []
    for group in present:
        columns = [rows.columns[name] for name in group.sequence_fields]
        empty = np.ones(len(kinds), np.bool_)
        for column in columns:
            empty &= flag_values(column.is_valid()) == 0
        sequences.append(SequenceGroup(sort_key(columns, zeros_equal=True), empty.astype(np.uint8), group.removes))
    # If the table has sequence groups and none of them was requested, retractions still follow their rules.
    lenient = spec.ignore_delete or (bool(spec.sequence_groups) and not present)
    try:
        events, plain, latest, deleted = partial_update_events(
            sequences, kinds, lenient, spec.remove_record_on_delete, groups.rows, groups.starts
        )
    except ValueError as e:
        raise InvalidRequest(
            "a partial-update table got -U or -D rows, and no option says what to do with them: set 'ignore-delete', "
            "'partial-update.remove-record-on-delete', or sequence groups"
        ) from e
    by_group = {group.sequence_fields: event for group, event in zip(present, events)}
    return _Plan(groups, plain, by_group, latest, deleted.astype(np.bool_), checks_added=not spec.sequence_groups)
