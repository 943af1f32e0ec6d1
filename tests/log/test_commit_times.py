"""The commit timestamps of a log: they never go back, and stand still for a transaction."""

from __future__ import annotations

from forebay.base.ambient import ManualClock
from forebay.log.commit_times import HeldTime
from forebay.log.tablet import LogTablet
from tests.log.log_batches import faulty_fs, make_batch, open_log


def append(tablet: LogTablet, committed_ms: int | None = None) -> int:
    return tablet.append_as_leader(make_batch(), committed_ms=committed_ms).commit_timestamp_ms


def test_time_stands_still_until_it_is_released() -> None:
    clock = ManualClock(5000)
    tablet = open_log(faulty_fs(), clock=clock)
    held = HeldTime(5000)
    assert tablet.hold_time(held) == -1
    clock.advance(1)
    assert append(tablet) == 5000
    held.at_ms = 5500
    assert append(tablet) == 5500
    assert append(tablet, 5500) == 5500
    tablet.release_time(held)
    tablet.release_time(held)  # of a log in which it does not stand still any more
    assert append(tablet) == 6000


def test_the_first_of_several_transactions_says_when_time_stands_still() -> None:
    clock = ManualClock(5000)
    tablet = open_log(faulty_fs(), clock=clock)
    first, second = HeldTime(5000), HeldTime(5100)
    tablet.hold_time(first)
    assert tablet.hold_time(second) == 5000
    clock.advance(1)
    assert append(tablet) == 5000
    tablet.release_time(first)
    assert append(tablet) == 5100
    assert append(tablet, 5100) == 5100
    tablet.release_time(second)
    assert append(tablet) == 6000


def test_a_time_is_not_settled_while_an_earlier_one_is_held() -> None:
    tablet = open_log(faulty_fs(), clock=ManualClock(5000))
    held = HeldTime(5000)
    tablet.hold_time(held)
    assert tablet.settle_time(5000)
    assert not tablet.settle_time(5001)
    held.at_ms = 5001
    assert tablet.settle_time(5001)
    tablet.release_time(held)
    assert tablet.settle_time(9000)


def test_no_record_gets_a_time_that_was_settled_although_the_clock_goes_back() -> None:
    clock = ManualClock(5000)
    tablet = open_log(faulty_fs(), clock=clock)
    assert tablet.settle_time(5000)
    clock.jump_wall_clock(-1000)
    assert append(tablet) == 5000
    assert tablet.settle_time(5050)
    assert tablet.hold_time(HeldTime(4000)) == 5050
    assert append(tablet) == 5050
    assert tablet.offset_for_timestamp(5050) == 1
