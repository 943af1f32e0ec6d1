"""Many streams in one driver: what they need of the machine, and that they start on a busy one."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from forebay.client.connection import Connection
from tests.patience import PATIENCE
from tests.spark.tables import ROWS_SCHEMA, make_table, rows

pytestmark = pytest.mark.spark

QUERIES = int(os.environ.get("STREAM_QUERIES", "20"))
LOAD = int(os.environ.get("STREAM_LOAD", "16"))
_RUNNER = "python_streaming_source_runner"
"""The module of the processes in which Spark plans streams of Python sources."""


def runners() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # one that has just ended
            found += [child] if any(_RUNNER in word for word in child.cmdline()) else []
    return found


def test_a_stream_of_a_table_has_no_process_of_its_own(
    spark: Any, connection: Connection, database: str, tmp_path: Path
) -> None:
    make_table(connection, f"{database}.t").append(rows(0, 10))
    seen: list[tuple[int, int]] = []

    def keep(batch: Any, number: int) -> None:
        seen.append((batch.count(), len(runners())))

    writer = spark.readStream.table(f"forebay.{database}.t").writeStream.foreachBatch(keep)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination(PATIENCE)
    assert seen == [(10, 0)]
    (source,) = query.lastProgress["sources"]
    assert source["description"].startswith(f"forebay {database}.t ")
    assert source["numInputRows"] == 10


@pytest.mark.slow
@pytest.mark.timeout(6 * PATIENCE)
def test_twenty_streams_start_on_a_busy_machine(
    spark: Any, connection: Connection, database: str, tmp_path: Path
) -> None:
    make_table(connection, f"{database}.t", buckets=1).append(rows(0, 100))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(LOAD)]
    try:
        queries = []
        for number in range(QUERIES):
            copy = connection.create_table(f"{database}.copy{number}", ROWS_SCHEMA, buckets=1)
            writer = spark.readStream.table(f"forebay.{database}.t").writeStream.trigger(availableNow=True)
            writer = writer.option("checkpointLocation", str(tmp_path / str(number)))
            queries.append((writer.toTable(f"forebay.{copy.path}"), copy))
        for query, copy in queries:
            assert query.awaitTermination(5 * PATIENCE)
            assert query.exception() is None
            assert copy.scan().count() == 100
    finally:
        for process in busy:
            process.kill()
            process.wait()
