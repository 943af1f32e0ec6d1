"""All buckets of a server: what upkeep records about them, and the state after closing and dropping them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.base.errors import ErrorCode, StorageFailure, Unavailable
from forebay.fs.local import LocalFileSystem
from forebay.kv.hlog.hlog_engine import HlogEngine
from forebay.kv.lmdb.lmdb_engine import LmdbEngine
from forebay.log.checkpoints import DataDirectory, OffsetCheckpoint
from forebay.log.tablet import LogTablet
from forebay.metadata.table import TableBucket
from forebay.server.storage import open_buckets as open_buckets_module
from forebay.server.storage.log_store import NoLogStore
from forebay.server.storage.open_buckets import OpenBuckets
from forebay.server.storage.replica import BucketReplica
from forebay.server.storage.replicas import ReplicaManager
from tests.patience import until
from tests.server.handlers.kv_scans import open_request, scan
from tests.server.raw_client import ApiKey, pb
from tests.server.running import KV_COLUMNS, LOG_COLUMNS, Bench, kv_key, kv_records, log_records, running

ONE_OPEN = {"server_open__buckets_max": "1", "kv_checkpoint_records": "2"}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with running(tmp_path / "data", **ONE_OPEN) as each:
        yield each


def manager(bench: Bench) -> ReplicaManager:
    return bench.server.server.context.replicas


def keyed(bench: Bench, name: str, rows: int) -> TableBucket:
    table = bench.create(name, KV_COLUMNS, ["id"])
    for number in range(rows):
        assert not bench.put(table, kv_records([{"id": number, "name": "x"}])).error_code
    return TableBucket(table, 0)


def logged(bench: Bench, name: str, records: int, acks: int = -1) -> TableBucket:
    table = bench.create(name, LOG_COLUMNS)
    for number in range(records):
        assert not bench.append(table, log_records([number]), acks=acks).error_code
    return TableBucket(table, 0)


class StoredWhileOpened(NoLogStore):
    """A store that gets a record of each log while its bucket is opened."""

    def __init__(self) -> None:
        self.ends: dict[TableBucket, int] = {}

    def visible_end(self, bucket: TableBucket) -> int:
        end = self.ends[bucket] = self.ends.get(bucket, 1) + 1
        return end


def drop(bench: Bench, name: str) -> None:
    request = pb.DropTableRequest(table_path=bench.path(name), ignore_if_not_exists=False)
    bench.coordinator.call(ApiKey.DROP_TABLE, request)


def saved(bench: Bench, name: str) -> dict[TableBucket, int]:
    path = Path(bench.server.config.data_dir) / f"{name}.checkpoint"
    return OffsetCheckpoint(LocalFileSystem(), str(path)).read()


def offsets(bench: Bench) -> tuple[dict[TableBucket, int], dict[TableBucket, int]]:
    return saved(bench, "recovery-points"), saved(bench, "high-watermarks")


# ---- upkeep ---------------------------------------------------------------------------------------------------------


def test_offsets_of_open_and_of_parked_buckets_are_saved_and_those_of_dropped_ones_are_not(bench: Bench) -> None:
    parked, also_open = logged(bench, "parked", 3), logged(bench, "open", 2)
    assert manager(bench).opened(parked) is None
    manager(bench).save_offsets()
    assert offsets(bench) == ({parked: 3, also_open: 2}, {parked: 3, also_open: 2})
    drop(bench, "parked")
    drop(bench, "open")
    later = logged(bench, "later", 1)
    manager(bench).save_offsets()
    assert offsets(bench) == ({later: 1}, {later: 1})


def test_what_weaker_acknowledgements_left_is_made_durable_and_a_failure_stays_with_its_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path / "data") as bench:
        one, other = logged(bench, "one", 1, acks=1), logged(bench, "other", 1, acks=1)
        replicas = manager(bench)

        def durable() -> list[int]:
            found = []
            for bucket in (one, other):
                with replicas.using(bucket) as replica:
                    found.append(replica.log.synced_offset)
            return found

        sync = BucketReplica.sync_idle

        def fails_for_one(replica: BucketReplica) -> None:
            if replica.bucket == one:
                raise StorageFailure("the disk has a bad day")
            sync(replica)

        assert durable() == [0, 0]
        with monkeypatch.context() as patch:
            patch.setattr(BucketReplica, "sync_idle", fails_for_one)
            replicas.sync_idle()
        assert durable() == [0, 1]
        assert f"bucket {one}: the disk has a bad day" in caplog.text
        replicas.sync_idle()
        assert durable() == [1, 1]


@pytest.mark.parametrize(("rows", "records_min", "kept"), [(1, None, 0), (2, None, 2), (1, 1, 1), (2, 3, 0)])
def test_checkpoints_are_written_of_states_that_have_grown(
    bench: Bench, rows: int, records_min: int | None, kept: int
) -> None:
    bucket = keyed(bench, "grown", rows)
    manager(bench).checkpoint_grown(records_min)
    with manager(bench).using(bucket) as replica:
        assert replica._kv_folder is not None
        assert replica._kv_folder.retained_offset == kept


@pytest.mark.parametrize(("rows", "kept"), [(1, 0), (2, 2)])
def test_a_bucket_that_is_parked_leaves_a_checkpoint_if_it_has_grown(bench: Bench, rows: int, kept: int) -> None:
    bucket = keyed(bench, "grown", rows)
    replicas = manager(bench).replicas
    until(lambda: all(replica.is_idle for replica in replicas()), "the end of the write")
    logged(bench, "other", 1)
    parked = manager(bench).parked(bucket)
    assert parked is not None
    assert parked.kv_folder is not None
    assert parked.kv_folder.retained_offset == kept


@pytest.mark.parametrize("engine", ["hlog", "lmdb"])
def test_an_engine_that_is_closed_or_needs_room_closes_the_scans_of_its_bucket_and_no_others(
    engine: str, tmp_path: Path
) -> None:
    with running(tmp_path / "data", kv_engine=engine) as bench:
        one, other = keyed(bench, "one", 20), keyed(bench, "other", 20)
        for bucket in (one, other):
            assert scan(bench.tablet, open_request(bucket.table_id, size=1)).has_more_results
        opened = bench.tablet.call(ApiKey.OPEN_TABLE_SNAPSHOT, pb.OpenTableSnapshotRequest(table_id=one.table_id))
        context = bench.server.server.context
        with manager(bench).using(one) as replica:
            assert isinstance(replica.kv.engine, HlogEngine | LmdbEngine)
            replica.kv.engine.close_snapshots()
        counts = [context.scanners.bucket_session_count(bucket) for bucket in (one, other)]
        assert counts == [0, 1]
        assert not context.table_snapshots.has_pinned(one)
        assert opened.table_snapshot_id


# ---- the end --------------------------------------------------------------------------------------------------------


def test_a_closed_server_opens_no_buckets(tmp_path: Path) -> None:
    with running(tmp_path / "data") as bench:
        bucket = logged(bench, "t", 1)
        closed = manager(bench)
    assert closed.replicas()[0].closed
    closed._open.remove(bucket)
    with pytest.raises(Unavailable, match="the server is shutting down") as refused:
        closed.begin(bucket)
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_stop_in_good_order_says_where_all_logs_end_and_that_they_were_closed(tmp_path: Path) -> None:
    with running(tmp_path / "data", **ONE_OPEN) as bench:
        ends = {logged(bench, "parked", 3): 3, keyed(bench, "open", 2): 2}
    assert offsets(bench) == (ends, ends)
    directory = DataDirectory.open(LocalFileSystem(), str(tmp_path / "data"))
    assert directory.take_clean_shutdown()
    assert directory.not_closed == frozenset()
    directory.close()


def test_a_bucket_that_cannot_be_closed_does_not_keep_others_from_it_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "data") as bench:
        one, other = logged(bench, "one", 1), logged(bench, "other", 1)
        close = BucketReplica.close

        def fails_for_one(replica: BucketReplica) -> None:
            close(replica)
            if replica.bucket == one:
                raise StorageFailure("the disk has a bad day")

        with monkeypatch.context() as patch:
            patch.setattr(BucketReplica, "close", fails_for_one)
            failures = manager(bench).close()
        assert {bucket: str(error) for bucket, error in failures.items()} == {
            one: str(StorageFailure("the disk has a bad day"))
        }
        assert saved(bench, "recovery-points") == {other: 1}
        directory = DataDirectory(LocalFileSystem(), str(tmp_path / "data"), None)  # type: ignore[arg-type]
        assert not directory.take_clean_shutdown()


def test_a_dropped_bucket_that_was_not_checked_since_an_unclean_end_is_not_spoken_of(tmp_path: Path) -> None:
    with running(tmp_path / "data") as bench:
        dropped, kept = logged(bench, "dropped", 1), logged(bench, "kept", 1)
        manager(bench).save_offsets()
    (tmp_path / "data" / "clean-shutdown").unlink()
    with running(tmp_path / "data") as bench:
        drop(bench, "dropped")
    directory = DataDirectory.open(LocalFileSystem(), str(tmp_path / "data"))
    assert directory.take_clean_shutdown()
    assert directory.not_closed == {kept}
    assert dropped not in saved(bench, "recovery-points")
    directory.close()


# ---- opening --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bucket", [(0, 1, None), (0, -1, None), (0, 0, 7), (99, 0, None)])
def test_a_bucket_that_no_table_has_is_told(bench: Bench, bucket: tuple[int, int, int | None]) -> None:
    table = logged(bench, "t", 0).table_id
    wanted = TableBucket(bucket[0] or table, bucket[1], bucket[2])
    with pytest.raises(Unavailable, match="there is no bucket") as refused:
        manager(bench).begin(wanted)
    assert refused.value.code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


def test_a_bucket_whose_state_cannot_be_opened_leaves_its_log_closed_and_opens_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = keyed(bench, "t", 1)
    logged(bench, "other", 1)
    logs: list[LogTablet] = []
    open_log = LogTablet.open

    def noted(*args: object, **options: object) -> LogTablet:
        logs.append(open_log(*args, **options))  # type: ignore[arg-type]
        return logs[-1]

    def fails(*_: object, **__: object) -> None:
        raise StorageFailure("no state")

    with monkeypatch.context() as patch:
        patch.setattr(LogTablet, "open", noted)
        patch.setattr(ReplicaManager, "_open_kv", fails)
        assert "no state" in bench.lookup(bucket.table_id, [kv_key(0)]).error_message
    assert len(logs) >= 1
    for log in logs:
        with pytest.raises(StorageFailure):
            log.append_as_leader(log_records([1]))
    assert bench.lookup(bucket.table_id, [kv_key(0)]).values[0].HasField("values")


# ---- which buckets stay open ----------------------------------------------------------------------------------------


class FakeReplica:
    """A bucket, as those that look for one to close see it."""

    def __init__(self, number: int) -> None:
        self.bucket = TableBucket(number, 0)
        self.uses = 0
        self.is_idle = True
        self.log = self
        self.is_offline = False


def kept_open(limit: int, count: int) -> tuple[OpenBuckets, list[Any], set[TableBucket]]:
    """Open buckets of which none is in use any more; those in the set are being read."""
    read: set[TableBucket] = set()
    buckets, replicas = OpenBuckets(limit, read.__contains__), [FakeReplica(number) for number in range(count)]
    for each in replicas:
        buckets.add(each)  # type: ignore[arg-type]
        buckets.end(each)  # type: ignore[arg-type]
    return buckets, replicas, read


def test_the_bucket_that_was_used_longest_ago_is_closed_first_while_too_many_are_open() -> None:
    buckets, replicas, _ = kept_open(2, 4)
    assert buckets.are_too_many
    assert buckets.begin(replicas[0].bucket) is replicas[0]
    buckets.end(replicas[0])
    assert buckets.begin(replicas[1].bucket, counts=False) is replicas[1]  # upkeep is no use
    buckets.end(replicas[1])
    assert [buckets.take_idle(lambda _: True) for _ in range(3)] == [replicas[1], replicas[2], None]
    assert not buckets.are_too_many
    assert buckets.begin(replicas[1].bucket) is None
    assert len(buckets) == 2


def test_buckets_that_are_in_use_read_or_written_stay_open() -> None:
    buckets, replicas, read = kept_open(0, 5)
    buckets.begin(replicas[0].bucket)
    read.add(replicas[1].bucket)
    replicas[2].is_idle = False
    asked: list[TableBucket] = []

    def refuses_one(bucket: TableBucket) -> bool:
        asked.append(bucket)
        return bucket != replicas[3].bucket

    assert buckets.take_idle(refuses_one) is replicas[4]
    assert asked == [replicas[3].bucket, replicas[4].bucket]
    assert buckets.take_idle(refuses_one) is None
    assert {each.bucket.table_id for each in buckets.all()} == {0, 1, 2, 3}  # type: ignore[attr-defined]


def test_an_offline_bucket_is_taken_out_when_nothing_uses_it() -> None:
    buckets, replicas, _ = kept_open(9, 3)

    def is_offline(replica: Any) -> bool:
        return bool(replica.is_offline)

    assert buckets.take_unused(is_offline, lambda _: True) is None
    for each in replicas[:2]:
        each.is_offline = True
    buckets.begin(replicas[0].bucket)
    assert buckets.take_unused(is_offline, lambda bucket: bucket != replicas[1].bucket) is None
    assert buckets.take_unused(is_offline, lambda _: True) is replicas[1]
    assert buckets.take_unused(is_offline, lambda _: True) is None
    buckets.end(replicas[0])
    assert buckets.take_unused(is_offline, lambda _: True) is replicas[0]
    assert buckets.all() == [replicas[2]]


@pytest.mark.parametrize("offline", [True, False])
def test_memory_is_given_back_once_some_buckets_were_closed(monkeypatch: pytest.MonkeyPatch, offline: bool) -> None:
    given: list[int] = []
    monkeypatch.setattr(open_buckets_module, "return_free_memory", lambda: given.append(1))
    count = open_buckets_module._TAKEN_WORTH_IT
    buckets, replicas, _ = kept_open(0, 2 * count)
    for each in replicas:
        each.is_offline = True
    for number in range(2 * count):
        buckets.return_memory()
        assert len(given) == number // count
        taken = buckets.take_unused(lambda _: True, lambda _: True) if offline else buckets.take_idle(lambda _: True)
        assert taken is not None
    buckets.return_memory()
    buckets.return_memory()
    assert len(given) == 2


def test_what_the_store_gets_while_a_bucket_is_opened_is_visible(bench: Bench) -> None:
    bucket = logged(bench, "stored", 3)
    logged(bench, "other", 1)  # it takes the only place
    until(lambda: manager(bench).opened(bucket) is None, "it is closed")
    manager(bench)._log_store = StoredWhileOpened()
    with manager(bench).using(bucket) as replica:
        assert (replica.log.watermark_limit, replica.log.high_watermark) == (3, 3)
