"""A lake in a REST catalog that others run: Iceberg's own service, before which our tiering, reads and Spark meet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.base.errors import ForebayError
from forebay.cli.main import main
from forebay.testing.server import ServerProcess
from tests.java_programs import (
    ExamUnavailable,
    JavaProgram,
    all_maven_jars,
    class_path,
    compiled,
    java_command,
    spark_jars,
)
from tests.lake.spark_iceberg import rows_by_spark

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


def test_a_rest_catalog_that_is_away_is_named_and_rows_stay_in_the_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The service is not there: the table is refused, with the address; without a lake it can be made."""
    settings = {"datalake.format": "iceberg", "datalake.iceberg.type": "rest"}
    settings["datalake.iceberg.uri"] = "http://127.0.0.1:9"
    with forebay.embedded(tmp_path / "data", settings=settings) as connection:
        with pytest.raises(ForebayError, match=r"127\.0\.0\.1:9"):
            connection.create_table("fluss.t", {"n": "INT"}, options={"table.datalake.enabled": "true"})
        connection.create_table("fluss.t", {"n": "INT"}).append([{"n": 1}])
