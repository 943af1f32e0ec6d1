"""Catalogs by configuration alone: what `forebay spark-setup` writes, and a Spark without Python that uses it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

import forebay
from forebay.base.errors import InvalidRequest
from forebay.client.connection import Connection
from forebay.server.embedded import EmbeddedServer
from forebay.spark.jvm.gateway import Jvm
from forebay.spark.jvm.session_state import install_catalog
from forebay.spark.server_setup import write_setup
from forebay.spark.sessions import configured
from tests.patience import PATIENCE, until
from tests.spark.releases import SPARK
from tests.spark.tables import make_table, rows

pytestmark = pytest.mark.spark

SPARK_HOME = Path(pyspark.__file__).parent
SERVER_ENV = {
    **{name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")},
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_NO_DAEMONIZE": "1",
}
"""Of a shell from which servers are started: nothing there says which Python they use."""


def test_the_setup_is_a_jar_and_settings(spark: Any, tmp_path: Path) -> None:
    written = write_setup(spark, tmp_path / "conf", "shop", {"bootstrap.servers": "h:1", "password": "secret"})
    lines = dict(line.split(" ", 1) for line in written.read_text().splitlines())
    assert lines["spark.sql.catalog.shop"] == "org.forebay.SparkCatalog"
    assert lines["spark.sql.catalog.shop.bootstrap.servers"] == "h:1"
    assert written.stat().st_mode & 0o077 == 0
    with zipfile.ZipFile(lines["spark.driver.extraClassPath"]) as jar:
        classes = ["SparkCatalog", "SparkPython"] + ["SparkViewCatalog"] * (SPARK >= (4, 2))
        assert sorted(jar.namelist()) == [f"org/forebay/{name}.class" for name in classes]
        assert all(jar.read(name)[:4] == b"\xca\xfe\xba\xbe" for name in jar.namelist())
    for settings, message in (
        ({"bootstrap_servers": "h:1"}, "no setting spark.sql.catalog.shop"),
        ({"user": " x"}, "user="),
    ):
        with pytest.raises(InvalidRequest, match=message):
            write_setup(spark, tmp_path / "other", "shop", settings)
    assert not (tmp_path / "other").exists()


def test_settings_open_the_catalog_that_attach_does(
    spark: Any, server: EmbeddedServer, connection: Connection, database: str, tmp_path: Path
) -> None:
    make_table(connection, f"{database}.t", ["id"]).upsert(rows(0, 3))
    settings = {"bootstrap.servers": server.bootstrap_servers, "client.retry-timeout": "5s", "python": sys.executable}
    jvm = Jvm.of(spark)
    for more in ({}, {"warehouse": str(tmp_path)}):
        derived = spark.newSession()
        catalog = configured(jvm, "by_settings", {**settings, **more})(derived._jsparkSession)
        install_catalog(jvm, derived._jsparkSession, "by_settings", catalog)
        assert derived.table(f"by_settings.{database}.t").count() == 3


@contextmanager
def serving(folder: Path, command: list[str], **environment: str) -> Iterator[None]:
    """A server of Spark's that runs in a process of its own until the end."""
    with (folder / "server.out").open("w") as out:
        process = subprocess.Popen(
            [*command, "--master", "local[2]", "--properties-file", str(folder / "spark-defaults.conf"),
             "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.catalogImplementation=in-memory"],
            env={**SERVER_ENV, "SPARK_LOG_DIR": str(folder), "SPARK_PID_DIR": str(folder), **environment},
            cwd=folder, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(PATIENCE)


def until_it_listens(port: int, folder: Path) -> None:
    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    until(listens, lambda: (folder / "server.out").read_text()[-3000:], 0.25)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Connection]:
    """A server with the table `db.t`, and in `tmp_path` what Spark needs for it as the catalog `shop`."""
    with forebay.embedded(tmp_path / "data") as server:
        server.create_database("db")
        make_table(server, "db.t", ["id"]).upsert(rows(0, 5))
        command = [sys.executable, "-m", "forebay", "spark-setup", str(tmp_path), "--catalog", "shop"]
        subprocess.run([*command, "--bootstrap-servers", server.bootstrap_servers], check=True, capture_output=True)
        yield server


def names_of(server: Connection) -> list[str]:
    return sorted(server.table("db.t").scan().to_arrow()["name"].to_pylist())


CONNECT_CLIENT = """
import sys

sys.modules["forebay"] = None  # an import fails: nothing here needs Forebay on the client's machine

from pyspark.sql import SparkSession

spark = SparkSession.builder.remote(f"sc://127.0.0.1:{sys.argv[1]}").getOrCreate()


def rows(text):
    return [tuple(row) for row in spark.sql(text).collect()]


def refused(text, message):
    try:
        rows(text)
    except Exception as e:
        assert message in str(e), e
    else:
        raise AssertionError(f"{text!r} was not refused")


# Names, rows, changed rows.
assert ("db",) in rows("SHOW DATABASES IN shop")
assert spark.table("shop.db.t").where("id = 3").collect()[0].name == "n3"
rows("DELETE FROM shop.db.t WHERE id = 0")
rows("UPDATE shop.db.t SET name = upper(name) WHERE id > 3")
spark.createDataFrame([(9, "x", 1.0)], "id bigint, name string, amount double").writeTo("shop.db.t").append()
assert spark.table("shop.db.`t$changelog`").count() == 9
refused("SELECT * FROM shop.db.no", "TABLE_OR_VIEW_NOT_FOUND")

# Tables of its own: definition, all ways to write, history.
rows("CREATE TABLE shop.db.totals (name STRING, n BIGINT, PRIMARY KEY (name))")
rows("INSERT INTO shop.db.totals SELECT name, count(*) FROM shop.db.t GROUP BY name")
rows(
    "MERGE INTO shop.db.totals t USING (SELECT 'x' AS name, 5L AS n UNION ALL SELECT 'y', 6L) s ON t.name = s.name "
    "WHEN MATCHED THEN UPDATE SET n = t.n + s.n WHEN NOT MATCHED THEN INSERT *"
)
assert rows("SELECT n FROM shop.db.totals WHERE name IN ('x', 'y') ORDER BY n") == [(6,), (6,)]
rows("ALTER TABLE shop.db.totals ADD COLUMN note STRING")
assert [row[0] for row in rows("DESCRIBE TABLE shop.db.totals")][:3] == ["name", "n", "note"]
assert "note STRING" in rows("SHOW CREATE TABLE shop.db.totals")[0][0]
rows("INSERT OVERWRITE shop.db.totals VALUES ('z', 1L, NULL)")
assert rows("SELECT name, n FROM shop.db.totals TIMESTAMP AS OF current_timestamp()") == [("z", 1)]

# Streams, and a function that the server calls for each batch.
rows("CREATE TABLE shop.db.copy (id BIGINT, name STRING, amount DOUBLE, PRIMARY KEY (id))")
stream = spark.readStream.table("shop.db.t")
query = stream.writeStream.option("checkpointLocation", sys.argv[2] + "/to-table").trigger(availableNow=True)
query.toTable("shop.db.copy").awaitTermination()
assert rows("SELECT count(*) FROM shop.db.copy") == [(5,)]


def keep(batch, number):
    batch.selectExpr("name", "1L AS n", "CAST(NULL AS STRING) AS note").writeTo("shop.db.totals").append()


query = stream.writeStream.foreachBatch(keep).option("checkpointLocation", sys.argv[2] + "/each")
for attempt in range(10):
    try:
        query.trigger(availableNow=True).start().awaitTermination()
        break
    except Exception as e:  # Spark gives the function's process ten seconds to start, however busy the machine is
        assert "connect back" in str(e), e
assert rows("SELECT count(*) FROM shop.db.totals") == [(6,)]
rows("DROP TABLE shop.db.totals")
refused("SELECT * FROM shop.db.totals", "TABLE_OR_VIEW_NOT_FOUND")
"""


@pytest.mark.slow
def test_clients_of_a_connect_server_have_the_catalog_without_forebay(shop: Connection, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect's client needs pyspark[connect]")
    port = free_port()
    start = str(SPARK_HOME / "sbin" / "start-connect-server.sh")
    command = [start, "--conf", f"spark.connect.grpc.binding.port={port}"]
    # The only place where Spark looks for the Python that runs functions of clients.
    with serving(tmp_path, command, PYSPARK_PYTHON=sys.executable):
        until_it_listens(port, tmp_path)
        client = [sys.executable, "-c", CONNECT_CLIENT, str(port), str(tmp_path / "checkpoints")]
        done = subprocess.run(client, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
    assert names_of(shop) == ["N4", "n1", "n2", "n3", "x"]
    # Spark finds the classes of the metrics, which it looks for in a thread that belongs to no session.
    assert "custom metric" not in (tmp_path / "server.out").read_text()


@pytest.mark.slow
def test_beeline_has_the_catalog_of_a_thrift_server(shop: Connection, tmp_path: Path) -> None:
    port = free_port()
    server = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--class", server]
    command += ["--conf", f"spark.hadoop.hive.server2.thrift.port={port}"]
    with serving(tmp_path, command):
        until_it_listens(port, tmp_path)
        statements = (
            "DELETE FROM shop.db.t WHERE id = 0; UPDATE shop.db.t SET name = upper(name) WHERE id > 3; "
            "INSERT INTO shop.db.t VALUES (9, 'x', 1.0); SELECT id, name FROM shop.db.t ORDER BY id; "
            "SELECT * FROM shop.db.no"
        )
        url = f"jdbc:hive2://127.0.0.1:{port}/default"
        beeline = [str(SPARK_HOME / "bin" / "beeline"), "-u", url, "-n", "me", "--outputformat=csv2", "-e", statements]
        done = subprocess.run(beeline, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, env=SERVER_ENV)
        assert "1,n1\n2,n2\n3,n3\n4,N4\n9,x\n" in done.stdout, done.stderr
        assert "TABLE_OR_VIEW_NOT_FOUND" in done.stderr
    assert names_of(shop) == ["N4", "n1", "n2", "n3", "x"]


@pytest.mark.slow
def test_spark_sql_opens_a_catalog_by_configuration(shop: Connection, tmp_path: Path) -> None:
    """In a JVM that no Python program started: the class starts a Python process, which ends with the JVM."""
    statements = "SELECT name FROM shop.db.t WHERE id = 3; DELETE FROM shop.db.t WHERE id = 0; SELECT * FROM shop.db.no"
    done = subprocess.run(
        [
            str(SPARK_HOME / "bin" / "spark-sql"),
            "--master", "local[1]", "--properties-file", str(tmp_path / "spark-defaults.conf"),
            "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.catalogImplementation=in-memory",
            "-e", statements,
        ],
        env=SERVER_ENV, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert "n3" in done.stdout.splitlines(), done.stderr
    assert "TABLE_OR_VIEW_NOT_FOUND" in done.stderr
    assert "Traceback" not in done.stderr
    assert names_of(shop) == ["n1", "n2", "n3", "n4"]


PROGRAM = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.sql("DELETE FROM shop.db.t WHERE id = 0")
print(spark.table("shop.db.t").count(), "rows")
"""


@pytest.mark.slow
def test_a_program_that_is_submitted_opens_a_catalog_by_configuration_and_ends(
    shop: Connection, tmp_path: Path
) -> None:
    """In the JVM of spark-submit, which ends when no thread is left but daemons."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [
            str(SPARK_HOME / "bin" / "spark-submit"),
            "--master", "local[1]", "--properties-file", str(tmp_path / "spark-defaults.conf"),
            "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.catalogImplementation=in-memory",
            str(program),
        ],
        env=SERVER_ENV, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["4 rows"]), done.stderr
    assert names_of(shop) == ["n1", "n2", "n3", "n4"]
