"""Expiry of log records: which segments are deleted, and what retains them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import ErrorCode, NotFound, StorageFailure
from forebay.kv.checkpoint import KvFolder
from forebay.log.tablet import SegmentInfo
from forebay.metadata.table import TableBucket
from forebay.server import config
from forebay.server.lake.lake_snapshots import LakeSnapshotCommit
from forebay.server.maintenance.retention import LogRetention, first_unexpired_offset
from forebay.server.server import Injected
from forebay.server.storage.replica import BucketReplica
from forebay.testing.memory_lake import MemoryLakeStorage, forget_lake
from tests.patience import until
from tests.server.raw_client import ApiKey, pb
from tests.server.running import KV_COLUMNS, LOG_COLUMNS, Bench, kv_key, kv_records, log_records, running

TTL_SECONDS = 3600
TTL = {"table.log.ttl": "1 h"}


class Retention:
    """A server with tiny segments on a clock of its own; `expire` does what the server does every minute."""

    def __init__(self, bench: Bench, clock: ManualClock) -> None:
        self.bench = bench
        self.clock = clock
        context = bench.server.server.context
        self.context = context
        self.policy = LogRetention(context.replicas, context.catalog, context.lake.snapshots, clock)

    def expire(self) -> int:
        return self.policy.run()

    def append(self, table_id: int, *numbers: int) -> None:
        """Each number in a batch of its own, which is larger than half a segment."""
        for number in numbers:
            answer = self.bench.append(table_id, log_records([number]))
            assert not answer.error_code, answer

    def put(self, table_id: int, *keys: int) -> None:
        for key in keys:
            answer = self.bench.put(table_id, kv_records([{"id": key, "name": f"row {key}"}]))
            assert not answer.error_code, answer

    def start(self, table_id: int) -> int:
        request = pb.ListOffsetsRequest(follower_server_id=-1, offset_type=0, table_id=table_id, bucket_id=[0])
        answer = self.bench.tablet.call(ApiKey.LIST_OFFSETS, request).buckets_resp[0]
        assert not answer.error_code, answer
        return int(answer.offset)

    def keys(self, table_id: int, *keys: int) -> list[int]:
        answer = self.bench.lookup(table_id, [kv_key(key) for key in keys])
        assert not answer.error_code, answer
        return [key for key, value in zip(keys, answer.values, strict=True) if value.HasField("values")]


@contextmanager
def retention(directory: Path, clock: ManualClock, **settings: str) -> Iterator[Retention]:
    injected = Injected(clock=clock, create_lake_storage=lambda name, options: MemoryLakeStorage(options))
    settings = {"log_segment_file__size": "300b", **settings}
    with running(directory / "data", injected, **settings) as bench:
        yield Retention(bench, clock)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_segments_go_when_their_newest_record_is_older_than_the_time_to_live(tmp_path, clock):
    with retention(tmp_path, clock) as server:
        table = server.bench.create("t", LOG_COLUMNS, properties=TTL)
        server.append(table, 0, 1)
        clock.advance(TTL_SECONDS)
        server.append(table, 2, 3)
        assert server.expire() == 0
        clock.advance(1)
        assert server.expire() == 2
        assert server.start(table) == 2
        assert server.bench.fetch(table, 1).error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
        assert not server.bench.fetch(table, 2).error_code
        clock.advance(10 * TTL_SECONDS)
        assert server.expire() == 2, "the active segment ends when it is old, and goes as others do"
        assert (server.start(table), server.bench.log_end(table)) == (4, 4)
        assert server.expire() == 0
    with retention(tmp_path, clock) as server:
        assert (server.start(table), server.bench.log_end(table)) == (4, 4)
        server.append(table, 4)
        assert server.bench.log_end(table) == 5


def test_a_segment_that_still_grows_ends_when_its_first_record_is_older_than_the_time_to_live(tmp_path, clock):
    with retention(tmp_path, clock, log_segment_file__size="1mb") as server:
        table = server.bench.create("t", LOG_COLUMNS, properties=TTL)
        for number in range(5):
            server.append(table, number)
            clock.advance(TTL_SECONDS / 2)
        assert server.expire() == 0, "its newest records are young"
        server.append(table, 5)
        clock.advance(TTL_SECONDS / 2)
        assert (server.expire(), server.start(table)) == (0, 0)
        clock.advance(TTL_SECONDS / 2)
        assert (server.expire(), server.start(table)) == (1, 5)
        assert server.bench.log_end(table) == 6


def test_records_live_for_seven_days_unless_the_table_says_otherwise(tmp_path, clock):
    with retention(tmp_path, clock) as server:
        table = server.bench.create("t", LOG_COLUMNS)
        server.append(table, 0, 1)
        clock.advance(7 * 86_400)
        assert server.expire() == 0
        clock.advance(1)
        assert server.expire() == 2


def test_expired_segments_of_an_unopened_bucket_are_deleted_as_well(tmp_path, clock):
    with retention(tmp_path, clock) as server:
        names = ("long", "short", "young", "empty")
        long, short, young, _ = (server.bench.create(name, LOG_COLUMNS, properties=TTL) for name in names)
        server.append(long, 0, 1, 2)
        server.append(short, 0)
        clock.advance(2 * TTL_SECONDS)
        server.append(young, 0, 1)
    with retention(tmp_path, clock) as server:
        for expired in (4, 0):
            assert server.expire() == expired
            assert {replica.bucket.table_id for replica in server.context.replicas.replicas()} == {long, short}
        clock.advance(2 * TTL_SECONDS)
        assert server.expire() == 2


def test_of_parked_buckets_only_those_are_opened_of_which_something_has_expired(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(config, "_OPEN_BUCKETS_MIN", 1)
    monkeypatch.setattr(config, "_OPEN_BUCKETS_MAX", 1)
    with retention(tmp_path, clock) as server:
        replicas = server.context.replicas

        def append(table, *values):
            """Also wait for the end of the write, a moment after its answer: a bucket is not parked before."""
            server.append(table, *values)
            until(lambda: all(replica.is_idle for replica in replicas.replicas()), "the end of the write")

        old = server.bench.create("old", LOG_COLUMNS, properties=TTL)
        append(old, 0, 1, 2)
        clock.advance(TTL_SECONDS + 1)
        young, short = (server.bench.create(name, LOG_COLUMNS, properties=TTL) for name in ("young", "short"))
        append(young, 0, 1, 2)
        append(short, 0)
        assert [replicas.parked(TableBucket(table, 0)) is not None for table in (old, young)] == [True, True]
        assert server.expire() == 3
        assert [replica.bucket.table_id for replica in replicas.replicas()] == [old]
        assert [server.start(table) for table in (old, young, short)] == [3, 0, 0]


def test_the_changelog_of_a_primary_key_table_does_not_open_its_bucket_in_vain(tmp_path, clock):
    with retention(tmp_path, clock) as server:
        table = server.bench.create("t", KV_COLUMNS, ["id"])
        server.put(table, 0, 1, 2)
    clock.advance(30 * 86_400)
    with retention(tmp_path, clock) as server:
        assert len(server.context.replicas.segment_offsets(TableBucket(table, 0))) > 1
        assert server.expire() == 0
        assert server.context.replicas.replicas() == []


def test_a_lake_table_keeps_what_is_not_readable_in_the_lake(tmp_path, clock):
    forget_lake("retention")
    settings = {"datalake_format": "paimon", "datalake_paimon_name": "retention"}
    with retention(tmp_path, clock, **settings) as server:
        table = server.bench.create("t", LOG_COLUMNS, properties={**TTL, "table.datalake.enabled": "true"})
        server.append(table, *range(6))
        clock.advance(2 * TTL_SECONDS)
        assert server.expire() == 0

        def tiered(snapshot_id: int, offset: int, *, readable: bool) -> None:
            live = server.context.catalog.table_by_id(table)
            assert live is not None
            bucket = server.context.replicas.replicas()[0].bucket
            path = server.context.lake.snapshots.prepare(live.info, {bucket: offset})
            commit = LakeSnapshotCommit(snapshot_id, path, path if readable else None, -1)
            server.context.lake.snapshots.commit(live.info, commit)

        tiered(1, 2, readable=True)
        assert server.expire() == 2
        tiered(2, 4, readable=False)
        assert server.expire() == 0
        tiered(3, 4, readable=True)
        assert server.expire() == 2
        assert server.start(table) == 4
    forget_lake("retention")


def test_the_state_of_a_primary_key_table_survives_without_the_changelog_that_expired(tmp_path, clock):
    with retention(tmp_path, clock) as server:
        table = server.bench.create("t", KV_COLUMNS, ["id"], properties=TTL)
        server.put(table, *range(5))
        assert server.expire() == 0
        clock.advance(2 * TTL_SECONDS)
        assert server.expire() >= 3
        start = server.start(table)
        assert start >= 3
        server.put(table, 5, 6)
    folder = next((tmp_path / "data").glob(f"fluss/t-{table}/kv-0"))
    shutil.rmtree(folder / "db")  # as if the machine had lost its power: the engine's files are not trusted then
    with retention(tmp_path, clock) as server:
        assert server.keys(table, *range(8)) == list(range(7))
        assert server.start(table) == start
    for path in [folder / "db", *folder.glob("checkpoint-*")]:
        shutil.rmtree(path)
    with retention(tmp_path, clock) as server:
        answer = server.bench.lookup(table, [kv_key(1)])
        # Not KV_STORAGE_EXCEPTION: clients would wait for what only a copy of the data can mend.
        assert answer.error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION
        assert "the checkpoint that covered the records" in answer.error_message


def test_a_changelog_that_clients_may_need_goes_only_where_the_table_says_so(tmp_path, clock):
    with retention(tmp_path, clock) as server:
        kept = server.bench.create("kept", KV_COLUMNS, ["id"])
        gone = server.bench.create("gone", KV_COLUMNS, ["id"], properties={"table.log.ttl": "7 d"})
        for table in (kept, gone):
            server.put(table, *range(5))
        clock.advance(30 * 86_400)
        server.expire()
        assert server.start(kept) == 0
        assert server.start(gone) > 0

        def snapshots(name: str) -> Any:
            request = pb.GetLatestKvSnapshotsRequest(table_path=server.bench.path(name))
            return server.bench.coordinator.call(ApiKey.GET_LATEST_KV_SNAPSHOTS, request)

        assert [s.HasField("snapshot_id") for s in snapshots("kept").latest_snapshots] == [False]
        with pytest.raises(NotFound, match="cannot be rebuilt") as refused:
            snapshots("gone")
        assert refused.value.code == ErrorCode.KV_SNAPSHOT_NOT_EXIST
    with retention(tmp_path, clock) as server, pytest.raises(NotFound, match="cannot be rebuilt"):
        snapshots("gone")  # requested for a bucket that was not opened since the start


def test_changelog_that_cannot_be_replaced_by_a_checkpoint_stays(tmp_path, clock, monkeypatch, caplog):

    def fail(*_: Any) -> int:
        raise StorageFailure("the disk is full")

    with retention(tmp_path, clock) as server:
        table = server.bench.create("t", KV_COLUMNS, ["id"], properties=TTL)
        server.put(table, *range(5))
        clock.advance(2 * TTL_SECONDS)
        monkeypatch.setattr(KvFolder, "write_checkpoint", fail)
        assert server.expire() == 0
        assert server.start(table) == 0
        assert "are kept for now: the disk is full" in caplog.text


def test_records_that_a_client_keeps_longer_while_they_are_about_to_go_stay(tmp_path, clock, monkeypatch):
    release = BucketReplica.release_changelog
    with retention(tmp_path, clock) as server:
        created = server.bench.create("t", LOG_COLUMNS, properties=TTL)
        server.append(created, *range(4))
        clock.advance(TTL_SECONDS + 1)
        server.append(created, 4)
        path = server.context.catalog.table_by_id(created).info.path

        def slowly(replica: BucketReplica, offset: int) -> int:  # as where a checkpoint is written
            server.context.catalog.alter_properties(path, {"table.log.ttl": "2 h"}, [])
            return release(replica, offset)

        with monkeypatch.context() as patch:
            patch.setattr(BucketReplica, "release_changelog", slowly)
            assert server.expire() == 0
        assert server.start(created) == 0
        clock.advance(TTL_SECONDS)
        assert server.expire() > 0


def test_the_server_expires_records_automatically(tmp_path):
    clock = ManualClock()
    with retention(tmp_path, clock, remote_log_task__interval__duration="10 ms") as server:
        table = server.bench.create("t", LOG_COLUMNS, properties=TTL)
        server.append(table, 0, 1, 2)
        clock.advance(2 * TTL_SECONDS)
        for _ in range(6000):
            if server.start(table) == 3:
                break
        assert server.start(table) == 3


def test_the_offset_to_keep_is_where_a_segment_begins():
    segments = [SegmentInfo(0, 10, 1, 100), SegmentInfo(10, 20, 1, 200), SegmentInfo(20, 30, 1, 150)]
    assert first_unexpired_offset(segments, 100) == 0
    assert first_unexpired_offset(segments, 101) == 10
    assert first_unexpired_offset(segments, 201) == 20
    assert first_unexpired_offset(segments[:1], 10_000) == 0
