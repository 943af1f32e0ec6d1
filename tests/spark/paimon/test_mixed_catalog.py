"""One catalog with two sides: tables of a cluster, and tables of a lake."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import forebay.spark
from forebay.client.connection import Connection
from forebay.paimon import Catalog
from forebay.server.embedded import EmbeddedServer
from tests.spark.releases import needs

pytestmark = pytest.mark.spark
LIKE = needs(4, 2, "CREATE TABLE LIKE for tables of catalogs")

Sql = Callable[[str], list[tuple[Any, ...]]]

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def both(spark: Any, server: EmbeddedServer, warehouse: Path) -> Any:
    """The shared session, with catalog `both` over the test server and the test's warehouse."""
    return forebay.spark.attach(spark, "both", bootstrap_servers=server.bootstrap_servers, warehouse=str(warehouse))


@pytest.fixture
def name(connection: Connection, lake_catalog: Catalog) -> Iterator[str]:
    """A database name that neither side has yet; dropped from both at the end."""
    made = f"mixed{next(_numbers)}"
    yield made
    connection.drop_database(made, ignore_if_not_exists=True, cascade=True)
    lake_catalog.drop_database(made, ignore_if_not_exists=True, cascade=True)


@pytest.fixture
def sql(both: Any, name: str) -> Sql:
    """Run a statement; `{db}` in it is the test's database."""

    def run(statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in both.sql(statement.replace("{db}", f"both.{name}")).collect()]

    return run


def refusal(sql: Sql, statement: str) -> str:
    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        sql(statement)
    return str(caught.value)


def test_the_provider_says_where_a_table_goes(
    both: Any, sql: Sql, name: str, connection: Connection, lake_catalog: Catalog
) -> None:
    sql("CREATE DATABASE {db} COMMENT 'of both'")
    sql("CREATE TABLE {db}.stream (id INT, v STRING) TBLPROPERTIES ('primary.key' = 'id', 'bucket.num' = '1')")
    sql("CREATE TABLE {db}.lake_one (id INT, v STRING DEFAULT 'x') USING paimon TBLPROPERTIES ('bucket' = '-1')")
    both.sql("SELECT 1 AS id").writeTo(f"both.{name}.lake_two").using("paimon").create()
    assert connection.list_tables(name) == ["stream"]
    assert lake_catalog.list_tables(name) == ["lake_one", "lake_two"]
    assert [row[1] for row in sql("SHOW TABLES IN {db}")] == ["lake_one", "lake_two", "stream"]
    sql("INSERT INTO {db}.stream VALUES (1, 'a')")
    sql("INSERT INTO {db}.lake_one SELECT id + 1, v FROM {db}.stream")
    assert sql("SELECT s.id, l.id, l.v FROM {db}.stream s JOIN {db}.lake_one l USING (v)") == [(1, 2, "a")]
    assert sql("SELECT snapshot_id FROM {db}.`lake_one$snapshots`") == [(1,)]
    assert sql("SELECT bucket FROM {db}.`stream$buckets`") == [(0,)]
    assert sql("SELECT id FROM {db}.lake_one VERSION AS OF 1") == [(2,)]


def test_statements_find_the_table_where_it_is(sql: Sql, name: str, lake_catalog: Catalog) -> None:
    sql("CREATE DATABASE {db}")
    sql("CREATE TABLE {db}.l USING paimon AS SELECT 1 AS id")
    sql("ALTER TABLE {db}.l ADD COLUMN v INT")
    sql(f"ALTER TABLE {{db}}.l RENAME TO {name}.m")
    sql("CREATE OR REPLACE TABLE {db}.m AS SELECT id + 1 AS id FROM {db}.m")
    assert sql("SELECT id FROM {db}.m") == [(2,)]
    assert lake_catalog.list_tables(name) == ["m"]
    sql("DROP TABLE {db}.m")
    assert sql("SHOW TABLES IN {db}") == []
    assert "NOT_FOUND" in refusal(sql, "DROP TABLE {db}.m")
    assert "NOT_FOUND" in refusal(sql, "SELECT * FROM {db}.m")


def test_a_name_is_one_table(sql: Sql, name: str) -> None:
    sql("CREATE DATABASE {db}")
    sql("CREATE TABLE {db}.s (id INT)")
    sql("CREATE TABLE {db}.l (id INT) USING paimon")
    assert "ALREADY_EXISTS" in refusal(sql, "CREATE TABLE {db}.s (id INT) USING paimon")
    assert "in the cluster already" in refusal(sql, "CREATE OR REPLACE TABLE {db}.s USING paimon AS SELECT 1 AS id")
    assert "in the lake already" in refusal(sql, "CREATE OR REPLACE TABLE {db}.l USING forebay AS SELECT 1 AS id")
    assert "ALREADY_EXISTS" in refusal(sql, f"ALTER TABLE {{db}}.l RENAME TO {name}.s")
    assert "cannot be renamed" in refusal(sql, f"ALTER TABLE {{db}}.s RENAME TO {name}.t")


def test_databases_are_those_of_both(sql: Sql, name: str, connection: Connection, lake_catalog: Catalog) -> None:
    lake_catalog.create_database(name)
    assert (name,) in sql("SHOW DATABASES IN both")
    assert "ALREADY_EXISTS" in refusal(sql, "CREATE DATABASE {db}")
    assert sql("SHOW TABLES IN {db}") == []
    sql("CREATE TABLE {db}.s (id INT)")
    assert connection.list_tables(name) == ["s"], "the database was made in the cluster, too"
    sql("CREATE TABLE {db}.l (id INT) USING paimon")
    assert "NOT_EMPTY" in refusal(sql, "DROP DATABASE {db}")
    assert lake_catalog.list_tables(name) == ["l"]
    sql("DROP DATABASE {db} CASCADE")
    assert name not in lake_catalog.list_databases()
    assert not connection.database_exists(name)
    assert "SCHEMA_NOT_FOUND" in refusal(sql, "CREATE TABLE {db}.s (id INT)")
    assert "SCHEMA_NOT_FOUND" in refusal(sql, "CREATE TABLE {db}.nope.s (id INT) USING paimon")
    assert "SCHEMA_NOT_FOUND" in refusal(sql, "SHOW TABLES IN {db}")


@LIKE
def test_a_copy_is_made_where_the_table_is(sql: Sql, name: str, connection: Connection, lake_catalog: Catalog) -> None:
    sql("CREATE DATABASE {db}")
    sql("CREATE TABLE {db}.s (id INT)")
    sql("CREATE TABLE {db}.l (id INT) USING paimon")
    sql("CREATE TABLE {db}.s2 LIKE {db}.s")
    sql("CREATE TABLE {db}.l2 LIKE {db}.l")
    assert connection.list_tables(name) == ["s", "s2"]
    assert lake_catalog.list_tables(name) == ["l", "l2"]


def test_a_table_that_is_made_of_a_query_has_no_defaults(sql: Sql) -> None:
    sql("CREATE DATABASE {db}")
    sql("CREATE TABLE {db}.l (id INT, v INT DEFAULT 4) USING paimon")
    sql("CREATE TABLE {db}.s AS SELECT * FROM {db}.l")
    assert [row[0] for row in sql("DESCRIBE {db}.s")] == ["id", "v"]
    assert "DEFAULT" not in sql("SHOW CREATE TABLE {db}.s")[0][0]


@needs(4, 1, "SHOW PROCEDURES")
def test_procedures_are_those_of_both(both: Any, sql: Sql) -> None:
    names = {row[3] for row in sql("SHOW PROCEDURES IN both.sys")}
    assert {"get_cluster_configs", "start_tiering", "compact", "expire_snapshots"} <= names
    assert len(sql("CALL both.sys.get_cluster_configs()")) > 0
    sql("CREATE DATABASE {db}")
    sql("CREATE TABLE {db}.l USING paimon AS SELECT 1 AS id")
    table = sql("SHOW TABLES IN {db}")[0]
    sql(f"CALL both.sys.create_tag(table => '{table[0]}.l', tag => 'first')")
    assert sql("SELECT tag_name FROM {db}.`l$tags`") == [("first",)]
