"""One primary-key bucket under faults: a writer that retries, a disk that fails, power losses.

Everything random comes from one seed, everything else is production code: `LogTablet` and `KvTablet` over
`FaultyFileSystem`. The writer is idempotent (a writer id, sequences) and resends a batch until it is acknowledged, as
clients do. After every restart the checker requires:

- every batch that was acknowledged with acks=all is in the log, whole, once, in order; - offsets have no gap, and the
log is a prefix of what was sent; - the state is exactly what the changelog says, and so is the row count; - a batch
that is resent after a lost response is not written twice; - changelog that retention removed is not missed: a surviving
checkpoint replaces it; - a flipped bit in what was written before a kill is damage: nothing is cut.
"""

from __future__ import annotations

import random
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import CorruptData, ForebayError, StorageFailure
from forebay.codec.log.header import CRC_OFFSETS, iter_headers
from forebay.fs import names
from forebay.kv.tablet import KvTablet
from forebay.log.config import LogConfig
from forebay.log.log_ends import LogEnds
from forebay.log.tablet import LogTablet
from forebay.metadata.table import TableBucket
from tests.fs.faulty_fs import FaultyFileSystem
from tests.kv.memory_engine import MemoryEngine
from tests.kv.tables import FakeTable

WRITER = 7
BUCKET = TableBucket(1, 0)
FAULTS = ("append", "sync", "truncate", "open")


@dataclass
class Sent:
    """A batch of the writer: rows (None: delete) by key, and whether it was acknowledged."""

    sequence: int
    rows: dict[int, str | None]
    acked: bool = False


@dataclass
class TabletSimulation:
    """A run; `trace` tells what happened, for comparing two runs of one seed."""

    seed: int
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.clock = ManualClock()
        self.table = FakeTable()
        self.fs = FaultyFileSystem(random.Random(self.rng.random()))
        self.sent: list[Sent] = []
        self.recovery_point = 0
        self.checkpoint = MemoryEngine()
        self.engine = copy(self.checkpoint)
        self.boot = 1
        self._open()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            action = self.rng.choices(
                (
                    self.write,
                    self.write_group,
                    self.fail_something,
                    self.save_recovery_point,
                    self.expire,
                    self.kill,
                    self.lose_power,
                    self.kill_and_rot,
                ),
                weights=(10, 4, 2, 2, 2, 1, 2, 1),
            )[0]
            action()
            self.clock.advance(self.rng.random())
        self.fs.clear_faults()
        self.lose_power()

    # ---- actions ----------------------------------------------------------------------------------------------------

    def write(self) -> None:
        self._send([self._next_batch()])

    def write_group(self) -> None:
        """Several batches at once, as when they queue up behind a slow one."""
        self._send([self._next_batch() for _ in range(self.rng.randint(2, 4))])

    def fail_something(self) -> None:
        operation = self.rng.choice(FAULTS)
        effect = self.rng.choice(("before", "after", "partial") if operation == "append" else ("before", "after"))
        self.fs.inject(operation, "/log", on_call=self.rng.randint(1, 3), effect=effect)
        self.trace.append(f"fault {operation} {effect}")

    def save_recovery_point(self) -> None:
        if self.rng.random() < 0.5:
            self.ends.sync()
        else:
            self.recovery_point = self.log.synced_offset

    def expire(self) -> None:
        """A checkpoint of the state, which counts once the log is synced; then old segments go, as far as it allows."""
        checkpoint = copy(self.engine)
        try:
            self.log.sync()
            self.checkpoint = checkpoint
            limit = self.rng.randint(0, checkpoint.state.applied_offset)
            self.trace.append(f"expired {self.log.delete_segments_before(limit)} segments")
        except StorageFailure as e:
            self.trace.append(f"expiry: {type(e).__name__}")

    def kill(self) -> None:
        """The process dies; what it wrote is in the page cache. The engine may have lost its last steps or all."""
        self.trace.append("kill")
        self.fs = self.fs.kill()
        if self.rng.random() < 0.5:
            self.engine = copy(self.checkpoint)
        self._reopen()

    def kill_and_rot(self) -> None:
        """A bit of what the killed process has written is flipped: in any batch, above the recovery point or not."""
        written = self.log.log_end_offset
        self.fs = self.fs.kill()
        self.fs.clear_faults()
        paths = [entry.name for entry in self.fs.list_directory("/log") if entry.name.endswith(names.LOG_SUFFIX)]
        path = f"/log/{self.rng.choice(paths)}"
        batches = list(iter_headers(self.fs.content(path), allow_truncated=True))
        # Below the recovery point only reads find it; a failed append may have left bytes behind the end.
        batches = [b for b in batches if self.recovery_point <= b[1].base_offset < written]
        if not self.log.is_offline and batches:
            position, header = self.rng.choice(batches)
            # From the checksum on: what is before it is known from the neighbours, or checked by nothing.
            position += self.rng.randrange(CRC_OFFSETS[header.magic], header.size_bytes)
            mask = 1 << self.rng.randrange(8)
            self.fs.flip_byte(path, position, mask, everywhere=True)
            self.trace.append(f"rot in batch {header.batch_sequence}")
            with pytest.raises(CorruptData, match="this is damage, and nothing was cut"):
                self._open()
            self.fs = self.fs.kill()
            self.fs.flip_byte(path, position, mask, everywhere=True)
        self._reopen()

    def lose_power(self) -> None:
        self.trace.append("power loss")
        self.boot += 1
        self.fs = self.fs.crash()
        self.engine = copy(self.checkpoint)
        self._reopen()

    # ---- machinery --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        config = LogConfig(segment_bytes=3000, index_interval_bytes=200)
        self.fs.make_directories("/data")
        self.ends = LogEnds.open(self.fs, "/data", frozenset({f"boot {self.boot}"}), lambda bucket: True, self.clock)
        self.log = LogTablet.open(
            self.fs,
            "/log",
            config=config,
            clock=self.clock,
            recovery_point=self.recovery_point,
            known_end=self.ends.stored_marks(BUCKET),
            marks=self.ends.marks(BUCKET),
        )
        if self.engine.state.applied_offset > self.log.log_end_offset:
            self.engine = copy(self.checkpoint)
        self.tablet = KvTablet(self.table, self.log, self.engine, lambda count: count)
        self.tablet.recover()

    def _reopen(self) -> None:
        self.fs.clear_faults()
        self._open()
        self.check()
        unacked = [batch for batch in self.sent if not batch.acked]
        if unacked:  # the writer never got an answer to these: it sends them again, in order
            self._send(unacked)
        self.check()

    def _next_batch(self) -> Sent:
        keys = self.rng.sample(range(12), self.rng.randint(1, 4))
        sequence = len(self.sent)
        rows = {key: None if self.rng.random() < 0.25 else f"v{sequence}-{self.rng.randrange(99)}" for key in keys}
        batch = Sent(sequence, rows)
        self.sent.append(batch)
        return batch

    def _send(self, batches: list[Sent]) -> None:
        """Send batches and all unacknowledged ones before them, in order; take note of what is acknowledged."""
        first = min(batch.sequence for batch in batches)
        pending = [batch for batch in self.sent if not batch.acked and batch.sequence < first] + batches
        requests = [
            self.table.request(
                [{"id": key, "name": name} for key, name in batch.rows.items()],
                [name is None for name in batch.rows.values()],
                writer_id=WRITER,
                sequence=batch.sequence,
            )
            for batch in pending
        ]
        for batch, result in zip(pending, self.tablet.put_group(requests)):
            self.trace.append(f"put {batch.sequence} -> {result.log_end_offset}")
            if result.error is None and self.rng.random() < 0.9:  # otherwise the answer is lost on its way
                batch.acked = True
            elif result.error is not None:
                self.trace.append(type(result.error).__name__)

    # ---- the checker ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        sequences, offset, rows = [], self.log.log_start_offset, {}
        for header, _ in self.log.iterate_batches(offset):
            assert header.base_offset == offset, f"seed {self.seed}: gap at offset {offset}"
            offset = header.next_offset
            sequences.append(header.batch_sequence)
        count = self._batches_written()
        first = count - len(sequences)
        assert sequences == list(range(first, count)), f"seed {self.seed}: batches {sequences}"
        assert first == 0 or self.log.log_start_offset > 0, f"seed {self.seed}: the first {first} batches are missing"
        for batch in self.sent:
            assert not batch.acked or batch.sequence < count, f"seed {self.seed}: lost batch {batch.sequence}"
        for batch in self.sent[:count]:
            for key, name in batch.rows.items():
                if name is None:
                    rows.pop(key, None)
                else:
                    rows[key] = name
        assert self.state() == rows, f"seed {self.seed}: state"
        assert self.tablet.row_count == len(rows), f"seed {self.seed}: row count"
        assert self.tablet.applied_offset == self.log.log_end_offset == offset

    def _batches_written(self) -> int:
        """How many batches are in the log or were, by what it knows of their writer."""
        remembered = self.log.writer_states().get(WRITER)
        return remembered[-1].sequence + 1 if remembered else 0

    def state(self) -> dict[int, Any]:
        values = [value[4:] for value in self.tablet.first_values(1000)]
        return {row["id"]: row["name"] for row in self.table.rows_of_values(values)}


def simulate(seed: int, steps: int = 25) -> TabletSimulation:
    """Run one seed; raises `AssertionError` naming it when a promise is broken."""
    simulation = TabletSimulation(seed)
    try:
        simulation.run(steps)
    except ForebayError as e:
        raise AssertionError(f"seed {seed}: {e}") from e
    return simulation
