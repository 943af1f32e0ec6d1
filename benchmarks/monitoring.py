"""What metrics cost: `python -m benchmarks.monitoring [TABLES]`.

Counting, in CPU time of one request, beside that of an append of one row; and a scrape of a server with many tables,
the first one, which looks at all files, and later ones.
"""

from __future__ import annotations

import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil
import pyarrow as pa

import forebay
from forebay.server.counters import ServerCounters
from forebay.testing.server import ServerProcess

_COUNTED = 200_000
_APPENDS = 2_000
_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def main(tables: int = 2_000) -> None:
    counters = ServerCounters()
    began = time.process_time()
    for _ in range(_COUNTED):
        counters.count_requests(1014, 1, 300, 0.0003)
    counting = (time.process_time() - began) / _COUNTED
    settings = {"metrics.reporters": "prometheus", "metrics.reporter.prometheus.port": "0"}
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder) / "data", settings=settings) as server:
        process = psutil.Process(server.pid)
        with forebay.connect(server.bootstrap_servers) as connection:
            table = connection.create_table("fluss.measured", _SCHEMA, buckets=1)
            row = pa.table({"id": [1], "name": ["x"]}, _SCHEMA)
            for _ in range(200):
                table.append(row)
            before = _cpu(process)
            for _ in range(_APPENDS):
                table.append(row)
            append = (_cpu(process) - before) / _APPENDS
            print(f"counting a request: {counting * 1e6:.2f} us of CPU, {100 * counting / append:.1f} % of an append's")
            for number in range(tables):
                connection.create_table(f"fluss.t{number}", _SCHEMA, buckets=1).append(row)
            for which in ("first", "second", "third"):
                before, began = _cpu(process), time.perf_counter()
                with urllib.request.urlopen(f"http://{server.ready['monitoring']}/metrics") as answer:
                    size = len(answer.read())
                taken = time.perf_counter() - began
                print(
                    f"{which} scrape of {tables:,} tables: {1000 * taken:.0f} ms, "
                    f"{1000 * (_cpu(process) - before):.0f} ms of CPU, {size:,} bytes"
                )


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
