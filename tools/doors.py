"""Count the files of `forebay` that an operation enters ("doors"), and how often it moves between them.

    python -m tools.doors                        # a table of all operations
    python -m tools.doors put "union plan"       # only these
    python -m tools.doors --files put            # the files of one, in the order of their first entry

Every operation runs once before it is counted, so that imports and what is made once do not count. Python frames of
all threads of this process count: client, server and background work, but no compiled kernels. Of a Spark query it is
the driver's frames. "Spark SELECT, lake" has a catalog of a lake alone; "Spark SELECT, mixed" finds the same table by a
catalog of a cluster and a lake, which asks the cluster first.

The upkeep of the embedded server runs without the operation, too, and does not count: here it is due once a day
(`_NO_UPKEEP`), and calls that a timer in `server/server.py` begins are left out. Work that an operation leaves to
another thread counts if it is done before the operation returns.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

import forebay
from forebay.paimon import Catalog
from forebay.tiering.now import tier_now
from forebay.unionread.planning import plan_union

_SOURCES = f"{Path(forebay.__file__).parent}/"
_TIMERS = f"{_SOURCES}server/server.py"
"""Where the server waits for the next round of its upkeep. Requests begin elsewhere: `server/connections.py`."""

_NO_UPKEEP = dict.fromkeys(
    (
        "auto-partition.check.interval",
        "kv.scanner.expiration-interval",
        "kv.snapshot.interval",
        "log.replica.high-watermark.checkpoint-interval",
        "remote.log.task-interval-duration",
        "server.writer-id.expiration-check-interval",
    ),
    "1 d",
)

_ORDERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("item", pa.string()), ("amount", pa.float64())])
_ROWS = pa.table({"id": [1, 2, 3], "item": ["a", "b", "c"], "amount": [1.0, 2.0, 3.0]})


@dataclass(frozen=True)
class Operation:
    """The operation to count, and its preparation, which runs before it each time without being counted."""

    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


@dataclass
class Doors:
    """The calls of one operation."""

    calls: list[tuple[int, str, str]] = field(default_factory=list)
    """Thread, file and function of each call, in order."""

    @property
    def files(self) -> list[str]:
        """The files, in the order of their first entry."""
        return list(dict.fromkeys(file for _, file, _ in self.calls))

    @property
    def functions(self) -> int:
        return len({(file, name) for _, file, name in self.calls})

    @property
    def moves(self) -> int:
        """The number of times that a thread continued in another file than its previous one."""
        within: dict[int, str] = {}
        count = 0
        for thread, file, _ in self.calls:
            count += within.get(thread) != file
            within[thread] = file
        return count


class Tracer:
    """Records calls in all threads that start after `install`."""

    def __init__(self) -> None:
        self._doors: Doors | None = None

    def install(self) -> None:
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def remove(self) -> None:
        threading.setprofile(None)
        sys.setprofile(None)

    @contextmanager
    def tracing(self) -> Iterator[Doors]:
        """Record the calls inside the block, of any thread."""
        self._doors = doors = Doors()
        try:
            yield doors
        finally:
            self._doors = None

    def _note(self, frame: FrameType, event: str, arg: object) -> None:
        doors = self._doors
        if doors is not None and event == "call":
            file = frame.f_code.co_filename
            if file.startswith(_SOURCES) and not _is_upkeep(frame):
                doors.calls.append((threading.get_ident(), file.removeprefix(_SOURCES), frame.f_code.co_qualname))


def _is_upkeep(frame: FrameType | None) -> bool:
    """Whether the first caller in Forebay is a timer of the server."""
    first = ""
    while frame is not None:
        file = frame.f_code.co_filename
        first = file if file.startswith(_SOURCES) else first
        frame = frame.f_back
    return first == _TIMERS


def _live_operations(folder: Path, inside: ExitStack) -> dict[str, Operation]:
    settings = {**_NO_UPKEEP, "datalake.format": "paimon", "datalake.paimon.warehouse": str(folder / "lake")}
    live = inside.enter_context(forebay.embedded(folder / "server", settings=settings))
    tiered = {"table.datalake.enabled": "true"}
    live.create_table("fluss.orders", _ORDERS, primary_key=["id"], buckets=1)
    live.create_table("fluss.clicks", _ORDERS, buckets=1)
    live.create_table("fluss.tiered", _ORDERS, primary_key=["id"], buckets=1, options=tiered)
    orders, clicks, lake = live.table("fluss.orders"), live.table("fluss.clicks"), live.table("fluss.tiered")

    def changed() -> None:
        lake.upsert(_ROWS)

    return {
        "put": Operation(lambda: orders.upsert(_ROWS)),
        "append": Operation(lambda: clicks.append(_ROWS)),
        "lookup": Operation(lambda: orders.lookup(2)),
        "log read": Operation(lambda: list(clicks.changes("earliest", "latest"))),
        "full scan": Operation(lambda: orders.scan().to_arrow()),
        "tiering round": Operation(lambda: tier_now(live, ["fluss.tiered"]), changed),
        "union plan": Operation(lambda: plan_union(lake), changed),
        "union read": Operation(lambda: lake.scan(source="union").to_arrow(), changed),
    }


def _paimon_operations(folder: Path) -> dict[str, Operation]:
    catalog = Catalog.open(str(folder / "warehouse"))
    catalog.create_database("shop")
    table = catalog.create_table("shop.orders", _ORDERS, primary_key="id", buckets=1)

    waiting: list[Any] = []

    def prepare_commit() -> None:
        with closing(table.new_write()) as write:
            write.write(_ROWS)
            waiting.append(write.prepare_commit())

    return {
        "lake write": Operation(lambda: table.upsert(_ROWS)),
        "lake read": Operation(lambda: table.scan().to_arrow()),
        "lake commit": Operation(lambda: table.new_commit().commit(waiting.pop()), prepare_commit),
        "lake compaction": Operation(lambda: table.compact(full=True), lambda: table.upsert(_ROWS)),
    }


def _spark_operations(folder: Path, inside: ExitStack) -> dict[str, Operation]:
    import forebay.spark

    live = inside.enter_context(forebay.embedded(folder / "spark-server", settings=_NO_UPKEEP))
    live.create_table("fluss.orders", _ORDERS, primary_key=["id"], buckets=1)
    live.table("fluss.orders").upsert(_ROWS)
    conf = {"spark.ui.enabled": False, "spark.log.level": "OFF", "spark.driver.memory": "1g"}
    lake = str(folder / "spark-lake")
    spark = forebay.spark.session("doors", "local[1]", conf, bootstrap_servers=live.bootstrap_servers)
    inside.callback(spark.stop)
    forebay.spark.attach(spark, "lake", warehouse=lake)
    forebay.spark.attach(spark, "mixed", live.bootstrap_servers, warehouse=lake)
    spark.sql("CREATE DATABASE lake.shop")
    spark.sql("CREATE TABLE lake.shop.orders (id BIGINT NOT NULL, item STRING)")
    spark.sql("INSERT INTO lake.shop.orders VALUES (1, 'a')")

    def select(table: str) -> Operation:
        return Operation(lambda: spark.sql(f"SELECT * FROM {table} WHERE id > 0").collect())

    return {
        "Spark SELECT, live": select("forebay.fluss.orders"),
        "Spark SELECT, lake": select("lake.shop.orders"),
        "Spark SELECT, mixed": select("mixed.shop.orders"),
    }


def trace(wanted: Sequence[str] = (), *, with_spark: bool = True) -> dict[str, Doors]:
    """The doors of each operation in `wanted`, or of all."""
    tracer, found = Tracer(), dict[str, Doors]()
    tracer.install()
    try:
        with tempfile.TemporaryDirectory() as made, ExitStack() as inside:
            folder = Path(made)
            operations = _live_operations(folder, inside) | _paimon_operations(folder)
            if with_spark:
                operations |= _spark_operations(folder, inside)
            unknown = sorted(set(wanted) - operations.keys())
            if unknown:
                raise SystemExit(f"there is no operation {', '.join(unknown)}; there are {', '.join(operations)}")
            for name, operation in operations.items():
                if not wanted or name in wanted:
                    operation.prepare()
                    operation.run()
                    operation.prepare()
                    with tracer.tracing() as doors:
                        operation.run()
                    found[name] = doors
    finally:
        tracer.remove()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operations", nargs="*", help="the operations; all by default")
    parser.add_argument("--files", action="store_true", help="list the files of each")
    options = parser.parse_args()
    with_spark = not options.operations or any(name.startswith("Spark") for name in options.operations)
    found = trace(options.operations, with_spark=with_spark)
    print(f"{'operation':20} {'files':>6} {'functions':>10} {'moves':>7}")
    for operation, doors in found.items():
        print(f"{operation:20} {len(doors.files):>6} {doors.functions:>10} {doors.moves:>7}")
        if options.files:
            print("\n".join(f"    {file}" for file in doors.files))


if __name__ == "__main__":
    main()
