"""Concurrent processes on one table: writers, deletes, overwrites, compactors, expiry, rescaling. No row is lost.

Every writer has a separate partition, as Paimon requires for primary-key tables, so the expected result is known.
`PAIMON_RACES` sets the number of commits of each writer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay.base.errors import Conflict, InvalidRequest, NotFound
from forebay.paimon.table import Table
from tests.every_run import every_run
from tests.paimon.kills import start_process
from tests.paimon.lake import at_ms, put
from tests.paimon.maintain.lakes import FAST, files_of, make_table, referenced, rows
from tests.patience import until

COMMITS = int(os.environ.get("PAIMON_RACES", "8"))
COLUMNS = pa.schema([("p", pa.int32()), ("id", pa.int64()), ("v", pa.int64())])
RETRIES = {"commit.max-retries": "1000", "commit.min-retry-wait": "1 ms", "commit.max-retry-wait": "50 ms"}
KEEP = {"snapshot.num-retained.min": "1000", "snapshot.num-retained.max": "1000000"}


def opened(root: str) -> Table:
    return Table(FAST, root)


def plan_of(worker: int) -> list[tuple[str, list[dict[str, int]]]]:
    """What a writer does to its partition, one commit after the other."""
    rng = np.random.default_rng(worker)
    acts = []
    for i in range(COMMITS):
        act = str(rng.choice(["write", "write", "write", "delete", "overwrite"]))
        keys = rng.choice(12, size=6, replace=False).tolist()
        acts.append((act, [{"p": worker, "id": int(k), "v": i} for k in keys]))
    return acts


def state_of(worker: int, keyed: bool) -> list[tuple[int, int, int]]:
    state: list[tuple[int, int, int]] = []
    for act, changed in plan_of(worker):
        new = [(r["p"], r["id"], r["v"]) for r in changed]
        if act == "overwrite":
            state = new
        elif keyed:
            keys = {r[1] for r in new}
            state = [r for r in state if r[1] not in keys] + (new if act == "write" else [])
        elif act == "write":
            state += new
    return sorted(state)


def write(root: str, worker: int, keyed: bool) -> None:
    for act, changed in plan_of(worker):
        table = opened(root)
        if act == "overwrite":
            table.overwrite(changed, {"p": worker})
        elif act == "write":
            put(table, changed)
        elif keyed:
            table.delete([{"p": r["p"], "id": r["id"]} for r in changed])


def until_stopped(root: str, stop: str, act: str) -> None:
    """Compact or expire, again and again."""
    rng = np.random.default_rng(len(act))
    while not os.path.exists(stop):
        try:
            if act == "compact":
                opened(root).compact(full=bool(rng.integers(0, 2)))
            else:
                opened(root).expire_snapshots(1, 4)
        except (Conflict, NotFound):  # others were faster, or took away what was being compacted
            continue


def finish(processes: list[Any], timeout: float = 90) -> None:
    """Wait for all; one that failed fails the test."""
    for process in processes:
        process.join(timeout)
        code = process.exitcode
        if code is None:
            process.kill()
            process.join()
        assert code == 0


def run_beside(tmp_path: Path, writers: list[Any], upkeep: Callable[[str], list[Any]]) -> None:
    stop = tmp_path / "stop"
    others = upkeep(str(stop))
    try:
        finish(writers)
    finally:
        stop.touch()
        finish(others)


@pytest.mark.parametrize("kind", every_run(["keyed", "append", "append with buckets"], ("keyed",).__contains__))
def test_processes_that_write_delete_overwrite_compact_and_expire_lose_no_row(tmp_path: Path, kind: str) -> None:
    keyed = kind == "keyed"
    root = str(tmp_path / "t")
    options = {**RETRIES, **KEEP, "write-only": "false", "compaction.min.file-num": "3"}
    if kind != "append":
        options["bucket"] = "2"
    if kind == "append with buckets":
        options["bucket-key"] = "id"
    make_table(root, options, COLUMNS, ("p", "id") if keyed else (), ("p",))
    workers = range(3)
    run_beside(
        tmp_path,
        [start_process(write, root, worker, keyed) for worker in workers],
        lambda stop: [start_process(until_stopped, root, stop, act) for act in ("compact", "compact", "expire")],
    )
    table = opened(root)
    assert rows(table) == [row for worker in workers for row in state_of(worker, keyed)]
    table.compact(full=True)
    assert rows(opened(root)) == [row for worker in workers for row in state_of(worker, keyed)]
    table.new_commit().compact_manifests()
    table.expire_snapshots(1, 1)
    time.sleep(0.01)
    table.remove_orphan_files(older_than=at_ms(int(time.time() * 1000)))
    assert rows(opened(root)) == [row for worker in workers for row in state_of(worker, keyed)]
    assert files_of(root) == referenced(root)


STREAMED = 4 * COMMITS


def stream(root: str, user: int, rescaled: str) -> None:
    """Commits batch after batch to its partition; begins again behind the last commit when the table was rescaled, and
    waits for that before the last half if it has not been (`rescaled` is not there)."""
    while True:
        try:
            with opened(root).stream_writer(f"job{user}") as writer:
                done = writer.last_committed
                for number in range(0 if done is None else done + 1, STREAMED):
                    if number == STREAMED // 2:
                        until(lambda: os.path.exists(rescaled), "the table is rescaled")
                    put(writer, [{"p": user, "id": 10 * number + i, "v": number} for i in range(5)])
                    writer.commit(number)
            return
        except (Conflict, InvalidRequest):
            continue


def test_streams_continue_through_rescaling(tmp_path: Path) -> None:
    root = str(tmp_path / "t")
    make_table(root, {**RETRIES, **KEEP, "bucket": "2", "write-only": "false"}, COLUMNS, ("p", "id"), ("p",))
    rescaled = tmp_path / "rescaled"
    streams = [start_process(stream, root, user, str(rescaled)) for user in range(2)]
    counts = []
    for buckets in (3, 1, 4):
        while any(s.is_alive() for s in streams):
            before = opened(root).context.snapshots.latest_id() or 0
            try:
                opened(root).rescale(buckets)
            except Conflict:
                continue
            counts.append(buckets)
            rescaled.touch()
            while any(s.is_alive() for s in streams) and (opened(root).context.snapshots.latest_id() or 0) < before + 8:
                time.sleep(0.01)
            break
    finish(streams)
    table = opened(root).rescale(5)
    expected = [(p, 10 * n + i, n) for p in range(2) for n in range(STREAMED) for i in range(5)]
    assert rows(table) == expected
    latest = table.context.snapshots.latest()
    assert latest is not None
    assert {e.total_buckets for e in table.context.manifests.live_files(latest)} == {5}
    assert counts, "the table was rescaled while streams wrote"
    for user in range(2):
        mine = [s.commit_identifier for s in table.context.snapshots.snapshots() if s.commit_user == f"job{user}"]
        assert sorted(set(mine)) == list(range(STREAMED))
