"""What an upsert into many small partitions costs, in CPU time of this process, with each changelog producer.

Run by hand: `python -m benchmarks.paimon_partitions [partitions] [producer ...]`. A partition has one bucket and ten
rows. The first upsert creates all partitions, and the second one changes all rows. Almost all of it is a fixed cost for
each bucket: data files are written, merged with the older ones, and described in the snapshot.
"""

from __future__ import annotations

import os
import sys
import tempfile

import pyarrow as pa

from forebay.paimon import Catalog

ROWS = 10
PRODUCERS = ("none", "lookup")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    for producer in sys.argv[2:] or PRODUCERS:
        with tempfile.TemporaryDirectory() as folder:
            measure(folder, count, producer)


def measure(folder: str, count: int, producer: str) -> None:
    lake = Catalog.open(folder)
    lake.create_database("bench")
    table = lake.create_table(
        "bench.t",
        pa.schema([("day", pa.int32()), ("id", pa.int64()), ("value", pa.int64())]),
        primary_key=["day", "id"],
        partition_keys="day",
        options={"bucket": "1", "changelog-producer": producer},
    )
    day = pa.array([day for day in range(count) for _ in range(ROWS)], pa.int32())
    row = pa.array(list(range(ROWS)) * count, pa.int64())
    for number, name in enumerate(("creates", "changes")):
        before = os.times()
        table.upsert(pa.table({"day": day, "id": row, "value": pa.array([number] * len(row), pa.int64())}))
        after = os.times()
        user, system = after.user - before.user, after.system - before.system
        print(
            f"producer {producer}: an upsert that {name} {count:,} partitions: "
            f"{user:.1f} s user and {system:.1f} s system, {1000 * (user + system) / count:.1f} ms for each"
        )


if __name__ == "__main__":
    main()
