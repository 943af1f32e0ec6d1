"""`kill -9` under load: acknowledged rows are found again, once, in order.

Writers continue through the kills: their client resends unacknowledged batches, and the server recognises those that it
had written before (idempotent writing). Now and then a second server is started on the directory, and refused.
KILL_ROUNDS sets the number of kills with each engine (`make kill-trials`: 100).
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import forebay
from forebay.base.errors import ForebayError
from forebay.client.table import Table
from forebay.testing.server import ServerProcess
from forebay.verify import verify_directory, verify_server
from tests import results
from tests.every_run import every_run
from tests.reliability.second_server import check_refused

ROUNDS = int(os.environ.get("KILL_ROUNDS", "2"))
SEED = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(1 << 32)))
ROWS_MAX = 40
KEYS = 300
ROUNDS_BETWEEN_CHECKS = 10

# Small, so that rolled segments, checkpoints of the state and their recovery are part of every round.
SETTINGS = {
    "log.segment.file-size": "256kb",
    "kv.checkpoint.records": "4000",
    "kv.snapshot.interval": "1 s",
    "log.replica.high-watermark.checkpoint-interval": "500 ms",
}


class Writer:
    """Writes until told to stop; notes what was acknowledged. A write that fails ends it, and the test."""

    def __init__(self, connection: forebay.Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.rng = random.Random(SEED + number)
        self.acknowledged = 0
        self.error: BaseException | None = None

    def run(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                self.write()
        except BaseException as e:  # noqa: BLE001 - raised by the test
            self.error = e

    def write(self) -> None:
        raise NotImplementedError


class LogWriter(Writer):
    """Appends rows numbered 0, 1, 2, ... in one sequence."""

    def write(self) -> None:
        count = self.rng.randint(1, ROWS_MAX)
        first = self.acknowledged
        rows = {"writer": [self.number] * count, "n": range(first, first + count), "text": ["x" * 100] * count}
        self.connection.table("fluss.log").append(pa.table(rows))
        self.acknowledged += count


class KeyWriter(Writer):
    """Puts, partly updates and deletes keys of its own; `rows` is what the table must hold of them."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.rows: dict[int, tuple[int, int | None]] = {}
        self.version = 0

    def write(self) -> None:
        table = self.connection.table("fluss.keys")
        keys = [self.number * KEYS + k for k in self.rng.sample(range(KEYS), self.rng.randint(1, ROWS_MAX))]
        self.version += 1
        action = self.rng.choice(("put", "put", "partial", "delete"))
        if action == "put":
            table.upsert(pa.table({"k": keys, "a": [self.version] * len(keys), "b": [self.version] * len(keys)}))
            self.rows.update(dict.fromkeys(keys, (self.version, self.version)))
        elif action == "partial":
            table.upsert(pa.table({"k": keys, "a": [self.version] * len(keys)}), columns=["k", "a"])
            self.rows.update({k: (self.version, self.rows.get(k, (0, None))[1]) for k in keys})
        else:
            # Only of rows that are there: a batch that changes nothing takes an offset without a row.
            keys = [k for k in keys if k in self.rows]
            table.delete(pa.table({"k": pa.array(keys, pa.int64())}))
            for k in keys:
                self.rows.pop(k, None)
        self.acknowledged += len(keys)


def create_tables(connection: forebay.Connection) -> None:
    connection.create_table(
        "fluss.log", pa.schema([("writer", pa.int64()), ("n", pa.int64()), ("text", pa.string())]), buckets=3
    )
    connection.create_table(
        "fluss.keys",
        pa.schema([pa.field("k", pa.int64(), nullable=False), ("a", pa.int64()), ("b", pa.int64())]),
        primary_key=["k"],
        buckets=3,
    )


def check_log(table: Table, writers: list[LogWriter]) -> None:
    found = table.changes("earliest", "latest").to_arrow()
    check_offsets(found)
    for writer in writers:
        numbers = found.filter(pc.equal(found["writer"], writer.number))["n"].to_pylist()
        assert sorted(numbers) == list(range(writer.acknowledged)), "a row is lost, or there twice"


def check_offsets(found: pa.Table) -> None:
    for bucket in set(found["__bucket"].to_pylist()):
        part = found.filter(pc.equal(found["__bucket"], bucket))
        offsets = part["_log_offset"].to_numpy()
        assert np.array_equal(offsets, np.arange(len(offsets))), f"bucket {bucket} has a gap, or an offset twice"
        times = part["_commit_timestamp"].cast(pa.int64()).to_numpy()
        assert np.all(np.diff(times) >= 0), f"commit timestamps of bucket {bucket} go back"


def check_keys(table: Table, writers: list[KeyWriter]) -> None:
    expected = {key: row for writer in writers for key, row in writer.rows.items()}
    scanned = table.scan().to_arrow().to_pylist()
    assert {row["k"]: (row["a"], row["b"]) for row in scanned} == expected
    assert len(scanned) == len(expected)
    changes = table.changes("earliest", "latest").to_arrow()
    check_offsets(changes)
    assert replayed(changes) == expected
    keys = sorted(expected)[:200]
    if keys:
        assert [(r["a"], r["b"]) for r in table.lookup(pa.table({"k": keys})).to_pylist()] == [
            expected[k] for k in keys
        ]


def replayed(changes: pa.Table) -> dict[int, tuple[int, int | None]]:
    """The state that the changelog amounts to; each change must fit what was there before it."""
    rows: dict[int, tuple[int, int | None]] = {}
    for change in changes.to_pylist():
        kind, key, row = change["_change_type"], change["k"], (change["a"], change["b"])
        if kind == "insert":
            assert key not in rows
        else:
            assert kind == "update_after" or rows[key] == row, "the old row of a change is not the row that was there"
        if kind == "delete":
            del rows[key]
        elif kind != "update_before":
            rows[key] = row
    return rows


@contextmanager
def load(writers: list[Writer]) -> Iterator[None]:
    """All writers at work; at the end each has finished its last write."""
    stop = threading.Event()
    threads = [threading.Thread(target=writer.run, args=(stop,), daemon=True) for writer in writers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    for writer in writers:
        if writer.error is not None:
            raise writer.error
    assert not any(thread.is_alive() for thread in threads), "a write neither succeeded nor failed"


@pytest.mark.timeout(300 + 10 * ROUNDS)
@pytest.mark.parametrize("engine", every_run(["hlog", "lmdb"], lambda engine: engine == "hlog"))
def test_acknowledged_writes_survive_kills(tmp_path, engine):
    rng = random.Random(SEED)
    print(f"seed {SEED}, {ROUNDS} kills with {engine}")
    server = ServerProcess(tmp_path / "data", settings={**SETTINGS, "kv.engine": engine})
    with server, forebay.connect(server.bootstrap_servers) as connection:
        create_tables(connection)
        log_writers = [LogWriter(connection, number) for number in (0, 1)]
        key_writers = [KeyWriter(connection, number) for number in (2, 3)]
        for round_ in range(ROUNDS):
            with load([*log_writers, *key_writers]):
                time.sleep(rng.uniform(0.02, 0.6))
                server.kill()
                server.start(keep_ports=True)
            if round_ % ROUNDS_BETWEEN_CHECKS == ROUNDS_BETWEEN_CHECKS - 1 or round_ == ROUNDS - 1:
                check_refused(server.data_dir)
                check_log(connection.table("fluss.log"), log_writers)
                check_keys(connection.table("fluss.keys"), key_writers)
        assert all(writer.acknowledged for writer in (*log_writers, *key_writers))
        acknowledged = sum(w.acknowledged for w in (*log_writers, *key_writers))
        print(f"{acknowledged:,} rows were acknowledged, all were found")
        figures = {"kills": ROUNDS, "acknowledged_rows": acknowledged, "lost_or_doubled": 0, "seed": SEED}
        report = verify_server(connection)
        assert report.findings == []
        assert report.counts["buckets"] == 6
        server.kill()
    offline = verify_directory(tmp_path / "data")
    assert offline.faults == []
    assert offline.counts["key-value states"] == 3
    results.write_if_wanted(f"kill-trials.{engine}", figures)


@pytest.mark.slow
def test_a_kill_while_the_server_recovers_loses_nothing(tmp_path):
    rng = random.Random(SEED)
    server = ServerProcess(tmp_path / "data", settings=SETTINGS)
    with server, forebay.connect(server.bootstrap_servers) as connection:
        create_tables(connection)
        writers = [KeyWriter(connection, number) for number in (0, 1)]
        with load(writers):
            time.sleep(1.0)
        for _ in range(4):
            server.kill()
            server.start(keep_ports=True)
            touch = threading.Thread(target=_try_to_read, args=(server.bootstrap_servers,), daemon=True)
            touch.start()  # opening a bucket is what recovers it
            time.sleep(rng.uniform(0.0, 0.05))
        server.kill()
        server.start(keep_ports=True)
        check_keys(connection.table("fluss.keys"), writers)


def _try_to_read(bootstrap_servers: str) -> None:
    with (
        contextlib.suppress(ForebayError),
        forebay.connect(bootstrap_servers, retry_timeout="1 s", request_timeout="1 s") as connection,
    ):
        connection.table("fluss.keys").scan().to_arrow()
