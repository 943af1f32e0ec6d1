"""Records the requests of the real pyfluss: `python -m tests.protocol.record_golden` rewrites golden/*.hex.

It sends a ToyServer every request that pyfluss supports and keeps each different request once: one file per API, one
frame per line, in hex, length field included.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from decimal import Decimal
from pathlib import Path

import fluss
import pyarrow as pa

from forebay.protocol.api import ApiKey
from tests.protocol.toy_server import ToyServer

GOLDEN = Path(__file__).parent / "golden"
FRAME_BYTES_MAX = 4096

SASL = {
    "security.protocol.map": "CLIENT:SASL",
    "security.sasl.enabled.mechanisms": "PLAIN",
    "security.sasl.plain.credentials": "admin:secret",
}

ALL_TYPES = pa.schema(
    [
        pa.field("b", pa.bool_()),
        pa.field("i8", pa.int8()),
        pa.field("i16", pa.int16()),
        pa.field("i32", pa.int32()),
        pa.field("i64", pa.int64()),
        pa.field("f32", pa.float32()),
        pa.field("f64", pa.float64()),
        pa.field("s", pa.string()),
        pa.field("bin", pa.binary()),
        pa.field("d1", pa.decimal128(10, 2)),
        pa.field("d2", pa.decimal128(30, 4)),
        pa.field("day", pa.date32()),
        pa.field("t", pa.time32("ms")),
        pa.field("ts", pa.timestamp("us")),
        pa.field("ltz", pa.timestamp("us", tz="UTC")),
    ]
)


def filters() -> list[fluss.Predicate]:
    """One filter per column type, and one of each kind of function."""
    col = fluss.col
    return [
        col("b") == True,  # noqa: E712
        col("i8") == -2,
        col("i16") != 300,
        col("i32") < 7,
        col("i64") <= -1,
        col("f32") > 1.5,
        col("f64") >= -2.25,
        col("s").starts_with("h\u00e9"),
        col("s").contains("l"),
        col("s").ends_with("o"),
        col("bin") == b"\x00\xff",
        col("d1") == Decimal("-123.45"),
        col("d2") == Decimal("-12345678901234567890.1234"),
        col("day") == dt.date(2024, 1, 15),
        col("t") == dt.time(10, 11, 12, 345000),
        col("ts") == dt.datetime(2024, 1, 15, 10, 11, 12, 345678),
        col("ltz") == dt.datetime(2024, 1, 15, 10, 11, 12, 345678, tzinfo=dt.UTC),
        col("s").is_null(),
        (col("i32").is_in([1, 2, 3]) | col("s").is_not_null()) & (col("i64").not_in([4])) & (col("i8") > 0),
    ]


async def ask_everything(toy: ToyServer) -> None:
    """Every RPC that pyfluss 1.0.0 sends, in as many forms as its API has."""
    connection = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": toy.bootstrap}))
    admin = connection.get_admin()
    descriptor = fluss.DatabaseDescriptor(comment="a shop", custom_properties={"owner": "me"})
    await admin.create_database("shop", descriptor, ignore_if_exists=True)
    await admin.create_database("gone")
    await admin.drop_database("gone", ignore_if_not_exists=True, cascade=False)
    await admin.list_databases()
    await admin.database_exists("shop")
    await admin.get_database_info("shop")

    log, pk, parts, wide = (fluss.TablePath("shop", name) for name in ("log", "pk", "parts", "wide"))
    plain = fluss.Schema(pa.schema([("id", pa.int32()), ("s", pa.string())]))
    keyed = pa.schema([("id", pa.int32()), ("n", pa.int32()), ("v", pa.string())])
    await admin.create_table(log, fluss.TableDescriptor(plain, bucket_count=2, comment="a log table"))
    await admin.create_table(
        pk, fluss.TableDescriptor(fluss.Schema(keyed, primary_keys=["id", "n"]), bucket_count=2, bucket_keys=["id"])
    )
    await admin.create_table(
        parts,
        fluss.TableDescriptor(plain, partition_keys=["s"], bucket_count=2, properties={"table.log.ttl": "1 d"}),
        ignore_if_exists=True,
    )
    await admin.create_table(wide, fluss.TableDescriptor(fluss.Schema(ALL_TYPES), bucket_count=2))
    await admin.list_tables("shop")
    await admin.table_exists(log)
    await admin.get_table_info(log)
    await admin.get_server_nodes()

    await admin.create_partition(parts, {"s": "x"}, ignore_if_exists=True)
    await admin.list_partition_infos(parts)
    await admin.list_partition_infos(parts, {"s": "x"})
    await admin.list_partition_offsets(parts, "x", [0, 1], fluss.OffsetSpec.latest())
    await ask_log(connection, admin, log, parts)
    await ask_kv(connection, admin, pk)
    table = await connection.get_table(wide)
    for predicate in filters():
        scanner = await table.new_scan().filter(predicate).create_record_batch_log_scanner()
        scanner.subscribe(0, 0)
        await scanner.poll_arrow(10)
    await admin.drop_partition(parts, {"s": "x"}, ignore_if_not_exists=True)
    await admin.drop_table(wide, ignore_if_not_exists=True)
    await connection.close()


async def ask_log(
    connection: fluss.FlussConnection, admin: fluss.FlussAdmin, log: fluss.TablePath, parts: fluss.TablePath
) -> None:
    table = await connection.get_table(log)
    writer = table.new_append().create_writer()
    writer.append({"id": 1, "s": "a"})
    writer.append({"id": 2, "s": None})
    await writer.flush()
    for spec in (fluss.OffsetSpec.earliest(), fluss.OffsetSpec.latest(), fluss.OffsetSpec.timestamp(1_700_000_000_000)):
        await admin.list_offsets(log, [0, 1], spec)
    scanner = await table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_buckets({0: 0, 1: 0})
    await scanner.to_arrow()
    scanner = await table.new_scan().project([1]).create_log_scanner()
    scanner.subscribe(1, fluss.EARLIEST_OFFSET)
    await scanner.poll(10)
    table = await connection.get_table(parts)
    writer = table.new_append().create_writer()
    writer.append({"id": 1, "s": "x"})
    await writer.flush()
    (partition,) = await admin.list_partition_infos(parts)
    scanner = await table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_partition(partition.partition_id, 0, 0)
    await scanner.poll_arrow(10)


async def ask_kv(connection: fluss.FlussConnection, admin: fluss.FlussAdmin, pk: fluss.TablePath) -> None:
    table = await connection.get_table(pk)
    writer = table.new_upsert().create_writer()
    writer.upsert({"id": 1, "n": 1, "v": "x"})
    writer.delete({"id": 2, "n": 2})
    await writer.flush()
    writer = table.new_upsert().partial_update_by_name(["id", "n", "v"]).create_writer()
    writer.upsert({"id": 3, "n": 3, "v": "z"})
    await writer.flush()
    await table.new_lookup().create_lookuper().lookup({"id": 1, "n": 1})
    await table.new_lookup().lookup_by(["id"]).create_lookuper().lookup({"id": 1})
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    for request in (
        table.new_scan().limit(5).create_bucket_batch_scanner(bucket).to_arrow(),
        admin.get_latest_lake_snapshot(pk),
    ):
        try:
            await request
        except fluss.FlussError as error:
            print(f"as expected: {error}")


async def record() -> list[tuple[int, bytes]]:
    """The frames of all requests, in the order in which they came."""
    async with ToyServer() as toy:
        await ask_everything(toy)
    async with ToyServer(SASL) as with_sasl:
        config = {
            "bootstrap.servers": with_sasl.bootstrap,
            "security.protocol": "sasl",
            "security.sasl.username": "admin",
            "security.sasl.password": "secret",
        }
        await (await fluss.FlussConnection.create(fluss.Config(config))).close()
    return toy.cluster.recorded + with_sasl.cluster.recorded


def main() -> None:
    by_api: dict[str, dict[bytes, bytes]] = {}
    for api_key, frame in asyncio.run(record()):
        if len(frame) <= FRAME_BYTES_MAX:
            without_id = frame[:8] + frame[12:]
            by_api.setdefault(ApiKey(api_key).name.lower(), {}).setdefault(without_id, frame)
    for name, frames in sorted(by_api.items()):
        lines = [f"# Request frames of pyfluss 1.0.0 ({name.upper()}), made by tests/protocol/record_golden.py"]
        lines += [frame.hex() for frame in frames.values()]
        (GOLDEN / f"{name}.hex").write_text("\n".join(lines) + "\n")
        print(f"{name}: {len(frames)}")


if __name__ == "__main__":
    main()
