"""A lake in a REST catalog that others run: Iceberg's own service, before which our tiering, reads and Spark meet."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.base.errors import Unavailable
from forebay.cli.main import main
from forebay.testing.server import ServerProcess
from tests.java_programs import (
    ExamUnavailable,
    JavaProgram,
    all_maven_jars,
    class_path,
    compiled,
    java_command,
    java_version,
    spark_jars,
)
from tests.lake.spark_iceberg import rows_by_spark
from tests.patience import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.foreign, pytest.mark.timeout(900)]

HERE = Path(__file__).resolve().parent / "java" / "rest"


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The options of a lake in Iceberg's REST service."""
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    try:
        jars = class_path([*all_maven_jars(HERE / "pom.xml", "iceberg-rest-jars", "Iceberg's REST service"),
                           *spark_jars(("hadoop-client-",))])  # fmt: skip
        classes = compiled([HERE / "IcebergRest.java"], jars, "iceberg-rest-classes")
        service = JavaProgram("iceberg-rest", [*java_command(classes, jars, "IcebergRest", 300), str(warehouse)], 120)
    except ExamUnavailable as reason:
        pytest.skip(f"no REST catalog here: {reason}")
    try:
        yield {"type": "rest", "uri": f"http://127.0.0.1:{service.answer()}"}
    finally:
        service.close()


@pytest.fixture
def server(tmp_path: Path, catalog: dict[str, str]) -> Iterator[ServerProcess]:
    settings = {"datalake.format": "iceberg", **{f"datalake.iceberg.{k}": v for k, v in catalog.items()}}
    running = ServerProcess(tmp_path / "data", settings=settings).start()
    yield running
    running.kill()


def tier(server: ServerProcess) -> None:
    assert main(["tiering", "--once", "--without-spark", "-b", server.bootstrap_servers]) == 0


def test_a_lake_in_a_rest_catalog_is_tiered_read_and_kept_in_order(
    server: ServerProcess, catalog: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"id": "BIGINT", "name": "STRING", "price": "DECIMAL(10, 2)"}
    with forebay.connect(server.bootstrap_servers) as connection:
        connection.create_database("shop")
        lake = {"table.datalake.enabled": "true"}
        keyed = connection.create_table("shop.orders", columns, primary_key="id", buckets=2, options=lake)
        log = connection.create_table("shop.visits", {"n": "BIGINT"}, buckets=2, options=lake)
        wanted: dict[int, dict[str, Any]] = {}
        for round_ in range(3):
            rows = [{"id": i, "name": f"{round_}", "price": i} for i in range(round_ * 10, round_ * 10 + 20)]
            keyed.upsert(rows)
            keyed.delete([{"id": round_ * 10}])
            wanted |= {row["id"]: row for row in rows}
            del wanted[round_ * 10]
            log.append([{"n": round_ * 100 + i} for i in range(100)])
            tier(server)
        keyed.upsert([{"id": 5, "name": "live", "price": 5}])
        in_lake = dict(wanted)
        wanted[5] = {"id": 5, "name": "live", "price": 5}

        union = connection.table("shop.orders").scan(source="union").to_arrow().sort_by("id").to_pylist()
        assert [(row["id"], row["name"], float(row["price"])) for row in union] == [
            (i, wanted[i]["name"], float(wanted[i]["price"])) for i in sorted(wanted)
        ]
        ice = {"format": "iceberg", **catalog}
        found = forebay.sql(
            "SELECT a.id, a.name FROM ice.shop.orders a JOIN shop.orders b USING (id) WHERE a.name <> b.name",
            connection, lakes={"ice": ice},
        ).to_arrow().to_pylist()  # fmt: skip
        assert found == [{"id": 5, "name": in_lake[5]["name"]}]
        assert forebay.sql("SELECT count(*) FROM shop.visits", connection).to_arrow().to_pylist()[0] == {
            "count_star()": 300
        }
    options = [word for key, value in catalog.items() for word in ("--option", f"{key}={value}")]
    for command in ("compact", "expire", "orphans", "describe"):
        capsys.readouterr()
        assert main(["iceberg", command, *options, "shop.orders"]) == 0
    assert "shop.orders" in capsys.readouterr().out
    try:
        rows = rows_by_spark(tmp_path, "SELECT id, name FROM {catalog}.shop.orders ORDER BY id", catalog)
    except ExamUnavailable as reason:
        pytest.skip(f"all but Spark was examined: {reason}")
    assert rows == [[i, in_lake[i]["name"]] for i in sorted(in_lake)]


def trino(monkeypatch: pytest.MonkeyPatch, uri: str, *queries: str) -> list[list[str]]:
    """The lines that Trino answers each query with, their values between tabs. Skips where there is no Java 25."""
    homes = [Path(os.environ.get("JAVA_HOME", "/")), *sorted(Path("/usr/lib/jvm").glob("*25*"))]
    home = next(
        (h for h in homes if (h / "bin" / "javac").exists() and java_version(str(h / "bin" / "java")) >= 25), None
    )
    if home is None:
        pytest.skip("Trino 483 needs a JDK 25")
    monkeypatch.setenv("JAVA_HOME", str(home))
    try:
        jars = all_maven_jars(HERE.with_name("trino") / "pom.xml", "trino-jars", "Trino")
        path = os.pathsep.join([str(jars[0].parent / "*")])
        classes = compiled([HERE.with_name("trino") / "TrinoExam.java"], path, "trino-classes")
    except ExamUnavailable as reason:
        pytest.skip(f"no Trino here: {reason}")
    options = ["--add-modules=jdk.incubator.vector", "--sun-misc-unsafe-memory-access=allow"]
    command = java_command(classes, path, "TrinoExam", 1000, options)
    done = subprocess.run([*command, uri, *queries], capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr[-4000:]
    answers = done.stdout.split("\n\n")
    return [answer.splitlines() for answer in answers[: len(queries)]]


def test_trino_reads_tables_of_every_kind(
    server: ServerProcess, catalog: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"id": "BIGINT", "name": "STRING", "price": "DECIMAL(10, 2)", "day": "DATE", "at": "TIMESTAMP_LTZ(6)"}
    with forebay.connect(server.bootstrap_servers) as connection:
        connection.create_database("shop")
        lake = {"table.datalake.enabled": "true"}
        keyed = connection.create_table("shop.orders", columns, primary_key="id", buckets=2, options=lake)
        log = connection.create_table("shop.visits", {"n": "BIGINT", "tags": "ARRAY<STRING>"}, buckets=2, options=lake)
        wanted: dict[int, str] = {}
        moment = dt.datetime(2024, 2, 3, 4, 5, 6, tzinfo=dt.UTC)
        for round_ in range(3):  # each replaces and deletes rows of the one before, by position deletes
            ids = range(round_ * 10, round_ * 10 + 20)
            keyed.upsert([{"id": i, "name": f"r{round_}", "price": i, "day": moment.date(), "at": moment} for i in ids])
            keyed.delete([{"id": round_ * 10}])
            wanted |= dict.fromkeys(ids, f"r{round_}")
            del wanted[round_ * 10]
            log.append([{"n": round_ * 100 + i, "tags": ["a"]} for i in range(100)])
            tier(server)
    orders, visits, first = trino(
        monkeypatch, catalog["uri"],
        "SELECT id, name FROM lake.shop.orders ORDER BY id",
        "SELECT count(*), sum(n), count(DISTINCT n), max(tags) FROM lake.shop.visits",
        "SELECT price, day, at FROM lake.shop.orders WHERE id = 1",
    )  # fmt: skip
    assert orders == [f"{i}\t{wanted[i]}" for i in sorted(wanted)]
    assert visits == [f"300\t{sum(r * 100 + i for r in range(3) for i in range(100))}\t300\t[a]"]
    assert first == ["1.00\t2024-02-03\t2024-02-03T04:05:06Z[UTC]"]


def test_a_rest_catalog_that_is_away_is_named_and_rows_stay_in_the_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The service is not there: the table is refused, with the address; without a lake it can be made."""
    settings = {"datalake.format": "iceberg", "datalake.iceberg.type": "rest"}
    settings["datalake.iceberg.uri"] = "http://127.0.0.1:9"
    with forebay.embedded(tmp_path / "data", settings=settings) as connection:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9 cannot be reached .*, so the request was not sent"):
            connection.create_table("fluss.t", {"n": "INT"}, options={"table.datalake.enabled": "true"})
        connection.create_table("fluss.t", {"n": "INT"}).append([{"n": 1}])
