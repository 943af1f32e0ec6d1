"""The processes of the invariant. `test_pipelines` starts, kills and restarts them.

    python -m tests.pipelines.actors write|read WAREHOUSE FOLDER [--name NAME] [--spark]

With --spark they are drivers of Spark, with three streaming queries each. Without, they do what Spark does, in one
small process: a micro-batch is logged before its work begins and marked as done afterwards, and a batch that is logged
and not done is repeated after a restart. FOLDER has their checkpoints. A reader delivers each micro-batch as a file; a
repeated one must be identical.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from forebay.paimon.compact.running import TaskThreads
from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.write.table_write import WriterShard
from tests.pipelines.lake import (
    BATCH_ROWS,
    COLUMNS,
    DATABASE,
    KEY_SQL,
    SIDES,
    TABLES,
    Change,
    changes_of,
    open_table,
    rows_of_batch,
)

TASKS = 2
PAUSE_SECONDS_MAX = 0.05
"""Between steps of a query without Spark: as Spark does, it takes its time between work that is done and the note of
it, so that kills hit this moment, too."""

SPARK_TRIGGER = "500 milliseconds"
FILES_PER_BATCH = "7"


class Journal:
    """Numbered JSON files in a folder, each there whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __len__(self) -> int:
        return len(list(self._folder.glob("*.json")))

    def path(self, number: int) -> Path:
        return self._folder / f"{number}.json"

    def get(self, number: int) -> Any:
        """None where there is none."""
        path = self.path(number)
        return json.loads(path.read_text()) if path.exists() else None

    def put(self, number: int, value: Any) -> None:
        unfinished = self.path(number).with_suffix(".unfinished")
        unfinished.write_text(json.dumps(value))
        unfinished.rename(self.path(number))

    def all(self) -> list[Any]:
        return [self.get(number) for number in range(len(self))]

    def conflicts(self) -> list[Path]:
        return list(self._folder.glob("*.conflict"))


class Delivery:
    """Where a reader's micro-batches arrive, as lists of changes."""

    def __init__(self, folder: Path, reader: str, table: str) -> None:
        self.journal = Journal(folder / reader / table)

    def deliver(self, number: int, changes: Sequence[Change]) -> None:
        rows = [list(change) for change in changes]
        before = self.journal.get(number)
        if before is not None and sorted(before) != sorted(rows):
            self.journal.path(number).with_suffix(".conflict").write_text(json.dumps(rows))
        self.journal.put(number, rows)

    def changes(self) -> list[Change]:
        """All that came, in order. Nothing may have been repeated with other rows, or be left out."""
        assert not self.journal.conflicts(), f"micro-batches that came again had other rows: {self.journal.conflicts()}"
        return [(kind, key, number) for rows in self.journal.all() for kind, key, number in rows]


# ---- without Spark --------------------------------------------------------------------------------------------------


class PlainWriter:
    """A streaming query that writes one table."""

    def __init__(self, warehouse: Path, folder: Path, name: str) -> None:
        from forebay.spark.lake_options import write_options
        from forebay.spark.writing.stream_commits import StreamCommits

        self._table = open_table(warehouse, name)
        self._log, self._done = (Journal(folder / "checkpoints" / name / part) for part in ("offsets", "commits"))
        self._commits = StreamCommits(
            name, self._table, f"query-{name}", write_options(name, self._table, {}), lambda _what: TaskThreads(1),
            lambda: True, 2, self._table,
        )  # fmt: skip

    def step(self, pause: Callable[[], None]) -> None:
        from forebay.spark.writing.stream_commits import Epoch

        number = len(self._done)
        self._log.put(number, number)
        rows = rows_of_batch(number)
        messages = [m for i in range(TASKS) for m in self._task(i, [r for r in rows if r["k"] % TASKS == i])]
        self._commits.commit(Epoch(number, messages, len(rows)))
        pause()
        self._done.put(number, number)

    def _task(self, index: int, rows: list[dict[str, int]]) -> list[CommitMessage]:
        from forebay.spark.writing.lake_write import new_write

        with new_write(self._table.context, WriterShard(index, TASKS)) as write:
            write.write(pa.RecordBatch.from_pylist(rows, COLUMNS))
            return list(write.prepare_commit())


class PlainReader:
    """A streaming query that reads one table, as Spark calls its source."""

    def __init__(self, warehouse: Path, folder: Path, reader: str, name: str) -> None:
        from forebay.spark.lake_datasource import PaimonDataSource

        path = str(warehouse / f"{DATABASE}.db" / name) + SIDES[name]
        source = PaimonDataSource({"path": path, "consumer-id": reader, "maxFilesPerTrigger": FILES_PER_BATCH})
        self._reader = source.streamReader(source.schema())
        self._of_tasks = pickle.loads(pickle.dumps(source.streamReader(source.schema())))
        self._delivery = Delivery(folder, reader, name)
        self._ends, self._done = (Journal(folder / f"{reader}-{name}" / part) for part in ("offsets", "commits"))

    def step(self, pause: Callable[[], None]) -> None:
        number = len(self._done)
        start = self._ends.get(number - 1) if number else json.loads(json.dumps(self._reader.initialOffset()))
        end = self._ends.get(number)
        if end is None:
            end = json.loads(json.dumps(self._reader.latestOffset(start, self._reader.getDefaultReadLimit())))
            if end == start:
                return
            self._ends.put(number, end)
        tasks = [pickle.loads(pickle.dumps(task)) for task in self._reader.partitions(start, end)]
        batches = [batch for task in tasks for batch in self._of_tasks.read(task)]
        self._delivery.deliver(number, [change for batch in batches for change in changes_of(batch)])
        pause()
        self._done.put(number, number)
        self._reader.commit(end)


def run_plainly(queries: Sequence[PlainWriter | PlainReader], rng: random.Random) -> None:
    while True:
        for query in queries:
            query.step(lambda: time.sleep(rng.uniform(0, PAUSE_SECONDS_MAX)))
        time.sleep(rng.uniform(0, PAUSE_SECONDS_MAX))


# ---- drivers of Spark -----------------------------------------------------------------------------------------------


def session(warehouse: Path) -> Any:
    import forebay.spark

    conf = {
        "spark.ui.enabled": False,
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": 2,
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.log.level": "OFF",
    }
    return forebay.spark.session("pipelines", "local[2]", conf, catalog="lake", warehouse=str(warehouse))


def write_by_spark(spark: Any, folder: Path) -> list[Any]:
    queries = []
    for name in TABLES:
        # One partition, so that there is an order in which rows are written.
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", BATCH_ROWS)
        frame = source.option("numPartitions", 1).load().selectExpr(f"{KEY_SQL} AS k", "value AS id")
        writer = frame.writeStream.option("checkpointLocation", str(folder / "checkpoints" / name))
        queries.append(writer.trigger(processingTime=SPARK_TRIGGER).toTable(f"lake.{DATABASE}.{name}"))
    return queries


def read_by_spark(spark: Any, folder: Path, reader: str) -> list[Any]:
    queries = []
    for name in TABLES:
        delivery = Delivery(folder, reader, name)
        source = spark.readStream.option("consumer-id", reader).option("maxFilesPerTrigger", FILES_PER_BATCH)
        frame = source.table(f"lake.{DATABASE}.`{name}{SIDES[name]}`")
        writer = frame.writeStream.foreachBatch(
            lambda batch, number, delivery=delivery: delivery.deliver(number, changes_of(batch.toArrow()))
        )
        writer = writer.option("checkpointLocation", str(folder / f"{reader}-{name}"))
        query = writer.trigger(processingTime=SPARK_TRIGGER).start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(0.1)  # one after the other: Spark gives the source's process 10 s to start, whatever the load
        queries.append(query)
    return queries


def done(checkpoint: Path) -> int:
    """Micro-batches that a query, with or without Spark, has marked as done."""
    files = (checkpoint / "commits").glob("*")
    return max((int(f.stem) + 1 for f in files if f.stem.isdigit() and f.suffix in ("", ".json")), default=0)


def done_by_writer(folder: Path, name: str) -> int:
    return done(folder / "checkpoints" / name)


def done_by_reader(folder: Path, reader: str, name: str) -> int:
    return done(folder / f"{reader}-{name}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("write", "read"))
    parser.add_argument("warehouse", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", default="")
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.spark:
        spark, writes = session(options.warehouse), options.what == "write"
        queries = (
            write_by_spark(spark, options.folder) if writes else read_by_spark(spark, options.folder, options.name)
        )
        while all(query.isActive for query in queries):
            time.sleep(0.2)
        for query in queries:
            failure = query._jsq.exception()
            if failure.isDefined():
                failure.get().printStackTrace()  # Spark's message leaves out the cause
        raise SystemExit("a query has ended")
    made: list[PlainWriter | PlainReader] = [
        PlainWriter(options.warehouse, options.folder, name)
        if options.what == "write"
        else PlainReader(options.warehouse, options.folder, options.name, name)
        for name in TABLES
    ]
    run_plainly(made, random.Random(options.seed))


if __name__ == "__main__":
    main()
