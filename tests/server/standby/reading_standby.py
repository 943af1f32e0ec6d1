"""A standby in this process, with its reads and a connection to these."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import forebay
from forebay.client.connection import Connection
from forebay.inprocess import EmbeddedConnection
from forebay.server.config import server_config
from forebay.server.standby.reads import ReadsInThread, serve_reads
from forebay.server.standby.standby import Standby
from forebay.store.journal import newest_object
from tests.patience import PATIENCE, until


class ReadingStandby:
    """A standby with its reads, and a connection to these."""

    def __init__(self, standby: Standby, reads: ReadsInThread, conn: Connection) -> None:
        self.standby, self.reads, self.conn = standby, reads, conn

    def await_all(self, primary: EmbeddedConnection) -> None:
        """Wait until reads see all that the primary has."""
        journal = primary.server.server._journal
        assert journal is not None
        assert journal.wait_until_stored(PATIENCE)
        newest = newest_object(self.standby.store)
        assert newest is not None
        number = newest.footer.identity.number
        until(
            lambda: (there := self.reads.server.boundary) is not None and there.number >= number,
            "reads see all that the primary has",
        )


@contextmanager
def reading(folder: Path, settings: Mapping[str, str]) -> Iterator[ReadingStandby]:
    config = server_config(folder, settings=settings)
    standby = Standby.of(config)
    reads = serve_reads(standby, config, 0)
    assert reads is not None
    thread = threading.Thread(target=standby.wait)
    thread.start()
    try:
        with forebay.connect(reads.addresses.bootstrap_servers) as conn:
            yield ReadingStandby(standby, reads, conn)
    finally:
        standby.stop()
        thread.join(PATIENCE)
        reads.join()
