"""Every merge engine against the row-at-a-time reference, over random runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import InvalidRequest
from forebay.metadata import types
from forebay.metadata.types import DataType
from forebay.paimon.merge import merge_function, merge_runs, sort_and_merge_buffer
from tests.paimon.merge import reference
from tests.paimon.merge.reference import Record, Refused, function
from tests.paimon.merge.tables import comparable_records, in_batches, runs_of, table_schema, to_batch, to_records

NESTED = types.row(
    types.field("k", types.int_()), types.field("s", types.int_()), types.field("v", types.array(types.string()))
)

TEXTS = ("", " ", "a", "b", "a,b", "b,,c", "d,d", "\u3000", "é")
NUMBERS = (-3, -1, 0, 1, 2, 5)


def a_value(t: DataType, rng: random.Random) -> Any:
    if rng.random() < 0.3:
        return None
    match t.root.name:
        case "BOOLEAN":
            return rng.random() < 0.5
        case "FLOAT" | "DOUBLE":
            return rng.choice([-2.0, -0.0, 0.0, 1.5, float("nan"), float("inf")])
        case "DECIMAL":
            return Decimal(rng.choice(NUMBERS)).scaleb(-(t.scale or 0))
        case "STRING":
            return rng.choice(TEXTS)
        case "BYTES":
            return rng.choice([b"", b"\x00", b"\x7f", b"\x80"])
        case "ARRAY":
            return [a_value(t.element, rng) for _ in range(rng.randrange(4))]
        case "MAP":
            return {rng.choice("abc"): a_value(t.value, rng) for _ in range(rng.randrange(4))}
        case "ROW":
            return {f.name: a_value(f.data_type, rng) for f in t.fields}
        case _:
            return rng.choice(NUMBERS)


def some_records(
    columns: Mapping[str, DataType], rng: random.Random, kinds: Sequence[int], count: int, numbers_repeat: bool = False
) -> list[Record]:
    records = []
    for i in range(count):
        key = rng.randrange(4)
        row = {name: a_value(t, rng) for name, t in columns.items()}
        number = rng.randrange(6) if numbers_repeat else i
        records.append(Record((key,), number, rng.choice(kinds), {"id": key, **row}))
    if not numbers_repeat:
        rng.shuffle(records)
    return records


def check(
    columns: Mapping[str, DataType],
    options: Mapping[str, str],
    engine: Callable[[list[Record]], Record | None],
    rng: random.Random,
    kinds: Sequence[int],
    unordered: Sequence[str] = (),
    sequence: Sequence[str] = (),
    descending: bool = False,
) -> None:
    """Ours and the reference's result are equal, or both refuse: for runs, and for a write buffer."""
    schema = table_schema({"id": types.int_().not_null(), **columns}, options=options)
    spec = merge_function(schema)
    records = some_records(columns, rng, kinds, rng.randrange(14))
    ordering = {"sequence": sequence, "descending": descending}
    runs = runs_of(records, rng, 4, **ordering)

    def expected(of: Sequence[Record]) -> Any:
        try:
            return comparable_records(reference.merge(of, engine, **ordering), unordered)
        except Refused:
            return Refused

    def ours(make: Callable[[], Any]) -> Any:
        try:
            return comparable_records(to_records(make(), schema), unordered)
        except InvalidRequest:
            return Refused

    kept = [r for run in runs for r in run]
    assert ours(lambda: list(merge_runs([in_batches(run, schema, rng) for run in runs], spec))) == expected(kept)
    assert ours(lambda: list(sort_and_merge_buffer([to_batch(records, schema)], spec))) == expected(records)


ALL_KINDS = (0, 1, 2, 3)
ADD_KINDS = (0, 2)
SIMPLE = {"a": types.int_(), "b": types.double(), "c": types.string()}
seeds = st.randoms(use_true_random=True)


@given(seeds, st.booleans())
def test_deduplicate_keeps_the_last_row(rng, ignore_delete):
    options = {"deduplicate.ignore-delete": str(ignore_delete).lower()}
    check(SIMPLE, options, reference.deduplicate(ignore_delete), rng, ALL_KINDS)


@given(seeds, st.booleans(), st.sampled_from([("a",), ("b",), ("c", "a")]))
def test_sequence_fields_come_before_sequence_numbers_and_nulls_before_all(rng, descending, fields):
    options = {
        "sequence.field": ",".join(fields),
        "sequence.field.sort-order": "descending" if descending else "ascending",
    }
    check(SIMPLE, options, reference.deduplicate(), rng, ALL_KINDS, sequence=fields, descending=descending)


@given(seeds, st.booleans())
def test_first_row_keeps_the_first_row_and_takes_no_retractions(rng, ignore_delete):
    options = {"merge-engine": "first-row", "ignore-delete": str(ignore_delete).lower()}
    check(SIMPLE, options, reference.first_row(ignore_delete), rng, ALL_KINDS)
    check(SIMPLE, options, reference.first_row(ignore_delete), rng, ADD_KINDS)


@given(seeds, st.sampled_from(["none", "ignore", "remove"]))
def test_partial_update_keeps_the_last_value_that_is_not_null(rng, deletes):
    options = {"merge-engine": "partial-update"}
    if deletes == "ignore":
        options["partial-update.ignore-delete"] = "true"
    if deletes == "remove":
        options["partial-update.remove-record-on-delete"] = "true"
    columns = ["id", *SIMPLE]
    engine = reference.partial_update(columns, deletes == "ignore", deletes == "remove")
    check(SIMPLE, options, engine, rng, ADD_KINDS if deletes == "none" else ALL_KINDS)
    check(SIMPLE, options, engine, rng, ALL_KINDS)


GROUPED = {
    "a": types.int_(),
    "g": types.int_(),
    "b": types.int_(),
    "h1": types.int_(),
    "c": types.string(),
    "d": types.double(),
    "h2": types.string(),
    "e": types.string(),
}


@given(seeds, st.sampled_from(["keep", "ignore", "remove"]))
def test_sequence_groups_update_together_and_by_their_own_order(rng, deletes):
    options = {
        "merge-engine": "partial-update",
        "fields.g.sequence-group": "b",
        "fields.h1,h2.sequence-group": "c,d",
    }
    if deletes == "ignore":
        options["ignore-delete"] = "true"
    if deletes == "remove":
        options["partial-update.remove-record-on-sequence-group"] = "h2"
    engine = reference.partial_update(
        ["id", *GROUPED],
        ignore_delete=deletes == "ignore",
        groups={("g",): ["b"], ("h1", "h2"): ["c", "d"]},
        removing=["h2"] if deletes == "remove" else [],
    )
    check(GROUPED, options, engine, rng, ALL_KINDS)


AGGREGATED_IN_GROUPS: dict[str, tuple[DataType, bool, dict[str, Any]]] = {
    "sum": (types.int_(), True, {"bits": 32}),
    "product": (types.bigint(), True, {"bits": 64}),
    "max": (types.double(), False, {}),
    "min": (types.string(), False, {}),
    "bool_and": (types.boolean(), False, {}),
    "bool_or": (types.boolean(), False, {}),
    "last_value": (types.string(), True, {}),
    "last_non_null_value": (types.string(), True, {}),
    "first_value": (types.int_(), False, {}),
    "first_non_null_value": (types.int_(), False, {}),
    "listagg": (types.string(), False, {"distinct": True}),
    "collect": (types.array(types.int_()), True, {"distinct": True}),
    "merge_map": (types.map_(types.string(), types.int_()), True, {}),
    "nested_update": (types.array(NESTED), True, {"key": ["k"]}),
}


@given(seeds, st.sampled_from(sorted(AGGREGATED_IN_GROUPS)), st.booleans())
def test_aggregates_in_sequence_groups_take_older_rows_too(rng, name, only_adds):
    column, retracts, settings = AGGREGATED_IN_GROUPS[name]
    columns = {"x": column, "g": types.int_(), "y": types.int_()}
    options = {
        "merge-engine": "partial-update",
        "fields.g.sequence-group": "x,y",
        "fields.x.aggregate-function": name,
        "fields.x.distinct": str(settings.get("distinct", False)).lower(),
        "fields.x.nested-key": ",".join(settings.get("key", [])),
    }
    ignore = not retracts and rng.random() < 0.5
    if ignore:
        options["fields.x.ignore-retract"] = "true"
    engine = reference.partial_update(
        ["id", *columns],
        groups={("g",): ["x", "y"]},
        functions={"x": function(name, ignore_retract=ignore, **settings)},
    )
    kinds = ADD_KINDS if only_adds else ALL_KINDS
    check(columns, options, engine, rng, kinds, ["x"] if name in ("collect", "nested_update") else [])


DISTINCT = {"distinct": True}
AGGREGATES: list[tuple[str, DataType, dict[str, Any], dict[str, str]]] = [
    ("sum", types.tinyint(), {"bits": 8}, {}),
    ("sum", types.smallint(), {"bits": 16}, {}),
    ("sum", types.int_(), {"bits": 32}, {}),
    ("sum", types.bigint(), {"bits": 64}, {}),
    ("sum", types.float_(), {"single": True}, {}),
    ("sum", types.double(), {}, {}),
    ("sum", types.decimal(4, 2), {"precision": 4}, {}),
    ("sum", types.decimal(15, 2), {"precision": 15}, {}),
    ("sum", types.decimal(30, 4), {"precision": 30}, {}),
    ("product", types.tinyint(), {"bits": 8}, {}),
    ("product", types.int_(), {"bits": 32}, {}),
    ("product", types.decimal(6, 2), {"precision": 6, "scale": 2}, {}),
    ("max", types.int_(), {}, {}),
    ("max", types.double(), {}, {}),
    ("max", types.string(), {}, {}),
    ("min", types.bytes_(), {}, {}),
    ("min", types.decimal(30, 2), {}, {}),
    ("bool_and", types.boolean(), {}, {}),
    ("bool_or", types.boolean(), {}, {}),
    ("last_value", types.array(types.int_()), {}, {}),
    ("last_non_null_value", types.map_(types.string(), types.int_()), {}, {}),
    ("first_value", types.string(), {}, {}),
    ("first_non_null_value", NESTED, {}, {}),
    ("listagg", types.string(), {}, {}),
    ("listagg", types.string(), {"delimiter": "--"}, {"list-agg-delimiter": "--"}),
    ("listagg", types.string(), DISTINCT, {"distinct": "true"}),
    ("collect", types.array(types.string()), {}, {}),
    ("collect", types.array(types.int_()), DISTINCT, {"distinct": "true"}),
    ("collect", types.array(NESTED), DISTINCT, {"distinct": "true"}),
    ("merge_map", types.map_(types.string(), types.array(types.int_())), {}, {}),
    ("nested_update", types.array(NESTED), {}, {}),
    ("nested_update", types.array(NESTED), {"limit": 3}, {"count-limit": "3"}),
    ("nested_update", types.array(NESTED), {"key": ["k"]}, {"nested-key": "k"}),
    (
        "nested_update",
        types.array(NESTED),
        {"key": ["k"], "sequence": ["s"]},
        {"nested-key": "k", "nested-sequence-field": "s"},
    ),
    (
        "nested_update",
        types.array(NESTED),
        {"key": ["k", "s"], "null_keys": "ignore"},
        {"nested-key": "k, s", "nested-key-null-strategy": "ignore"},
    ),
    (
        "nested_update",
        types.array(NESTED),
        {"key": ["k"], "null_keys": "error"},
        {"nested-key": "k", "nested-key-null-strategy": "error"},
    ),
    (
        "nested_update",
        types.array(NESTED),
        {"key": ["k"], "limit": 2},
        {"nested-key": "k", "count-limit": "2"},
    ),
]


@pytest.mark.parametrize("case", AGGREGATES, ids=lambda case: f"{case[0]}-{case[1].root.name}-{len(str(case[3]))}")
@given(rng=seeds, retractions=st.sampled_from(["none", "take", "ignore", "remove"]))
def test_aggregation_is_what_one_row_after_the_other_gives(case, rng, retractions):
    name, column, settings, more = case
    options = {
        "merge-engine": "aggregation",
        "fields.x.aggregate-function": name,
        **{f"fields.x.{key}": value for key, value in more.items()},
    }
    if retractions == "ignore":
        options["fields.x.ignore-retract"] = "true"
    if retractions == "remove":
        options["aggregation.remove-record-on-delete"] = "true"
    functions = {
        "id": function("primary-key"),
        "x": function(name, ignore_retract=retractions == "ignore", **settings),
        "y": function("last_non_null_value"),
    }
    engine = reference.aggregation(functions, retractions == "remove")
    kinds = {"none": ADD_KINDS, "take": ALL_KINDS, "ignore": ALL_KINDS, "remove": (0, 2, 3)}[retractions]
    unordered = ["x"] if name in ("collect", "nested_update") else []
    check({"x": column, "y": types.int_()}, options, engine, rng, kinds, unordered)
