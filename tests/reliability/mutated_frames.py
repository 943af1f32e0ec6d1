"""Mutated frames against a server process that also serves an honest client.

A session of every request that the server implements is recorded; a seeded generator changes the requests
(`mutations`), and they are sent over many connections. Meanwhile an honest client writes and reads its own tables. At
the end, everything acknowledged to the honest client is there, once; the server is alive, within its memory, without an
internal error, and stops cleanly; and the data directory verifies, including the tables that mutants changed.

    python -m tests.reliability.mutated_frames --frames 20000 --seed 7      (`make mutated-frames`)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import forebay
from forebay.base.errors import CorruptData, ForebayError
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import APIS, ApiKey, ServerRole
from forebay.server.context import HANDLERS
from forebay.testing.server import ServerProcess
from forebay.verify import verify_directory
from tests import results
from tests.client.proxy import PASS, Action, Frame, Proxy
from tests.reliability.hostile_clients import anonymous_bytes
from tests.reliability.load import check_offsets, replayed
from tests.reliability.mutations import Mutant, Mutator, Recorded, is_list, writes_to
from tests.server.raw_client import RawClient, address

BUDGET_BYTES = 128 << 20
MEMORY_MAX = BUDGET_BYTES + (384 << 20)
"""Beside the budget: interpreter, libraries, the lake engine, threads, arenas of the allocator."""

FRAMES_PER_CONNECTION = 25
FRAMES_PER_SESSION = 4000
"""After so many frames a new session is recorded, on tables that no mutant has dropped or filled yet."""

QUIET_SECONDS = 0.15
"""An answer that takes longer than this is not waited for: mutants ask to wait, too."""

_BUG = re.compile(r"internal error|Traceback \(most recent|never retrieved|never awaited|Fatal Python")
_BUG_TEXT = re.compile(r"^\w*(Error|Exception|Warning|Interrupt|StopIteration)\w*: ")
_UNKNOWN = -1


# ---- the honest client ----------------------------------------------------------------------------------------------


class Honest(AbstractContextManager["Honest"]):
    """Writes a log and a primary-key table until it is left, looks at what it wrote, and `check`s everything."""

    def __init__(self, bootstrap: str) -> None:
        self._connection = forebay.connect(bootstrap)
        admin = self._connection.admin
        self._connection.create_database("honest")
        self._connection.create_table("honest.log", pa.schema([("n", pa.int64()), ("even", pa.bool_())]), buckets=2)
        keyed = pa.schema([pa.field("k", pa.int64(), nullable=False), ("a", pa.int64()), ("b", pa.int64())])
        self._connection.create_table("honest.keys", keyed, primary_key=["k"], buckets=2)
        self.tables = {admin.table_info(name).table_id for name in ("honest.log", "honest.keys")}
        self.appended = self.rounds = 0
        self.wait_max = 0.0
        self._rows: dict[int, tuple[int, int]] = {}
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.01):
                started = time.monotonic()
                self._round()
                self.wait_max = max(self.wait_max, time.monotonic() - started)
        except BaseException as e:  # noqa: BLE001 - raised by the check
            self._error = e

    def _round(self) -> None:
        first, number = self.appended, self.rounds
        numbers = range(first, first + 5)
        self._connection.table("honest.log").append(pa.table({"n": numbers, "even": [n % 2 == 0 for n in numbers]}))
        self.appended += 5
        keys = [(number * 7 + step) % 500 for step in range(5)]
        table = self._connection.table("honest.keys")
        table.upsert(pa.table({"k": keys, "a": [number] * 5, "b": [-number] * 5}))
        self._rows.update(dict.fromkeys(keys, (number, -number)))
        found = table.lookup(pa.table({"k": keys})).to_pylist()
        assert [(row["a"], row["b"]) for row in found] == [self._rows[key] for key in keys]
        self.rounds += 1

    def check(self) -> None:
        """Stop writing and compare all that is there with all that was written."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a call of the honest client neither succeeded nor failed"
        if self._error is not None:
            raise self._error
        log = self._connection.table("honest.log").changes("earliest", "latest").to_arrow()
        check_offsets(log)
        assert sorted(log["n"].to_pylist()) == list(range(self.appended)), "a row is lost, or there twice"
        assert all((n % 2 == 0) == even for n, even in zip(log["n"].to_pylist(), log["even"].to_pylist(), strict=True))
        table = self._connection.table("honest.keys")
        found = {row["k"]: (row["a"], row["b"]) for row in table.scan().to_arrow().to_pylist()}
        assert found == self._rows
        changes = table.changes("earliest", "latest").to_arrow()
        check_offsets(changes)
        assert replayed(changes) == found

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self._connection.close()


# ---- what is mutated ------------------------------------------------------------------------------------------------

ROWS = pa.schema([
    ("id", pa.int32()), ("text", pa.string()), ("real", pa.float64()), ("price", pa.decimal128(12, 2)),
    ("at", pa.timestamp("us")), ("tags", pa.list_(pa.string())), ("raw", pa.binary()),
])  # fmt: skip


def rows(count: int) -> pa.Table:
    return pa.table(
        {
            "id": range(count), "text": [f"text {n}" for n in range(count)], "real": [n / 2 for n in range(count)],
            "price": [None] * count, "at": [None, *range(1, count)], "tags": [["a", None]] * count,
            "raw": [bytes(n % 9) for n in range(count)],
        },
        schema=ROWS,
    )  # fmt: skip


def record(bootstrap: str, database: str) -> list[Recorded]:
    """The requests of a session in a database of its own, and one of each API that our client does not send."""
    found: list[Recorded] = []

    def keep(request: Frame) -> Action:
        found.append(Recorded(request.key, APIS[request.key].server_versions.max, request.body))
        return PASS

    with Proxy(bootstrap, on_request=keep) as proxy, forebay.connect(proxy.bootstrap_servers) as connection:
        _session(connection, database)
        table = connection.admin.table_info(f"{database}.keys")
    for key in sorted({ApiKey.API_VERSIONS, ApiKey.AUTHENTICATE, *HANDLERS} - {each.key for each in found}):
        message: Any = APIS[key].request()
        _fill(message, table.table_id, database)
        found.append(Recorded(key, APIS[key].server_versions.max, message.SerializeToString()))
    return found


def _session(connection: forebay.Connection, database: str) -> None:
    admin = connection.admin
    connection.create_database(database)
    connection.create_database(f"{database}_gone")
    connection.create_table(f"{database}_gone.t", ROWS)
    connection.drop_table(f"{database}_gone.t")
    connection.drop_database(f"{database}_gone")
    admin.alter_database(database, set={"owner": "me"})
    admin.database_info(database)
    connection.database_exists(database)
    connection.create_table(f"{database}.log", ROWS, buckets=2)
    connection.create_table(f"{database}.keys", ROWS, primary_key=["id"], buckets=2)
    connection.table(f"{database}.keys").upsert(rows(30))
    parts = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("day", pa.string(), nullable=False)])
    connection.create_table(f"{database}.parts", parts, primary_key=["id", "day"], partition_keys=["day"])
    connection.table(f"{database}.parts").create_partition({"day": "d1"})
    connection.table(f"{database}.parts").create_partition({"day": "d2"})
    connection.table(f"{database}.parts").drop_partition({"day": "d2"})
    connection.table(f"{database}.parts").partitions({"day": "d1"})
    connection.table(f"{database}.parts").upsert(pa.table({"id": pa.array([1], pa.int32()), "day": ["d1"]}))
    numbered = pa.schema([pa.field("name", pa.string(), nullable=False), ("number", pa.int64())])
    connection.create_table(f"{database}.numbered", numbered, primary_key=["name"], auto_increment="number")
    pairs = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.int32(), nullable=False)])
    connection.create_table(f"{database}.pairs", pairs, primary_key=["a", "b"], bucket_keys=["a"], buckets=2)
    connection.table(f"{database}.pairs").upsert(pa.table({"a": [1, 1], "b": [1, 2]}, schema=pairs))
    connection.table(f"{database}.pairs").prefix_lookup(pa.table({"a": pa.array([1, 2], pa.int32())}))
    log, keys = connection.table(f"{database}.log"), connection.table(f"{database}.keys")
    log.append(rows(40))
    log.append(rows(3))
    keys.upsert(pa.table({"id": pa.array([1, 2], pa.int32()), "text": ["x", None]}), columns=["id", "text"])
    keys.delete(pa.table({"id": pa.array([3], pa.int32())}))
    keys.lookup(pa.table({"id": pa.array([1, 2, 3, 99], pa.int32())}))
    keys.scan(limit=3).to_arrow()
    keys.scan().to_arrow()
    with keys.snapshot(lease="30 s", name="recorded") as snapshot:
        snapshot.scan().to_arrow()
        admin.list_table_snapshots(keys.path)
    log.changes("earliest", "latest").to_arrow()
    log.changes("earliest", "latest", columns=["text"], filter=forebay.col("id") > 5).to_arrow()
    admin.list_offsets(log.path, "earliest")
    admin.list_offsets(log.path, "2023-11-14T22:13:20+00:00")
    connection.table(f"{database}.log").alter(set={"table.log.ttl": "3 d", "mine": "x"})
    connection.table(f"{database}.keys").alter(add_columns=pa.schema([("more", pa.int64())]))
    connection.list_databases()
    connection.list_tables(database)
    connection.table_exists(f"{database}.log")
    admin.table_schema(f"{database}.keys", 1)
    admin.table_stats(f"{database}.keys")
    admin.cluster_health()
    admin.describe_configs()
    with contextlib.suppress(ForebayError):  # there is no lake
        admin.lake_snapshot(f"{database}.keys")


def _fill(message: Any, table_id: int, database: str) -> None:
    """Every field of a message gets a value that may be right."""
    known = {"table_id": table_id, "database_name": database, "table_name": "keys", "timeout_ms": 1000, "bucket_id": 0}
    for place in message.DESCRIPTOR.fields:
        if place.cpp_type == place.CPPTYPE_MESSAGE:
            inner = getattr(message, place.name)
            inner = inner.add() if is_list(place) else inner
            inner.SetInParent()
            if place.message_type.name != "PbPredicate":
                _fill(inner, table_id, database)
            continue
        if place.cpp_type == place.CPPTYPE_STRING:
            value: Any = known.get(place.name, "x") if place.type == place.TYPE_STRING else b"x"
        elif place.cpp_type == place.CPPTYPE_BOOL:
            value = True
        else:
            value = known.get(place.name, 1)
        if is_list(place):
            getattr(message, place.name).append(value)
        else:
            setattr(message, place.name, value)


# ---- sending --------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What was sent, what came back, and what should not have."""

    frames: int = 0
    connections: int = 0
    answered: int = 0
    refused: Counter[int] = field(default_factory=Counter)
    closed_by_server: int = 0
    left_out: int = 0
    memory_bytes: int = 0
    unknown_errors: Counter[str] = field(default_factory=Counter)
    finds: list[str] = field(default_factory=list)
    kinds_of_finds: Counter[str] = field(default_factory=Counter)

    def find(self, kind: str, told: str) -> None:
        """Note something that should not be; the first of each kind is told in full."""
        kind = re.sub(r"\d+", "N", kind)
        self.kinds_of_finds[kind] += 1
        if self.kinds_of_finds[kind] == 1:
            self.finds.append(told)


def _send(where: str, mutants: list[Mutant], with_handshake: bool, tally: Tally) -> None:
    """All frames over one connection, then what comes back until all are answered, or nothing comes any more."""
    with contextlib.ExitStack() as stack:
        if with_handshake:
            sock = stack.enter_context(RawClient(where, timeout=10)).socket
        else:
            sock = stack.enter_context(socket.create_connection(address(where), 10))
        tally.connections += 1
        tally.frames += len(mutants)
        with contextlib.suppress(OSError):  # the server may close it before it has read all
            sock.sendall(b"".join(mutant.data for mutant in mutants))
            if mutants[-1].breaks:
                sock.shutdown(socket.SHUT_WR)
        sock.settimeout(QUIET_SECONDS)
        data, count = bytearray(), 0
        while count < len(mutants):
            try:
                piece = sock.recv(1 << 18)
            except TimeoutError:
                break
            except OSError:
                piece = b""
            if not piece:
                tally.closed_by_server += not mutants[-1].breaks
                break
            data += piece
            while len(data) >= 4 and len(data) >= (size := 4 + struct.unpack_from(">i", data)[0]):
                _judge(bytes(data[4:size]), mutants, tally)
                del data[:size]
                count += 1


def _judge(answer: bytes, mutants: list[Mutant], tally: Tally) -> None:
    tally.answered += 1
    if answer[0] == 0:
        return
    if answer[0] == 2:
        tally.find("server failure", f"a failure of the server as a whole: {answer[:200]!r}")
        return
    error = pb.ErrorResponse.FromString(answer[5:])
    tally.refused[error.error_code] += 1
    if error.error_code == _UNKNOWN:
        request_id = struct.unpack_from(">i", answer, 1)[0]
        frames = [m for m in mutants if m.data[8:12] == answer[1:5]]
        told = "; ".join(f"{m.story} [{m.data.hex()[:600]}]" for m in frames) or f"request {request_id}"
        if _BUG_TEXT.match(error.error_message):
            tally.find(error.error_message, f"internal error '{error.error_message[:200]}' after {told}")
        else:
            tally.unknown_errors[re.sub(r"\d+", "N", error.error_message)[:90]] += 1


def _mutants(mutator: Mutator, honest: set[int], tally: Tally) -> list[Mutant]:
    """Frames of one connection. Such as would write into the honest tables, and rightly so, are left out."""
    made: list[Mutant] = []
    while len(made) < FRAMES_PER_CONNECTION and not (made and made[-1].breaks):
        mutant = mutator.mutant(100 + len(made))
        if writes_to(mutant.data) in honest:
            tally.left_out += 1
        else:
            made.append(mutant)
    return made


def _new_bugs(log: Path, position: int) -> tuple[list[str], int]:
    """Internal errors in the server's log behind `position`, each with its trace."""
    with log.open("rb") as file:
        file.seek(position)
        text = file.read().decode("utf-8", "replace")
    entries = re.split(r"\n(?=\d{4}-\d\d-\d\d )", text.strip())
    return [entry[-2500:] for entry in entries if _BUG.search(entry)], log.stat().st_size


def run(folder: Path, frames: int, seed: int) -> tuple[Tally, dict[str, Any]]:
    """Send so many mutants and check everything. Returns what came back, and the figures of the run."""
    tally, started = Tally(), time.monotonic()
    server = ServerProcess(folder / "data", settings={"server.connections.memory": f"{BUDGET_BYTES}b"})
    with server, Honest(server.bootstrap_servers) as honest:
        servers = {ServerRole.COORDINATOR: server.bootstrap_servers, ServerRole.TABLET: server.ready["tablet.servers"]}
        position, session, kinds = 0, -1, 0
        while tally.frames < frames:
            number = tally.connections
            rng = random.Random(f"{seed}:{number}")
            if session != tally.frames // FRAMES_PER_SESSION:
                session = tally.frames // FRAMES_PER_SESSION
                name = random.Random(f"{seed}/{session}").randbytes(5).hex()  # no flipped bit leads to the next one
                recorded = record(server.bootstrap_servers, f"s{name}")
                kinds = len({each.key for each in recorded})
            role = rng.choice(list(servers))
            fitting = [each for each in recorded if role in APIS[each.key].roles]
            mutator = Mutator(rng, recorded if rng.random() < 0.1 else fitting)
            mutants = _mutants(mutator, honest.tables, tally)
            _send(servers[role], mutants, rng.random() > 0.05, tally)
            tally.memory_bytes = max(tally.memory_bytes, anonymous_bytes(server.pid))
            bugs, position = _new_bugs(server.log_path, position)
            for bug in bugs:
                told = "".join(f"\n  {m.story} [{m.data.hex()[:300]}]" for m in mutants)
                tally.find(bug[-160:].rpartition("\n")[2], f"seed {seed}, connection {number}: {bug}\nafter{told}")
        honest.check()
        unreadable_logs, more = _unreadable(server.bootstrap_servers)
        tally.finds += more
        code = server.stop()
        if code:
            tally.finds.append(f"the server ended with {code}: {server.log_path.read_text()[-2000:]}")
    if tally.memory_bytes > MEMORY_MAX:
        tally.finds.append(f"the server took {tally.memory_bytes:,} bytes, more than {MEMORY_MAX:,}")
    report = verify_directory(folder / "data")
    tally.finds += [str(fault) for fault in report.faults]
    figures = {
        "frames": tally.frames,
        "kinds_of_requests": kinds,
        "connections": tally.connections,
        "refused": sum(tally.refused.values()),
        "internal_errors_or_faults": len(tally.finds),
        "honest_rounds": honest.rounds,
        "honest_max_ms": round(honest.wait_max * 1000),
        "server_mb": round(tally.memory_bytes / 1e6),
        "unreadable_log_tables": unreadable_logs,
        "verified_buckets": report.counts.get("buckets", 0),
        "seconds": round(time.monotonic() - started),
        "seed": seed,
    }
    return tally, figures


def _unreadable(bootstrap: str) -> tuple[int, list[str]]:
    """Tables that mutants were let into, and that our client cannot read to their end.

    Apart: how many log tables hold a compressed buffer or a text that is none; the server does not look into these
    (docs/limits.md), and readers tell the offset.
    """
    logs, finds = 0, []
    with forebay.connect(bootstrap, retry_timeout="3 s") as connection:
        for database in connection.list_databases():
            for name in connection.list_tables(database):
                path = f"{database}.{name}"
                try:
                    table = connection.table(path)
                    found = table.changes("earliest", "latest").to_arrow()
                    if not table.info.is_partitioned:
                        check_offset_order(found)
                    if table.has_primary_key:
                        table.scan().to_arrow()
                except (ForebayError, ValueError, AssertionError) as e:
                    if isinstance(e, CorruptData) and not table.has_primary_key:
                        logs += 1
                        continue
                    finds.append(f"{path} cannot be read: {type(e).__name__}: {e}")
    return logs, finds


def check_offset_order(found: pa.Table) -> None:
    """Offsets of each bucket grow. Batches without rows, which mutants may write, take offsets without rows."""
    for bucket in set(found["__bucket"].to_pylist()):
        offsets = found.filter(pc.equal(found["__bucket"], bucket))["_log_offset"].to_numpy()
        assert (np.diff(offsets) > 0).all(), f"an offset of bucket {bucket} comes twice, or late"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--write", action="store_true", help="keep the figures for docs/correctness.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forebay-mutated-") as folder:
        tally, figures = run(Path(folder), options.frames, options.seed)
    print(json.dumps(figures, indent=2))
    print(f"refusals by code: {dict(tally.refused.most_common())}; closed by the server: {tally.closed_by_server}")
    print(f"errors of code -1: {dict(tally.unknown_errors.most_common(20))}")
    print(f"finds: {json.dumps(dict(tally.kinds_of_finds), indent=1)}")
    for find in tally.finds:
        print(f"FIND {find}\n")
    if options.write and not tally.finds:
        results.write("mutated-frames", figures)
    return 1 if tally.finds else 0


if __name__ == "__main__":
    sys.exit(main())
