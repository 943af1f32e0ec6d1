"""Merge options: what is rejected, and the messages."""

from __future__ import annotations

import pickle

import pytest

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.metadata import types
from forebay.metadata.types import DataType, TypeRoot
from forebay.paimon.merge import MergeEngine, merge_function
from tests.paimon.merge.tables import table_schema

COLUMNS = {
    "id": types.bigint().not_null(),
    "n": types.int_(),
    "t": types.string(),
    "m": types.map_(types.string(), types.int_()),
    "l": types.array(types.row(types.field("k", types.int_()))),
    "g": types.int_(),
    "h": types.int_(),
    "b": types.boolean(),
    "a": types.array(types.int_()),
    "v": DataType(TypeRoot.STRING, length=5),
}
PARTIAL = {"merge-engine": "partial-update"}
AGGREGATION = {"merge-engine": "aggregation"}
NESTED = {**AGGREGATION, "fields.l.aggregate-function": "nested_update"}


def spec_of(options):
    return merge_function(table_schema(COLUMNS, options=options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"merge-engine": "newest"}, "merge-engine 'newest'"),
        ({"ignore-delete": "yes"}, "ignore-delete"),
        ({"sequence.field": "nope"}, "'nope' is no column"),
        ({"sequence.field": "n,n"}, "twice"),
        ({"sequence.field": "m"}, "nested type"),
        ({"sequence.field": "n", "fields.n.aggregate-function": "sum"}, "sequence field 'n'"),
        ({"sequence.field": "n", "sequence.field.sort-order": "up"}, "sort-order"),
        ({"merge-engine": "first-row", "sequence.field": "n"}, "first-row"),
        ({**PARTIAL, "fields.g.sequence-group": "nope"}, "unknown column 'nope'"),
        ({**PARTIAL, "fields.nope.sequence-group": "n"}, "unknown column 'nope'"),
        ({**PARTIAL, "fields.g.sequence-group": "id"}, "primary-key columns"),
        ({**PARTIAL, "fields.g.sequence-group": "n", "fields.h.sequence-group": "n"}, "column 'n' is in"),
        ({**PARTIAL, "fields.m.sequence-group": "n"}, "cannot order"),
        ({**PARTIAL, "fields.n.aggregate-function": "sum"}, "needs a sequence group"),
        ({**PARTIAL, "ignore-delete": "true", "partial-update.remove-record-on-delete": "true"}, "contradict"),
        (
            {**PARTIAL, "fields.g.sequence-group": "n", "partial-update.remove-record-on-delete": "true"},
            "sequence groups",
        ),
        ({**PARTIAL, "partial-update.remove-record-on-sequence-group": "g"}, "orders no sequence group"),
        (
            {
                **PARTIAL,
                "fields.g.sequence-group": "n",
                "partial-update.remove-record-on-sequence-group": "g",
                "ignore-delete": "true",
            },
            "'partial-update.remove-record-on-sequence-group' contradict",
        ),
        ({"sort-spill-threshold": "1"}, "write 2 or more"),
        ({**AGGREGATION, "fields.b.aggregate-function": "max"}, "'b' is BOOLEAN, but 'max' needs a type with an order"),
        ({**AGGREGATION, "fields.v.aggregate-function": "listagg"}, "without a limit of its length"),
        ({**AGGREGATION, "fields.a.aggregate-function": "nested_update"}, "ARRAY of ROW"),
        ({**NESTED, "fields.l.nested-key": "k", "fields.l.nested-key-null-strategy": "drop"}, "not 'drop'"),
        ({**NESTED, "fields.l.nested-key-null-strategy": "error"}, "nested-key' must be set"),
        ({**NESTED, "fields.l.count-limit": "few"}, "is a whole number, not 'few'"),
        ({**AGGREGATION, "fields.n.aggregate-function": "median"}, "no aggregate function 'median'"),
        ({**AGGREGATION, "fields.n.aggregate-function": "count"}, "take 'sum'"),
        ({**AGGREGATION, "fields.t.aggregate-function": "sum"}, "needs a number"),
        ({**AGGREGATION, "fields.m.aggregate-function": "max"}, "with an order"),
        ({**AGGREGATION, "fields.n.aggregate-function": "bool_or"}, "BOOLEAN"),
        ({**AGGREGATION, "fields.n.aggregate-function": "listagg"}, "STRING"),
        ({**AGGREGATION, "fields.n.aggregate-function": "collect"}, "ARRAY"),
        ({**AGGREGATION, "fields.n.aggregate-function": "merge_map"}, "MAP"),
        ({**AGGREGATION, "fields.n.aggregate-function": "nested_update"}, "ARRAY of ROW"),
        ({**AGGREGATION, "fields.l.aggregate-function": "nested_update", "fields.l.nested-key": "x"}, "field 'x'"),
        (
            {**AGGREGATION, "fields.l.aggregate-function": "nested_update", "fields.l.nested-sequence-field": "k"},
            "nested-key' must be set",
        ),
        (
            {**AGGREGATION, "aggregation.remove-record-on-delete": "true", "fields.n.ignore-retract": "true"},
            "contradict",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(InvalidRequest, match=words):
        spec_of(options)


@pytest.mark.parametrize("function", ["hll_sketch", "theta_sketch", "rbm32", "rbm64", "merge_map_with_keytime"])
def test_functions_that_are_not_built_are_refused_by_name(function):
    with pytest.raises(UnsupportedOperation, match=function):
        spec_of({**AGGREGATION, "fields.n.aggregate-function": function})


def test_a_table_without_a_primary_key_is_refused():
    with pytest.raises(InvalidRequest, match="primary key"):
        merge_function(table_schema(COLUMNS, keys=()))


def test_columns_of_an_aggregation_have_functions_by_option_default_and_role():
    options = {
        **AGGREGATION,
        "fields.n.aggregate-function": "first_not_null_value",
        "fields.default-aggregate-function": "last_value",
        "sequence.field": "h",
    }
    found = {name: a.function for name, a in spec_of(options).aggregators.items()}
    rest = dict.fromkeys("tmlghbav", "last_value")
    assert found == {"id": "primary-key", "n": "first_non_null_value", **rest}
    assert spec_of(AGGREGATION).aggregators["t"].function == "last_non_null_value"


@pytest.mark.parametrize(
    ("options", "needs_lookup", "reads_level0"),
    [
        ({}, False, True),
        ({"merge-engine": "first-row"}, True, False),
        ({"deletion-vectors.enabled": "true"}, True, False),
        ({"deletion-vectors.enabled": "true", "deletion-vectors.merge-on-read": "true"}, True, True),
        ({"deletion-vectors.merge-on-read": "true"}, False, True),
        ({"changelog-producer": "lookup"}, True, True),
        ({"force-lookup": "true"}, True, True),
    ],
)
def test_what_a_planner_asks_follows_from_the_options(options, needs_lookup, reads_level0):
    spec = spec_of(options)
    assert (spec.needs_lookup, spec.reads_level0) == (needs_lookup, reads_level0)


def test_two_runs_at_a_time_are_enough_to_merge():
    assert spec_of({"sort-spill-threshold": "2"}).runs_max == 2


def test_a_spec_travels_to_workers():
    spec = spec_of({**PARTIAL, "fields.g,h.sequence-group": "n,t", "fields.n.aggregate-function": "sum"})
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert spec.engine is MergeEngine.PARTIAL_UPDATE
    assert spec.key_columns == ("_KEY_id",)
