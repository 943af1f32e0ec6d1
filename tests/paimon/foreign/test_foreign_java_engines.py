"""Merge engines: the same commits give the same rows, whichever side writes, merges, compacts or reads them."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from forebay.metadata import types
from forebay.metadata.types import DataType
from forebay.paimon.format.arrow import arrow_schema
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.table import Table
from tests.paimon.foreign.conftest import JavaTableOf
from tests.paimon.foreign.java_paimon import JavaTable, Plain, sorted_rows
from tests.paimon.lake import new_catalog, put

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

Change = tuple[str, tuple[Any, ...]]
_INT, _TEXT = types.int_(), types.string()


class Case(NamedTuple):
    """A table, and the changes of each commit: `(kind, values)`."""

    columns: dict[str, DataType]
    options: dict[str, str]
    commits: list[list[Change]]


def _upserts(*rows: tuple[Any, ...]) -> list[Change]:
    return [("+I", row) for row in rows]


_KV = {"k": _INT, "a": _INT, "b": _TEXT, "c": types.double()}
_KINDS: list[list[Change]] = [
    [("+I", (1, 1, "a", 0.5)), ("+I", (2, 2, "b", None)), ("+I", (3, 3, None, 1.5)), ("+I", (4, 4, "d", 2.5))],
    [("-U", (1, 1, "a", 0.5)), ("+U", (1, 10, None, 5.0)), ("-D", (2, 2, "b", None)), ("+I", (5, 5, "e", 5.5))],
    [("+I", (2, 20, "again", None)), ("-D", (3, None, None, None)), ("-D", (9, 1, "never was", 0.0))],
    [("+U", (4, 40, "d4", 4.0)), ("+U", (4, 41, None, None)), ("-D", (5, 5, "e", 5.5)), ("+I", (6, 6, "f", 6.5))],
]
_NO_DELETES = [[c for c in commit if c[0] in ("+I", "+U")] for commit in _KINDS]
_GROUPS = {"k": _INT, "g1": _INT, "a": _INT, "b": _TEXT, "g2": _INT, "g3": _INT, "c": _TEXT, "d": _INT}
_GROUP_OPTIONS = {
    "merge-engine": "partial-update",
    "fields.g1.sequence-group": "a,b",
    "fields.g2,g3.sequence-group": "c,d",
    "fields.d.aggregate-function": "sum",
}
_GROUP_COMMITS: list[list[Change]] = [
    _upserts((1, 1, 1, "x", 1, 1, "p", 1), (2, 1, 5, None, 1, 1, "q", 2), (3, 9, 3, "late", 9, 9, "late", 3)),
    _upserts((1, 2, 2, None, 1, 0, "older", 10), (2, 0, 9, "older", 1, 2, None, 20), (3, 1, 1, "n", None, 1, "n", 5)),
    _upserts((1, None, 7, "no group", 2, 2, "newer", 100), (2, 1, 6, "same", None, None, "x", 7), (4,) + (None,) * 7),
    [("-D", (2, 2, 5, None, 0, 0, None, 3)), ("-U", (1, 5, 2, "x", 5, 5, "newer", 1)), ("+I", (5,) + (None,) * 7)],
]
_SUMS = {"k": _INT, "total": types.bigint(), "number": types.int_(), "price": types.decimal(12, 2),
         "first": _TEXT, "last": _TEXT, "least": _INT, "most": types.double(), "texts": _TEXT, "all": types.boolean(),
         "any": types.boolean(), "product": types.double()}  # fmt: skip
_SUM_FUNCTIONS = {
    "total": "sum", "number": "sum", "price": "sum", "first": "first_value", "last": "last_non_null_value",
    "least": "min", "most": "max", "texts": "listagg", "all": "bool_and", "any": "bool_or", "product": "product",
}  # fmt: skip
_SUM_OPTIONS = {"merge-engine": "aggregation"} | {
    f"fields.{name}.aggregate-function": function for name, function in _SUM_FUNCTIONS.items()
}


def _sum_row(key: int, i: int) -> tuple[Any, ...]:
    if i % 4 == 3:
        return (key, None, None, None, None, None, None, None, None, None, None, None)
    texts = f"t{i}"
    return (
        key, i * 10, i, Decimal(i).scaleb(-1), texts if i % 3 else None, texts if i % 2 else None, 9 - i, i / 4, texts,
        i % 5 != 0, i % 5 == 1, 1.0 + i,
    )  # fmt: skip


_SUM_COMMITS = [_upserts(*(_sum_row(k, i * 3 + k) for k in range(5) if (i + k) % 3)) for i in range(5)]
_RETRACTED = {"k": _INT, "total": types.bigint(), "left": types.decimal(20, 4), "seen": _TEXT, "times": types.double(),
              "got": types.array(_TEXT), "pairs": types.map_(_TEXT.not_null(), _INT)}  # fmt: skip
_RETRACT_OPTIONS = {
    "merge-engine": "aggregation",
    "fields.total.aggregate-function": "sum",
    "fields.left.aggregate-function": "sum",
    "fields.seen.aggregate-function": "last_non_null_value",
    "fields.seen.ignore-retract": "true",
    "fields.times.aggregate-function": "product",
    "fields.got.aggregate-function": "collect",
    "fields.pairs.aggregate-function": "merge_map",
}


def _retract_row(key: int, i: int) -> tuple[Any, ...]:
    return (key, i, Decimal(i * 1111).scaleb(-4), f"s{i}", float(2**i), [f"e{i}", "e"], [(f"m{i}", i), ("m", 1)])


_RETRACT_COMMITS: list[list[Change]] = [
    _upserts(*(_retract_row(k, 1) for k in range(4))),
    _upserts(*(_retract_row(k, 2) for k in range(4))),
    [("-U", _retract_row(0, 1)), ("+U", _retract_row(0, 3)), ("-D", _retract_row(1, 2)), ("-D", _retract_row(2, 1))],
    [("-D", _retract_row(2, 2)), ("+I", _retract_row(7, 1))],
]

CASES = {
    "deduplicate": Case(_KV, {}, _KINDS),
    "ignore-delete": Case(_KV, {"ignore-delete": "true"}, _KINDS),
    "sequence field": Case(_KV, {"sequence.field": "a"}, _KINDS),
    "two sequence fields, descending": Case(
        _KV, {"sequence.field": "b,a", "sequence.field.sort-order": "descending"}, _KINDS
    ),
    "partial-update": Case(_KV, {"merge-engine": "partial-update"}, _NO_DELETES),
    "partial-update, sequence field": Case(_KV, {"merge-engine": "partial-update", "sequence.field": "a"}, _NO_DELETES),
    "partial-update, ignore-delete": Case(_KV, {"merge-engine": "partial-update", "ignore-delete": "true"}, _KINDS),
    "partial-update, remove-record-on-delete": Case(
        _KV, {"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"}, _KINDS
    ),
    "sequence groups": Case(_GROUPS, _GROUP_OPTIONS, _GROUP_COMMITS),
    "remove-record-on-sequence-group": Case(
        _GROUPS, _GROUP_OPTIONS | {"partial-update.remove-record-on-sequence-group": "g1"}, _GROUP_COMMITS
    ),
    "aggregation": Case(_SUMS, _SUM_OPTIONS, _SUM_COMMITS),
    "aggregation by default": Case(
        _KV, {"merge-engine": "aggregation", "fields.default-aggregate-function": "last_non_null_value"}, _NO_DELETES
    ),
    "retractions": Case(_RETRACTED, _RETRACT_OPTIONS, _RETRACT_COMMITS),
    "aggregation, remove-record-on-delete": Case(
        _SUMS,
        _SUM_OPTIONS | {"aggregation.remove-record-on-delete": "true"},
        [*_SUM_COMMITS[:3], [("-D", _sum_row(1, 4))], *_SUM_COMMITS[3:]],
    ),
    "first-row": Case(_KV, {"merge-engine": "first-row"}, _NO_DELETES),
    # Java fails when a key has nothing but deletes, so those that follow an insert must do.
    "first-row, ignore-delete": Case(
        _KV, {"merge-engine": "first-row", "ignore-delete": "true"}, [*_KINDS[:2], *_NO_DELETES[2:]]
    ),
}


_WRITE_ONLY = {"write-only": "true"}


class Writer(NamedTuple):
    """A table, to which either side may write, without compaction."""

    ours: Table
    theirs: JavaTable

    def write(self, commit: list[Change], by: str) -> None:
        data, kinds = _arrow(self.ours.schema, commit), [kind for kind, _ in commit]
        if by == "ours":
            put(self.ours.with_options(_WRITE_ONLY), data, kinds)
        else:
            self.theirs.write(self.ours.schema, data, kinds, options=_WRITE_ONLY)

    def read(self) -> list[list[Plain]]:
        """The rows that both sides read."""
        ours = sorted_rows(self.ours.schema, self.ours.refresh().scan().to_arrow())
        assert ours == self.theirs.rows()
        return ours


def _arrow(schema: TableSchema, commit: list[Change]) -> pa.Table:
    rows = [dict(zip(schema.names, values, strict=True)) for _, values in commit]
    return pa.Table.from_pylist(rows, schema=arrow_schema(schema.fields))


@pytest.mark.parametrize("name", CASES)
def test_a_merge_engine_is_the_same_for_every_writer_and_reader(
    tmp_path: Path, java_table: JavaTableOf, name: str
) -> None:
    case = CASES[name]
    catalog = new_catalog(tmp_path)
    options = {"bucket": "2", "num-sorted-run.compaction-trigger": "50", **case.options}
    found = {}
    for who in ("ours", "theirs", "mixed"):
        table = catalog.create_table(f"db.{who}", case.columns, primary_key=["k"], options=options)
        writer = Writer(table, java_table(catalog, f"db.{who}"))
        steps = []
        for i, commit in enumerate(case.commits):
            writer.write(commit, ("ours", "theirs")[i % 2] if who == "mixed" else who)
            steps.append(writer.read())
        writer.theirs.ask("compact", full=True)
        steps.append(writer.read())
        writer.write(case.commits[-1], "theirs" if who == "theirs" else "ours")
        steps.append(writer.read())
        writer.theirs.ask("compact", full=False)
        steps.append(writer.read())
        found[who] = steps
    assert found["ours"] == found["theirs"] == found["mixed"]


# ---- keys of floating-point numbers ---------------------------------------------------------------------------------

_ZEROS = [(0.0, -0.0), (-0.0, 0.0)]


@pytest.mark.parametrize("key", [types.float_(), types.double()], ids=str)
@pytest.mark.parametrize("together", [True, False], ids=["in one write", "in two writes"])
def test_zeros_of_both_signs_are_the_key_that_they_are_for_java(
    tmp_path: Path, java_table: JavaTableOf, key: DataType, together: bool
) -> None:
    catalog = new_catalog(tmp_path)
    read: dict[str, list[list[list[Plain]]]] = {}
    for who in ("ours", "theirs"):
        for number, (first, second) in enumerate(_ZEROS):
            name = f"db.{who}{number}"
            table = catalog.create_table(
                name, {"k": key.not_null(), "v": _TEXT}, primary_key=["k"], options={"bucket": "1"}
            )
            writer = Writer(table, java_table(catalog, name))
            rows = _upserts((first, "first"), (1.0, "one"), (second, "second"))
            steps = read.setdefault(who, [])
            for commit in [rows] if together else [rows[:2], rows[2:]]:
                writer.write(commit, who)
                steps.append(writer.read())
            writer.theirs.ask("compact", full=True)
            steps.append(writer.read())
            assert len(steps[-1]) == 2
    assert read["ours"] == read["theirs"]
