"""Cost of work on one table in a separate process: prints the maximum growth of its memory and what Arrow had in use,
in bytes, and seconds by the clock, of CPU and of CPU in the kernel, as one line of JSON.

`python -m benchmarks.paimon_memory WORK WAREHOUSE ROWS`; the works are the keys of `WORK`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import data
from benchmarks.paimon_turns import Cost, cost_of
from benchmarks.paimon_work import APPEND, BUCKETS, COMMITS, KEYED, Lake, check_rows
from benchmarks.running import highest_memory
from forebay.paimon.table import Table

BUFFER = "32 mb"
BOUNDED = {**KEYED["options"], "write-buffer-size": BUFFER}
_REHEARSAL_ROWS = 2_000


def _stream(rows: int) -> Iterator[pa.RecordBatch]:
    """Rows generated on demand, ids unordered, so that the input does not occupy memory."""
    ids = np.random.default_rng(3).permutation(rows)
    for start in range(0, rows, data.BATCH_ROWS):
        yield data.batch_of(ids[start : start + data.BATCH_ROWS], start)


def _written(table: Table, rows: int, commits: int = 1) -> None:
    """Each commit writes a row for every key, so that all of it must be merged."""
    for _ in range(commits):
        with table.new_write() as writer:
            for batch in _stream(rows // commits):
                writer.write(batch)
            messages = writer.prepare_commit()
        table.new_commit().commit(messages)


def _consumed(lake: Lake, name: str) -> int:
    return sum(batch.num_rows for batch in lake.open(name).scan())


def _append(lake: Lake, rows: int) -> None:
    _written(lake.create("append", APPEND), rows)


def _upsert(lake: Lake, rows: int) -> None:
    _written(lake.create("upsert", {**KEYED, "options": BOUNDED}), rows)


def _prepare(lake: Lake, rows: int) -> None:
    """Create the table that the works below read, with equally many runs at all sizes: no early flushes."""
    _written(lake.create("keyed", KEYED), rows, COMMITS)


def _merge(lake: Lake, rows: int) -> None:
    check_rows(_consumed(lake, "keyed"), rows // COMMITS)


def _compact(lake: Lake, rows: int) -> None:
    lake.open("keyed").compact(full=True)


def _read(lake: Lake, rows: int) -> None:
    check_rows(_consumed(lake, "append"), rows)


def _take(lake: Lake, rows: int) -> None:
    check_rows(lake.open("append").scan().to_arrow().num_rows, rows)


WORK: dict[str, Callable[[Lake, int], None]] = {
    "append": _append,
    "upsert": _upsert,
    "prepare": _prepare,
    "merge": _merge,
    "compact": _compact,
    "read": _read,
    "take": _take,
}
"""By name, in the order in which they must run on one warehouse."""

LABELS = {
    "append": "append in one commit",
    "upsert": f"primary-key write in one commit, write-buffer-size {BUFFER}",
    "merge": f"merge-on-read of {COMMITS} commits, {BUCKETS} buckets",
    "compact": "full compaction of the same",
    "read": "read of the append table",
}


def peak_bytes(work: str, warehouse: Path, rows: int) -> tuple[int, int]:
    """The maximum growth of the memory of a fresh process while it works, and the part of it that Arrow had in use at
    most: the rest is what its allocator keeps for the next batch."""
    found = _measured(work, warehouse, rows)
    return int(found["bytes"]), int(found["arrow"])


def first_cost(work: str, warehouse: Path, rows: int, environment: Mapping[str, str]) -> Cost:
    """The cost of the work in a fresh process."""
    found = _measured(work, warehouse, rows, environment)
    return Cost(found["wall"], found["cpu"], found["kernel"])


def _measured(work: str, warehouse: Path, rows: int, environment: Mapping[str, str] = MappingProxyType({})) -> Any:
    command = [sys.executable, "-m", "benchmarks.paimon_memory", work, str(warehouse), str(rows)]
    root = Path(__file__).resolve().parents[1]
    variables = {**os.environ, **environment}
    done = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{work} of {rows} rows failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    work, warehouse, rows = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    rehearsal = warehouse / "rehearsal"  # one-time loading is not memory of the work
    rehearsal.mkdir(parents=True, exist_ok=True)
    WORK[work](Lake(rehearsal, sync=False), _REHEARSAL_ROWS)
    lake = Lake(warehouse, sync=False)
    with highest_memory(os.getpid()) as growth:
        cost = cost_of(lambda: WORK[work](lake, rows))
    print(json.dumps({"bytes": growth[0], "arrow": pa.default_memory_pool().max_memory(), **asdict(cost)}))


if __name__ == "__main__":
    main()
