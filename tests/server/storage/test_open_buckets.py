"""Buckets that are closed because too many are open: running operations continue, and they reopen on demand."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from forebay.base.errors import StorageFailure
from forebay.kv.checkpoint import KvFolder
from forebay.kv.engine import EngineState
from forebay.kv.tablet import KvTablet
from forebay.log.segment import LogSegment
from forebay.log.tablet import LogTablet
from forebay.metadata import types
from forebay.metadata.table import TableBucket
from forebay.server import context
from forebay.server.handlers import fetch, lookups, offsets
from forebay.server.server import Injected
from forebay.server.storage import replicas as replica_module
from forebay.server.storage.replica import BucketReplica
from tests.kv.memory_engine import MemoryEngine
from tests.open_files import open_files
from tests.patience import PATIENCE, until
from tests.server.full_disk import met_by_the_write
from tests.server.handlers.kv_scans import go_on, open_request, scan
from tests.server.raw_client import ApiKey, pb
from tests.server.running import KV_COLUMNS, Bench, kv_key, kv_records, log_records, running
from tests.small_disk import mounted_tmpfs

TABLES = 6
CAP = {"server_open__buckets_max": "2"}


@pytest.fixture(params=["hlog", "lmdb"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bench(tmp_path: Path, engine: str) -> Iterator[Bench]:
    with running(tmp_path / "data", kv_engine=engine, **CAP) as bench:
        yield bench


def open_ids(bench: Bench) -> set[int]:
    return {replica.bucket.table_id for replica in bench.server.server.context.replicas.replicas()}


def is_parked(bench: Bench, table: int) -> bool:
    return bench.server.server.context.replicas.parked(TableBucket(table, 0)) is not None


def tables(bench: Bench) -> list[int]:
    """Tables with a row each."""
    made = []
    for number in range(TABLES):
        made.append(bench.create(f"t{number}", KV_COLUMNS, ["id"]))
        assert not bench.put(made[-1], kv_records([{"id": 1, "name": f"of {number}"}])).error_code
    return made


def has(bench: Bench, table: int, *keys: int) -> bool:
    answer = bench.lookup(table, [kv_key(key) for key in keys])
    assert not answer.error_code, answer
    return all(value.values for value in answer.values)


def test_the_buckets_used_last_stay_open_and_the_others_open_again_on_demand(bench: Bench) -> None:
    made = tables(bench)
    assert open_ids(bench) == set(made[-2:])
    for turn in range(2, 5):
        for table in made:
            assert has(bench, table, *range(1, turn))
            assert not bench.put(table, kv_records([{"id": turn, "name": "later"}])).error_code
            assert len(open_ids(bench)) <= 2
    assert has(bench, made[0], 1, 2, 3, 4)
    has(bench, made[3], 1)
    has(bench, made[0], 1)
    has(bench, made[4], 1)
    assert open_ids(bench) == {made[0], made[4]}


def test_counting_waits_for_no_thread_that_closes_a_bucket_with_its_lock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a thread waits for the manager's lock: seed 918 of the simulation found a server that stood still."""
    tables(bench)
    replicas = bench.server.server.context.replicas
    every, held = replicas._open.all, list[bool]()

    def all_open() -> list[BucketReplica]:
        held.append(replicas._lock.locked())
        return every()

    monkeypatch.setattr(replicas._open, "all", all_open)
    assert sum(each.records for each in replicas.written_and_read().values()) > 0
    assert held == [False]


def test_descriptors_do_not_grow_with_the_number_of_buckets(bench: Bench, tmp_path: Path) -> None:
    tables(bench)
    before = len(open_files(tmp_path))
    for number in range(20):
        table = bench.create(f"more{number}", KV_COLUMNS, ["id"])
        bench.put(table, kv_records([{"id": 1, "name": "x"}]))
        log = bench.create(f"log{number}", {"a": types.int_(), "s": types.string()})
        bench.append(log, log_records([1]))
    assert len(open_files(tmp_path)) <= before + 6


def test_what_was_parked_is_there_after_a_stop_and_after_a_second_one(tmp_path: Path, engine: str) -> None:
    with running(tmp_path / "data", kv_engine=engine, **CAP) as bench:
        made = tables(bench)
    for _ in range(2):
        with running(tmp_path / "data", kv_engine=engine, **CAP) as bench:
            folder = tmp_path / "data" / "fluss" / f"t0-{made[0]}" / "kv-0"
            assert (folder / "trust").read_text().startswith("clean\n")
            for number, table in enumerate(made):
                assert has(bench, table, 1), number
                assert bench.log_end(table) == 1


def test_a_scan_keeps_its_bucket_open_and_sees_its_instant(bench: Bench) -> None:
    made = tables(bench)
    table = made[0]
    bench.put(table, kv_records([{"id": i, "name": "x" * 50} for i in range(200)]))
    first = scan(bench.tablet, open_request(table, size=100))
    for other in made[1:]:
        assert has(bench, other, 1)
    assert table in open_ids(bench)
    assert not bench.put(table, kv_records([{"id": 1000, "name": "too late"}])).error_code
    answers = [first]
    while answers[-1].has_more_results:
        answers.append(go_on(bench.tablet, first.scanner_id, len(answers), 100))
        assert not answers[-1].error_code
    assert len(answers) > 20
    for other in made[1:]:
        assert has(bench, other, 1)
    assert table not in open_ids(bench)


def test_a_bucket_stays_open_while_a_thread_works_for_a_client_that_is_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tables(bench)
    server = bench.server.server
    entered, released = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        entered.set()
        assert released.wait(PATIENCE)
        raise StorageFailure("the scan of a client that is gone")

    monkeypatch.setattr(server.context.scanners, "open", slow)
    count = len(server.connections)
    other = Bench(bench.server.bootstrap_servers, bench.server.addresses.tablet_servers)
    other.tablet.send(ApiKey.SCAN_KV, open_request(made[0]))
    assert entered.wait(PATIENCE)
    other.close()
    until(lambda: len(server.connections) == count, "the end of the connection")
    try:
        for table in made[1:]:
            assert has(bench, table, 1)
        assert made[0] in open_ids(bench)
    finally:
        released.set()

    def is_closed() -> bool:
        for table in made[1:]:
            assert has(bench, table, 1)
        return made[0] not in open_ids(bench)

    until(is_closed, "the end of the bucket")


def test_a_table_snapshot_keeps_its_bucket_open(bench: Bench) -> None:
    made = tables(bench)
    opened = bench.tablet.call(ApiKey.OPEN_TABLE_SNAPSHOT, pb.OpenTableSnapshotRequest(table_id=made[0]))
    for other in made[1:]:
        assert has(bench, other, 1)
    assert made[0] in open_ids(bench)
    request = open_request(made[0], call=None)
    request.table_snapshot_id = opened.table_snapshot_id
    assert scan(bench.tablet, request).records
    bench.tablet.call(
        ApiKey.RELEASE_TABLE_SNAPSHOT,
        pb.ReleaseTableSnapshotRequest(table_snapshot_id=opened.table_snapshot_id),
    )
    for other in made[1:]:
        assert has(bench, other, 1)
    assert made[0] not in open_ids(bench)


def test_readers_at_the_end_of_a_log_do_not_open_it_and_are_woken_by_a_write(bench: Bench) -> None:
    made = tables(bench)
    assert is_parked(bench, made[0])
    answer = bench.fetch(made[0], 1)
    assert (answer.error_code, answer.high_watermark, bench.log_end(made[0]), bytes(answer.records)) == (0, 1, 1, b"")
    assert is_parked(bench, made[0])
    found: list[object] = []
    other = Bench(bench.server.bootstrap_servers, bench.server.addresses.tablet_servers)
    waiting = threading.Thread(target=lambda: found.append(other.fetch(made[0], 1, wait_ms=20_000)))
    waiting.start()
    bench.put(made[0], kv_records([{"id": 2, "name": "woken"}]))
    waiting.join(PATIENCE)
    other.close()
    assert found
    assert found[0].records  # type: ignore[attr-defined]
    assert bench.fetch(made[1], 0).records  # a reader behind the end opens it
    assert bench.fetch(made[2], 7).error_code


def test_a_request_about_many_buckets_opens_them_in_groups(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (context, fetch, lookups, offsets):
        monkeypatch.setattr(module, "SHORT_LIST", 3)
    count = 11
    table = bench.create("wide", KV_COLUMNS, ["id"], buckets=count)
    for bucket in range(count):
        assert not bench.put(table, kv_records([{"id": bucket, "name": "x"}]), bucket=bucket).error_code
    opened: list[int] = []
    buckets = bench.server.server.context.replicas._open
    add = buckets.add

    def counted(replica: BucketReplica) -> None:
        add(replica)
        opened.append(len(buckets))

    monkeypatch.setattr(buckets, "add", counted)
    wanted = [*range(count), count + 5, 0]  # one that is not there, one twice

    listed = pb.ListOffsetsRequest(
        follower_server_id=-1, offset_type=2, startTimestamp=0, table_id=table, bucket_id=wanted
    )
    found = bench.tablet.call(ApiKey.LIST_OFFSETS, listed).buckets_resp
    assert [each.bucket_id for each in found] == wanted[:-1]
    assert [bool(each.error_code) for each in found] == [False] * count + [True]

    lookup = pb.LookupRequest(table_id=table)
    for bucket in wanted:
        lookup.buckets_req.add(bucket_id=bucket, keys=[kv_key(bucket)])
    answers = bench.tablet.call(ApiKey.LOOKUP, lookup).buckets_resp
    assert [each.bucket_id for each in answers] == wanted
    assert [bool(each.values and each.values[0].values) for each in answers] == [True] * count + [False, True]

    stats = pb.GetTableStatsRequest(table_id=table)
    for bucket in wanted:
        stats.buckets_req.add(bucket_id=bucket)
    rows = bench.tablet.call(ApiKey.GET_TABLE_STATS, stats).buckets_resp
    assert [(each.bucket_id, each.row_count) for each in rows] == [(bucket, 1) for bucket in range(count)] + [
        (count + 5, 0)
    ]

    request = bench.fetch_request(table, 0)
    for bucket in wanted[1:]:
        request.tables_req[0].buckets_req.add(bucket_id=bucket, fetch_offset=0, max_fetch_bytes=1 << 20)
    fetched = bench.tablet.call(ApiKey.FETCH_LOG, request).tables_resp[0].buckets_resp
    assert [each.bucket_id for each in fetched] == wanted[:-1]
    assert [bool(each.records) for each in fetched] == [True] * count + [False]

    assert len(opened) >= 4 * (count - 4)
    assert max(opened) <= 5  # those of a group, and as many as stay open
    assert len(bench.server.server.context.replicas.replicas()) <= 3


def test_a_bucket_that_was_closed_leaves_memory_without_a_garbage_collection(bench: Bench) -> None:
    made = tables(bench)
    log = bench.create("log", {"a": types.int_(), "s": types.string()})
    assert not bench.append(log, log_records([1])).error_code
    replicas = bench.server.server.context.replicas
    gc.collect()
    gc.disable()
    try:
        for table in (made[0], log):
            with replicas.using(TableBucket(table, 0)) as replica:
                state = [replica.kv, replica.kv.engine] if replica.has_kv else []
                parts = [weakref.ref(part) for part in (replica, replica.log, *state)]
            del replica, state
            assert table in open_ids(bench)
            for other in made[1:]:
                assert has(bench, other, 1)
            assert table not in open_ids(bench)
            until(lambda: not any(part() for part in parts), "the end of the bucket's parts")  # noqa: B023 - called here
    finally:
        gc.enable()


def test_writes_of_many_clients_go_through_while_buckets_come_and_go(bench: Bench) -> None:
    made = tables(bench)
    failures: list[str] = []

    def write(start: int) -> None:
        client = Bench(bench.server.bootstrap_servers, bench.server.addresses.tablet_servers)
        for i in range(40):
            table = made[(start + i) % len(made)]
            answer = client.put(table, kv_records([{"id": 1000 * start + i, "name": "x"}]), acks=(i % 3) - 1)
            if answer.error_code:
                failures.append(answer.error_message)
        client.close()

    writers = [threading.Thread(target=write, args=(start,)) for start in range(1, 5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    for start in range(1, 5):
        for i in range(40):
            if i % 3 != 1:  # acks=0 may still be on its way
                assert has(bench, made[(start + i) % len(made)], 1000 * start + i)
    assert len(open_ids(bench)) <= 4


def test_a_bucket_that_cannot_be_closed_is_checked_when_it_opens_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = tables(bench)

    def fails(self: KvFolder, engine: object) -> None:
        self_engine_close(self, engine)  # type: ignore[arg-type]
        raise StorageFailure("the disk has a bad day")

    self_engine_close = KvFolder.park_engine
    with monkeypatch.context() as patch:
        patch.setattr(KvFolder, "park_engine", fails)
        assert has(bench, made[0], 1)
    assert "could not be closed, and will be checked when it is opened again: the disk has a bad day" in caplog.text
    assert not is_parked(bench, made[-2])
    assert has(bench, made[-2], 1)


def test_what_a_bucket_holds_is_synced_when_it_is_closed_for_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tables(bench)
    synced: list[int] = []
    original = LogTablet.sync

    def counted(self: LogTablet) -> int:
        synced.append(self.log_end_offset)
        return original(self)

    monkeypatch.setattr(LogTablet, "sync", counted)
    assert has(bench, made[0], 1)
    assert is_parked(bench, made[-2])
    assert synced == [1]


def test_what_was_acknowledged_is_not_cut_where_closing_failed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = tables(bench)
    bucket = TableBucket(made[-2], 0)

    def fails(_: LogTablet) -> None:
        raise StorageFailure("the disk has a bad day")

    with monkeypatch.context() as patch:
        patch.setattr(LogTablet, "snapshot_writers", fails)
        assert has(bench, made[0], 1)
    assert bench.server.server.context.replicas.opened(bucket) is None
    [log] = (tmp_path / "data").rglob(f"t{TABLES - 2}-{made[-2]}/log-0/*.log")
    log.write_bytes(log.read_bytes()[:-1])
    answer = bench.fetch(made[-2], 0)
    assert answer.error_code, "a log that ends before its recovery point was served"
    assert log.name in answer.error_message


@pytest.mark.parametrize("has_key", [True, False])
def test_a_bucket_whose_log_went_offline_takes_writes_again_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_key: bool
) -> None:
    settings = {"log_replica_high__watermark_checkpoint__interval": "100 ms"}
    with running(tmp_path / "data", **settings) as bench:
        columns = KV_COLUMNS if has_key else {"a": types.int_(), "s": types.string()}
        table = bench.create("t", columns, ["id"] if has_key else [])

        def write(number: int) -> int:
            if has_key:
                return int(bench.put(table, kv_records([{"id": number, "name": "x"}])).error_code)
            return int(bench.append(table, log_records([number])).error_code)

        def fails(segment: LogSegment) -> None:
            raise StorageFailure(f"cannot sync {segment.path}")

        assert write(1) == 0
        with monkeypatch.context() as patch:
            patch.setattr(LogSegment, "sync", fails)
            assert write(2) != 0
            until(lambda: bench.server.server.context.replicas.replicas() == [], "the end of the bucket")
            assert bench.server.server.context.replicas.parked(TableBucket(table, 0)) is None
            assert write(3) != 0
        until(lambda: write(4) == 0, "a write that succeeds")
        assert not bench.fetch(table, 0).error_code
        assert bench.log_end(table) in (2, 3)  # what failed may have been written all the same, or not
        if has_key:
            assert has(bench, table, 1, 4)
            full = scan(bench.tablet, open_request(table))
            assert not full.error_code


def test_a_dropped_table_leaves_nothing_behind_when_its_bucket_was_parked(bench: Bench, tmp_path: Path) -> None:
    made = tables(bench)
    assert is_parked(bench, made[0])
    bench.coordinator.call(
        ApiKey.DROP_TABLE, pb.DropTableRequest(table_path=bench.path("t0"), ignore_if_not_exists=False)
    )
    assert not is_parked(bench, made[0])
    replicas = bench.server.server.context.replicas
    replicas.save_offsets()
    assert str(made[0]) not in {
        line.split()[0] for line in (tmp_path / "data" / "recovery-points.checkpoint").read_text().splitlines()[1:-1]
    }


def test_parked_buckets_are_read_on_a_full_disk_and_none_is_parked_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted_tmpfs(tmp_path / "disk", 48) as disk, running(disk.path / "data", **CAP) as bench:
        made = tables(bench)
        disk.fill()
        for table in made:
            assert has(bench, table, 1)
        assert open_ids(bench) == set(made)
        disk.make_room()
        met_by_the_write(monkeypatch)
        bench.server.server.context.replicas.close_idle()
        assert len(open_ids(bench)) == 2


# ---- buckets that are being opened -----------------------------------------------------------------------------------


def test_a_bucket_that_another_thread_has_just_opened_is_taken_and_can_be_dropped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tables(bench)[-1]
    replicas, bucket = bench.server.server.context.replicas, TableBucket(table, 0)
    there, begin, looks = replicas.opened(bucket), replicas._open.begin, list[TableBucket]()

    def begin_late(bucket: TableBucket, *, counts: bool = True) -> BucketReplica | None:
        looks.append(bucket)
        return None if len(looks) == 1 else begin(bucket, counts=counts)

    with monkeypatch.context() as patch:
        patch.setattr(replicas._open, "begin", begin_late)
        with replicas.using(bucket) as replica:
            assert replica is there is not None
    assert len(looks) >= 2
    assert bucket not in replicas._moving
    bench.coordinator.call(
        ApiKey.DROP_TABLE,
        pb.DropTableRequest(table_path=bench.path(f"t{TABLES - 1}"), ignore_if_not_exists=False),
    )
    assert table not in open_ids(bench)


@pytest.mark.parametrize("fails", [False, True])
def test_a_bucket_that_was_opened_for_a_client_that_is_gone_is_not_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    with running(tmp_path / "data") as bench:
        bucket = TableBucket(bench.create("t", {"a": types.int_(), "s": types.string()}), 0)
        bucket_context = bench.server.server.context
        entered, released, open_log = threading.Event(), threading.Event(), LogTablet.open

        def open_slowly(*args: Any, **options: Any) -> LogTablet:
            entered.set()
            assert released.wait(PATIENCE)
            if fails:
                raise StorageFailure("the disk has a bad day")
            return open_log(*args, **options)

        monkeypatch.setattr(LogTablet, "open", open_slowly)

        async def begin_and_leave() -> None:
            wanted = asyncio.ensure_future(bucket_context.begin(bucket))
            await asyncio.to_thread(entered.wait, PATIENCE)
            wanted.cancel()
            released.set()
            with suppress(asyncio.CancelledError):
                await wanted

        loop = bench.server._running.loop
        assert loop is not None
        asyncio.run_coroutine_threadsafe(begin_and_leave(), loop).result(PATIENCE)
        replicas = bucket_context.replicas
        until(lambda: bucket not in replicas._moving, "the end of the opening")
        if not fails:
            until(lambda: replicas.opened(bucket).uses == 0, "the end of its use")  # type: ignore[union-attr]
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENCE)
        assert bucket_context._opening == {}
    assert "Exception in callback" not in caplog.text


def test_closing_waits_for_buckets_that_are_being_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path / "data") as bench:
        table = bench.create("t", KV_COLUMNS, ["id"])
        replicas, bucket = bench.server.server.context.replicas, TableBucket(table, 0)
        entered, released, moving = threading.Event(), threading.Event(), list[set[TableBucket]]()
        open_log, executor = LogTablet.open, replica_module.threads.executor

        def open_slowly(*args: Any, **options: Any) -> LogTablet:
            entered.set()
            assert released.wait(PATIENCE)
            return open_log(*args, **options)

        def noted(*args: Any) -> Any:
            moving.append(set(replicas._moving))
            return executor(*args)

        monkeypatch.setattr(LogTablet, "open", open_slowly)
        monkeypatch.setattr(replica_module.threads, "executor", noted)
        opener = threading.Thread(target=lambda: replicas.end(replicas.begin(bucket)))
        closer = threading.Thread(target=replicas.close)
        opener.start()
        assert entered.wait(PATIENCE)
        closer.start()
        until(lambda: replicas._closed, "the beginning of the close")
        released.set()
        opener.join(PATIENCE)
        closer.join(PATIENCE)
        assert moving == [set()]
        monkeypatch.undo()


# ---- engines of buckets that cannot be opened, or not with what is there ---------------------------------------------


class CountedEngine(MemoryEngine):
    """An engine that counts how often it was closed."""

    made: ClassVar[list[CountedEngine]] = []

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.closes = 0
        self.made.append(self)

    def close(self) -> None:
        self.closes += 1


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[CountedEngine]:
    monkeypatch.setattr(CountedEngine, "made", [])
    return CountedEngine.made


def test_the_engine_of_a_bucket_whose_changelog_cannot_be_replayed_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engines: list[CountedEngine]
) -> None:
    injected = Injected(engine_factory=CountedEngine)
    with running(tmp_path / "data", injected) as bench:
        table = bench.create("t", KV_COLUMNS, ["id"])
        assert not bench.put(table, kv_records([{"id": 1, "name": "a"}])).error_code
    engines.clear()

    def fail(*_: object) -> None:
        raise StorageFailure("a batch cannot be read")

    with running(tmp_path / "data", injected) as bench:
        with monkeypatch.context() as patch:
            patch.setattr(KvTablet, "recover", fail)
            assert "a batch cannot be read" in bench.lookup(table, [kv_key(1)]).error_message
        assert {engine.closes for engine in engines} == {1}
        assert has(bench, table, 1)


def test_a_state_that_is_ahead_of_its_log_is_thrown_away_and_rebuilt(
    tmp_path: Path, engines: list[CountedEngine]
) -> None:
    with running(tmp_path / "data", Injected(engine_factory=CountedEngine)) as bench:
        table = bench.create("t", KV_COLUMNS, ["id"])
        assert not bench.put(table, kv_records([{"id": 1, "name": "a"}])).error_code
    engines.clear()
    left_over: list[bool] = []

    def ahead_at_first(directory: Path) -> CountedEngine:
        engine = CountedEngine(directory)
        left_over.append((directory / "rows").exists())
        if len(engines) == 1:
            (directory / "rows").touch()
            engine.apply({kv_key(2): b"a row that the log has lost"}, EngineState(2, 2))
        return engine

    with running(tmp_path / "data", Injected(engine_factory=ahead_at_first)) as bench:
        assert has(bench, table, 1)
        assert not bench.lookup(table, [kv_key(2)]).values[0].HasField("values")
        assert (engines[0].closes, engines[1].closes) == (1, 0)
    assert left_over == [False, False]
