"""What metrics cost: `python -m benchmarks.monitoring [TABLES]`.

Counting, in CPU time of one request, beside that of an append of one row, in the server and in the client; and a scrape
of a server with many tables, the first one, which looks at all files, and later ones.
"""

from __future__ import annotations

import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa

import forebay
from forebay.base.ambient import SYSTEM_CLOCK
from forebay.client.counters import CallCounter, WriteCounters
from forebay.server.counters import ServerCounters
from forebay.testing.server import ServerProcess

_COUNTED = 200_000
_APPENDS = 2_000
_FRAME = (b"header", b"x" * 300)
_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def main(tables: int = 2_000) -> None:
    counters, client_counters = ServerCounters(), (CallCounter(), WriteCounters())
    counting = _seconds_each(lambda: counters.count_requests(1014, 1, 300, 0.0003))
    client_counting = _seconds_each(lambda: _count_append(*client_counters))
    settings = {"metrics.reporters": "prometheus", "metrics.reporter.prometheus.port": "0"}
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder) / "data", settings=settings) as server:
        process = psutil.Process(server.pid)
        with forebay.connect(server.bootstrap_servers) as connection:
            table = connection.create_table("fluss.measured", _SCHEMA, buckets=1)
            row = pa.table({"id": [1], "name": ["x"]}, _SCHEMA)
            for _ in range(200):
                table.append(row)
            before, began = _cpu(process), time.process_time()
            for _ in range(_APPENDS):
                table.append(row)
            append, client_append = (_cpu(process) - before) / _APPENDS, (time.process_time() - began) / _APPENDS
            for where, cost, whole in (("server", counting, append), ("client", client_counting, client_append)):
                print(
                    f"counting an append in the {where}: {cost * 1e6:.2f} us of CPU, {100 * cost / whole:.1f} % of its "
                    f"{whole * 1e6:.0f} us"
                )
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


def _seconds_each(work: Callable[[], None]) -> float:
    began = time.process_time()
    for _ in range(_COUNTED):
        work()
    return (time.process_time() - began) / _COUNTED


def _count_append(calls: CallCounter, writes: WriteCounters) -> None:
    """What the client counts of one append: the same as `Channel` and `Accumulator` do."""
    calls.sent += 1
    calls.bytes_out += sum(map(len, _FRAME))
    calls.bytes_in += 20
    calls.times.observe(0.0003)
    writes.last_queue_seconds = 0.0001
    writes.queue_times.observe(0.0001)
    writes.batches += 1
    writes.rows += 1
    writes.bytes += 300
    writes.last_seconds = SYSTEM_CLOCK.monotonic()
    writes.times.observe(0.0003)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
