"""CREATE TABLE of a table's definition: `forebay create` makes the same table of it."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.cli.create import parse_ddl
from forebay.client.admin.definition import new_descriptor
from forebay.metadata.ddl import create_statement
from forebay.metadata.table import AggregateFunction, Column, Schema, TableDescriptor, TablePath
from forebay.metadata.type_text import parse_type

PATH = TablePath("sales", "orders")


def _of(columns: Any, **more: Any) -> TableDescriptor:
    nothing: dict[str, Any] = {"primary_key": (), "partition_keys": (), "bucket_keys": (), "buckets": None}
    return new_descriptor(columns, **{**nothing, "options": None, "comment": None, "auto_increment": None, **more})


def _descriptor(columns: dict[str, str], comment: str | None = None, **more: Any) -> TableDescriptor:
    return _of([Column(name, parse_type(text)) for name, text in columns.items()], comment=comment, **more)


TABLES = {
    "log": _descriptor({"n": "INT"}),
    "all types": _descriptor(
        {
            "a": "BIGINT NOT NULL", "b": "DECIMAL(10, 2)", "c": "TIMESTAMP_LTZ(3)", "d": "ARRAY<STRING NOT NULL>",
            "e": "MAP<STRING NOT NULL, INT>", "f": "ROW<x INT, y ARRAY<DOUBLE>>", "g": "BINARY(4)", "h": "TIME(0)",
        }
    ),
    "keys, partitions and options": _descriptor(
        {"user": "BIGINT", "day": "STRING", "it's": "STRING"}, "what's bought", primary_key=["user", "day"],
        partition_keys=["day"], bucket_keys=["user"], buckets=7,
        options={"table.datalake.enabled": "true", "owner": "o'neill"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLES)
def test_the_statement_creates_the_same_table(case: str) -> None:
    descriptor = TABLES[case]
    wanted = parse_ddl(create_statement(PATH, descriptor))
    assert wanted.name == "sales.orders"
    assert wanted.comment == descriptor.comment
    again = _of(
        wanted.columns, primary_key=wanted.primary_key, partition_keys=wanted.partition_keys,
        bucket_keys=wanted.bucket_keys, buckets=wanted.buckets, options=wanted.options, comment=wanted.comment,
    )  # fmt: skip
    assert again == descriptor


def test_what_ddl_does_not_say_stands_in_comments() -> None:
    columns = [Column("id", parse_type("BIGINT")), Column("n", parse_type("INT"), aggregate=AggregateFunction("sum"))]
    text = create_statement(PATH, TableDescriptor(Schema.of(columns, ["id"], "id")))
    assert text.endswith(";\n-- column n is merged by sum\n-- column id is numbered by the server")
