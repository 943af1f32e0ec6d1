"""Writers that load a server, and checks that their acknowledged rows are there."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import forebay
from forebay.client.table import Table

SEED = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(1 << 32)))

ROWS_MAX = 40

KEYS = 300

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


def create_tables(connection: forebay.Connection, options: Mapping[str, str] | None = None) -> None:
    log = pa.schema([("writer", pa.int64()), ("n", pa.int64()), ("text", pa.string())])
    connection.create_table("fluss.log", log, buckets=3, options=options)
    connection.create_table(
        "fluss.keys",
        pa.schema([pa.field("k", pa.int64(), nullable=False), ("a", pa.int64()), ("b", pa.int64())]),
        primary_key=["k"],
        buckets=3,
        options=options,
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
