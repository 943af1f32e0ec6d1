"""A Spark driver that streams a table and its changelog into files. `test_streaming_kills` runs it, and kills it.

    python -m tests.spark.streaming_driver SERVERS TABLE FOLDER [--rows N] [--die POINT:BATCH] [--up-to-now]

In FOLDER each of the two queries has a checkpoint, and a file for each batch; a repeated batch must be identical.
`--die` ends this process, its JVM and all workers at once, as `kill -9` would, when the changelog's query reaches POINT
of batch BATCH: "entered" (the batch is logged) or "delivered" (its rows are in the file, and Spark has not committed
it).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

QUERIES = {"table": "", "changelog": "$changelog"}


class Sink:
    """One file for each batch; what is there already is compared."""

    def __init__(self, folder: Path, die: tuple[str, int] | None) -> None:
        self._folder, self._die = folder, die
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, batch: Any, number: int) -> None:
        self._die_at("entered", number)
        rows = sorted(map(repr, batch.toArrow().to_pylist()))
        path = self._folder / f"{number}.json"
        if path.exists() and json.loads(path.read_text()) != rows:
            (self._folder / f"{number}.conflict").write_text(json.dumps(rows))
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(rows))
        unfinished.rename(path)
        self._die_at("delivered", number)

    def _die_at(self, point: str, number: int) -> None:
        if self._die == (point, number):
            os.killpg(os.getpgid(0), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("servers")
    parser.add_argument("table")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", default="1000")
    parser.add_argument("--die")
    parser.add_argument("--up-to-now", action="store_true")
    options = parser.parse_args()
    point, _, number = (options.die or "").partition(":")
    die = (point, int(number)) if point else None

    import forebay.spark

    conf = {"spark.ui.enabled": False, "spark.driver.memory": "1g", "spark.sql.session.timeZone": "UTC"}
    spark = forebay.spark.session("kills", "local[2]", conf, bootstrap_servers=options.servers)
    queries = []
    for name, suffix in QUERIES.items():
        reader = spark.readStream.option("scan.startup.mode", "full").option("maxRowsPerTrigger", options.rows)
        sink = Sink(options.folder / name, die if name == "changelog" else None)
        writer = reader.table(f"forebay.{options.table.replace('.', '.`')}{suffix}`").writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(options.folder / f"{name}-checkpoint"))
        queries.append((writer.trigger(availableNow=True) if options.up_to_now else writer).start())
    while all(query.isActive for query in queries):
        time.sleep(0.1)
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
