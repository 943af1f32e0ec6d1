"""pyfluss on log tables: appending rows and Arrow data, scanning by record and by batch."""

from __future__ import annotations

import asyncio
import datetime as dt

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import forebay
from tests.patience import PATIENCE
from tests.pyfluss.conftest import all_rows, changes, connect, error_code, fluss, records
from tests.pyfluss.sample_rows import EXTREMES, NESTED, NESTED_ROWS, SCALARS

pytestmark = pytest.mark.foreign

POINTS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("v", pa.float64())])

KINDS = ["AppendOnly", "Insert", "UpdateBefore", "UpdateAfter", "Delete"]


def points(first: int, count: int) -> pa.RecordBatch:
    ids = np.arange(first, first + count)
    return pa.RecordBatch.from_arrays([ids, [f"n{i}" for i in ids], ids / 2], schema=POINTS)


async def whole(table, buckets: int = 1, **options) -> pa.Table:
    scan = table.new_scan()
    for name, value in options.items():
        scan = getattr(scan, name)(value)
    scanner = await scan.create_record_batch_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(buckets), fluss.EARLIEST_OFFSET))
    return await scanner.to_arrow()


async def test_rows_of_every_scalar_type_come_back_as_they_were(session):
    table = await session.create(SCALARS)
    writer = table.new_append().create_writer()
    for row in EXTREMES:
        writer.append(row)
    await writer.flush()
    assert await all_rows(table, len(EXTREMES)) == EXTREMES
    assert (await whole(table)).to_pylist() == EXTREMES


async def test_negative_zero_and_nan_keep_their_bits(session):
    table = await session.create(pa.schema([("v", pa.float64())]))
    writer = table.new_append().create_writer()
    for value in (-0.0, float("nan"), float("-inf")):
        writer.append([value])
    await writer.flush()
    values = [row["v"] for row in await all_rows(table, 3)]
    assert np.array_equal(np.array(values).view(np.int64), np.array([-0.0, np.nan, -np.inf]).view(np.int64))


async def test_nested_rows_come_back_as_they_were(session):
    table = await session.create(NESTED)
    writer = table.new_append().create_writer()
    for row in NESTED_ROWS:
        writer.append(row)
    await writer.flush()
    assert await all_rows(table, 3) == NESTED_ROWS
    assert (await whole(table)).to_pylist() == NESTED_ROWS
    (first, *_) = await all_rows(table, 3, project_by_name=["deep", "who"])
    assert first == {"deep": NESTED_ROWS[0]["deep"], "who": NESTED_ROWS[0]["who"]}


async def test_rows_may_be_dicts_lists_and_tuples_and_are_acknowledged_one_by_one(session):
    table = await session.create(POINTS)
    appender = table.new_append()
    assert repr(appender)
    async with appender.create_writer() as writer:
        assert repr(writer)
        handle = writer.append({"id": 1, "v": 0.5})
        assert repr(handle)
        await handle.wait()
        writer.append([2, "b", None])
        writer.append((3, None, 1.0))
        with pytest.raises((fluss.FlussError, TypeError, ValueError)):
            writer.append([1, 2])
    found = await all_rows(table, 3)
    assert [list(row.values()) for row in found] == [[1, None, 0.5], [2, "b", None], [3, None, 1.0]]


async def test_arrow_tables_batches_and_pandas_frames_are_appended_in_order(session):
    table = await session.create(POINTS)
    writer = table.new_append().create_writer()
    writer.write_arrow(pa.Table.from_batches([points(0, 100), points(100, 50)]))
    await writer.write_arrow_batch(points(150, 50)).wait()
    writer.write_pandas(pd.DataFrame({"id": [200, 201], "name": ["x", None], "v": [1.0, 2.0]}))
    writer.write_arrow_batch(points(300, 0))
    writer.write_arrow(POINTS.empty_table())
    await writer.flush()
    found = await whole(table)
    assert found["id"].to_pylist() == list(range(202))
    assert found["name"].to_pylist()[-2:] == ["x", None]


@pytest.mark.parametrize("compression", ["NONE", "LZ4_FRAME", "ZSTD"])
async def test_large_batches_arrive_under_every_compression(session, compression):
    table = await session.create(POINTS, bucket_count=3, properties={"table.log.arrow.compression.type": compression})
    writer = table.new_append().create_writer()
    for first in range(0, 60_000, 20_000):
        writer.write_arrow_batch(points(first, 20_000))
    await writer.flush()
    found = await whole(table, 3)
    assert sorted(found["id"].to_pylist()) == list(range(60_000))


async def test_records_tell_offset_time_and_kind_and_come_by_bucket(session):
    table = await session.create(POINTS, bucket_count=2, bucket_keys=["id"])
    writer = table.new_append().create_writer()
    for i in range(40):
        writer.append([i, "x", None])
    await writer.flush()
    scan = table.new_scan()
    assert repr(scan)
    scanner = await scan.create_log_scanner()
    assert repr(scanner)
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    scanner.subscribe(1, fluss.EARLIEST_OFFSET)
    seen: dict[int, list[int]] = {0: [], 1: []}
    while sum(map(len, seen.values())) < 40:
        polled = await scanner.poll(500)
        assert polled.count() == len(polled) == len(list(polled)) == sum(len(part) for part in polled.values())
        assert polled.is_empty() == (polled.count() == 0)
        assert polled.keys() == polled.buckets()
        assert str(polled)
        assert repr(polled)
        for bucket, part in polled.items():
            assert bucket in polled
            assert [r.offset for r in polled[bucket]] == [r.offset for r in polled.records(bucket)]
            for record in part:
                assert record.offset == len(seen[bucket.bucket_id])
                assert record.change_type == fluss.ChangeType.AppendOnly
                assert abs(record.timestamp / 1000 - dt.datetime.now().timestamp()) < 60
                assert str(record)
                assert repr(record)
                seen[bucket.bucket_id].append(record.row["id"])
        if polled.count():
            assert polled[0].offset == next(iter(polled)).offset
            assert len(polled[:2]) == min(2, polled.count())
            assert polled[-1].row["id"] in range(40)
    assert sorted(seen[0] + seen[1]) == list(range(40))
    assert polled.records(fluss.TableBucket(1, 99)) == []
    assert fluss.TableBucket(1, 99) not in polled


async def test_batches_tell_bucket_and_offsets(session):
    table = await session.create(POINTS)
    writer = table.new_append().create_writer()
    for first in (0, 10, 20):
        await writer.write_arrow_batch(points(first, 10)).wait()
    scanner = await table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, 15)
    found: list = []
    while sum(each.batch.num_rows for each in found) < 15:
        found += await scanner.poll_record_batch(500)
    assert [(each.base_offset, each.last_offset) for each in found] == [(15, 19), (20, 29)]
    assert all(each.bucket == fluss.TableBucket(table.get_table_info().table_id, 0) for each in found)
    assert [value for each in found for value in each.batch["id"].to_pylist()] == list(range(15, 30))
    assert str(found[0])
    assert repr(found[0])
    assert (await scanner.poll_arrow(50)).num_rows == 0
    assert await scanner.poll_record_batch(50) == []


async def test_unsubscribed_buckets_are_no_longer_read(session):
    table = await session.create(POINTS, bucket_count=2, bucket_keys=["id"])
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe_buckets({0: 0, 1: 0})
    scanner.unsubscribe(0)
    writer = table.new_append().create_writer()
    for i in range(30):
        writer.append([i, "x", None])
    await writer.flush()
    ends = await session.admin.list_offsets(table.get_table_path(), [0, 1], fluss.OffsetSpec.latest())
    assert 0 < ends[1] < 30
    found = await records(scanner, ends[1])
    polled = await scanner.poll(100)
    assert len(found) == ends[1]
    assert polled.is_empty()


async def test_projections_by_name_and_by_place_and_their_errors(session):
    table = await session.create(POINTS)
    writer = table.new_append().create_writer()
    writer.write_arrow_batch(points(0, 5))
    await writer.flush()
    assert (await whole(table, project_by_name=["v", "id"])).to_pydict() == {
        "v": [0.0, 0.5, 1.0, 1.5, 2.0],
        "id": [0, 1, 2, 3, 4],
    }
    assert (await whole(table, project=[1])).to_pydict() == {"name": ["n0", "n1", "n2", "n3", "n4"]}
    assert [list(row) for row in await all_rows(table, 5, project=[2, 0])] == [["v", "id"]] * 5
    for wrong in ({"project": [3]}, {"project_by_name": ["nix"]}):
        with pytest.raises((fluss.FlussError, ValueError, IndexError)):
            await whole(table, **wrong)


async def test_filters_leave_out_batches_that_cannot_match(session):
    # The last batch always matches: pyfluss reads a bounded scan on until it has seen the last batch.
    table = await session.create(POINTS, properties={"table.statistics.columns": "id,v"})
    writer = table.new_append().create_writer()
    for first in (0, 100, 200, 300, 400, 10_000):
        await writer.write_arrow_batch(points(first, 100)).wait()
    col = fluss.col
    assert col("id").name == fluss.ColumnRef("id").name == "id"
    assert repr(col("id"))
    assert repr(col("id") > 1)
    cases = [
        (col("id") >= 400, 400, 500), (col("id") < 100, 0, 100), (col("id") == 250, 200, 300),
        (col("id").greater_or_equal(400), 400, 500), (col("id").less_than(100), 0, 100),
        (col("id").equal(250), 200, 300), (col("id").greater_than(398), 300, 500),
        (col("id").less_or_equal(99), 0, 100), ((col("id") > 150) & (col("id") <= 180), 100, 200),
        ((col("id") > 150).and_(col("v") < 90.0), 100, 200), (col("id").is_in([5, 7]), 0, 100),
        ((col("id") < 0) | (col("id") == 450), 400, 500), ((col("id") < 0).or_(col("v") == 240.0), 400, 500),
        (col("id").is_null(), 0, 0), (col("id").is_not_null(), 0, 500),
    ]  # fmt: skip
    for predicate, first, end in cases:
        found = (await whole(table, filter=predicate | (col("id") >= 10_000)))["id"].to_pylist()
        assert found == [*range(first, end), *range(10_000, 10_100)], predicate
    name = col("name")
    for predicate in (
        name.starts_with("n"), name.ends_with("9"), name.contains("4"), col("id") != 3, col("id").not_equal(3),
        col("id").not_in([1, 2]),
    ):  # fmt: skip
        found = (await whole(table, filter=predicate | (col("id") >= 10_000)))["id"].to_pylist()
        assert {9, 49} <= set(found)
    for ambiguous in (col("id"), col("id") > 1):
        with pytest.raises((TypeError, fluss.FlussError)):
            bool(ambiguous)


async def test_scans_from_times_and_from_ahead(session):
    table = await session.create(POINTS)
    writer = table.new_append().create_writer()
    await writer.write_arrow_batch(points(0, 3)).wait()
    await asyncio.sleep(0.01)
    middle = int(dt.datetime.now().timestamp() * 1000)
    await asyncio.sleep(0.01)
    await writer.write_arrow_batch(points(3, 3)).wait()
    spec = fluss.OffsetSpec.timestamp(middle)
    start = (await session.admin.list_offsets(table.get_table_path(), [0], spec))[0]
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe(0, start)
    assert [record.row["id"] for record in await records(scanner, 3)] == [3, 4, 5]
    ahead = await table.new_scan().create_log_scanner()
    ahead.subscribe(0, 6)
    waiting = asyncio.ensure_future(ahead.poll(round(PATIENCE * 1000)))
    await asyncio.sleep(0.05)
    await writer.write_arrow_batch(points(6, 1)).wait()
    assert [record.row["id"] for record in await waiting] == [6]
    beyond = await table.new_scan().create_log_scanner()
    beyond.subscribe(0, 1_000)
    out_of_range = fluss.ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
    assert await error_code(beyond.poll(round(PATIENCE * 1000))) in (fluss.ErrorCode.CLIENT_ERROR, out_of_range)


async def test_frames_and_readers_end_where_the_log_ended(session):
    table = await session.create(POINTS)
    writer = table.new_append().create_writer()
    for first in (0, 50):
        await writer.write_arrow_batch(points(first, 50)).wait()
    frames = await table.new_scan().create_record_batch_log_scanner()
    frames.subscribe(0, 0)
    assert (await frames.to_pandas())["id"].tolist() == list(range(100))
    scanner = await table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, 20)
    reader = scanner.to_arrow_batch_reader()
    assert reader.schema.names == POINTS.names
    rows = await asyncio.to_thread(reader.read_all)
    assert rows["id"].to_pylist() == list(range(20, 100))
    empty = await session.create(POINTS)
    assert (await whole(empty)).num_rows == 0


async def test_scanners_are_asynchronous_iterators(session):
    table = await session.create(POINTS)
    writer = table.new_append().create_writer()
    await writer.write_arrow_batch(points(0, 20)).wait()
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe(0, 0)
    seen = []
    async for record in scanner:
        seen.append(record.row["id"])
        if len(seen) == 20:
            break
    batches = await table.new_scan().create_record_batch_log_scanner()
    batches.subscribe(0, 0)
    async for batch in batches:
        assert batch.batch["id"].to_pylist() == seen == list(range(20))
        break


async def test_limited_scans_return_the_newest_rows_of_a_bucket(session):
    table = await session.create(POINTS)
    writer = table.new_append().create_writer()
    for first in (0, 50):
        await writer.write_arrow_batch(points(first, 50)).wait()
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)

    def limited(count: int):
        return table.new_scan().limit(count).create_bucket_batch_scanner(bucket)

    scanner = limited(10)
    assert scanner.bucket == bucket
    assert repr(scanner)
    first = await scanner.next_batch()
    assert first.batch["id"].to_pylist() == list(range(90, 100))
    assert await scanner.next_batch() is None
    assert sum(each.batch.num_rows for each in await limited(70).collect_all_batches()) == 70
    assert (await limited(1000).to_arrow()).num_rows == 100
    assert (await limited(1).to_pandas())["id"].tolist() == [99]
    projected = table.new_scan().project_by_name(["v"]).limit(2).create_bucket_batch_scanner(bucket)
    assert (await projected.to_arrow()).to_pydict() == {"v": [49.0, 49.5]}
    with pytest.raises(fluss.FlussError):
        table.new_scan().limit(0)


async def test_partitions_are_written_and_read_by_their_ids(session):
    schema = pa.schema([("day", pa.date32()), ("region", pa.string()), ("n", pa.int64())])
    table = await session.create(schema, partition_keys=["day", "region"], bucket_count=2, bucket_keys=["n"])
    days = [dt.date(2026, 1, 1), dt.date(2026, 1, 2)]
    for day in days:
        await session.admin.create_partition(table.get_table_path(), {"day": str(day), "region": "eu"})
    writer = table.new_append().create_writer()
    for n in range(40):
        writer.append({"day": days[n % 2], "region": "eu", "n": n})
    await writer.flush()
    ids = await session.partition_ids(table)
    assert set(ids) == {"2026-01-01$eu", "2026-01-02$eu"}
    scanner = await table.new_scan().create_log_scanner()
    for bucket in (0, 1):
        scanner.subscribe_partition(ids["2026-01-02$eu"], bucket, fluss.EARLIEST_OFFSET)
    found = await records(scanner, 20)
    assert sorted(record.row["n"] for record in found) == list(range(1, 40, 2))
    polled = (await table.new_scan().create_record_batch_log_scanner(),)
    polled[0].subscribe_partition_buckets({(each, b): 0 for each in ids.values() for b in (0, 1)})
    polled[0].unsubscribe_partition(ids["2026-01-02$eu"], 0)
    polled[0].unsubscribe_partition(ids["2026-01-02$eu"], 1)
    rows = await polled[0].to_arrow()
    assert sorted(rows["n"].to_pylist()) == list(range(0, 40, 2))
    assert rows["day"].to_pylist() == [days[0]] * 20


async def test_an_open_reader_continues_through_added_columns(session):
    table = await session.create(POINTS)
    path = table.get_table_path()
    writer = table.new_append().create_writer()
    await writer.write_arrow_batch(points(0, 2)).wait()
    with forebay.connect(session.address) as ours:
        ours.table(str(path)).alter(add_columns={"extra": pa.int32()})
        ours.table(str(path)).append([{"id": 2, "name": "n2", "v": 1.0, "extra": 7}])
    await writer.write_arrow_batch(points(3, 1)).wait()  # a writer that knows the old schema only
    other = await connect(session.address)
    newer = await other.get_table(path)
    assert newer.get_table_info().schema_id == 2
    found = await all_rows(newer, 4, with_fixed_schema=True)
    assert [row["extra"] for row in found] == [None, None, 7, None]
    assert [row["id"] for row in await all_rows(newer, 4, with_fixed_schema=True)] == [0, 1, 2, 3]
    assert [list(row) for row in await all_rows(table, 4, with_fixed_schema=True)] == [POINTS.names] * 4
    assert (await whole(newer, with_fixed_schema=True))["extra"].to_pylist() == [None, None, 7, None]
    await other.close()


async def test_the_log_of_a_log_table_knows_appends_only(session):
    table = await session.create(POINTS)
    writer = table.new_append().create_writer()
    await writer.append([1, "x", 0.0]).wait()
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe(0, 0)
    assert changes(await records(scanner, 1)) == [("+A", {"id": 1, "name": "x", "v": 0.0})]
    assert [getattr(fluss.ChangeType, name).short_string() for name in KINDS] == ["+A", "+I", "-U", "+U", "-D"]


async def test_reading_a_table_that_is_dropped_ends_with_its_error(session):
    table = await session.create(POINTS)
    writer = table.new_append().create_writer()
    await writer.append([1, "x", 0.0]).wait()
    await session.admin.drop_table(table.get_table_path())
    assert await error_code(session.admin.get_table_info(table.get_table_path())) == fluss.ErrorCode.TABLE_NOT_EXIST
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    assert await error_code(table.new_scan().limit(1).create_bucket_batch_scanner(bucket).next_batch()) != 0
