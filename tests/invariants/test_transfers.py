"""Several writers transfer money under every kind of fault; no read may ever miss any of it, or find too much.

Meanwhile the tables are tiered, the lake tables compacted, their snapshots and the logs expired, tiering workers killed
and replaced, and the server killed and restarted. INVARIANT_SECONDS says how long at least, for all lakes
together (`make invariants`: 30 minutes), INVARIANT_SECONDS_EACH how long for each: a run goes on until it has seen all
that it is there for. INVARIANT_SEED repeats the random choices, though not the timing. `make nightly` runs it, `make
test` does not.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table.snapshots import Operation

import forebay
from forebay.base.errors import ErrorCode, NotFound
from forebay.client.connection import Connection
from forebay.lakes.paimon_tables import lake_table
from forebay.metadata.table import TablePath
from forebay.paimon.format.snapshot import CommitKind
from forebay.testing.server import ServerProcess
from forebay.tiering.now import tier_table
from forebay.unionread.open_lakes import lake_of
from tests import results
from tests.invariants.bank import ACCOUNT_SCHEMA, JOURNAL_SCHEMA, Writer
from tests.invariants.faults import Faults, happening
from tests.invariants.readers import ACCOUNTS, JOURNAL, Reader, Reading, readers_of
from tests.invariants.upkeep import UPKEEP
from tests.patience import PATIENCE

LAKES = ("paimon", "iceberg")
_ALL_SECONDS = float(os.environ.get("INVARIANT_SECONDS", "12"))
SECONDS = float(os.environ.get("INVARIANT_SECONDS_EACH") or _ALL_SECONDS / len(LAKES))
SEED = int(os.environ.get("INVARIANT_SEED", random.SystemRandom().randrange(1 << 32)))
WRITERS, BUCKETS = 3, 3
READS_MIN, FAULTS_MIN = 5, 3
LAKE_SNAPSHOTS_MIN = {"paimon": 6, "iceberg": 3}
"""More of a table than are kept, or are made in the 2 seconds for which they are kept (UPKEEP)."""
PATIENCE_SECONDS = 2 * PATIENCE
"""How much longer a run may take until it has seen all that it is there for, on a busy machine."""

SETTINGS = {
    "log.segment.file-size": "16kb",
    "kv.checkpoint.records": "2000",
    "kv.snapshot.interval": "1 s",
    "remote.log.task-interval-duration": "1 s",
}
PROPERTIES = {
    "table.datalake.enabled": "true",
    "table.datalake.freshness": "300 ms",
    "table.datalake.auto-compaction": "true",
    "table.datalake.auto-expire-snapshot": "true",
    "table.log.ttl": "5 s",
}


class Run:
    """One run over one lake: what is at work, and what it has seen."""

    def __init__(self, lake: str, warehouse: Path, connection: Connection) -> None:
        self.lake, self.warehouse, self.connection = lake, warehouse, connection
        for name, schema, keys in ((ACCOUNTS, ACCOUNT_SCHEMA, ["bank", "account"]), (JOURNAL, JOURNAL_SCHEMA, [])):
            connection.create_table(
                name, schema, primary_key=keys, bucket_keys=["bank"], buckets=BUCKETS,
                options={**PROPERTIES, **UPKEEP[lake]},
            )  # fmt: skip
        accounts, journal = connection.table(ACCOUNTS), connection.table(JOURNAL)
        self.writers = [Writer(number, accounts, journal, SEED + number) for number in range(WRITERS)]
        self.reading = Reading([writer.banks for writer in self.writers])
        self.readers: list[Reader] = []
        self.was_compacted = False

    def compactions(self) -> int:
        """Compactions among the snapshots of the accounts that the lake has now."""
        options = {"warehouse": str(self.warehouse)}
        path = TablePath.parse(ACCOUNTS)
        if self.lake == "paimon":
            kinds: list[Any] = [s.commit_kind for s in lake_table(options, path).context.snapshots.snapshots()]
            return kinds.count(CommitKind.COMPACT)
        sql = {"type": "sql", "uri": f"sqlite:///{self.warehouse}/catalog.db", **options}
        with load_catalog("fluss-iceberg-catalog", **sql) as catalog:
            summaries = [s.summary for s in catalog.load_table((path.database, path.table)).metadata.snapshots]
        return sum(summary is not None and summary.operation == Operation.REPLACE for summary in summaries)

    def watch(self, faults: Faults) -> None:
        """Run until the time is up and everything was seen. Raises the first error of any participant."""
        began = time.monotonic()
        while True:
            for each in (*self.writers, *self.readers, faults):
                each.check_alive()
            self.was_compacted = self.was_compacted or self.compactions() > 0
            missing = self._not_seen(faults)
            lasted = time.monotonic() - began
            if lasted > SECONDS and not missing:
                return
            assert lasted < SECONDS + PATIENCE_SECONDS, f"after {lasted:.0f} s the run has not seen: {missing}"
            time.sleep(0.5)

    def _not_seen(self, faults: Faults) -> list[str]:
        seen = self.reading.lake_snapshots
        conditions: dict[str, Callable[[], bool]] = {
            **{r.name: lambda r=r: r.reads >= READS_MIN for r in self.readers},  # type: ignore[misc]
            "union reads of lake and log": lambda: self.reading.merged >= READS_MIN,
            "lake snapshots": lambda: all(
                len(snapshots) >= LAKE_SNAPSHOTS_MIN[self.lake] for snapshots in seen.values()
            ),
            "faults": lambda: faults.counts.total() >= FAULTS_MIN,
            "a compaction": lambda: self.was_compacted,
        }
        return [name for name, holds in conditions.items() if not holds()]

    def check_the_end(self) -> None:
        """Nobody writes any more: lake, union read, scan and model are the same; old snapshots and logs are gone."""
        for name in (ACCOUNTS, JOURNAL):
            tier_table(self.connection, name)
        reading = self.reading
        for check in reading.checks().values():
            check(self.connection)
        for bank in reading.banks:
            assert bank.acknowledged == bank.operations[-1]
        assert reading.in_lake == {ACCOUNTS: reading.acknowledged(), JOURNAL: reading.journaled()}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not any(self.connection.admin.list_offsets(ACCOUNTS, "earliest").values()):
            assert time.monotonic() < deadline, "no log has expired"
            time.sleep(0.2)
        first = reading.lake_snapshots[ACCOUNTS][0]
        storage = lake_of(self.connection.table(ACCOUNTS))
        source = storage.create_source(TablePath.parse(ACCOUNTS))
        with pytest.raises(NotFound) as gone:
            source.create_planner(first).plan()
        assert gone.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST, "no lake snapshot has expired"


@pytest.mark.timeout(SECONDS + PATIENCE_SECONDS + 240)
@pytest.mark.slow
@pytest.mark.parametrize("lake", LAKES)
def test_no_read_ever_sees_half_a_transfer_whatever_happens_meanwhile(tmp_path: Path, lake: str) -> None:
    print(f"{lake}: seed {SEED}, {SECONDS:g} s")
    warehouse = tmp_path / "lake"
    settings = {**SETTINGS, "datalake.format": lake, f"datalake.{lake}.warehouse": str(warehouse)}
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(tmp_path / "data", settings=settings))
        run = Run(lake, warehouse, stack.enter_context(forebay.connect(server.bootstrap_servers)))
        for writer in run.writers:
            writer.open()
        run.readers = readers_of(server.bootstrap_servers, run.reading, stack)
        faults = Faults(server, tmp_path, SEED)
        stack.callback(faults.abandon)
        with happening(faults, random.Random(SEED), (1.0, 4.0)):
            for thread in (*run.writers, *run.readers):
                thread.start()
            run.watch(faults)
        for thread in (*run.writers, *run.readers):
            thread.end()
        faults.end()
        run.check_the_end()
    transfers = sum(writer.operations for writer in run.writers)
    print(f"{transfers:,} operations; {dict(faults.counts)}")
    for reader in run.readers:
        print(f"{reader.name}: {reader.reads:,} reads; ended early: {dict(reader.interrupted)}")
    stream = run.reading.stream
    results.write_if_wanted(
        f"invariants.{lake}",
        {
            "seconds": SECONDS,
            "seed": SEED,
            "operations": transfers,
            "reads": sum(reader.reads for reader in run.readers),
            "faults": faults.counts.total(),
        },
    )
    print(f"the stream: {stream.batches:,} batches, {stream.restarts:,} restarts, begun anew {stream.begun - 1} times")
