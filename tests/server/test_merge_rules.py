"""Merge engines in CREATE TABLE and ALTER TABLE: what is taken, and what is refused by name, with Fluss's codes."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.base.errors import ErrorCode, ForebayError
from forebay.metadata import types
from forebay.metadata.merge_engines import delete_behavior
from forebay.metadata.table import Column, TableDescriptor
from tests.server.test_table_rules import created, described

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
    assert delete_behavior(complete) == allowed.properties.get("table.delete.behavior", "ignore")


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
