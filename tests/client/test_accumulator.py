"""The queues of the sender, without a server: what keeps batches in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forebay.base.clock import SystemClock
from forebay.base.errors import ErrorCode, NotFound
from forebay.client.accumulator import Accumulator, Batch, WriteTarget, WriteTracker
from forebay.metadata.table import TableBucket, TablePath

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


def test_rows_of_a_partition_that_was_made_again_wait_behind_those_of_its_name(accumulator: Accumulator) -> None:
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
    add(accumulator, NEW, b"5")
    add(accumulator, OLD, b"6")  # a writer that looked earlier
    assert drain(accumulator) == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_where_nothing_waits_rows_go_to_the_partition_that_the_writer_knows(accumulator: Accumulator) -> None:
    add(accumulator, OLD, b"1")
    assert drain(accumulator) == [b"1"]
    assert add(accumulator, NEW, b"2").bucket == NEW
    assert add(accumulator, OLD, b"3", partition="b").bucket == OLD
    assert sorted(drain(accumulator)) == [b"2", b"3"]
