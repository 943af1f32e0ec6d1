"""Epochs of a server's logs: whether a position that a client has stored belongs to this server's logs.

An *epoch* is random text. A new one begins when logs may have gone back to an earlier state: the data directory is a
copy, or an older state was restored in its place; the machine lost power, so that records that were visible but not
synced may be gone; or a log lost records that readers have seen. The server remembers its *lineage*, which is all
earlier epochs. For each bucket it also remembers the offset at which each later epoch began: the end of the log when
the bucket is first opened in that epoch, stored before anything is appended.

A position (epoch, offset) belongs to a log if the epoch is the newest one, or if it is in the lineage and no later
epoch began below the offset, because up to there the epochs have the same records. All other positions are refused. An
unnecessary epoch therefore does no harm: it refuses no offset up to the log's end at its beginning.

In a copy, counters of ids continue after random gaps, so that the copy and the original do not give the same id to two
tables, writers or transactions.

Format: docs/format/log_epochs.md. Prior art: the leader epochs of Kafka (KIP-101, KIP-320).
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from dataclasses import replace

from forebay.base import threads
from forebay.base.ambient import Clock, IdSource
from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest
from forebay.fs import names
from forebay.fs.interface import FileMissing, FileSystem
from forebay.log.checkpoints import read_clean_shutdown
from forebay.metadata.table import TableBucket
from forebay.server.metadata_store import (
    COORDINATOR_EPOCH_COUNTER,
    PARTITION_COUNTER,
    TABLE_COUNTER,
    TRANSACTION_COUNTER,
    WRITER_COUNTER,
    MetadataStore,
    StoredEpoch,
)

_LOGGER = logging.getLogger(__name__)

EPOCHS_KEPT = 1000
"""Positions of older epochs are refused."""

CREATED = "the data directory was created"
COPIED = "the data directory is a copy, was moved to another file system, or its metadata was put back from a copy"
POWER_LOST = "the machine lost power, or its disk was mounted again, while a server ran"

_EPOCH_DIGITS = 16
_GAPS = {
    TABLE_COUNTER: 1 << 31,
    PARTITION_COUNTER: 1 << 31,
    WRITER_COUNTER: 1 << 40,
    TRANSACTION_COUNTER: 1 << 31,
    COORDINATOR_EPOCH_COUNTER: 1 << 11,  # a number of 32 bits on the wire
}
"""By counter, how many numbers a copy leaves out at most."""


class LogEpochs:
    """The epochs of one server's logs. Methods may be called from any thread."""

    def __init__(self, store: MetadataStore, clock: Clock, ids: IdSource) -> None:
        self._store, self._clock, self._ids = store, clock, ids
        self._lock = threads.lock()
        self.reload()

    def reload(self) -> None:
        """Show what the store has, whose content was replaced."""
        with self._lock:
            self._epochs = self._store.log_epochs()
            self._starts = self._store.log_epoch_starts()
            self._unsaved: dict[TableBucket, tuple[TableBucket, int, int]] = {}
            self._numbers = {each.epoch: each.number for each in self._epochs}
            self._begun_for_all = max((each.number for each in self._epochs if not each.is_of_one_bucket), default=0)

    @property
    def exist(self) -> bool:
        """Whether an epoch has begun: always, in a server that runs."""
        return bool(self._epochs)

    @property
    def current(self) -> StoredEpoch:
        """The newest epoch."""
        return self._epochs[-1]

    def begin(self, reason: str, *, is_copy: bool = False) -> None:
        """Begin an epoch for all buckets, before any of them is opened. `is_copy`: leave gaps in the counters."""
        with self._lock:
            self._begin(reason, is_of_one_bucket=False, skips=self._gaps() if is_copy else {})
            self._begun_for_all = self.current.number

    def _gaps(self) -> dict[str, int]:
        return {counter: round(self._ids.uniform(count // 2, count)) for counter, count in _GAPS.items()}

    def _begin(self, reason: str, *, is_of_one_bucket: bool, skips: dict[str, int]) -> None:
        epoch = StoredEpoch(
            self.current.number + 1 if self._epochs else 1,
            self._ids.token_hex()[:_EPOCH_DIGITS],
            self._clock.now_ms(),
            reason,
            is_of_one_bucket,
            0,
            0,
        )
        firsts = self._store.begin_log_epoch(epoch, skips, EPOCHS_KEPT)
        epoch = replace(epoch, first_table_id=firsts[0], first_partition_id=firsts[1])
        self._epochs = [*self._epochs, epoch][-EPOCHS_KEPT:]
        self._numbers = {each.epoch: each.number for each in self._epochs}
        if epoch.number > 1:
            _LOGGER.warning(
                "a new epoch %s of the logs begins, because %s: positions of before are refused where the logs differ",
                epoch.epoch,
                reason,
            )

    def opened(self, bucket: TableBucket, end: int, shown: int) -> bool:
        """Record that a bucket's log was opened and ends at `end`; return whether `save` must precede the first append.

        `shown` is the offset up to which clients may have read the log before.
        """
        with self._lock:
            starts = self._starts.get(bucket, {})
            is_older = self._created_in(bucket) < self._begun_for_all
            if is_older and self._begun_for_all not in starts:
                self._note_start(bucket, self._begun_for_all, end)
                self._unsaved[bucket] = (bucket, self._begun_for_all, end)
            elif end < shown:
                reason = f"the log of bucket {bucket} has lost its records from offset {end} to {shown}"
                self._begin(reason, is_of_one_bucket=True, skips={})
                self._store.put_log_epoch_starts([(bucket, self.current.number, end)])
                self._note_start(bucket, self.current.number, end)
            return bucket in self._unsaved

    def save(self) -> None:
        """Make the offsets of all opened buckets durable, many in one step. That may wait until the first append: until
        then, opening a bucket again finds the same offset."""
        with self._lock:
            if self._unsaved:
                self._store.put_log_epoch_starts(self._unsaved.values())
                self._unsaved = {}

    def _note_start(self, bucket: TableBucket, number: int, offset: int) -> None:
        # Other threads may iterate over what is there.
        self._starts[bucket] = {**self._starts.get(bucket, {}), number: offset}

    def _created_in(self, bucket: TableBucket) -> int:
        """The number of the epoch in which a bucket was created; of the first one, if that is not known."""
        number = self._epochs[0].number
        for each in self._epochs:
            partition_id = -1 if bucket.partition_id is None else bucket.partition_id
            if bucket.table_id >= each.first_table_id or partition_id >= each.first_partition_id:
                number = each.number
        return number

    def epoch_at(self, bucket: TableBucket, offset: int) -> str:
        """Return the epoch for a position: the oldest one whose log has the bucket's records up to `offset`.

        An older epoch is known to more servers: to all that were restored from copies with these records.
        """
        epochs = self._epochs
        if len(epochs) == 1:
            return epochs[0].epoch
        number = max(
            (number for number, start in self._starts.get(bucket, {}).items() if start < offset),
            default=self._created_in(bucket),
        )
        return next(each for each in epochs if each.number >= number).epoch

    def shared_until(self, epoch: str, bucket: TableBucket) -> int | None:
        """The offset up to which a bucket's log is the one of `epoch`; None: to its end. For a bucket that was opened.

        Raises `InvalidRequest` (LOG_OFFSET_OUT_OF_RANGE) for an epoch that is not in the lineage.
        """
        if epoch == self.current.epoch:
            return None
        number = self._numbers.get(epoch)
        if number is None:
            now = self.current
            raise InvalidRequest(
                f"the position is of epoch {epoch}, which the logs of this server have never had: theirs is "
                f"{now.epoch} since {time_text(now.began_ms)} ({now.reason}). It is of another server, or of what this "
                "one had before it was restored from an older copy. Start from 'earliest' or 'full', or give an offset "
                "without an epoch if you know that it is right here",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            )
        if self._created_in(bucket) > number:
            return 0
        return min((start for later, start in self._starts.get(bucket, {}).items() if later > number), default=None)

    def check(self, bucket: TableBucket, offset: int, epoch: str) -> None:
        """Raise `InvalidRequest` (LOG_OFFSET_OUT_OF_RANGE) unless (epoch, offset) belongs to a bucket's log.

        For a bucket that was opened. An empty epoch belongs to every log.
        """
        if not epoch or epoch == self.current.epoch:
            return
        shared = self.shared_until(epoch, bucket)
        if shared is None or offset <= shared:
            return
        later = next(each for each in self._epochs if each.number > self._numbers[epoch])
        raise InvalidRequest(
            f"offset {offset} of bucket {bucket} is of epoch {epoch}, and since {time_text(later.began_ms)} the log "
            f"has another history ({later.reason}): the two have the same records below offset {shared} only. Those "
            "from there on that were read before are not in this log, and others may have their offsets. Drop what "
            f"came of them, and go on from offset {shared}; or start from 'earliest' or 'full'",
            ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
        )


def begin_epoch_if_needed(
    epochs: LogEpochs,
    store: MetadataStore,
    fs: FileSystem,
    data_dir: str,
    *,
    witnesses: frozenset[str],
    place: str | None,
) -> None:
    """Begin an epoch if the logs in a data directory may be older than those that clients have read.

    `witnesses` show that no written page was lost since the last start (`forebay.base.host.page_cache_witnesses`),
    `place` is where the directory's files are (`forebay.base.host.place_of_files`). Call this before anything else uses
    the metadata, and before the clean-shutdown marker is taken.
    """
    stored = store.place()
    before = json.loads(stored) if stored else {}
    marked = _restored_mark(fs, data_dir)
    if marked is not None:
        epochs.begin(marked, is_copy=True)
    elif not epochs.exist:
        epochs.begin(CREATED)
    elif place is not None and before.get("place") not in (None, place):
        epochs.begin(COPIED, is_copy=True)
    elif not _were_closed(fs, data_dir) and witnesses.isdisjoint(before.get("witnesses", ())):
        epochs.begin(POWER_LOST)
    now = json.dumps({"place": place, "witnesses": sorted(witnesses)})
    if now != stored:
        store.put_place(now)
    if marked is not None:
        fs.remove(names.join(data_dir, names.RESTORED_FILE))
        fs.sync_directory(data_dir)


def _were_closed(fs: FileSystem, data_dir: str) -> bool:
    """Whether the last server has closed the logs gracefully."""
    try:
        return read_clean_shutdown(fs, data_dir) is not None
    except CorruptData:
        return False


# The mark of a copy: a file that the next server that opens the directory takes away.

_MARK = "forebay restored 1\n"


def mark_restored(fs: FileSystem, data_dir: str, reason: str) -> None:
    """Let the next server that opens a data directory begin an epoch, for a `reason` of one line."""
    fs.write_atomic(names.join(data_dir, names.RESTORED_FILE), f"{_MARK}{reason}\n".encode())


def _restored_mark(fs: FileSystem, data_dir: str) -> str | None:
    try:
        content = fs.read_bytes(names.join(data_dir, names.RESTORED_FILE))
    except FileMissing:
        return None
    reason = content.decode(errors="replace").removeprefix(_MARK).strip()
    return reason or "the data directory was restored from a copy"


def time_text(at_ms: int) -> str:
    """A time as people read it, in UTC."""
    return dt.datetime.fromtimestamp(at_ms // 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
