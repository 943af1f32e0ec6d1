"""Places of connections of a small HTTP server, with a clock of the test."""

from __future__ import annotations

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.http_places import HttpPlaces


@pytest.fixture
def ended() -> list[str]:
    return []


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def places(ended: list[str], clock: ManualClock) -> HttpPlaces[str]:
    return HttpPlaces(3, 10.0, 60.0, ended.append, clock)


def test_who_has_not_asked_makes_room_before_who_has(places: HttpPlaces[str], ended: list[str]) -> None:
    for name in "abc":
        places.open(name)
    places.answer("a")
    places.answer("c")
    places.open("d")
    assert ended == ["b"]
    places.answer("d")
    places.open("e")
    assert ended == ["b", "a"], "the oldest, if all have asked"
    places.remove("e")
    places.open("f")
    assert ended == ["b", "a"]


def test_each_has_a_time_for_its_request_and_for_its_answer(
    places: HttpPlaces[str], ended: list[str], clock: ManualClock
) -> None:
    for name in "abc":
        places.open(name)
    places.answer("b")
    clock.advance(9.0)
    places.wait("c")
    clock.advance(2.0)
    places.cut_off_late()
    assert ended == ["a"]
    clock.advance(10.0)
    places.cut_off_late()
    assert ended == ["a", "c"]
    clock.advance(40.0)
    places.cut_off_late()
    assert ended == ["a", "c", "b"]


def test_what_was_answered_waits_for_its_next_request(
    places: HttpPlaces[str], ended: list[str], clock: ManualClock
) -> None:
    places.open("a")
    places.answer("a")
    places.wait("a", 30.0)
    clock.advance(29.0)
    places.cut_off_late()
    assert ended == []
    places.cut_off_stranger()
    places.cut_off_stranger()
    assert ended == ["a"]
