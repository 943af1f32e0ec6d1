"""What a server takes when there is much of everything: tables, partitions, scans that have ended, writers.

`make growth` makes 5,000 tables, 2,000 partitions, 10,000 scans and 20,000 writers in a server process, and prints what
it takes and how long requests take before and after. `--write` keeps the figures in docs/results. In CI the scale is
small (GROWTH_SCALE), and the bounds are checked all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forebay.metadata import types
from forebay.testing.server import ServerProcess
from tests import results
from tests.server.raw_client import ApiKey, pb
from tests.server.running import KV_COLUMNS, Bench, kv_key, kv_records, log_records
from tests.server.test_scan_kv import open_request, scan

TABLES, PARTITIONS, SCANS, WRITERS = 5_000, 2_000, 10_000, 20_000
OPEN_BUCKETS = 256
_SAMPLES, _SAMPLES_SMALL = 30, 4
Figures = dict[str, Any]


def memory(pid: int) -> Figures:
    """Resident and address space in MB, and open descriptors, of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "resident MB": int(status["VmRSS"].split()[0]) // 1024,
        "address space MB": int(status["VmSize"].split()[0]) // 1024,
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
    }


def median_ms(work: Callable[[], Any], samples: int) -> float:
    taken = []
    for _ in range(samples):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return round(statistics.median(taken) * 1000, 2)


class Growing:
    """A server that is filled, and looked at."""

    def __init__(self, server: ServerProcess, scale: float, say: Callable[[str], None]) -> None:
        self._server = server
        self._scale = scale
        self._say = say
        self.bench = Bench(server.bootstrap_servers, server.ready["tablet.servers"])
        self.probe = self.bench.create("probe", KV_COLUMNS, ["id"])
        self.bench.put(self.probe, kv_records([{"id": i, "name": "x"} for i in range(100)]))
        self.log = self.bench.create("log", {"a": types.int_(), "s": types.string()})

    def scaled(self, count: int) -> int:
        return max(round(count * self._scale), 1)

    def look(self) -> Figures:
        """What the server takes, and how long requests take."""
        bench, probe = self.bench, self.probe
        samples = _SAMPLES if self._scale >= 0.1 else _SAMPLES_SMALL
        scan_request = open_request(probe, size=1 << 20)
        metadata = pb.MetadataRequest()
        metadata.table_path.append(bench.path("probe"))
        return {
            **memory(self._server.pid),
            "put ms": median_ms(lambda: bench.put(probe, kv_records([{"id": 1, "name": "x"}])), samples),
            "lookup ms": median_ms(lambda: bench.lookup(probe, [kv_key(1)]), samples),
            "append ms": median_ms(lambda: bench.append(self.log, log_records([1])), samples),
            "page ms": median_ms(lambda: scan(bench.tablet, scan_request), samples),
            "metadata ms": median_ms(lambda: bench.coordinator.call(ApiKey.GET_METADATA, metadata), samples),
        }

    def step(self, name: str, count: int, work: Callable[[int], Any]) -> Figures:
        """Do something many times; what that took, for the first and the last tenth, and what the server takes then."""
        tenth = max(count // 10, 1)
        start = time.perf_counter()
        marks = {}
        for number in range(count):
            work(number)
            if number + 1 in (tenth, count - tenth, count):
                marks[number + 1] = time.perf_counter() - start
        last = marks[count] - marks.get(count - tenth, 0.0)
        found = {
            "count": count,
            "ms each, first tenth": round(marks[tenth] / tenth * 1000, 2),
            "ms each, last tenth": round(last / tenth * 1000, 2),
            **self.look(),
        }
        self._say(f"{name}: {json.dumps(found)}")
        return found

    def table(self, number: int) -> None:
        made = self.bench.create(f"t{number}", KV_COLUMNS, ["id"])
        assert not self.bench.put(made, kv_records([{"id": 1, "name": "x"}])).error_code

    def partitions(self) -> tuple[Figures, Figures]:
        columns = {"id": types.int_(), "day": types.string(), "v": types.int_()}
        parent = self.bench.create("parts", columns, ["id", "day"], partition_keys=["day"])
        path = self.bench.path("parts")

        def request(kind: Any, number: int, **more: bool) -> Any:
            message = kind(table_path=path, **more)
            message.partition_spec.partition_key_values.add(key="day", value=f"d{number}")
            return message

        def create(number: int) -> None:
            wanted = request(pb.CreatePartitionRequest, number, ignore_if_not_exists=False)
            self.bench.coordinator.call(ApiKey.CREATE_PARTITION, wanted)

        def drop(number: int) -> None:
            wanted = request(pb.DropPartitionRequest, number, ignore_if_not_exists=False)
            self.bench.coordinator.call(ApiKey.DROP_PARTITION, wanted)

        assert parent
        count = self.scaled(PARTITIONS)
        return self.step("partitions", count, create), self.step("partitions dropped", count, drop)

    def writer(self, number: int) -> None:
        self.bench.append(self.log, log_records([number], writer_id=1_000_000 + number, batch_sequence=0), acks=1)


def measure(folder: Path, scale: float, say: Callable[[str], None] = print) -> Figures:
    """Everything, at this part of the full size."""
    settings = {"max.partition.num": "100000", "server.open-buckets.max": str(OPEN_BUCKETS)}
    figures: Figures = {"scale": scale, "open buckets at most": OPEN_BUCKETS}
    server = ServerProcess(folder / "data", settings=settings).start()
    try:
        growing = Growing(server, scale, say)
        figures["before"] = growing.look()
        say(f"before: {json.dumps(figures['before'])}")
        request = open_request(growing.probe, size=1 << 20)
        figures["scans"] = growing.step("scans", growing.scaled(SCANS), lambda _: scan(growing.bench.tablet, request))
        figures["writers"] = growing.step("writers", growing.scaled(WRITERS), growing.writer)
        figures["partitions"], figures["partitions dropped"] = growing.partitions()
        figures["tables"] = growing.step("tables", growing.scaled(TABLES), growing.table)
        growing.bench.close()
        start = time.perf_counter()
        assert server.stop() == 0
        figures["stop s"] = round(time.perf_counter() - start, 2)
        start = time.perf_counter()
        server.start()
        figures["start s"] = round(time.perf_counter() - start, 2)
    finally:
        if server._process is not None:
            server.stop()
    say(f"stop {figures['stop s']} s, start {figures['start s']} s")
    return figures


def test_what_a_server_takes_does_not_grow_with_the_number_of_buckets_and_scans(tmp_path: Path) -> None:
    scale = float(os.environ.get("GROWTH_SCALE", "0.002"))
    figures = measure(tmp_path, scale)
    before = figures["before"]
    for step in ("scans", "writers", "partitions", "partitions dropped", "tables"):
        assert figures[step]["descriptors"] <= before["descriptors"] + 6 * OPEN_BUCKETS
        assert figures[step]["page ms"] < 20 * max(before["page ms"], 1.0), step
        assert figures[step]["ms each, last tenth"] < 20 * max(figures[step]["ms each, first tenth"], 1.0), step


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full size (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="write the figures to docs/results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options.scale)
    if options.write:
        results.write("growth", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
