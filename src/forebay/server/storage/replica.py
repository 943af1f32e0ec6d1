"""One bucket on this server: its log, its key-value state if the table has a primary key, and its queue of writes.

All writes are commands (`forebay.server.storage.write_command`) and enter by `BucketReplica.submit`. They go through
the write queue, one group at a time (`forebay.server.flow.write_queue`), except for those that `submit` writes in its
caller's thread. Reads run in any thread.

Path of a put: `submit`, `WriteQueue.submit`, and in a writer thread `_put_group`, `_put_locked`, `KvTablet.put_group`;
then the receiver of the command gets the results.

The high watermark, up to which clients read, follows what is durable. A write with acks=1 or 0 is visible as soon as it
is acknowledged, before it is durable: its writer asked for that (docs/design/0006-durability-by-acks.md), and readers
of such a table accept it. The rows of a decided transaction are visible in a primary-key table before its log is
synced, because the staged rows survive a power failure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from forebay.base import threads
from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest, Unavailable
from forebay.base.thread_rules import any_thread, blocking
from forebay.codec.arrow.arrow_message import DECODED_BYTES_MAX, message_codec
from forebay.codec.kv.kv_batch import number_kv_batch
from forebay.codec.log._plain_batches import PlainBatch, read_plain
from forebay.codec.log.header import seal_as
from forebay.kv.checkpoint import KvFolder
from forebay.kv.engine import KvEngine
from forebay.kv.tablet import ACKS_ALL, KvTablet, PutRequest, PutResult
from forebay.log.remote import RemoteReads, first_offset
from forebay.log.tablet import LogTablet
from forebay.metadata.table import TableBucket
from forebay.metadata.table_options import LogFormat
from forebay.server.counters import BucketCounters
from forebay.server.flow.disk_reserve import DiskReserve
from forebay.server.flow.write_queue import GROUP_BYTES_MAX, NOW_BYTES_MAX, Receiver, WriteQueue, WriteScheduler
from forebay.server.metadata.catalog import LiveTable
from forebay.server.storage.batch_check import check_log_batches
from forebay.server.storage.log_store import LogLoan
from forebay.server.storage.write_command import (
    Append,
    AppendCommand,
    AppendResult,
    DecidedBatch,
    DecidedCommand,
    PutCommand,
    WriteCommand,
    WriteMode,
)

_LOGGER = logging.getLogger(__name__)

_ACKS_LEADER = 1


@dataclass(frozen=True, slots=True)
class ParkedBucket:
    """The known state of a bucket that was closed cleanly and has not changed since."""

    kv_folder: KvFolder | None
    local_start_offset: int
    remote: RemoteReads | None
    end_offset: int | None
    """The offset at which readers have read everything; None if the log holds records that are not visible yet."""
    expirable_ms: int | None
    """The append time of the newest record of the first segment, if it has any."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that clients find."""
        return first_offset(self.remote, self.local_start_offset)


class BucketReplica:
    """A bucket that is open on this server."""

    def __init__(
        self,
        bucket: TableBucket,
        table: LiveTable,
        log: LogTablet,
        kv: KvTablet | None,
        kv_folder: KvFolder | None,
        scheduler: WriteScheduler,
        on_progress: Callable[[TableBucket], None],
        reserve: DiskReserve,
        before_first_write: Callable[[], None] | None = None,
        loan: LogLoan | None = None,
    ) -> None:
        """`on_progress` is called, in a writing thread, when the high watermark has moved.

        `before_first_write` is called, in a writing thread, before anything is written; again if it raises an error.
        `loan`: the log is not this server's own, and is only read.
        """
        self.bucket = bucket
        self.table = table
        self.log = log
        self._kv = kv
        self._kv_folder = kv_folder
        self._on_progress = on_progress
        self._write_scheduler = scheduler
        self._reserve = reserve
        self._before_first_write = before_first_write if loan is None else loan.refuse_write
        self._loan = loan
        self._queue: WriteQueue[Any, Any] = WriteQueue(scheduler)  # of appends, or of puts
        self._checkpointing = threads.lock()
        self._writing = threads.lock()
        self._writing_decided = threads.lock()
        """Held to write what one decided transaction has: the next one writes after it."""
        self._seals = 0
        self.closed = False
        self.counters = BucketCounters(log.log_end_offset)
        self.uses = 0
        """Number of requests and maintenance tasks using the replica (`OpenBuckets`)."""

    @property
    def is_idle(self) -> bool:
        """Whether no write is queued or under way."""
        return self._queue.is_idle

    @property
    def kv(self) -> KvTablet:
        """The key-value state. Raises `InvalidRequest` (NON_PRIMARY_KEY_TABLE) for a log table."""
        return self._require_key_value()

    @property
    def has_kv(self) -> bool:
        return self._kv is not None

    @property
    def _is_for_store(self) -> bool:
        """Whether clients see only what the store has: only what is synced goes there, whatever acks is."""
        return self.log.watermark_limit is not None

    @property
    def is_log_borrowed(self) -> bool:
        """Whether something else appends to the log (`follow`)."""
        return self._loan is not None

    # ---- the entry of all writes -------------------------------------------------------------------------------------

    @any_thread
    def submit(
        self, command: WriteCommand, receiver: Receiver[Any] | None = None, mode: WriteMode = WriteMode.QUEUED
    ) -> Sequence[Any] | None:
        """Return the results of a command that is written in this thread, or None if `receiver` gets them later.

        A result is an `AppendResult` or `PutResult`; it is due when its write is acknowledged. `DecidedCommand` has no
        results and is durable on return. Raises `InvalidRequest` if the form of the command is not that of the table,
        `Unavailable` if the bucket is closed, and, for writes in this thread, the error that concerns all of them.
        """
        if isinstance(command, DecidedCommand):
            self._write_decided(command)
            return ()
        if isinstance(command, PutCommand):
            self._require_key_value()
        else:
            self._require_log()
        self._require_open()
        if mode is not WriteMode.QUEUED:
            results = self._write_at_once(command, is_alone=mode is WriteMode.AT_ONCE_FOR_LONE_CLIENT)
            if results is not None:
                return results
        assert receiver is not None, "a command that may be queued needs a receiver"
        receiver.queued()
        write_group = self._append_group if self._kv is None else self._put_group
        self._queue.submit(command.requests, receiver, write_group, command.size)
        return None

    def _write_at_once(self, command: AppendCommand | PutCommand, *, is_alone: bool) -> Sequence[Any] | None:
        """Return the results of a command that is written in this thread, which must not wait.

        Return None without effect if it might have to: other writes are queued or under way, the table is being read as
        a whole, or the disk is slow (for a client that `is_alone`, slower).
        """
        scheduler = self._write_scheduler
        if (
            command.size > NOW_BYTES_MAX
            or self._before_first_write is not None
            or not scheduler.may_write_now(is_alone=is_alone)
            or not self._writing.acquire(blocking=False)
        ):
            return None
        try:
            if isinstance(command, AppendCommand):
                return scheduler.write_now(partial(self._queue.run_now, command.requests, self._append_locked))
            if not self.table.write_gate.enter_if_open():
                return None
            try:
                return scheduler.write_now(partial(self._queue.run_now, command.requests, self._put_locked))
            finally:
                self.table.write_gate.leave()
        finally:
            self._writing.release()

    def _require_log(self) -> None:
        if self._kv is not None:
            raise InvalidRequest(
                f"table {self.table.info.path} has a primary key; rows are put into it, not appended",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )

    def _require_key_value(self) -> KvTablet:
        if self._kv is None:
            raise InvalidRequest(
                f"table {self.table.info.path} has no primary key, which this operation needs",
                ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
            )
        return self._kv

    # ---- log tables -------------------------------------------------------------------------------------------------

    @blocking
    def _append_group(self, requests: Sequence[Append]) -> list[AppendResult]:
        with self._writing:
            return self._append_locked(requests)

    def _append_locked(self, requests: Sequence[Append]) -> list[AppendResult]:
        """Write a group of appends; the caller has locked `_writing`."""
        self._prepare_to_write()
        results: list[AppendResult] = []
        for run, batches in self._runs(requests):
            run_results = self._append_together(run, batches) if batches else None
            results += [self._append_alone(request) for request in run] if run_results is None else run_results
        unsynced_end, is_synced = -1, False
        for request, result in zip(requests, results, strict=True):
            if request.acks != ACKS_ALL and not self._is_for_store:
                unsynced_end = max(unsynced_end, result.end_offset)
            elif result.error is None:
                is_synced = True
        self.counters.bytes_in += sum([len(r.records) for r, a in zip(requests, results) if a.error is None])
        self._write_scheduler.wrote(len(requests))
        if is_synced:
            try:
                self.log.sync()
            except ForebayError as e:
                return [a if a.error else AppendResult(error=e) for a in results]
            self._write_scheduler.synced(self.log.sync_seconds)
        self._raise_high_watermark(max(unsynced_end, self.log.synced_offset))
        return results

    def _runs(self, requests: Sequence[Append]) -> Iterator[tuple[Sequence[Append], Sequence[PlainBatch]]]:
        """Yield runs of consecutive plain requests with their batches, and each other request alone without a batch."""
        info, records = self.table.info, [each.records for each in requests]
        if info.descriptor.log_format is LogFormat.ARROW and set(map(type, records)) == {bytes}:
            layout = message_codec(self.table.schema_by_id(info.schema_id).columns).layout
            batches = read_plain(
                records,  # type: ignore[arg-type]
                layout, info.schema_id, self.log.config.batch_bytes_max, DECODED_BYTES_MAX,
            )  # fmt: skip
            if None not in batches:
                yield requests, batches  # type: ignore[misc]
                return
        else:
            batches = [None] * len(requests)
        first = 0
        for place, batch in enumerate(batches):
            if batch is None:
                if first < place:
                    yield requests[first:place], batches[first:place]  # type: ignore[misc]
                yield requests[place : place + 1], ()
                first = place + 1
        if first < len(requests):
            yield requests[first:], batches[first:]  # type: ignore[misc]

    def _append_together(self, requests: Sequence[Append], batches: Sequence[PlainBatch]) -> list[AppendResult] | None:
        """Append all requests with one write. Returns None, with nothing appended, if that fails.

        The caller then appends one request after the other, because some of them may still fit on the disk.
        """
        try:
            self._reserve.require(sum([batch.size_bytes for batch in batches]))
            outcomes = self.log.append_together([each.records for each in requests], batches)  # type: ignore[misc]
        except ForebayError:
            return None
        return [
            AppendResult(each[0], each[1]) if type(each) is tuple else AppendResult(error=each)  # type: ignore[arg-type]
            for each in outcomes
        ]

    def _append_alone(self, request: Append) -> AppendResult:
        try:
            self._reserve.require(len(request.records))
            headers = check_log_batches(self.table, request.records)
            appended = self.log.append_as_leader(request.records, batches=headers)
        except ForebayError as e:
            return AppendResult(error=e)
        return AppendResult(appended.base_offset, appended.next_offset)

    @any_thread
    def stored(self, end: int) -> None:
        """Let clients read up to `end`, which is in the store."""
        if self.log.watermark_limit is not None and end > self.log.watermark_limit:
            self.log.watermark_limit = end
            self._raise_high_watermark(end if self._kv is None else min(end, self._kv.applied_offset))

    def _raise_high_watermark(self, offset: int) -> None:
        if self.log.raise_high_watermark(offset):
            self._on_progress(self.bucket)

    @blocking
    def follow(self, end: int) -> None:
        """Bring the key-value state to offset `end` of a log that something else appends to."""
        if self._kv is None or self._kv.applied_offset >= end:
            return
        with self._writing:
            self._kv.recover(until=end)
        if self.log.watermark_limit is not None:  # which may have been raised when the state was not there yet
            self._raise_high_watermark(min(self.log.watermark_limit, self._kv.applied_offset))

    # ---- primary-key tables -----------------------------------------------------------------------------------------

    @blocking
    def _put_group(self, requests: Sequence[PutRequest]) -> list[PutResult]:
        with self.table.write_gate.passing(), self._writing:
            return self._put_locked(requests)

    def _put_locked(self, requests: Sequence[PutRequest]) -> list[PutResult]:
        """Write a group of puts; the caller has passed the table's write gate and has locked `_writing`."""
        before = self.log.log_end_offset
        self._prepare_to_write()
        self._reserve.require(sum(len(request.records) for request in requests))
        if self._is_for_store:
            requests = [each if each.acks == ACKS_ALL else replace(each, acks=ACKS_ALL) for each in requests]
        results = self.kv.put_group(requests)
        self._write_scheduler.wrote(len(requests))
        if self.log.log_end_offset > before:
            self.counters.bytes_in += sum(len(r.records) for r, done in zip(requests, results) if done.error is None)
            self._on_progress(self.bucket)
            if any(request.acks == ACKS_ALL for request in requests):
                self._write_scheduler.synced(self.log.sync_seconds)
        return results

    # ---- transactions -----------------------------------------------------------------------------------------------

    def puts_held(self) -> AbstractContextManager[None]:
        """Keep clients' puts waiting during the block, and wait for those that are being written.

        Raises `InvalidRequest` (NON_PRIMARY_KEY_TABLE) for a log table.
        """
        self._require_key_value()
        return self._queue.held(self._put_group)

    @blocking
    def try_puts(self, batches: Iterable[DecidedBatch]) -> None:
        """Check that puts of these batches would not be refused, whatever rows they are merged with.

        Raises the error of the first one that would be. Its results hold inside `puts_held`.
        """
        requests = (PutRequest(memoryview(each.read()), each.target_columns) for each in batches)
        with self.table.write_gate.passing(), self._writing:
            self.kv.try_puts(requests)

    @blocking
    def _write_decided(self, command: DecidedCommand) -> None:
        """Write what a decided transaction has for this bucket, except what the log already has; durable on return.

        `writer_id` has written nothing but this transaction, so the last sequence that the log has of it tells how far
        an earlier attempt came. Rows of a log table become visible by `show_decided`, others at once. Raises the error
        of the first batch that cannot be written; all before it are.
        """
        with self._writing_decided:
            self._write_missing(command)
            if self._kv is not None:
                with self.table.write_gate.passing(), self._writing:
                    self._kv.catch_up()  # where an earlier attempt came to the log, and not to the state
            self.log.sync()

    def _write_missing(self, command: DecidedCommand) -> None:
        done = self.log.last_sequence(command.writer_id) + 1
        group: list[DecidedBatch] = []
        size = 0
        for sequence, batch in enumerate(command.batches):
            if sequence < done:
                continue
            group.append(batch)
            size += batch.size_bytes
            if size >= GROUP_BYTES_MAX:
                self._write_decided_group(command, sequence + 1 - len(group), group)
                group, size = [], 0
        if group:
            self._write_decided_group(command, sequence + 1 - len(group), group)

    def _write_decided_group(self, command: DecidedCommand, first: int, group: Sequence[DecidedBatch]) -> None:
        # One sync at the end instead of one for each group. A power failure before it takes back the last rows, and
        # the stages give the same ones again before anything else uses the bucket; but auto-increment ids are new ones.
        acks = _ACKS_LEADER if self.table.info.schema.auto_increment_column is None else ACKS_ALL
        requests = []
        for sequence, batch in enumerate(group, first):
            records = batch.read()
            (seal_as if self._kv is None else number_kv_batch)(records, command.writer_id, sequence)
            requests.append(PutRequest(memoryview(records), batch.target_columns, acks, decided_ms=command.decided_ms))
        if self._kv is None:
            with self._writing:
                self._prepare_to_write()
                for request in requests:
                    self.log.append_as_leader(request.records, committed_ms=request.decided_ms)
                    self.counters.bytes_in += len(request.records)
            return
        with self.table.write_gate.passing(), self._writing:
            self._prepare_to_write()
            results = self._kv.put_group(requests)
            self.counters.bytes_in += sum(len(r.records) for r, done in zip(requests, results) if done.error is None)
        self._on_progress(self.bucket)
        for result in results:
            if result.error is not None:
                raise result.error

    @blocking
    def take_offline_unless_written(self, writer_id: int, batches: int, cause: ForebayError) -> None:
        """Accept no write until the bucket is opened again, if rows of a decided transaction are missing.

        Opening the bucket writes them.
        """
        if self.log.last_sequence(writer_id) + 1 < batches:
            self.log.take_offline(cause)

    def show_decided(self) -> None:
        """Make the rows that a `DecidedCommand` has written to a log table visible."""
        if self._kv is None:  # else it is visible, and clients' puts may be in the log that the state does not have yet
            self._raise_high_watermark(self.log.synced_offset)

    @blocking
    def seal(self) -> None:
        """Refuse writes until `unseal` by the same caller, and by all others that have sealed the bucket.

        Writes in flight have ended when this returns; others may be retried.
        """
        with self._writing:
            self._seals += 1

    def unseal(self) -> None:
        """Accept writes again, unless another caller has sealed the bucket, too."""
        with self._writing:
            self._seals -= 1

    def _require_unsealed(self) -> None:
        if self._seals:
            raise Unavailable(
                f"bucket {self.bucket} of table {self.table.info.path} accepts no writes: its partition is dropped",
                ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
            )

    def _prepare_to_write(self) -> None:
        self._require_unsealed()
        if self._before_first_write is not None:
            self._before_first_write()
            self._before_first_write = None

    def _require_open(self) -> None:
        if self.closed:
            raise Unavailable(
                f"bucket {self.bucket} of table {self.table.info.path} is closed",
                ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
            )

    # ---- upkeep -----------------------------------------------------------------------------------------------------

    @blocking
    def sync_idle(self) -> None:
        """Sync what acks=1 and 0 left in the page cache."""
        if self.log.synced_offset < self.log.log_end_offset:
            self.log.sync()

    @blocking
    def checkpoint_if_grown(self, records_min: int) -> bool:
        """Write a checkpoint of the key-value state if the changelog has grown by `records_min` since the last one."""
        if self._kv is None or self._kv_folder is None:
            return False
        with self._checkpointing:
            if self.closed or self._kv.applied_offset - self._kv_folder.retained_offset < records_min:
                return False
            self._kv_folder.write_checkpoint(self._kv.engine, self.log.sync)
            return True

    @blocking
    def release_changelog(self, offset: int) -> int:
        """Make the key-value state independent of the changelog below `offset`, with a checkpoint if necessary.

        Returns the offset from which the state needs the changelog afterwards; `offset` or more on success.
        """
        if self._kv is None or self._kv_folder is None:
            return offset
        with self._checkpointing:
            if self._kv_folder.retained_offset < offset and not self.closed:
                self._kv_folder.write_checkpoint(self._kv.engine, self.log.sync)
            return self._kv_folder.retained_offset

    @property
    def kv_folder(self) -> KvFolder | None:
        """The folder of the key-value state; None for a log table."""
        return self._kv_folder

    def changelog_needed_from(self) -> int:
        """The offset from which the key-value state needs the changelog, if it has to be restored."""
        return self.log.log_end_offset if self._kv_folder is None else self._kv_folder.retained_offset

    @blocking
    def clean_state(self) -> bool:
        """Remove deleted and superseded rows from the files of the state, and write a checkpoint without them.

        Returns whether the bucket has a state, and is open.
        """
        if self._kv is None or self._kv_folder is None:
            return False
        with self._checkpointing:
            if self.closed:
                return False
            self._kv.engine.clean()
            self._kv_folder.write_checkpoint(self._kv.engine, self.log.sync, replaces=True)
            return True

    def close(self) -> None:
        """Close cleanly: the log is synced, the state's files can be trusted."""
        self._close(KvFolder.close_engine)

    @blocking
    def park(self) -> ParkedBucket | None:
        """Close cleanly until the bucket is needed again; return its known state, unless something else changes it."""
        segments = self.log.segments()
        self._close(KvFolder.park_engine)
        if self._loan is not None:
            return None
        end = self.log.high_watermark
        return ParkedBucket(
            self._kv_folder,
            self.log.local_start_offset,
            self.log.remote,
            end if end == self.log.log_end_offset else None,
            segments[0].last_timestamp_ms if segments[0].size_bytes else None,
        )

    def _close(self, close_engine: Callable[[KvFolder, KvEngine], None]) -> None:
        self.closed = True
        with self._checkpointing, ExitStack() as closing:  # every part is closed, even if closing the others fails
            closing.callback(self._close_log)
            if self._kv is not None and self._kv_folder is not None:
                closing.callback(close_engine, self._kv_folder, self._kv.engine)
            if not self.log.is_offline and self._loan is None:
                self.log.sync()

    def _close_log(self) -> None:
        if self._loan is None:
            self.log.close()
        else:
            self._loan.give_back()

    def abandon(self) -> None:
        """Release a bucket whose files are about to be removed."""
        self.closed = True
        with self._checkpointing:  # one that is being written, or begins afterwards, would bring the folder back
            if self._kv is not None:
                self._kv.engine.close()
        self._close_log()
