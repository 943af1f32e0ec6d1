"""Java Paimon and we share catalogs: a Hive Metastore, which Spark reads as well, REST servers, and JDBC with locks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.metadata import types
from forebay.paimon.catalog.catalog import Catalog
from forebay.paimon.catalog.jdbc import JdbcCatalog
from forebay.paimon.catalog.rest import RestCatalog
from forebay.paimon.store import schema_changes as changes
from tests.paimon.catalog.conftest import drop_all
from tests.paimon.catalog.java_catalogs import JavaCatalog, JavaCatalogs, JavaRefusal
from tests.paimon.catalog.metastore_server import ExamUnavailable, MetastoreServer
from tests.paimon.catalog.rest_server import RestServer
from tests.paimon.lake import altered, put, rows_of
from tests.patience import PATIENCE

pytestmark = [pytest.mark.foreign, pytest.mark.slow]

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture(scope="module")
def java() -> Iterator[JavaCatalogs]:
    try:
        catalogs = JavaCatalogs()
    except ExamUnavailable as reason:
        pytest.skip(f"no Java Paimon here: {reason}")
    yield catalogs
    catalogs.close()


@pytest.fixture(params=["hive", "hive, locked", "jdbc"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    lake = {"warehouse": str(tmp_path / "lake"), "lock.enabled": str("locked" in request.param).lower()}
    if request.param == "jdbc":
        return {**lake, "metastore": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/catalog.db", "lock.enabled": "true"}
    server: MetastoreServer = request.getfixturevalue("metastore")
    return {**lake, "metastore": "hive", "uri": server.uri}


@pytest.fixture
def javas(java: JavaCatalogs, options: dict[str, str]) -> JavaCatalog:
    # Before ours: where the tables of a JDBC catalog are there already, Java leaves a query open, which would keep all
    # writers out of a file of SQLite's.
    return java.open({**options, "lock-acquire-timeout": "2 s", "lock-check-max-sleep": "50 ms"})


@pytest.fixture
def ours(options: dict[str, str], javas: JavaCatalog) -> Iterator[Catalog]:
    catalog = Catalog.open(options)
    yield catalog
    drop_all(catalog)


def test_java_uses_the_tables_that_we_make(ours: Catalog, javas: JavaCatalog) -> None:
    ours.create_database("db")
    put(ours.create_table("db.t", COLUMNS, options={"write-only": "true"}), [{"id": 1, "v": "ours"}])
    assert (javas.ask("tables", "db"), javas.ask("read", "db.t")) == ("t", "1=ours")
    javas.ask("write", "db.t", "2", "javas")
    javas.ask("add_column", "db.t", "n")
    assert ours.table("db.t").schema.names == ("id", "v", "n")
    javas.ask("rename", "db.t", "db.u")
    assert ours.list_tables("db") == ["u"]
    assert rows_of(ours.table("db.u"), ["id", "v"]) == [(1, "ours"), (2, "javas")]
    javas.ask("drop", "db.u")
    assert ours.list_tables("db") == []
    ours.create_table("db.u", COLUMNS)  # nothing of the old one is in the way


def test_we_use_the_tables_that_java_makes(ours: Catalog, javas: JavaCatalog) -> None:
    javas.ask("create_database", "theirs")
    javas.ask("create", "theirs.t", "bucket=2", "bucket-key=id")
    javas.ask("write", "theirs.t", "1", "javas")
    assert "theirs" in ours.list_databases()
    table = ours.table("theirs.t")
    assert (ours.list_tables("theirs"), table.context.options.bucket, rows_of(table)) == (["t"], 2, [(1, "javas")])
    put(table, [{"id": 2, "v": "ours"}])
    altered(ours.table("theirs.t"), [changes.AddColumn(("n",), types.int_()), changes.SetOption("write-only", "true")])
    assert javas.ask("columns", "theirs.t") == "id v n"
    assert javas.ask("options", "theirs.t", "write-only") == "true"
    ours.rename_table("theirs.t", "theirs.u")
    assert javas.ask("read", "theirs.u") == "1=javas 2=ours"
    ours.drop_table("theirs.u")
    assert javas.ask("tables", "theirs") == ""
    javas.ask("create", "theirs.u")  # nothing of the old one is in the way


@pytest.mark.parametrize("options", ["hive, locked", "jdbc"], indirect=True)
def test_java_does_not_write_while_we_hold_the_lock(ours: Catalog, javas: JavaCatalog) -> None:
    ours.create_database("db")
    table = ours.create_table("db.t", COLUMNS)
    lock = ours.lock_of("db.t") if isinstance(ours, JdbcCatalog) else getattr(table._lock, "_lock", None)
    assert lock is not None
    with lock.hold(), pytest.raises(JavaRefusal, match=r"(?i)lock"):
        javas.ask("set_option", "db.t", "write-only", "true")
    javas.ask("set_option", "db.t", "write-only", "true")
    assert ours.table("db.t").context.options.mapping["write-only"] == "true"


_SPARK = """
import sys
from pyspark.sql import SparkSession
uri, warehouse = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.hadoop.hive.metastore.uris", uri).config("spark.sql.warehouse.dir", warehouse)
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .enableHiveSupport().getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
print([row.tableName for row in spark.sql("SHOW TABLES IN db").collect()])
spark.sql("CREATE TABLE db.sparks (a INT) STORED AS PARQUET")
spark.stop()
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("options", ["hive"], indirect=True)
def test_spark_lists_our_tables_and_we_leave_its_tables_alone(
    ours: Catalog, options: dict[str, str], tmp_path: Path
) -> None:
    ours.create_database("db")
    ours.create_table("db.t", COLUMNS, primary_key=["id"], options={"bucket": "1"})
    done = subprocess.run(
        [sys.executable, "-c", _SPARK, options["uri"], str(tmp_path / "spark")],
        capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE, env={**os.environ, "PYTHONWARNINGS": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "['t']"
    assert ours.list_tables("db") == ["t"]


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[RestServer]:
    made = RestServer(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["hive", "rest"])
def with_views(
    request: pytest.FixtureRequest, java: JavaCatalogs, rest: RestServer, tmp_path: Path
) -> Iterator[tuple[Catalog, JavaCatalog]]:
    """Our catalog with database `db`, and Java's of the same options."""
    options = rest.options
    if request.param == "hive":
        server: MetastoreServer = request.getfixturevalue("metastore")
        options = {"metastore": "hive", "uri": server.uri, "warehouse": f"{tmp_path}/lake"}
    catalog = Catalog.open(options)
    catalog.create_database("db")
    yield catalog, java.open(options)
    drop_all(catalog)


def test_java_uses_the_views_that_we_make(with_views: tuple[Catalog, JavaCatalog]) -> None:
    ours, javas = with_views
    ours.create_view("db.v", [("id", "INT"), ("name", "STRING")], "SELECT 1, 'a'", comment="ours", options={"a": "b"})
    assert javas.ask("views", "db") == "v"
    assert javas.ask("view", "db.v") == "ROW<`id` INT, `name` STRING> NOT NULL ours SELECT 1, 'a'"
    ours.create_view("db.v", [("id", "INT")], "SELECT 2", replace=True)
    assert javas.ask("view", "db.v") == "ROW<`id` INT> NOT NULL none SELECT 2"
    ours.create_view("db.v", [("id", "INT")], "SELECT 2", comment="new", options={"c": "d"}, replace=True)
    assert javas.ask("view", "db.v") == "ROW<`id` INT> NOT NULL new SELECT 2"
    javas.ask("rename_view", "db.v", "db.w")
    assert (ours.list_views("db"), ours.view("db.w").options) == (["w"], {"c": "d"})
    javas.ask("drop_view", "db.w")
    assert ours.list_views("db") == []


def test_we_use_the_views_that_java_makes(with_views: tuple[Catalog, JavaCatalog]) -> None:
    ours, javas = with_views
    dialects = ["spark=SELECT 1L AS n"] if isinstance(ours, RestCatalog) else []
    javas.ask("create_view", "db.v", "SELECT 1L AS n", *dialects)
    view = ours.view("db.v")
    assert (view.query_for("spark"), view.comment, view.options) == ("SELECT 1L AS n", "of Java", {})
    assert [(f.name, f.type) for f in view.fields] == [("n", types.bigint())]
    with pytest.raises(JavaRefusal, match=r"(?i)exist"):
        javas.ask("create_view", "db.v", "SELECT 2")
    ours.rename_view("db.v", "db.w")
    assert javas.ask("views", "db") == "w"
    ours.drop_view("db.w")
    assert javas.ask("views", "db") == ""
