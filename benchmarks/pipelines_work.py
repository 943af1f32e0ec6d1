"""The work of the benchmark of lake tables in Spark: streams that write them, scans, and INSERT."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.paimon_turns import Cost
from benchmarks.paimon_work import CODEC, LEVEL, Lake
from benchmarks.pipelines_hour import Way, definition
from benchmarks.spark import CORES, cpu_now
from benchmarks.union_work import check

WARM_BATCHES = 4
_POLL_SECONDS = 0.02
_WAIT_SECONDS_MAX = 600.0
_ZSTD_LEVEL = "parquet.compression.codec.zstd.level"

_COLUMNS = (
    "CAST(pmod(hash(value), 1000) AS INT) AS quantity",
    "pmod(xxhash64(value), 1000000) / 1000.0D AS price",
    "substr(hex(xxhash64(value, 7)), 1, 12) AS customer",
    "element_at(array('ordered ', 'packed  ', 'shipped ', 'returned'), CAST(pmod(value, 4) AS INT) + 1) AS status",
    "timestamp_micros(1700000000000000 + pmod(xxhash64(value, 1), 1000000000000))::timestamp_ntz AS changed_at",
    "value % 2 = 0 AS paid",
    "CAST(pmod(xxhash64(value, 2), 10000000) / 100 AS DECIMAL(12, 2)) AS amount",
)
"""The columns of a row with number `value` after the key, as in `data.SCHEMA`."""


class Pipelines:
    """A Spark session with a lake, and Parquet files beside it.

    Tables of streams are kept until everything is removed: a task, or compaction, may still be running after their end.
    """

    def __init__(self, session: Any, lake: Lake, folder: Path) -> None:
        self.session, self.lake, self.folder = session, lake, folder
        self._numbers = count()

    def new_name(self) -> str:
        return f"t{next(self._numbers)}"

    @staticmethod
    def spark_name(name: str) -> str:
        return f"lake.db.{name}"

    # ---- streams ----------------------------------------------------------------------------------------------------

    def into_files(self, rows: int, batches: int) -> Cost:
        """The cost of `batches` micro-batches of `rows` rows into Spark's own sink of Parquet files."""
        target = self.folder / self.new_name()
        writer = self._writer(False, rows, batches, target).option("compression", CODEC).option(_ZSTD_LEVEL, LEVEL)
        return self._stream(lambda: writer.format("parquet").start(str(target)), batches)

    def into_table(self, keyed: bool, way: Way, rows: int, batches: int, buckets: int) -> Cost:
        """The cost of a stream into a new table, compacted that way."""
        name = self.new_name()
        table = self.lake.create(name, definition(keyed, way, buckets))
        writer = self._writer(keyed, rows, batches, self.folder / name)
        with self._job(name) if way.job else _nothing():
            cost = self._stream(lambda: writer.toTable(self.spark_name(name)), batches)
        snapshot = table.context.snapshots.latest()
        check(snapshot is not None, f"a stream has written nothing into {name}")
        return cost

    def _writer(self, keyed: bool, rows: int, batches: int, target: Path) -> Any:
        source = self.session.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
        keys = max(1, rows * batches // 2)
        key = f"pmod(xxhash64(value, 3), {keys})" if keyed else "value"
        frame = source.option("numPartitions", CORES).load().selectExpr(f"{key} AS {data.KEY}", *_COLUMNS)
        return frame.writeStream.option("checkpointLocation", f"{target}-checkpoint")

    def _stream(self, start: Callable[[], Any], batches: int) -> Cost:
        """The cost of `batches` micro-batches after some warm-up, including everything that runs beside them."""
        query = start()
        try:
            first = self._wait_for(query, WARM_BATCHES)
            wall, cpu = time.perf_counter(), self._cpu()
            last = self._wait_for(query, first + batches)
            share = batches / (last - first)
            return Cost((time.perf_counter() - wall) * share, (self._cpu() - cpu) * share)
        finally:
            query.stop()

    @staticmethod
    def _wait_for(query: Any, done: int) -> int:
        """Wait until so many micro-batches are done; return the number done."""
        deadline = time.monotonic() + _WAIT_SECONDS_MAX
        while True:
            if query.exception() is not None:
                raise query.exception()
            progress = query.lastProgress
            if progress is not None and progress["batchId"] + 1 >= done:
                return int(progress["batchId"]) + 1
            check(time.monotonic() < deadline, f"a stream does not get to micro-batch {done}")
            time.sleep(_POLL_SECONDS)

    @contextmanager
    def _job(self, name: str) -> Iterator[None]:
        """`forebay compact --watch` beside the query, with one thread, in a separate process."""
        command = [
            sys.executable, "-m", "forebay", "compact", "-w", str(self.lake.folder), "--table", f"db.{name}",
            "--watch", "--interval", "1 s", "--threads", "1",
        ]  # fmt: skip
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + _WAIT_SECONDS_MAX
            while b"stop it with" not in log.read_bytes():
                check(process.poll() is None and time.monotonic() < deadline, f"no job: {log.read_text()}")
                time.sleep(_POLL_SECONDS)
            yield
            check(process.poll() is None, f"the compaction job has ended: {log.read_text()[-2000:]}")
        finally:
            process.kill()
            process.wait()

    # ---- statements -------------------------------------------------------------------------------------------------

    def cost(self, work: Callable[[], Any]) -> Cost:
        """The cost of running `work` once. CPU time is that of this process, Spark and its workers."""
        wall, cpu = time.perf_counter(), self._cpu()
        work()
        return Cost(time.perf_counter() - wall, self._cpu() - cpu)

    @staticmethod
    def _cpu() -> float:
        return time.process_time() + sum(cpu_now().values())

    def select(self, name: str) -> Cost:
        """Read all columns and rows of a table into Spark's noop sink."""
        return self.cost(lambda: consume(self.session.table(self.spark_name(name))))

    def data_files(self, name: str) -> Path:
        """The directory of the data files of an append table without partitions."""
        return self.lake.path(name) / "bucket-0"

    def select_files(self, folder: Path) -> Cost:
        return self.cost(lambda: consume(self.session.read.parquet(str(folder))))

    def insert(self, view: str, rows: int, keyed: bool, way: Way, buckets: int) -> Cost:
        """The cost of INSERT of the `rows` rows of a view into a new table."""
        name = self.new_name()
        self.lake.create(name, definition(keyed, way, buckets))
        cost = self.cost(lambda: self.session.sql(f"INSERT INTO {self.spark_name(name)} SELECT * FROM {view}"))
        self.check_count(name, rows)
        self.lake.drop(name)
        return cost

    def write_files(self, view: str) -> Cost:
        """The cost of writing the same as Parquet files."""
        target = self.folder / self.new_name()
        writer = self.session.table(view).write.option("compression", CODEC).option(_ZSTD_LEVEL, LEVEL)
        cost = self.cost(lambda: writer.parquet(str(target)))
        shutil.rmtree(target)
        return cost

    def check_count(self, name: str, rows: int) -> None:
        found = self.lake.open(name).scan([data.KEY]).to_arrow().num_rows
        check(found == rows, f"{name} has {found} rows, not {rows}")


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def consume(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()
