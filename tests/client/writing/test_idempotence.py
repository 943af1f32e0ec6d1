"""The sequences of batches: every case that Fluss's clients have, without a server."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from forebay.base.errors import ErrorCode, InternalError
from forebay.client.writing.accumulator import NO_SEQUENCE, NO_WRITER_ID, Idempotence
from forebay.metadata.table import TableBucket

BUCKET = TableBucket(1, 0)
OTHER = TableBucket(1, 1)


@dataclass(eq=False)
class Batch:
    bucket: TableBucket = field(default=BUCKET)
    writer_id: int = NO_WRITER_ID
    sequence: int = NO_SEQUENCE
    sequence_was_reset: bool = False
    acknowledged_when_sent: int = NO_SEQUENCE


def begun(state: Idempotence, count: int, bucket: TableBucket = BUCKET) -> list[Batch]:
    batches = [Batch(bucket) for _ in range(count)]
    for batch in batches:
        assert state.may_send(batch)
        state.begin(batch)
    return batches


@pytest.fixture
def state() -> Idempotence:
    state = Idempotence(5)
    state.writer_id = 42
    return state


def test_sequences_count_for_each_bucket_separately(state: Idempotence) -> None:
    assert [batch.sequence for batch in begun(state, 3)] == [0, 1, 2]
    assert [batch.sequence for batch in begun(state, 2, OTHER)] == [0, 1]


def test_no_batch_is_sent_before_there_is_a_writer_id() -> None:
    with pytest.raises(InternalError, match="before there is a writer id"):
        Idempotence(5).begin(Batch())


def test_no_more_batches_are_in_flight_than_allowed(state: Idempotence) -> None:
    batches = begun(state, 5)
    new = Batch()
    assert not state.may_send(new)
    assert state.may_send(Batch(OTHER))
    state.succeeded(batches[0])
    assert state.may_send(new)


def test_a_batch_keeps_its_id_and_sequence_through_retries(state: Idempotence) -> None:
    first, second = begun(state, 2)
    state.begin(first)
    assert (first.writer_id, first.sequence) == (42, 0)
    assert (second.writer_id, second.sequence) == (42, 1)


def test_of_batches_that_are_sent_again_the_first_goes_alone(state: Idempotence) -> None:
    first, second, third = begun(state, 3)
    assert state.may_send(first)
    assert not state.may_send(second)
    state.succeeded(first)
    assert state.may_send(second)
    assert not state.may_send(third)


def test_a_batch_that_was_certainly_not_written_gives_its_sequence_back(state: Idempotence) -> None:
    first, second, third = begun(state, 3)
    state.failed(first, ErrorCode.RECORD_TOO_LARGE_EXCEPTION, certain=True)
    assert [second.sequence, third.sequence] == [0, 1]
    assert second.sequence_was_reset
    # They were sent with sequences 1 and 2, so the server refuses them; that is not their fault.
    assert state.may_retry(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION)
    assert state.may_retry(third, ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION)
    assert state.may_retry(second, ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION)
    assert begun(state, 1)[0].sequence == 2


def test_a_batch_before_the_failed_one_keeps_its_sequence(state: Idempotence) -> None:
    first, second, third = begun(state, 3)
    state.failed(second, ErrorCode.RECORD_TOO_LARGE_EXCEPTION, certain=True)
    assert (first.sequence, third.sequence) == (0, 1)
    assert not first.sequence_was_reset


def test_out_of_order_is_the_fault_of_a_predecessor_unless_the_batch_is_next(state: Idempotence) -> None:
    first, second, third = begun(state, 3)
    assert not state.may_retry(first, ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION)
    assert state.may_retry(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION)
    state.succeeded(first)
    # The second was sent before the first was acknowledged: the error is a late one.
    assert state.may_retry(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION)
    state.begin(second)
    assert not state.may_retry(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION)
    assert state.may_retry(third, ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION)


def test_a_batch_below_an_acknowledged_one_is_written(state: Idempotence) -> None:
    """failure-scenarios 1b: lost response while later batches succeed."""
    first, second, third = begun(state, 3)
    state.succeeded(second)
    assert state.is_written(first)
    assert not state.is_written(third)
    state.succeeded(first)
    assert state.is_written(second)
    state.succeeded(third)
    assert state.is_written(third)
    assert begun(state, 1)[0].sequence == 3


def test_a_late_answer_for_an_earlier_batch_does_not_make_a_later_one_unwritten(state: Idempotence) -> None:
    first, second, third = begun(state, 3)
    state.succeeded(third)
    state.succeeded(first)
    assert state.is_written(second)


def test_only_sequence_errors_may_be_the_fault_of_another_batch(state: Idempotence) -> None:
    first, second = begun(state, 2)
    assert not state.may_retry(second, ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION)
    state.failed(first, ErrorCode.RECORD_TOO_LARGE_EXCEPTION, certain=True)
    assert not state.may_retry(second, ErrorCode.RECORD_TOO_LARGE_EXCEPTION)


def test_a_bucket_that_is_gone_is_forgotten_with_its_sequences(state: Idempotence) -> None:
    begun(state, 5)
    begun(state, 2, OTHER)
    state.forget(BUCKET)
    state.forget(BUCKET)
    assert [batch.sequence for batch in begun(state, 5)] == [0, 1, 2, 3, 4]
    assert begun(state, 1, OTHER)[0].sequence == 2


def test_a_lost_writer_state_starts_over_with_another_id(state: Idempotence) -> None:
    first, second = begun(state, 2)
    state.failed(first, ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION, certain=True)
    assert state.writer_id == NO_WRITER_ID
    state.writer_id = 43
    assert begun(state, 1)[0].sequence == 0
    # What still comes for batches of the old id changes nothing.
    state.succeeded(second)
    state.failed(second, ErrorCode.RECORD_TOO_LARGE_EXCEPTION, certain=True)
    state.failed(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION, certain=True)
    assert not state.is_written(second)
    assert state.writer_id == 43
    assert begun(state, 1)[0].sequence == 1


def test_a_batch_of_an_earlier_id_is_let_through_to_fail(state: Idempotence) -> None:
    old = begun(state, 2)[1]
    state.reset()
    state.writer_id = 43
    new = begun(state, 1)[0]
    assert state.may_send(old)
    assert not state.may_send(Batch(BUCKET, 43, 7))
    assert new.sequence == 0


def test_when_it_is_unknown_whether_a_batch_was_written_the_id_is_given_up(state: Idempotence) -> None:
    first, _second = begun(state, 2)
    state.failed(first, ErrorCode.REQUEST_TIME_OUT, certain=False)
    assert state.writer_id == NO_WRITER_ID


def test_sequences_go_round_after_the_last_number(state: Idempotence) -> None:
    first = begun(state, 1)[0]
    state._buckets[BUCKET].next_sequence = 2**31 - 1
    second, third = begun(state, 2)
    assert (second.sequence, third.sequence) == (2**31 - 1, 0)
    state.succeeded(first)
    state._buckets[BUCKET].acknowledged = 2**31 - 2
    state.succeeded(third)
    assert state.is_written(second)
    assert begun(state, 1)[0].sequence == 1
