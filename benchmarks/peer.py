"""pyfluss, Apache Fluss's own Python client, on the same server and tables."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pyarrow as pa

from forebay.client.table import Table


def available() -> bool:
    """Whether pyfluss is installed; there is none for Python 3.13 yet."""
    try:
        import fluss  # noqa: F401
    except ImportError:
        return False
    return True


def _with_table(bootstrap: str, table: Table, work: Callable[[Any], Awaitable[Any]]) -> Any:
    import fluss

    async def run() -> Any:
        config = fluss.Config({"bootstrap.servers": bootstrap})
        config.writer_acks = "all"
        connection = await fluss.FlussConnection.create(config)
        try:
            return await work(await connection.get_table(fluss.TablePath(table.path.database, table.path.table)))
        finally:
            await connection.close()

    return asyncio.run(run())


def append_seconds(bootstrap: str, table: Table, batches: Sequence[pa.RecordBatch], whole: bool) -> float:
    """Append with `write_arrow` (`whole`: one table in one call) or `write_arrow_batch`, until acknowledged."""

    async def work(their: Any) -> float:
        writer = their.new_append().create_writer()
        everything = pa.Table.from_batches(batches)
        began = time.perf_counter()
        if whole:
            writer.write_arrow(everything)
        else:
            for batch in batches:
                writer.write_arrow_batch(batch)
        await writer.flush()
        return time.perf_counter() - began

    return float(_with_table(bootstrap, table, work))


def read_seconds(bootstrap: str, table: Table, rows: int) -> float:
    """Read a log table of one bucket from its start into Arrow tables."""

    async def work(their: Any) -> float:
        scanner = await their.new_scan().create_record_batch_log_scanner()
        began, found = time.perf_counter(), 0
        scanner.subscribe(0, 0)
        while found < rows:
            found += (await scanner.poll_arrow(500)).num_rows
        if found != rows:
            raise AssertionError(f"pyfluss read {found} of {rows} rows")
        return time.perf_counter() - began

    return float(_with_table(bootstrap, table, work))


def python_rows(batches: Sequence[pa.RecordBatch]) -> list[list[Any]]:
    """Rows in the form that pyfluss accepts for upserts: lists of Python values."""
    return [list(row) for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns))]


def upsert_seconds(bootstrap: str, table: Table, rows: Sequence[Sequence[Any]]) -> float:
    """Upsert rows that are already Python lists, until acknowledged."""

    async def work(their: Any) -> float:
        writer = their.new_upsert().create_writer()
        began = time.perf_counter()
        for row in rows:
            writer.upsert(row)
        await writer.flush()
        return time.perf_counter() - began

    return float(_with_table(bootstrap, table, work))


def lookup_seconds(bootstrap: str, table: Table, groups: Sequence[Sequence[int]]) -> list[float]:
    """Seconds to look up each group of keys, all keys of a group concurrently, one group after the other.

    Every key of a group has a separate lookuper, because the calls of one lookuper wait for each other.
    """

    async def work(their: Any) -> list[float]:
        lookupers = [their.new_lookup().create_lookuper() for _ in range(max(map(len, groups)))]
        await lookupers[0].lookup([groups[0][0]])
        taken = []
        for group in groups:
            began = time.perf_counter()
            rows = await asyncio.gather(*(one.lookup([key]) for one, key in zip(lookupers, group)))
            taken.append(time.perf_counter() - began)
            if any(row is None for row in rows):
                raise LookupError(f"pyfluss did not find all of {group}")
        return taken

    return list(_with_table(bootstrap, table, work))
