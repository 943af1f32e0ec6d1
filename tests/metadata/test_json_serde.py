"""Schemas as JSON: what is read back, and what is rejected."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.metadata import json_serde, types
from forebay.metadata.json_serde import schema_from_json, schema_to_json
from forebay.metadata.table import AggregateFunction, Column, Schema

COLUMNS = (
    Column("k", types.bigint().not_null(), "the key", 0),
    Column("n", types.int_(), None, 1, AggregateFunction("sum")),
    Column("s", types.string(), None, 2, AggregateFunction("listagg", (("delimiter", ";"),))),
)
SCHEMA = Schema(COLUMNS, ("k",), None, 5)


def test_a_schema_comes_back_with_aggregates_and_ids_that_were_used_once() -> None:
    written = schema_to_json(SCHEMA)
    assert [c.get("agg_function") for c in written["columns"]] == [
        None,
        {"type": "sum"},
        {"type": "listagg", "parameters": {"delimiter": ";"}},
    ]
    assert written["highest_field_id"] == 5
    assert schema_from_json(written) == SCHEMA


@pytest.mark.parametrize("highest", [None, 2])
def test_without_a_higher_one_the_highest_id_is_that_of_the_columns(highest: int | None) -> None:
    assert schema_from_json({**schema_to_json(SCHEMA), "highest_field_id": highest}).highest_field_id == 2


@pytest.mark.parametrize("highest", [1, -1, "7", 3.5])
def test_a_highest_id_that_cannot_be_is_refused(highest: Any) -> None:
    with pytest.raises(InvalidRequest, match="is below the greatest column id 2") as refused:
        schema_from_json({**schema_to_json(SCHEMA), "highest_field_id": highest})
    assert refused.value.code == ErrorCode.INVALID_TABLE_EXCEPTION


@pytest.mark.parametrize("element", ["[],", "{},", '"":1,'])
def test_a_document_of_very_many_parts_is_refused_before_it_is_read(
    element: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, end = ('{"a":[', "[]]}") if '"' not in element else ("{", '"b":1}')
    few = start + element * (json_serde.ENTRIES_MAX // 4) + end
    assert isinstance(json_serde.loads(few, "table descriptor"), dict)
    monkeypatch.setattr(json_serde.json, "loads", lambda _: pytest.fail("it was read"))
    with pytest.raises(InvalidRequest, match=r"table descriptor has .* bytes and more than 200000 commas and brackets"):
        json_serde.loads(start + element * json_serde.ENTRIES_MAX + end, "table descriptor")
