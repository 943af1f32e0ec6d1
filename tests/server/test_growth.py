"""The resource usage of a server with large numbers of tables, partitions, finished scans and writers.

`make growth` creates 5,000 tables, 2,000 partitions, 10,000 scans and 20,000 writers in a server process, and prints
its resource usage and the duration of requests before and after. `--write` keeps the figures in docs/results. In CI the
scale is small (GROWTH_SCALE), and the bounds are checked all the same.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.metadata import types
from forebay.server.storage import open_buckets as open_buckets_module
from forebay.testing.server import ServerProcess
from tests import results
from tests.server.handlers.kv_scans import open_request, scan
from tests.server.raw_client import ApiKey, pb
from tests.server.running import KV_COLUMNS, Bench, kv_key, kv_records, log_records, running

TABLES, PARTITIONS, SCANS, WRITERS = 5_000, 2_000, 10_000, 20_000
OPEN_BUCKETS = 256
_SAMPLES, _SAMPLES_SMALL = 30, 4
Figures = dict[str, Any]


def memory(pid: int) -> Figures:
    """Memory (all, and without files) and address space in MB, and open descriptors, of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "resident MB": int(status["VmRSS"].split()[0]) // 1024,
        "anonymous MB": int(status["RssAnon"].split()[0]) // 1024,
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
        """Partitions with a row each come, and go again."""
        columns = {"id": types.int_(), "day": types.string()}
        table = self.bench.create("parts", columns, ["id", "day"], partition_keys=["day"])
        bench, path, records = self.bench, self.bench.path("parts"), kv_records([{"id": 1, "name": "x"}])

        def ask(key: ApiKey, kind: Any, number: int, **more: bool) -> None:
            request = kind(table_path=path, **more)
            request.partition_spec.partition_key_values.add(key="day", value=f"d{number}")
            bench.coordinator.call(key, request)

        def create(number: int) -> None:
            ask(ApiKey.CREATE_PARTITION, pb.CreatePartitionRequest, number, ignore_if_not_exists=False)
            request = pb.MetadataRequest()
            request.partitions_path.add(
                database_name=path.database_name, table_name=path.table_name, partition_name=f"d{number}"
            )
            [made] = bench.coordinator.call(ApiKey.GET_METADATA, request).partition_metadata
            assert not bench.put(table, records, partition=made.partition_id).error_code

        def drop(number: int) -> None:
            ask(ApiKey.DROP_PARTITION, pb.DropPartitionRequest, number, ignore_if_not_exists=False)

        count = self.scaled(PARTITIONS)
        return self.step("partitions", count, create), self.step("partitions dropped", count, drop)

    def writer(self, number: int) -> None:
        self.bench.append(self.log, log_records([number], writer_id=1_000_000 + number, batch_sequence=0), acks=1)


def measure(folder: Path, scale: float, say: Callable[[str], None] = print) -> Figures:
    """Everything, at this part of the full size: what the server took in the end, and after each step."""
    settings = {"max.partition.num": "100000", "server.open-buckets.max": str(OPEN_BUCKETS)}
    steps: Figures = {}
    server = ServerProcess(folder / "data", settings=settings).start()
    try:
        growing = Growing(server, scale, say)
        before = steps["before"] = growing.look()
        say(f"before: {json.dumps(before)}")
        request = open_request(growing.probe, size=1 << 20)
        steps["scans"] = growing.step("scans", growing.scaled(SCANS), lambda _: scan(growing.bench.tablet, request))
        steps["writers"] = growing.step("writers", growing.scaled(WRITERS), growing.writer)
        steps["partitions"], steps["partitions dropped"] = growing.partitions()
        after = steps["tables"] = growing.step("tables", growing.scaled(TABLES), growing.table)
        growing.bench.close()
        start = time.perf_counter()
        assert server.stop() == 0
        stopped = time.perf_counter()
        server.start()
        started = time.perf_counter()
    finally:
        if server._process is not None:
            server.stop()
    figures = {
        **{name: steps[name]["count"] for name in ("scans", "writers", "partitions", "tables")},
        "open buckets at most": OPEN_BUCKETS,
        **{
            f"{name} {when}": look[name]
            for name in ("anonymous MB", "descriptors", "put ms", "page ms")
            for when, look in (("before", before), ("after", after))
        },
        "address space GB": round(after["address space MB"] / 1024),
        "stop s": round(stopped - start, 1),
        "start s": round(started - stopped, 1),
    }
    say(json.dumps(figures))
    return {**figures, "steps": steps}


def test_what_a_server_takes_does_not_grow_with_the_number_of_buckets_and_scans(tmp_path: Path) -> None:
    scale = float(os.environ.get("GROWTH_SCALE", "0.002"))
    figures = measure(tmp_path, scale)
    steps = figures["steps"]
    before = steps.pop("before")
    assert len(steps) == 5
    for name, step in steps.items():
        assert step["descriptors"] <= before["descriptors"] + 6 * OPEN_BUCKETS, name
        assert step["page ms"] < 20 * max(before["page ms"], 10.0), name
        assert step["ms each, last tenth"] < 20 * max(step["ms each, first tenth"], 10.0), name


_HOLES = """
from pathlib import Path
from forebay.base.host import return_free_memory

def resident():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) // 1024

blocks = [bytearray(b"x" * 50_000) for _ in range(2000)]
blocks[::2] = [None] * 1000
full = resident()
return_free_memory()
print(full - resident())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another C library than glibc")
def test_holes_in_the_heaps_of_the_server_go_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", _HOLES], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 30


def test_memory_is_returned_after_many_buckets_were_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    returned: list[bool] = []
    monkeypatch.setattr(open_buckets_module, "return_free_memory", lambda: returned.append(True))
    monkeypatch.setattr(open_buckets_module, "_TAKEN_WORTH_IT", 4)
    with running(tmp_path / "data", server_open__buckets_max="1") as bench:
        manager = bench.server.server.context.replicas
        for number, expected in enumerate([0, 0, 0, 0, 1, 1, 1, 1, 2]):
            bench.log_end(bench.create(f"t{number}", {"a": types.int_()}))
            manager.close_offline()
            assert len(returned) == expected, number


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full size (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="write the figures to docs/results")
    options = parser.parse_args()
    commit = results.commit()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options.scale)
    if options.write:
        results.write("growth", figures, commit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
