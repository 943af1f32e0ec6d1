"""CREATE TABLE, ALTER TABLE and similar statements on lake tables, and what is rejected with which messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import types as spark_types

from forebay.base.errors import InvalidRequest, StorageFailure, UnsupportedOperation
from forebay.metadata import types
from forebay.paimon import Catalog
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.spark.schemas import table_schema, to_fields
from forebay.spark.sql.lake_ddl import definition, property_change, stored_default
from forebay.spark.sql.requests import TableRequest, Transform
from tests.patience import PATIENCE
from tests.spark.releases import SPARK, needs

LIKE = needs(4, 2, "CREATE TABLE LIKE for tables of catalogs")
CONSTRAINT = needs(4, 1, "PRIMARY KEY constraints")

Sql = Callable[[str], list[tuple[Any, ...]]]

FULL_TABLE = """CREATE TABLE {db}.t (
    id BIGINT NOT NULL COMMENT 'the key', name VARCHAR(10), amount DECIMAL(10, 2) DEFAULT 1.5,
    note STRING DEFAULT 'it''s', place STRUCT<city: STRING COMMENT 'where', at: ARRAY<DOUBLE>>, day STRING)
    USING paimon PARTITIONED BY (day) COMMENT 'what it is'
    TBLPROPERTIES ('primary-key' = 'day, id', 'bucket' = '2', 'merge-engine' = 'aggregation',
                   'changelog-producer' = 'lookup', 'fields.amount.aggregate-function' = 'sum')"""


def refusal(sql: Sql, statement: str) -> str:
    """The message of the error that a statement gets."""
    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        sql(statement)
    return str(caught.value)


def properties(sql: Sql, table: str) -> dict[str, str]:
    return dict(sql(f"SHOW TBLPROPERTIES {{db}}.{table}"))


# ---- without Spark --------------------------------------------------------------------------------------------------


def asked(**more: Any) -> TableRequest:
    """A CREATE TABLE of columns `id` and `day`."""
    fields = [
        spark_types.StructField("id", spark_types.LongType(), False),
        spark_types.StructField("day", spark_types.DateType()),
    ]
    return TableRequest(**{"schema": spark_types.StructType(fields), **more})


def test_a_definition_is_what_the_statement_says() -> None:
    made = definition(
        asked(
            transforms=(Transform("identity", (("day",),)),),
            properties={"provider": "paimon", "owner": "me", "comment": "c", "bucket": "2", "option.bucket": "2"},
            primary_key=("day", "id"),
        )
    )
    assert [(f.name, f.type) for f in made.fields] == [("id", types.bigint().not_null()), ("day", types.date())]
    assert (made.primary_keys, made.partition_keys) == (("day", "id"), ("day",))
    assert (made.options, made.comment) == ({"bucket": "2"}, "c")


def test_the_primary_key_may_be_said_twice_if_it_is_the_same() -> None:
    assert definition(asked(properties={"primary-key": "id"}, primary_key=("id",))).primary_keys == ("id",)
    with pytest.raises(InvalidRequest, match="stated twice"):
        definition(asked(properties={"primary-key": "day"}, primary_key=("id",)))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"properties": {"provider": "parquet"}}, "USING parquet"),
        ({"properties": {"collation": "UNICODE"}}, "collation"),
        ({"properties": {"hive.stored-as": "ORC"}}, "leave STORED AS and ROW FORMAT out"),
        ({"properties": {"primary.key": "id"}}, "did you mean 'primary-key'"),
        ({"transforms": (Transform("days", (("day",),)),)}, "days\\(day\\) is not possible"),
        ({"transforms": (Transform("bucket", (("id",),), 4),)}, "'bucket' = '4', 'bucket-key' = 'id'"),
        ({"transforms": (Transform("identity", (("place", "city"),)),)}, "place.city inside a column"),
    ],
)
def test_what_no_table_of_a_lake_can_be_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises((InvalidRequest, UnsupportedOperation), match=words):
        definition(asked(**given))


@pytest.mark.parametrize("name", ["primary-key", "location", "provider", "owner"])
def test_what_is_fixed_cannot_be_set_or_unset(name: str) -> None:
    with pytest.raises(UnsupportedOperation):
        property_change(name, "x")
    with pytest.raises(UnsupportedOperation):
        property_change(name, None)


def test_columns_come_back_as_they_were_given() -> None:
    given = spark_types.StructType(
        [
            spark_types.StructField("v", spark_types.VarcharType(5), False, {"comment": "text"}),
            spark_types.StructField("d", spark_types.IntegerType(), True, {"CURRENT_DEFAULT": "4"}),
            spark_types.StructField("a", spark_types.ArrayType(spark_types.TimestampNTZType(), False)),
        ]
    )
    shown = table_schema(to_fields(given))
    assert [f.dataType for f in shown] == [spark_types.StringType(), *(f.dataType for f in given.fields[1:])]
    assert [f.type for f in to_fields(shown)] == [f.type for f in to_fields(given)]
    assert [f.nullable for f in shown] == [False, True, True]
    assert shown["v"].metadata == {"comment": "text", "__CHAR_VARCHAR_TYPE_STRING": "varchar(5)"}
    assert shown["d"].metadata["CURRENT_DEFAULT"] == "4"


def test_a_default_of_a_table_that_is_selected_from_is_not_taken_over() -> None:
    inherited = {"CURRENT_DEFAULT": "4", "EXISTS_DEFAULT": "CAST(NULL AS INT)"}
    own = {"CURRENT_DEFAULT": "4", "EXISTS_DEFAULT": "4"}
    fields = [
        spark_types.StructField(name, spark_types.IntegerType(), True, metadata)
        for name, metadata in (("a", inherited), ("b", own))
    ]
    assert [f.default for f in to_fields(spark_types.StructType(fields))] == [None, "4"]


@pytest.mark.parametrize(
    ("t", "text", "kept"),
    [
        (types.int_(), "5", "5"),
        (types.string(), "'it''s'", "'it''s'"),
        (types.date(), "DATE'2026-01-31'", "'2026-01-31'"),
        (types.timestamp(6), "timestamp_ntz '2026-01-31 12:00:00'", "'2026-01-31 12:00:00'"),
        (types.decimal(4, 2), "1.5", "1.5"),
        (types.array(types.int_()), "array(1, 2)", "array(1, 2)"),
        (types.int_(), "NULL", None),
        (types.int_(), None, None),
    ],
)
def test_a_default_is_kept_as_a_value_that_every_engine_reads(t: types.DataType, text: str, kept: str) -> None:
    assert stored_default("c", t, text) == kept


@pytest.mark.parametrize(
    ("t", "text"),
    [(types.date(), "current_date()"), (types.int_(), "1 + 1"), (types.int_(), "'x'"), (types.bytes_(), "X'00'")],
)
def test_a_default_that_is_an_expression_is_refused(t: types.DataType, text: str) -> None:
    with pytest.raises(InvalidRequest, match="write a literal"):
        stored_default("c", t, text)


# ---- CREATE TABLE ---------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_table_is_what_its_clauses_and_properties_say(lake_sql: Sql, lake: str, lake_catalog: Catalog) -> None:
    lake_sql(FULL_TABLE)
    schema = lake_catalog.table(f"{lake}.t").schema
    assert (schema.primary_keys, schema.partition_keys, schema.comment) == (("day", "id"), ("day",), "what it is")
    assert schema.options == {
        "bucket": "2",
        "merge-engine": "aggregation",
        "changelog-producer": "lookup",
        "fields.amount.aggregate-function": "sum",
    }
    by_name = {f.name: f for f in schema.fields}
    assert by_name["id"].description == "the key"
    assert by_name["amount"].default == "1.5"
    assert by_name["name"].type.length == 10
    assert by_name["place"].type.fields[0].description == "where"
    described = {row[0]: row[1] for row in lake_sql("DESCRIBE EXTENDED {db}.t") if row[0]}
    assert described["place"] == "struct<city:string,at:array<double>>"
    assert described["Comment"] == "what it is"
    assert described["Location"].endswith(f"{lake}.db/t")
    assert described["Provider"] == "paimon"


@pytest.mark.spark
def test_what_show_create_table_shows_makes_the_same_table(lake_sql: Sql, lake: str, lake_catalog: Catalog) -> None:
    lake_sql(FULL_TABLE)
    ((shown,),) = lake_sql("SHOW CREATE TABLE {db}.t")
    lake_sql(shown.replace(f"{lake}.t", f"{lake}.again"))
    first, second = (lake_catalog.table(f"{lake}.{name}").schema for name in ("t", "again"))
    assert (second.fields, second.primary_keys, second.partition_keys) == (
        first.fields,
        first.primary_keys,
        first.partition_keys,
    )
    assert (second.options, second.comment) == (first.options, first.comment)


@pytest.mark.spark
@CONSTRAINT
def test_a_primary_key_constraint_is_the_primary_key(lake_sql: Sql, lake: str, lake_catalog: Catalog) -> None:
    lake_sql("CREATE TABLE {db}.t (a INT, b STRING, CONSTRAINT k PRIMARY KEY (b, a))")
    assert lake_catalog.table(f"{lake}.t").schema.primary_keys == ("b", "a")
    assert "only PRIMARY KEY" in refusal(lake_sql, "CREATE TABLE {db}.u (a INT UNIQUE)")


@pytest.mark.spark
@LIKE
def test_lengths_of_texts_are_kept_and_checked(
    lake_sql: Sql, lake_session: Any, lake: str, lake_catalog: Catalog
) -> None:
    lake_sql("CREATE TABLE {db}.t (c CHAR(4), v VARCHAR(3), l ARRAY<VARCHAR(2)>)")
    lake_sql("INSERT INTO {db}.t VALUES ('ab', 'abc  ', array('x'))")
    for values, part in (
        ("'abcde', 'x', NULL", "EXCEED_LIMIT_LENGTH"),
        ("'a', 'abcd', NULL", "EXCEED_LIMIT_LENGTH"),
        ("'a', 'x', array('abc')", r"column 'l.element', row 0: 'abc' has 3 characters"),
    ):
        with pytest.raises(Exception, match=part):
            lake_sql(f"INSERT INTO {{db}}.t VALUES ({values})")
    with pytest.raises(InvalidRequest, match=r"'abcd' has 4 characters, which do not fit VARCHAR\(3\)"):
        lake_catalog.table(f"{lake}.t").append([{"c": "a", "v": "abcd", "l": None}])
    lake_sql("UPDATE {db}.t SET v = 'u' WHERE c = 'ab'")
    assert lake_sql("SELECT *, length(c) FROM {db}.t") == [("ab", "u", ["x"], 2)]
    if SPARK >= (4, 2):
        found: list[Any] = []
        stream = lake_session.readStream.table(f"lake.{lake}.t").writeStream
        query = stream.foreachBatch(lambda batch, _: found.extend(batch.collect())).trigger(availableNow=True).start()
        query.awaitTermination(PATIENCE)
        assert [row["v"] for row in found] == ["u"]


@LIKE
def test_create_table_like_copies_columns_keys_and_properties(lake_sql: Sql, lake: str, lake_catalog: Catalog) -> None:
    lake_sql(FULL_TABLE)
    lake_sql("CREATE TABLE {db}.l LIKE {db}.t TBLPROPERTIES ('bucket' = '5')")
    first, second = (lake_catalog.table(f"{lake}.{name}").schema for name in ("t", "l"))
    assert (second.fields, second.primary_keys, second.partition_keys) == (
        first.fields,
        first.primary_keys,
        first.partition_keys,
    )
    assert second.options == {**first.options, "bucket": "5"}


@pytest.mark.spark
def test_a_table_that_is_there_is_not_recreated(lake_sql: Sql) -> None:
    lake_sql("CREATE TABLE {db}.t (a INT)")
    assert "ALREADY_EXISTS" in refusal(lake_sql, "CREATE TABLE {db}.t (b INT)")
    lake_sql("CREATE TABLE IF NOT EXISTS {db}.t (b INT)")
    assert lake_sql("DESCRIBE {db}.t") == [("a", "int", None)]


@pytest.mark.spark
def test_mistakes_are_told_with_what_to_write_instead(lake_sql: Sql) -> None:
    for clause, words in (
        ("(a INT) TBLPROPERTIES ('bukcet' = '1')", "did you mean 'bucket'"),
        ("(a INT) TBLPROPERTIES ('bucket' = '2')", "bucket-key"),
        ("(a INT) TBLPROPERTIES ('primary-key' = 'b')", "is no column"),
        ("(a INT) TBLPROPERTIES ('merge-engine' = 'x', 'primary-key' = 'a')", "merge-engine"),
        ("(a INT) CLUSTERED BY (a) INTO 3 BUCKETS", "'bucket' = '3'"),
        ("(a INT) LOCATION '/tmp/elsewhere'", "keeps all tables in its warehouse"),
        ("(a VARIANT)", "type variant"),
        ("(a STRING COLLATE UNICODE)", "collation"),
    ):
        assert words in refusal(lake_sql, f"CREATE TABLE {{db}}.bad {clause}"), clause
    assert "cannot name a table" in refusal(lake_sql, "CREATE TABLE {db}.`a$b` (a INT)")
    assert lake_sql("SHOW TABLES IN {db}") == []


# ---- tables from queries --------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_a_table_is_made_from_a_query(lake_sql: Sql, lake: str, lake_catalog: Catalog) -> None:
    lake_sql("CREATE TABLE {db}.source (id INT, v STRING DEFAULT 'x')")
    lake_sql("INSERT INTO {db}.source VALUES (1, 'a'), (2, 'b')")
    lake_sql("CREATE TABLE {db}.t PARTITIONED BY (v) TBLPROPERTIES ('bucket' = '-1') AS SELECT * FROM {db}.source")
    assert sorted(lake_sql("SELECT * FROM {db}.t")) == [(1, "a"), (2, "b")]
    schema = lake_catalog.table(f"{lake}.t").schema
    assert (schema.partition_keys, schema.options) == (("v",), {"bucket": "-1"})
    assert [f.default for f in schema.fields] == [None, None]


@pytest.mark.spark
def test_a_query_that_fails_leaves_no_table(lake_sql: Sql) -> None:
    failing = "AS SELECT CAST(raise_error('no rows today') AS INT) AS a"
    assert "no rows today" in refusal(lake_sql, f"CREATE TABLE {{db}}.t {failing}")
    assert lake_sql("SHOW TABLES IN {db}") == []
    lake_sql("CREATE TABLE {db}.t AS SELECT 1 AS a")
    assert "no rows today" in refusal(lake_sql, f"CREATE OR REPLACE TABLE {{db}}.t {failing}")
    assert lake_sql("SELECT * FROM {db}.t") == [(1,)], "the old table is there still"
    assert len(lake_sql("SHOW TABLES IN {db}")) == 1


@pytest.mark.spark
def test_a_table_is_replaced_by_what_is_selected_from_it(lake_sql: Sql) -> None:
    lake_sql("CREATE OR REPLACE TABLE {db}.t AS SELECT 1 AS a")
    lake_sql("CREATE OR REPLACE TABLE {db}.t AS SELECT a + 1 AS b, 'x' AS c FROM {db}.t")
    assert lake_sql("SELECT b, c FROM {db}.t") == [(2, "x")]
    lake_sql("REPLACE TABLE {db}.t (d STRING DEFAULT 'y')")
    assert lake_sql("SELECT * FROM {db}.t") == []
    assert len(lake_sql("SHOW TABLES IN {db}")) == 1
    assert "NOT_FOUND" in refusal(lake_sql, "REPLACE TABLE {db}.nix (a INT)")
    assert "LOCATION" in refusal(lake_sql, "REPLACE TABLE {db}.t (a INT) LOCATION '/tmp/elsewhere'")


@pytest.mark.spark
def test_a_replacement_that_cannot_take_the_place_leaves_the_old_table(
    lake_sql: Sql, lake: str, lake_catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake_sql("CREATE TABLE {db}.t AS SELECT 1 AS a")
    rename = FileSystemCatalog.rename_table

    def failing(catalog: FileSystemCatalog, name: str, new_name: str) -> None:
        if "__replacing_" in name:
            raise StorageFailure("the disk is on fire")
        rename(catalog, name, new_name)

    monkeypatch.setattr(FileSystemCatalog, "rename_table", failing)
    assert "on fire" in refusal(lake_sql, "CREATE OR REPLACE TABLE {db}.t AS SELECT 2 AS b")
    assert lake_sql("SELECT a FROM {db}.t") == [(1,)]
    assert lake_catalog.list_tables(lake) == ["t"]


@pytest.mark.spark
def test_data_frames_make_tables(lake_session: Any, lake: str, lake_catalog: Catalog) -> None:
    rows = lake_session.sql("SELECT 1 AS a, 'x' AS b")
    made = rows.writeTo(f"lake.{lake}.t").using("paimon").partitionedBy("b").tableProperty("bucket", "1")
    made.tableProperty("primary-key", "a,b").create()
    schema = lake_catalog.table(f"{lake}.t").schema
    assert (schema.primary_keys, schema.partition_keys) == (("a", "b"), ("b",))
    rows.write.format("forebay-paimon").saveAsTable(f"lake.{lake}.u")
    assert lake_session.table(f"lake.{lake}.u").count() == 1
    with pytest.raises(PySparkException, match="forebay-paimon"):
        rows.write.saveAsTable(f"lake.{lake}.v")


# ---- ALTER TABLE ----------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_columns_are_added_renamed_moved_changed_and_dropped(lake_sql: Sql) -> None:
    lake_sql("CREATE TABLE {db}.t (id INT, v STRING, place STRUCT<x: INT, y: INT>)")
    lake_sql("INSERT INTO {db}.t VALUES (1, 'a', struct(1, 2))")
    for change in (
        "ADD COLUMNS (extra INT COMMENT 'more', m MAP<STRING, STRUCT<z: INT>>)",
        "ADD COLUMN first_one STRING FIRST",
        "ADD COLUMN second_one STRING AFTER first_one",
        "ADD COLUMN place.w DOUBLE AFTER x",
        "ADD COLUMN m.value.zz INT",
        "RENAME COLUMN v TO vv",
        "RENAME COLUMN place.y TO yy",
        "ALTER COLUMN id TYPE BIGINT",
        "ALTER COLUMN place.x TYPE BIGINT",
        "ALTER COLUMN id COMMENT 'number'",
        "ALTER COLUMN extra FIRST",
        "ALTER COLUMN second_one AFTER vv",
        "DROP COLUMN first_one",
        "DROP COLUMN place.w",
    ):
        lake_sql(f"ALTER TABLE {{db}}.t {change}")
    assert lake_sql("DESCRIBE {db}.t") == [
        ("extra", "int", "more"),
        ("id", "bigint", "number"),
        ("vv", "string", None),
        ("second_one", "string", None),
        ("place", "struct<x:bigint,yy:int>", None),
        ("m", "map<string,struct<z:int,zz:int>>", None),
    ]
    assert lake_sql("SELECT id, vv, place.x, place.yy, extra FROM {db}.t") == [(1, "a", 1, 2, None)]


@pytest.mark.spark
def test_not_null_goes_but_does_not_come(lake_sql: Sql, lake: str, lake_catalog: Catalog) -> None:
    lake_sql("CREATE TABLE {db}.t (a INT NOT NULL)")
    lake_sql("ALTER TABLE {db}.t ALTER COLUMN a DROP NOT NULL")
    assert lake_catalog.table(f"{lake}.t").schema.fields[0].type.nullable
    assert "nullable" in refusal(lake_sql, "ALTER TABLE {db}.t ALTER COLUMN a SET NOT NULL")


@pytest.mark.spark
@needs(4, 1, "defaults of columns that an INSERT leaves out")
def test_defaults_are_written_where_no_value_is_given(lake_sql: Sql) -> None:
    lake_sql("CREATE TABLE {db}.t (id INT, v INT DEFAULT 7, s STRING DEFAULT 'abc', l ARRAY<INT> DEFAULT array(1, 2))")
    lake_sql("INSERT INTO {db}.t (id) VALUES (1)")
    lake_sql("ALTER TABLE {db}.t ALTER COLUMN v SET DEFAULT 9")
    lake_sql("INSERT INTO {db}.t (id, v, s) VALUES (2, DEFAULT, 'x')")
    lake_sql("ALTER TABLE {db}.t ALTER COLUMN v DROP DEFAULT")
    lake_sql("INSERT INTO {db}.t (id) VALUES (3)")
    assert sorted(lake_sql("SELECT * FROM {db}.t")) == [
        (1, 7, "abc", [1, 2]),
        (2, 9, "x", [1, 2]),
        (3, None, "abc", [1, 2]),
    ]
    assert "SET DEFAULT" in refusal(lake_sql, "ALTER TABLE {db}.t ADD COLUMN w INT DEFAULT 5")


@pytest.mark.spark
def test_properties_and_comments_are_set_and_unset(lake_sql: Sql, lake: str, lake_catalog: Catalog) -> None:
    lake_sql("CREATE TABLE {db}.t (id INT) TBLPROPERTIES ('bucket' = '2', 'primary-key' = 'id')")
    lake_sql("INSERT INTO {db}.t VALUES (1)")
    lake_sql("ALTER TABLE {db}.t SET TBLPROPERTIES ('bucket' = '4', 'snapshot.num-retained.max' = '5')")
    assert properties(lake_sql, "t") == {"bucket": "4", "snapshot.num-retained.max": "5", "primary-key": "id"}
    lake_sql("ALTER TABLE {db}.t UNSET TBLPROPERTIES ('snapshot.num-retained.max')")
    lake_sql("COMMENT ON TABLE {db}.t IS 'things'")
    assert properties(lake_sql, "t") == {"bucket": "4", "primary-key": "id"}
    assert lake_catalog.table(f"{lake}.t").schema.comment == "things"


@pytest.mark.spark
def test_changes_that_the_data_forbids_are_refused(lake_sql: Sql) -> None:
    lake_sql("CREATE TABLE {db}.t (id INT, v STRING) TBLPROPERTIES ('bucket' = '2', 'primary-key' = 'id')")
    lake_sql("INSERT INTO {db}.t VALUES (1, 'a')")
    for change, words in (
        ("SET TBLPROPERTIES ('merge-engine' = 'first-row')", "data depends on it"),
        ("SET TBLPROPERTIES ('bucket' = '-1')", "another layout"),
        ("SET TBLPROPERTIES ('primary-key' = 'v')", "fixed when a table is created"),
        ("SET TBLPROPERTIES ('snapshot.num-retaind.max' = '5')", "did you mean 'snapshot.num-retained.max'"),
        ("SET LOCATION '/tmp/elsewhere'", "location"),
        ("DROP COLUMN id", "key column"),
        ("ALTER COLUMN id TYPE BIGINT", "key column"),
        ("ADD COLUMN w INT NOT NULL", "must be nullable"),
        ("ALTER COLUMN v TYPE INT", "ALTER TABLE"),
    ):
        message = refusal(lake_sql, f"ALTER TABLE {{db}}.t {change}")
        assert words in message, (change, message)
    assert lake_sql("DESCRIBE {db}.t") == [("id", "int", None), ("v", "string", None)]


@pytest.mark.spark
def test_tables_are_renamed_within_the_catalog(lake_sql: Sql, lake: str) -> None:
    lake_sql("CREATE TABLE {db}.a AS SELECT 1 AS x")
    lake_sql(f"ALTER TABLE {{db}}.a RENAME TO {lake}.b")
    lake_sql(f"ALTER TABLE {{db}}.b RENAME TO lake.{lake}.c")
    assert lake_sql("SELECT x FROM {db}.c") == [(1,)]
    lake_sql("CREATE TABLE {db}.taken (x INT)")
    assert "ALREADY_EXISTS" in refusal(lake_sql, f"ALTER TABLE {{db}}.c RENAME TO {lake}.taken")
    assert "no database 'nix'" in refusal(lake_sql, "ALTER TABLE {db}.c RENAME TO nix.c")
    assert "NOT_FOUND" in refusal(lake_sql, f"ALTER TABLE {{db}}.nix RENAME TO {lake}.d")
