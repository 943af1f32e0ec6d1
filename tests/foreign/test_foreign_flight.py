"""Programs that others wrote, over `forebay flight` and our plugins: JDBC's driver, dbt and Dagster.

The last two have virtual environments of their own in the cache of the exams, as their requirements are many, and find
Forebay by its sources.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path

import pytest

import forebay
import forebay.paimon
from forebay.flight.server import FlightSqlServer
from forebay.inprocess import EmbeddedConnection
from tests.java_programs import ExamUnavailable, class_path, compiled, digest_of, entry, java_command, maven_jars, run

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
JAVA = Path(__file__).parent / "java" / "flight"
OURS = ("duckdb", "fastavro", "google-crc32c", "lmdb", "numpy", "prometheus-client", "pyarrow>=23", "rich", "sqlglot")
REVENUE = [
    {"item": 1, "name": "tea", "orders": 2, "amount": Decimal("6.50")},
    {"item": 2, "name": "rum", "orders": 1, "amount": Decimal("3.00")},
]


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    catalog = forebay.paimon.Catalog.open(str(tmp_path / "lake"))
    catalog.create_database("shop")
    items = catalog.create_table("shop.items", {"item": "INT", "name": "STRING"}, primary_key="item")
    items.upsert([{"item": 1, "name": "tea"}, {"item": 2, "name": "rum"}])
    return str(tmp_path / "lake")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[EmbeddedConnection]:
    with forebay.embedded(tmp_path / "data") as connection:
        orders = {"id": "BIGINT", "item": "INT", "amount": "DECIMAL(10, 2)"}
        connection.create_table("fluss.orders", orders, primary_key="id")
        yield connection


def with_orders(shop: EmbeddedConnection) -> EmbeddedConnection:
    shop.sql("INSERT INTO fluss.orders VALUES (1, 1, 2.50), (2, 2, 3.00), (3, 1, 4.00)")
    return shop


def with_revenue(shop: EmbeddedConnection) -> EmbeddedConnection:
    columns = {"item": "INT", "name": "STRING", "orders": "BIGINT", "amount": "DECIMAL(10, 2)"}
    shop.create_table("fluss.revenue", columns, primary_key="item")
    return shop


def rows(shop: EmbeddedConnection, table: str) -> list[dict[str, object]]:
    return sorted(shop.table(table).scan().to_arrow().to_pylist(), key=lambda row: next(iter(row.values())))


def environment(name: str, *packages: str) -> Path:
    """The interpreter of a virtual environment with some packages, and with what Forebay needs."""

    def build(folder: Path) -> None:
        run([sys.executable, "-m", "venv", folder / "venv"], "create a virtual environment")
        python = folder / "venv" / "bin" / "python"
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        pip = [python, "-m", "pip"] if uv is None else [uv, "pip"]
        target = [] if uv is None else ["--python", python]
        # Of this part of dbt-core some releases have no wheels, and need a compiler of Rust.
        wheels = "--only-binary=dbt-core-experimental-parser"
        run([*pip, "install", "--quiet", wheels, *target, *packages, *OURS], f"install {', '.join(packages)}")

    try:
        found = entry(name, digest_of(sys.version, *packages, *OURS), build)
    except ExamUnavailable as e:
        pytest.skip(str(e))
    return found / "venv" / "bin" / "python"


def told(command: list[object], folder: Path, shop: EmbeddedConnection, more: Mapping[str, str]) -> str:
    """What a program prints, which has to succeed."""
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "FOREBAY_BOOTSTRAP_SERVERS": shop.bootstrap_servers,
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
        **more,
    }
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_jdbc_finds_tables_reads_and_inserts(shop: EmbeddedConnection, warehouse: str) -> None:
    try:
        jars = class_path(maven_jars(JAVA / "pom.xml", ["flight-sql-jdbc-driver"], "flight-jdbc", "JDBC's driver"))
        classes = compiled([JAVA / "FlightSqlClient.java"], jars, "flight-classes")
    except ExamUnavailable as e:
        pytest.skip(str(e))
    with_orders(shop).create_table("fluss.jdbc", {"id": "BIGINT", "note": "STRING", "amount": "DECIMAL(10, 2)"})
    endpoint = FlightSqlServer(shop, {"lake": warehouse}, allow_changes=True)
    try:
        url = f"jdbc:arrow-flight-sql://127.0.0.1:{endpoint.port}/?useEncryption=false&user=any&password=word"
        options = ["--add-opens=java.base/java.nio=ALL-UNNAMED"]
        command = [*java_command(classes, jars, "FlightSqlClient", 512, options), url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    finally:
        endpoint.stop()
    assert done.stdout.splitlines() == [
        'product Forebay "',
        "catalogs: lake, live",
        "schemas: shop",
        "tables: orders TABLE",
        "columns: id BIGINT NO, item INT YES, amount DECIMAL(10, 2) YES",
        "key: id",
        "join: rum 3.00, tea 6.50",
        "inserted 1",
        'refused Error while executing SQL "SELECT * FROM fluss.nope": there is no table fluss.nope '
        "[TABLE_NOT_EXIST]. Detail: Failed",
        "prepared: 9 batch, 10 batch",
    ], done.stderr
    assert [row["id"] for row in rows(shop, "fluss.jdbc")] == [7, 8, 9, 10]


def test_dbt_on_duckdb_reads_live_tables_and_lakes_and_writes_back(
    shop: EmbeddedConnection, warehouse: str, tmp_path: Path
) -> None:
    python = environment("dbt-duckdb", "dbt-core<1.13", "dbt-duckdb>=1.11,<1.12")
    with_revenue(with_orders(shop))
    project = shutil.copytree(ROOT / "examples" / "dbt-duckdb", tmp_path / "project")
    more = {"FOREBAY_WAREHOUSE": warehouse, "TMPDIR": str(tmp_path)}
    build = [python, "-c", "from dbt.cli.main import cli; cli()", "--no-use-colors", "build"]
    assert "PASS=4 WARN=0 ERROR=0" in told([*build, "--profiles-dir", "."], project, shop, more)
    assert rows(shop, "fluss.revenue") == REVENUE
    shop.sql("INSERT INTO fluss.orders VALUES (4, 2, 10.00)")
    told([*build, "--profiles-dir", "."], project, shop, more)
    assert rows(shop, "fluss.revenue")[1]["amount"] == Decimal("13.00")


@pytest.mark.spark
def test_dbt_on_spark_creates_and_extends_live_tables(shop: EmbeddedConnection, tmp_path: Path) -> None:
    import pyspark

    python = environment("dbt-spark", "dbt-core<1.13", "dbt-spark>=1.11,<1.12", f"pyspark=={pyspark.__version__}")
    with_orders(shop)
    project = shutil.copytree(ROOT / "examples" / "dbt-spark", tmp_path / "project")
    more = {"SPARK_CONF_DIR": str(project / "conf"), "PYSPARK_PYTHON": str(python)}
    told(
        [python, "-m", "forebay", "spark-setup", "conf", "--bootstrap-servers", shop.bootstrap_servers],
        project,
        shop,
        {},
    )
    with (project / "conf" / "spark-defaults.conf").open("a") as settings:
        settings.write("spark.sql.defaultCatalog forebay\n")
    dbt = [python, "-c", "from dbt.cli.main import cli; cli()", "--no-use-colors", "run", "--profiles-dir", "."]
    told(dbt, project, shop, more)
    assert [row["amount"] for row in rows(shop, "fluss.revenue")] == [Decimal("6.50"), Decimal("3.00")]
    shop.sql("INSERT INTO fluss.orders VALUES (4, 2, 10.00)")
    told(dbt, project, shop, more)
    assert [row["amount"] for row in rows(shop, "fluss.revenue")] == [Decimal("6.50"), Decimal("13.00")]
    assert [row["id"] for row in rows(shop, "fluss.seen")] == [1, 2, 3, 4]


def test_dagster_materializes_assets_in_live_tables(shop: EmbeddedConnection, warehouse: str, tmp_path: Path) -> None:
    python = environment("dagster", "dagster>=1.13,<1.14")
    with_revenue(shop)
    program = ROOT / "examples" / "dagster" / "shop.py"
    more = {"FOREBAY_WAREHOUSE": warehouse, "DAGSTER_HOME": str(tmp_path)}
    assert "best seller: tea" in told([python, program], tmp_path, shop, more)
    assert rows(shop, "fluss.revenue") == REVENUE
