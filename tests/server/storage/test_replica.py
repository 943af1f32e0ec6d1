"""One bucket: when writes are acknowledged and visible, its upkeep, and its state after it was closed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest, NotFound, StorageFailure, Unavailable
from forebay.base.threads import Future
from forebay.kv.tablet import PutRequest, PutResult
from forebay.log.config import LogConfig
from forebay.log.tablet import LogTablet
from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableBucket, TableDescriptor, TableInfo, TablePath
from forebay.server.flow.write_queue import FutureReceiver, WriteScheduler
from forebay.server.metadata.catalog import CatalogTable, LiveTable
from forebay.server.storage.replica import BucketReplica
from forebay.server.storage.slow_progress import SlowProgress
from forebay.server.storage.write_command import AppendCommand, AppendRequest, PutCommand, WriteCommand
from tests.fs.faulty_fs import FaultyFileSystem
from tests.log.log_batches import faulty_fs, open_log
from tests.patience import PATIENCE, until
from tests.server.running import log_records

COLUMNS = [Column("a", types.int_()), Column("s", types.string())]
ALL, LEADER, NONE = -1, 1, 0


class Bucket:
    """A bucket of a log table on a simulated disk, and how often readers were told of news."""

    def __init__(self, scheduler: WriteScheduler, fs: FaultyFileSystem | None = None) -> None:
        self.clock = ManualClock()
        self.log = open_log(fs or faulty_fs(), clock=self.clock, config=LogConfig(segment_bytes=700))
        info = TableInfo(TablePath("db", "t"), 1, 1, TableDescriptor(Schema.of(COLUMNS), bucket_count=1))
        self.table = LiveTable(CatalogTable(info, {1: info.schema}))
        self.required: list[int] = []
        self.told = 0
        self.kv: Any = None
        self.kv_folder: Any = None
        self.scheduler = scheduler
        self.replica = self.opened()

    def opened(self) -> BucketReplica:
        return BucketReplica(
            TableBucket(1, 0),
            self.table,
            self.log,
            self.kv,
            self.kv_folder,
            self.scheduler,
            self._tell,
            SimpleNamespace(require=self.required.append),  # type: ignore[arg-type]
        )

    def _tell(self, bucket: TableBucket) -> None:
        assert bucket == TableBucket(1, 0)
        self.told += 1

    def write(self, *requests: tuple[int, bytes]) -> list[Any]:
        """One group of appends: (acks, records) each."""
        return self.replica._append_group([AppendRequest(records, acks) for acks, records in requests])

    @property
    def offsets(self) -> tuple[int, int, int]:
        return self.log.synced_offset, self.log.high_watermark, self.log.log_end_offset


def submitted(replica: BucketReplica, command: WriteCommand) -> Future[Any]:
    written = FutureReceiver[Any]()
    assert replica.submit(command, written) is None
    return written.future


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with ThreadPoolExecutor(1) as pool:
        yield Bucket(WriteScheduler(pool))  # type: ignore[arg-type]


ONE, TWO, BAD = log_records([1]), log_records([2, 3]), log_records([1])[:-1]


@pytest.mark.parametrize(
    ("acks", "offsets"),
    [([ALL], (1, 1, 1)), ([LEADER], (0, 1, 1)), ([NONE], (0, 1, 1)), ([LEADER, ALL, NONE], (3, 3, 3))],
)
def test_a_group_is_made_durable_for_those_who_wait_for_that_and_is_seen_by_readers(
    bucket: Bucket, acks: list[int], offsets: tuple[int, int, int]
) -> None:
    results = bucket.write(*((each, ONE) for each in acks))
    assert [(result.base_offset, result.error) for result in results] == [(n, None) for n in range(len(acks))]
    assert bucket.offsets == offsets
    assert bucket.told == 1
    assert sum(bucket.required) == len(ONE) * len(acks)


def test_a_write_that_is_refused_is_told_alone_and_the_log_is_not_synced_for_it(bucket: Bucket) -> None:
    good, bad, last = bucket.write((LEADER, ONE), (ALL, BAD), (NONE, TWO))
    assert (good.base_offset, last.base_offset, bad.base_offset) == (0, 1, -1)
    assert isinstance(bad.error, CorruptData | InvalidRequest)
    assert bucket.offsets == (0, 3, 3)
    assert bucket.write((ALL, BAD))[0].error is not None
    assert (bucket.offsets, bucket.told) == ((0, 3, 3), 1)


def test_a_sync_that_fails_is_told_to_all_of_the_group_but_those_with_an_error_of_their_own(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: LogTablet) -> None:
        raise StorageFailure("the disk is gone")

    monkeypatch.setattr(LogTablet, "sync", fails)
    first, bad, last = bucket.write((LEADER, ONE), (LEADER, BAD), (ALL, TWO))
    assert [str(each.error) for each in (first, last)] == [str(first.error)] * 2
    assert isinstance(first.error, StorageFailure)
    assert not isinstance(bad.error, StorageFailure)
    assert (first.base_offset, last.base_offset) == (-1, -1)
    assert (bucket.log.high_watermark, bucket.told) == (0, 0)


def test_readers_are_told_only_of_what_is_new(bucket: Bucket) -> None:
    once = log_records([1], writer_id=7, batch_sequence=0)
    assert bucket.write((ALL, once))[0].base_offset == 0
    assert bucket.write((ALL, once))[0].base_offset == 0
    assert (bucket.offsets, bucket.told) == ((1, 1, 1), 1)


@pytest.mark.parametrize("schema_id", [0, 2])
def test_a_batch_names_a_schema_that_there_is_or_is_damaged(bucket: Bucket, schema_id: int) -> None:
    records = log_records([1], schema_id=schema_id)
    (result,) = bucket.write((ALL, records))
    assert isinstance(result.error, NotFound)
    assert f"the batch has schema {schema_id}, but the latest schema of db.t is 1" in str(result.error)
    damaged = bytearray(records)
    damaged[-1] ^= 1
    (result,) = bucket.write((ALL, bytes(damaged)))
    assert isinstance(result.error, CorruptData)


def test_a_closed_bucket_takes_no_writes_and_a_sealed_one_takes_them_again(bucket: Bucket) -> None:
    bucket.replica.seal()
    with pytest.raises(Unavailable, match=r"table db\.t accepts no writes") as refused:
        submitted(bucket.replica, AppendCommand.of(AppendRequest(ONE))).result()
    assert refused.value.code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
    bucket.replica.unseal()
    assert submitted(bucket.replica, AppendCommand.of(AppendRequest(ONE))).result().base_offset == 0
    bucket.replica.close()
    with pytest.raises(Unavailable, match=r"table db\.t is closed") as refused:
        submitted(bucket.replica, AppendCommand.of(AppendRequest(ONE)))
    assert refused.value.code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


def test_upkeep_syncs_what_weaker_acknowledgements_left_and_nothing_else(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    sync = LogTablet.sync
    monkeypatch.setattr(LogTablet, "sync", lambda log: synced.append(log.log_end_offset) or sync(log))
    bucket.replica.sync_idle()
    bucket.write((LEADER, ONE))
    bucket.replica.sync_idle()
    bucket.replica.sync_idle()
    assert (synced, bucket.offsets) == ([1], (1, 1, 1))


# ---- closing --------------------------------------------------------------------------------------------------------


def test_closing_makes_everything_durable(bucket: Bucket) -> None:
    bucket.write((NONE, ONE))
    bucket.replica.close()
    assert bucket.offsets == (1, 1, 1)


@pytest.mark.parametrize("segments", [1, 2])
def test_of_a_parked_bucket_it_is_known_where_it_ends_and_when_its_first_segment_may_expire(
    bucket: Bucket, segments: int
) -> None:
    written_ms = []
    while len(bucket.log.segments()) < segments or not written_ms:
        bucket.clock.advance(1)
        written_ms.append(bucket.clock.now_ms())
        bucket.write((ALL, TWO))
    first = bucket.log.segments()[0]
    parked = bucket.replica.park()
    assert (parked.log_start_offset, parked.end_offset, parked.kv_folder) == (0, 2 * len(written_ms), None)
    assert parked.expirable_ms == first.last_timestamp_ms


def test_a_parked_bucket_with_records_that_readers_may_not_see_yet_has_no_known_end(bucket: Bucket) -> None:
    bucket.write((ALL, TWO))
    bucket.log.high_watermark = 1
    assert bucket.replica.park().end_offset is None


def test_a_bucket_that_two_have_sealed_takes_writes_when_both_let_it(bucket: Bucket) -> None:
    for _ in range(2):
        bucket.replica.seal()
    bucket.replica.unseal()  # of one that keeps the partition, while the other one is about to drop it
    with pytest.raises(Unavailable, match="accepts no writes"):
        bucket.write((ALL, ONE))
    bucket.replica.unseal()
    assert bucket.write((ALL, ONE))[0].base_offset == 0


# ---- the key-value state --------------------------------------------------------------------------------------------


class FakeState:
    """A key-value state whose changelog is applied up to an offset, and its folder with a checkpoint at another."""

    def __init__(self, applied: int, retained: int) -> None:
        self.applied_offset, self.retained_offset = applied, retained
        self.engine, self.closes, self.synced = self, 0, 0

    def write_checkpoint(self, engine: Any, sync_log: Any) -> None:
        assert engine is self
        sync_log()
        self.retained_offset = self.applied_offset

    def close(self) -> None:
        self.closes += 1


@pytest.fixture
def state(bucket: Bucket) -> FakeState:
    bucket.kv = bucket.kv_folder = FakeState(100, 40)
    bucket.replica = bucket.opened()
    return bucket.kv  # type: ignore[no-any-return]


def test_the_end_of_a_transaction_shows_no_put_that_the_state_does_not_have_yet(
    bucket: Bucket, state: FakeState
) -> None:
    bucket.log.append_as_leader(TWO)  # by a client's put, whose rows come to the state after the sync
    bucket.log.sync()
    bucket.replica.show_decided()
    assert bucket.log.high_watermark == 0


@pytest.mark.parametrize(("records_min", "written"), [(59, True), (60, True), (61, False)])
def test_a_checkpoint_is_written_when_the_changelog_has_grown_by_so_many_records(
    bucket: Bucket, state: FakeState, records_min: int, written: bool
) -> None:
    assert bucket.replica.checkpoint_if_grown(records_min) is written
    assert state.retained_offset == (100 if written else 40)


@pytest.mark.parametrize(("offset", "needed_from"), [(39, 40), (40, 40), (41, 100)])
def test_a_changelog_that_may_go_is_replaced_by_a_checkpoint_where_none_stands_for_it_yet(
    bucket: Bucket, state: FakeState, offset: int, needed_from: int
) -> None:
    assert bucket.replica.release_changelog(offset) == needed_from


def test_a_log_table_has_no_checkpoints_and_needs_no_changelog(bucket: Bucket) -> None:
    assert not bucket.replica.checkpoint_if_grown(0)
    assert bucket.replica.release_changelog(7) == 7
    with pytest.raises(InvalidRequest, match=r"table db\.t has no primary key"):
        submitted(bucket.replica, PutCommand.of(PutRequest(b"")))


def test_a_bucket_whose_files_are_removed_lets_go_of_its_log_and_its_state(bucket: Bucket, state: FakeState) -> None:
    with pytest.raises(InvalidRequest, match=r"table db\.t has a primary key"):
        submitted(bucket.replica, AppendCommand.of(AppendRequest(ONE)))
    bucket.replica.abandon()
    assert state.closes == 1
    assert bucket.replica.closed
    with pytest.raises(StorageFailure):
        bucket.log.append_as_leader(ONE)


def test_a_bucket_that_is_dropped_waits_for_a_checkpoint_and_begins_no_other(bucket: Bucket, state: FakeState) -> None:
    """It would bring back a folder that is being removed."""
    closes: list[int] = []

    class Checkpointing:
        def __enter__(self) -> None:
            closes.append(state.closes)

        def __exit__(self, *_: object) -> None:
            closes.append(state.closes)

    bucket.replica._checkpointing = Checkpointing()  # type: ignore[assignment]
    bucket.replica.abandon()
    assert closes == [0, 1]
    assert not bucket.replica.checkpoint_if_grown(0)
    assert bucket.replica.release_changelog(100) == state.retained_offset == 40


def test_puts_need_room_are_told_to_readers_and_keep_out_of_what_is_closed_or_sealed(
    bucket: Bucket, state: FakeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, groups = bucket.replica, list[int]()

    def put_group(requests: Any) -> list[Any]:
        groups.append(len(requests))
        if any(request.records == b"new" for request in requests):
            bucket.log.append_as_leader(ONE)
            bucket.log.high_watermark = bucket.log.log_end_offset
        return [PutResult(1) for _ in requests]

    monkeypatch.setattr(state, "put_group", put_group, raising=False)
    replica._put_group([PutRequest(b"known"), PutRequest(b"too")])
    assert (groups, bucket.required, bucket.told) == ([2], [8], 0)
    submitted(replica, PutCommand.of(PutRequest(b"new"))).result(PATIENCE)
    assert (groups, bucket.required, bucket.told) == ([2, 1], [8, 3], 1)
    replica.seal()
    with pytest.raises(Unavailable, match=r"table db\.t accepts no writes"):
        submitted(replica, PutCommand.of(PutRequest(b"new"))).result(PATIENCE)
    replica.unseal()
    replica.closed = True
    with pytest.raises(Unavailable, match=r"table db\.t is closed"):
        submitted(replica, PutCommand.of(PutRequest(b"new")))
    assert (groups, bucket.required) == ([2, 1], [8, 3])


@pytest.mark.parametrize("has_key", [False, True])
def test_a_bucket_of_either_kind_is_idle_when_no_write_is_queued(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, has_key: bool
) -> None:
    may_write = threading.Event()

    def write_late(requests: Any) -> list[Any]:
        assert may_write.wait(PATIENCE)
        return [None for _ in requests]

    if has_key:
        bucket.kv = bucket.kv_folder = FakeState(0, 0)
        bucket.replica = bucket.opened()
    replica = bucket.replica
    assert replica.has_kv is has_key
    monkeypatch.setattr(replica, "_put_group" if has_key else "_append_group", write_late)
    assert replica.is_idle
    written = (
        submitted(replica, PutCommand.of(PutRequest(b"x")))
        if has_key
        else submitted(replica, AppendCommand.of(AppendRequest(ONE)))
    )
    assert not replica.is_idle
    may_write.set()
    written.result(PATIENCE)
    until(lambda: replica.is_idle, "the end of the write")


# ---- what takes long ------------------------------------------------------------------------------------------------


def test_a_long_step_is_told_of_every_two_seconds(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    progress = SlowProgress(clock, "checking")
    with caplog.at_level(logging.INFO):
        for done in range(6):
            progress(done, 10)
            clock.advance(1)
    assert [record.getMessage() for record in caplog.records] == ["checking: 2 of 10", "checking: 4 of 10"]
