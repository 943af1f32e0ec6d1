"""Writer id and batch sequences: how a batch that is sent twice is written once.

Nouns: the *writer id* is given out by the server and names this client for all buckets. Within a bucket each batch has
a *sequence*: 0, 1, 2, ... The server appends a batch whose sequence is the last one plus one, answers one that it
remembers (the last five) as if it had just been written, and refuses everything else (OUT_OF_ORDER_SEQUENCE).
A batch is *in flight* from when it gets its sequence until it has succeeded or failed for good, also while it waits to
be sent again.

Rules, as in Fluss's Java and Rust clients:

- A batch keeps id and sequence through retries: the first attempt may have been written.
- While a batch is being retried, only the first batch in flight is sent; new ones wait.
- A batch that the server certainly did not write gives its sequence back: later ones in flight move down by one, and
  are sent again when the server refuses them.
- When it is unknown whether a batch was written (out of retries, or the server lost the writer's state), nothing
  certain can be said of later ones either: the client takes a new writer id and begins at 0.
- OUT_OF_ORDER_SEQUENCE for a batch at or below the last acknowledged one is a late answer to an earlier attempt: the
  batch is written. For one that is not next in line, or when acknowledgements have moved on since it was sent,
  the predecessor was to blame: it is sent again.

This module decides and does no I/O; the caller holds a lock. Prior art: IdempotenceManager of Fluss, which follows
Kafka's TransactionManager.
"""

from __future__ import annotations

from typing import Protocol

from forebay.base.errors import ErrorCode, check
from forebay.metadata.table import TableBucket

NO_WRITER_ID = -1
NO_SEQUENCE = -1
_SEQUENCES = 1 << 31
"""After sequence 2^31 - 1 comes 0."""


class SequencedBatch(Protocol):
    """What this module knows of a batch."""

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
        """Whether `batch`, the first of its bucket's queue, may be sent now."""
        in_flight = self._state(batch.bucket).in_flight
        if not in_flight or in_flight[0] is batch:
            return True
        if batch.sequence != NO_SEQUENCE:
            # One of the batches being retried, but not the first of them. Of an earlier writer id: send it, it fails.
            return batch.writer_id != self.writer_id
        return len(in_flight) < self._in_flight_max

    def begin(self, batch: SequencedBatch) -> None:
        """Give a batch, about to be sent, its id and sequence, unless it has them from an earlier attempt."""
        state = self._state(batch.bucket)
        if batch.sequence == NO_SEQUENCE:
            check(self.writer_id != NO_WRITER_ID, "a batch is sent before there is a writer id")
            batch.writer_id, batch.sequence = self.writer_id, state.next_sequence
            state.next_sequence = (state.next_sequence + 1) % _SEQUENCES
            state.in_flight.append(batch)
        batch.acknowledged_when_sent = state.acknowledged

    def succeeded(self, batch: SequencedBatch) -> None:
        """Take note that a batch is written."""
        if batch.writer_id != self.writer_id:
            return
        state = self._state(batch.bucket)
        if state.acknowledged == NO_SEQUENCE or _is_behind(state.acknowledged, batch.sequence):
            state.acknowledged = batch.sequence
        _remove(state, batch)

    def failed(self, batch: SequencedBatch, code: int, certain: bool) -> None:
        """Take note that a batch failed for good with error `code`.

        `certain` says that the server has answered and did not write it.
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
        """Whether a later batch of the bucket has been acknowledged, which tells that this one was written."""
        if batch.writer_id != self.writer_id:
            return False
        acknowledged = self._state(batch.bucket).acknowledged
        return acknowledged != NO_SEQUENCE and not _is_behind(acknowledged, batch.sequence)

    def may_retry(self, batch: SequencedBatch, code: int) -> bool:
        """Whether a sequence error was the fault of another batch, so that this one is to be sent again."""
        if self.writer_id == NO_WRITER_ID:
            return False
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION:
            acknowledged = self._state(batch.bucket).acknowledged
            is_next = batch.sequence == (acknowledged + 1) % _SEQUENCES
            return batch.sequence_was_reset or not is_next or acknowledged != batch.acknowledged_when_sent
        return code == ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION and batch.sequence_was_reset

    def reset(self) -> None:
        """Forget the writer id and all sequences; the next batch needs a new id."""
        self.writer_id = NO_WRITER_ID
        self._buckets.clear()

    def forget(self, bucket: TableBucket) -> None:
        """Forget a bucket that does not exist any more."""
        self._buckets.pop(bucket, None)


def _is_behind(sequence: int, other: int) -> bool:
    """Whether `sequence` comes before `other`, around the end of the numbers."""
    return 0 < (other - sequence) % _SEQUENCES < _SEQUENCES // 2


def _remove(state: _BucketState, batch: SequencedBatch) -> bool:
    for place, other in enumerate(state.in_flight):
        if other is batch:
            del state.in_flight[place]
            return True
    return False
