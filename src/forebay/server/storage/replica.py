"""One bucket on this server: its log, its key-value state if the table has a primary key, and its lane of writes.

Writes go through the lane (one group at a time); reads run in any thread. The high watermark, up to which clients read,
follows what is durable. A write with acks=1 or 0 is visible as soon as it is acknowledged, before it is durable: its
writer asked for that (docs/design/0006-durability-by-acks.md), and readers of such a table accept it. The rows of a
decided transaction are visible in a primary-key table before its log is synced, because what is staged outlasts a power
failure.

Writes that queue up in a lane while a group is being written form the next group. Under load groups grow, and the cost
of a sync is shared (group commit); without load each write is its own group and never waits. Lanes take turns on a
shared pool of threads: a thread writes one group of a lane, then one of another waiting lane, so buckets with very much
to write cannot monopolise the threads. Lanes with little to write go first, but not always.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from forebay.base import threads
from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import CorruptData, ErrorCode, ForebayError, InvalidRequest, NotFound, Unavailable, check
from forebay.base.threads import Executor, Future, Lock
from forebay.codec.arrow.arrow_message import DECODED_BYTES_MAX, message_codec
from forebay.codec.kv.kv_batch import number_kv_batch
from forebay.codec.log._plain_batches import PlainBatch, read_plain
from forebay.codec.log.header import LogBatchHeader, iter_headers, seal_as, verify_crc
from forebay.codec.log.log_batch import decode_row_batch, validate_arrow_body
from forebay.codec.reference import RowFormat
from forebay.codec.rows.row_codec import row_codec
from forebay.kv.checkpoint import KvFolder
from forebay.kv.engine import KvEngine
from forebay.kv.tablet import ACKS_ALL, KvTablet, PutRequest, PutResult
from forebay.log.tablet import LogTablet
from forebay.metadata.table import TableBucket
from forebay.metadata.table_options import LogFormat
from forebay.server.counters import BucketCounters, ServerCounters
from forebay.server.flow.disk_reserve import DiskReserve
from forebay.server.metadata.catalog import LiveTable

T = TypeVar("T")
Result_contra = TypeVar("Result_contra", contravariant=True)


class Receiver(Protocol[Result_contra]):
    """What gets the outcome of writes that were queued together, in the thread that has written them."""

    def set_results(self, results: Sequence[Result_contra]) -> None: ...

    def set_exception(self, exception: BaseException) -> None: ...


Item = TypeVar("Item")
Result = TypeVar("Result")


class _Awaited(Generic[Result]):
    """Receives the result of one write for whoever holds the future."""

    __slots__ = ("future", "set_exception")

    def __init__(self, future: Future[Result]) -> None:
        self.future = future
        self.set_exception = future.set_exception

    def set_results(self, results: Sequence[Result]) -> None:
        (result,) = results
        self.future.set_result(result)


class _Entry(NamedTuple, Generic[Item, Result]):
    """Items that were queued together, what gets their results, and their size in bytes."""

    items: Sequence[Item]
    receiver: Receiver[Result]
    size: int


_ACKS_LEADER = 1

GROUP_ITEMS_MAX = 64
GROUP_BYTES_MAX = 2 << 20
"""Maximum number of writes in one group, and their total size, not counting those that were queued together with the
last one: bounds the memory and time of one group."""

NOW_BYTES_MAX = 64 << 10
QUICK_SYNC_SECONDS = 250e-6
QUICK_SYNCS_MIN = 32
"""Groups of up to this many bytes are written in the event loop's thread once so many syncs took no longer than that:
on a RAM disk, or a disk that keeps in a power failure what it was given. A hop to another thread takes as long.

A slower sync takes half of those that count away."""

LONE_SYNC_SECONDS = 500e-6
"""The same for a client that is alone on the server: no other one waits for the loop meanwhile, and a hop to another
thread and back costs as much CPU time as the write itself. Disks behind a network take longer, and hang more easily: a
sync that hangs keeps the loop from all else."""

LONG_SECONDS = 5e-3
"""One that takes longer, or a group in the loop's thread that does, takes all."""

SHORT_BYTES = 64 << 10
"""A lane with at most this much to write goes before those with more."""

SHORT_IN_A_ROW = 8
"""After this many short ones it is the turn of a waiting lane with more to write."""


LINGER_SECONDS = 0.2
"""So long a thread with nothing to write waits for more before it goes back to its pool: to wake it is worth it, for a
pool takes many more steps to begin a job."""


def _counted(syncs: int, seconds: float, seconds_max: float) -> int:
    """How many syncs that were quick enough count after one more, which took `seconds`."""
    if seconds <= seconds_max:
        return min(syncs + 1, 2 * QUICK_SYNCS_MIN)
    return syncs // 2 if seconds <= LONG_SECONDS else 0  # once in a while another process had the core meanwhile


class LaneScheduler:
    """Chooses the lane whose group a thread of the pool writes next."""

    def __init__(self, executor: Executor, clock: Clock = SYSTEM_CLOCK, counters: ServerCounters | None = None) -> None:
        self._executor = executor
        self._clock = clock
        self._counters = counters or ServerCounters()
        self._quick_syncs = self._lone_syncs = 0
        self._lock = threads.lock()
        self._short: deque[Callable[[], None]] = deque()
        self._long: deque[Callable[[], None]] = deque()
        self._short_in_a_row = 0
        self._jobs = 0
        """Jobs that the pool has not begun."""
        self._lingering: list[Lock] = []
        """What each thread waits for that has nothing to write."""
        self._is_closed = False

    def may_write_now(self, *, is_alone: bool = False) -> bool:
        """Whether a group may be written by `write_now`; `is_alone`: its client is the only one that sends requests."""
        return self._quick_syncs >= QUICK_SYNCS_MIN or (is_alone and self._lone_syncs >= QUICK_SYNCS_MIN)

    def synced(self, seconds: float) -> None:
        """Note how long a sync took that a group of writes has waited for."""
        with self._lock:
            self._counters.syncs.observe(seconds)
        self._quick_syncs = _counted(self._quick_syncs, seconds, QUICK_SYNC_SECONDS)
        self._lone_syncs = _counted(self._lone_syncs, seconds, LONE_SYNC_SECONDS)

    def write_now(self, write: Callable[[], T]) -> T:
        """Write a group in the thread of the event loop, where all others wait for it meanwhile."""
        began = self._clock.monotonic()
        try:
            return write()
        finally:
            if self._clock.monotonic() - began > LONG_SECONDS:
                self._quick_syncs = self._lone_syncs = 0

    def join(self, write: Callable[[], None], size: int) -> None:
        """Call `write`, which raises nothing, in a thread when its turn comes; `size` bytes wait to be written."""
        wakes = None
        with self._lock:
            self._append(write, size)
            if self._lingering:
                wakes = self._lingering.pop()
            else:
                self._jobs += 1
        if wakes is None:
            self._executor.submit(self._work)
        else:
            wakes.release()

    def rejoin(self, write: Callable[[], None], size: int) -> None:
        """As `join`, from inside a `write`: its thread continues with the next waiting lane."""
        with self._lock:
            self._append(write, size)

    def wrote(self, writes: int) -> None:
        """Count a group of writes."""
        with self._lock:
            self._counters.groups += 1
            self._counters.group_writes += writes

    def __len__(self) -> int:
        """How many lanes wait for a thread."""
        return len(self._short) + len(self._long)

    def close(self) -> None:
        """Let the threads go that wait for more to write."""
        with self._lock:
            self._is_closed = True
            lingering, self._lingering = self._lingering, []
        for wakes in lingering:
            wakes.release()

    def _append(self, write: Callable[[], None], size: int) -> None:
        (self._short if size <= SHORT_BYTES else self._long).append(write)

    def _work(self) -> None:
        woken = threads.lock()
        woken.acquire()
        with self._lock:
            self._jobs -= 1
        while True:
            with self._lock:
                write = self._next()
                if write is None:
                    if self._jobs or self._is_closed:
                        return
                    self._lingering.append(woken)
            if write is not None:
                write()
            elif not woken.acquire(timeout=LINGER_SECONDS):
                with self._lock:
                    if woken in self._lingering:
                        self._lingering.remove(woken)
                        return
                woken.acquire()  # by who has taken it from the list just now

    def _next(self) -> Callable[[], None] | None:
        if self._short and not (self._long and self._short_in_a_row >= SHORT_IN_A_ROW):
            self._short_in_a_row += 1
            return self._short.popleft()
        self._short_in_a_row = 0
        return self._long.popleft() if self._long else None


class Lane(Generic[Item, Result]):
    """Runs work on groups of submitted items, in order, never two groups at once.

    A lane does not hold a reference to its work while it is idle: it would form a cycle with an owner whose method that
    is, and keep the owner's memory (hundreds of kilobytes for a bucket) until the next garbage collection.
    """

    def __init__(self, turns: LaneScheduler) -> None:
        self._turns = turns
        self._lock = threads.lock()
        self._changed = threads.condition(self._lock)
        self._queue: deque[_Entry[Item, Result]] = deque()
        self._queued_bytes = 0
        self._running = False
        self._is_held = False

    def submit(self, item: Item, work: Callable[[Sequence[Item]], Sequence[Result]], size: int) -> Future[Result]:
        """Queue `item` of `size` bytes; the future gets its result. It cannot be cancelled: what is queued will be
        written.

        `work`, the same for all items of a lane, returns one result for each item of a group. If it raises, every item
        of the group fails with that error.
        """
        future: Future[Result] = threads.future()
        future.set_running_or_notify_cancel()
        self.queue((item,), _Awaited(future), work, size)
        return future

    def queue(
        self,
        items: Sequence[Item],
        receiver: Receiver[Result],
        work: Callable[[Sequence[Item]], Sequence[Result]],
        size: int,
    ) -> None:
        """As `submit`, for several items, which are written together; `receiver` gets their results."""
        with self._lock:
            self._queue.append(_Entry(items, receiver, size))
            self._queued_bytes += size
            if self._running or self._is_held:
                return
            self._running = True
            size = self._queued_bytes
        self._turns.join(partial(self._write_group, work), size)

    def run_now(
        self, items: Sequence[Item], work: Callable[[Sequence[Item]], Sequence[Result]]
    ) -> Sequence[Result] | None:
        """Run `work` on a group in this thread; None, and nothing is done, unless the lane is idle.

        Raises what `work` raises.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._running or self._is_held or self._queue:
                return None
            self._running = True
        finally:
            self._lock.release()
        try:
            return work(items)
        finally:
            left = self._go_on_or_rest()
            if left is not None:
                self._turns.join(partial(self._write_group, work), left)

    def _go_on_or_rest(self) -> int | None:
        """After a group: the bytes that wait for the next one; None, and the lane rests, if it is not to be written."""
        with self._lock:
            if self._queue and not self._is_held:
                return self._queued_bytes
            self._running = False
            if self._is_held:
                self._changed.notify_all()
            return None

    @contextmanager
    def held(self, work: Callable[[Sequence[Item]], Sequence[Result]]) -> Iterator[None]:
        """Run no work during the block, and none that has begun before; items that are submitted wait, without a
        thread. One holder at a time."""
        with self._lock:
            self._is_held = True
            self._changed.wait_for(lambda: not self._running)
        try:
            yield
        finally:
            with self._lock:
                self._is_held = False
                left = self._queued_bytes
                self._running = starts = bool(self._queue)
            if starts:
                self._turns.join(partial(self._write_group, work), left)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued or being written."""
        with self._lock:
            return not (self._running or self._queue)

    def _write_group(self, work: Callable[[Sequence[Item]], Sequence[Result]]) -> None:
        with self._lock:
            group = self._take_group()
        _run(work, group)
        del group
        left = self._go_on_or_rest()
        if left is not None:
            self._turns.rejoin(partial(self._write_group, work), left)

    def _take_group(self) -> list[_Entry[Item, Result]]:
        group: list[_Entry[Item, Result]] = []
        count = size = 0
        while self._queue and count < GROUP_ITEMS_MAX and size < GROUP_BYTES_MAX:
            entry = self._queue.popleft()
            group.append(entry)
            count += len(entry.items)
            size += entry.size
        self._queued_bytes -= size
        return group


def _run(work: Callable[[Sequence[Any]], Sequence[Any]], group: Sequence[_Entry[Any, Any]]) -> None:
    try:
        results = work(group[0].items if len(group) == 1 else [item for entry in group for item in entry.items])
    except BaseException as e:  # noqa: BLE001 - handed to whoever waits, as an executor does
        for entry in group:
            entry.receiver.set_exception(e)
        return
    check(len(results) == sum(len(entry.items) for entry in group), "a write of a group has no result")
    first = 0
    for entry in group:
        last = first + len(entry.items)
        entry.receiver.set_results(results[first:last])
        first = last


_LOGGER = logging.getLogger(__name__)

_PROGRESS_SECONDS = 2.0


class Append(Protocol):
    """Log batches to append. `records` holds one or more of them, as a client sent them."""

    @property
    def records(self) -> bytes | memoryview: ...

    @property
    def acks(self) -> int: ...


class AppendRequest(NamedTuple):
    """An `Append` of its own."""

    records: bytes | memoryview
    acks: int = ACKS_ALL


class AppendResult(NamedTuple):
    """The offset that the first record got (of the original batch, for a repeated one), or why there is none."""

    base_offset: int = -1
    error: ForebayError | None = None


class DecidedBatch(Protocol):
    """A batch of a decided transaction."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def target_columns(self) -> tuple[int, ...]: ...

    def read(self) -> bytearray:
        """The batch as it was staged. Raises `CorruptData`, `StorageFailure`."""
        ...


@dataclass(frozen=True, slots=True)
class ParkedBucket:
    """The known state of a bucket that was closed cleanly and has not changed since."""

    kv_folder: KvFolder | None
    log_start_offset: int
    end_offset: int | None
    """The offset at which readers have read everything; None if the log holds records that are not visible yet."""
    expirable_ms: int | None
    """The append time of the newest record of the first segment, if that is not the only segment."""


class BucketReplica:
    """A bucket that is open on this server."""

    def __init__(
        self,
        bucket: TableBucket,
        table: LiveTable,
        log: LogTablet,
        kv: KvTablet | None,
        kv_folder: KvFolder | None,
        turns: LaneScheduler,
        on_progress: Callable[[TableBucket], None],
        reserve: DiskReserve,
        before_first_write: Callable[[], None] | None = None,
    ) -> None:
        """`on_progress` is called, in a writing thread, when the high watermark has moved.

        `before_first_write` is called, in a writing thread, before anything is written; again if it raises an error.
        """
        self.bucket = bucket
        self.table = table
        self.log = log
        self._kv = kv
        self._kv_folder = kv_folder
        self._on_progress = on_progress
        self._turns = turns
        self._reserve = reserve
        self._before_first_write = before_first_write
        self._append_lane: Lane[Append, AppendResult] = Lane(turns)
        self._put_lane: Lane[PutRequest, PutResult] = Lane(turns)
        self._checkpointing = threads.lock()
        self._writing = threads.lock()
        self._seals = 0
        self.closed = False
        self.counters = BucketCounters(log.log_end_offset)
        self.uses = 0
        """Number of requests and maintenance tasks using the replica (`OpenBuckets`)."""

    @property
    def is_idle(self) -> bool:
        """Whether no write is queued or under way."""
        return self._append_lane.is_idle and self._put_lane.is_idle

    @property
    def kv(self) -> KvTablet:
        """The key-value state. Raises `InvalidRequest` (NON_PRIMARY_KEY_TABLE) for a log table."""
        if self._kv is None:
            raise InvalidRequest(
                f"table {self.table.info.path} has no primary key, which this operation needs",
                ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
            )
        return self._kv

    @property
    def has_kv(self) -> bool:
        return self._kv is not None

    # ---- log tables -------------------------------------------------------------------------------------------------

    def append(self, request: Append) -> Future[AppendResult]:
        """Append to a log table. The future completes when the requested acknowledgement is due."""
        if self._kv is not None:
            raise InvalidRequest(
                f"table {self.table.info.path} has a primary key; rows are put into it, not appended",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        self._require_open()
        return self._append_lane.submit(request, self._append_group, len(request.records))

    def _append_group(self, requests: Sequence[Append]) -> list[AppendResult]:
        with self._writing:
            return self._appended(requests)

    def _appended(self, requests: Sequence[Append]) -> list[AppendResult]:
        self._prepare_to_write()
        appended: list[tuple[int, AppendResult]] = []
        for together, batches in self._runs(requests):
            found = self._append_together(together, batches) if batches else None
            appended += [self._append_alone(request) for request in together] if found is None else found
        results = [result for _, result in appended]
        unsynced_end, is_synced = -1, False
        for request, (end, result) in zip(requests, appended, strict=True):
            if request.acks != ACKS_ALL:
                unsynced_end = max(unsynced_end, end)
            elif result.error is None:
                is_synced = True
        self.counters.bytes_in += sum([len(r.records) for r, a in zip(requests, results) if a.error is None])
        self._turns.wrote(len(requests))
        if is_synced:
            try:
                self.log.sync()
            except ForebayError as e:
                return [a if a.error else AppendResult(error=e) for a in results]
            self._turns.synced(self.log.sync_seconds)
        self._raise_high_watermark(max(unsynced_end, self.log.synced_offset))
        return results

    def _runs(self, requests: Sequence[Append]) -> Iterator[tuple[Sequence[Append], Sequence[PlainBatch]]]:
        """Plain requests that follow each other, with their batches, and each of the others alone, without."""
        info, records = self.table.info, [each.records for each in requests]
        if info.descriptor.log_format is LogFormat.ARROW and set(map(type, records)) == {bytes}:
            layout = message_codec(self.table.schema_by_id(info.schema_id).columns).layout
            found = read_plain(
                records,  # type: ignore[arg-type]
                layout, info.schema_id, self.log.config.batch_bytes_max, DECODED_BYTES_MAX,
            )  # fmt: skip
            if None not in found:
                yield requests, found  # type: ignore[misc]
                return
        else:
            found = [None] * len(requests)
        first = 0
        for place, batch in enumerate(found):
            if batch is None:
                if first < place:
                    yield requests[first:place], found[first:place]  # type: ignore[misc]
                yield requests[place : place + 1], ()
                first = place + 1
        if first < len(requests):
            yield requests[first:], found[first:]  # type: ignore[misc]

    def _append_together(
        self, requests: Sequence[Append], batches: Sequence[PlainBatch]
    ) -> list[tuple[int, AppendResult]] | None:
        """The end offset and the result of each request; None, and nothing is appended, if they have to be appended
        one after the other: some may fit where all do not."""
        try:
            self._reserve.require(sum([batch.size_bytes for batch in batches]))
            found = self.log.append_together([each.records for each in requests], batches)  # type: ignore[misc]
        except ForebayError:
            return None
        return [
            (each[1], AppendResult(each[0])) if type(each) is tuple else (-1, AppendResult(error=each))  # type: ignore[arg-type]
            for each in found
        ]

    def _append_alone(self, request: Append) -> tuple[int, AppendResult]:
        try:
            self._reserve.require(len(request.records))
            found = check_log_batches(self.table, request.records)
            appended = self.log.append_as_leader(request.records, found=found)
        except ForebayError as e:
            return -1, AppendResult(error=e)
        return appended.next_offset, AppendResult(appended.base_offset)

    def _raise_high_watermark(self, offset: int) -> None:
        if self.log.raise_high_watermark(offset):
            self._on_progress(self.bucket)

    # ---- primary-key tables -----------------------------------------------------------------------------------------

    def put(self, request: PutRequest) -> Future[PutResult]:
        """Put and delete rows. Raises `InvalidRequest` for a log table."""
        _ = self.kv
        self._require_open()
        return self._put_lane.submit(request, self._put_group, len(request.records))

    def _put_group(self, requests: Sequence[PutRequest]) -> list[PutResult]:
        with self.table.write_gate.passing(), self._writing:
            return self._put(requests)

    def _put(self, requests: Sequence[PutRequest]) -> list[PutResult]:
        before = self.log.high_watermark
        self._prepare_to_write()
        self._reserve.require(sum(len(request.records) for request in requests))
        results = self.kv.put_group(requests)
        self._turns.wrote(len(requests))
        if self.log.high_watermark > before:
            self.counters.bytes_in += sum(len(r.records) for r, done in zip(requests, results) if done.error is None)
            self._on_progress(self.bucket)
            if any(request.acks == ACKS_ALL for request in requests):
                self._turns.synced(self.log.sync_seconds)
        return results

    # ---- short writes -----------------------------------------------------------------------------------------------

    def write_now(self, requests: Sequence[Any], size: int, *, is_alone: bool = False) -> Sequence[Any] | None:
        """Write a group of appends or puts, of `size` bytes, in this thread, which must not wait.

        None, and nothing is done, if it might have to: other writes are queued or under way, the table is being looked
        at as a whole, or the disk is slow (for a client that `is_alone`, on others). Raises what a lane would set as
        the exception of each.
        """
        turns = self._turns
        if size > NOW_BYTES_MAX or self._before_first_write is not None or not turns.may_write_now(is_alone=is_alone):
            return None
        if not self._writing.acquire(blocking=False):
            return None
        try:
            if self._kv is None:
                return turns.write_now(partial(self._append_lane.run_now, requests, self._appended))
            if not self.table.write_gate.enter_if_open():
                return None
            try:
                return turns.write_now(partial(self._put_lane.run_now, requests, self._put))
            finally:
                self.table.write_gate.leave()
        finally:
            self._writing.release()

    def write_later(self, requests: Sequence[Any], receiver: Receiver[Any], size: int) -> None:
        """Queue a group of appends or puts, of `size` bytes; `receiver` gets their results."""
        if self._kv is None:
            self._append_lane.queue(requests, receiver, self._append_group, size)
        else:
            self._put_lane.queue(requests, receiver, self._put_group, size)

    # ---- transactions -----------------------------------------------------------------------------------------------

    def puts_held(self) -> AbstractContextManager[None]:
        """Keep clients' puts waiting during the block, and wait for those that are being written."""
        return self._put_lane.held(self._put_group)

    def write_decided(self, writer_id: int, batches: Iterable[DecidedBatch]) -> None:
        """Write what a decided transaction has for this bucket, but for what is there already; durable afterwards.

        `writer_id` has written nothing but this transaction, so the last sequence that the log has of it tells how far
        an earlier attempt came. Rows of a log table become visible by `show_decided`, others at once. Raises the error
        of the first batch that cannot be written; all before it are.
        """
        done = self.log.last_sequence(writer_id) + 1
        group: list[DecidedBatch] = []
        size = 0
        for sequence, batch in enumerate(batches):
            if sequence < done:
                continue
            group.append(batch)
            size += batch.size_bytes
            if size >= GROUP_BYTES_MAX:
                self._write_decided(writer_id, sequence + 1 - len(group), group)
                group, size = [], 0
        if group:
            self._write_decided(writer_id, sequence + 1 - len(group), group)
        if self._kv is not None:
            with self.table.write_gate.passing(), self._writing:
                self._kv.catch_up()  # where an earlier attempt came to the log, and not to the state
        self.log.sync()

    def _write_decided(self, writer_id: int, first: int, group: Sequence[DecidedBatch]) -> None:
        # One sync at the end instead of one for each group. A power failure before it takes back the last rows, and
        # the stages give the same ones again before anything else uses the bucket; but auto-increment ids are new ones.
        acks = _ACKS_LEADER if self.table.info.schema.auto_increment_column is None else ACKS_ALL
        requests = []
        for sequence, batch in enumerate(group, first):
            records = batch.read()
            (seal_as if self._kv is None else number_kv_batch)(records, writer_id, sequence)
            requests.append(PutRequest(memoryview(records), batch.target_columns, acks, is_decided=True))
        if self._kv is None:
            with self._writing:
                self._prepare_to_write()
                for request in requests:
                    self.log.append_as_leader(request.records)
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

    def take_offline_unless_written(self, writer_id: int, batches: int, cause: ForebayError) -> None:
        """Accept no write until the bucket is opened again, which writes what is decided, if some of it is missing."""
        if self.log.last_sequence(writer_id) + 1 < batches:
            self.log.take_offline(cause)

    def show_decided(self) -> None:
        """Make visible what `write_decided` has written to a log table."""
        if self._kv is None:  # else it is visible, and clients' puts may be in the log that the state does not have yet
            self._raise_high_watermark(self.log.synced_offset)

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

    def sync_idle(self) -> None:
        """Sync what acks=1 and 0 left in the page cache."""
        if self.log.synced_offset < self.log.log_end_offset:
            self.log.sync()

    def checkpoint_if_grown(self, records_min: int) -> bool:
        """Write a checkpoint of the key-value state if the changelog has grown by `records_min` since the last one."""
        if self._kv is None or self._kv_folder is None:
            return False
        with self._checkpointing:
            if self.closed or self._kv.applied_offset - self._kv_folder.retained_offset < records_min:
                return False
            self._kv_folder.write_checkpoint(self._kv.engine, self.log.sync)
            return True

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

    def close(self) -> None:
        """Close cleanly: the log is synced, the state's files can be trusted."""
        self._close(KvFolder.close_engine)

    def park(self) -> ParkedBucket:
        """Close cleanly until the bucket is needed again; return its known state."""
        segments = self.log.segments()
        self._close(KvFolder.park_engine)
        end = self.log.high_watermark
        return ParkedBucket(
            self._kv_folder,
            self.log.log_start_offset,
            end if end == self.log.log_end_offset else None,
            segments[0].last_timestamp_ms if len(segments) > 1 else None,
        )

    def _close(self, close_engine: Callable[[KvFolder, KvEngine], None]) -> None:
        self.closed = True
        with self._checkpointing, ExitStack() as closing:  # every part is closed, even if closing the others fails
            closing.callback(self.log.close)
            if self._kv is not None and self._kv_folder is not None:
                closing.callback(close_engine, self._kv_folder, self._kv.engine)
            if not self.log.is_offline:
                self.log.sync()

    def abandon(self) -> None:
        """Release a bucket whose files are about to be removed."""
        self.closed = True
        with self._checkpointing:  # one that is being written, or begins afterwards, would bring the folder back
            if self._kv is not None:
                self._kv.engine.close()
        self.log.close()


def check_log_batches(table: LiveTable, records: bytes | memoryview) -> list[tuple[int, LogBatchHeader]]:
    """Check that log batches are readable under the schemas that they name. Returns their positions and headers.

    Raises `NotFound`, `CorruptData`, `InvalidRequest`.
    """
    info = table.info
    log_format = info.descriptor.log_format
    found = list(iter_headers(records))
    for position, header in found:
        if not 0 < header.schema_id <= info.schema_id:
            verify_crc(records, position, header)  # the schema id of a damaged batch means nothing
            raise NotFound(
                f"the batch has schema {header.schema_id}, but the latest schema of {info.path} is {info.schema_id}",
                ErrorCode.SCHEMA_NOT_EXIST,
            )
        if not header.append_only:
            raise CorruptData(
                f"a batch for log table {info.path} has change types; it may hold appends only",
                ErrorCode.CORRUPT_RECORD_EXCEPTION,
            )
        columns = table.schema_by_id(header.schema_id).columns
        try:
            if log_format is LogFormat.ARROW:
                validate_arrow_body(records, position, header, columns)
            else:
                rows, _ = decode_row_batch(records, position, header)
                row_codec(columns, RowFormat(log_format.value)).decode(rows)
        except CorruptData as e:
            verify_crc(records, position, header)
            # The bytes arrived as they were sent, so resending them is useless; clients retry after CORRUPT_*.
            raise InvalidRequest(
                f"the batch does not fit log table {info.path}, whose log format is {log_format.value}: {e.message}",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            ) from e
    return found


class SlowProgress:
    """Logs the progress of a long step: nothing in the first two seconds, then every two seconds."""

    def __init__(self, clock: Clock, what: str) -> None:
        self._clock = clock
        self._what = what
        self._next = clock.monotonic() + _PROGRESS_SECONDS

    def __call__(self, done: int, total: int) -> None:
        now = self._clock.monotonic()
        if now >= self._next:
            self._next = now + _PROGRESS_SECONDS
            _LOGGER.info("%s: %s of %s", self._what, done, total)
