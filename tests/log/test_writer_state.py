"""The rules for writers' sequences, and the snapshot of their state, in isolation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import Conflict, CorruptData, InternalError
from forebay.codec.crc import crc32c
from forebay.codec.log.header import LogBatchHeader, parse_header
from forebay.log import writer_state
from forebay.log.writer_state import RETRY_HORIZON_MS, WriterBatch, WriterStates, next_sequence
from tests.log.log_batches import make_batch

DAY = 86_400_000


def header(sequence: int, writer_id: int = 7, records: int = 1) -> LogBatchHeader:
    return parse_header(make_batch(records, writer_id=writer_id, sequence=sequence))


def states_with(*sequences: int, timestamp: int = 0) -> WriterStates:
    states = WriterStates(7 * DAY)
    for number, sequence in enumerate(sequences):
        states.record(header(sequence), number, timestamp)
    return states


def test_after_the_largest_sequence_comes_zero() -> None:
    largest = 2**31 - 1
    assert next_sequence(largest) == 0
    states = states_with(largest - 1, largest)
    assert states.check([header(0)], 0, 0) is None
    assert states.check([header(0), header(1)], 0, 0) is None
    with pytest.raises(Conflict):
        states.check([header(1)], 0, 0)
    states.record(header(0), 2, 0)
    assert [batch.sequence for batch in states.as_mapping()[7]] == [largest - 1, largest, 0]
    assert states.check([header(largest)], 0, 0) == WriterBatch(largest, 1, 1, 0)


def test_five_batches_are_remembered() -> None:
    states = states_with(*range(7))
    assert [batch.sequence for batch in states.as_mapping()[7]] == [2, 3, 4, 5, 6]
    for sequence in range(2, 7):
        duplicate = states.check([header(sequence)], 0, 0)
        assert duplicate is not None
        assert duplicate.base_offset == sequence
    for sequence in (0, 1, 8):
        with pytest.raises(Conflict):
            states.check([header(sequence)], 0, 0)
    assert states.check([header(7)], 0, 0) is None


def test_an_unknown_writer_may_begin_anywhere_with_a_batch_older_than_the_expiry() -> None:
    states = WriterStates(7 * DAY)
    now = 100 * DAY
    assert states.check([header(12)], now - 7 * DAY - 1, now) is None
    with pytest.raises(Conflict):
        states.check([header(12)], now - 7 * DAY, now)
    with pytest.raises(Conflict):
        states_with(3).check([header(12)], 0, now)


def test_a_writer_is_forgotten_after_the_expiry_and_not_at_it() -> None:
    states = states_with(3, timestamp=1000)
    assert states.expire(1000 + 7 * DAY) == 0
    assert states.expire(1001 + 7 * DAY) == 1
    assert len(states) == 0


def test_too_many_writers_go_after_the_time_in_which_clients_repeat_and_not_at_it() -> None:
    states = WriterStates(7 * DAY, count_max=2)
    for number in range(4):
        states.record(header(0, number), number, 1000)
    assert states.expire(1000 + RETRY_HORIZON_MS) == 0
    assert states.expire(1001 + RETRY_HORIZON_MS) == 2
    assert sorted(states.as_mapping()) == [2, 3]
    assert states.expire(1001 + RETRY_HORIZON_MS) == 0


def test_a_snapshot_of_no_writers_is_one() -> None:
    states = states_with(0)
    states.load_snapshot(WriterStates(1).to_snapshot(9), 9)
    assert len(states) == 0


def test_checking_changes_nothing() -> None:
    states = states_with(0)
    before = states.as_mapping()
    states.check([header(1), header(2)], 0, 0)
    with pytest.raises(Conflict):
        states.check([header(1), header(3)], 0, 0)
    assert states.as_mapping() == before


def test_writers_of_one_request_are_checked_each_for_itself() -> None:
    states = states_with(0)
    assert states.check([header(1), header(0, 8), header(2), header(1, 8), header(5, -1)], 0, 0) is None
    with pytest.raises(Conflict, match="writer 8"):
        states.check([header(1), header(1, 8)], 0, 0)


def test_a_writer_that_starts_over_has_nothing_older_to_repeat() -> None:
    states = states_with(0, 1, 0)
    assert [batch.base_offset for batch in states.as_mapping()[7]] == [2]
    assert states.check([header(1)], 0, 0) is None


writers = st.dictionaries(
    st.integers(0, 2**63 - 1),
    st.tuples(st.integers(0, 2**31 - 10), st.integers(1, 6), st.integers(1, 9), st.integers(0, 2**40)),
    max_size=6,
)


@given(writers, st.integers(6 * 9, 2**60))
def test_a_snapshot_is_read_back(plan: dict[int, tuple[int, int, int, int]], end: int) -> None:
    states = WriterStates(7 * DAY)
    for writer_id, (first, count, records, timestamp) in plan.items():
        for number in range(count):
            states.record(header(first + number, writer_id, records), number * records, timestamp + number)
    data = states.to_snapshot(end)
    again = WriterStates(7 * DAY)
    again.load_snapshot(data, end)
    assert again.as_mapping() == states.as_mapping()
    assert again.to_snapshot(end) == data


def test_states_that_are_ahead_of_the_log_are_not_saved_and_not_loaded() -> None:
    states = states_with(0, 1)
    with pytest.raises(InternalError, match="ahead of the log's end, 1"):
        states.to_snapshot(1)
    sound = states.to_snapshot(2)
    body = sound[: -writer_state._CRC.size].replace((2).to_bytes(8, "little"), (1).to_bytes(8, "little"), 1)
    with pytest.raises(CorruptData, match="batches behind its end, 1"):
        states.load_snapshot(body + writer_state._CRC.pack(crc32c(body)), 1)


@given(st.binary(max_size=100))
def test_random_bytes_are_no_snapshot(data: bytes) -> None:
    states = states_with(0)
    with pytest.raises(CorruptData):
        states.load_snapshot(data, 1)
    assert len(states) == 1


def test_a_snapshot_of_another_offset_or_another_length_is_refused() -> None:
    data = states_with(0, 1).to_snapshot(2)
    states = WriterStates(1)
    for wrong in (data + b"\0", data[:-1], data[1:], b""):
        with pytest.raises(CorruptData):
            states.load_snapshot(wrong, 2)
    with pytest.raises(CorruptData, match="end offset 2"):
        states.load_snapshot(data, 3)


def test_the_bytes_of_a_snapshot_are_those_of_the_format_page() -> None:
    states = WriterStates(7 * DAY)
    states.record(header(0, 77, records=2), 0, 1000)
    assert states.to_snapshot(2).hex(" ") == (
        "46 42 57 53 01 00 02 00 00 00 00 00 00 00 01 00 00 00 "
        "4d 00 00 00 00 00 00 00 01 "
        "00 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 e8 03 00 00 00 00 00 00 "
        "31 78 24 28"
    )
