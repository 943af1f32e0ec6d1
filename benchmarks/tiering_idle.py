"""The cost of idle tables: CPU of the server and of a tiering worker, for each table and freshness period.

Run by hand: `python -m benchmarks.tiering_idle [tables] [freshness seconds] [seconds]`. Every table has one row, which
is in the lake before counting begins. The first CREATE of a lake table after the start of the server is timed, too:
right after the start it waits for the import of the lake's packages, later it finds them loaded.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import psutil
import pyarrow as pa

import forebay
from forebay.base.errors import NotFound
from forebay.client.connection import Connection
from forebay.testing.server import ServerProcess
from forebay.tiering.service import TieringService

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
LOADING_SECONDS = 10.0


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def create(connection: Connection, name: str, freshness: float) -> float:
    """Create a table; return the seconds it took."""
    began = time.perf_counter()
    properties = {"table.datalake.enabled": "true", "table.datalake.freshness": f"{round(freshness * 1000)} ms"}
    connection.create_table(name, SCHEMA, primary_key=["id"], buckets=1, options=properties)
    return time.perf_counter() - began


def in_lake(connection: Connection, name: str) -> bool:
    try:
        return bool(connection.admin.lake_snapshot(name).log_offsets)
    except NotFound:
        return False


def main(tables: int, freshness: float, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = {"datalake.format": "paimon", "datalake.paimon.warehouse": f"{folder}/lake"}
        for wait in (0.0, LOADING_SECONDS):
            with (
                ServerProcess(Path(folder) / f"create{wait:g}", settings=settings) as server,
                forebay.connect(server.bootstrap_servers) as connection,
            ):
                time.sleep(wait)
                took = create(connection, f"fluss.first{wait:g}", freshness)
                print(f"first CREATE of a lake table {wait:g} s after the start: {took * 1000:,.0f} ms")
        with (
            ServerProcess(Path(folder) / "data", settings=settings) as server,
            forebay.connect(server.bootstrap_servers) as connection,
        ):
            names = [f"fluss.t{number}" for number in range(tables)]
            for name in names:
                create(connection, name, freshness)
                connection.table(name).upsert([{"id": 1, "v": 1}])
            service = TieringService(connection).start()
            try:
                for name in names:
                    while not in_lake(connection, name):
                        time.sleep(0.2)
                time.sleep(2 * freshness)
                own, other = psutil.Process(), psutil.Process(server.pid)
                before, began = (cpu_seconds(other), cpu_seconds(own)), time.perf_counter()
                time.sleep(seconds)
                spent = cpu_seconds(other) - before[0], cpu_seconds(own) - before[1]
                rounds = tables * (time.perf_counter() - began) / freshness
            finally:
                service.stop()
        for who, used in zip(("server", "worker"), spent):
            print(f"{who}: {used:.2f} s of CPU in {seconds:g} s ({used / seconds:.1%} of a core), "
                  f"{used / rounds * 1e6:,.0f} µs for each table and freshness")  # fmt: skip
        print(f"{tables} tables without news, freshness {freshness:g} s: {sum(spent) / seconds:.1%} of a core")


if __name__ == "__main__":
    tables, freshness, seconds = [*map(float, sys.argv[1:]), *(200.0, 5.0, 30.0)[len(sys.argv) - 1 :]]
    main(int(tables), freshness, seconds)
