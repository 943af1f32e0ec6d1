"""Row-by-row merging, as described in Paimon's documentation and sources: slow, and simple to read.

A record is (key, sequence number, kind, row); a row is a dict of plain Python values. Lists of nested rows hold dicts,
maps are dicts.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import cmp_to_key
from typing import Any, NamedTuple

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = range(4)
WIDE = Context(prec=100)


class Record(NamedTuple):
    key: tuple[Any, ...]
    number: int
    kind: int
    row: dict[str, Any]

    @property
    def is_add(self) -> bool:
        return self.kind in (INSERT, UPDATE_AFTER)


class Refused(Exception):
    """The engine cannot take this row."""


def compare(a: Any, b: Any) -> int:
    """As Java compares: nulls first, -0.0 before 0.0, NaN last, strings by their bytes."""
    if a is None or b is None:
        return (a is not None) - (b is not None)
    if isinstance(a, float):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) - math.isnan(b)
        if a == b == 0:
            return int(math.copysign(1, a) > 0) - int(math.copysign(1, b) > 0)
    if isinstance(a, str):
        a, b = a.encode(), b.encode()
    return (a > b) - (a < b)


def compare_all(a: Sequence[Any], b: Sequence[Any]) -> int:
    return next((c for c in map(compare, a, b) if c), 0)


def compare_keys(a: Sequence[Any], b: Sequence[Any]) -> int:
    """The order of keys and sequence fields, in which -0.0 is 0.0."""
    return compare_all(*([0.0 if v == 0 and isinstance(v, float) else v for v in values] for values in (a, b)))


def sorted_records(records: Iterable[Record], sequence: Sequence[str] = (), descending: bool = False) -> list[Record]:
    """By key, the user's sequence (nulls first in any case), sequence number, retractions before additions."""

    def order(x: Record, y: Record) -> int:
        found = compare_keys(x.key, y.key)
        for name in sequence:
            a, b = x.row[name], y.row[name]
            flip = -1 if descending and a is not None and b is not None else 1
            found = found or flip * compare_keys([a], [b])
        return found or compare(x.number, y.number) or compare(x.is_add, y.is_add)

    return sorted(records, key=cmp_to_key(order))


def merge(records: Iterable[Record], engine: Callable[[list[Record]], Record | None], **ordering: Any) -> list[Record]:
    """One record for each key; a record that is alone passes as it is."""
    merged = []
    together: list[Record] = []
    for record in [*sorted_records(records, **ordering), None]:
        if together and (record is None or compare_keys(record.key, together[0].key) != 0):
            result = engine(together) if len(together) > 1 else together[0]
            merged += [] if result is None else [result]
            together = []
        if record is not None:
            together.append(record)
    return merged


# ---- aggregate functions --------------------------------------------------------------------------------------------


class Function:
    """A function with its state for one key. `add(accumulator, value)`: value is the newer one."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options

    def add(self, acc: Any, value: Any) -> Any:
        raise NotImplementedError

    def add_older(self, acc: Any, value: Any) -> Any:
        return self.add(value, acc)

    def retract(self, acc: Any, value: Any) -> Any:
        raise Refused("this function cannot retract")


class LastValue(Function):
    def add(self, acc, value):
        return value

    def retract(self, acc, value):
        return None


class PrimaryKey(LastValue):
    def retract(self, acc, value):
        return value


class LastNonNull(Function):
    def add(self, acc, value):
        return acc if value is None else value

    def retract(self, acc, value):
        return acc if value is None else None


class FirstValue(Function):
    seen = False

    def add(self, acc, value):
        if self.seen:
            return acc
        self.seen = True
        return value


class FirstNonNull(Function):
    seen = False

    def add(self, acc, value):
        if self.seen or value is None:
            return acc
        self.seen = True
        return value


class TwoValues(Function):
    """Functions for which null and x make x."""

    def add(self, acc, value):
        if acc is None or value is None:
            return value if acc is None else acc
        return self.both(acc, value)

    def both(self, acc, value):
        raise NotImplementedError


class Max(TwoValues):
    def both(self, acc, value):
        return value if compare(acc, value) < 0 else acc


class Min(TwoValues):
    def both(self, acc, value):
        return acc if compare(acc, value) < 0 else value


class And(TwoValues):
    def both(self, acc, value):
        return acc and value


class Or(TwoValues):
    def both(self, acc, value):
        return acc or value


class Sum(TwoValues):
    def both(self, acc, value):
        return self.fitting(WIDE.add(acc, value) if isinstance(acc, Decimal) else acc + value)

    def retract(self, acc, value):
        if acc is None or value is None:
            return acc if value is None else self.fitting(-value)
        return self.fitting(WIDE.subtract(acc, value) if isinstance(acc, Decimal) else acc - value)

    def fitting(self, result):
        if isinstance(result, Decimal):
            digits = len(result.as_tuple().digits)
            return None if digits > self.options["precision"] > 18 else result
        if isinstance(result, float):
            return struct.unpack("f", struct.pack("f", result))[0] if self.options.get("single") else result
        bits = self.options["bits"] - 1
        if not -(1 << bits) <= result < 1 << bits:
            raise Refused("overflow")
        return result


class Product(Sum):
    def both(self, acc, value):
        if isinstance(acc, Decimal):
            return self.rounded(WIDE.multiply(acc, value))
        return self.fitting(acc * value)

    def retract(self, acc, value):
        if acc is None or value is None:
            return acc
        if value == 0:
            raise Refused("division by zero")
        if isinstance(acc, Decimal):
            result = WIDE.divide(acc, value)
            if Context(prec=300).multiply(result, value) != acc:
                raise Refused("no exact quotient")
            return self.rounded(result)
        quotient = abs(acc) // abs(value)
        return self.fitting(quotient if (acc < 0) == (value < 0) else -quotient)

    def rounded(self, result):
        result = result.quantize(Decimal(1).scaleb(-self.options["scale"]), ROUND_HALF_UP, WIDE)
        return None if len(result.as_tuple().digits) > self.options["precision"] else result


class Listagg(Function):
    def add(self, acc, value):
        if value is None or not value.strip():
            return acc
        if acc is None or not acc.strip():
            return value
        delimiter = self.options.get("delimiter", ",")
        if not self.options.get("distinct"):
            return acc + delimiter + value
        seen = acc.split(delimiter)
        for token in value.split(delimiter):
            if token.strip() and token not in seen:
                seen.append(token)
                acc += delimiter + token
        return acc


class Collect(Function):
    def add(self, acc, value):
        if acc is None and value is None:
            return None
        if not self.options.get("distinct"):
            return value if acc is None else acc if value is None else acc + value
        result = []
        for element in (acc or []) + (value or []):
            if element not in result:
                result.append(element)
        return result

    def add_older(self, acc, value):
        return self.add(acc, value)

    def retract(self, acc, value):
        if acc is None or not value:
            return acc
        gone = list(value)
        kept = []
        for element in acc:
            if element in gone:
                gone.remove(element)
            else:
                kept.append(element)
        return kept


class MergeMap(TwoValues):
    def both(self, acc, value):
        return {**acc, **value}

    def retract(self, acc, value):
        return acc if acc is None or not value else {k: v for k, v in acc.items() if k not in value}


class NestedUpdate(Function):
    def add(self, acc, value):
        if value is None:
            return acc
        limit = self.options.get("limit", 1 << 31)
        value = [row for row in value if row is not None]
        if not self.options.get("key"):
            if acc is None:
                return value[:limit]
            return acc if len(acc) >= limit else [r for r in acc if r is not None] + value[: limit - len(acc)]
        held: dict[Any, Any] = {}
        for row in acc or []:
            self.put(held, row, limited=False)
        for row in value:
            self.put(held, row, limited=True)
        return list(held.values())

    def put(self, held, row, limited):
        if row is None or (key := self.key_of(row)) is None:
            return
        ordering = self.options.get("sequence", [])
        if key in held:
            old = held[key]
            if compare_all([row[n] for n in ordering], [old[n] for n in ordering]) >= 0:
                held[key] = row
        elif not limited or len(held) < self.options.get("limit", 1 << 31):
            held[key] = row

    def key_of(self, row):
        key = tuple(row[name] for name in self.options["key"])
        strategy = self.options.get("null_keys", "merge")
        if None in key and strategy == "error":
            raise Refused("null in a nested key")
        return None if None in key and strategy == "ignore" else key

    def retract(self, acc, value):
        if acc is None or value is None:
            return acc
        acc = [row for row in acc if row is not None]
        value = [row for row in value if row is not None]
        if not self.options.get("key"):
            return [row for row in acc if row not in value]
        held = {self.key_of(row): row for row in acc if self.key_of(row) is not None}
        for row in value:
            held.pop(self.key_of(row), None)
        return list(held.values())


class IgnoreRetract(Function):
    def __init__(self, inner: Function) -> None:
        self.inner = inner

    def add(self, acc, value):
        return self.inner.add(acc, value)

    def add_older(self, acc, value):
        return self.inner.add_older(acc, value)

    def retract(self, acc, value):
        return acc


FUNCTIONS: dict[str, type[Function]] = {
    "last_value": LastValue,
    "primary-key": PrimaryKey,
    "last_non_null_value": LastNonNull,
    "first_value": FirstValue,
    "first_non_null_value": FirstNonNull,
    "max": Max,
    "min": Min,
    "bool_and": And,
    "bool_or": Or,
    "sum": Sum,
    "product": Product,
    "listagg": Listagg,
    "collect": Collect,
    "merge_map": MergeMap,
    "nested_update": NestedUpdate,
}


def function(name: str, **options: Any) -> Callable[[], Function]:
    def make() -> Function:
        made = FUNCTIONS[name](options)
        return IgnoreRetract(made) if options.get("ignore_retract") else made

    return make


# ---- engines --------------------------------------------------------------------------------------------------------


def deduplicate(ignore_delete: bool = False) -> Callable[[list[Record]], Record | None]:
    def engine(records: list[Record]) -> Record | None:
        kept = [r for r in records if r.is_add or not ignore_delete]
        return kept[-1] if kept else None

    return engine


def first_row(ignore_delete: bool = False) -> Callable[[list[Record]], Record | None]:
    def engine(records: list[Record]) -> Record | None:
        if not ignore_delete and not all(r.is_add for r in records):
            raise Refused("first-row takes no deletes")
        return next((r for r in records if r.is_add), None)

    return engine


def aggregation(functions: Mapping[str, Callable[[], Function]], remove_on_delete: bool = False):
    def engine(records: list[Record]) -> Record:
        made = {name: make() for name, make in functions.items()}
        row: dict[str, Any] = dict.fromkeys(functions)
        for r in records:
            if remove_on_delete and r.kind == DELETE:
                row = dict(r.row)
                continue
            for name, f in made.items():
                row[name] = (f.add if r.is_add else f.retract)(row[name], r.row[name])
        deleted = remove_on_delete and records[-1].kind == DELETE
        return Record(records[0].key, records[-1].number, DELETE if deleted else INSERT, row)

    return engine


def partial_update(
    columns: Sequence[str],
    ignore_delete: bool = False,
    remove_on_delete: bool = False,
    groups: Mapping[tuple[str, ...], Sequence[str]] | None = None,
    functions: Mapping[str, Callable[[], Function]] | None = None,
    removing: Sequence[str] = (),
):
    """`groups`: the columns that follow some sequence fields."""
    groups = groups or {}
    functions = functions or {}

    def engine(records: list[Record]) -> Record:
        made = {name: make() for name, make in functions.items()}
        row: dict[str, Any] = dict.fromkeys(columns)
        number, filled, inserted, deleted = 0, False, False, False
        for r in records:
            deleted = False
            if r.is_add:
                number, filled, inserted = r.number, True, True
                add(row, r, made)
                continue
            if not filled:
                row, filled = dict(r.row), True
            if ignore_delete:
                continue
            number = r.number
            if groups:
                row, deleted = retract(row, r, made)
            elif remove_on_delete:
                if r.kind == DELETE:
                    row, deleted = dict(r.row), True
            else:
                raise Refused("no option for deletes")
        return Record(records[0].key, number, DELETE if deleted or not inserted else INSERT, row)

    def judge(row, r, ordering):
        """None: this row says nothing about the group; else whether it is at least as new as what there is."""
        given = [r.row[name] for name in ordering]
        return None if all(v is None for v in given) else compare_keys(given, [row[name] for name in ordering]) >= 0

    def add(row, r, made):
        grouped = {name for ordering, following in groups.items() for name in (*ordering, *following)}
        for name in columns:
            if name not in grouped:
                if name in made:
                    row[name] = made[name].add(row[name], r.row[name])
                elif r.row[name] is not None:
                    row[name] = r.row[name]
        for ordering, following in groups.items():
            newer = judge(row, r, ordering)
            if newer is None:
                continue
            for name in following:
                f = made.get(name)
                if f is not None:
                    row[name] = (f.add if newer else f.add_older)(row[name], r.row[name])
                elif newer:
                    row[name] = r.row[name]
            for name in ordering if newer else ():
                row[name] = r.row[name]

    def retract(row, r, made):
        for ordering in groups:
            if r.kind == DELETE and set(ordering) & set(removing) and judge(row, r, ordering):
                return dict(r.row), True
        for ordering, following in groups.items():
            newer = judge(row, r, ordering)
            if newer is None:
                continue
            for name in following:
                if name in made:
                    row[name] = made[name].retract(row[name], r.row[name])
                elif newer:
                    row[name] = None
            for name in ordering if newer else ():
                row[name] = r.row[name]
        return row, False

    return engine
