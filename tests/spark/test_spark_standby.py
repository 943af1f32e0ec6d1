"""Spark reads at a standby, with a catalog of its addresses, and changes nothing there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import UnsupportedOperation
from forebay.inprocess import EmbeddedConnection
from tests.server.standby.reading_standby import ReadingStandby, reading

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark

ROWS = 500


@pytest.fixture(scope="module")
def primary_and_standby(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[EmbeddedConnection, ReadingStandby]]:
    folder = tmp_path_factory.mktemp("standby")
    settings = {"store": str(folder / "store"), "store.interval": "10 ms", "store.lease": "1 h"}
    with (
        forebay.embedded(folder / "primary", settings=settings) as primary,
        reading(folder / "standby", settings) as standby,
    ):
        columns = {"id": "BIGINT", "v": "STRING", "day": "STRING"}
        kv = primary.create_table("fluss.kv", columns, primary_key=["id", "day"], partition_keys="day", buckets=2)
        log = primary.create_table("fluss.log", columns, buckets=2)
        for day in ("mon", "tue"):
            rows = pa.table({"id": range(ROWS), "v": [f"row {n}" for n in range(ROWS)], "day": [day] * ROWS})
            kv.upsert(rows)
            log.append(rows)
        kv.delete([{"id": 3, "day": "mon"}])
        standby.await_all(primary)
        yield primary, standby


@pytest.fixture
def catalog(derived_session: Any, primary_and_standby: tuple[EmbeddedConnection, ReadingStandby]) -> Any:
    from forebay.spark import attach

    _, standby = primary_and_standby
    attach(derived_session, "away", bootstrap_servers=standby.reads.addresses.bootstrap_servers)
    return derived_session


def test_tables_are_queried(catalog: Any) -> None:
    query = "SELECT day, count(*), sum(id), max(v) FROM away.fluss.{} GROUP BY day ORDER BY day"
    whole = sum(range(ROWS))
    found = [tuple(row) for row in catalog.sql(query.format("kv")).collect()]
    assert found == [("mon", ROWS - 1, whole - 3, "row 99"), ("tue", ROWS, whole, "row 99")]
    found = [tuple(row) for row in catalog.sql(query.format("log")).collect()]
    assert found == [("mon", ROWS, whole, "row 99"), ("tue", ROWS, whole, "row 99")]
    found = catalog.sql("SELECT v FROM away.fluss.kv WHERE id = 7 AND day = 'tue'").collect()
    assert [tuple(row) for row in found] == [("row 7",)]
    changes = catalog.sql(
        "SELECT _change_type, count(*) FROM away.fluss.`kv$changelog` GROUP BY 1 ORDER BY 1"
    ).collect()
    assert [tuple(row) for row in changes] == [("delete", 1), ("insert", 2 * ROWS)]


def test_streams_go_on_with_what_the_standby_repeats(
    catalog: Any, primary_and_standby: tuple[EmbeddedConnection, ReadingStandby], tmp_path: Path
) -> None:
    primary, standby = primary_and_standby
    table = primary.create_table("fluss.growing", {"id": "BIGINT", "v": "STRING"}, buckets=2)
    total = 0
    for turn in range(2):
        table.append(pa.table({"id": range(total, total + 40), "v": [f"turn {turn}"] * 40}))
        total += 40
        standby.await_all(primary)
        stream = catalog.readStream.option("scan.startup.mode", "earliest").table("away.fluss.growing")
        query = (
            stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "rows"))
        )
        query.awaitTermination()
        found = sorted(row.id for row in catalog.read.parquet(str(tmp_path / "rows")).collect())
        assert found == list(range(total))


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO away.fluss.log VALUES (1, 'x', 'wed')",
        "DELETE FROM away.fluss.kv WHERE id = 1",
        "CREATE TABLE away.fluss.other (id BIGINT)",
        "DROP TABLE away.fluss.log",
    ],
)
def test_changes_are_refused(catalog: Any, statement: str) -> None:
    with pytest.raises(Exception, match="standby"):
        catalog.sql(statement)


def test_a_standby_beside_the_server_is_refused_by_name(
    derived_session: Any, primary_and_standby: tuple[EmbeddedConnection, ReadingStandby]
) -> None:
    from forebay.spark import attach

    primary, standby = primary_and_standby
    servers = primary.server.bootstrap_servers
    option = {"client.read.standby": standby.reads.addresses.bootstrap_servers}
    with pytest.raises(UnsupportedOperation, match="attach a second catalog"):
        attach(derived_session, "both", bootstrap_servers=servers, **option)
    attach(derived_session, "server", bootstrap_servers=servers)
    with pytest.raises(Exception, match="attach a second catalog"):
        derived_session.read.options(**option).table("server.fluss.kv").collect()
    of_format = {"bootstrap.servers": servers, "table": "fluss.kv", **option}
    with pytest.raises(Exception, match="attach a second catalog"):
        derived_session.read.format("forebay").options(**of_format).load().collect()


def test_one_statement_writes_to_the_server_what_it_reads_at_the_standby(
    catalog: Any, primary_and_standby: tuple[EmbeddedConnection, ReadingStandby]
) -> None:
    from forebay.spark import attach

    primary, _ = primary_and_standby
    attach(catalog, "server", bootstrap_servers=primary.server.bootstrap_servers)
    catalog.sql("CREATE TABLE server.fluss.days AS SELECT day, count(*) AS n FROM away.fluss.kv GROUP BY day")
    assert sorted(primary.table("fluss.days").scan().to_arrow().to_pylist(), key=lambda row: row["day"]) == [
        {"day": "mon", "n": ROWS - 1}, {"day": "tue", "n": ROWS},
    ]  # fmt: skip
