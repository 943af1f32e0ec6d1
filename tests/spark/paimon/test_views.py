"""Views of lakes in Spark SQL: made, read, changed and dropped, in REST and Hive catalogs and beside a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import forebay.spark
from forebay.paimon import Catalog
from forebay.server.embedded import EmbeddedServer
from forebay.spark.server_setup import write_setup
from tests.paimon.catalog.conftest import drop_all, hive_options, metastore
from tests.paimon.catalog.rest_server import RestServer
from tests.paimon.lake import put
from tests.spark.releases import SPARK, needs

pytestmark = [pytest.mark.spark, needs(4, 2, "views in catalogs of connectors")]

Sql = Callable[[str], list[tuple[Any, ...]]]

__all__ = ["hive_options", "metastore"]  # fixtures

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    made = RestServer(tmp_path_factory.mktemp("rest"))
    yield made
    made.close()


@pytest.fixture
def viewed(request: pytest.FixtureRequest, spark: Any, rest: RestServer) -> Iterator[Catalog]:
    """A catalog with views, which the session knows as `viewed`; database `db` has table `t` of two rows.

    It is that of a REST server, or of the options that the fixture named by a parameter has.
    """
    fixture = getattr(request, "param", None)
    options = rest.options if fixture is None else request.getfixturevalue(fixture)
    forebay.spark.attach(spark, "viewed", paimon=options)
    catalog = Catalog.open(options)
    catalog.create_database("db")
    put(catalog.create_table("db.t", COLUMNS), [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    yield catalog
    drop_all(catalog)


@pytest.fixture
def sql(spark: Any, viewed: Catalog) -> Sql:
    """Run a statement; `{db}` in it is the database with views."""

    def run(statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(statement.replace("{db}", "viewed.db")).collect()]

    return run


def refusal(sql: Sql, statement: str) -> str:
    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        sql(statement)
    return str(caught.value)


EACH = pytest.mark.parametrize(
    "viewed", [None, pytest.param("hive_options", marks=pytest.mark.slow)], indirect=True, ids=["rest", "hive"]
)


@EACH
def test_a_view_is_created_read_changed_and_dropped(sql: Sql, viewed: Catalog) -> None:
    sql("""CREATE VIEW {db}.v (n COMMENT 'number', text) COMMENT 'big ones' TBLPROPERTIES ('team' = 'blue')
           AS SELECT id, v FROM {db}.t WHERE id > 1""")
    assert sql("SELECT * FROM {db}.v") == [(2, "b")]
    sql("INSERT INTO {db}.t VALUES (3, 'c')")
    assert sql("SELECT text FROM {db}.v WHERE n > 2") == [("c",)]
    assert viewed.view("db.v").query_for("spark") == "SELECT id, v FROM viewed.db.t WHERE id > 1"
    sql("CREATE VIEW {db}.w AS SELECT v.n, t.v AS same FROM {db}.v JOIN {db}.t ON t.id = v.n")
    assert sql("SELECT w.n, same FROM {db}.w JOIN {db}.t ON w.n = t.id ORDER BY 1") == [(2, "b"), (3, "c")]
    sql("ALTER VIEW {db}.v AS SELECT id AS n, upper(v) AS text FROM {db}.t")
    assert sql("SELECT text FROM {db}.v ORDER BY n") == [("A",), ("B",), ("C",)]
    sql("ALTER VIEW {db}.v SET TBLPROPERTIES ('more' = '1')")
    sql("ALTER VIEW {db}.v UNSET TBLPROPERTIES ('team')")
    assert sql("SHOW TBLPROPERTIES {db}.v") == [("more", "1")]
    assert sql("SHOW CREATE TABLE {db}.v")[0][0].startswith(
        "CREATE VIEW viewed.db.v (\n  n,\n  text)\nCOMMENT 'big one"
    )
    for new_name in ("viewed.db.x", "db.v"):
        sql(f"ALTER VIEW {{db}}.{'v' if new_name.endswith('x') else 'x'} RENAME TO {new_name}")
    assert viewed.list_views("db") == ["v", "w"]
    sql("CREATE OR REPLACE VIEW {db}.v AS SELECT 7 AS n")
    assert (sql("SELECT * FROM {db}.v"), viewed.view("db.v").comment) == ([(7,)], None)
    sql("CREATE VIEW IF NOT EXISTS {db}.v AS SELECT 8 AS n")
    assert sql("SELECT * FROM {db}.v") == [(7,)]
    sql("DROP VIEW {db}.v")
    sql("DROP VIEW IF EXISTS {db}.v")
    assert "VIEW_NOT_FOUND" in refusal(sql, "DROP VIEW {db}.v")
    assert "TABLE_OR_VIEW_NOT_FOUND" in refusal(sql, "SELECT * FROM {db}.w")  # which reads v


@EACH
def test_views_are_shown_and_described(spark: Any, sql: Sql, viewed: Catalog) -> None:
    sql("CREATE VIEW {db}.big (n COMMENT 'number') COMMENT 'why' AS SELECT id FROM {db}.t")
    sql("CREATE VIEW {db}.small AS SELECT 1 AS one")
    assert sql("SHOW VIEWS IN {db}") == [("db", "big", False), ("db", "small", False)]
    assert sql("SHOW VIEWS IN {db} LIKE 's*'") == [("db", "small", False)]
    assert [row[1] for row in sql("SHOW TABLES IN {db}")] == ["big", "small", "t"]
    assert sql("DESCRIBE {db}.big") == [("n", "bigint", "number")]
    described = {row[0]: row[1] for row in sql("DESCRIBE EXTENDED {db}.big")}
    assert (described["Type"], described["Comment"]) == ("VIEW", "why")
    assert described["View Text"] == "SELECT id FROM viewed.db.t"
    assert sql("SHOW COLUMNS IN {db}.big") == [("n",)]
    assert spark.table("viewed.db.big").count() == 2
    assert spark.catalog.tableExists("viewed.db.big")
    assert not spark.catalog.tableExists("viewed.db.nope")
    assert "SCHEMA_NOT_FOUND" in refusal(sql, "SHOW VIEWS IN viewed.nope")


@EACH
@pytest.mark.slow
def test_a_name_is_that_of_a_table_or_of_a_view(sql: Sql, viewed: Catalog) -> None:
    sql("CREATE VIEW {db}.v AS SELECT 1 AS one")
    for statement, said in {
        "CREATE VIEW {db}.v AS SELECT 2": "TABLE_OR_VIEW_ALREADY_EXISTS",
        "CREATE VIEW {db}.t AS SELECT 2": "TABLE_OR_VIEW_ALREADY_EXISTS",
        "CREATE OR REPLACE VIEW {db}.t AS SELECT 2": "EXPECT_VIEW_NOT_TABLE",
        "CREATE TABLE {db}.v (id INT)": "TABLE_OR_VIEW_ALREADY_EXISTS",
        "CREATE TABLE {db}.v AS SELECT 1 AS id": "TABLE_OR_VIEW_ALREADY_EXISTS",
        "CREATE TABLE {db}.v LIKE {db}.t": "TABLE_OR_VIEW_ALREADY_EXISTS",
        "CREATE OR REPLACE TABLE {db}.v (id INT)": "is a view",
        "REPLACE TABLE {db}.v (id INT)": "TABLE_OR_VIEW_NOT_FOUND",
        "ALTER TABLE {db}.t RENAME TO db.v": "TABLE_OR_VIEW_ALREADY_EXISTS",
        "ALTER VIEW {db}.v RENAME TO db.t": "VIEW_ALREADY_EXISTS",
        "DROP VIEW {db}.t": "WRONG_COMMAND_FOR_OBJECT_TYPE",
        "DROP TABLE {db}.v": "WRONG_COMMAND_FOR_OBJECT_TYPE",
        "INSERT INTO {db}.v VALUES (1)": "TABLE_OR_VIEW_NOT_FOUND",
        "DELETE FROM {db}.v": "TABLE_OR_VIEW_NOT_FOUND",
        "TRUNCATE TABLE {db}.v": "EXPECT_TABLE_NOT_VIEW",
        "ALTER TABLE {db}.v ADD COLUMN x INT": "EXPECT_TABLE_NOT_VIEW",
        "SELECT * FROM {db}.v VERSION AS OF 1": "TABLE_OR_VIEW_NOT_FOUND",
        "DROP DATABASE {db}": "SCHEMA_NOT_EMPTY",
        "CREATE VIEW viewed.nope.v AS SELECT 1": "SCHEMA_NOT_FOUND",
        "CREATE VIEW {db}.`t$files` AS SELECT 1": "names with '$'",
        "CREATE VIEW {db}.x AS SELECT INTERVAL '1' DAY AS i": "type interval day",
        "CREATE VIEW {db}.x TBLPROPERTIES ('view.schemaMode' = 'BINDING') AS SELECT 1": "without 'view.'",
        "CREATE VIEW {db}.x DEFAULT COLLATION UNICODE AS SELECT 1": "write COLLATE in its query",
    }.items():
        assert said in refusal(sql, statement), statement
    sql("CREATE TABLE IF NOT EXISTS {db}.v (id INT)")
    sql("CREATE VIEW IF NOT EXISTS {db}.t AS SELECT 9")
    assert (viewed.list_tables("db"), viewed.list_views("db")) == (["t"], ["v"])
    assert sql("SELECT * FROM {db}.v") == [(1,)]
    viewed.drop_table("db.t")
    assert "SCHEMA_NOT_EMPTY" in refusal(sql, "DROP DATABASE {db}")
    sql("DROP DATABASE {db} CASCADE")
    assert "db" not in viewed.list_databases()


@EACH
def test_columns_of_a_view_keep_their_types(sql: Sql, viewed: Catalog) -> None:
    sql("""CREATE VIEW {db}.v AS SELECT
           TIMESTAMP'2024-01-01 10:00:00' AS ltz, TIMESTAMP_NTZ'2024-01-01 10:00:00' AS ntz,
           CAST(1 AS DECIMAL(12, 3)) AS d, named_struct('a', 1, 'b', array('x')) AS s, map('k', 1Y) AS m, X'00' AS b,
           1 AS `Upper, and comma`""")
    types = [row[1] for row in sql("DESCRIBE {db}.v")]
    wanted = ["timestamp", "timestamp_ntz", "decimal(12,3)", "struct<a:int,b:array<string>>", "map<string,tinyint>"]
    assert types == [*wanted, "binary", "int"]
    query = (
        "SELECT unix_seconds(ltz), CAST(ntz AS STRING), d * 2 = 2, s.b[0], m['k'], b, `Upper, and comma` FROM {db}.v"
    )
    assert sql(query) == [(1704103200, "2024-01-01 10:00:00", True, "x", 1, b"\0", 1)]
    assert not viewed.view("db.v").fields[0].type.nullable


@pytest.mark.slow
def test_unqualified_names_are_those_of_where_the_view_was_created(spark: Any, sql: Sql, viewed: Catalog) -> None:
    """Also in a session that knows the catalog under another name."""
    viewed.create_database("other")
    put(viewed.create_table("other.t", COLUMNS), [{"id": 9, "v": "z"}])
    spark.catalog.setCurrentCatalog("viewed")
    try:
        spark.catalog.setCurrentDatabase("db")
        sql("CREATE VIEW here AS SELECT id FROM t WHERE id = 1")
        sql("CREATE VIEW other.there AS SELECT t.id, o.id AS o FROM t JOIN other.t AS o ON t.id < 2")
        spark.catalog.setCurrentDatabase("other")
        assert sql("SELECT * FROM db.here") == [(1,)]
        assert sql("SELECT * FROM there") == [(1, 9)]
    finally:
        spark.catalog.setCurrentCatalog("spark_catalog")
    assert not [name for name in viewed.view("db.here").options if "Namespace" in name]
    second = spark.newSession()
    forebay.spark.attach(second, "elsewhere", paimon=dict(viewed._api.caller_options))  # type: ignore[attr-defined]
    assert [tuple(row) for row in second.sql("SELECT * FROM elsewhere.db.here").collect()] == [(1,)]
    assert [tuple(row) for row in second.sql("SELECT * FROM elsewhere.other.there").collect()] == [(1, 9)]


def test_a_view_is_read_with_the_settings_that_it_was_created_with(spark: Any, sql: Sql) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        sql("CREATE VIEW {db}.lenient AS SELECT CAST(v AS INT) AS n FROM {db}.t")
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert sql("SELECT * FROM {db}.lenient") == [(None,), (None,)]
    sql("CREATE VIEW {db}.strict AS SELECT CAST(v AS INT) AS n FROM {db}.t")
    assert "CAST_INVALID_INPUT" in refusal(sql, "SELECT * FROM {db}.strict")


def test_a_view_has_its_columns_as_its_table_changes(sql: Sql, viewed: Catalog) -> None:
    sql("CREATE VIEW {db}.fixed AS SELECT * FROM {db}.t")
    sql("ALTER TABLE {db}.t ADD COLUMN more INT")
    assert sql("SELECT * FROM {db}.fixed WHERE id = 1") == [(1, "a")]
    for mode in ("EVOLUTION", "TYPE EVOLUTION"):
        refused = refusal(sql, f"CREATE OR REPLACE VIEW {{db}}.fixed WITH SCHEMA {mode} AS SELECT * FROM {{db}}.t")
        assert f"cannot have WITH SCHEMA {mode}" in refused
        assert f"cannot have WITH SCHEMA {mode}" in refusal(sql, f"ALTER VIEW {{db}}.fixed WITH SCHEMA {mode}")
        options = {"view.schemaMode": mode}  # of Spark's own catalog
        viewed.create_view("db.other", COLUMNS, "SELECT * FROM db.t", options=options, replace=True)
        assert sql("SELECT * FROM {db}.other WHERE id = 1") == [(1, "a")]


def test_views_of_other_software_are_read(rest: RestServer, sql: Sql, viewed: Catalog) -> None:
    """Their text for Spark, or the one for any engine; unqualified names are of the view's database."""
    viewed.create_view("db.plain", [("n", "BIGINT"), ("s", "STRING")], "SELECT id, v FROM t -- of this database;")
    assert sql("SELECT s, n FROM {db}.plain ORDER BY n") == [("a", 1), ("b", 2)]
    dialects = {"flink": "no SQL of Spark", "spark": "WITH x AS (SELECT id AS n FROM db.t) SELECT n FROM x;"}
    viewed.create_view("db.two", [("n", "BIGINT")], "SELECT `nope`", dialects=dialects, comment="c", options={"a": "b"})
    assert sorted(sql("SELECT * FROM {db}.two")) == [(1,), (2,)]
    sql("ALTER VIEW {db}.two SET TBLPROPERTIES ('more' = '1')")
    assert viewed.view("db.two").dialects == dialects  # the query is what it was, for all engines
    assert viewed.view("db.two").options == {"a": "b", "more": "1"}
    sql("ALTER VIEW {db}.two AS SELECT 5L AS n")
    assert viewed.view("db.two").dialects == {"spark": "SELECT 5L AS n"}
    assert viewed.view("db.two").query == "SELECT 5L AS n"
    viewed.create_view("db.bad", [("n", "INT")], "no SQL of Spark")
    refused = refusal(sql, "SELECT * FROM {db}.bad")
    assert "PARSE_SYNTAX_ERROR" in refused, refused
    assert "VIEW viewed.db.bad" in refused, refused
    rest.views["db.broken"] = {"fields": []}
    assert "view 'db.broken' has no valid definition" in refusal(sql, "SELECT * FROM {db}.broken")
    sql("DROP VIEW {db}.broken")
    assert "VIEW_NOT_FOUND" in refusal(sql, "DROP VIEW {db}.broken")
    viewed.create_view("db.gaps", [("n", "INT")], "SELECT 1", options={"view.query.out.numCols": "2"})
    assert "'view.query.out.numCols' = '2'" in refusal(sql, "SELECT * FROM {db}.gaps")


def test_a_table_is_found_by_one_request(rest: RestServer, sql: Sql) -> None:
    sql("SELECT * FROM {db}.t")
    before = len(rest.requests)
    sql("SELECT * FROM {db}.t")
    assert rest.requests[before:] == [("GET", "/v1/p+x/databases/db/tables/t")]


def test_sessions_that_spark_derives_have_views(spark: Any, sql: Sql) -> None:
    sql("CREATE VIEW {db}.v AS SELECT id FROM {db}.t WHERE id > 1")
    derived = spark.newSession()
    assert [tuple(row) for row in derived.sql("SELECT * FROM viewed.db.v").collect()] == [(2,)]
    derived.sql("CREATE VIEW viewed.db.w AS SELECT 3 AS n")
    assert [row.viewName for row in derived.sql("SHOW VIEWS IN viewed.db").collect()] == ["v", "w"]
    assert sql("SELECT * FROM {db}.w") == [(3,)]


def test_servers_open_catalogs_with_views_by_configuration(
    spark: Any, rest: RestServer, viewed: Catalog, tmp_path: Path
) -> None:
    settings = {f"paimon.{name}": value for name, value in rest.options.items()}
    lines = dict(line.split(" ", 1) for line in write_setup(spark, tmp_path, "shop", settings).read_text().splitlines())
    assert lines["spark.sql.catalog.shop"] == "org.forebay.SparkViewCatalog"
    viewed.create_view("db.v", [("n", "INT")], "SELECT 7")
    served = spark.newSession()
    for name, value in lines.items():
        if name.startswith("spark.sql.catalog.shop"):
            served.conf.set(name, value)
    assert [tuple(row) for row in served.sql("SELECT * FROM shop.db.v").collect()] == [(7,)]
    served.conf.set("spark.sql.catalog.plain", "org.forebay.SparkViewCatalog")
    served.conf.set("spark.sql.catalog.plain.warehouse", str(tmp_path / "lake"))
    with pytest.raises(Exception, match=r"spark\.sql\.catalog\.plain to org\.forebay\.SparkCatalog"):
        served.sql("SHOW TABLES IN plain.db")


def test_a_server_without_views_shows_its_tables(rest: RestServer, sql: Sql) -> None:
    rest.fail = lambda method, path: 501 if "/views" in path else None
    try:
        assert [row[1] for row in sql("SHOW TABLES IN {db}")] == ["t"]
        assert "TABLE_OR_VIEW_NOT_FOUND" in refusal(sql, "SELECT * FROM {db}.nope")
        assert "501" in refusal(sql, "CREATE VIEW {db}.v AS SELECT 1")
    finally:
        rest.fail = lambda method, path: None


# ---- beside a cluster ------------------------------------------------------------------------------------------------


@pytest.fixture
def mixed(spark: Any, server: EmbeddedServer, viewed: Catalog, database: str) -> Sql:
    """Run a statement; `{db}` in it is a database of the cluster, in a catalog of the cluster and the lake."""
    options = dict(viewed._api.caller_options)  # type: ignore[attr-defined]
    forebay.spark.attach(spark, "both_viewed", bootstrap_servers=server.bootstrap_servers, paimon=options)

    def run(statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(statement.replace("{db}", f"both_viewed.{database}")).collect()]

    return run


def test_views_of_the_lake_read_tables_of_the_cluster(spark: Any, mixed: Sql, viewed: Catalog, database: str) -> None:
    mixed("CREATE TABLE {db}.live (id BIGINT NOT NULL, n INT) TBLPROPERTIES ('primary.key' = 'id', 'bucket.num' = '1')")
    mixed("INSERT INTO {db}.live VALUES (1, 10), (2, 20)")
    mixed("CREATE VIEW {db}.v AS SELECT t.id, t.v, l.n FROM {db}.live l JOIN both_viewed.db.t USING (id)")
    assert mixed("SELECT * FROM {db}.v WHERE n > 10") == [(2, "b", 20)]
    assert "nope" in refusal(lambda t: spark.read.option("nope", 1).table(t).collect(), f"both_viewed.{database}.live")
    if SPARK >= (4, 3):  # which tells a catalog of options that change the columns
        deletes = spark.readStream.option("scan.delete.behavior", "include").table(f"both_viewed.{database}.live")
        assert deletes.columns[0] == "_change_type"
    mixed("UPDATE {db}.live SET n = 30 WHERE id = 2")
    assert mixed("SELECT n FROM {db}.v WHERE id = 2") == [(30,)]
    assert [row[1] for row in mixed("SHOW VIEWS IN {db}")] == ["v"]
    assert [row[1] for row in mixed("SHOW TABLES IN {db}")] == ["live", "v"]
    assert viewed.list_views(database) == ["v"]
    for statement, said in {
        "CREATE VIEW {db}.live AS SELECT 1": "TABLE_OR_VIEW_ALREADY_EXISTS",
        "CREATE OR REPLACE VIEW {db}.live AS SELECT 1": "EXPECT_VIEW_NOT_TABLE",
        f"ALTER VIEW {{db}}.v RENAME TO {database}.live": "VIEW_ALREADY_EXISTS",
        "CREATE TABLE {db}.v (id INT)": "TABLE_OR_VIEW_ALREADY_EXISTS",
        "CREATE TABLE {db}.v AS SELECT 1 AS id": "TABLE_OR_VIEW_ALREADY_EXISTS",
        "CREATE OR REPLACE TABLE {db}.v (id INT)": "is a view",
        "DROP TABLE {db}.v": "WRONG_COMMAND_FOR_OBJECT_TYPE",
    }.items():
        assert said in refusal(mixed, statement), statement
    mixed("DROP TABLE {db}.live")
    assert "SCHEMA_NOT_EMPTY" in refusal(mixed, "DROP DATABASE {db}")
    mixed("DROP DATABASE {db} CASCADE")
    assert viewed.list_databases() == ["db"]
