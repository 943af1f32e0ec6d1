"""pyfluss 1.0.0 as a second client on the same tables: what one writes, the other reads."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import forebay
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.codec.arrow.arrow_types import storage_schema
from forebay.codec.rows.buckets import bucket_ids
from forebay.codec.rows.keys import primary_key_encoder
from forebay.metadata.table import TableBucket
from tests.client.conftest import MakeTable, own_server
from tests.client.data import ALL_TYPES, all_types_rows, by_id

fluss = pytest.importorskip("fluss")

pytestmark = pytest.mark.foreign

# pyfluss converts nested values and nanoseconds in ways of its own; plain Arrow batches carry all types.
PLAIN = [
    "id", "bool", "i8", "i16", "i32", "f32", "f64", "text", "bytes", "fixed", "small", "big", "day", "ts_ms", "ts_us",
    "ltz_s", "ltz_us",
]  # fmt: skip


def with_pyfluss(bootstrap: str, table: Table, work: Callable[[Any], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        connection = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": bootstrap}))
        try:
            return await work(await connection.get_table(fluss.TablePath(table.path.database, table.path.table)))
        finally:
            await connection.close()

    return asyncio.run(run())


async def all_records(their: Any, buckets: int, count: int, columns: list[str] | None = None) -> list[Any]:
    scan = their.new_scan()
    scanner = await (scan.project_by_name(columns) if columns else scan).create_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(buckets), fluss.EARLIEST_OFFSET))
    records: list[Any] = []
    while len(records) < count:
        polled = await scanner.poll(500)
        for bucket in polled.buckets():
            records.extend(polled.records(bucket))
    return records


async def arrow_rows(their: Any, buckets: int) -> pa.Table:
    scanner = await their.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(buckets), fluss.EARLIEST_OFFSET))
    return await scanner.to_arrow()


@pytest.mark.parametrize("compression", ["NONE", "ZSTD", "LZ4_FRAME"])
def test_pyfluss_reads_our_log_batches_of_every_type(bootstrap: str, make_table: MakeTable, compression: str) -> None:
    table = make_table(ALL_TYPES, buckets=2, options={"table.log.arrow.compression.type": compression})
    data = all_types_rows(60)
    table.append(data.slice(0, 30))
    table.append(data.slice(30))
    found = with_pyfluss(bootstrap, table, lambda their: arrow_rows(their, 2))
    assert by_id(found.cast(data.schema)) == by_id(data)


@pytest.mark.parametrize("compression", ["NONE", "ZSTD", "LZ4_FRAME"])
def test_we_read_log_batches_of_every_type_that_pyfluss_wrote(
    bootstrap: str, make_table: MakeTable, compression: str
) -> None:
    table = make_table(ALL_TYPES, buckets=2, options={"table.log.arrow.compression.type": compression})
    data = all_types_rows(60)

    async def write(their: Any) -> None:
        writer = their.new_append().create_writer()
        writer.write_arrow(data)
        await writer.flush()

    with_pyfluss(bootstrap, table, write)
    assert by_id(table.scan().to_arrow()) == by_id(data)
    assert table.changes(stop="latest", columns=["row", "id"], include=()).to_arrow().num_rows == 60


def normal(value: Any) -> Any:
    """Values as both clients give them."""
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    return value


def test_rows_go_both_ways_through_a_primary_key_table(bootstrap: str, make_table: MakeTable) -> None:
    schema = pa.schema([ALL_TYPES.field(name) for name in PLAIN])
    table = make_table(schema, primary_key=["id"], buckets=3)
    ours, theirs = all_types_rows(20).select(PLAIN), all_types_rows(20, 20).select(PLAIN)
    table.upsert(ours)

    async def work(their: Any) -> list[Any]:
        writer = their.new_upsert().create_writer()
        for row in theirs.to_pylist():
            writer.upsert(row)
        writer.delete({"id": 3})
        await writer.flush()
        lookuper = their.new_lookup().create_lookuper()
        return list(await asyncio.gather(*(lookuper.lookup({"id": i}) for i in range(40))))

    found = with_pyfluss(bootstrap, table, work)
    expected = [None if row["id"] == 3 else row for row in [*ours.to_pylist(), *theirs.to_pylist()]]
    for mine, other in zip(expected, found, strict=True):
        if mine is None:
            assert other is None
            continue
        assert {k: normal(v) for k, v in other.items()} == {k: normal(v) for k, v in mine.items()}
    assert by_id(table.scan().to_arrow()) == [row for row in expected if row is not None]
    assert by_id(table.lookup(list(range(20, 40)))) == theirs.to_pylist()


def test_pyfluss_sees_our_changelog_and_we_see_theirs(bootstrap: str, make_table: MakeTable) -> None:
    table = make_table({"id": pa.int32(), "v": pa.string()}, primary_key=["id"])
    table.upsert([{"id": 1, "v": "a"}])
    table.upsert([{"id": 1, "v": "b"}])

    async def work(their: Any) -> list[Any]:
        writer = their.new_upsert().create_writer()
        writer.upsert({"id": 2, "v": "theirs"})
        writer.delete({"id": 1})
        await writer.flush()
        return await all_records(their, 1, 5)

    records = with_pyfluss(bootstrap, table, work)
    seen = [(record.change_type.short_string(), record.offset, record.row["id"]) for record in records]
    assert seen == [("+I", 0, 1), ("-U", 1, 1), ("+U", 2, 1), ("+I", 3, 2), ("-D", 4, 1)]
    names = {"insert": "+I", "update_before": "-U", "update_after": "+U", "delete": "-D"}
    ours = table.changes(stop="latest").to_arrow().to_pylist()
    assert [(names[row["_change_type"]], row["_log_offset"], row["id"]) for row in ours] == seen


def test_partial_updates_meet(bootstrap: str, make_table: MakeTable) -> None:
    table = make_table({"id": pa.int32(), "a": pa.string(), "b": pa.string()}, primary_key=["id"])
    table.upsert([{"id": 1, "a": "ours"}], columns=["id", "a"])

    async def work(their: Any) -> Any:
        writer = their.new_upsert().partial_update_by_name(["id", "b"]).create_writer()
        await writer.upsert({"id": 1, "b": "theirs"}).wait()
        return await their.new_lookup().create_lookuper().lookup({"id": 1})

    expected = {"id": 1, "a": "ours", "b": "theirs"}
    assert with_pyfluss(bootstrap, table, work) == expected
    assert table.lookup([1]).to_pylist() == [expected]


def test_both_clients_send_a_row_to_the_same_bucket_and_partition(
    bootstrap: str, make_table: MakeTable, conn: Connection
) -> None:
    columns = {"day": pa.date32(), "user": pa.string(), "n": pa.int64(), "v": pa.int32()}
    table = make_table(
        columns, primary_key=["day", "user", "n"], partition_keys=["day"], bucket_keys=["user"], buckets=4
    )
    days = [dt.date(2024, 1, 1), dt.date(2024, 1, 2)]
    rows = [{"day": days[i % 2], "user": f"user {i % 9}", "n": i, "v": i} for i in range(60)]
    table.upsert(rows[:30])

    async def work(their: Any) -> Any:
        writer = their.new_upsert().create_writer()
        for row in [*rows[30:], *({**row, "v": -1} for row in rows[:10])]:
            writer.upsert(row)
        await writer.flush()
        prefix = their.new_lookup().lookup_by(["day", "user"]).create_lookuper()
        return await prefix.lookup({"day": days[1], "user": "user 4"})

    theirs = with_pyfluss(bootstrap, table, work)
    # A row that went to another bucket would be there twice.
    assert table.scan(columns=["n"]).to_arrow().num_rows == 60
    ours = table.prefix_lookup([{"day": days[1], "user": "user 4"}])
    assert sorted(row["n"] for row in theirs) == sorted(ours["n"].to_pylist())
    assert len(theirs) > 0


def test_both_clients_choose_the_same_bucket_for_a_bucket_key(bootstrap: str, make_table: MakeTable) -> None:
    table = make_table({"k": pa.string(), "n": pa.int64()}, bucket_keys=["k"], buckets=5)
    table.append(pa.table({"k": [f"k{i % 20}" for i in range(100)], "n": np.arange(100)}))

    async def work(their: Any) -> None:
        writer = their.new_append().create_writer()
        for i in range(100, 200):
            writer.append({"k": f"k{i % 20}", "n": i})
        await writer.flush()

    with_pyfluss(bootstrap, table, work)
    homes: dict[str, set[TableBucket | None]] = {}
    for bucket, batch in table.scan().reader().with_buckets():
        for key in batch["k"].to_pylist():
            homes.setdefault(key, set()).add(bucket)
    assert all(len(buckets) == 1 for buckets in homes.values())


@own_server
def test_numbered_rows_meet(bootstrap: str, make_table: MakeTable) -> None:
    table = make_table({"name": pa.string(), "n": pa.int64()}, primary_key=["name"], auto_increment="n")
    table.upsert([{"name": "ours"}])

    async def work(their: Any) -> Any:
        writer = their.new_upsert().partial_update_by_name(["name"]).create_writer()
        await writer.upsert({"name": "theirs"}).wait()
        return await their.new_lookup().create_lookuper().lookup({"name": "ours"})

    assert with_pyfluss(bootstrap, table, work) == {"name": "ours", "n": 1}
    assert table.lookup(["theirs"]).to_pylist() == [{"name": "theirs", "n": 2}]


def test_filters_find_the_same_rows(bootstrap: str, make_table: MakeTable) -> None:
    table = make_table({"id": pa.int64(), "v": pa.float64()})
    for first in range(0, 300, 100):
        table.append([{"id": i, "v": i / 2} for i in range(first, first + 100)])

    async def work(their: Any) -> pa.Table:
        scan = their.new_scan().filter(fluss.col("id") >= 290)
        scanner = await scan.create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        return await scanner.to_arrow()

    theirs = with_pyfluss(bootstrap, table, work)
    ours = table.scan(filter=forebay.col("id") >= 290).to_arrow()
    assert sorted(ours["id"].to_pylist()) == list(range(290, 300))
    assert set(ours["id"].to_pylist()) <= set(theirs["id"].to_pylist())


def test_decimals_keep_their_scale(bootstrap: str, make_table: MakeTable) -> None:
    table = make_table({"id": pa.int32(), "d": pa.decimal128(38, 18)}, primary_key=["id"])
    value = Decimal("-12345678901234567890.123456789012345678")
    table.upsert([{"id": 1, "d": value}])

    async def work(their: Any) -> Any:
        return await their.new_lookup().create_lookuper().lookup({"id": 1})

    assert with_pyfluss(bootstrap, table, work) == {"id": 1, "d": value}


def moment(zone: dt.tzinfo | None = None) -> dt.datetime:
    return dt.datetime(2024, 2, 29, 23, 59, 58, 123456, zone)


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "tinyint": (pa.int8(), [-128, 0, 127]),
    "smallint": (pa.int16(), [-32768, 5]),
    "int": (pa.int32(), [-(1 << 31), 0, 77]),
    "bigint": (pa.int64(), [-(1 << 63), -1, 1 << 40]),
    "float": (pa.float32(), [-0.5, 0.0, 3.25]),
    "double": (pa.float64(), [-1e300, 0.1]),
    "string": (pa.string(), ["a", "äöü€😀", "x" * 300]),
    "bytes": (pa.binary(), [b"\x00", b"\xff" * 9]),
    "binary(4)": (pa.binary(4), [b"\x00\x01\x02\x03", b"abcd"]),
    "decimal(10,2)": (pa.decimal128(10, 2), [Decimal("-1.50"), Decimal("99999999.99")]),
    "decimal(38,10)": (pa.decimal128(38, 10), [Decimal("-1234567890123456789.0000000001"), Decimal("0E-10")]),
    "date": (pa.date32(), [dt.date(1960, 1, 1), dt.date(2024, 2, 29)]),
    "time(3)": (pa.time32("ms"), [dt.time(0, 0), dt.time(23, 59, 59, 999000)]),
    "timestamp(3)": (pa.timestamp("ms"), [dt.datetime(1970, 1, 1), moment().replace(microsecond=123000)]),
    "timestamp(6)": (pa.timestamp("us"), [dt.datetime(2000, 1, 1), moment()]),
    "timestamp_ltz(6)": (pa.timestamp("us", "UTC"), [dt.datetime(2000, 1, 1, tzinfo=dt.UTC), moment(dt.UTC)]),
}
"""Values of every type that a key may have."""


def goes_elsewhere_with_pyfluss(table: Table, key: pa.Array) -> bool:
    """pyfluss 1.0.0 hashes the last one to three bytes of a key in another way than Java if one of them is above 0x7f.

    Rows of such keys go to other buckets with it than with Java's client and ours (docs/client/compatibility.md).
    """
    stored = storage_schema(table.info.schema.columns[:1])
    batch = pa.RecordBatch.from_arrays([key.cast(stored.field(0).type)], schema=stored)
    encoded = primary_key_encoder(table.info.descriptor).encode(batch)[0].as_py()
    return any(byte > 0x7F for byte in encoded[len(encoded) & ~3 :])


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("buckets", [1, 7])
def test_both_clients_encode_keys_of_every_type_alike(
    bootstrap: str, make_table: MakeTable, name: str, buckets: int
) -> None:
    """A key that one of them encoded otherwise, or sent to another bucket, would not be found, or be there twice."""
    key_type, values = KEYS[name]
    schema = pa.schema([pa.field("k", key_type, nullable=False), ("v", pa.string())])
    table = make_table(schema, primary_key=["k"], buckets=buckets)
    if buckets > 1:
        values = [v for v in values if not goes_elsewhere_with_pyfluss(table, pa.array([v], key_type))]
    table.upsert([{"k": value, "v": "ours"} for value in values])

    async def work(their: Any) -> list[Any]:
        lookuper = their.new_lookup().create_lookuper()
        found = [await lookuper.lookup({"k": value}) for value in values]
        writer = their.new_upsert().create_writer()
        for value in values:
            writer.upsert({"k": value, "v": "theirs"})
        await writer.flush()
        return found

    assert [row["v"] for row in with_pyfluss(bootstrap, table, work)] == ["ours"] * len(values)
    keys = pa.table({"k": pa.array(values, key_type)})
    assert table.lookup(keys)["v"].to_pylist() == ["theirs"] * len(values)
    assert table.scan().to_arrow().num_rows == len(values)


def test_keys_with_high_last_bytes_go_where_java_sends_them(bootstrap: str, make_table: MakeTable) -> None:
    """The buckets are those of `FlussBucketingFunction` of fluss-client 0.9.1 for seven buckets."""
    by_java = {b"\x80": 6, b"\xff" * 9: 3, b"\xc6\x9a\x01": 4, "äöü€😀".encode(): 5, b"abc": 6}
    assert bucket_ids(pa.array(list(by_java)), 7, None).tolist() == list(by_java.values())
    table = make_table({"k": pa.string(), "v": pa.int32()}, primary_key=["k"], buckets=7)
    table.upsert([{"k": "äöü€😀", "v": 1}])

    async def work(their: Any) -> Any:
        return await their.new_lookup().create_lookuper().lookup({"k": "äöü€😀"})

    assert goes_elsewhere_with_pyfluss(table, pa.array(["äöü€😀"]))
    assert with_pyfluss(bootstrap, table, work) is None, "pyfluss hashes as Java does now: correct docs/client"


NESTED = ["id", "list", "texts", "map", "row", "deep", "time"]


def test_nested_values_go_both_ways_through_a_primary_key_table(bootstrap: str, make_table: MakeTable) -> None:
    table = make_table(pa.schema([ALL_TYPES.field(name) for name in NESTED]), primary_key=["id"])
    rows = all_types_rows(12).select(NESTED)
    table.upsert(rows)

    async def work(their: Any) -> list[Any]:
        lookuper = their.new_lookup().create_lookuper()
        found = [await lookuper.lookup({"id": i}) for i in range(12)]
        writer = their.new_upsert().create_writer()
        for row in found:
            writer.upsert({**row, "id": row["id"] + 100})
        await writer.flush()
        return found

    assert with_pyfluss(bootstrap, table, work) == rows.to_pylist()
    theirs = table.scan(filter=forebay.col("id") >= 100).to_arrow()
    assert by_id(theirs) == [{**row, "id": row["id"] + 100} for row in by_id(rows)]


@pytest.mark.parametrize("name", [name for name in KEYS if not name.startswith("decimal")])
def test_both_clients_give_partitions_the_same_names(
    bootstrap: str, make_table: MakeTable, conn: Connection, name: str
) -> None:
    key_type, values = KEYS[name]
    if name == "string":
        values = ["a", "B_2", "x-y"]  # what partition names may consist of
    if name in ("float", "double"):
        values = [-0.5, 3.25]  # whole numbers are "3_0" in Java and here, but "3" in pyfluss 1.0.0
    if name.startswith("timestamp"):
        values = [value.replace(microsecond=0) for value in values]  # pyfluss writes .123456 as "_123456000"
    schema = pa.schema([pa.field("p", key_type, nullable=False), ("v", pa.int32())])
    table = make_table(schema, partition_keys=["p"])
    table.append([{"p": value, "v": 1} for value in values])
    names = {partition.name for partition in table.partitions()}
    assert len(names) == len(values)

    async def work(their: Any) -> None:
        writer = their.new_append().create_writer()
        for value in values:
            writer.append({"p": value, "v": 2})
        await writer.flush()

    with_pyfluss(bootstrap, table, work)
    assert {partition.name for partition in table.partitions()} == names
    for value in values:
        assert sorted(table.scan(partitions={"p": value}).to_arrow()["v"].to_pylist()) == [1, 2]
