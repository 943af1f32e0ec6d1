"""The readers during transfers. Each has a thread and a connection, and checks everything that it reads."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import pyarrow as pa

import forebay
from forebay.api.scan import ScanRequest
from forebay.base.errors import ErrorCode, ForebayError, Unavailable
from forebay.client.connection import Connection
from forebay.client.row_view import RowView
from forebay.unionread.planning import plan_union
from forebay.unionread.scan import UnionRowReader
from forebay.unionread.splits import LakeSnapshotAndLogSplit
from tests.invariants.bank import Bank, check_banks, check_instant, check_journal
from tests.invariants.streams import ChangelogStream
from tests.patience import PATIENCE

ACCOUNTS, JOURNAL = "fluss.accounts", "fluss.journal"
PASSING = (
    ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
    ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
    ErrorCode.SCANNER_EXPIRED,
    ErrorCode.UNKNOWN_SCANNER_ID,
)
"""Errors of a reader whose data is gone: the snapshot or log has expired, or the server was restarted."""

_PAUSE_SECONDS = 0.05


Check = Callable[[Connection], None]
"""Reads, and checks what it has read."""


class Reader(threading.Thread):
    """Reads again and again until it is told to stop. What ends a read early is counted; anything else ends it."""

    def __init__(self, name: str, connection: Connection, check: Check) -> None:
        super().__init__(name=name, daemon=True)
        self.reads = 0
        self.interrupted: Counter[str] = Counter()
        self._connection, self._check = connection, check
        self._stop_asked = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                self._read()
                time.sleep(_PAUSE_SECONDS)
        except BaseException as e:  # noqa: BLE001 - `check_alive` raises it
            self.failure = e

    def _read(self) -> None:
        try:
            self._check(self._connection)
        except ForebayError as e:
            if not isinstance(e, Unavailable) and e.code not in PASSING:
                raise
            self.interrupted[f"{type(e).__name__} {e.code}"] += 1
        else:
            self.reads += 1

    def check_alive(self) -> None:
        if self.failure is not None:
            raise self.failure

    def end(self) -> None:
        self._stop_asked.set()
        self.join(PATIENCE)
        assert not self.is_alive(), f"{self.name} neither ends nor fails"
        self.check_alive()


class Reading:
    """All kinds of reads, with what each of them must find.

    `lake_snapshots` are the ids of those that were read, in order; `in_lake` is what the last one had of each bank.
    `merged` counts union reads that put lake and log of a bucket together. `stream` reads the accounts' changelog.
    """

    def __init__(self, writers: Sequence[Sequence[Bank]]) -> None:
        self.writers = writers
        self.banks = [bank for banks in writers for bank in banks]
        self.lake_snapshots: dict[str, list[int]] = {ACCOUNTS: [], JOURNAL: []}
        self.merged = 0
        self.in_lake: dict[str, dict[int, int]] = {}
        self.stream = ChangelogStream(ACCOUNTS, self.banks, len(self.banks))

    def checks(self) -> dict[str, Check]:
        return {
            "union reads of the accounts": self.union_of_accounts,
            "union reads of the journal": self.union_of_journal,
            "table snapshots": self.table_snapshot,
            "full scans": self.full_scan,
            "lake snapshots of the accounts": lambda c: self.lake(c, ACCOUNTS),
            "lake snapshots of the journal": lambda c: self.lake(c, JOURNAL),
            "a stream of the accounts' changelog": lambda c: self.stream.check(c, self.acknowledged),
        }

    def union_of_accounts(self, connection: Connection) -> None:
        least = self.acknowledged()
        with UnionRowReader(connection, RowView(connection.table(ACCOUNTS).info), ScanRequest()) as scan:
            rows = scan.read_all()
            self.merged += any(isinstance(split, LakeSnapshotAndLogSplit) for split in scan.plan.splits)
        check_banks(rows, self.banks, least)

    def union_of_journal(self, connection: Connection) -> None:
        least = self.journaled()
        with connection.table(JOURNAL).scan(source="union").reader() as scan:
            rows = scan.read_all()
        check_journal(rows, self.banks, least)

    def full_scan(self, connection: Connection) -> None:
        least = self.acknowledged()
        with connection.table(ACCOUNTS).scan().reader() as scan:
            rows = scan.read_all()
        check_banks(rows, self.banks, least)

    def table_snapshot(self, connection: Connection) -> None:
        least = self.acknowledged()
        with connection.table(ACCOUNTS).snapshot() as snapshot:
            assert snapshot.is_exact
            rows = snapshot.scan().to_arrow()
            check_instant(rows, self.writers, least)
            assert _in_order(snapshot.scan().to_arrow()) == _in_order(rows), "read again, a snapshot has other rows"

    def lake(self, connection: Connection, name: str) -> None:
        """The newest lake snapshot that can be read alone: never behind the one that was read before it."""
        plan = plan_union(connection.table(name), lake_only=True)
        batches = [batch for split in plan.splits for batch in plan.reader.read(split, connection)]
        rows = pa.Table.from_batches(batches, plan.reader.schema)
        check = check_banks if name == ACCOUNTS else check_journal
        self.in_lake[name] = check(rows, self.banks, self.in_lake.get(name, {}))
        snapshot, seen = plan.facts.snapshot_id, self.lake_snapshots[name]
        if snapshot is not None and snapshot not in seen[-1:]:
            seen.append(snapshot)

    def acknowledged(self) -> dict[int, int]:
        return {bank.number: bank.acknowledged for bank in self.banks}

    def journaled(self) -> dict[int, int]:
        return {bank.number: bank.journaled for bank in self.banks}


def _in_order(rows: pa.Table) -> pa.Table:
    return rows.sort_by([("bank", "ascending"), ("account", "ascending")]).combine_chunks()


def readers_of(bootstrap_servers: str, reading: Reading, connections: ExitStack) -> list[Reader]:
    """A reader for each kind of read; `connections` is the exit stack that closes theirs."""
    return [
        Reader(name, connections.enter_context(forebay.connect(bootstrap_servers)), check)
        for name, check in reading.checks().items()
    ]
