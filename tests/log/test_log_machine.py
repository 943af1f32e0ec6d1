"""The log against a list of batches: any sequence of appends, cuts, reads, restarts, kills and power losses."""

from __future__ import annotations

import errno
import random
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.base.ambient import ManualClock
from forebay.base.errors import Conflict, CorruptData, ErrorCode, InvalidRequest, StorageFailure
from forebay.codec.log.header import iter_headers
from forebay.fs import names
from forebay.log.tablet import EARLIEST_OFFSET, LogTablet
from forebay.log.writer_state import WriterBatch
from tests.every_run import examples
from tests.fs.faulty_fs import FaultyFileSystem
from tests.log.log_batches import FOLDER, SMALL, make_batch, payloads

WRITERS = [3, 4, 5]


class Stored(NamedTuple):
    """A batch as the model remembers it."""

    base: int
    next: int
    payload: bytes
    timestamp: int
    writer: int
    sequence: int
    size: int


def next_sequence(last: int) -> int:
    return last + 1


class LogMachine(RuleBasedStateMachine):
    """`history` has every batch ever kept, also those that retention removed; `start` is the first offset here."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.fs = FaultyFileSystem(self.random, page_bytes=512)
        self.clock = ManualClock()
        self.history: list[Stored] = []
        self.start = 0
        self.synced = 0
        self.recovery_point = 0
        self.truncate_floor = 0
        self.writers: dict[int, list[WriterBatch]] = {}
        self.open(clean=False)

    # ---- the model

    @property
    def end(self) -> int:
        return self.history[-1].next if self.history else self.start

    @property
    def here(self) -> list[Stored]:
        return [batch for batch in self.history if batch.base >= self.start]

    def remember(self, batch: Stored) -> None:
        if batch.writer >= 0:
            old = self.writers.get(batch.writer, [])
            if old and batch.sequence != next_sequence(old[-1].sequence):
                old = []
            entry = WriterBatch(batch.sequence, batch.base, batch.next - 1, batch.timestamp)
            self.writers[batch.writer] = [*old, entry][-5:]

    def expire(self) -> None:
        limit = self.clock.now_ms() - SMALL.writer_expiry_ms
        self.writers = {key: value for key, value in self.writers.items() if value[-1].timestamp_ms >= limit}

    def replay(self) -> None:
        self.writers = {}
        for batch in self.history:
            self.remember(batch)
        self.expire()

    def open(self, clean: bool) -> None:
        self.tablet = LogTablet.open(
            self.fs,
            FOLDER,
            config=SMALL,
            clock=self.clock,
            recovery_point=self.recovery_point,
            clean_shutdown=clean,
        )
        self.replay()
        self.synced = self.end

    def last_sequence(self, writer: int) -> int:
        return self.writers[writer][-1].sequence if writer in self.writers else -1

    # ---- appending

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        request, expected, _ = self.draw_request(data)
        answer = self.tablet.append_as_leader(request, leader_epoch=2)
        assert (answer.base_offset, answer.next_offset) == (expected[0].base, expected[-1].next)
        assert answer.commit_timestamp_ms == expected[0].timestamp
        assert not answer.duplicate
        for batch in expected:
            self.history.append(batch)
            self.remember(batch)

    def draw_request(self, data: st.DataObject) -> tuple[bytes, list[Stored], int]:
        writer = data.draw(st.sampled_from([-1, *WRITERS]), "writer")
        sequence = self.last_sequence(writer) if writer >= 0 else -2
        offset = self.end
        timestamp = max([self.clock.now_ms()] + [batch.timestamp for batch in self.here[-1:]])
        parts, expected = [], []
        for _ in range(data.draw(st.sampled_from([1, 1, 1, 2, 3]), "batches")):
            sequence += 1 if writer >= 0 else 0
            count = data.draw(st.integers(0, 3), "records")
            body = bytes([data.draw(st.integers(0, 255), "byte")]) * data.draw(st.sampled_from([0, 1, 60, 500]), "size")
            magic = data.draw(st.integers(0, 2), "magic")
            batch = make_batch(count, body, magic=magic, writer_id=writer, sequence=max(sequence, -1), base_offset=77)
            parts.append(batch)
            next_offset = offset + max(count, 1)
            expected.append(
                Stored(offset, next_offset, payloads(batch)[0], timestamp, writer, max(sequence, -1), len(batch))
            )
            offset = next_offset
        return b"".join(parts), expected, writer

    @rule(data=st.data(), effect=st.sampled_from(["before", "partial", "after"]))
    def append_to_a_failing_disk(self, data: st.DataObject, effect: str) -> None:
        request, _, _ = self.draw_request(data)
        self.fs.inject("append", path_suffix=".log", error=errno.ENOSPC, effect=effect)  # type: ignore[arg-type]
        with pytest.raises(StorageFailure):
            self.tablet.append_as_leader(request)
        self.fs.clear_faults()
        assert not self.tablet.is_offline

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        writer = data.draw(st.sampled_from(sorted(self.writers)), "writer")
        known = self.writers[writer]
        entry = data.draw(st.sampled_from(known), "batch")
        follower = make_batch(1, b"new", writer_id=writer, sequence=known[-1].sequence + 1)
        repeated = make_batch(2, b"again", writer_id=writer, sequence=entry.sequence)
        answer = self.tablet.append_as_leader(repeated + follower)
        assert answer.duplicate
        assert (answer.base_offset, answer.last_offset) == (entry.base_offset, entry.last_offset)
        assert answer.commit_timestamp_ms == entry.timestamp_ms

    @rule(writer=st.sampled_from(WRITERS), gap=st.sampled_from([1, 2, 100, -6, -50]))
    def append_out_of_order(self, writer: int, gap: int) -> None:
        sequence = self.last_sequence(writer) + 1 + gap
        if sequence < 0:
            return
        with pytest.raises(Conflict) as caught:
            self.tablet.append_as_leader(make_batch(1, writer_id=writer, sequence=sequence))
        assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION

    @rule(data=st.data())
    def append_damaged_bytes(self, data: st.DataObject) -> None:
        good = make_batch(2, b"x" * 30, magic=data.draw(st.integers(0, 2)))
        damaged = bytearray(good)
        damaged[data.draw(st.integers(25, len(good) - 1), "byte")] ^= data.draw(st.integers(1, 255), "mask")
        with pytest.raises(CorruptData):
            self.tablet.append_as_leader(good + bytes(damaged))
        with pytest.raises(CorruptData):
            self.tablet.append_as_leader(good + good[: data.draw(st.integers(1, len(good) - 1), "cut")])

    # ---- housekeeping

    @rule()
    def roll(self) -> None:
        self.tablet.roll()

    @rule()
    def sync(self) -> None:
        assert self.tablet.sync() == self.end
        self.synced = self.end

    @rule()
    def checkpoint(self) -> None:
        self.recovery_point = self.tablet.synced_offset
        assert self.synced <= self.recovery_point <= self.end

    @rule()
    def snapshot_writers(self) -> None:
        assert self.tablet.snapshot_writers()

    @rule(seconds=st.sampled_from([0.001, 1, 3600, 4 * 86400]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def expire_writers(self) -> None:
        before = len(self.writers)
        self.expire()
        assert self.tablet.expire_writers() == before - len(self.writers)

    @rule(data=st.data())
    def delete_old_segments(self, data: st.DataObject) -> None:
        upto = data.draw(st.integers(self.start, self.end), "upto")
        self.tablet.delete_segments_before(upto)
        assert self.tablet.log_start_offset <= max(upto, self.start)
        self.synced = self.tablet.synced_offset
        if self.tablet.log_start_offset > self.start:
            self.start = self.tablet.log_start_offset
            self.truncate_floor = self.end

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        floor = max(self.start, self.truncate_floor)
        if floor > self.end:
            return
        offset = data.draw(st.integers(floor, self.end), "offset")
        keep = [batch for batch in self.history if batch.next <= offset]
        new_end = keep[-1].next if keep else self.start
        if new_end < floor:
            return
        self.recovery_point = min(self.recovery_point, new_end)
        assert self.tablet.truncate_to(offset) == new_end
        if offset < self.end:
            self.history = keep
            self.replay()
            self.synced = min(self.synced, new_end)

    # ---- reading

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end), "offset")
        upper = data.draw(st.none() | st.integers(self.start, self.end + 3), "upper")
        max_bytes = data.draw(st.sampled_from([-1, 0, 1, 60, 200, 400, 10_000]), "max_bytes")
        at_least_one = data.draw(st.booleans(), "at_least_one")
        piece = self.tablet.read(offset, max_bytes, upper, min_one_batch=at_least_one)
        limit = self.end if upper is None else min(upper, self.end)
        wanted = [batch for batch in self.here if batch.next > offset and batch.next <= limit]
        got = [(header.base_offset, header.next_offset) for _, header in iter_headers(piece.data)]
        expected = [(batch.base, batch.next) for batch in wanted[: len(got)]]
        assert got == expected
        assert payloads(piece.data) == [batch.payload for batch in wanted[: len(got)]]
        total = sum(batch.size for batch in wanted[: len(got)])
        assert total == len(piece.data)
        if got:
            assert (piece.base_offset, piece.next_offset) == (got[0][0], got[-1][1])
            assert total <= max_bytes or (at_least_one and len(got) == 1)
        else:
            assert piece.next_offset == offset
            assert not wanted or (not at_least_one and wanted[0].size > max_bytes)
        rest = wanted[len(got) :]
        if got and rest:  # It stopped for a reason: the budget, or the end of a segment.
            is_segment_end = rest[0].base in [segment.base_offset for segment in self.tablet.segments()]
            assert is_segment_end or total + rest[0].size > max_bytes

    @rule(beyond=st.integers(1, 10))
    def read_outside(self, beyond: int) -> None:
        for offset in {self.end + beyond, self.start - beyond} - {EARLIEST_OFFSET}:
            with pytest.raises(InvalidRequest) as caught:
                self.tablet.read(offset, 100)
            assert caught.value.code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION

    @rule(data=st.data())
    def find_a_time(self, data: st.DataObject) -> None:
        times = sorted({batch.timestamp + step for batch in self.here for step in (-1, 0, 1)} | {0})
        time = data.draw(st.sampled_from(times), "time")
        found = [batch.base for batch in self.here if batch.timestamp >= time]
        assert self.tablet.offset_for_timestamp(time) == (found[0] if found else None)

    # ---- ends of the process

    @rule()
    def close_and_reopen(self) -> None:
        self.tablet.close()
        self.recovery_point = self.end
        self.damage_an_index()
        self.open(clean=True)

    @rule()
    def kill_and_reopen(self) -> None:
        self.fs = self.fs.kill()
        self.damage_an_index()
        self.open(clean=False)
        assert self.tablet.recovery.cut_bytes == 0

    @rule()
    def lose_power(self) -> None:
        self.fs = self.fs.crash()
        self.damage_an_index()
        self.reopen_with_losses()

    @rule(drop=st.booleans(), power=st.booleans())
    def fail_a_sync(self, drop: bool, power: bool) -> None:
        if self.synced == self.end:
            return
        self.fs.inject("sync", path_suffix=".log", effect="drop" if drop else "before")
        with pytest.raises(StorageFailure):
            self.tablet.sync()
        self.fs.clear_faults()
        for work in (self.tablet.sync, lambda: self.tablet.read(self.start, 1), self.tablet.roll):
            with pytest.raises(StorageFailure, match="offline"):
                work()
        self.fs = self.fs.crash() if power else self.fs.kill()
        self.reopen_with_losses()

    def reopen_with_losses(self) -> None:
        """After a loss of unsynced bytes: what is left is a beginning of the history with all that was synced."""
        tablet = LogTablet.open(
            self.fs, FOLDER, config=SMALL, clock=self.clock, recovery_point=self.recovery_point, clean_shutdown=False
        )
        assert self.synced <= self.tablet.synced_offset <= tablet.log_end_offset <= self.end
        self.history = [batch for batch in self.history if batch.next <= tablet.log_end_offset]
        assert tablet.log_end_offset == self.end
        self.tablet = tablet
        self.replay()
        self.synced = self.end

    def damage_an_index(self) -> None:
        entries = self.fs.list_directory(FOLDER)
        indexes = [e for e in entries if e.name.endswith((names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX))]
        for entry in indexes:
            path = f"{FOLDER}/{entry.name}"
            fate = self.random.choice(["keep", "flip", "cut", "remove"])
            if fate == "flip" and entry.size_bytes:
                self.fs.flip_byte(path, self.random.randrange(entry.size_bytes), 1 << self.random.randrange(8))
            elif fate == "cut":
                self.fs.set_content(path, self.fs.content(path)[: self.random.randint(0, entry.size_bytes)])
            elif fate == "remove":
                self.fs.remove(path)

    # ---- always

    @invariant()
    def offsets_and_writers_agree(self) -> None:
        if not hasattr(self, "tablet"):
            return
        assert (self.tablet.log_start_offset, self.tablet.log_end_offset) == (self.start, self.end)
        assert self.synced <= self.tablet.synced_offset <= self.end
        assert {key: list(value) for key, value in self.tablet.writer_states().items()} == self.writers

    @invariant()
    def all_batches_are_there_and_no_others(self) -> None:
        if not hasattr(self, "tablet"):
            return
        stored = [
            (header.base_offset, header.next_offset, header.commit_timestamp_ms, payloads(data)[0])
            for header, data in self.tablet.iterate_batches(EARLIEST_OFFSET)
        ]
        assert stored == [(batch.base, batch.next, batch.timestamp, batch.payload) for batch in self.here]


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=examples(60),
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
