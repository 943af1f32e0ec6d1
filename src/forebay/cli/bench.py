"""`forebay bench`: a quick measurement of this machine, with a server in this process and tables of its own."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import InvalidRequest
from forebay.cli.output import Progress, output_argument, print_rows
from forebay.client.connection import Connection

_EPILOG = """Each row has an id, two numbers and a text of 16 characters. Writes are acknowledged after they are synced
to disk (acks=all), one batch after the other. docs/benchmarks.md has measurements of more, and beside other systems.

examples:
  forebay bench                                  # some seconds, in a temporary folder of the working directory
  forebay bench --rows 2000000 --data-dir /mnt/fast
  forebay bench -b 127.0.0.1:9123 -o json        # a running server; its tables are dropped afterwards"""

_DATABASE = "forebay_bench"
_BATCH = 20_000
_LOOKUPS = 2_000
_SINGLE = 300


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay bench`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "--rows", type=int, default=400_000, metavar="N", help="number of rows per table (default: %(default)s)"
    )
    parser.add_argument("--data-dir", default=".", metavar="DIR", help="measure the disk of this folder (default: .)")
    parser.add_argument("-b", "--bootstrap-servers", metavar="HOST:PORT", help="measure this server instead")
    output_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, and print a table of counts, seconds and rates. Raises `InvalidRequest` for too few rows."""
    if options.rows < _BATCH:
        raise InvalidRequest(f"--rows {options.rows}: give at least {_BATCH}")
    rows = []
    with _place(options) as connection, Progress("measuring:", 7, unit="steps") as progress:
        for operation, count, unit, seconds in _measured(connection, options.rows):
            rows.append((operation, count, round(seconds, 4), round(count / seconds), unit))
            progress.advance(1)
    print_rows(["what", "count", "seconds", "per second", "unit"], rows, options.output)
    return 0


@contextmanager
def _place(options: argparse.Namespace) -> Iterator[Connection]:
    import forebay

    if options.bootstrap_servers is not None:
        with forebay.connect(options.bootstrap_servers) as connection:
            yield connection
        return
    with (
        tempfile.TemporaryDirectory(prefix="forebay-bench-", dir=options.data_dir) as folder,
        forebay.embedded(folder) as embedded,
    ):
        yield embedded


def _measured(connection: Connection, count: int) -> Iterator[tuple[str, int, str, float]]:
    """Each measurement: what, how many, of what, in how many seconds."""
    batches = [_rows(start, min(_BATCH, count - start)) for start in range(0, count, _BATCH)]
    connection.create_database(_DATABASE, ignore_if_exists=True)
    try:
        log = connection.create_table(f"{_DATABASE}.log", batches[0].schema, buckets=2)
        yield "append", count, "rows", _seconds(lambda: [log.append(batch) for batch in batches])
        yield "scan, log table", count, "rows", _seconds(lambda: log.scan().to_arrow())
        keyed = connection.create_table(f"{_DATABASE}.keyed", batches[0].schema, primary_key="id", buckets=2)
        yield "upsert", count, "rows", _seconds(lambda: [keyed.upsert(batch) for batch in batches])
        yield "scan, primary-key table", count, "rows", _seconds(lambda: keyed.scan().to_arrow())
        ids = np.random.default_rng(1).integers(0, count, _LOOKUPS * 10)
        keyed.lookup(pa.array(ids[:10]))
        yield (
            "lookup, 2,000 keys at a time",
            len(ids),
            "keys",
            _seconds(lambda: [keyed.lookup(pa.array(ids[i : i + _LOOKUPS])) for i in range(0, len(ids), _LOOKUPS)]),
        )
        yield "lookup, one key", _SINGLE, "keys", _seconds(lambda: [keyed.lookup([int(i)]) for i in ids[:_SINGLE]])
        one = batches[0].slice(0, 1)
        yield "append, one row", _SINGLE, "rows", _seconds(lambda: [log.append(one) for _ in range(_SINGLE)])
    finally:
        connection.drop_database(_DATABASE, cascade=True)


def _rows(start: int, count: int) -> pa.RecordBatch:
    ids = np.arange(start, start + count)
    return pa.RecordBatch.from_pydict(
        {"id": ids, "number": ids * 7 % 1000, "amount": ids / 8, "text": [f"{i:016d}" for i in ids.tolist()]}
    )


def _seconds(run: Callable[[], object]) -> float:
    began = SYSTEM_CLOCK.monotonic()
    run()
    return max(SYSTEM_CLOCK.monotonic() - began, 1e-9)
