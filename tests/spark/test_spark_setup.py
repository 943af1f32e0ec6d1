"""Catalogs by configuration alone: what `forebay spark-setup` writes, and a Spark without Python that uses it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.base.errors import InvalidRequest
from forebay.client.connection import Connection
from forebay.server.embedded import EmbeddedServer
from forebay.spark.jvm.gateway import Jvm
from forebay.spark.server_setup import write_setup
from forebay.spark.sessions import configured
from tests.spark.tables import make_table, rows

pytestmark = pytest.mark.spark


def test_the_setup_is_a_jar_and_settings(spark: Any, tmp_path: Path) -> None:
    written = write_setup(Jvm.of(spark), tmp_path / "conf", "shop", {"bootstrap.servers": "h:1", "password": "secret"})
    lines = dict(line.split(" ", 1) for line in written.read_text().splitlines())
    assert lines["spark.sql.catalog.shop"] == "org.forebay.SparkCatalog"
    assert lines["spark.sql.catalog.shop.bootstrap.servers"] == "h:1"
    assert written.stat().st_mode & 0o077 == 0
    with zipfile.ZipFile(lines["spark.driver.extraClassPath"]) as jar:
        assert sorted(jar.namelist()) == ["org/forebay/SparkCatalog.class", "org/forebay/SparkPython.class"]
        assert all(jar.read(name)[:4] == b"\xca\xfe\xba\xbe" for name in jar.namelist())
    for settings, message in (
        ({"bootstrap_servers": "h:1"}, "no setting spark.sql.catalog.shop"),
        ({"user": " x"}, "user="),
    ):
        with pytest.raises(InvalidRequest, match=message):
            write_setup(Jvm.of(spark), tmp_path / "other", "shop", settings)
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
        jvm.install_catalog(derived._jsparkSession, "by_settings", catalog)
        assert derived.table(f"by_settings.{database}.t").count() == 3


@pytest.mark.slow
def test_spark_sql_opens_a_catalog_by_configuration(tmp_path: Path) -> None:
    """In a JVM that no Python program started: the class starts a Python process, which ends with the JVM."""
    import pyspark

    with forebay.embedded(tmp_path / "data") as server:
        server.create_database("db")
        make_table(server, "db.t", ["id"]).upsert(rows(0, 5))
        command = [sys.executable, "-m", "forebay", "spark-setup", str(tmp_path), "--catalog", "shop"]
        subprocess.run([*command, "--bootstrap-servers", server.bootstrap_servers], check=True, capture_output=True)
        statements = (
            "SELECT name FROM shop.db.t WHERE id = 3; DELETE FROM shop.db.t WHERE id = 0; SELECT * FROM shop.db.no"
        )
        done = subprocess.run(
            [
                str(Path(pyspark.__file__).parent / "bin" / "spark-sql"),
                "--master", "local[1]", "--properties-file", str(tmp_path / "spark-defaults.conf"),
                "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.catalogImplementation=in-memory",
                "-e", statements,
            ],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=tmp_path, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert "n3" in done.stdout.splitlines(), done.stderr
        assert "TABLE_OR_VIEW_NOT_FOUND" in done.stderr
        assert "Traceback" not in done.stderr
        assert server.table("db.t").scan().count() == 4
