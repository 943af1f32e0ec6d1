"""Appends of several clients with one write: the log is as after one append for each, or as before."""

from __future__ import annotations

import errno
import itertools
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import Conflict, StorageFailure
from forebay.codec.arrow.arrow_message import DECODED_BYTES_MAX, message_codec
from forebay.codec.log._plain_batches import PlainBatch, read_plain
from forebay.codec.log.log_batch import build_arrow_batch
from forebay.log.tablet import LogTablet
from forebay.metadata import types
from tests.codec.log_batch_strategies import batch_of, schema_of
from tests.fs.faulty_fs import FaultEffect
from tests.log.log_batches import faulty_fs, open_log

SCHEMA = schema_of(types.int_())
LAYOUT = message_codec(SCHEMA.columns).layout


def request(rows: int, writer: int = -1, sequence: int = -1) -> bytes:
    batch = batch_of(SCHEMA, [[n] for n in range(rows)])
    return bytes(build_arrow_batch(batch, schema_id=1, writer_id=writer, batch_sequence=sequence))


def plain(requests: list[bytes]) -> list[PlainBatch]:
    found = read_plain(requests, LAYOUT, 1, 1 << 20, DECODED_BYTES_MAX)
    return [batch for batch in found if batch is not None]


def content(log: LogTablet) -> tuple[Any, ...]:
    batches = [bytes(data) for _, data in log.iterate_batches(log.log_start_offset)]
    return batches, log.log_end_offset, log.writer_states(), log.last_timestamp_ms


REQUESTS = st.lists(
    st.builds(request, st.integers(1, 3), st.just(-1))
    | st.builds(request, st.integers(1, 3), st.sampled_from([7, 8]), st.integers(0, 4)),
    min_size=1,
    max_size=8,
)


@given(st.lists(REQUESTS, min_size=1, max_size=3))
def test_the_log_is_as_if_they_came_one_after_the_other(groups: list[list[bytes]]) -> None:
    together, alone = open_log(faulty_fs()), open_log(faulty_fs())
    for group in groups:
        expected: list[Any] = []
        for each in group:
            try:
                appended = alone.append_as_leader(each)
                expected.append((appended.base_offset, appended.next_offset))
            except Conflict as e:
                expected.append(e.message)
        found = together.append_together(group, plain(group))
        assert [each.message if isinstance(each, Conflict) else each for each in found] == expected
    assert content(together) == content(alone)


@pytest.mark.parametrize("effect", ["before", "partial", "after"])
def test_a_write_that_fails_leaves_log_and_writers_as_they_were(effect: FaultEffect) -> None:
    fs = faulty_fs()
    log = open_log(fs)
    log.append_as_leader(request(1, 7, 0))
    before = content(log)
    group = [request(1, 7, 1), request(2), request(1, 8, 0)]
    fs.inject("append", path_suffix=".log", error=errno.ENOSPC, effect=effect)
    with pytest.raises(StorageFailure):
        log.append_together(group, plain(group))
    fs.clear_faults()
    assert content(log) == before
    assert [each[0] for each in log.append_together(group, plain(group))] == [1, 2, 4]  # type: ignore[index]


@pytest.mark.parametrize("effect", ["before", "partial", "after"])
@pytest.mark.parametrize("ending", ["kill", "crash"])
def test_whatever_call_is_the_last_one_a_batch_that_is_sent_again_is_there_once(
    effect: FaultEffect, ending: str
) -> None:
    """As if each client sent its next batch when the one before was acknowledged, and the last one again."""
    groups = [[request(1 + n % 3, writer, n) for writer in (7, 8)] for n in range(6)]
    for call in itertools.count(1):
        fs = faulty_fs(call)
        fault = fs.inject("any", on_call=call, times=10_000, error=errno.EIO, effect=effect)
        acknowledged = 0
        with suppress(StorageFailure):
            log = open_log(fs)
            for group in groups:
                log.append_together(group, plain(group))
                log.sync()
                acknowledged += 1
        again = open_log(getattr(fs, ending)())
        for group in groups[acknowledged:]:
            again.append_together(group, plain(group))
        written = [(header.writer_id, header.batch_sequence) for header, _ in again.iterate_batches(0)]
        assert sorted(written) == [(writer, n) for writer in (7, 8) for n in range(6)]
        if not fault.fired:
            break
    assert call > 20
