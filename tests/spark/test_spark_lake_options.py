"""Lake options set by a session: they reach workers, and are not displayed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
import forebay.spark
from forebay.server.embedded import EmbeddedServer
from forebay.tiering.now import tier_table
from forebay.tiering.runner import ThreadRunner
from tests.spark.releases import needs

pytestmark = pytest.mark.spark

PATH, CATALOG = "fluss.t", "elsewhere"


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a server, and where the lake really is; rows 1 and 2 are in the lake, 3 is in the stream."""
    directory: Path = tmp_path_factory.mktemp("moved")
    settings = {"datalake.format": "paimon", "datalake.paimon.warehouse": str(directory / "there")}
    with EmbeddedServer(directory / "data", settings=settings) as server:
        with forebay.connect(server.bootstrap_servers) as connection:
            properties = {"table.datalake.enabled": "true"}
            connection.create_table(PATH, {"id": pa.int32()}, options=properties)
            connection.table(PATH).append([{"id": 1}, {"id": 2}])
            tier_table(connection, PATH, ThreadRunner(1))
            connection.table(PATH).append([{"id": 3}])
        shutil.move(directory / "there", directory / "moved")
        lake = {"warehouse": str(directory / "moved"), "s3.access-key": "open", "s3.secret-key": "open-sesame"}
        yield server.bootstrap_servers, lake


def ids(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.collect())


@needs(4, 2, "streams of tables written in Python")
@pytest.mark.slow
def test_a_catalog_reads_with_the_session_s_options_of_the_lake(
    spark: Any, moved: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    address, lake = moved
    forebay.spark.attach(spark, CATALOG, bootstrap_servers=address, lake_options=lake)
    frame = spark.table(f"{CATALOG}.{PATH}")
    assert ids(frame) == [1, 2, 3]
    assert "sesame" not in frame._jdf.queryExecution().toString()
    stream = spark.readStream.table(f"{CATALOG}.{PATH}").writeStream.format("memory").queryName("lake_options")
    query = stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    assert ids(spark.table("lake_options")) == [1, 2, 3]
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"sesame" not in kept + str(query.lastProgress).encode()


def test_the_format_takes_options_of_the_lake(spark: Any, moved: tuple[str, dict[str, str]]) -> None:
    address, lake = moved
    options = {"bootstrap.servers": address, "table": PATH, **{f"lake.{key}": value for key, value in lake.items()}}
    frame = spark.read.format("forebay").options(**options).load()
    assert ids(frame) == [1, 2, 3]
    assert "sesame" not in frame._jdf.queryExecution().toString()
