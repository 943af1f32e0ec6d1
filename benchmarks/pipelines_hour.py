"""An hour of small micro-batches, and the resulting files in a snapshot with their cost for readers.

The work of tasks and driver in each micro-batch is done here without Spark in between: two tasks write data files, the
driver commits them by `StreamCommits`, and the compaction that the table requires runs. Triggers of a second would give
compaction time to finish before the next commit, so here the next commit waits for it. The result is a table like that
of a query which ran for an hour, after a minute.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.paimon_work import Lake
from benchmarks.union_work import check
from forebay.paimon.compact.running import TaskThreads
from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.table import Table
from forebay.paimon.write.table_write import WriterShard
from forebay.spark.lake_options import write_options
from forebay.spark.writing.lake_write import new_write
from forebay.spark.writing.stream_commits import Epoch, StreamCommits

BATCHES = 3600
TASKS = 2
TASK_ROWS = 50
JOB_EVERY = 10
"""A dedicated job with its standard interval (10 s) has a turn every so many micro-batches of a second."""

_SAMPLE_EVERY = 20
_WAIT_SECONDS_MAX = 300.0


@dataclass(frozen=True)
class Way:
    """How a table is compacted. `job`: by a dedicated job."""

    name: str
    options: Mapping[str, str]
    job: bool = False


NONE = Way("none (write-only)", {"write-only": "true"})
BEFORE = Way("before the commit only", {"write-only": "true", "precommit-compact": "true"})
BESIDE = Way("beside the query", {})
JOB = Way("a dedicated job", {"write-only": "true"}, job=True)
WITHIN = Way("within the commit", {"commit.force-compact": "true"})
HOUR_WAYS = (NONE, BEFORE, BESIDE, JOB)
"""`WITHIN` leaves what `BESIDE` leaves when there is no time pressure."""


@dataclass(frozen=True)
class Left:
    """The result of the micro-batches: the table, its rows, the last snapshot's files, and the maximum (sampled)."""

    table: Table
    rows: int
    files: int
    files_max: int
    seconds: float


def definition(keyed: bool, way: Way, buckets: int) -> dict[str, Any]:
    """The definition of a table: append without buckets, or with a primary key and `buckets`."""
    options = dict(way.options) | ({"bucket": str(buckets)} if keyed else {})
    return {"options": options, **({"primary_key": [data.KEY]} if keyed else {})}


def hour(lake: Lake, name: str, keyed: bool, way: Way, batches: int, buckets: int) -> Left:
    """Write `batches` micro-batches of `TASKS` * `TASK_ROWS` rows into a new table; with a key many are updates."""
    table = lake.create(name, definition(keyed, way, buckets))
    commits = StreamCommits(
        name, table, "hour", write_options(name, table, {}), lambda _what: TaskThreads(1), lambda: False, 2, table
    )
    began, files_max, keys = time.perf_counter(), 0, _keys(keyed, batches)
    with ThreadPoolExecutor(TASKS) as pool:
        for number in range(batches):
            parts = keys[number]
            messages = [m for ms in pool.map(lambda i, p=parts: _task(table, i, p[i]), range(TASKS)) for m in ms]
            commits.commit(Epoch(number, messages, TASKS * TASK_ROWS))
            if commits.background is not None:
                check(commits.background.wait_idle(_WAIT_SECONDS_MAX), f"compaction beside {name} does not end")
            if way.job and number % JOB_EVERY == JOB_EVERY - 1:
                lake.open(name).compact()
            if number % _SAMPLE_EVERY == 0:
                files_max = max(files_max, live_files(table))
    rows = len(np.unique(keys)) if keyed else keys.size
    files = live_files(table)
    return Left(lake.open(name), rows, files, max(files, files_max), time.perf_counter() - began)


def _keys(keyed: bool, batches: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Keys by micro-batch and task. A key is in one task of a batch only, as after a shuffle."""
    shape = (batches, TASKS, TASK_ROWS)
    if not keyed:
        return np.arange(batches * TASKS * TASK_ROWS, dtype=np.int64).reshape(shape)
    drawn = np.random.default_rng(17).integers(0, max(1, batches * TASK_ROWS // 2), shape)
    return (drawn * TASKS + np.arange(TASKS)[None, :, None]).astype(np.int64)


def _task(table: Table, index: int, ids: np.ndarray[Any, np.dtype[np.int64]]) -> list[CommitMessage]:
    with new_write(table.context, WriterShard(index, TASKS)) as write:
        write.write(data.batch_of(ids, int(ids[0])))
        return list(write.prepare_commit())


def live_files(table: Table) -> int:
    """The number of data files of the latest snapshot."""
    snapshot = table.context.snapshots.latest()
    return 0 if snapshot is None else len(table.context.manifests.live_files(snapshot))
