"""Writer id and batch sequences: a batch that is sent twice is written once.

Nouns: the *writer id* is assigned by the server and identifies this client for all buckets. Within a bucket each batch
has a *sequence*: 0, 1, 2, ... The server appends a batch whose sequence is the last one plus one, acknowledges one that
it remembers (the last five) as if it had just been written, and rejects everything else (OUT_OF_ORDER_SEQUENCE). A
batch is *in flight* from when it gets its sequence until it has succeeded or failed permanently, including while it is
pending a retry.

Rules, as in Fluss's Java and Rust clients:

- A batch keeps id and sequence through retries: the first attempt may have been written.
- While a batch is being retried, only the first batch in flight is sent; new ones wait.
- A batch that the server certainly did not write returns its sequence: later ones in flight move down by one, and are
  retried when the server rejects them.
- When it is unknown whether a batch was written (out of retries, or the server lost the writer's state), later ones are
  uncertain, too: the client takes a new writer id and starts at 0.
- OUT_OF_ORDER_SEQUENCE for a batch at or below the last acknowledged one is a late response to an earlier attempt: the
  batch is written. For one that is not next in sequence, or if other batches have been acknowledged since it was sent,
  the predecessor caused the error: it is retried.

This module makes decisions and does no I/O; the caller holds a lock. Prior art: IdempotenceManager of Fluss, which
follows Kafka's TransactionManager.
"""

from __future__ import annotations

from typing import Protocol

from forebay.base.errors import ErrorCode, check
from forebay.metadata.table import TableBucket

NO_WRITER_ID = -1
NO_SEQUENCE = -1
_SEQUENCES = 1 << 31
"""Sequences wrap to 0 after 2^31 - 1."""


class SequencedBatch(Protocol):
    """What this module needs of a batch."""

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
