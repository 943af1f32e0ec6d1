"""What an upsert into many small partitions costs, in CPU time, with each changelog producer, beside Java Paimon.

Run by hand: `python -m benchmarks.paimon_partitions [partitions] [producer ...]`. A partition has one bucket and ten
rows. The first upsert creates all partitions, and the second one changes all rows. Almost all of it is a fixed cost for
each bucket: data files are written, merged with the older ones, and described in the snapshot. Only our files are
synced.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.paimon_peer import JAVA, Peer, java_peer
from benchmarks.paimon_turns import Cost, cost_of
from forebay.paimon import Catalog, Table
from tests.java_programs import ExamUnavailable

ROWS = 10
PRODUCERS = ("none", "lookup")
OURS = "Forebay"
UPSERTS = ("creates", "changes")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    producers = sys.argv[2:] or PRODUCERS
    upserts = [rows(count, value) for value in range(len(UPSERTS))]
    for producer in producers:
        with tempfile.TemporaryDirectory() as folder:
            table = _created(Path(folder), "t", producer)
            report(OURS, producer, count, lambda number: cost_of(lambda: table.upsert(upserts[number])))  # noqa: B023
    with tempfile.TemporaryDirectory() as folder:
        try:
            with java_peer(Path(folder)) as java:
                _load(java, Path(folder), upserts)
                for producer in producers:
                    report(JAVA, producer, count, lambda number: _theirs(java, Path(folder), producer, number))  # noqa: B023
        except ExamUnavailable as e:
            print(f"{JAVA}: {e}")


def rows(count: int, value: int) -> pa.Table:
    """Rows of `count` partitions, all with this value."""
    day = pa.array([day for day in range(count) for _ in range(ROWS)], pa.int32())
    row = pa.array(list(range(ROWS)) * count, pa.int64())
    return pa.table({"day": day, "id": row, "value": pa.array([value] * len(row), pa.int64())})


def report(who: str, producer: str, count: int, upsert: Callable[[int], Cost]) -> None:
    """Run both upserts, and print what they cost."""
    for number, what in enumerate(UPSERTS):
        cost = upsert(number)
        print(
            f"{who}, producer {producer}: an upsert that {what} {count:,} partitions: {cost.cpu:.1f} s CPU "
            f"({cost.kernel:.1f} s in the kernel), {1000 * cost.cpu / count:.1f} ms for each; {cost.wall:.1f} s",
            flush=True,
        )


def _definition(producer: str) -> dict[str, Any]:
    return {
        "primary_keys": ["day", "id"],
        "partition_keys": ["day"],
        "options": {"bucket": "1", "changelog-producer": producer},
    }


def _created(folder: Path, name: str, producer: str) -> Table:
    lake = Catalog.open(str(folder))
    lake.create_database("bench", ignore_if_exists=True)
    keys = _definition(producer)
    return lake.create_table(
        f"bench.{name}", rows(0, 0).schema, primary_key=keys["primary_keys"], partition_keys=keys["partition_keys"],
        options=keys["options"],
    )  # fmt: skip


def _load(java: Peer, folder: Path, upserts: list[pa.Table]) -> None:
    """Give Java the rows of each upsert as a table of ours."""
    lake = Catalog.open(str(folder / "rows"))
    lake.create_database("bench")
    for number, data in enumerate(upserts):
        lake.create_table(f"bench.rows_{number}", data.schema).append(data)
        java.ask("load", len(data), name=UPSERTS[number], alone=False, warehouse=str(folder / "rows"),
                 tables=[f"bench.rows_{number}"])  # fmt: skip


def _theirs(java: Peer, folder: Path, producer: str, number: int) -> Cost:
    request: dict[str, Any] = {"warehouse": str(folder / "theirs"), "table": f"bench.{producer}"}
    if number == 0:
        request["definition"] = _definition(producer)
    return java.ask("write", data=UPSERTS[number], **request)


if __name__ == "__main__":
    main()
