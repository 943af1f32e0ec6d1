"""Merge engines in CREATE TABLE and ALTER TABLE: what is taken, and what is refused by name, with Fluss's codes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest
from forebay.metadata import types
from forebay.metadata.merge_engines import FUNCTIONS
from forebay.metadata.table import AggregateFunction, Column, TableDescriptor
from forebay.metadata.types import RowField
from tests.server.metadata.described_tables import created, described

CONFIG = ErrorCode.INVALID_CONFIG_EXCEPTION
K, V, S = Column("k", types.int_()), Column("v", types.bigint()), Column("s", types.string())
TIMES = Column("at", types.timestamp(3)), Column("at_utc", types.timestamp_ltz(9))


def merging(engine: str, *columns: Column, **how: Any) -> TableDescriptor:
    properties = {"table.merge-engine": engine, **how.pop("properties", {})}
    return described(*(columns or (K, V, S, *TIMES)), key=("k",), properties=properties, **how)


def versioned(column: str, *columns: Column, **how: Any) -> TableDescriptor:
    properties = {"table.merge-engine.versioned.ver-column": column, **how.pop("properties", {})}
    return merging("versioned", *columns, properties=properties, **how)


@pytest.mark.parametrize(
    "allowed",
    [
        merging("first_row"),
        merging("FIRST_ROW", properties={"table.changelog.image": "wal"}),
        merging("first_row", properties={"table.delete.behavior": "disable"}),
        *(versioned(column) for column in ("k", "v", "at", "at_utc")),
        versioned("v", properties={"table.delete.behavior": "ignore", "table.changelog.image": "wal"}),
    ],
)
def test_what_is_allowed_is_taken_and_ignores_deletes_unless_told_otherwise(allowed: TableDescriptor) -> None:
    complete = created(allowed)
    assert complete.delete_behavior == allowed.properties.get("table.delete.behavior", "ignore")
    assert complete.properties["table.delete.behavior"].lower() == complete.delete_behavior


def summing(function: AggregateFunction, data_type: types.DataType, **how: Any) -> TableDescriptor:
    return merging("aggregation", K, Column("v", data_type, aggregate=function), **how)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_the_types_that_they_are_for(name: str) -> None:
    samples = [
        types.boolean(), types.tinyint(), types.smallint(), types.int_(), types.bigint(), types.float_(),
        types.double(), types.decimal(20, 2), types.char(3), types.string(), types.binary(3), types.bytes_(),
        types.date(), types.time(3), types.timestamp(6), types.timestamp_ltz(3), types.array(types.int_()),
        types.map_(types.string(), types.int_()), types.row(RowField("a", types.int_())),
    ]  # fmt: skip
    assert {sample.root for sample in samples} == set(types.TypeRoot)
    for sample in samples:
        table = summing(AggregateFunction(name), sample)
        if sample.root in FUNCTIONS[name]:
            created(table)
        else:
            with pytest.raises(InvalidRequest, match=f"aggregate function '{name}' takes") as refused:
                created(table)
            assert refused.value.code == CONFIG


def test_options_become_functions_of_columns_as_the_connectors_of_fluss_make_them() -> None:
    options = {"fields.v.agg": " SUM ", "fields.s.agg": "string-agg", "fields.s.string-agg.delimiter": "|"}
    complete = created(merging("aggregation", K, V, S, custom=options, properties={"table.delete.behavior": "allow"}))
    functions = {column.name: column.aggregate for column in complete.schema.columns}
    assert functions == {
        "k": None,
        "v": AggregateFunction("sum"),
        "s": AggregateFunction("string_agg", (("delimiter", "|"),)),
    }
    assert complete.custom_properties == options
    assert (complete.delete_behavior, merging("aggregation", K, V).delete_behavior) == ("allow", "ignore")


SUM, JOIN = AggregateFunction("sum"), AggregateFunction("listagg")


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (merging("aggregation", properties={"table.changelog.image": "wal"}), "must be 'full' with the merge engine"),
        (
            summing(AggregateFunction("average"), types.int_()),
            "which does not exist; the functions are sum,",
        ),
        (
            summing(AggregateFunction("rbm32"), types.string()),
            "but aggregate function 'rbm32' takes BYTES",
        ),
        (summing(AggregateFunction("rbm64"), types.bytes_()), "does not serve aggregate function 'rbm64'"),
        (summing(JOIN, types.char(3)), r"type CHAR\(3\), but aggregate function 'listagg' takes STRING"),
        (summing(AggregateFunction("sum", (("x", "1"),)), types.int_()), "has no parameter 'x'; its parameters: none"),
        (summing(AggregateFunction("listagg", (("x", "1"),)), types.string()), "its parameters: 'delimiter'"),
        (summing(AggregateFunction("listagg", (("delimiter", ""),)), types.string()), "must not be empty"),
        (merging("aggregation", replace(K, aggregate=SUM), V), "column 'k' is part of the primary key"),
        (merging("aggregation", K, V, custom={"fields.x.agg": "sum"}), "there is no column 'x'; the columns are k, v"),
        (
            summing(SUM, types.int_(), custom={"fields.v.agg": "max"}),
            "'v' has aggregate function sum, but the options 'fields.v.*' ask for max",
        ),
    ],
)
def test_functions_that_are_not_possible_are_refused_by_name(refused: TableDescriptor, words: str) -> None:
    with pytest.raises(ForebayError, match=words) as caught:
        created(refused)
    assert caught.value.code == CONFIG


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (described(properties={"table.merge-engine": "first_row"}), "for primary-key tables only"),
        (merging("first_row", properties={"table.delete.behavior": "allow"}), "not 'allow', with the merge engine"),
        (versioned("v", properties={"table.delete.behavior": "allow"}), "not 'allow', with the merge engine"),
        (merging("versioned"), "needs 'table.merge-engine.versioned.ver-column'"),
        (versioned("x"), "'x' is not a column; the columns are k, v, s, at, at_utc"),
        (versioned("s"), "version column 's' has type STRING"),
        (merging("first_row", K, V, auto_increment="v"), r"takes whole rows, and rows .* auto-increment .*\('v'\)"),
        (merging("last_row"), "table.merge-engine"),
        (merging("first_row", custom={"fields.v.agg": "sum"}), "which only the aggregation merge engine uses"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(refused: TableDescriptor, words: str) -> None:
    with pytest.raises(ForebayError, match=words) as caught:
        created(refused)
    assert caught.value.code == CONFIG
