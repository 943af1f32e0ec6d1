"""A console over a server whose tables are tiered to a Paimon lake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

import forebay

# Imported here, in one thread: pytest parses our modules, and two threads that parse at the same time fail in
# CPython 3.11 (gh-106905). A server with a lake imports these in a thread.
import forebay.lakes.paimon
import forebay.paimon.catalog.filesystem
import forebay.paimon.io.local
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.console.session import Console
from forebay.paimon.catalog.catalog import Catalog
from forebay.server.embedded import EmbeddedServer

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@contextmanager
def lake_console(folder: Path) -> Iterator[Console]:
    """The console; its own lake `mine` is in the folder `own`."""
    settings = {
        "datalake.enabled": "true",
        "datalake.format": "paimon",
        "datalake.paimon.warehouse": str(folder / "lake"),
    }
    with (
        EmbeddedServer(folder / "data", settings=settings) as server,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        made = Console(connection, server.bootstrap_servers, {"mine": Catalog.open(str(folder / "own"))})
        yield made
        made.close()


def tiered_table(connection: Connection, path: str, **more: Any) -> Table:
    options = {"table.datalake.enabled": "true", "table.datalake.freshness": "1 h"}
    return connection.create_table(path, SCHEMA, options=options, **{"primary_key": "id", "buckets": 2, **more})


def rows(*ids: int, name: str = "x") -> pa.Table:
    return pa.table({"id": list(ids), "name": [name] * len(ids)}, SCHEMA)
