"""Offsets of streaming reads, and what lies between two of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import Conflict, CorruptData, InternalError, UnsupportedOperation
from forebay.metadata.log_offset import LogOffset, epoch_of
from forebay.metadata.table import TableBucket
from forebay.unionread.streaming import FullRead, StreamOffset, capped, micro_batch, next_offset, shares

A, B, C = (TableBucket(7, number) for number in range(3))


def first(log: dict[TableBucket, int], full: FullRead | None = None) -> StreamOffset:
    return StreamOffset(7, log, full, is_first=True)


def travelled(offset: StreamOffset) -> StreamOffset:
    return StreamOffset.from_json(json.loads(json.dumps(offset.to_json())))


def test_an_offset_survives_json_with_all_it_says() -> None:
    partitioned = {TableBucket(7, 2, 30): 5, TableBucket(7, 0, 4): 6}
    start = first(partitioned, FullRead(12, "id", (TableBucket(7, 2, 30),), 1))
    offset = StreamOffset(7, partitioned, None, start=start)
    assert travelled(offset) == offset
    assert travelled(first({A: 1})) == first({A: 1})


def test_equal_offsets_are_equal_texts_in_whatever_order_they_were_made() -> None:
    one, other = StreamOffset(7, {A: 1, B: 2}), StreamOffset(7, {B: 2, A: 1})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


def test_an_offset_names_the_epochs_of_its_logs_in_json_and_one_without_them_stays_readable() -> None:
    start = StreamOffset(7, {A: LogOffset(4, "old"), B: LogOffset(0, "old")})
    assert start.to_json() == {"version": 1, "table": 7, "epoch": "old", "log": {"0": 4, "1": 0}}
    end = next_offset(start, {A: LogOffset(9, "new"), B: LogOffset(0, "old")}, limit=3)
    assert end.to_json() == {
        "version": 1, "table": 7, "epochs": {"0": "new", "1": "old"}, "log": {"0": 7, "1": 0}
    }  # fmt: skip
    batch = micro_batch(travelled(start), travelled(end))
    assert [(epoch_of(first), epoch_of(stop)) for first, stop in batch.logs.values()] == [("old", "new")]
    before = StreamOffset.from_json({"version": 1, "table": 7, "log": {"0": 4}})
    assert (before.log, epoch_of(before.log[A])) == ({A: 4}, None)


@pytest.mark.parametrize(
    "document", [{}, {"version": 1}, {"version": 1, "table": 7, "log": 3}, {"version": 1, "table": 7, "log": {"x": 1}}]
)
def test_what_is_no_offset_is_called_corrupt(document: dict[str, object]) -> None:
    with pytest.raises(CorruptData, match="no stream offset"):
        StreamOffset.from_json(document)


def test_an_offset_of_a_newer_release_is_refused() -> None:
    with pytest.raises(UnsupportedOperation, match="version 2"):
        StreamOffset.from_json({**first({A: 1}).to_json(), "version": 2})


def test_without_news_a_stream_stays_where_it_is() -> None:
    start = StreamOffset(7, {A: 4, B: 0})
    assert next_offset(start, {A: 4, B: 0, C: 0}) is start
    assert next_offset(start, {A: 3, B: 0}) is start


def test_a_batch_takes_all_there_is_and_buckets_that_are_new_from_their_beginning() -> None:
    start = StreamOffset(7, {A: 4, B: 0})
    end = next_offset(start, {A: 6, B: 0, C: 3})
    assert end == StreamOffset(7, {A: 6, B: 0, C: 3})
    assert micro_batch(start, end).logs == {A: (4, 6), C: (0, 3)}


def test_buckets_that_are_gone_leave_the_offset() -> None:
    start = StreamOffset(7, {A: 4, B: 9})
    end = next_offset(start, {A: 4})
    assert end.log == {A: 4}
    assert micro_batch(start, end).logs == {}


def test_the_first_batch_carries_its_start_and_is_run_again_from_there() -> None:
    begun = first({A: 4})
    end = travelled(next_offset(begun, {A: 9}))
    later = first({A: 30})  # "latest", asked again after a crash
    assert micro_batch(begun, end).logs == {A: (4, 9)}
    assert micro_batch(later, end).logs == {A: (4, 9)}
    assert next_offset(end, {A: 10}) == StreamOffset(7, {A: 10})


def test_a_first_batch_without_rows_that_is_run_again_stays_without_rows() -> None:
    begun = first({A: 4})
    assert next_offset(begun, {A: 4}) is begun
    assert micro_batch(first({A: 30}), begun).logs == {}
    assert micro_batch(begun, next_offset(begun, {A: 5})).logs == {A: (4, 5)}


def test_a_batch_without_news_behind_the_first_one_reads_nothing_again() -> None:
    end = travelled(next_offset(first({A: 4}), {A: 9}))
    assert next_offset(end, {A: 9}) is end
    assert micro_batch(end, end).logs == {}


def test_pieces_of_a_full_read_come_before_any_log_record() -> None:
    start = first({A: 10}, FullRead(lake_snapshot=3))
    end = next_offset(start, {A: 20}, [5, 5])
    assert (end.full, end.log) == (None, {A: 10})
    batch = micro_batch(start, end)
    assert (batch.first_piece, batch.stop_piece, batch.records) == (0, None, 0)
    after = next_offset(end, {A: 20})
    assert micro_batch(end, after).logs == {A: (10, 20)}
    assert micro_batch(end, after).full is None


def test_a_full_read_without_a_piece_continues_with_the_logs_at_once() -> None:
    start = first({A: 0}, FullRead())
    assert micro_batch(start, next_offset(start, {A: 2}, [])).logs == {A: (0, 2)}


@pytest.mark.parametrize(
    ("pieces", "stops"),
    [([4, 4, 4], [2, 3]), ([40, 1, 1], [1, 3]), ([None, 2, None], [1, 2, 3]), ([10], [1]), ([0, 0, 10, 1], [3, 4])],
)
def test_pieces_are_taken_whole_as_long_as_they_fit(pieces: list[int | None], stops: list[int]) -> None:
    offset, found = first({A: 1}, FullRead(lake_snapshot=3)), []
    while offset.full is not None:
        end = next_offset(offset, {A: 9}, pieces, limit=10)
        batch = micro_batch(offset, end)
        found.append(len(pieces) if batch.stop_piece is None else batch.stop_piece)
        assert batch.logs == {}
        offset = end
    assert found == stops


def test_a_limit_is_shared_by_the_buckets_that_have_something() -> None:
    assert shares({A: 100, B: 2, C: 100}, 20) == {A: 9, B: 2, C: 9}
    assert shares({A: 1, B: 5}, 100) == {A: 1, B: 5}
    assert shares({A: 3, B: 8, C: 5}, 1) == {A: 0, B: 1, C: 0}


@given(st.dictionaries(st.integers(), st.integers(0, 1000), max_size=8), st.integers(1, 3000))
def test_shares_use_the_limit_up_and_never_pass_it(waiting: dict[int, int], limit: int) -> None:
    taken = shares(waiting, limit)
    assert sum(taken.values()) == min(limit, sum(waiting.values()))
    assert all(0 <= taken[bucket] <= waiting[bucket] for bucket in waiting)


@given(
    st.lists(st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 50)), min_size=1, max_size=8),
    st.none() | st.integers(1, 40),
)
def test_batches_of_growing_logs_read_every_record_once(
    growth: list[dict[TableBucket, int]], limit: int | None
) -> None:
    ends: dict[TableBucket, int] = {A: 0}
    offset, read = first({A: 0}), set[tuple[TableBucket, int]]()

    def step() -> bool:
        nonlocal offset
        end = travelled(next_offset(offset, ends, limit=limit))
        batch = micro_batch(offset, end)
        assert limit is None or batch.records <= limit
        for bucket, (start, stop) in batch.logs.items():
            new = {(bucket, record) for record in range(start, stop)}
            assert not new & read
            read.update(new)
        moved, offset = end != offset, end
        return moved

    for more in growth:
        for bucket, count in more.items():
            ends[bucket] = ends.get(bucket, 0) + count
        step()
    while step():
        pass
    assert read == {(bucket, record) for bucket, end in ends.items() for record in range(end)}


def test_up_to_now_ends_where_the_logs_ended_then_and_knows_no_later_bucket() -> None:
    start = StreamOffset(7, {A: 4, B: 9})
    assert capped(start, {A: 50, B: 50, C: 50}, {A: 10, B: 2}) == {A: 10, B: 9}
    assert capped(start, {A: 50, C: 50}, {A: 10, C: 1}) == {A: 10, C: 1}


def test_offsets_of_two_tables_and_batches_that_go_back_are_errors() -> None:
    with pytest.raises(Conflict, match="table id 7 to 8"):
        micro_batch(StreamOffset(7, {}), StreamOffset(8, {}))
    with pytest.raises(InternalError, match="from offset 5 back to 4"):
        micro_batch(StreamOffset(7, {A: 5}), StreamOffset(7, {A: 4}))
