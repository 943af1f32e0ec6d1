"""Descriptions of types, columns and tables: what is valid, how it is displayed, and the ids of columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from forebay import col
from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.metadata import types
from forebay.metadata.json_serde import (
    NESTING_MAX,
    data_type_from_json,
    data_type_to_json,
    database_from_json,
    database_to_json,
    descriptor_from_json,
    descriptor_to_json,
    dumps,
    loads,
    schema_from_json,
    schema_to_json,
)
from forebay.metadata.predicate import all_of
from forebay.metadata.table import (
    AggregateFunction,
    Column,
    DatabaseInfo,
    PartitionInfo,
    PhysicalTablePath,
    Schema,
    TableBucket,
    TableDescriptor,
    TableInfo,
    TablePath,
)
from forebay.metadata.table_options import (
    ArrowCompression,
    KvFormat,
    LogFormat,
    lake_format_name,
    parse_option,
    unserved_option,
)
from forebay.metadata.types import DataType, walk

ROW = types.row(types.field("x", types.int_().not_null()), types.field("y", types.array(types.string()), "said"))


@pytest.mark.parametrize(
    ("t", "text"),
    [
        (types.int_(), "INT"),
        (types.bigint().not_null(), "BIGINT NOT NULL"),
        (types.char(1), "CHAR(1)"),
        (types.string(7), "VARCHAR(7)"),
        (types.binary(1), "BINARY(1)"),
        (types.decimal(), "DECIMAL(10, 0)"),
        (types.decimal(38, 38), "DECIMAL(38, 38)"),
        (types.decimal(1), "DECIMAL(1, 0)"),
        (types.time(), "TIME(0)"),
        (types.timestamp(9), "TIMESTAMP(9)"),
        (types.timestamp_ltz(), "TIMESTAMP_LTZ(6)"),
        (types.map_(types.string(), types.int_()), "MAP<STRING NOT NULL, INT>"),
        (ROW, "ROW<`x` INT NOT NULL, `y` ARRAY<STRING>>"),
    ],
    ids=str,
)
def test_types_are_told_as_in_sql_and_come_back_from_json(t: DataType, text: str) -> None:
    assert str(t) == text
    assert data_type_from_json(data_type_to_json(t)) == t
    assert str(data_type_from_json(data_type_to_json(t))) == text
    assert t.not_null().as_nullable() == t.as_nullable()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: types.char(0), "CHAR needs a length of at least 1, got 0"),
        (lambda: types.binary(0), "BINARY needs a length of at least 1, got 0"),
        (lambda: types.decimal(0), r"got \(0, 0\)"),
        (lambda: types.decimal(39), r"got \(39, 0\)"),
        (lambda: types.decimal(5, 6), r"got \(5, 6\)"),
        (lambda: types.decimal(5, -1), r"got \(5, -1\)"),
        (lambda: types.time(10), "TIME needs a precision from 0 to 9, got 10"),
        (lambda: types.timestamp(-1), "TIMESTAMP needs a precision from 0 to 9, got -1"),
        (lambda: types.row(types.field("a", types.int_()), types.field("a", types.int_())), "duplicate field names"),
    ],
)
def test_types_that_cannot_be_are_refused(make: Callable[[], DataType], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        make()
    assert refused.value.code == ErrorCode.INVALID_TABLE_EXCEPTION


def test_types_within_types_are_walked_depth_first() -> None:
    t = types.map_(types.string(), ROW)
    assert [str(inner.root.name) for inner in walk(t)] == ["MAP", "STRING", "ROW", "INT", "ARRAY", "STRING"]
    assert [inner.is_nested for inner in walk(t)] == [True, False, True, False, True, False]
    with pytest.raises(InvalidRequest, match="lacks its element, key or value type"):
        types.child(None)


# ---- schemas --------------------------------------------------------------------------------------------------------


def columns(*names: str) -> list[Column]:
    return [Column(name, types.int_()) for name in names]


def test_ids_count_columns_and_fields_depth_first() -> None:
    inside = types.map_(types.string(), types.array(ROW))
    schema = Schema.of([Column("a", types.int_()), Column("b", inside), Column("c", ROW), Column("d", types.int_())])
    assert [c.column_id for c in schema.columns] == [0, 1, 4, 7]
    fields = [[f.field_id for t in walk(c.data_type) for f in t.fields] for c in schema.columns]
    assert fields == [[], [2, 3], [5, 6], []]
    assert (schema.highest_field_id, schema.field_count) == (7, 8)
    again = Schema.of(schema.columns)
    assert again == schema


def test_key_columns_are_not_null_and_found_by_name() -> None:
    schema = Schema.of(columns("a", "b", "c"), ["c", "a"], "b")
    assert [c.data_type.nullable for c in schema.columns] == [False, True, False]
    assert (schema.names, schema.indexes(["c", "b"]), schema.column("b").column_id) == (("a", "b", "c"), (2, 1), 1)
    with pytest.raises(InvalidRequest, match="there is no column 'd'; the columns are a, b, c"):
        schema.index("d")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Schema.of([]), "a table needs at least one column"),
        (lambda: Schema.of(columns("b", "a", "b", "a")), "duplicate column names: a, b"),
        (lambda: Schema.of(columns("a"), ["b"]), r"primary key column 'b' is not a column; the columns are \['a'\]"),
        (lambda: Schema.of(columns("a"), ["a", "a"]), r"the primary key repeats a column: \['a', 'a'\]"),
        (lambda: Schema.of(columns("a"), [], "b"), "auto-increment column 'b' is not a column"),
        (
            lambda: Schema.of([Column("a", types.int_(), None, 1), Column("b", types.int_())]),
            "either all columns carry ids or none does",
        ),
        (
            lambda: Schema.of([Column("a", types.int_(), None, 1), Column("b", types.int_(), None, 1)]),
            r"column ids are not unique: \[1, 1\]",
        ),
    ],
)
def test_schemas_that_cannot_be_are_refused(make: Callable[[], Schema], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refused:
        make()
    assert refused.value.code == ErrorCode.INVALID_TABLE_EXCEPTION


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"primary_key": []}, "'primary_key' is empty; leave it out"),
        ({"primary_key": "a"}, "'primary_key' must be a list of names, got 'a'"),
        ({"primary_key": [1]}, r"'primary_key' must be a list of names, got \[1\]"),
        ({"auto_increment_column": ["a", "b"]}, "columns a, b are auto-increment; a table can have one such column"),
        ({"columns": None}, "the schema is malformed: TypeError"),
        ({"columns": [{"data_type": {"type": "INTEGER"}}]}, "the schema is malformed: KeyError"),
        ({"columns": [{"name": 5, "data_type": {"type": "INTEGER"}}]}, "'name' must be a string, got 5"),
        ({"columns": [{"name": "a", "data_type": {"type": "WORD"}}]}, "is not a data type"),
        ({"columns": [{"name": "a", "data_type": {"type": "CHAR", "length": True}}]}, "'length' must be an integer"),
        ({"columns": [{"name": "a", "data_type": {"type": "CHAR", "length": "3"}}]}, "'length' must be an integer"),
        ({"columns": [{"name": "a", "id": "x", "data_type": {"type": "INTEGER"}}]}, "'id' must be an integer"),
        ({"columns": [{"name": "a", "comment": 1, "data_type": {"type": "INTEGER"}}]}, "'comment' must be a string"),
    ],
)
def test_json_that_is_no_schema_is_refused(change: dict[str, Any], words: str) -> None:
    document = schema_to_json(Schema.of(columns("a", "b")))
    with pytest.raises(InvalidRequest, match=words) as refused:
        schema_from_json({**document, **change})
    assert refused.value.code == ErrorCode.INVALID_TABLE_EXCEPTION


def test_json_of_other_writers_is_read_with_what_they_leave_out() -> None:
    node = {
        "columns": [
            {"name": "k", "data_type": {"type": "BIGINT", "nullable": False}, "id": -1},
            {"name": "v", "data_type": {"type": "TIMESTAMP_WITHOUT_TIME_ZONE"}, "agg_function": "max", "id": None},
            {"name": "c", "data_type": {"type": "CHAR"}},
            {"name": "d", "data_type": {"type": "DECIMAL", "precision": 4}},
        ],
        "primary_key": {"name": "pk", "columns": ["k"]},
        "auto_increment_column": ["k"],
    }
    schema = schema_from_json(node)
    assert (schema.primary_key, schema.auto_increment_column) == (("k",), "k")
    assert [str(t) for t in schema.types] == ["BIGINT NOT NULL", "TIMESTAMP(6)", "CHAR(1)", "DECIMAL(4, 0)"]
    assert [c.column_id for c in schema.columns] == [0, 1, 2, 3]
    assert schema.columns[1].aggregate == AggregateFunction("max")
    written = schema_to_json(schema)
    assert (written["primary_key"], written["auto_increment_column"]) == (["k"], ["k"])
    assert "primary_key" not in schema_to_json(Schema.of(columns("a")))
    assert "auto_increment_column" not in schema_to_json(Schema.of(columns("a")))


# ---- tables ---------------------------------------------------------------------------------------------------------

DESCRIPTOR = TableDescriptor(
    Schema.of(columns("p", "k", "v"), ["p", "k"]), ("p",), ("k",), 3, "said", {"table.log.ttl": "1 d"}, {"owner": "me"}
)


def test_a_table_comes_back_from_json_with_and_without_what_is_optional() -> None:
    for descriptor in (DESCRIPTOR, TableDescriptor(Schema.of(columns("a")))):
        assert descriptor_from_json(loads(dumps(descriptor_to_json(descriptor)), "a table")) == descriptor
    assert "comment" not in descriptor_to_json(replace(DESCRIPTOR, comment=None))
    assert "bucket_count" not in descriptor_to_json(replace(DESCRIPTOR, bucket_count=None))
    for comment in (None, "said"):
        info = DatabaseInfo("db", comment, {"a": "b"}, 5, 6)
        assert database_from_json("db", database_to_json(info), 5, 6) == info
        assert ("comment" in database_to_json(info)) == (comment is not None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": None}, "the schema is malformed"),
        ({"bucket_count": "3"}, "'bucket_count' must be an integer, got '3'"),
        ({"properties": {"a": 1}}, "'properties' must map strings to strings"),
        ({"custom_properties": ["a"]}, "'custom_properties' must map strings to strings"),
        ({"comment": 3}, "'comment' must be a string, got 3"),
    ],
)
def test_json_that_is_no_table_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        descriptor_from_json({**descriptor_to_json(DESCRIPTOR), **change})


def test_a_table_tells_its_keys_formats_and_lake() -> None:
    assert (DESCRIPTOR.has_primary_key, DESCRIPTOR.is_partitioned) == (True, True)
    assert DESCRIPTOR.physical_primary_key == ("k",)
    log = TableDescriptor(Schema.of(columns("a", "b")))
    assert (log.has_primary_key, log.is_partitioned, log.physical_primary_key) == (False, False, ())
    assert [replace(DESCRIPTOR, bucket_keys=keys).is_default_bucket_key for keys in ((), ("k",), ("p", "k"))] == [
        False, True, False
    ]  # fmt: skip
    assert [replace(log, bucket_keys=keys).is_default_bucket_key for keys in ((), ("a",))] == [True, False]
    assert (log.log_format, log.kv_format, log.kv_format_version) == (LogFormat.ARROW, KvFormat.COMPACTED, 1)
    assert (log.lake_format, log.lake_enabled) == (None, False)
    given = {
        "table.log.format": "indexed", "table.kv.format": "Indexed", "table.kv.format-version": "2",
        "table.datalake.format": "PAIMON", "table.datalake.enabled": " TRUE ",
    }  # fmt: skip
    other = replace(log, properties=given)
    assert (other.log_format, other.kv_format, other.kv_format_version) == (LogFormat.INDEXED, KvFormat.INDEXED, 2)
    assert (other.lake_format, other.lake_enabled) == ("paimon", True)
    info = TableInfo(TablePath("db", "t"), 7, 1, log)
    with pytest.raises(InvalidRequest, match=r"table db\.t has no bucket count"):
        info.bucket_count.bit_length()
    assert replace(info, descriptor=DESCRIPTOR).bucket_count == 3


def test_places_are_told_with_their_partition_if_they_have_one() -> None:
    path = TablePath("db", "t")
    assert [str(PhysicalTablePath(path, p)) for p in (None, "a$b")] == ["db.t", "db.t(p=a$b)"]
    assert [str(TableBucket(7, 1, p)) for p in (None, 0)] == ["(table=7, bucket=1)", "(table=7, partition=0, bucket=1)"]
    assert PartitionInfo(1, (("a", "x"), ("b", "y"))).name == "x$y"


# ---- options --------------------------------------------------------------------------------------------------------


def test_options_have_their_defaults_and_say_what_they_cannot_be() -> None:
    assert DESCRIPTOR.option("table.log.ttl") == 24 * 3600 * 1000
    assert DESCRIPTOR.option("table.auto-partition.num-precreate") == 2
    assert DESCRIPTOR.option("table.datalake.format") is None
    assert parse_option("table.merge-engine", " First-Row ") == "first_row"
    for key, text, words in (
        ("table.merge-engine", "third", "'third' is not one of first_row, versioned, aggregation"),
        ("table.auto-partition.num-retention", "x", "'x' is not an integer"),
        ("table.datalake.format", "atlantis", "'atlantis' is not one of paimon, iceberg, lance, hudi, and no package"),
    ):
        with pytest.raises(InvalidRequest, match=f"option '{key}': {words}") as refused:
            parse_option(key, text)
        assert refused.value.code == ErrorCode.INVALID_CONFIG_EXCEPTION
    assert [lake_format_name(text) for text in ("Paimon", " LANCE ")] == ["paimon", "lance"]


def test_options_that_are_not_served_are_named() -> None:
    historical = "table.datalake.historical-partition.enabled"
    assert unserved_option("table.merge-engine", "versioned") is None
    assert "local log segments" in str(unserved_option("table.log.local-ttl", "1 d"))
    assert [unserved_option(historical, text) for text in ("true", "false")] == ["historical partitions", None]
    assert unserved_option("table.log.ttl", "1 d") is None


def test_options_of_the_lake_are_those_below_its_format() -> None:
    own = {"table.datalake.iceberg.uri": "u", "table.datalake.paimon.uri": "p", "table.log.ttl": "1 d"}
    for enabled, name, found in (
        ("true", "iceberg", {"uri": "u"}), ("false", "iceberg", {}), ("true", "paimon", {"uri": "p"}),
    ):  # fmt: skip
        given = {**own, "table.datalake.enabled": enabled, "table.datalake.format": name}
        info = TableInfo(TablePath("db", "t"), 7, 1, replace(DESCRIPTOR, properties=given))
        assert info.lake_options() == found
        assert info.descriptor.lake_options_prefix == f"table.datalake.{name}."
    without = TableInfo(TablePath("db", "t"), 7, 1, replace(DESCRIPTOR, properties={"table.datalake.enabled": "true"}))
    assert (without.descriptor.lake_options_prefix, without.lake_options()) == (None, {})


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({}, ArrowCompression("zstd", 1)),
        ({"zstd.level": "3"}, ArrowCompression("zstd", 3)),
        ({"type": "LZ4_FRAME"}, ArrowCompression("lz4", 1)),
        ({"type": "none", "zstd.level": "7"}, ArrowCompression("none", 7)),
    ],
)
def test_the_compression_of_batches(given: dict[str, str], made: ArrowCompression) -> None:
    properties = {f"table.log.arrow.compression.{key}": value for key, value in given.items()}
    assert replace(DESCRIPTOR, properties=properties).arrow_compression == made


# ---- filters --------------------------------------------------------------------------------------------------------


def test_filters_know_their_columns_and_are_not_joined_by_words() -> None:
    part = (col("a") == 1) | (col("b").is_null() & (col("a") > 2))
    assert part.columns() == {"a", "b"}
    with pytest.raises(InvalidRequest, match="joined by & and"):
        bool(part)
    with pytest.raises(InvalidRequest, match="cannot be turned around by ~"):
        part.__invert__()


def test_several_filters_hold_together() -> None:
    one, two = col("a") == 1, col("b") == 2
    assert [all_of(parts) for parts in ((), (one,), (one, two))] == [None, one, one & two]


# ---- texts ----------------------------------------------------------------------------------------------------------


def test_paths_of_tables_have_two_names() -> None:
    path = TablePath("db", "t")
    assert (TablePath.parse("db.t"), TablePath.parse(path)) == (path, path)
    for text in ("t", "db.", ".t", "db.t.x", "", "."):
        with pytest.raises(InvalidRequest, match=f"{text!r} does not name a table: write 'database.table'"):
            TablePath.parse(text)
    with pytest.raises(InvalidRequest, match=r"named by text such as 'database.table', not by 5"):
        TablePath.parse(5)  # type: ignore[arg-type]


def test_documents_are_json_objects_of_a_bounded_depth() -> None:
    deep: Any = 1
    for _ in range(NESTING_MAX - 2):  # the object and the number are levels, too
        deep = [deep]
    assert loads(dumps({"a": deep}), "table") == {"a": deep}
    for data, words in (
        (dumps({"a": [deep]}), f"the table is nested deeper than {NESTING_MAX} levels"),
        (b"[1]", "the table must be a JSON object, not list"),
        (b"{", "the table is not valid JSON"),
        (b"\xff", "the table is not valid JSON"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            loads(data, "table")


def test_fields_of_rows_keep_their_ids() -> None:
    numbered = Schema.of([Column("r", ROW)]).columns[0].data_type
    written = data_type_to_json(numbered)
    assert [f["field_id"] for f in written["fields"]] == [1, 2]
    assert [f["field_id"] for f in data_type_to_json(ROW)["fields"]] == [-1, -1]
    assert data_type_from_json(written) == numbered
