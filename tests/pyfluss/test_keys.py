"""pyfluss on primary-key tables: upserts, deletes, partial updates, lookups, changelogs, numbered columns."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pytest

import forebay
from tests.pyfluss.conftest import changes, connect, error_code, fluss, records
from tests.pyfluss.sample_rows import EXTREMES, NESTED, NESTED_ROWS, SCALARS

pytestmark = pytest.mark.foreign

USERS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())])


async def write(table, *rows, columns: list[str] | None = None) -> None:
    upsert = table.new_upsert()
    writer = (upsert.partial_update_by_name(columns) if columns else upsert).create_writer()
    for row in rows:
        writer.upsert(row)
    await writer.flush()


async def look_up(table, *keys) -> list:
    lookuper = table.new_lookup().create_lookuper()
    return list(await asyncio.gather(*(lookuper.lookup(key) for key in keys)))


async def changelog(table, count: int, **options) -> list:
    scan = table.new_scan()
    for name, value in options.items():
        scan = getattr(scan, name)(value)
    scanner = await scan.create_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    return changes(await records(scanner, count))


async def test_rows_are_put_replaced_deleted_and_found(session):
    table = await session.create(USERS, ["id"], bucket_count=3)
    upsert, lookup = table.new_upsert(), table.new_lookup()
    assert repr(upsert)
    assert repr(lookup)
    async with upsert.create_writer() as writer:
        assert repr(writer)
        await writer.upsert({"id": 1, "name": "a", "score": 0.5}).wait()
        await writer.upsert([2, "b", None]).wait()
        writer.upsert((3, "c", 1.0))
        writer.upsert({"id": 3, "name": "again"})
        writer.delete({"id": 2})
        await writer.delete([77]).wait()
    lookuper = lookup.create_lookuper()
    assert repr(lookuper)
    assert await lookuper.lookup({"id": 1}) == {"id": 1, "name": "a", "score": 0.5}
    assert await look_up(table, [2], (3,), {"id": 4}) == [None, {"id": 3, "name": "again", "score": None}, None]


async def test_values_of_every_type_are_stored_as_they_were(session):
    schema = pa.schema([("k", pa.int32()), *SCALARS])
    table = await session.create(schema, ["k"])
    rows = [{"k": number, **row} for number, row in enumerate(EXTREMES)]
    await write(table, *rows)
    found = await look_up(table, {"k": 0}, {"k": 1}, {"k": 2})
    assert found == rows
    assert math.copysign(1, found[1]["f64"]) == -1


async def test_nested_values_are_stored_as_they_were(session):
    table = await session.create(NESTED, ["id"])
    await write(table, *NESTED_ROWS)
    assert await look_up(table, {"id": 1}, {"id": 2}, {"id": 3}) == NESTED_ROWS


KEY_TYPES = {
    "bool": (pa.bool_(), [True, False]),
    "i8": (pa.int8(), [-128, 0, 127]),
    "i16": (pa.int16(), [-(2**15), -1, 5]),
    "i32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1, 0]),
    "f32": (pa.float32(), [0.5, -1.25]),
    "f64": (pa.float64(), [1e300, -1e-300, 0.0]),
    "text": (pa.string(), ["", "ä", "x" * 600, "x" * 599 + "y", "a\x00b"]),
    "bytes": (pa.binary(), [b"", b"\x00", b"\xff" * 300]),
    "fixed": (pa.binary(4), [b"\x00\x00\x00\x00", b"abcd"]),
    "small": (pa.decimal128(9, 2), [Decimal("-1.00"), Decimal("9999999.99")]),
    "big": (pa.decimal128(38, 5), [Decimal("-" + "9" * 33 + ".99999"), Decimal("0.00001")]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "at": (pa.time32("ms"), [dt.time(0), dt.time(23, 59, 59, 999_000)]),
    "ntz": (pa.timestamp("us"), [dt.datetime(1970, 1, 1), dt.datetime(2026, 1, 1, 0, 0, 0, 7)]),
    "ltz": (pa.timestamp("us", tz="UTC"), [dt.datetime(2026, 1, 1, 0, 0, 0, 7, tzinfo=dt.UTC)]),
}


@pytest.mark.parametrize("kind", list(KEY_TYPES))
async def test_keys_of_every_type_are_distinguished(session, kind):
    data_type, values = KEY_TYPES[kind]
    table = await session.create(pa.schema([("v", pa.string()), ("k", data_type)]), ["k"], bucket_count=2)
    await write(table, *({"k": value, "v": f"{number}"} for number, value in enumerate(values)))
    found = await look_up(table, *({"k": value} for value in values))
    assert found == [{"v": f"{number}", "k": value} for number, value in enumerate(values)]


async def test_a_nan_is_a_key_like_any_other_and_both_zeros_are_one(session):
    table = await session.create(pa.schema([("k", pa.float64()), ("v", pa.int32())]), ["k"])
    await write(table, {"k": math.nan, "v": 1}, {"k": math.nan, "v": 2}, {"k": -0.0, "v": 3}, {"k": 0.0, "v": 4})
    found = await look_up(table, {"k": math.nan}, {"k": -0.0}, {"k": 0.0})
    assert [row["v"] for row in found] == [2, 4, 4]  # as in the lake: docs/limits.md, "keys"


async def test_keys_of_many_columns_in_another_order_than_the_table(session):
    schema = pa.schema([("v", pa.int32()), ("b", pa.string()), ("x", pa.float64()), ("a", pa.int64())])
    table = await session.create(schema, ["a", "b"], bucket_count=2)
    assert table.get_table_info().get_primary_keys() == ["a", "b"]
    await write(table, {"a": 1, "b": "x", "v": 1}, {"a": 1, "b": "y", "v": 2}, {"a": 2, "b": "x", "v": 3})
    found = await look_up(table, {"b": "y", "a": 1}, [2, "x"], {"a": 3, "b": "x"})
    assert [row and row["v"] for row in found] == [2, 3, None]
    with pytest.raises((fluss.FlussError, KeyError, ValueError)):
        await look_up(table, {"a": 1})


async def test_the_changelog_tells_what_every_write_did(session):
    table = await session.create(USERS, ["id"])
    writer = table.new_upsert().create_writer()
    for row in ([1, "a", 0.0], [2, "b", 0.0], [1, "c", 1.0], [1, "c", 1.0]):
        await writer.upsert(row).wait()
    await writer.delete({"id": 2}).wait()
    await writer.upsert([2, "new", None]).wait()

    def row(key, name, score):
        return {"id": key, "name": name, "score": score}

    expected = [
        ("+I", row(1, "a", 0.0)), ("+I", row(2, "b", 0.0)), ("-U", row(1, "a", 0.0)), ("+U", row(1, "c", 1.0)),
        ("-U", row(1, "c", 1.0)), ("+U", row(1, "c", 1.0)), ("-D", row(2, "b", 0.0)), ("+I", row(2, "new", None)),
    ]  # fmt: skip
    assert await changelog(table, 8) == expected
    assert await changelog(table, 8, project_by_name=["name"]) == [(kind, {"name": r["name"]}) for kind, r in expected]
    with pytest.raises(fluss.FlussError):
        await table.new_scan().create_record_batch_log_scanner()
    assert await session.admin.list_offsets(table.get_table_path(), [0], fluss.OffsetSpec.latest()) == {0: 8}


async def test_partial_updates_touch_their_columns_only(session):
    schema = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.int32()), ("c", pa.list_(pa.int32()))])
    table = await session.create(schema, ["id"])
    await write(table, {"id": 1, "a": "a", "b": 1, "c": [1]})
    await write(table, {"id": 1, "b": 2}, {"id": 2, "b": 3}, columns=["id", "b"])
    by_index = table.new_upsert().partial_update_by_index([0, 3]).create_writer()
    by_index.upsert({"id": 1, "c": None})
    await by_index.flush()
    assert await look_up(table, [1], [2]) == [
        {"id": 1, "a": "a", "b": 2, "c": None},
        {"id": 2, "a": None, "b": 3, "c": None},
    ]
    deleter = table.new_upsert().partial_update_by_name(["id", "b"]).create_writer()
    deleter.delete({"id": 1})
    deleter.delete({"id": 2})
    await deleter.flush()
    assert await look_up(table, [1], [2]) == [{"id": 1, "a": "a", "b": None, "c": None}, None]
    for wrong in (["b"], ["id", "nix"]):
        with pytest.raises((fluss.FlussError, ValueError)):
            table.new_upsert().partial_update_by_name(wrong).create_writer()


async def test_prefix_lookups_find_all_rows_of_a_bucket_key(session):
    schema = pa.schema([("day", pa.string()), ("user", pa.string()), ("n", pa.int64()), ("v", pa.int32())])
    table = await session.create(schema, ["user", "n"], bucket_keys=["user"], bucket_count=3)
    await write(table, *({"day": "d", "user": f"u{i % 3}", "n": i, "v": i} for i in range(30)))
    prefix = table.new_lookup().lookup_by(["user"])
    assert repr(prefix)
    lookuper = prefix.create_lookuper()
    assert repr(lookuper)
    assert [row["n"] for row in await lookuper.lookup({"user": "u1"})] == list(range(1, 30, 3))
    assert await lookuper.lookup(["nobody"]) == []
    assert await lookuper.lookup([""]) == []
    partitioned = await session.create(
        schema, ["day", "user", "n"], partition_keys=["day"], bucket_keys=["user"], bucket_count=2
    )
    await session.admin.create_partition(partitioned.get_table_path(), {"day": "mon"})
    await write(partitioned, *({"day": "mon", "user": "u", "n": i} for i in range(5)))
    by_day = partitioned.new_lookup().lookup_by(["day", "user"]).create_lookuper()
    assert len(await by_day.lookup({"day": "mon", "user": "u"})) == 5
    assert await by_day.lookup({"day": "tue", "user": "u"}) == []
    for wrong in (["user"], ["day"], ["day", "nix"]):
        with pytest.raises(fluss.FlussError):
            partitioned.new_lookup().lookup_by(wrong).create_lookuper()


async def test_partitions_of_a_primary_key_table_hold_their_own_rows(session):
    schema = pa.schema([("p", pa.int32()), ("id", pa.int64()), ("v", pa.string())])
    table = await session.create(schema, ["p", "id"], partition_keys=["p"], bucket_count=2)
    for value in ("1", "2"):
        await session.admin.create_partition(table.get_table_path(), {"p": value})
    await write(table, *({"p": 1 + i % 2, "id": i // 2, "v": f"{i}"} for i in range(20)))
    assert await look_up(table, {"p": 1, "id": 3}, {"p": 2, "id": 3}, {"p": 3, "id": 3}) == [
        {"p": 1, "id": 3, "v": "6"},
        {"p": 2, "id": 3, "v": "7"},
        None,
    ]
    ids = await session.partition_ids(table)
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe_partition_buckets({(ids["2"], 0): 0, (ids["2"], 1): 0})
    assert {record.row["p"] for record in await records(scanner, 10)} == {2}
    await session.admin.drop_partition(table.get_table_path(), {"p": "2"})
    fresh = await connect(session.address)
    again = await fresh.get_table(table.get_table_path())
    assert await look_up(again, {"p": 2, "id": 3}) == [None]
    await fresh.close()


async def test_the_server_numbers_rows_that_are_new(session):
    schema = pa.schema([("name", pa.string()), ("number", pa.int64()), ("v", pa.int32())])
    table = await session.create(schema, ["name"], auto_increment_column="number")
    assert table.get_table_info().get_schema().get_auto_increment_columns() == ["number"]
    await write(table, *({"name": name, "v": 1} for name in "abc"), columns=["name", "v"])
    await write(table, {"name": "b", "v": 2}, {"name": "d", "v": 2}, columns=["name", "v"])
    found = await look_up(table, *([name] for name in "abcd"))
    assert [(row["number"], row["v"]) for row in found] == [(1, 1), (2, 2), (3, 1), (4, 2)]
    with pytest.raises(fluss.FlussError):
        await write(table, {"name": "e", "number": 9, "v": 1})


async def test_limited_scans_return_rows_of_a_bucket(session):
    table = await session.create(USERS, ["id"])
    await write(table, *([i, f"n{i}", None] for i in range(20)))
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    scanner = table.new_scan().limit(5).create_bucket_batch_scanner(bucket)
    assert (await scanner.to_arrow())["id"].to_pylist() == [0, 1, 2, 3, 4]
    whole = table.new_scan().limit(100).project([1]).create_bucket_batch_scanner(bucket)
    assert (await whole.to_pandas())["name"].tolist() == [f"n{i}" for i in range(20)]


async def test_rows_of_older_schemas_are_looked_up_under_the_newest(session):
    table = await session.create(USERS, ["id"])
    await write(table, [1, "old", 0.5])
    with forebay.connect(session.address) as ours:
        ours.table(str(table.get_table_path())).alter(add_columns={"extra": pa.string()})
    other = await connect(session.address)
    newer = await other.get_table(table.get_table_path())
    await write(newer, [2, "new", 1.0, "e"])
    await write(newer, {"id": 1, "extra": "late"}, columns=["id", "extra"])
    assert await look_up(newer, [1], [2]) == [
        {"id": 1, "name": "old", "score": 0.5, "extra": "late"},
        {"id": 2, "name": "new", "score": 1.0, "extra": "e"},
    ]
    await other.close()


async def test_many_writes_in_flight_and_repeated_keys_keep_their_order(session):
    table = await session.create(USERS, ["id"], bucket_count=2)
    writer = table.new_upsert().create_writer()
    for i in range(3000):
        writer.upsert([i % 10, f"{i}", float(i)])
        if i % 100 == 0:
            writer.delete([i % 10])
    await writer.flush()
    found = await look_up(table, *([k] for k in range(10)))
    assert [row["score"] for row in found] == [2990.0 + k for k in range(10)]


async def test_writes_and_lookups_of_the_wrong_kind_are_refused(session):
    log = await session.create(USERS)
    keys = await session.create(USERS, ["id"])
    with pytest.raises(fluss.FlussError):
        log.new_upsert().create_writer()
    with pytest.raises(fluss.FlussError):
        log.new_lookup().create_lookuper()
    with pytest.raises(fluss.FlussError):
        keys.new_append().create_writer()
    with pytest.raises((fluss.FlussError, TypeError, ValueError)):
        keys.new_upsert().create_writer().upsert({"id": None, "name": "x"})
    await session.admin.drop_table(keys.get_table_path())
    assert await error_code(session.connection.get_table(keys.get_table_path())) == fluss.ErrorCode.TABLE_NOT_EXIST


@pytest.mark.parametrize(
    ("engine", "kept"),
    [
        ({"table.merge-engine": "first_row"}, {"id": 1, "name": "a", "score": 2.0, "v": 5}),
        (
            {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "v"},
            {"id": 1, "name": "c", "score": None, "v": 5},
        ),
    ],
)
async def test_tables_with_merge_engines_keep_one_row_of_each_key(session, engine, kept):
    schema = USERS.append(pa.field("v", pa.int64()))
    table = await session.create(schema, ["id"], properties=engine)
    await write(table, [1, "a", 2.0, 5], [1, "b", 3.0, 4], [1, "c", None, 5])
    assert await look_up(table, [1]) == [kept]
    writer = table.new_upsert().create_writer()
    await writer.delete({"id": 1}).wait()  # ignored
    await write(table, [2, "d", None, None])
    found = await changelog(table, 2 if engine["table.merge-engine"] == "first_row" else 4)
    assert [change[:1] for change in found][-1:] == [change[:1] for change in found if change[1]["id"] == 2]
    assert await look_up(table, [1], [2]) == [kept, {"id": 2, "name": "d", "score": None, "v": None}]
    partial = table.new_upsert().partial_update_by_name(["id", "name"]).create_writer()
    with pytest.raises(fluss.FlussError, match="its merge engine"):
        await partial.upsert({"id": 1, "name": "x"}).wait()


async def test_an_aggregating_table_is_made_by_its_options_and_combines_rows(session):
    schema = USERS.append(pa.field("price", pa.decimal128(20, 2))).append(pa.field("flag", pa.bool_()))
    table = await session.create(
        schema,
        ["id"],
        properties={"table.merge-engine": "aggregation"},
        custom_properties={
            "fields.name.agg": "listagg",
            "fields.name.listagg.delimiter": "/",
            "fields.score.agg": "max",
            "fields.price.agg": "sum",
            "fields.flag.agg": "bool_or",
        },
    )
    await write(table, [1, "a", 2.0, Decimal("1.50"), False], [1, "b", 1.0, Decimal("2.25"), True])
    await write(table, [1, None, None, None, False], [2, "c", 0.5, None, None])
    await write(table, {"id": 1, "price": Decimal("10.00")}, columns=["id", "price"])
    whole = {"id": 1, "name": "a/b", "score": 2.0, "price": Decimal("13.75"), "flag": True}
    assert await look_up(table, [1], [2]) == [whole, {"id": 2, "name": "c", "score": 0.5, "price": None, "flag": None}]
    found = await changelog(table, 8)
    assert [kind for kind, row in found if row["id"] == 1] == ["+I", "-U", "+U", "-U", "+U", "-U", "+U"]
    assert found[-1] == ("+U", whole)
    await table.new_upsert().create_writer().delete({"id": 1}).wait()  # ignored
    assert await look_up(table, [1]) == [whole]
    again = await (await connect(session.address)).get_table(table.get_table_path())  # its schema has the functions now
    assert await look_up(again, [1]) == [whole]


async def test_filters_find_keys_in_the_buckets_that_pyfluss_has_chosen(session):
    """It puts keys whose last bytes are beyond 127 into other buckets than Java's client does."""
    names = ["ASCII", "Müller", "Жук", "ab日本語", "é", "naïve", "x" * 9 + "ß"]
    table = await session.create(pa.schema([("name", pa.string()), ("n", pa.int64())]), ["name"], bucket_count=16)
    await write(table, *({"name": name, "n": n} for n, name in enumerate(names)))
    numbers = await session.create(pa.schema([("k", pa.int32())]), ["k"], bucket_count=16)
    await write(numbers, *({"k": k} for k in (-1, -5, 7, 200, 2**31 - 1)))
    with forebay.connect(session.address) as ours:
        mine = ours.table(str(table.get_table_path()))
        assert [mine.scan(filter=f"name = '{name}'").to_arrow()["n"].to_pylist() for name in names] == [
            [n] for n in range(len(names))
        ]
        assert mine.scan(filter=f"name IN ({', '.join(map(repr, names))})").count() == len(names)
        keys = ours.table(str(numbers.get_table_path()))
        assert [keys.scan(filter=f"k = {k}").count() for k in (-1, -5, 7, 200, 2**31 - 1, 8)] == [1] * 5 + [0]
        assert keys.scan(filter="k IN (-1, -5, 200)").count() == 3
