"""Folds of lists and maps: `collect`, `merge_map`, `nested_update`.

All work on element codes, which are equal for equal elements. The result of a fold is a list of element positions per
key, which is gathered at the end, so that no element is ever converted to a Python value. Common cases are vectorized;
retractions and rarer options go through `_by_element`, over integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.paimon.merge._fold import fold_pick
from forebay.paimon.merge._order import group_starts, sort_rows
from forebay.paimon.merge.folds import ADD, ADD_OLDER, CLEAR, PICKS, RETRACT, SET, SET_RETRACT, SKIP, Indices, KeyGroups
from forebay.paimon.merge.functions import Aggregator
from forebay.paimon.merge.order import fixed_values, flag_values, is_sortable, sort_key

_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Elements:
    """The elements of the lists of `groups`: `flat[bounds[i]:bounds[i + 1]]` are those of row i."""

    flat: pa.Array
    bounds: Indices
    present: _Flags
    groups: KeyGroups

    def owners(self) -> Indices:
        """The row index of each element."""
        return np.repeat(np.arange(len(self.present), dtype=np.int64), np.diff(self.bounds))


def fold_nested(aggregator: Aggregator, column: pa.Array, groups: KeyGroups) -> pa.Array:
    """One list or map per key."""
    elements = _elements(column.take(pa.array(groups.rows)), groups)
    match aggregator.function:
        case "collect":
            return _collect(aggregator, elements, column.type)
        case "merge_map":
            return _merge_map(aggregator, elements, column.type)
        case _:
            return _nested_update(aggregator, elements, column.type)


def _elements(column: pa.Array, groups: KeyGroups) -> _Elements:
    offsets = fixed_values(pa.array(column.offsets), np.dtype(np.int32)).astype(np.int64)
    present = flag_values(column.is_valid()).astype(np.bool_)
    lengths = np.where(present, np.diff(offsets), 0)
    bounds = np.zeros(len(column) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    if pa.types.is_map(column.type):
        flat = pa.StructArray.from_arrays(
            [column.keys, column.items], fields=[column.type.key_field.with_nullable(True), column.type.item_field]
        )
    else:
        flat = column.values
    # Rows that are null may still own elements, and the first offset need not be zero.
    positions = np.repeat(offsets[:-1] - bounds[:-1], lengths) + np.arange(bounds[-1])
    return _Elements(flat.take(pa.array(positions)), bounds, present, groups)


def element_codes(array: pa.Array) -> Indices:
    """Numbers that are equal for equal elements and have the same order; null equals null."""
    key = sort_key(_leaves(array))
    order = sort_rows([key])
    starts = group_starts(key, order)
    codes = np.empty(len(array), np.int64)
    codes[order] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return codes


def _leaves(array: pa.Array) -> list[pa.Array]:
    """Comparable columns that together are equivalent to `array`."""
    if pa.types.is_null(array.type):
        return [pa.array(np.zeros(len(array), np.int8))]
    if is_sortable(array.type):
        return [array]
    if pa.types.is_struct(array.type):
        leaves = [pa.array(flag_values(array.is_valid()).astype(np.int8))]
        for child in array.flatten():
            leaves += _leaves(child)
        return leaves
    # Lists within elements are rare, and compared by their representation.
    return [pa.array([repr(value) for value in array.to_pylist()], pa.string())]


def _built(elements: _Elements, positions: Indices, owners: Indices, some: Indices, data_type: pa.DataType) -> pa.Array:
    """Lists of the elements `positions`; `owners` has the key of each (ascending); keys outside of `some` get null."""
    count = elements.groups.count
    offsets = pa.array(np.searchsorted(owners, np.arange(count + 1)).astype(np.int32))
    missing = np.ones(count, np.bool_)
    missing[some] = False
    values = elements.flat.take(pa.array(positions))
    if pa.types.is_map(data_type):
        keys, items = (values.field(i) for i in range(2))
        return pa.MapArray.from_arrays(offsets, keys, items, type=data_type, mask=pa.array(missing))
    return pa.ListArray.from_arrays(offsets, values, type=data_type, mask=pa.array(missing))


def _added(elements: _Elements) -> tuple[Indices, Indices]:
    """The elements of the rows that are added, and the keys that have such a row."""
    numbers = elements.groups.numbers()
    adding = elements.present & np.isin(elements.groups.ops, (ADD, ADD_OLDER))
    return np.flatnonzero(adding[elements.owners()]), np.unique(numbers[adding])


def _collect(aggregator: Aggregator, elements: _Elements, data_type: pa.DataType) -> pa.Array:
    groups = elements.groups
    if not groups.has_only(SKIP, ADD, ADD_OLDER):
        return _by_element(aggregator, elements, data_type)
    positions, some = _added(elements)
    owners = groups.numbers()[elements.owners()[positions]]
    if aggregator.distinct and len(positions):
        key = sort_key([pa.array(owners), *_leaves(elements.flat.take(pa.array(positions)))])
        order = sort_rows([key])
        first = np.sort(order[group_starts(key, order)[:-1]])
        positions, owners = positions[first], owners[first]
    return _built(elements, positions, owners, some, data_type)


def _merge_map(aggregator: Aggregator, elements: _Elements, data_type: pa.DataType) -> pa.Array:
    if not elements.groups.has_only(SKIP, ADD, ADD_OLDER, RETRACT):
        return _by_element(aggregator, elements, data_type)
    return _latest(elements, _leaves(elements.flat.field(0)), None, data_type)


def _nested_update(aggregator: Aggregator, elements: _Elements, data_type: pa.DataType) -> pa.Array:
    if aggregator.is_limited or not elements.groups.has_only(SKIP, ADD, RETRACT):
        return _by_element(aggregator, elements, data_type)
    # A retraction from nothing is not evaluated, so its null keys are no error: only the order of rows decides.
    if (not aggregator.nested_key or aggregator.null_keys == "error") and not elements.groups.has_only(SKIP, ADD):
        return _by_element(aggregator, elements, data_type)
    elements = _only(elements, _usable(aggregator, elements))
    if not aggregator.nested_key:
        positions, some = _added(elements)
        return _built(elements, positions, elements.groups.numbers()[elements.owners()[positions]], some, data_type)
    keys = [leaf for name in aggregator.nested_key for leaf in _leaves(_member(elements.flat, name))]
    ranks = None
    if aggregator.nested_sequence:
        ranks = [leaf for name in aggregator.nested_sequence for leaf in _leaves(_member(elements.flat, name))]
    return _latest(elements, keys, ranks, data_type)


def _member(structs: pa.StructArray, name: str) -> pa.Array:
    return structs.flatten()[structs.type.get_field_index(name)]


def _usable(aggregator: Aggregator, elements: _Elements) -> _Flags:
    """Whether each element counts: nulls never do, and those whose key has a null by `nested-key-null-strategy`."""
    present, keyed = _presence(aggregator, elements)
    used = elements.groups.ops[elements.owners()] != SKIP
    if aggregator.null_keys == "error" and not keyed[present & used].all():
        raise _null_key(aggregator)
    return present if aggregator.null_keys == "merge" else present & keyed


def _presence(aggregator: Aggregator, elements: _Elements) -> tuple[_Flags, _Flags]:
    """Which elements are not null, and which have a nested key without nulls."""
    present: _Flags = flag_values(elements.flat.is_valid()).astype(np.bool_)
    keyed = np.ones(len(present), np.bool_)
    for name in aggregator.nested_key:
        keyed &= flag_values(_member(elements.flat, name).is_valid()) == 1
    return present, keyed


def _null_key(aggregator: Aggregator) -> InvalidRequest:
    return InvalidRequest(f"column '{aggregator.column}': a nested key ({', '.join(aggregator.nested_key)}) has a null")


def _only(elements: _Elements, mask: _Flags) -> _Elements:
    if mask.all():
        return elements
    counts = np.zeros(len(mask) + 1, np.int64)
    np.cumsum(mask, out=counts[1:])
    flat = elements.flat.take(pa.array(np.flatnonzero(mask)))
    return _Elements(flat, counts[elements.bounds], elements.present, elements.groups)


def _latest(
    elements: _Elements, keys: list[pa.Array], ranks: list[pa.Array] | None, data_type: pa.DataType
) -> pa.Array:
    """For each key and element key, the element set last (or with the highest rank), unless it was removed."""
    groups = elements.groups
    numbers = groups.numbers()
    _, some = _added(elements)
    owners = elements.owners()
    if len(owners) == 0:
        return _built(elements, owners, owners, some, data_type)
    key = sort_key([pa.array(numbers[owners]), *keys])
    order = sort_rows([key])
    picked = fold_pick(
        PICKS["last_non_null_value" if ranks is None else "latest"],
        order,
        group_starts(key, order),
        groups.ops[owners][order],
        len(owners),
        None,
        None if ranks is None else sort_key(ranks),
    )
    positions = np.sort(picked[picked >= 0])
    return _built(elements, positions, numbers[owners[positions]], some, data_type)


# ---- the rarer cases, element by element ----------------------------------------------------------------------------

_Held = list[int] | None
_Step = Callable[[_Held, _Held], _Held]


def _by_element(aggregator: Aggregator, elements: _Elements, data_type: pa.DataType) -> pa.Array:
    """Folds lists of element positions row by row, as Paimon does."""
    match aggregator.function:
        case "collect":
            add, older, retract = _collect_steps(aggregator, elements)
        case "merge_map":
            add, older, retract = _map_steps(element_codes(elements.flat.field(0)).tolist())
        case _:
            add, older, retract = _nested_steps(aggregator, elements)
    bounds = elements.bounds.tolist()
    present = elements.present.tolist()
    positions: list[int] = []
    owners: list[int] = []
    some: list[int] = []
    for g in range(elements.groups.count):
        accumulator: _Held = None
        for i in range(elements.groups.starts[g], elements.groups.starts[g + 1]):
            op = elements.groups.ops[i]
            value = list(range(bounds[i], bounds[i + 1])) if present[i] else None
            if op in (SET, CLEAR, SET_RETRACT):
                accumulator = None if op == CLEAR else value
            if op == ADD:
                accumulator = add(accumulator, value)
            elif op == ADD_OLDER:
                accumulator = older(accumulator, value)
            elif op in (RETRACT, SET_RETRACT):
                accumulator = retract(accumulator, value)
        if accumulator is not None:
            some.append(g)
            positions += accumulator
            owners += [g] * len(accumulator)
    return _built(
        elements, np.array(positions, np.int64), np.array(owners, np.int64), np.array(some, np.int64), data_type
    )


def _collect_steps(aggregator: Aggregator, elements: _Elements) -> tuple[_Step, _Step, _Step]:
    codes = element_codes(elements.flat).tolist()

    def add(accumulator: _Held, value: _Held) -> _Held:
        if accumulator is None and value is None:
            return None
        both = (accumulator or []) + (value or [])
        if not aggregator.distinct:
            return both
        first: dict[int, int] = {}
        for element in both:
            first.setdefault(codes[element], element)
        return list(first.values())

    def retract(accumulator: _Held, value: _Held) -> _Held:
        if accumulator is None or not value:
            return accumulator
        retracted = [codes[e] for e in value]
        remaining = []
        for element in accumulator:
            if codes[element] in retracted:
                retracted.remove(codes[element])
            else:
                remaining.append(element)
        return remaining

    return add, add, retract


def _map_steps(codes: list[int]) -> tuple[_Step, _Step, _Step]:
    def add(accumulator: _Held, value: _Held) -> _Held:
        if accumulator is None or value is None:
            return value if accumulator is None else accumulator
        return list({codes[e]: e for e in accumulator + value}.values())

    def retract(accumulator: _Held, value: _Held) -> _Held:
        if accumulator is None or not value:
            return accumulator
        retracted = {codes[e] for e in value}
        return [e for e in accumulator if codes[e] not in retracted]

    return add, lambda accumulator, value: add(value, accumulator), retract


def _nested_steps(aggregator: Aggregator, elements: _Elements) -> tuple[_Step, _Step, _Step]:
    """The add, retract and add-older steps. A list taken whole (by a removing delete) keeps its nulls until an add."""
    if aggregator.nested_key:
        return _keyed_steps(aggregator, elements)
    usable = _usable(aggregator, elements).tolist()
    limit = aggregator.count_limit
    codes = element_codes(elements.flat).tolist()

    def add(accumulator: _Held, value: _Held) -> _Held:
        if value is None:
            return accumulator
        value = [e for e in value if usable[e]]
        if accumulator is None:
            return value[:limit]
        return (
            accumulator
            if len(accumulator) >= limit
            else [e for e in accumulator if usable[e]] + value[: limit - len(accumulator)]
        )

    def retract(accumulator: _Held, value: _Held) -> _Held:
        if accumulator is None or value is None:
            return accumulator
        retracted = {codes[e] for e in value if usable[e]}
        return [e for e in accumulator if usable[e] and codes[e] not in retracted]

    return add, lambda accumulator, value: add(value, accumulator), retract


def _keyed_steps(aggregator: Aggregator, elements: _Elements) -> tuple[_Step, _Step, _Step]:
    limit = aggregator.count_limit
    codes = _codes_of_members(elements, aggregator.nested_key)
    ranks = _codes_of_members(elements, aggregator.nested_sequence) if aggregator.nested_sequence else None
    present, keyed = (flags.tolist() for flags in _presence(aggregator, elements))

    def usable(element: int) -> bool:
        if present[element] and not keyed[element] and aggregator.null_keys == "error":
            raise _null_key(aggregator)
        return bool(present[element] and (keyed[element] or aggregator.null_keys == "merge"))

    def put(accumulator: dict[int, int], value: Sequence[int], limited: bool) -> None:
        for element in value:
            code = codes[element]
            if not usable(element):
                continue
            if code in accumulator:
                if ranks is None or ranks[element] >= ranks[accumulator[code]]:
                    accumulator[code] = element
            elif not limited or len(accumulator) < limit:
                accumulator[code] = element

    def add(accumulator: _Held, value: _Held) -> _Held:
        if value is None:
            return accumulator
        merged: dict[int, int] = {}
        put(merged, accumulator or [], False)
        put(merged, value, True)
        return list(merged.values())

    def retract(accumulator: _Held, value: _Held) -> _Held:
        if accumulator is None or value is None:
            return accumulator
        retracted = {codes[e] for e in value if usable(e)}
        return list({codes[e]: e for e in accumulator if usable(e) and codes[e] not in retracted}.values())

    return add, lambda accumulator, value: add(value, accumulator), retract


def _codes_of_members(elements: _Elements, names: Sequence[str]) -> list[int]:
    members = pa.StructArray.from_arrays([_member(elements.flat, name) for name in names], list(names))
    codes: list[int] = element_codes(members).tolist()
    return codes
