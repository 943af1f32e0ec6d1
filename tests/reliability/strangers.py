"""Writers of pyfluss while their server fails: it keeps what it has acknowledged to a third-party client.

pyfluss writes with acks=all and its idempotent writer, which numbers batches and resends unacknowledged ones. The
outcome of rows that it gives up on is unknown: they may be there, once.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

import forebay
from tests.reliability.jobs import Killable
from tests.reliability.load import check_offsets, replayed

fluss = pytest.importorskip("fluss")

SEED = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(1 << 32)))
ROWS_MAX = 60
KEYS = 200
WAIT_MAX_SECONDS = 60.0

LOG = pa.schema([("writer", pa.int64()), ("n", pa.int64())])
KEYED = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])

Row = tuple[int, int]
LookUp = Callable[[list[int]], list[Row | None]]


async def connect(address: str) -> Any:
    settings = {"bootstrap.servers": address, "writer.acks": "all", "writer.enable-idempotence": "true"}
    config = fluss.Config(settings)
    config.writer_batch_timeout_ms = 5
    return await fluss.FlussConnection.create(config)


@dataclass
class Stranger:
    """A writer with a connection of its own, which it makes again after an error, as a program would."""

    address: str
    number: int
    sent: int = 0
    acknowledged: int = 0
    errors: list[str] = field(default_factory=list)

    async def run(self, stop: asyncio.Event) -> None:
        rng = random.Random(SEED + self.number)
        while not stop.is_set():
            async with AsyncExitStack() as stack:
                try:
                    connection = await stack.enter_async_context(await connect(self.address))
                    writer = await self.writer(connection)
                except fluss.FlussError as e:
                    self.errors.append(str(e))  # no server at this moment
                    await asyncio.sleep(0.05)
                    continue
                while not stop.is_set() and await self.write(writer, rng):
                    await asyncio.sleep(0)

    async def writer(self, connection: Any) -> Any:
        raise NotImplementedError

    async def write(self, writer: Any, rng: random.Random) -> bool:
        """Write some rows and wait for their answers; False after an error."""
        raise NotImplementedError

    async def told(self, handles: list[Any]) -> list[bool]:
        """Which of these writes were acknowledged."""
        async with asyncio.timeout(WAIT_MAX_SECONDS):
            outcomes = await asyncio.gather(*(handle.wait() for handle in handles), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                if not isinstance(outcome, fluss.FlussError):
                    raise outcome
                self.errors.append(str(outcome))
        told = [not isinstance(outcome, BaseException) for outcome in outcomes]
        self.sent += len(told)
        self.acknowledged += sum(told)
        return told


@dataclass
class Appender(Stranger):
    """Appends rows numbered 0, 1, 2, ...; `kept` must be there once, others that were sent at most once."""

    kept: set[int] = field(default_factory=set)

    async def writer(self, connection: Any) -> Any:
        table = await connection.get_table(fluss.TablePath("fluss", "log"))
        return table.new_append().create_writer()

    async def write(self, writer: Any, rng: random.Random) -> bool:
        numbers = range(self.sent, self.sent + rng.randint(1, ROWS_MAX))
        told = await self.told([writer.append([self.number, n]) for n in numbers])
        self.kept.update(n for n, kept in zip(numbers, told, strict=True) if kept)
        return all(told)


@dataclass
class Upserter(Stranger):
    """Upserts and deletes keys of its own; `may_be` holds what a key may be: the last that was told, or newer."""

    may_be: dict[int, list[Row | None]] = field(default_factory=dict)
    version: int = 0

    async def writer(self, connection: Any) -> Any:
        table = await connection.get_table(fluss.TablePath("fluss", "keys"))
        return table.new_upsert().create_writer()

    async def write(self, writer: Any, rng: random.Random) -> bool:
        keys = [self.number * KEYS + k for k in rng.sample(range(KEYS), rng.randint(1, ROWS_MAX))]
        self.version += 1
        row = None if rng.random() < 0.25 else (self.version, -self.version)
        if row is None:  # only rows that are there: a batch that changes nothing takes an offset without a row
            keys = [k for k in keys if len(rows := self.may_be.get(k, [None])) == 1 and rows[0] is not None]
        handles = [
            writer.delete({"k": k}) if row is None else writer.upsert({"k": k, "a": row[0], "b": row[1]}) for k in keys
        ]
        told = await self.told(handles)
        for key, kept in zip(keys, told, strict=True):
            self.may_be[key] = [row] if kept else [*self.may_be.get(key, [None]), row]
        return all(told)


def check_log(connection: forebay.Connection, writers: list[Appender]) -> None:
    found = connection.table("fluss.log").changes("earliest", "latest").to_arrow()
    check_offsets(found)
    times = Counter(zip(found["writer"].to_pylist(), found["n"].to_pylist(), strict=True))
    assert set(times.values()) <= {1}, "a row is there twice"
    for writer in writers:
        there = {n for number, n in times if number == writer.number}
        assert writer.kept <= there, "a row that was acknowledged is lost"
        assert there <= set(range(writer.sent)), "a row is there that was never sent"
    assert {number for number, _ in times} <= {writer.number for writer in writers}


def check_keys(connection: forebay.Connection, writers: list[Upserter], look_up: LookUp) -> None:
    """`look_up`: by the client that has written, because pyfluss puts keys into other buckets (docs/limits.md)."""
    table = connection.table("fluss.keys")
    scanned = table.scan().to_arrow().to_pylist()
    found = {row["k"]: (row["a"], row["b"]) for row in scanned}
    assert len(scanned) == len(found)
    may_be = {key: rows for writer in writers for key, rows in writer.may_be.items()}
    assert set(found) <= set(may_be), "a key is there that was never sent"
    for key, rows in may_be.items():
        assert found.get(key) in rows, f"key {key} is neither what was acknowledged last nor newer"
    changes = table.changes("earliest", "latest").to_arrow()
    check_offsets(changes)
    assert replayed(changes) == found
    keys = sorted(found)[:100]
    assert look_up(keys) == [found[key] for key in keys]


async def looked_up(address: str, keys: list[int]) -> list[Row | None]:
    """The rows of keys, as pyfluss finds them."""
    async with await connect(address) as connection:
        table = await connection.get_table(fluss.TablePath("fluss", "keys"))
        lookups = (table.new_lookup().create_lookuper().lookup({"k": key}) for key in keys)
        rows = await asyncio.gather(*lookups)  # the calls of one lookuper wait for each other
    return [None if row is None else (row["a"], row["b"]) for row in rows]


async def under_kills(server: Killable, writers: list[Stranger], rounds: int) -> None:
    """All writers at work while the server is killed and started again."""
    rng, stop = random.Random(SEED), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(writer.run(stop))
        for _ in range(rounds):
            before = [writer.acknowledged for writer in writers]
            async with asyncio.timeout(WAIT_MAX_SECONDS):
                while any(w.acknowledged == b for w, b in zip(writers, before, strict=True)):
                    await asyncio.sleep(0.01)  # each writer goes on after each kill
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start, keep_ports=True)
        stop.set()


def check_strangers(server: Killable, address: str, rounds: int) -> dict[str, int]:
    """pyfluss writes while the server is killed; return how many rows were acknowledged, and how many given up."""
    with forebay.connect(address) as connection:
        connection.create_table("fluss.log", LOG, buckets=3)
        connection.create_table("fluss.keys", KEYED, primary_key=["k"], buckets=3)
    appenders, upserters = [Appender(address, n) for n in (0, 1)], [Upserter(address, n) for n in (2, 3)]
    writers: list[Stranger] = [*appenders, *upserters]
    asyncio.run(under_kills(server, writers, rounds))
    with forebay.connect(address) as connection:
        check_log(connection, appenders)
        check_keys(connection, upserters, lambda keys: asyncio.run(looked_up(address, keys)))
    acknowledged = sum(writer.acknowledged for writer in writers)
    given_up = sum(writer.sent - writer.acknowledged for writer in writers)
    errors = Counter(error[:120] for writer in writers for error in writer.errors)
    print(f"{acknowledged:,} rows were acknowledged and found, {given_up} given up; errors: {dict(errors)}")
    return {"acknowledged_rows": acknowledged, "given_up_rows": given_up, "lost_or_doubled": 0}
