"""Our server beside Java Fluss: the same clients, rows and requests, in turns, with the CPU time of each server.

A *side* is a server with everything that drives it. Each kind of work (benchmarks/peers_work.py) runs on both sides in
every turn, after a turn that only warms up. The clients are ours and pyfluss; small requests are also sent as frames
that were encoded before, by one connection or 64, so that the client costs next to nothing.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import forebay
from benchmarks import limits
from benchmarks.peers_work import ONE, ONE_IN_MEMORY, Side, Work, all_work, tablet_of
from benchmarks.report import Grid, Kind, Limit, Section, duration, number
from benchmarks.running import Run, anonymous_bytes, scratch
from forebay.testing.server import ServerProcess

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "foreign"))  # whose modules are programs, too
from fluss_cluster import FLUSS_VERSION, RealFluss

ROWS = 500_000

_IN_MEMORY = "/dev/shm"
_BY_TIME = ("tables", "restarts")
"""What the first page shows as a time, not as a rate."""

_JAVA_NAME = f"Java Fluss {FLUSS_VERSION.partition('-')[0]}"
_JAVA = ("-XX:+UseG1GC",)
_SETTINGS = {
    "netty.server.num-network-threads": "3",
    "netty.server.num-worker-threads": "8",
    "server.io-pool.size": "10",
    "log.segment.file-size": "1gb",
    "kv.rocksdb.writebuffer.size": "64mb",
    "kv.rocksdb.block.cache-size": "8mb",
}
"""Fluss's own defaults, where the cluster of the tests has others."""


_BOUNDS = (
    "What bounds one append at a time by frames, on a RAM disk: Java's answer takes little longer than a round trip "
    "that does nothing (the first page), so nothing can be twice as fast. Of our CPU time the kernel takes a fifth "
    "(receive, write, sync, send, wait); the rest are some 150 calls of CPython from the received bytes to the answer, "
    "of which compiled code reads the frame, checks and stamps the batch, and builds the answer.",
    "What bounds one row on a disk: the second table above. Where the server's thread sleeps, more than half of "
    "its CPU time is the kernel's: switching tasks (18 %), and the kicks of a virtual disk (16 %), one for each "
    "of data, journal and commit. Tried: a lane's thread writes and syncs (172 us for an append, 365 for an "
    "upsert), the loop's own does (what is measured here); and, without a server, a log that has its length "
    "before it is written, so that the journal is not needed: a sync takes 34 us of CPU instead of 51, and 88 "
    "instead of 126 by the clock. That would bring an append to the target and an upsert near it. But a file's "
    "length would not be its log's any more: backups of a running server, which are of the moment in which they "
    "note the lengths of its logs, rest on that. Our client takes 0.6 ms for a call of one row itself; the "
    "server's core sleeps all that time, and the same work costs half as much again when it wakes: 242 and 373 "
    "us, of Java's server 275 and 615.",
    "What bounds upserts of pyfluss: it makes a row at a time, in one thread, and takes 4.6 us of CPU for each "
    '(part "Upserts by the client\'s CPU time"); no server gets more than 216,000 rows a second from it.',
    "What bounds reading a log: decompressing and checking takes the client about 170 ns of CPU a row, which Arrow "
    "spreads over the cores, and the server 30 ns; two cores cannot read more than about 10 million rows a second.",
    "What bounds appending to a log: the client compresses (zstd), checksums and sends; the server has its cores "
    "left over. The first page has what one core compresses and syncs without any server.",
    "What bounds one row of 64 connections: the driver of this benchmark is one process of Python; the first page has "
    "what it does with a process that answers at once. A driver in C gets 200,000 lookups a second from our server and "
    "105,000 from Java's, 134,000 and 85,000 appends where ours are on a RAM disk; the server's thread is busy all the "
    "time then, and of the 4.9 us of a lookup the kernel takes three quarters (receive, send, wake the driver). "
    "Appends to a disk wait for it besides, which Java's do not.",
)
"""Why some targets are out of reach, as measured in November 2026 with perf, py-spy and stopwatches."""


@dataclass(frozen=True)
class Cost:
    """The medians of one side: seconds of wall time and of the server's CPU, for each unit."""

    wall: float
    cpu: float


def run(options: Run) -> Section:
    rows = options.rows_or(ROWS)
    measured: list[tuple[Work, Cost, Cost]] = []
    with _sides(options) as (sides, unsynced):
        works, began = list(all_work(rows, unsynced is not None)), time.perf_counter()
        for done, work in enumerate(works):
            taken = time.perf_counter() - began
            left = f", about {duration(taken / done * (len(works) - done))} left" if done else ""
            options.say(f" [{done + 1}/{len(works)}{left}] {work.what}, {work.client}")
            ours = unsynced if work.in_memory and unsynced is not None else sides[0]
            measured.append((work, *_measured(work, [ours, sides[1]], options)))
        memory = [anonymous_bytes(side.pid()) / (1 << 20) for side in sides]
    missed = sum(side.missed for side in sides)
    notes = [f"Private memory of the server after all of this: ours {memory[0]:,.0f} MiB, Java's {memory[1]:,.0f} MiB."]
    notes += _BOUNDS
    if missed:
        notes.append(
            f"{missed} of Java Fluss's new tables got no leader within the time that this waits, and were replaced by "
            "another one: its coordinator misses some creations (apache/fluss#2710, mended after 0.9.1)."
        )
    with scratch(options, "limits") as folder:
        bounds = limits.of_server(folder, rows, options)
        sync = limits.sync_alone(folder / "sync")
    kinds = _kinds(measured, bounds)
    grids = [_grid(options, rows, measured), *_one_row_by_step(measured, *sync)]
    return Section("peers", "The server beside Java Fluss", grids, notes, kinds)


def _grid(options: Run, rows: int, measured: Sequence[tuple[Work, Cost, Cost]]) -> Grid:
    cells = [
        [
            work.what,
            work.client,
            f"{number(1 / ours.wall)} {work.unit}/s",
            number(1 / java.wall),
            f"{java.wall / ours.wall:.2f} x",
            f"{number(ours.cpu * 1e6)} us",
            f"{number(java.cpu * 1e6)} us",
            f"{java.cpu / ours.cpu:.2f} x" if ours.cpu else "",
        ]
        for work, ours, java in measured
    ]
    return Grid(
        "Forebay's server and Java Fluss's",
        f"Fluss {FLUSS_VERSION} with its own defaults, in a JVM for the tablet server alone (G1, C2, 1 GiB heap), on "
        "the same disk. It does not sync its log to the disk; ours does before it answers, to a RAM disk where it says "
        f"so. {rows:,} rows (upserts: half as many), acks=all. "
        f"Medians of {options.repeat} turns after one to warm up, in which both sides take turns. The ratios are ours "
        "against Java's: above 1 we are faster, or use less CPU time. CPU time is that of the server, for each row, "
        "call or request. A full scan is one of ScanKv on our side; Java Fluss has no such request, so our client "
        "reads its changelog. A restart is graceful, and counts from the start of the new process until a row is read.",
        ["work", "client", "ours", "Java's", "ratio", "server CPU, ours", "Java's", "ratio"],
        cells,
    )


def _one_row_by_step(measured: Sequence[tuple[Work, Cost, Cost]], sync_wall: float, sync_cpu: float) -> Iterator[Grid]:
    """What the server's CPU time for one row on a disk consists of, if there was a RAM disk to compare with."""
    ours = {work.what: cost for work, cost, _ in measured if work.client == "frames"}
    rows = []
    for what in ("append", "upsert"):
        disk, memory = ours[ONE.format(what)], ours.get(ONE_IN_MEMORY.format(what))
        if memory is None:
            return
        cpu = (memory.cpu, sync_cpu, disk.cpu - memory.cpu - sync_cpu, disk.cpu)
        rows.append([f"one {what}", *(f"{number(seconds * 1e6)} us" for seconds in (*cpu, memory.wall, disk.wall))])
    yield Grid(
        "One row on a disk: the server's CPU time, by step",
        "By frames, as above. A sync alone is that of a thread that writes 196 bytes at the end of a file and syncs "
        f"them, over and over, after the rest of this run; by the clock it takes {number(sync_wall * 1e6)} us, in "
        "which the thread sleeps until the device has the data, and the journal its length. The rest is what the "
        "server's thread has lost when it goes on: the core has slept, and its caches have cooled down.",
        ["work", "on a RAM disk", "a sync alone", "the rest", "on the disk", "wall, RAM disk", "wall, disk"],
        rows,
    )


def _kinds(measured: Sequence[tuple[Work, Cost, Cost]], bounds: dict[str, Limit]) -> list[Kind]:
    """The lines of the first page. Of several clients, each server is judged by the one that it is fastest with."""
    found: dict[str, list[tuple[Work, Cost, Cost]]] = {}
    for one in measured:
        found.setdefault(one[0].what, []).append(one)
    kinds = []
    for name, same in found.items():
        unit, bound = same[0][0].unit, bounds.get(name)
        if unit in _BY_TIME:
            ours = min(1000 * ours.wall for _, ours, _ in same)
            theirs = {f"{_JAVA_NAME}, {work.client}": 1000 * java.wall for work, _, java in same}
            kinds.append(Kind(name, "ms", ours, theirs, bound and Limit(bound.what, 1000 / bound.value)))
        else:
            ours = max(1 / ours.wall for _, ours, _ in same)
            theirs = {f"{_JAVA_NAME}, {work.client}": 1 / java.wall for work, _, java in same}
            kinds.append(Kind(name, f"{unit}/s", ours, theirs, bound))
    return kinds


def _measured(work: Work, sides: Sequence[Side], options: Run) -> tuple[Cost, Cost]:
    begun = [work.begin(side) for side in sides]
    taken: list[list[tuple[float, float]]] = [[] for _ in sides]
    for turn in range(0 if work.is_cold else -1, options.repeat):
        for side, does, costs in zip(sides, begun, taken, strict=True):
            before = side.cpu_seconds()
            wall = does()
            cpu = sum(seconds - before.get(thread, 0.0) for thread, seconds in side.cpu_seconds().items())
            if turn >= 0:
                costs.append((wall / work.units, cpu / work.units))
    for side in sides:
        side.opened.close()
    ours, java = (Cost(*(statistics.median(values) for values in zip(*costs, strict=True))) for costs in taken)
    options.say(
        f"   ours {number(1 / ours.wall)} {work.unit}/s, Java's {number(1 / java.wall)}: "
        f"{java.wall / ours.wall:.2f} x; CPU {number(ours.cpu * 1e6)} and {number(java.cpu * 1e6)} us"
    )
    return ours, java


@contextmanager
def _sides(options: Run) -> Iterator[tuple[list[Side], Side | None]]:
    """Ours and Java's; and another one of ours, whose files are in memory, where the system has such a directory."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch(options, "peers"))
        cluster = stack.enter_context(
            RealFluss(settings=_SETTINGS, heap_mib=1024, is_apart=True, jvm=_JAVA, parent=folder, start_seconds=120)
        )
        java = cluster.bootstrap_servers
        theirs = Side(
            _JAVA_NAME, java, tablet_of(java), stack.enter_context(forebay.connect(java)),
            pid=lambda: cluster.pid_of_tablet_server(0),
            stop=lambda: cluster.stop_tablet_server(0), start=lambda: cluster.start_tablet_server(0),
        )  # fmt: skip
        unsynced = None
        if os.access(_IN_MEMORY, os.W_OK):
            there = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-peers-", dir=_IN_MEMORY)))
            unsynced = _ours(stack, there)
        yield [_ours(stack, folder), theirs], unsynced


def _ours(stack: ExitStack, folder: Path) -> Side:
    server = stack.enter_context(ServerProcess(folder / "data"))
    bootstrap = server.bootstrap_servers
    return Side(
        "Forebay", bootstrap, tablet_of(bootstrap), stack.enter_context(forebay.connect(bootstrap)),
        pid=lambda: server.pid, stop=server.stop, start=lambda: server.start(keep_ports=True),
    )  # fmt: skip
