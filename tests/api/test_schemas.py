"""All forms of schemas that users write become the same columns, and invalid ones are rejected by name."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given

from forebay.api.schemas import columns_of
from forebay.base.errors import InvalidRequest
from forebay.metadata import types
from forebay.metadata.table import Column, Schema
from forebay.metadata.type_text import parse_type
from forebay.metadata.types import DataType
from tests.codec.row_strategies import data_types

ID, NAME = Column("id", types.bigint()), Column("name", types.string())
ARROW = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.mark.parametrize(
    "schema",
    [
        ARROW,
        {"id": "BIGINT", "name": "STRING"},
        {"id": types.bigint(), "name": pa.string()},
        [("id", "bigint"), ["name", "VARCHAR"]],
        [ID, ("name", types.string())],
        [pa.field("id", pa.int64()), pa.field("name", pa.large_string())],
        Schema.of([ID, NAME]),
        pa.table({"id": [1], "name": ["x"]}),
        pa.record_batch({"id": [1], "name": ["x"]}),
        pd.DataFrame({"id": [1], "name": ["x"]}, index=[7]),
        (c for c in [ID, NAME]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_way_to_write_a_schema_gives_the_same_columns(schema: Any) -> None:
    assert columns_of(schema) == [ID, NAME]


def test_comments_and_not_null_are_kept() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata={"comment": "the key"})])
    assert columns_of(schema) == [Column("id", types.bigint().not_null(), "the key")]
    assert columns_of({"id": "BIGINT NOT NULL"}) == [Column("id", types.bigint().not_null())]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"id": int}, "column 'id': int is not a data type; write text such as 'BIGINT'"),
        ({"id": 5}, "column 'id': 5 is not a data type"),
        ({"id": "BIGNIT"}, "column 'id': 'BIGNIT' is not a data type.* did you mean 'BIGINT'"),
        ({"id": pa.month_day_nano_interval()}, "column 'id'"),
        ([("id",)], "is not a column: write"),
        (["id"], "'id' is not a column"),
        ([(1, "INT")], "a column's name is text, not 1"),
        ({1: "INT"}, "a column's name is text, not 1"),
        ("id BIGINT", "'id BIGINT' is not a schema"),
        (5, "5 is not a schema"),
        (None, "None is not a schema"),
        (pd.Series([1]), "is not a schema"),
    ],
    ids=str,
)
def test_what_is_no_schema_is_refused_with_what_to_write(schema: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=f"(?s){reason}"):
        columns_of(schema)


# ---- types as text --------------------------------------------------------------------------------------------------


@given(data_types())
def test_what_a_type_is_printed_as_is_read_back(data_type: DataType) -> None:
    assert parse_type(str(data_type)) == data_type


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (" integer ", types.int_()),
        ("double precision", types.double()),
        ("DECIMAL", types.decimal()),
        ("NUMERIC(5)", types.decimal(5, 0)),
        ("TIMESTAMP(3) WITH LOCAL TIME ZONE NOT NULL", types.timestamp_ltz(3).not_null()),
        ("TIMESTAMP WITHOUT TIME ZONE", types.timestamp()),
        ("TIME(3) WITHOUT TIME ZONE", types.time(3)),
        ("STRUCT<a: INT, `b c` STRING NOT NULL>",
         types.row(types.field("a", types.int_()), types.field("b c", types.string().not_null()))),
        ("ROW(a INT)", types.row(types.field("a", types.int_()))),
        ("MAP<STRING, ARRAY<INT NOT NULL>> NULL", types.map_(types.string(), types.array(types.int_().not_null()))),
    ],
)  # fmt: skip
def test_usual_spellings_of_types_are_read(text: str, meant: DataType) -> None:
    assert parse_type(text) == meant


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "where a type should stand, the text ends"),
        ("INT INT", "where nothing more should stand, there is 'INT'"),
        ("DECIMAL(10", r"where '\)' should stand, the text ends"),
        ("DECIMAL(a)", r"where a number should stand, there is 'a\)'"),
        ("DECIMAL(1, 2, 3)", "DECIMAL takes other sizes"),
        ("DECIMAL(50, 2)", "precision"),
        ("CHAR", "CHAR takes other sizes"),
        ("ARRAY<>", "where a type should stand, there is '>'"),
        ("MAP<INT>", "where ',' should stand"),
        ("ROW<INT>", "where a type should stand, there is '>'"),
        ("INT NOT", "where 'NULL' should stand"),
        ("TIMESTAMP WITH TIME ZONE", "where 'LOCAL' should stand, there is 'TIME ZONE'"),
        ("ARRAY<" * 200 + "INT" + ">" * 200, "nested more than 100 times"),
        ("INT; DROP", "where nothing more should stand"),
    ],
    ids=lambda value: value[:20],
)
def test_texts_that_are_no_types_say_where_they_go_wrong(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        parse_type(text)
