"""pyfluss reads log segments that a server with a store has moved there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from forebay.testing.server import EmbeddedServer
from tests.pyfluss.conftest import Session, all_rows, connect, fluss
from tests.store.moto_s3 import running_moto

SETTINGS = {
    "store.interval": "20 ms",
    "log.segment.file-size": "2kb",
    "remote.log.task-interval-duration": "20 ms",
    "store.segment-age": "1 d",
}
ROWS = 500


@pytest.mark.parametrize("access", ["server", "direct"])
async def test_a_scan_from_the_beginning_has_rows_of_the_store_and_of_the_server(tmp_path: Path, access: str) -> None:
    await scan({"store": str(tmp_path / "store"), "store.client-access": access}, tmp_path / "data")


@pytest.mark.foreign
async def test_a_scan_reads_a_bucket_with_the_keys_for_clients(tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'forebay[store]'")
    with running_moto("shop") as options:
        settings = {f"store.{name}": value for name, value in options.items()}
        settings |= {"store": "s3://shop/fluss", "store.client-access": "direct"}
        settings |= {"store.client.s3.access-key": "reader", "store.client.s3.secret-key": "reads"}
        await scan(settings, tmp_path / "data")


async def scan(settings: dict[str, str], data_dir: Path) -> None:
    """Read all rows of a table of which the store has the first ones."""
    with EmbeddedServer(str(data_dir), settings={**SETTINGS, **settings}) as server:
        session = Session(server.bootstrap_servers, await connect(server.bootstrap_servers))
        await session.admin.create_database("strangers", None, True)
        table = await session.create(pa.schema([("id", pa.int64()), ("v", pa.string())]))
        writer = table.new_append().create_writer()
        for first in range(0, ROWS, 10):
            writer.write_arrow(pa.table({"id": range(first, first + 10), "v": ["some text"] * 10}))
            await writer.flush()
        replica = server.server.context.replicas.replicas()[0]
        while replica.log.local_start_offset == 0:
            await session.admin.get_server_nodes()
        rows = await all_rows(table, ROWS)
        assert [row["id"] for row in rows] == list(range(ROWS))
        assert replica.log.log_start_offset == 0
        session.connection.close()
    assert fluss.EARLIEST_OFFSET == -2
