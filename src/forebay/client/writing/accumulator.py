"""Batches pending to be sent, and the memory they take.

Nouns: a `Batch` is an encoded batch for one bucket on its way to the server; a `WriteTracker` follows the outcome of
all batches of one call or one buffered writer; the `Accumulator` holds a queue of batches for each bucket.

Rules: batches of one bucket are sent in the order in which they came. Unacknowledged batches count against
`client.writer.buffer.memory-size`; adding more blocks (back-pressure). Every batch completes: acknowledged, or
failed with an error that its tracker keeps until the caller asks for it.

Flow: `add` -> (sender) `take_ready` -> sent -> `complete`, `retry_later` or `fail`.

A batch that is sent twice is written once (`Idempotence`). The server assigns a *writer id*, which identifies this
client for all buckets. Within a bucket each batch has a *sequence*: 0, 1, 2, ... The server appends a batch whose
sequence is the last one plus one, acknowledges one that it remembers (the last five) as if it had just been written,
and rejects everything else (OUT_OF_ORDER_SEQUENCE). A batch is *in flight* from when it gets its sequence until it has
succeeded or failed permanently, including while it is pending a retry. As in Fluss's Java and Rust clients:

- A batch keeps id and sequence through retries: the first attempt may have been written.
- While a batch is being retried, only the first batch in flight is sent; new ones wait.
- A batch that the server certainly did not write returns its sequence: later ones in flight move down by one, and are
  retried when the server rejects them.
- When it is unknown whether a batch was written (out of retries, or the server lost the writer's state), later ones are
  uncertain, too: the client takes a new writer id and starts at 0.
- OUT_OF_ORDER_SEQUENCE for a batch at or below the last acknowledged one is a late response to an earlier attempt: the
  batch is written. For one that is not next in sequence, or if other batches have been acknowledged since it was sent,
  the predecessor caused the error: it is retried.

This module makes decisions and does no I/O. Prior art: RecordAccumulator, Sender and IdempotenceManager of Fluss, after
Kafka's. Unlike there, rows are encoded before they are queued, so batches are closed from the start; lingering happens
in forebay.client.writing.writer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from forebay.api.results import WriteResult
from forebay.base import threads
from forebay.base.ambient import Clock
from forebay.base.errors import ErrorCode, ForebayError, LimitExceeded, OutcomeUnknown, Unavailable, check
from forebay.base.quantity import format_bytes
from forebay.base.retrying import BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS, backoff
from forebay.client.counters import WriteCounters
from forebay.metadata.table import TableBucket, TablePath

NO_WRITER_ID = -1
NO_SEQUENCE = -1
_SEQUENCES = 1 << 31
"""Sequences wrap to 0 after 2^31 - 1."""


class SequencedBatch(Protocol):
    """The part of a batch that `Idempotence` uses."""

    bucket: TableBucket
    writer_id: int
    sequence: int
    sequence_was_reset: bool
    acknowledged_when_sent: int


class _BucketState:
    """One bucket's sequences, and its batches in flight in the order of their sequences."""

    __slots__ = ("acknowledged", "in_flight", "next_sequence")

    def __init__(self) -> None:
        self.next_sequence = 0
        self.acknowledged = NO_SEQUENCE
        self.in_flight: list[SequencedBatch] = []


class Idempotence:
    """The writer id of a client and the sequences of all buckets. Not thread-safe."""

    def __init__(self, in_flight_max: int) -> None:
        self._in_flight_max = in_flight_max
        self._buckets: dict[TableBucket, _BucketState] = {}
        self.writer_id = NO_WRITER_ID

    def _state(self, bucket: TableBucket) -> _BucketState:
        state = self._buckets.get(bucket)
        if state is None:
            state = self._buckets[bucket] = _BucketState()
        return state

    def may_send(self, batch: SequencedBatch) -> bool:
        """Whether `batch`, the first in its bucket's queue, may be sent now."""
        in_flight = self._state(batch.bucket).in_flight
        if not in_flight or in_flight[0] is batch:
            return True
        if batch.sequence != NO_SEQUENCE:
            # One of the batches being retried, but not the first of them. Of an earlier writer id: send it, it fails.
            return batch.writer_id != self.writer_id
        return len(in_flight) < self._in_flight_max

    def begin(self, batch: SequencedBatch) -> None:
        """Assign writer id and sequence to a batch about to be sent, unless it has them from an earlier attempt."""
        state = self._state(batch.bucket)
        if batch.sequence == NO_SEQUENCE:
            check(self.writer_id != NO_WRITER_ID, "a batch is sent before there is a writer id")
            batch.writer_id, batch.sequence = self.writer_id, state.next_sequence
            state.next_sequence = (state.next_sequence + 1) % _SEQUENCES
            state.in_flight.append(batch)
        batch.acknowledged_when_sent = state.acknowledged

    def succeeded(self, batch: SequencedBatch) -> None:
        """Mark a batch as written."""
        if batch.writer_id != self.writer_id:
            return
        state = self._state(batch.bucket)
        if state.acknowledged == NO_SEQUENCE or _is_behind(state.acknowledged, batch.sequence):
            state.acknowledged = batch.sequence
        _remove(state, batch)

    def failed(self, batch: SequencedBatch, code: int, certain: bool) -> None:
        """Mark a batch as failed permanently with error `code`.

        `certain` means that the server has responded and did not write it.
        """
        if batch.writer_id != self.writer_id or batch.sequence == NO_SEQUENCE:
            return
        if code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION, ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION):
            self.reset()
            return
        state = self._state(batch.bucket)
        if not _remove(state, batch):
            return
        if not certain:
            self.reset()
            return
        state.next_sequence = (state.next_sequence - 1) % _SEQUENCES
        for later in state.in_flight:
            if _is_behind(batch.sequence, later.sequence):
                later.sequence = (later.sequence - 1) % _SEQUENCES
                later.sequence_was_reset = True

    def is_written(self, batch: SequencedBatch) -> bool:
        """Whether a later batch of the bucket has been acknowledged, which implies that this one was written."""
        if batch.writer_id != self.writer_id:
            return False
        acknowledged = self._state(batch.bucket).acknowledged
        return acknowledged != NO_SEQUENCE and not _is_behind(acknowledged, batch.sequence)

    def may_retry(self, batch: SequencedBatch, code: int) -> bool:
        """Whether another batch caused a sequence error, so that this one has to be retried."""
        if self.writer_id == NO_WRITER_ID:
            return False
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION:
            acknowledged = self._state(batch.bucket).acknowledged
            is_next = batch.sequence == (acknowledged + 1) % _SEQUENCES
            return batch.sequence_was_reset or not is_next or acknowledged != batch.acknowledged_when_sent
        return code == ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION and batch.sequence_was_reset

    def reset(self) -> None:
        """Discard the writer id and all sequences; the next batch needs a new id."""
        self.writer_id = NO_WRITER_ID
        self._buckets.clear()

    def forget(self, bucket: TableBucket) -> None:
        """Discard the state of a bucket that no longer exists."""
        self._buckets.pop(bucket, None)


def _is_behind(sequence: int, other: int) -> bool:
    """Whether `sequence` comes before `other`, allowing for wraparound."""
    return 0 < (other - sequence) % _SEQUENCES < _SEQUENCES // 2


def _remove(state: _BucketState, batch: SequencedBatch) -> bool:
    for place, other in enumerate(state.in_flight):
        if other is batch:
            del state.in_flight[place]
            return True
    return False


NOT_WRITTEN = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
        ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_EXCEPTION,
        ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION,
        ErrorCode.DISK_WRITE_LOCKED,
        ErrorCode.PARTITION_NOT_EXISTS,
    }
)
"""Transient errors with which a server states that it has not written the batch."""


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The common properties of the batches of one request."""

    path: TablePath
    table_id: int
    is_kv: bool
    columns: tuple[int, ...] = ()
    """Positions of the columns that a partial update writes; empty for whole rows."""
    overwrite: bool = False
    """Whether rows replace existing ones, whatever the table's merge engine is."""


class Batch:
    """An encoded batch for one bucket. Belongs to the accumulator, whose lock guards it."""

    __slots__ = (
        "acknowledged_when_sent",
        "added_at",
        "attempts",
        "bucket",
        "data",
        "last_error",
        "may_be_written",
        "not_before",
        "partition",
        "rows",
        "sequence",
        "sequence_was_reset",
        "size",
        "target",
        "ticket",
        "trace",
        "tracker",
        "writer_id",
    )

    def __init__(
        self,
        target: WriteTarget,
        bucket: TableBucket,
        data: bytearray,
        rows: int,
        tracker: WriteTracker,
        partition: str | None = None,
    ) -> None:
        self.target = target
        self.bucket = bucket
        self.partition = partition
        """The name of the bucket's partition: rows belong to a name, whatever its current id."""
        self.data = data
        self.size = len(data)
        self.rows = rows
        self.tracker = tracker
        self.writer_id = NO_WRITER_ID
        self.sequence = NO_SEQUENCE
        self.sequence_was_reset = False
        self.acknowledged_when_sent = NO_SEQUENCE
        self.attempts = 0
        self.ticket = 0
        self.may_be_written = False
        """Whether the outcome of an attempt is unknown."""
        self.added_at = 0.0
        self.not_before = 0.0
        self.last_error: ForebayError | None = None
        self.trace: tuple[Any, int] | None = None
        """The context of its writer and the time in ns, if there are spans, until it is sent."""

    @property
    def home(self) -> tuple[int, int, str] | None:
        """Table, bucket and partition name, which stay the same when the partition is recreated; None without
        partitions.
        """
        return None if self.partition is None else (self.bucket.table_id, self.bucket.bucket, self.partition)


class WriteTracker:
    """Tracks the batches of one call or writer: how many are in flight, what was written, what failed."""

    def __init__(self) -> None:
        self._condition = threads.condition()
        self._begun = 0
        self._under_way: set[int] = set()
        self._rows = 0
        self._batches = 0
        self._end_offsets: dict[TableBucket, int] = {}
        self._rows_lost = 0
        self._rows_unknown = 0
        self._error: ForebayError | None = None

    @property
    def error(self) -> ForebayError | None:
        """The first error, or the first `OutcomeUnknown` if there is one, with the outcome of the rows."""
        with self._condition:
            error = self._error
            if error is None:
                return None
            lost = f"{self._rows_lost} rows were not written" if self._rows_lost else ""
            unknown = f"{self._rows_unknown} rows may or may not be written" if self._rows_unknown else ""
            row_counts = ", ".join(filter(None, (lost, unknown)))
            return type(error)(f"{error.message} ({row_counts}; {self._rows} were written)", error.code)

    def begun(self, batch: Batch) -> None:
        with self._condition:
            self._begun += 1
            batch.ticket = self._begun
            self._under_way.add(batch.ticket)

    def written(self, batch: Batch, end_offset: int | None) -> None:
        """Record an acknowledged batch. `end_offset` follows its last record; None if the response has no offset."""
        with self._condition:
            self._rows += batch.rows
            self._batches += 1
            if end_offset is not None and end_offset > self._end_offsets.get(batch.bucket, -1):
                self._end_offsets[batch.bucket] = end_offset
            self._end_one(batch)

    def lost(self, batch: Batch, error: ForebayError) -> None:
        """Mark a batch as failed permanently; with `OutcomeUnknown` if an attempt may have been written."""
        with self._condition:
            if batch.may_be_written and not isinstance(error, OutcomeUnknown):
                error = OutcomeUnknown(
                    f"{error.message}. The server may have written the batch or not: read the table before you write "
                    "these rows again",
                    error.code,
                )
            if isinstance(error, OutcomeUnknown):
                self._rows_unknown += batch.rows
                self._error = self._error if isinstance(self._error, OutcomeUnknown) else error
            else:
                self._rows_lost += batch.rows
                self._error = self._error or error
            self._end_one(batch)

    def refused(self, error: ForebayError, rows: int) -> None:
        """Record rows that could not be encoded in the sender's thread, where no caller can get the error."""
        with self._condition:
            self._rows_lost += rows
            self._error = self._error or error

    def _end_one(self, batch: Batch) -> None:
        self._under_way.discard(batch.ticket)
        self._condition.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for all batches started before this call; False if `timeout` seconds pass first.

        Later batches are not waited for, so a writer that other threads keep busy can still be flushed.
        """
        with self._condition:
            last = self._begun
            return self._condition.wait_for(lambda: min(self._under_way, default=last + 1) > last, timeout)

    def result(self) -> WriteResult:
        """The rows written so far."""
        with self._condition:
            return WriteResult(self._rows, self._batches, dict(self._end_offsets))


class Accumulator:
    """The queues of batches. Thread-safe; `changed` is notified when there may be something to send."""

    def __init__(
        self,
        clock: Clock,
        idempotence: Idempotence | None,
        *,
        memory_bytes: int,
        wait_seconds: float,
        in_flight_max: int,
        delivery_seconds: float,
        throttle_seconds_max: float,
        counters: WriteCounters | None = None,
    ) -> None:
        self._clock = clock
        self.idempotence = idempotence
        self.lock = threads.rlock()
        self.changed = threads.condition(self.lock)
        self._memory_freed = threads.condition(self.lock)
        self._memory_bytes = memory_bytes
        self._wait_seconds = wait_seconds
        self._in_flight_max = in_flight_max
        self._delivery_seconds = delivery_seconds
        self._throttle_seconds_max = throttle_seconds_max
        self._queues: dict[TableBucket, deque[Batch]] = {}
        self._homes: dict[tuple[int, int, str], TableBucket] = {}
        """By `Batch.home`: the bucket where its batches are queued or in flight, so that they stay in order."""
        self._in_flight: dict[TableBucket, list[Batch]] = {}
        self._throttled: dict[TableBucket, float] = {}
        self._used = 0
        self.counters = counters or WriteCounters()
        self._closed: ForebayError | None = None

    @property
    def used_bytes(self) -> int:
        """Bytes of all unfinished batches."""
        return self._used

    @property
    def unfinished(self) -> int:
        """The number of unfinished batches."""
        return sum(1 for _ in self._all())

    @property
    def is_empty(self) -> bool:
        """Whether all batches are finished."""
        return next(self._all(), None) is None

    def _all(self) -> Iterator[Batch]:
        """The unfinished batches: queued or in flight."""
        return chain(*self._queues.values(), *self._in_flight.values())

    # ---- writers' side ----------------------------------------------------------------------------------------------

    def add(self, batch: Batch, wait: bool = True) -> None:
        """Queue a batch; with `wait`, block until there is memory for it.

        Raises `LimitExceeded` if there is none within `client.writer.buffer.wait-timeout`, and `Unavailable`
        when the connection is closed.
        """
        with self.lock:
            if wait:
                self._wait_for_memory(batch)
            if self._closed is not None:
                raise self._closed
            batch.added_at = self._clock.monotonic()
            self._keep_in_order(batch)
            queue = self._queues.setdefault(batch.bucket, deque())
            try:
                # First: Ctrl-C may arrive between any two steps, and a batch that was counted but is not queued would
                # be waited for forever.
                queue.append(batch)
                batch.tracker.begun(batch)
                self._used += batch.size
            except BaseException:
                self._used = sum(each.size for each in self._all())
                raise
            finally:
                self.changed.notify_all()

    def _keep_in_order(self, batch: Batch) -> None:
        """Queue a batch behind the unfinished ones of its partition's name, which may still have the old id.

        If the partition was dropped and recreated, `move` takes all of them to the new one, in this order.
        """
        if batch.home is None:
            return
        bucket = self._homes.get(batch.home, batch.bucket)
        if self._queues.get(bucket) or self._in_flight.get(bucket):
            batch.bucket = bucket
        self._homes[batch.home] = batch.bucket

    def _wait_for_memory(self, batch: Batch) -> None:
        def is_free() -> bool:
            # A batch larger than the whole buffer is sent alone.
            return self._closed is not None or self._used == 0 or self._used + batch.size <= self._memory_bytes

        if is_free():
            return
        limit = None if self._wait_seconds == float("inf") else self._wait_seconds
        counters, began = self.counters, self._clock.monotonic()
        counters.waiting_threads += 1
        try:
            is_freed = self._memory_freed.wait_for(is_free, limit)
        finally:
            counters.waiting_threads -= 1
            counters.waited_seconds += self._clock.monotonic() - began
        if not is_freed:
            raise LimitExceeded(
                f"no room for a batch of {format_bytes(batch.size)} for table {batch.target.path} within "
                f"{self._wait_seconds:g} s: {format_bytes(self._used)} are not acknowledged yet. Write more slowly, or "
                "raise 'client.writer.buffer.memory-size' or 'client.writer.buffer.wait-timeout'",
                ErrorCode.CLIENT_ERROR,
            )

    # ---- the sender's side ------------------------------------------------------------------------------------------

    def take_ready(
        self, leader_of: Callable[[TableBucket], int | None], request_bytes_max: int
    ) -> tuple[dict[tuple[int, WriteTarget], list[Batch]], list[Batch], float | None]:
        """Take the batches that can be sent now, at most one per bucket.

        Returns them by (server, target); the first batches of buckets whose leader is unknown; and the seconds until
        more may become ready (None: never).
        """
        now = self._clock.monotonic()
        ready: dict[tuple[int, WriteTarget], list[Batch]] = {}
        sizes: dict[tuple[int, WriteTarget], int] = {}
        leaderless: list[Batch] = []
        wake_at: float | None = None
        for bucket, queue in self._queues.items():
            if not queue:
                continue
            batch = queue[0]
            waits_until = max(batch.not_before, self._throttled.get(bucket, 0.0))
            if waits_until > now:
                wake_at = waits_until if wake_at is None else min(wake_at, waits_until)
                continue
            if not self._may_send(batch):
                continue
            server = leader_of(bucket)
            if server is None:
                leaderless.append(batch)
                continue
            key = (server, batch.target)
            if key in ready and sizes[key] + batch.size > request_bytes_max:
                wake_at = now
                continue
            ready.setdefault(key, []).append(queue.popleft())
            sizes[key] = sizes.get(key, 0) + batch.size
            if not batch.attempts:
                self.counters.last_queue_seconds = now - batch.added_at
                self.counters.queue_times.observe(now - batch.added_at)
            self._begin(batch)
        return ready, leaderless, None if wake_at is None else max(wake_at - now, 0.0)

    def _may_send(self, batch: Batch) -> bool:
        if self.idempotence is not None:
            if self.idempotence.writer_id == NO_WRITER_ID and batch.sequence == NO_SEQUENCE:
                return False
            return self.idempotence.may_send(batch)
        return len(self._in_flight.get(batch.bucket, ())) < self._in_flight_max

    def _begin(self, batch: Batch) -> None:
        batch.attempts += 1
        self._in_flight.setdefault(batch.bucket, []).append(batch)
        if self.idempotence is not None:
            self.idempotence.begin(batch)

    def needs_writer_id(self) -> list[TablePath]:
        """The tables that need a writer id; none if there is one, or nothing to send."""
        if self.idempotence is None or self.idempotence.writer_id != NO_WRITER_ID:
            return []
        return list({queue[0].target.path for queue in self._queues.values() if queue})

    def complete(self, batch: Batch, end_offset: int | None) -> None:
        """Mark a sent batch as written."""
        if self.idempotence is not None:
            self.idempotence.succeeded(batch)
        self._sent_one_less(batch)
        self._end(batch)
        counters = self.counters
        counters.batches += 1
        counters.rows += batch.rows
        counters.bytes += batch.size
        counters.last_seconds = self._clock.monotonic() - batch.added_at
        counters.times.observe(counters.last_seconds)
        batch.tracker.written(batch, end_offset)

    def retry_later(self, batch: Batch, error: ForebayError) -> None:
        """Requeue a sent batch, in sequence order, to be retried after a pause."""
        self._sent_one_less(batch)
        self.counters.retries[error.code] = self.counters.retries.get(error.code, 0) + 1
        self.counters.retried_rows += batch.rows
        batch.last_error = error
        batch.not_before = self._clock.monotonic() + backoff(batch.attempts, BACKOFF_FIRST_SECONDS, BACKOFF_MAX_SECONDS)
        queue = self._queues.setdefault(batch.bucket, deque())
        place = 0
        if self.idempotence is not None:
            # Sequences never wrap within the few batches in flight that can stand here.
            while place < len(queue) and queue[place].sequence != NO_SEQUENCE:
                if queue[place].writer_id == batch.writer_id and queue[place].sequence > batch.sequence:
                    break
                place += 1
        queue.insert(place, batch)
        self.changed.notify_all()

    def move(self, bucket: TableBucket, partition_id: int) -> bool:
        """Move the queued batches of a bucket whose partition is gone to the same bucket of another partition.

        They go ahead of what is queued there and behind what was sent there, with new sequences. False, and nothing is
        moved, while batches of the bucket are in flight: these return first, and go ahead of the others.
        """
        if self._in_flight.get(bucket):
            return False
        batches = self._queues.pop(bucket, deque())
        self._throttled.pop(bucket, None)
        if self.idempotence is not None:
            self.idempotence.forget(bucket)
        for batch in batches:
            batch.bucket = bucket._replace(partition_id=partition_id)
            batch.writer_id, batch.sequence = NO_WRITER_ID, NO_SEQUENCE
            batch.sequence_was_reset, batch.acknowledged_when_sent = False, NO_SEQUENCE
            batch.not_before = 0.0
            if batch.home is not None:
                self._homes[batch.home] = batch.bucket
        if batches:
            queue = self._queues.setdefault(batches[0].bucket, deque())
            sent = [queue.popleft() for _ in range(sum(batch.sequence != NO_SEQUENCE for batch in queue))]
            queue.extendleft(reversed([*sent, *batches]))
            self.changed.notify_all()
        return True

    def fail(self, batch: Batch, error: ForebayError, *, certain: bool) -> None:
        """Mark a sent batch as failed permanently; `certain` means that the server did not write it."""
        if self.idempotence is not None:
            self.idempotence.failed(batch, error.code, certain)
        self._sent_one_less(batch)
        self._lose(batch, error)

    def _lose(self, batch: Batch, error: ForebayError) -> None:
        self._end(batch)
        self.counters.failures[error.code] = self.counters.failures.get(error.code, 0) + 1
        batch.tracker.lost(batch, error)

    def fail_queued(self, batches: Iterable[Batch], error: ForebayError) -> None:
        """Fail queued batches. A batch that was sent before may have been written."""
        for batch in list(batches):
            queue = self._queues.get(batch.bucket)
            if queue is None or batch not in queue:
                continue
            queue.remove(batch)
            if self.idempotence is not None:
                self.idempotence.failed(batch, error.code, certain=False)
            self._lose(batch, error)

    def queued(self, matches: Callable[[Batch], bool]) -> list[Batch]:
        """The queued batches for which `matches` holds."""
        return [batch for queue in self._queues.values() for batch in queue if matches(batch)]

    def expire(self) -> float | None:
        """Fail queued batches whose delivery timed out; returns the seconds until the next one may."""
        now = self._clock.monotonic()
        oldest = min((queue[0].added_at for queue in self._queues.values() if queue), default=None)
        if oldest is None:
            return None
        if oldest + self._delivery_seconds <= now:
            for batch in self.queued(lambda b: b.added_at + self._delivery_seconds <= now):
                why = f" The last error was: {batch.last_error}" if batch.last_error is not None else ""
                self.fail_queued(
                    [batch],
                    Unavailable(
                        f"a batch for bucket {batch.bucket.bucket} of table {batch.target.path} was not acknowledged "
                        f"within {self._delivery_seconds:g} s ('client.writer.delivery-timeout').{why}",
                        ErrorCode.REQUEST_TIME_OUT,
                    ),
                )
        return max(oldest + self._delivery_seconds - now, 0.0)

    def throttle(self, bucket: TableBucket, pressure: float) -> None:
        """Pause a bucket; the pause grows with the server's `pressure` (1: it has refused a batch)."""
        seconds = self._throttle_seconds_max * min(max(pressure, 0.0), 1.0) ** 2
        if seconds > 0.001:
            self._throttled[bucket] = self._clock.monotonic() + seconds
        else:
            self._throttled.pop(bucket, None)

    def close(self, error: ForebayError) -> None:
        """Accept no more batches."""
        with self.lock:
            self._closed = self._closed or error
            self._memory_freed.notify_all()
            self.changed.notify_all()

    def _sent_one_less(self, batch: Batch) -> None:
        sent = self._in_flight.get(batch.bucket, [])
        if batch in sent:
            sent.remove(batch)
        if not sent:
            self._in_flight.pop(batch.bucket, None)

    def _end(self, batch: Batch) -> None:
        self._used -= batch.size
        queue = self._queues.get(batch.bucket)
        if queue is not None and not queue and batch.bucket not in self._in_flight:
            del self._queues[batch.bucket]
            if batch.home is not None:
                self._homes.pop(batch.home, None)
        self._memory_freed.notify_all()
        self.changed.notify_all()
