"""CREATE TABLE and ALTER TABLE, before they reach a server."""

from __future__ import annotations

import pytest
from pyspark.sql.types import IntegerType, StringType

from forebay.base.errors import ForebayError, InvalidRequest, UnsupportedOperation
from forebay.metadata import types
from forebay.metadata.table import Column, TableInfo, TablePath
from forebay.spark.sql.live_ddl import NewTable, alteration, new_descriptor, table_properties
from forebay.spark.sql.requests import (
    ColumnAddition,
    ColumnDeletion,
    ColumnPosition,
    ColumnRenaming,
    OtherChange,
    SetProperty,
    TableChange,
    Transform,
)

COLUMNS = [Column("id", types.bigint()), Column("dt", types.string()), Column("v", types.int_(), "a number")]
DT = Transform("identity", (("dt",),))


def test_properties_describe_the_table_as_in_fluss_s_own_connector() -> None:
    properties = {
        "primary.key": "id, dt",
        "bucket.key": "id",
        "bucket.num": "4",
        "comment": "what it is",
        "table.log.format": "ARROW",
        "client.scanner.kv.batch-strategy": "server-scan",
        "team": "blue",
        "owner": "root",
        "provider": "forebay",
        "option.team": "blue",
    }
    made = new_descriptor(NewTable(COLUMNS, [DT], properties))
    assert made.schema.primary_key == ("id", "dt")
    assert not made.schema.column("id").data_type.nullable
    assert (made.bucket_keys, made.bucket_count, made.partition_keys) == (("id",), 4, ("dt",))
    assert made.comment == "what it is"
    assert dict(made.properties) == {"table.log.format": "ARROW"}
    assert dict(made.custom_properties) == {"client.scanner.kv.batch-strategy": "server-scan", "team": "blue"}
    assert made.schema.column("v").comment == "a number"


def test_clauses_say_the_same_as_properties() -> None:
    by_clause = NewTable(COLUMNS, [Transform("bucket", (("id",),), 4)], {}, primary_key=("id",))
    by_property = NewTable(COLUMNS, [], {"primary.key": "id", "bucket.key": "id", "bucket.num": "4"})
    assert new_descriptor(by_clause) == new_descriptor(by_property)


def test_an_auto_increment_column_is_named_by_fluss_s_property() -> None:
    made = new_descriptor(NewTable(COLUMNS, [], {"primary.key": "dt", "auto-increment.fields": "id"}))
    assert made.schema.auto_increment_column == "id"


@pytest.mark.parametrize(
    ("new", "kind", "message"),
    [
        (NewTable(COLUMNS, [], {"primary_key": "id"}), InvalidRequest, "did you mean 'primary.key'"),
        (NewTable(COLUMNS, [], {"bucket-num": "1"}), InvalidRequest, "did you mean 'bucket.num'"),
        (NewTable(COLUMNS, [], {"bucket.number": "1"}), InvalidRequest, "did you mean 'bucket.num'"),
        (NewTable(COLUMNS, [], {"primary.key": "nope"}), InvalidRequest, "primary key column 'nope' is not a column"),
        (NewTable(COLUMNS, [], {"bucket.key": "nope"}), InvalidRequest, "bucket key 'nope' is not a column"),
        (
            NewTable(COLUMNS, [], {"bucket.num": "x"}),
            InvalidRequest,
            "option 'bucket.num': 'x' is not a positive whole number",
        ),
        (
            NewTable(COLUMNS, [], {"bucket.num": "0"}),
            InvalidRequest,
            "option 'bucket.num': '0' is not a positive whole number",
        ),
        (NewTable(COLUMNS, [], {"provider": "parquet"}), InvalidRequest, "cannot be USING parquet"),
        (NewTable(COLUMNS, [], {"location": "/x"}), InvalidRequest, "'location' = '/x' cannot be"),
        (NewTable(COLUMNS, [], {"hive.stored-as": "ORC"}), InvalidRequest, "leave STORED AS and ROW FORMAT out"),
        (NewTable(COLUMNS, [], {"auto-increment.fields": "id,v"}), InvalidRequest, "a table can have one"),
        (NewTable(COLUMNS, [], {"primary.key": "id"}, ("dt",)), InvalidRequest, "primary key is stated twice"),
        (NewTable(COLUMNS, [Transform("years", (("dt",),))]), UnsupportedOperation, r"PARTITIONED BY years\(dt\)"),
        (NewTable(COLUMNS, [Transform("identity", (("a", "b"),))]), InvalidRequest, "field a.b inside a column"),
        (
            NewTable(COLUMNS, [Transform("bucket", (("id",),), 4)], {"bucket.num": "5"}),
            InvalidRequest,
            "asks for 4 buckets, but 'bucket.num' is 5",
        ),
    ],
)
def test_what_contradicts_itself_or_is_misspelt_is_refused_by_name(
    new: NewTable, kind: type[ForebayError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        new_descriptor(new)


def info(**properties: str) -> TableInfo:
    new = new_descriptor(NewTable(COLUMNS, [], {"primary.key": "id", "bucket.num": "2", **properties}))
    return TableInfo(TablePath("db", "t"), 1, 1, new)


def test_shown_properties_make_the_same_table_again() -> None:
    table = info(**{"bucket.key": "id", "comment": "hi", "table.log.format": "ARROW", "team": "blue"})
    again = new_descriptor(NewTable(COLUMNS, [], table_properties(table)))
    assert again == table.descriptor


def test_alter_table_sets_resets_and_adds_columns() -> None:
    changes: list[TableChange] = [SetProperty("a", "1"), SetProperty("b", None)]
    changes.append(ColumnAddition(("w",), StringType(), comment="new"))
    asked = alteration(info(), changes)
    assert (asked.to_set, asked.to_reset) == ({"a": "1"}, ("b",))
    assert asked.columns == (Column("w", types.string(), "new"),)


def add(path: tuple[str, ...], *, nullable: bool = True, position: ColumnPosition | None = None) -> ColumnAddition:
    return ColumnAddition(path, IntegerType(), nullable, position=position)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (SetProperty("bucket.num", "9"), "'bucket.num' is fixed when a table is created"),
        (SetProperty("location", "/x"), "'location' = '/x' cannot be: the server decides where tables are kept"),
        (SetProperty("primary.key", None), "'primary.key' is fixed"),
        (SetProperty("primary_key", "id"), "did you mean 'primary.key'"),
        (add(("v", "x")), "ADD COLUMN v.x: fields cannot be added inside a column"),
        (add(("w",), position=ColumnPosition()), "new columns come last, not FIRST"),
        (add(("w",), position=ColumnPosition("v")), "new columns come last, not AFTER v"),
        (add(("w",), nullable=False), "a new column must be nullable"),
        (ColumnRenaming(("v",), "x"), "column 'v': columns cannot be renamed"),
        (ColumnDeletion(("v",)), "columns cannot be dropped"),
        (OtherChange("Whatever"), "Whatever is not known"),
    ],
)
def test_changes_that_tables_do_not_know_are_refused_by_name(change: TableChange, message: str) -> None:
    with pytest.raises(ForebayError, match=message):
        alteration(info(), [change])
