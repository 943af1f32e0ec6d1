"""The differential script, third part: requests about records that no client would send, and their error codes.

A per-bucket response is written as {"bucket": error code, ...}, so that an error in the body and an error frame are two
different outcomes. Offsets returned by a write are recorded relative to the previous end of the log, so that a server
which rejects one write differs in that step and not in all that follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import batches
import raw_wire as wire
from exam_script import Exam, column, table_json

_NOWHERE = 987_654_321
_TIMEOUT_MILLIS = 5_000


def _end(exam: Exam, table: int, bucket: int = 0) -> int:
    """Where the log ends now; 0 for one that cannot be asked."""
    return _offsets(exam, table, 1, bucket)["offset"] or 0


def _distance(offset: int | None, end: int) -> int | str | None:
    return "none" if offset == -1 else None if offset is None else offset - end


def _produce(
    exam: Exam, table: int, records: bytes, *, bucket: int = 0, acks: int = -1, partition: int | None = None
) -> Any:
    end = _end(exam, table, bucket)
    request = [(1, acks), (2, table), (3, _TIMEOUT_MILLIS), (4, [(1, partition), (2, bucket), (3, records)])]
    answer = exam.call("tablet", wire.PRODUCE_LOG, request)
    (found,) = wire.nested(answer, 1)
    return {"bucket": wire.one(found, 3, 0), "begins": _distance(wire.one(found, 5), end)}


def _fetch(
    exam: Exam,
    table: int,
    offset: int,
    *,
    bucket: int = 0,
    max_bytes: int = 1 << 20,
    bucket_bytes: int = 1 << 20,
    projection: Sequence[int] | None = None,
    partition: int | None = None,
    wait: int | None = 100,
    min_bytes: int | None = 1,
) -> Any:
    wanted = [(1, partition), (2, bucket), (3, offset), (4, bucket_bytes)]
    fields = None if projection is None else wire.Packed(projection)
    asked = [(1, table), (2, projection is not None), (3, fields), (4, wanted)]
    request = [(1, -1), (2, max_bytes), (3, asked), (4, wait), (5, min_bytes)]
    (tables,) = wire.nested(exam.call("tablet", wire.FETCH_LOG, request), 1)
    (found,) = wire.nested(tables, 2)
    headers = batches.log_headers(wire.one(found, 8, b""))
    return {
        "bucket": wire.one(found, 3, 0),
        "high watermark": wire.one(found, 5),
        "log start": wire.one(found, 6),
        "batches": [[h.base_offset, h.last_offset_delta, h.records, h.sequence] for h in headers],
    }


def _put(
    exam: Exam,
    table: int,
    records: bytes,
    *,
    bucket: int = 0,
    acks: int = -1,
    columns: Sequence[int] = (),
    version: int = 1,
    mode: int | None = None,
    partition: int | None = None,
) -> Any:
    end = _end(exam, table, bucket)
    targets = wire.Packed(columns) if columns else None
    parts = [(1, partition), (2, bucket), (3, records)]
    request = [(1, acks), (2, table), (3, _TIMEOUT_MILLIS), (4, targets), (5, parts), (6, mode)]
    (found,) = wire.nested(exam.call("tablet", wire.PUT_KV, request, version), 1)
    return {"bucket": wire.one(found, 3, 0), "ends": _distance(wire.one(found, 5), end)}


def _lookup(
    exam: Exam, table: int, keys: Sequence[bytes], *, bucket: int = 0, version: int = 1, api: int = wire.LOOKUP
) -> Any:
    request = [(1, table), (2, [(2, bucket), *((3, key) for key in keys)])]
    (found,) = wire.nested(exam.call("tablet", api, request, version), 1)
    values = (
        [_hex(wire.one(value, 1)) for value in wire.nested(found, 5)]
        if api == wire.LOOKUP
        else [[_hex(row) for row in value.get(1, [])] for value in wire.nested(found, 5)]
    )
    return {"bucket": wire.one(found, 3, 0), "values": values}


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _limit(exam: Exam, table: int, limit: int, *, bucket: int = 0) -> Any:
    answer = exam.call("tablet", wire.LIMIT_SCAN, [(2, table), (4, bucket), (5, limit)])
    records = wire.one(answer, 4, b"")
    log_table = wire.one(answer, 3)
    rows: Any = None
    if records and log_table:
        rows = [[header.base_offset, header.records] for header in batches.log_headers(records)]
    elif records:
        rows = [value.hex() for value in batches.values_of(records)]
    return {"answer": wire.one(answer, 1, 0), "log table": log_table, "rows": rows}


def _offsets(
    exam: Exam, table: int, kind: int, bucket: int = 0, *, timestamp: int | None = None, api_follower: int = -1
) -> Any:
    request = [(1, api_follower), (2, kind), (3, table), (5, wire.Packed([bucket])), (6, timestamp)]
    (found,) = wire.nested(exam.call("tablet", wire.LIST_OFFSETS, request), 1)
    return {"bucket": wire.one(found, 2, 0), "offset": wire.one(found, 4)}


def _writer(exam: Exam, table: str) -> int:
    answer = exam.call("tablet", wire.INIT_WRITER, [(1, exam.table_path(table))])
    return int(wire.one(answer, 1))


async def writes_to_logs(exam: Exam) -> None:
    await exam.ready_table("raw", table_json())
    await exam.ready_table("raw_rows", table_json(properties={"table.log.format": "indexed"}))
    await exam.ready_table("raw_keyed", table_json(primary_key=["id"]))
    table, rows, keyed = (exam.table_id(name) for name in ["raw", "raw_rows", "raw_keyed"])
    good = batches.log_batch([(1, "a"), (2, None)])

    await exam.step("good batch", lambda: _produce(exam, table, good))
    await exam.step("good batch again", lambda: _produce(exam, table, good))
    await exam.step("two batches", lambda: _produce(exam, table, good + good))
    for acks in [1, 0]:
        await exam.step(f"acks {acks}", lambda acks=acks: _produce(exam, table, good, acks=acks))
        # Only what comes after an answer to acks=-1 is certain to see what came before.
        _produce(exam, table, good)
    await exam.step("acks 2", lambda: _produce(exam, table, good, acks=2))
    await exam.step("acks -2", lambda: _produce(exam, table, good, acks=-2))
    await exam.step("unknown table", lambda: _produce(exam, _NOWHERE, good))
    await exam.step("unknown bucket", lambda: _produce(exam, table, good, bucket=7))
    await exam.step("negative bucket", lambda: _produce(exam, table, good, bucket=-1))
    await exam.step("a partition in a table without", lambda: _produce(exam, table, good, partition=5))
    await exam.step("wrong checksum", lambda: _produce(exam, table, batches.log_batch([(1, "a")], crc_change=1)))
    await exam.step("no records", lambda: _produce(exam, table, b""))
    await exam.step("a few bytes", lambda: _produce(exam, table, good[:20]))
    await exam.step("a batch cut off", lambda: _produce(exam, table, good[:-4]))
    await exam.step("bytes after the batch", lambda: _produce(exam, table, good + b"\0\0\0"))
    await exam.step("a batch and half a batch", lambda: _produce(exam, table, good + good[:40]))
    await exam.step("unknown format", lambda: _produce(exam, table, batches.log_batch([(1, "a")], magic=9)))
    await exam.step("negative length", lambda: _produce(exam, table, good[:8] + b"\xff\xff\xff\xff" + good[12:]))
    await exam.step("later schema", lambda: _produce(exam, table, batches.log_batch([(1, "a")], schema_id=5)))
    await exam.step("schema 0", lambda: _produce(exam, table, batches.log_batch([(1, "a")], schema_id=0)))
    await exam.step("batch without rows", lambda: _produce(exam, table, batches.log_batch([])))
    await exam.step("log batch to a table with a key", lambda: _produce(exam, keyed, good))
    await exam.step("arrow to a table of rows", lambda: _produce(exam, rows, good))
    await exam.ready_table("raw_kept", table_json())
    kept = exam.table_id("raw_kept")
    for records in [good, good + good, batches.log_batch([]), good]:
        _produce(exam, kept, records)
    await exam.step("what is there", lambda: _fetch(exam, kept, 0))
    await exam.step("what is there from the empty batch on", lambda: _fetch(exam, kept, 6))

    await exam.step("writer of a missing table", lambda: _writer(exam, "missing") >= 0)
    await exam.step("writer of no table", lambda: exam.call("tablet", wire.INIT_WRITER, []) and None)
    await exam.step("writer", lambda: _writer(exam, "raw") >= 0)
    await _sequences(
        exam,
        "raw",
        lambda writer, sequence: _produce(
            exam, table, batches.log_batch([(9, "s")], writer_id=writer, sequence=sequence)
        ),
    )


async def _sequences(exam: Exam, table: str, write: Callable[[int, int], Any]) -> None:
    first, second, unknown = _writer(exam, table), _writer(exam, table), _NOWHERE
    await exam.step("sequence: begins at 1", lambda: write(first, 1))
    for sequence in range(7):
        await exam.step(f"sequence: {sequence}", lambda sequence=sequence: write(first, sequence))
    await exam.step("sequence: newest repeated", lambda: write(first, 6))
    await exam.step("sequence: five back repeated", lambda: write(first, 2))
    await exam.step("sequence: six back repeated", lambda: write(first, 1))
    await exam.step("sequence: a gap", lambda: write(first, 9))
    await exam.step("sequence: after the gap", lambda: write(first, 7))
    await exam.step("sequence: another writer", lambda: write(second, 0))
    await exam.step("sequence: a writer that nobody made", lambda: write(unknown, 0))
    await exam.step("sequence: negative", lambda: write(first, -1))
    await exam.step("sequence: none for no writer", lambda: write(-1, -1))
    await exam.step("sequence: one for no writer", lambda: write(-1, 5))


async def reads_of_logs(exam: Exam) -> None:
    await exam.ready_table("read", table_json())
    await exam.ready_table("read_rows", table_json(properties={"table.log.format": "indexed"}))
    table, rows = exam.table_id("read"), exam.table_id("read_rows")
    for first in [0, 10, 20]:
        _produce(exam, table, batches.log_batch([(number, "x" * 10) for number in range(first, first + 10)]))

    await exam.step("from 0", lambda: _fetch(exam, table, 0))
    await exam.step("from 5", lambda: _fetch(exam, table, 5))
    await exam.step("from 10", lambda: _fetch(exam, table, 10))
    await exam.step("from the end", lambda: _fetch(exam, table, 30))
    await exam.step("from beyond the end", lambda: _fetch(exam, table, 31))
    await exam.step("from earliest", lambda: _fetch(exam, table, -2))
    await exam.step("from -1", lambda: _fetch(exam, table, -1))
    await exam.step("from -5", lambda: _fetch(exam, table, -5))
    await exam.step("unknown table", lambda: _fetch(exam, _NOWHERE, 0))
    await exam.step("unknown bucket", lambda: _fetch(exam, table, 0, bucket=7))
    await exam.step("unknown partition", lambda: _fetch(exam, table, 0, partition=5))
    await exam.step("one byte in all", lambda: _fetch(exam, table, 0, max_bytes=1))
    await exam.step("one byte a bucket", lambda: _fetch(exam, table, 0, bucket_bytes=1))
    await exam.step("no bytes", lambda: _fetch(exam, table, 0, max_bytes=0, bucket_bytes=0))
    await exam.step("negative bytes", lambda: _fetch(exam, table, 0, max_bytes=-1, bucket_bytes=-1))
    await exam.step("without waiting", lambda: _fetch(exam, table, 30, wait=None, min_bytes=None))
    await exam.step("checksum is right", lambda: _checksum(exam, table))
    for label, projection in {
        "both columns": [0, 1],
        "second column": [1],
        "in another order": [1, 0],
        "twice the same": [0, 0],
        "a column too far": [0, 2],
        "negative": [-1],
        "nothing": [],
    }.items():
        await exam.step(f"projected: {label}", lambda p=projection: _fetch(exam, table, 0, projection=p))
    await exam.step("projected: a table of rows", lambda: _fetch(exam, rows, 0, projection=[0]))
    await exam.step("limit 5", lambda: _limit(exam, table, 5))
    await exam.step("limit 15", lambda: _limit(exam, table, 15))
    await exam.step("limit 100", lambda: _limit(exam, table, 100))
    await exam.step("limit 0", lambda: _limit(exam, table, 0))
    await exam.step("limit -1", lambda: _limit(exam, table, -1))
    await exam.step("limit of an empty table", lambda: _limit(exam, rows, 5))
    await exam.step("limit of an unknown table", lambda: _limit(exam, _NOWHERE, 5))
    await exam.step("limit of an unknown bucket", lambda: _limit(exam, table, 5, bucket=7))
    await exam.step("offset: earliest", lambda: _offsets(exam, table, 0))
    await exam.step("offset: latest", lambda: _offsets(exam, table, 1))
    await exam.step("offset: kind 3", lambda: _offsets(exam, table, 3))
    await exam.step("offset: kind 9", lambda: _offsets(exam, table, 9))
    await exam.step("offset: time without a time", lambda: _offsets(exam, table, 2))
    await exam.step("offset: unknown table", lambda: _offsets(exam, _NOWHERE, 1))
    await exam.step("offset: unknown bucket", lambda: _offsets(exam, table, 1, 7))
    await exam.step("statistics", lambda: _statistics(exam, table, 0))
    await exam.step("statistics: unknown bucket", lambda: _statistics(exam, table, 7))
    await exam.step("statistics: unknown table", lambda: _statistics(exam, _NOWHERE, 0))


def _checksum(exam: Exam, table: int) -> bool:
    wanted = [(2, 0), (3, 0), (4, 1 << 20)]
    answer = exam.call("tablet", wire.FETCH_LOG, [(1, -1), (2, 1 << 20), (3, [(1, table), (2, False), (4, wanted)])])
    (tables,) = wire.nested(answer, 1)
    (found,) = wire.nested(tables, 2)
    return batches.crc_is_right(wire.one(found, 8))


def _statistics(exam: Exam, table: int, bucket: int) -> Any:
    answer = exam.call("tablet", wire.GET_TABLE_STATS, [(1, table), (2, [(2, bucket)])])
    (found,) = wire.nested(answer, 1)
    return {"bucket": wire.one(found, 1, 0), "rows": wire.one(found, 5)}


async def writes_to_keys(exam: Exam) -> None:
    await exam.ready_table("put", table_json(primary_key=["id"]))
    await exam.ready_table("put_log", table_json())
    wide = [column("id"), column("must", {"type": "INTEGER", "nullable": False}), column("may")]
    await exam.ready_table("put_strict", table_json(wide, primary_key=["id"]))
    await exam.ready_table("put_wal", table_json(primary_key=["id"], properties={"table.changelog.image": "wal"}))
    table, log, strict, wal = (exam.table_id(name) for name in ["put", "put_log", "put_strict", "put_wal"])
    good = batches.kv_batch([(batches.key(1), batches.row(1, "a")), (batches.key(2), batches.row(2, None))])

    await exam.step("good batch", lambda: _put(exam, table, good))
    await exam.step("good batch again", lambda: _put(exam, table, good))
    await exam.step("version 0", lambda: _put(exam, table, good, version=0))
    for acks in [1, 0]:
        await exam.step(f"acks {acks}", lambda acks=acks: _put(exam, table, good, acks=acks))
        _put(exam, table, good)
    await exam.step("acks 2", lambda: _put(exam, table, good, acks=2))
    await exam.step("unknown table", lambda: _put(exam, _NOWHERE, good))
    await exam.step("unknown bucket", lambda: _put(exam, table, good, bucket=7))
    await exam.step("a log table", lambda: _put(exam, log, good))
    await exam.step("delete", lambda: _put(exam, table, batches.kv_batch([(batches.key(1), None)])))
    await exam.step("delete of nobody", lambda: _put(exam, table, batches.kv_batch([(batches.key(77), None)])))
    await exam.step(
        "wrong checksum", lambda: _put(exam, table, batches.kv_batch([(batches.key(3), None)], crc_change=1))
    )
    await exam.step("no records", lambda: _put(exam, table, b""))
    await exam.step("a few bytes", lambda: _put(exam, table, good[:10]))
    await exam.step("a batch cut off", lambda: _put(exam, table, good[:-4]))
    await exam.step("bytes after the batch", lambda: _put(exam, table, good + b"\0\0"))
    await exam.step("two batches", lambda: _put(exam, table, good + good))
    await exam.step("unknown format", lambda: _put(exam, table, batches.kv_batch([(batches.key(3), None)], magic=7)))
    await exam.step("batch without records", lambda: _put(exam, table, batches.kv_batch([])))
    await exam.step(
        "later schema",
        lambda: _put(exam, table, batches.kv_batch([(batches.key(3), batches.row(3, "x"))], schema_id=5)),
    )
    await exam.step(
        "more records promised than there are",
        lambda: _put(exam, table, batches.kv_batch([(batches.key(3), batches.row(3, "x"))], count=3)),
    )
    for label, columns in {
        "all": [0, 1],
        "key and text": [0, 1],
        "key only": [0],
        "without the key": [1],
        "too far": [0, 5],
        "negative": [0, -1],
        "twice": [0, 1, 1],
    }.items():
        update = batches.kv_batch([(batches.key(4), batches.row(4, "p"))])
        _put(exam, table, update)
        await exam.step(f"columns: {label}", lambda c=columns, u=update: _put(exam, table, u, columns=c))
    part = batches.kv_batch([(batches.key(1), bytes([0b110]) + batches.varint(1))])
    await exam.step("columns: one left out that may not be null", lambda: _put(exam, strict, part, columns=[0, 2]))
    await exam.step("null where none may be", lambda: _put(exam, strict, part))
    _put(exam, table, good)
    for mode in [0, 1, 2, 9]:
        await exam.step(f"merge mode {mode}", lambda mode=mode: _put(exam, table, good, mode=mode))
    await exam.ready_table("put_kept", table_json(primary_key=["id"]))
    kept = exam.table_id("put_kept")
    gone = batches.kv_batch([(batches.key(1), None), (batches.key(77), None)])
    for records in [good, good, gone, gone, batches.kv_batch([])]:
        _put(exam, kept, records)
    await exam.step("changelog", lambda: _fetch(exam, kept, 0))
    await exam.step("rows counted", lambda: _statistics(exam, kept, 0))
    await exam.step("rows counted without old values", lambda: _statistics(exam, wal, 0))
    await exam.step(
        "insert and update in one batch",
        lambda: _put(
            exam,
            wal,
            batches.kv_batch(
                [(batches.key(1), batches.row(1, text)) for text in ["a", "b", "c"]] + [(batches.key(1), None)]
            ),
        ),
    )
    await exam.step("its changelog", lambda: _fetch(exam, wal, 0))
    await _sequences(
        exam,
        "put",
        lambda writer, sequence: _put(
            exam,
            table,
            batches.kv_batch([(batches.key(50), batches.row(50, "s"))], writer_id=writer, sequence=sequence),
        ),
    )


async def reads_of_keys(exam: Exam) -> None:
    await exam.ready_table("get", table_json(primary_key=["id"]))
    await exam.ready_table("get_log", table_json())
    columns = [column("a"), column("b"), column("c", "STRING")]
    await exam.ready_table("get_prefix", table_json(columns, primary_key=["a", "b"], bucket_key=["a"]))
    table, log, prefix = (exam.table_id(name) for name in ["get", "get_log", "get_prefix"])
    _put(exam, table, batches.kv_batch([(batches.key(n), batches.row(n, f"n{n}")) for n in [300, 1, 128, -1]]))
    two = [
        (batches.key(a) + batches.key(b), b"\0" + batches.varint(a) + batches.varint(b) + b"\1x")
        for a in [1, 2]
        for b in [9, 3]
    ]
    await exam.step("put under a longer key, version 0", lambda: _put(exam, prefix, batches.kv_batch(two), version=0))
    await exam.step("put under a longer key, version 1", lambda: _put(exam, prefix, batches.kv_batch(two)))

    await exam.step("lookup", lambda: _lookup(exam, table, [batches.key(300)]))
    await exam.step(
        "several, one twice, one missing", lambda: _lookup(exam, table, [batches.key(n) for n in [1, 9, 1]])
    )
    await exam.step("no key", lambda: _lookup(exam, table, []))
    await exam.step("empty key", lambda: _lookup(exam, table, [b""]))
    await exam.step("key that is none", lambda: _lookup(exam, table, [b"\xff\xff\xff\xff\xff\xff"]))
    await exam.step("version 0", lambda: _lookup(exam, table, [batches.key(1)], version=0))
    await exam.step("version 0 of a longer key", lambda: _lookup(exam, prefix, [two[0][0]], version=0))
    await exam.step("version 1 of a longer key", lambda: _lookup(exam, prefix, [two[0][0]]))
    await exam.step("log table", lambda: _lookup(exam, log, [batches.key(1)]))
    await exam.step("unknown table", lambda: _lookup(exam, _NOWHERE, [batches.key(1)]))
    await exam.step("unknown bucket", lambda: _lookup(exam, table, [batches.key(1)], bucket=7))

    def by_prefix(of: int, keys: list[bytes], **more: Any) -> Any:
        return _lookup(exam, of, keys, api=wire.PREFIX_LOOKUP, **more)

    await exam.step("prefix", lambda: by_prefix(prefix, [batches.key(1), batches.key(7), batches.key(2)]))
    await exam.step("prefix in a table without one", lambda: by_prefix(table, [batches.key(1)]))
    await exam.step("empty prefix", lambda: by_prefix(prefix, [b""]))
    await exam.step("prefix in a log table", lambda: by_prefix(log, [batches.key(1)]))
    await exam.step("prefix in an unknown bucket", lambda: by_prefix(prefix, [batches.key(1)], bucket=7))
    for limit in [0, -1, 2, 100]:
        await exam.step(f"limit {limit}", lambda limit=limit: _limit(exam, table, limit))
    await exam.step("limit in an unknown bucket", lambda: _limit(exam, table, 2, bucket=7))
    await exam.step("scan", lambda: _scan(exam, table))


def _scan(exam: Exam, table: int) -> Any:
    """A whole ScanKv session, where the server has that."""
    _, versions = wire.api_versions(exam.raw("tablet"))
    if wire.SCAN_KV not in versions:
        return "the server does not offer it"
    answer = exam.call("tablet", wire.SCAN_KV, [(2, [(1, table), (3, 0)]), (3, 0), (4, 1 << 20)])
    return [wire.one(answer, 4), len(batches.values_of(wire.one(answer, 5)))]


async def dropped_ids(exam: Exam) -> None:
    """Requests that name a table by its id after it has been dropped; the replicas go away a little later."""
    await exam.ready_table("gone", table_json())
    await exam.ready_table("gone_keyed", table_json(primary_key=["id"]))
    log, keyed = exam.table_id("gone"), exam.table_id("gone_keyed")
    for name in ["gone", "gone_keyed"]:
        exam.call("coordinator", 1006, [(1, exam.table_path(name)), (2, False)])

    async def settled(ask: Callable[[], Any]) -> Any:
        answer: Any = None
        for _ in range(100):
            answer = ask()
            # On its way out a replica may still answer, or say that it leads no more.
            if answer.get("bucket", answer.get("answer")) not in (0, 12):
                break
            await asyncio.sleep(0.1)
        return answer

    batch = batches.kv_batch([(batches.key(1), None)])
    await exam.step("produce", lambda: settled(lambda: _produce(exam, log, batches.log_batch([(1, "a")]))))
    await exam.step("fetch", lambda: settled(lambda: _fetch(exam, log, 0)))
    await exam.step("list offsets", lambda: settled(lambda: _offsets(exam, log, 1)))
    await exam.step("put", lambda: settled(lambda: _put(exam, keyed, batch)))
    await exam.step("lookup", lambda: settled(lambda: _lookup(exam, keyed, [batches.key(1)])))
    await exam.step("limit scan", lambda: settled(lambda: _limit(exam, keyed, 1)))
