"""The queues of the sender, without a server: what keeps batches in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from forebay.api.results import WriteResult
from forebay.base.ambient import ManualClock, SystemClock
from forebay.base.errors import ErrorCode, InvalidRequest, LimitExceeded, NotFound, OutcomeUnknown, Unavailable
from forebay.client.writing.accumulator import (
    NO_SEQUENCE,
    NO_WRITER_ID,
    Accumulator,
    Batch,
    Idempotence,
    WriteTarget,
    WriteTracker,
)
from forebay.metadata.table import TableBucket, TablePath
from tests.patience import PATIENCE

TARGET = WriteTarget(TablePath("d", "t"), 1, False)
OLD, NEW = TableBucket(1, 0, 10), TableBucket(1, 0, 11)


@pytest.fixture
def accumulator() -> Iterator[Accumulator]:
    accumulator = Accumulator(
        SystemClock(),
        None,
        memory_bytes=1 << 20,
        wait_seconds=1.0,
        in_flight_max=1,
        delivery_seconds=60.0,
        throttle_seconds_max=1.0,
    )
    with accumulator.lock:
        yield accumulator


def add(accumulator: Accumulator, bucket: TableBucket, name: bytes, partition: str = "a") -> Batch:
    batch = Batch(TARGET, bucket, bytearray(name), 1, WriteTracker(), partition)
    accumulator.add(batch)
    return batch


def take(accumulator: Accumulator) -> list[Batch]:
    ready, leaderless, _ = accumulator.take_ready(lambda bucket: 0, 1 << 20)
    assert not leaderless
    return [batch for batches in ready.values() for batch in batches]


def drain(accumulator: Accumulator) -> list[bytes]:
    sent = []
    while batches := take(accumulator):
        for batch in batches:
            sent.append(bytes(batch.data))
            accumulator.complete(batch, None)
    return sent


def test_rows_of_a_partition_that_was_recreated_wait_behind_those_of_its_name(accumulator: Accumulator) -> None:
    first = add(accumulator, OLD, b"1")
    add(accumulator, OLD, b"2")
    assert take(accumulator) == [first]
    # The writer learns of the new partition before the sender learns that the old one is gone.
    add(accumulator, NEW, b"3")
    assert take(accumulator) == []
    # The failed batch is sent again after a pause, which `move` ends.
    accumulator.retry_later(first, NotFound("no partition", ErrorCode.PARTITION_NOT_EXISTS))
    add(accumulator, NEW, b"4")
    assert accumulator.move(OLD, 11)
    add(accumulator, OLD, b"5")  # a writer that looked earlier
    add(accumulator, NEW, b"6")
    assert drain(accumulator) == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_where_nothing_waits_rows_go_to_the_partition_that_the_writer_knows(accumulator: Accumulator) -> None:
    add(accumulator, OLD, b"1")
    assert drain(accumulator) == [b"1"]
    assert add(accumulator, NEW, b"2").bucket == NEW
    assert add(accumulator, OLD, b"3", partition="b").bucket == OLD
    assert sorted(drain(accumulator)) == [b"2", b"3"]


# ---- by a clock of the test -----------------------------------------------------------------------------------------

A, B = TableBucket(1, 0), TableBucket(1, 1)
AWAY = Unavailable("away", ErrorCode.NOT_LEADER_OR_FOLLOWER)


def queues(
    clock: ManualClock,
    *,
    idempotent: bool = False,
    memory: int = 1000,
    in_flight_max: int = 2,
    wait_seconds: float = 0.01,
) -> Accumulator:
    idempotence = Idempotence(in_flight_max) if idempotent else None
    if idempotence is not None:
        idempotence.writer_id = 7
    accumulator = Accumulator(
        clock,
        idempotence,
        memory_bytes=memory,
        wait_seconds=wait_seconds,
        in_flight_max=in_flight_max,
        delivery_seconds=60.0,
        throttle_seconds_max=10.0,
    )
    accumulator.lock.acquire()  # as its callers do; for the rest of the test
    return accumulator


def put(
    accumulator: Accumulator, bucket: TableBucket = A, size: int = 10, tracker: WriteTracker | None = None
) -> Batch:
    batch = Batch(TARGET, bucket, bytearray(size), 5, tracker or WriteTracker())
    accumulator.add(batch)
    return batch


def test_memory_is_given_back_when_batches_end_and_one_that_is_too_large_goes_alone() -> None:
    accumulator = queues(ManualClock(), memory=100)
    first, second = put(accumulator, size=60), put(accumulator, B, size=40)
    assert (accumulator.used_bytes, accumulator.unfinished) == (100, 2)
    with pytest.raises(
        LimitExceeded, match=r"no room for a batch of 1 B .* within 0.01 s: 100 B are not acknowledged yet"
    ):
        put(accumulator, size=1)
    accumulator.add(Batch(TARGET, A, bytearray(1), 1, WriteTracker()), wait=False)
    assert accumulator.used_bytes == 101
    with accumulator.lock:
        for batch in [*take(accumulator), *take(accumulator)]:
            accumulator.complete(batch, None)
    assert (accumulator.used_bytes, accumulator.unfinished) == (0, 0)
    assert first.tracker.result().batches == second.tracker.result().batches == 1
    put(accumulator, size=5000)
    with pytest.raises(LimitExceeded):
        put(accumulator, size=1)


def test_a_closed_accumulator_takes_nothing_and_says_why_it_was_closed_first() -> None:
    accumulator = queues(ManualClock(), memory=10)
    put(accumulator, size=10)
    accumulator.close(Unavailable("first"))
    accumulator.close(Unavailable("second"))
    with pytest.raises(Unavailable, match="first"):
        put(accumulator, size=10)
    assert accumulator.unfinished == 1


def test_a_writer_that_waits_for_memory_is_told_at_once_that_the_accumulator_is_closed() -> None:
    accumulator = queues(ManualClock(), memory=10, wait_seconds=5.0)
    put(accumulator, size=10)
    accumulator.lock.release()
    begun, told = threading.Event(), threading.Event()

    def write() -> None:
        with accumulator.lock:
            begun.set()
            with pytest.raises(Unavailable, match="closed"):
                put(accumulator, size=1)
        told.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert begun.wait(PATIENCE)
    accumulator.close(Unavailable("closed"))
    assert told.wait(PATIENCE)
    writer.join(PATIENCE)


def test_a_request_has_one_batch_of_a_bucket_and_no_more_bytes_than_allowed() -> None:
    accumulator = queues(ManualClock())
    for bucket in (A, B, TableBucket(1, 2)):
        put(accumulator, bucket, size=40)
        put(accumulator, bucket, size=40)
    ready, leaderless, wake_in = accumulator.take_ready({A: 0, B: 0, TableBucket(1, 2): 5}.get, 80)
    assert {key[0]: [b.bucket for b in batches] for key, batches in ready.items()} == {
        0: [A, B],
        5: [TableBucket(1, 2)],
    }
    assert (leaderless, wake_in) == ([], None)
    ready, leaderless, wake_in = accumulator.take_ready({A: 0, B: 0}.get, 79)
    assert [[b.bucket for b in batches] for batches in ready.values()] == [[A]]
    assert ([b.bucket for b in leaderless], wake_in) == ([TableBucket(1, 2)], 0.0)  # B's batch waits for no one
    assert accumulator.take_ready({}.get, 79)[0] == {}


@pytest.mark.parametrize("idempotent", [False, True])
def test_no_more_batches_of_a_bucket_are_under_way_than_allowed(idempotent: bool) -> None:
    accumulator = queues(ManualClock(), idempotent=idempotent, in_flight_max=2)
    for _ in range(4):
        put(accumulator)
    sent = [*take(accumulator), *take(accumulator)]
    assert len(sent) == 2
    assert take(accumulator) == []
    accumulator.complete(sent[0], None)
    sent += take(accumulator)
    assert (len(sent), take(accumulator)) == (3, [])
    assert [batch.sequence for batch in sent] == ([0, 1, 2] if idempotent else [NO_SEQUENCE] * 3)


def test_batches_wait_for_a_writer_id() -> None:
    accumulator = queues(ManualClock(), idempotent=True)
    assert accumulator.idempotence is not None
    accumulator.idempotence.reset()
    assert accumulator.needs_writer_id() == []
    put(accumulator)
    assert accumulator.needs_writer_id() == [TARGET.path]
    assert take(accumulator) == []
    accumulator.idempotence.writer_id = 8
    assert accumulator.needs_writer_id() == []
    assert [(batch.writer_id, batch.sequence) for batch in take(accumulator)] == [(8, 0)]


def test_what_is_sent_again_waits_twice_as_long_each_time_and_stands_in_its_place() -> None:
    clock = ManualClock()
    accumulator = queues(clock, idempotent=True, in_flight_max=3)
    batches = [put(accumulator) for _ in range(4)]
    sent = [batch for _ in range(3) for batch in take(accumulator)]
    assert sent == batches[:3]
    for batch in (sent[1], sent[0], sent[2]):
        accumulator.retry_later(batch, AWAY)
    assert accumulator.queued(lambda _: True) == batches
    assert sent[0].last_error is AWAY
    pauses = []
    for _ in range(9):
        ready, _, wake_in = accumulator.take_ready(lambda _: 0, 1 << 20)
        assert (ready, wake_in is None) == ({}, False)
        pauses.append(round(wake_in or 0.0, 6))
        clock.advance((wake_in or 0.0) + 0.001)
        (batch,) = take(accumulator)
        assert batch is sent[0]
        accumulator.retry_later(batch, AWAY)
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]
    assert (batch.sequence, batch.attempts) == (0, 10)


def test_pressure_pauses_a_bucket_and_its_end_lets_it_continue() -> None:
    clock = ManualClock()
    accumulator = queues(clock)
    put(accumulator)
    put(accumulator, B)
    accumulator.throttle(A, 0.5)
    ready, _, wake_in = accumulator.take_ready(lambda _: 0, 1 << 20)
    assert [batch.bucket for batches in ready.values() for batch in batches] == [B]
    assert wake_in == pytest.approx(2.5)  # a quarter of the most
    accumulator.throttle(A, 0.0)
    assert [batch.bucket for batch in take(accumulator)] == [A]
    for pressure, seconds in ((7.0, 10.0), (1.0, 10.0), (-1.0, None)):
        put(accumulator)
        accumulator.throttle(A, pressure)
        if seconds is not None:
            assert accumulator.take_ready(lambda _: 0, 1 << 20)[2] == pytest.approx(seconds)
            clock.advance(seconds)
        for batch in take(accumulator):
            accumulator.complete(batch, None)


def test_batches_that_wait_too_long_fail_with_their_last_error() -> None:
    clock = ManualClock()
    accumulator = queues(clock)
    assert accumulator.expire() is None
    old = put(accumulator)
    clock.advance(20)
    young = put(accumulator, B)
    assert accumulator.expire() == pytest.approx(40)
    (sent,) = [batch for batch in take(accumulator) if batch is old]
    accumulator.retry_later(sent, AWAY)
    clock.advance(40)
    assert accumulator.expire() == 0.0
    assert old.tracker.error is not None
    assert "within 60 s ('client.writer.delivery-timeout'). The last error was: away" in old.tracker.error.message
    assert young.tracker.error is None
    assert accumulator.unfinished == 1


@pytest.mark.parametrize("was_sent", [True, False])
def test_a_queued_batch_that_fails_takes_the_writer_id_with_it_if_it_may_have_been_written(was_sent: bool) -> None:
    accumulator = queues(ManualClock(), idempotent=True)
    assert accumulator.idempotence is not None
    batch = put(accumulator)
    if was_sent:
        accumulator.retry_later(*take(accumulator), AWAY)
    accumulator.fail_queued([batch], AWAY)
    assert batch.tracker.error is not None
    assert accumulator.idempotence.writer_id == (NO_WRITER_ID if was_sent else 7)


@pytest.mark.parametrize(
    "act",
    [
        lambda accumulator, sent: put(accumulator, B),
        lambda accumulator, sent: accumulator.retry_later(sent, AWAY),
        lambda accumulator, sent: accumulator.complete(sent, 1),
        lambda accumulator, sent: accumulator.fail(sent, AWAY, certain=True),
        lambda accumulator, sent: accumulator.fail_queued(accumulator.queued(lambda _: True), AWAY),
        lambda accumulator, sent: accumulator.move(OLD, 11),
        lambda accumulator, sent: accumulator.close(AWAY),
    ],
    ids=["add", "retry", "complete", "fail", "fail queued", "move", "close"],
)
def test_the_sender_is_woken_by_what_may_give_it_something_to_do(act: Callable[[Accumulator, Batch], object]) -> None:
    accumulator = queues(ManualClock())
    put(accumulator)
    (sent,) = take(accumulator)
    put(accumulator, OLD)
    accumulator.lock.release()
    waits = threading.Event()
    woken: list[bool] = []

    def wait() -> None:
        with accumulator.changed:
            waits.set()
            woken.append(accumulator.changed.wait(PATIENCE))

    sender = threading.Thread(target=wait)
    sender.start()
    assert waits.wait(PATIENCE)
    with accumulator.lock:  # the thread waits by now, for it had the lock
        act(accumulator, sent)
    sender.join(PATIENCE)
    assert woken == [True]


def test_nothing_is_kept_of_buckets_whose_batches_have_ended() -> None:
    accumulator = queues(ManualClock())
    named = Batch(TARGET, OLD, bytearray(1), 1, WriteTracker(), "a")
    accumulator.add(named)
    put(accumulator)
    put(accumulator)
    first = take(accumulator)
    accumulator.fail_queued(accumulator.queued(lambda _: True), AWAY)
    accumulator.fail_queued(first, AWAY)  # not in a queue: nothing happens to them
    assert accumulator.unfinished == 2
    for batch in first:
        accumulator.fail(batch, AWAY, certain=True)
    assert (accumulator._queues, accumulator._homes, accumulator._in_flight) == ({}, {}, {})


# ---- what trackers tell ---------------------------------------------------------------------------------------------


def test_a_tracker_counts_what_was_written_and_the_last_offset_of_each_bucket() -> None:
    tracker = WriteTracker()
    accumulator = queues(ManualClock(), in_flight_max=9)
    batches = [put(accumulator, tracker=tracker) for _ in range(3)] + [put(accumulator, B, tracker=tracker)]
    assert not tracker.wait(0)
    while take(accumulator):
        pass
    for batch, end in zip(batches, (10, 9, None, 4), strict=True):
        assert not tracker.wait(0)
        accumulator.complete(batch, end)
    assert tracker.wait(0)
    assert tracker.error is None
    assert tracker.result() == WriteResult(20, 4, {A: 10, B: 4})


def test_waiting_is_for_what_had_begun_and_not_for_what_comes_meanwhile() -> None:
    tracker = WriteTracker()
    assert tracker.wait(0)
    first, second = (Batch(TARGET, A, bytearray(1), 1, tracker) for _ in range(2))
    tracker.begun(first)
    tracker.begun(second)
    tracker.written(second, None)
    assert not tracker.wait(0)
    tracker.written(first, None)
    assert tracker.wait(0)


def test_an_unknown_outcome_comes_before_rows_that_were_not_written() -> None:
    tracker = WriteTracker()
    lost, unknown, later = (Batch(TARGET, A, bytearray(1), rows, tracker) for rows in (1, 2, 4))
    unknown.may_be_written = later.may_be_written = True
    tracker.refused(InvalidRequest("a bad row"), 8)
    tracker.lost(lost, AWAY)
    error = tracker.error
    assert isinstance(error, InvalidRequest)  # the first one
    assert error.message == "a bad row (9 rows were not written; 0 were written)"
    tracker.lost(unknown, AWAY)
    tracker.lost(later, OutcomeUnknown("told by the server"))
    error = tracker.error
    assert isinstance(error, OutcomeUnknown)
    assert error.code == AWAY.code
    assert error.message.startswith("away. The server may have written the batch or not: read the table before")
    assert error.message.endswith("(9 rows were not written, 6 rows may or may not be written; 0 were written)")
