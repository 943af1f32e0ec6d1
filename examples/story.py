"""Shared parts of the examples: options and directories, a Spark session, output, and checks.

An example is a function `tell(story)`. It reports what it does in steps, and checks the results against a model: the
expected rows, computed independently of the tables. If a check fails, the program ends with exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import forebay.spark as fb

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

TELL_SECONDS = 2
"""The interval in seconds at which a query that is being waited for reports its progress."""

_LOGGING = Path(__file__).with_name("log4j2.properties").as_uri()
_CONF = {
    "spark.driver.extraJavaOptions": f"-Dlog4j.configurationFile={_LOGGING}",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


class Story:
    """One run of an example. `rows` is its size, `folder` an empty directory, `spark` has the catalog `lake` in it."""

    def __init__(self, title: str, rows: int, folder: Path, spark: SparkSession) -> None:
        self.rows, self.folder = rows, folder
        self.warehouse = str(folder / "lake")
        self.spark = fb.attach(spark, "lake", warehouse=self.warehouse)
        self._steps = self._checks = self._failures = 0
        print(f"{title}\n{'=' * len(title)}", flush=True)

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """A step: prints its description, and at the end its duration."""
        self._steps += 1
        print(f"\n{self._steps}. {what}", flush=True)
        began = time.monotonic()
        yield
        print(f"   ({time.monotonic() - began:.1f} s)", flush=True)

    def say(self, *lines: str) -> None:
        for line in lines:
            print(f"   {line}", flush=True)

    def sql(self, statement: str) -> DataFrame:
        """Print a statement, and run it."""
        for number, line in enumerate(statement.strip().splitlines()):
            self.say(("     " if number else "sql> ") + line.strip())
        return self.spark.sql(statement)

    def check(self, what: str, found: Any, expected: Any) -> bool:
        """Print whether `found` equals the model's `expected`, or the first difference; return whether it does."""
        self._checks += 1
        same = bool(found == expected)
        if same:
            self.say(f"checked: {what}")
        else:
            self._failures += 1
            self.say(f"WRONG: {what}", *_difference(found, expected))
        return same

    def end(self) -> int:
        """Print the result; return the exit code."""
        if self._failures or not self._checks:
            print(f"\nNOT AS IT SHOULD BE: {self._failures} of {self._checks} checks failed", flush=True)
            return 1
        print(f"\nAll {self._checks} checks hold.", flush=True)
        return 0


@contextlib.contextmanager
def repeating(change: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call `change` every so many seconds while the `with` block runs. Raises the error of a failed call."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(seconds):
            change()

    with ThreadPoolExecutor(1) as pool:
        program = pool.submit(run)
        try:
            yield
        finally:
            stop.set()
        program.result()


class Feed:
    """A directory of ordered Parquet files; each represents one delivery of a queue. `columns` is SQL."""

    def __init__(self, folder: Path, columns: str) -> None:
        self.folder, self.columns = folder, columns
        folder.mkdir(parents=True)
        self._files = 0

    def add(self, rows: pa.Table) -> None:
        path = self.folder / f"{self._files:04}.parquet"
        hidden = path.with_name(f".{path.name}")  # a stream must not see an incomplete file
        pq.write_table(rows, hidden)
        os.utime(hidden, (self._files, self._files))  # Spark takes files in the order of their modification times
        hidden.rename(path)
        self._files += 1

    def stream(self, spark: SparkSession) -> DataFrame:
        """A stream of the rows, with one micro-batch per file."""
        return spark.readStream.schema(self.columns).option("maxFilesPerTrigger", 1).parquet(str(self.folder))


def fill(frame: DataFrame, table: str, checkpoint: Path, mode: str = "append", **options: str) -> StreamingQuery:
    """Start a query that writes the available rows into `table`, in an output mode, and ends."""
    writer: DataStreamWriter = frame.writeStream.option("checkpointLocation", str(checkpoint)).queryName(
        checkpoint.name
    )
    return writer.options(**options).outputMode(mode).trigger(availableNow=True).toTable(table)


def follow(story: Story, *queries: StreamingQuery) -> list[dict[str, Any]]:
    """Wait until queries have ended, and report their progress; return the last progress of each.

    Raises the error of a failed query.
    """
    for query in queries:
        while not query.awaitTermination(TELL_SECONDS):
            told = query.lastProgress
            if told is not None:
                rows = sum(p["numInputRows"] for p in query.recentProgress)
                story.say(f"... {query.name}: micro-batch {told['batchId']}, {rows:,} rows so far")
    return [query.lastProgress for query in queries]  # type: ignore[misc]


def keyed(rows: pa.Table, key: str) -> dict[Any, tuple[Any, ...]]:
    """Rows by key. A duplicate key is an error: the compared tables have a primary key."""
    found = {row[key]: tuple(row.values()) for row in rows.to_pylist()}
    if len(found) != rows.num_rows:
        raise ValueError(f"{rows.num_rows} rows, and {len(found)} values of {key}")
    return found


def play(
    tell: Callable[[Story], None],
    title: str,
    rows: int,
    arguments: Sequence[str] | None = None,
    spark: SparkSession | None = None,
) -> int:
    """Run an example with the options of the command line; return the exit code. `spark` is an existing session.

    `title` is printed, `rows` is the default size.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--rows", type=int, default=rows, help=f"how much data (default: {rows:,})")
    parser.add_argument("--directory", type=Path, help="keep the tables here: an empty or a new directory")
    given = parser.parse_args(arguments)
    if given.rows < 100:
        parser.error("--rows must be 100 or more")
    if given.directory is not None and given.directory.exists() and any(given.directory.iterdir()):
        parser.error(f"--directory: {given.directory} is not empty")
    with contextlib.ExitStack() as stack:
        if given.directory is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-example-")))
        else:
            folder = given.directory.absolute()
            folder.mkdir(parents=True, exist_ok=True)
        if spark is None:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            spark = fb.session("forebay example", "local[2]", _CONF)
            stack.callback(spark.stop)
        story = Story(title, given.rows, folder, spark)
        tell(story)
        code = story.end()
        if given.directory is not None:
            print(f"The tables are in {folder}.", flush=True)
    return code


def _difference(found: Any, expected: Any) -> list[str]:
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        for key in [*expected, *found]:
            if found.get(key) != expected.get(key):
                return [f"  {key}: found {found.get(key)!r}, and not {expected.get(key)!r}"]
    return [f"  found {found!r}", f"  and not {expected!r}"]


def forget_last_batch(checkpoint: Path) -> int:
    """Leave a query's checkpoint as a driver does that dies between the commit of the table and Spark's own.

    Spark's record that the last micro-batch is done is removed, so the batch runs again. Returns its number.
    """
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / f"{last}").unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    return last
