"""pyfluss reads at a standby what the server has, and is refused by name when it writes there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay.inprocess import EmbeddedConnection
from tests.pyfluss.conftest import all_rows, connect, fluss
from tests.server.standby.reading_standby import ReadingStandby, reading

pytestmark = pytest.mark.foreign

ROWS = 300


@pytest.fixture
def primary_and_standby(tmp_path: Path) -> Iterator[tuple[EmbeddedConnection, ReadingStandby]]:
    settings = {"store": str(tmp_path / "store"), "store.interval": "10 ms", "store.lease": "1 h"}
    with (
        forebay.embedded(tmp_path / "primary", settings=settings) as primary,
        reading(tmp_path / "standby", settings) as standby,
    ):
        yield primary, standby


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"id": range(first, first + count), "v": [f"row {n}" for n in range(count)]})


async def test_logs_and_changelogs_are_read(primary_and_standby: tuple[EmbeddedConnection, ReadingStandby]) -> None:
    primary, standby = primary_and_standby
    log = primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"}, buckets=2)
    log.append(rows(0, ROWS))
    standby.await_all(primary)
    connection = await connect(standby.reads.addresses.bootstrap_servers)
    table = await connection.get_table(fluss.TablePath("fluss", "log"))
    assert sorted(row["id"] for row in await all_rows(table, ROWS, 2)) == list(range(ROWS))
    log.append(rows(ROWS, 50))
    standby.await_all(primary)
    found = sorted((row["id"], row["v"]) for row in await all_rows(table, ROWS + 50, 2))
    assert found == sorted(tuple(row.values()) for row in log.scan().to_arrow().to_pylist())
    connection.close()


async def test_keys_are_looked_up(primary_and_standby: tuple[EmbeddedConnection, ReadingStandby]) -> None:
    primary, standby = primary_and_standby
    kv = primary.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id", buckets=3)
    kv.upsert(rows(0, ROWS))
    standby.await_all(primary)
    connection = await connect(standby.reads.addresses.bootstrap_servers)
    lookuper = (await connection.get_table(fluss.TablePath("fluss", "kv"))).new_lookup().create_lookuper()
    assert await lookuper.lookup([7]) == {"id": 7, "v": "row 7"}
    kv.upsert([{"id": 7, "v": "changed"}])
    kv.delete([{"id": 8}])
    standby.await_all(primary)
    assert await lookuper.lookup([7]) == {"id": 7, "v": "changed"}
    assert await lookuper.lookup([8]) is None
    connection.close()


async def test_a_write_is_refused(primary_and_standby: tuple[EmbeddedConnection, ReadingStandby]) -> None:
    primary, standby = primary_and_standby
    kv = primary.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id")
    kv.upsert(rows(0, 3))
    standby.await_all(primary)
    connection = await connect(standby.reads.addresses.bootstrap_servers)
    writer = (await connection.get_table(fluss.TablePath("fluss", "kv"))).new_upsert().create_writer()
    with pytest.raises(fluss.FlussError, match="standby"):
        await writer.upsert({"id": 1, "v": "x"}).wait()
    connection.close()
    assert kv.lookup([1])["v"].to_pylist() == ["row 1"]
