"""The differential script, second part: rows, logs, keys, scans and offsets through pyfluss."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import fluss
import pyarrow as pa
from exam_script import Exam, column, table_json

_POLL_MILLIS = 300
_READ_SECONDS = 5.0


async def _records(scanner: Any, count: int) -> list[Any]:
    """`count` records as [bucket, offset, change type, row], and whatever one more poll brings."""
    found: list[Any] = []
    deadline = time.monotonic() + _READ_SECONDS
    once_more = True
    while time.monotonic() < deadline and (len(found) < count or once_more):
        once_more = len(found) < count
        polled = await scanner.poll(_POLL_MILLIS)
        for bucket, records in polled.items():
            found += [[bucket.bucket_id, r.offset, r.change_type.short_string(), _plain(r.row)] for r in records]
    return sorted(found, key=lambda record: record[:2])


def _plain(row: dict[str, Any]) -> list[Any]:
    return [value if isinstance(value, (int, float, str, type(None))) else str(value) for value in row.values()]


async def _log(table: Any, count: int, buckets: int = 1, start: int = -2) -> list[Any]:
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(buckets), start))
    return await _records(scanner, count)


async def _batches(scanner: Any, rows: int) -> pa.Table:
    tables: list[pa.Table] = []
    deadline = time.monotonic() + _READ_SECONDS
    while sum(table.num_rows for table in tables) < rows and time.monotonic() < deadline:
        tables.append(await scanner.poll_arrow(_POLL_MILLIS))
    return pa.concat_tables([table for table in tables if table.num_rows])


async def log_tables(exam: Exam) -> None:
    table = await exam.ready_table("log", table_json(bucket_key=["id"], bucket_count=2), buckets=2)
    writer = table.new_append().create_writer()
    for number in range(6):
        writer.append({"id": number, "name": None if number % 3 == 0 else f"n{number}"})
    await writer.flush()
    writer.write_arrow(pa.table({"id": pa.array([6, 7], pa.int32()), "name": ["n6", None]}))
    await writer.flush()
    await exam.step("all records", lambda: _log(table, 8, 2))

    async def from_offset(offset: int, count: int = 1) -> Any:
        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe(0, offset)
        return await _records(scanner, count)

    await exam.step("from offset 3", lambda: from_offset(3))
    await exam.step("from the end", lambda: from_offset(6, 0))
    await exam.step("from beyond the end", lambda: from_offset(7))
    await exam.step("from far beyond the end", lambda: from_offset(1000))

    async def projected(columns: list[str]) -> Any:
        scanner = await table.new_scan().project_by_name(columns).create_record_batch_log_scanner()
        scanner.subscribe_buckets({0: -2, 1: -2})
        found = (await _batches(scanner, 8)).sort_by(columns[0])
        return [found.column_names, found.to_pydict()[columns[0]]]

    await exam.step("projected", lambda: projected(["name", "id"]))
    await exam.step("projected to one column", lambda: projected(["id"]))
    await exam.step("projected to a missing column", lambda: projected(["nope"]))
    await exam.step("projected by a wrong index", lambda: table.new_scan().project([5]).create_log_scanner())
    await exam.step("projected to nothing", lambda: table.new_scan().project([]).create_log_scanner())
    # Not twice to the same column: pyfluss asks for that again and again as fast as it can, and never gives up.

    async def limited(limit: int, bucket: int = 0) -> Any:
        info = table.get_table_info()
        scanner = table.new_scan().limit(limit).create_bucket_batch_scanner(fluss.TableBucket(info.table_id, bucket))
        return (await scanner.to_arrow()).to_pydict()

    await exam.step("limit 3", lambda: limited(3))
    await exam.step("limit beyond the rows", lambda: limited(100))
    await exam.step("limit 1", lambda: limited(1, 1))
    await exam.step("limit 0", lambda: limited(0))
    await exam.step("limit of a missing bucket", lambda: limited(3, 9))

    async def lookup() -> Any:
        return await table.new_lookup().create_lookuper().lookup({"id": 1})

    async def upsert() -> Any:
        table.new_upsert().create_writer().upsert({"id": 1, "name": "x"})

    await exam.step("lookup in a log table", lookup)
    await exam.step("upsert into a log table", upsert)
    await exam.step("append a row that is too short", lambda: _append(table, [1]))
    await exam.step("append a row of wrong types", lambda: _append(table, {"id": "word", "name": "x"}))
    await exam.step("append a row with an unknown column", lambda: _append(table, {"id": 1, "nope": 2}))
    await exam.step("append a number too large", lambda: _append(table, {"id": 1 << 40, "name": "x"}))
    await exam.step("append another schema", lambda: _write_arrow(table, pa.table({"x": [1]})))
    # Nothing about logs of rows: pyfluss sends Arrow there too, and repeats without end what a server refuses.


async def _append(table: Any, row: Any) -> None:
    writer = table.new_append().create_writer()
    writer.append(row)
    await writer.flush()


async def _write_arrow(table: Any, data: pa.Table) -> None:
    writer = table.new_append().create_writer()
    writer.write_arrow(data)
    await writer.flush()


_PEOPLE = [column("id"), column("name", "STRING"), column("age")]


async def key_tables(exam: Exam) -> None:
    table = await exam.ready_table("keys", table_json(_PEOPLE, primary_key=["id"]))
    writer = table.new_upsert().create_writer()
    lookuper = table.new_lookup().create_lookuper()

    async def put(row: Any) -> None:
        await writer.upsert(row).wait()

    async def remove(key: Any) -> None:
        await writer.delete(key).wait()

    await exam.step("insert", lambda: put({"id": 1, "name": "ann", "age": 30}))
    await exam.step("insert another", lambda: put({"id": 2, "name": "bob", "age": None}))
    await exam.step("update", lambda: put({"id": 1, "name": "ann", "age": 31}))
    await exam.step("update to the same", lambda: put({"id": 1, "name": "ann", "age": 31}))
    await exam.step("lookup", lambda: lookuper.lookup({"id": 1}))
    await exam.step("lookup of nobody", lambda: lookuper.lookup({"id": 9}))
    await exam.step("lookup of a null", lambda: lookuper.lookup({"id": None}))
    await exam.step("lookup by a word", lambda: lookuper.lookup({"id": "one"}))
    await exam.step("lookup by another column", lambda: lookuper.lookup({"name": "ann"}))
    await exam.step("delete", lambda: remove({"id": 2}))
    await exam.step("delete again", lambda: remove({"id": 2}))
    await exam.step("insert a null key", lambda: put({"id": None, "name": "x", "age": 1}))
    await exam.step("insert without the key", lambda: put({"name": "x", "age": 1}))
    await exam.step("insert after the delete", lambda: put({"id": 2, "name": "bo", "age": 2}))
    await exam.step("changelog", lambda: _log(table, 8))
    await exam.step("changelog from an empty batch", lambda: _log(table, 1, start=7))

    async def partial(row: Any, columns: list[str], *, remove_it: bool = False) -> Any:
        part = table.new_upsert().partial_update_by_name(columns).create_writer()
        await (part.delete(row) if remove_it else part.upsert(row)).wait()
        return await lookuper.lookup({"id": row["id"]})

    await exam.step("partial update", lambda: partial({"id": 1, "age": 40}, ["id", "age"]))
    await exam.step("partial insert", lambda: partial({"id": 5, "name": "eve"}, ["id", "name"]))
    await exam.step("partial delete", lambda: partial({"id": 1}, ["id", "name"], remove_it=True))
    await exam.step("partial delete of the rest", lambda: partial({"id": 1}, ["id", "age"], remove_it=True))
    await exam.step("partial update without the key", lambda: partial({"id": 1, "age": 1}, ["age"]))
    await exam.step("partial update of a missing column", lambda: partial({"id": 1}, ["id", "nope"]))

    async def limited(limit: int, bucket: int = 0) -> Any:
        info = table.get_table_info()
        scanner = table.new_scan().limit(limit).create_bucket_batch_scanner(fluss.TableBucket(info.table_id, bucket))
        return (await scanner.to_arrow()).to_pydict()

    for number in [300, 128, 127, -1]:
        await put({"id": number, "name": "n", "age": number})
    await exam.step("limit 3", lambda: limited(3))
    await exam.step("limit beyond the rows", lambda: limited(100))
    await exam.step("limit of a missing bucket", lambda: limited(3, 9))
    await exam.step("append to a table with a key", lambda: _append(table, {"id": 1, "name": "x", "age": 1}))
    await exam.step("no prefix to look up by", lambda: table.new_lookup().lookup_by(["id"]).create_lookuper())

    refused = [column("id"), column("must", {"type": "INTEGER", "nullable": False}), column("may")]
    strict = await exam.ready_table("strict", table_json(refused, primary_key=["id"]))

    async def without_must() -> None:
        part = strict.new_upsert().partial_update_by_name(["id", "may"]).create_writer()
        await part.upsert({"id": 1, "may": 1}).wait()

    async def null_for_must() -> None:
        await strict.new_upsert().create_writer().upsert({"id": 1, "must": None, "may": 1}).wait()

    await exam.step("partial update that leaves out a column that may not be null", without_must)
    await exam.step("null where none may be", null_for_must)
    await _prefixes(exam)
    await _merge_engines(exam)
    await _auto_increment(exam)


async def _prefixes(exam: Exam) -> None:
    columns = [column("who", "STRING"), column("what", "BIGINT"), column("total")]
    table = await exam.ready_table(
        "prefixes", table_json(columns, primary_key=["who", "what"], bucket_key=["who"], bucket_count=2), buckets=2
    )
    writer = table.new_upsert().create_writer()
    for number in [3, 1, 2]:
        writer.upsert({"who": "a", "what": number, "total": number * 10})
        writer.upsert({"who": "ab", "what": number, "total": number * 100})
    await writer.flush()

    async def prefix(columns: list[str], key: dict[str, Any]) -> Any:
        return await table.new_lookup().lookup_by(columns).create_lookuper().lookup(key)

    await exam.step("prefix", lambda: prefix(["who"], {"who": "a"}))
    await exam.step("prefix of nobody", lambda: prefix(["who"], {"who": "zz"}))
    await exam.step("prefix by no prefix", lambda: prefix(["what"], {"what": 1}))
    await exam.step("full key", lambda: table.new_lookup().create_lookuper().lookup({"who": "ab", "what": 2}))


async def _made(exam: Exam, label: str, document: bytes) -> Any:
    """The table, or None where the server refuses to make it; which of the two is a step."""
    made: list[Any] = []

    async def make() -> None:
        made.append(await exam.ready_table(label.replace(" ", "_").replace("-", "_"), document))

    await exam.step(f"{label}: the table", make)
    return made[0] if made else None


async def _merge_engines(exam: Exam) -> None:
    for label, properties in {
        "first row": {"table.merge-engine": "first_row"},
        "versioned": {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "age"},
        "aggregation": {"table.merge-engine": "aggregation"},
        "aggregation with deletes": {"table.merge-engine": "aggregation", "table.delete.behavior": "allow"},
        "without old values": {"table.changelog.image": "wal"},
        "deletes ignored": {"table.delete.behavior": "ignore"},
        "deletes refused": {"table.delete.behavior": "disable"},
    }.items():
        document = table_json(_PEOPLE, primary_key=["id"], properties=properties)
        table = await _made(exam, label, document)
        if table is None:
            continue
        writer = table.new_upsert().create_writer()

        async def each(action: Callable[[], Any]) -> Any:
            await action().wait()

        for number, age in enumerate([5, 3, 7]):
            row = {"id": 1, "name": f"n{number}", "age": age}
            await exam.step(f"{label}: put {number}", lambda row=row, writer=writer: each(lambda: writer.upsert(row)))
        await exam.step(f"{label}: delete", lambda writer=writer: each(lambda: writer.delete({"id": 1})))
        await exam.step(f"{label}: lookup", lambda t=table: t.new_lookup().create_lookuper().lookup({"id": 1}))
        await exam.step(f"{label}: changelog", lambda t=table: _log(t, 1))


async def _auto_increment(exam: Exam) -> None:
    columns = [column("id", "STRING"), column("number", "BIGINT"), column("text", "STRING")]
    document = table_json(columns, primary_key=["id"], auto_increment_column=["number"])
    table = await _made(exam, "auto-increment", document)
    if table is None:
        return

    async def put(part: list[str] | None, row: dict[str, Any]) -> Any:
        upsert = table.new_upsert()
        writer = (upsert.partial_update_by_name(part) if part else upsert).create_writer()
        await writer.upsert(row).wait()
        return await table.new_lookup().create_lookuper().lookup({"id": row["id"]})

    await exam.step("auto-increment: first", lambda: put(["id", "text"], {"id": "a", "text": "x"}))
    await exam.step("auto-increment: second", lambda: put(["id", "text"], {"id": "b", "text": "x"}))
    await exam.step("auto-increment: update", lambda: put(["id", "text"], {"id": "a", "text": "y"}))
    await exam.step("auto-increment: whole row", lambda: put(None, {"id": "c", "number": 70, "text": "x"}))
    await exam.step("auto-increment: number given", lambda: put(["id", "number"], {"id": "d", "number": 70}))


async def offsets(exam: Exam) -> None:
    admin = await exam.admin()
    table = await exam.ready_table("offsets", table_json(bucket_count=2, bucket_key=["id"]), buckets=2)
    path = exam.path("offsets")

    def ask(spec: Any, buckets: list[int] | None = None) -> Awaitable[Any]:
        return _int_keys(admin.list_offsets(path, [0, 1] if buckets is None else buckets, spec))

    before = _now()
    await exam.step("latest of nothing", lambda: ask(fluss.OffsetSpec.latest()))
    await exam.step("at a time, of nothing", lambda: ask(fluss.OffsetSpec.timestamp(before)))
    middles: list[int] = []
    for first in [0, 10]:
        await asyncio.sleep(0.05)
        writer = table.new_append().create_writer()
        for number in range(first, first + 10):
            writer.append({"id": number, "name": "x"})
        await writer.flush()
        await asyncio.sleep(0.05)
        middles.append(_now())
    await exam.step("earliest", lambda: ask(fluss.OffsetSpec.earliest()))
    await exam.step("latest", lambda: ask(fluss.OffsetSpec.latest()))
    await exam.step("before all", lambda: ask(fluss.OffsetSpec.timestamp(before)))
    await exam.step("at time 0", lambda: ask(fluss.OffsetSpec.timestamp(0)))
    await exam.step("before time began", lambda: ask(fluss.OffsetSpec.timestamp(-5)))
    await exam.step("in between", lambda: ask(fluss.OffsetSpec.timestamp(middles[0])))
    await exam.step("after all", lambda: ask(fluss.OffsetSpec.timestamp(_now() - 5)))
    await exam.step("in the future", lambda: ask(fluss.OffsetSpec.timestamp(_now() + 3_600_000)))
    await exam.step("of no bucket", lambda: ask(fluss.OffsetSpec.latest(), []))
    await exam.step("of a missing bucket", lambda: ask(fluss.OffsetSpec.latest(), [7]))
    await exam.step(
        "of a missing table", lambda: admin.list_offsets(exam.path("missing"), [0], fluss.OffsetSpec.latest())
    )


async def _int_keys(answer: Awaitable[dict[int, int]]) -> dict[str, int]:
    return {str(bucket): offset for bucket, offset in sorted((await answer).items())}


def _now() -> int:
    return time.time_ns() // 1_000_000


async def partitioned_tables(exam: Exam) -> None:
    # Partitions are made by hand: pyfluss 1.0.0 never makes one, a write to a missing partition waits for ever.
    admin = await exam.admin()
    columns = [column("id"), column("day", "STRING")]
    exam.create_table("days", table_json(columns, partition_key=["day"]))
    connection = await exam.connection()
    table = await connection.get_table(exam.path("days"))
    await admin.create_partition(exam.path("days"), {"day": "1"})

    async def offset_of(day: str) -> Any:
        latest = fluss.OffsetSpec.latest()
        return await _int_keys(
            exam.until_ready(lambda: admin.list_partition_offsets(exam.path("days"), day, [0], latest))
        )

    async def append(day: str) -> Any:
        await _append(table, {"id": 1, "day": day})
        return await offset_of(day)

    async def read(day: str) -> Any:
        (partition,) = [p for p in await admin.list_partition_infos(exam.path("days")) if p.partition_name == day]
        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe_partition(partition.partition_id, 0, fluss.EARLIEST_OFFSET)
        return await _records(scanner, 1)

    async def read_plain() -> Any:
        return await _log(table, 1)

    await exam.step("offset of an empty partition", lambda: offset_of("1"))
    await exam.step("append", lambda: append("1"))
    await exam.step("append with a null", lambda: _append(table, {"id": 1, "day": None}))
    await exam.step("read", lambda: read("1"))
    await exam.step("subscribe without a partition", read_plain)

    exam.create_table("keyed_days", table_json(columns, primary_key=["id", "day"], partition_key=["day"]))
    keyed = await connection.get_table(exam.path("keyed_days"))
    await admin.create_partition(exam.path("keyed_days"), {"day": "1"})

    async def put(day: str) -> Any:
        await keyed.new_upsert().create_writer().upsert({"id": 1, "day": day}).wait()
        return await keyed.new_lookup().create_lookuper().lookup({"id": 1, "day": day})

    await exam.step("upsert and lookup", lambda: put("1"))
    await exam.step(
        "lookup in a missing partition",
        lambda: keyed.new_lookup().create_lookuper().lookup({"id": 1, "day": "nowhere"}),
    )
    await exam.step("lookup of nobody", lambda: keyed.new_lookup().create_lookuper().lookup({"id": 8, "day": "1"}))


async def dropped_tables(exam: Exam) -> None:
    """What open handles see of a table that is dropped, or dropped and made again."""
    admin = await exam.admin()
    log = await exam.ready_table("going", table_json())
    keyed = await exam.ready_table("going_keyed", table_json(primary_key=["id"]))
    await _append(log, {"id": 1, "name": "x"})
    await keyed.new_upsert().create_writer().upsert({"id": 1, "name": "x"}).wait()
    for name in ["going", "going_keyed"]:
        await admin.drop_table(exam.path(name))

    await exam.step("offsets of it", lambda: admin.list_offsets(exam.path("going"), [0], fluss.OffsetSpec.latest()))
    await exam.step("open it", lambda: _open(exam, "going"))
    exam.create_table("going", table_json([column("other", "BIGINT")]))
    await exam.until_ready(lambda: admin.list_offsets(exam.path("going"), [0], fluss.OffsetSpec.latest()))
    again = await (await exam.connection(writer_retries="3")).get_table(exam.path("going"))
    await exam.step("made again, it is empty", lambda: _log(again, 0))
    await exam.step("made again, it has the new columns", lambda: _schema_names(again))


async def _open(exam: Exam, name: str) -> None:
    await (await exam.connection()).get_table(exam.path(name))


async def _schema_names(table: Any) -> list[str]:
    names: list[str] = table.get_table_info().get_column_names()
    return names
