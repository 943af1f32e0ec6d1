"""The context of request handlers: the server's parts, one call, and what a request may cost.

A request names things in lists: tables, partitions, buckets, keys. Each list is processed once for each distinct thing.
A request that names more things than `server.request.max-items`, or whose response would describe more of them, is
refused.

Long requests are admitted a few at a time, the next one when an earlier one is answered (`Gate`): their parsed form
takes memory, and every full round of the garbage collector, which stops everything else, takes time for each of these
objects.

Work on a long list is done in *pieces* of a few milliseconds. Of all requests with such work only one runs a piece in
each round of the event loop, in rotation; so others wait for one piece, however many there are. Jobs for the pool of
I/O threads rotate in the same way over the clients that they belong to (`Rotation`): each client's jobs start in order,
and a client waits for one job of each other client.
"""

from __future__ import annotations

import asyncio
import logging
import types
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from forebay.base import threads
from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import ErrorCode, ForebayError, LimitExceeded, Unavailable
from forebay.base.threads import Executor, Future
from forebay.kv.scanner import ScannerManager
from forebay.kv.table_snapshots import TableSnapshotManager
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol.api import ApiKey, ServerNode, ServerRole
from forebay.protocol.messages import Buffer, Message, PerBucketAnswer, error_to_wire
from forebay.server.config import ServerConfig
from forebay.server.counters import ServerCounters
from forebay.server.lake.lake_snapshots import LakeSnapshots
from forebay.server.lake.lake_tiering import TieringManager
from forebay.server.metadata.catalog import Descriptions, LiveTable, TableCatalog, buckets_of
from forebay.server.metadata.lake_tables import LakeTables
from forebay.server.metadata.metadata_store import MetadataStore
from forebay.server.storage.log_epochs import LogEpochs
from forebay.server.storage.replica import BucketReplica
from forebay.server.storage.replicas import ReplicaManager
from forebay.server.storage.writer_ids import WriterIds
from forebay.server.transactions.manager import TransactionManager
from forebay.server.wire.connections import Connections, Consumer, Half, MemoryBudget

T = TypeVar("T")

_CLIENT: ContextVar[Hashable] = ContextVar("client", default=None)
"""The client that the running task works for; None for the server itself."""

_Job = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


def context_of(client: Hashable) -> Context:
    """Return the context of tasks that work for `client`."""
    context = copy_context()
    context.run(_CLIENT.set, client)
    return context


class Rotation:
    """Jobs for the threads of `executor`."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = threads.lock()
        self._jobs: dict[Hashable, deque[_Job]] = {}
        self._clients: deque[Hashable] = deque()

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """Queue a job for the client of the running task; return its future. It can be cancelled until it starts."""
        future: Future[T] = threads.future()
        client = _CLIENT.get()
        with self._lock:
            jobs = self._jobs.get(client)
            if jobs is None:
                jobs = self._jobs[client] = deque()
                self._clients.append(client)
            jobs.append((future, function, arguments))
        self._executor.submit(self._do_next)
        return future

    def __len__(self) -> int:
        """How many jobs have not begun."""
        with self._lock:
            return sum(map(len, self._jobs.values()))

    def _do_next(self) -> None:
        with self._lock:
            client = self._clients.popleft()
            jobs = self._jobs[client]
            future, function, arguments = jobs.popleft()
            if jobs:
                self._clients.append(client)
            else:
                del self._jobs[client]
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = function(*arguments)
        except BaseException as e:  # noqa: BLE001 - handed to whoever waits, as an executor does
            future.set_exception(e)
        else:
            future.set_result(result)


ITEMS_MAX = 100_000
ANSWER_BYTES_MAX = 64 << 20

ITEM_BYTES = 256
"""Memory of the response about one thing, or of an error for it, while it is built."""

SHORT_LIST = 256
"""Lists of up to this many things are processed in one go."""

H = TypeVar("H", bound=Hashable)

_PIECE_SECONDS = 0.005
_PIECE_ITEMS = 4096
"""A piece ends after this many things even if the clock stands still, as in a simulation."""


_GATE_BYTES = 2 << 20
"""Total length of the requests inside the gate: one of the longest, or many of a few thousand items."""


class Gate:
    """Admits as much as fits at a time, in order of arrival; an item larger than the limit is admitted alone.

    Belongs to the event loop's thread. There is no limit of time: whatever is inside ends in bounded time.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.inside = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def passing(self, size: int) -> AsyncIterator[None]:
        """Wait for room for `size`, and take it until the block ends."""
        if self._waiting or not self._fits(size):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._leave(size)
                elif (size, turn) in self._waiting:
                    self._waiting.remove((size, turn))
                    self._let_in()
                raise
        else:
            self.inside += size
        try:
            yield
        finally:
            self._leave(size)

    def _fits(self, size: int) -> bool:
        return not self.inside or self.inside + size <= self.limit

    def _leave(self, size: int) -> None:
        self.inside -= size
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if turn.cancelled():
                continue
            self.inside += size
            turn.set_result(None)


class RequestCosts:
    """The limits of one server, and the rotation of its long work."""

    def __init__(
        self, clock: Clock = SYSTEM_CLOCK, items_max: int = ITEMS_MAX, answer_bytes_max: int = ANSWER_BYTES_MAX
    ) -> None:
        self.clock = clock
        self.items_max = items_max
        self.answer_bytes_max = answer_bytes_max
        self.gate = Gate(_GATE_BYTES)
        """The gate for long requests while they are parsed and answered, by length."""
        self._rotation = asyncio.Lock()

    def check_items(self, count: int, what: str) -> None:
        """Raise `LimitExceeded` if a request names, or asks to describe, too many things."""
        if count > self.items_max:
            raise LimitExceeded(
                f"the request names {count} {what}; one request may name {self.items_max} "
                "(server.request.max-items): ask for fewer at a time",
                ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
            )

    def check_answer_bytes(self, size: int, what: str) -> None:
        """Raise `LimitExceeded` if a response becomes too large."""
        if size > self.answer_bytes_max:
            raise LimitExceeded(
                f"the answer is larger than {self.answer_bytes_max} bytes ({what}; server.request.max-answer-size): "
                "ask for fewer at a time",
                ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
            )

    async def each(self, items: Iterable[T], count: int, work: Callable[[T], None]) -> None:
        """Do `work`, which raises nothing, with each of `count` items; in pieces if they are many."""
        if count <= SHORT_LIST:
            for item in items:
                work(item)
            return
        async with self.pieces() as pieces:
            for item in items:
                work(item)
                if pieces.is_over():
                    await pieces.next()

    async def distinct(self, items: Iterable[H], count: int) -> list[H]:
        """Return the distinct ones of `count` items, in order of first appearance; in pieces if they are many."""
        found: dict[H, None] = {}
        await self.each(items, count, lambda item: found.setdefault(item))
        return list(found)

    def pieces(self) -> Pieces:
        """Long work: `async with costs.pieces() as pieces`; in its loop, `if pieces.is_over(): await pieces.next()`."""
        return Pieces(self._rotation, self.clock)


class Pieces:
    """The pieces of one request's long work. Do not wait for anything else inside of one."""

    def __init__(self, rotation: asyncio.Lock, clock: Clock) -> None:
        self._rotation = rotation
        self._clock = clock
        self._items = 0
        self._end = 0.0

    async def __aenter__(self) -> Pieces:
        await self._rotation.acquire()
        self._begin()
        return self

    def _begin(self) -> None:
        self._items = 0
        self._end = self._clock.monotonic() + _PIECE_SECONDS

    def is_over(self, items: int = 1) -> bool:
        """Count `items` things as done; return whether the piece has taken long enough."""
        self._items += items
        return self._items >= _PIECE_ITEMS or self._clock.monotonic() >= self._end

    async def next(self) -> None:
        """End the piece; return when it is this request's turn again."""
        self._rotation.release()
        try:
            await asyncio.sleep(0)
        finally:
            await self._rotation.acquire()
        self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rotation.release()


# Waking long polls: waiters for a bucket's growth are notified, on the event loop, when its high watermark moves.


class ProgressNotifier:
    """Waiters by bucket. `progressed` may be called from any thread; everything else belongs to the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tiering: TieringManager) -> None:
        self._loop = loop
        self._waiters: dict[TableBucket, set[asyncio.Event]] = {}
        self._tiering = tiering

    def progressed(self, bucket: TableBucket) -> None:
        """Wake the waiters of `bucket`, which has new records, or is gone; tiering notes a lake table's rows."""
        if bucket in self._waiters:  # a stale read is harmless: a waiter checks once more after it has registered
            self._loop.call_soon_threadsafe(self._wake, bucket)
        if bucket.table_id in self._tiering.table_ids:
            self._tiering.changed(bucket.table_id)

    def _wake(self, bucket: TableBucket) -> None:
        for event in self._waiters.get(bucket, ()):
            event.set()

    @property
    def waiting(self) -> int:
        """How many waits there are: one for each bucket of a fetch."""
        return sum(map(len, list(self._waiters.values())))

    def watch(self, event: asyncio.Event, bucket: TableBucket) -> None:
        """Set `event` whenever `bucket` moves, until `unwatch`."""
        self._waiters.setdefault(bucket, set()).add(event)

    def unwatch(self, event: asyncio.Event, bucket: TableBucket) -> None:
        """End a `watch`, if there is one."""
        waiting = self._waiters.get(bucket)
        if waiting is not None:
            waiting.discard(event)
            if not waiting:
                del self._waiters[bucket]


_LOGGER = logging.getLogger(__name__)


_SHARE_OF_ONE_ANSWER = 2
"""The reservation for one response is at most this part of all memory for responses."""


@dataclass(frozen=True, slots=True)
class LakeParts:
    """The parts that serve tiering: lake tables, known snapshots, the schedule."""

    tables: LakeTables
    snapshots: LakeSnapshots
    tiering: TieringManager
    coordinator_epoch: int
    """Incremented at every start: tiering epochs from before are void."""


@dataclass
class ServerContext:
    """The parts of a running server. Handlers run on the event loop and leave it for anything that may block."""

    config: ServerConfig
    catalog: TableCatalog
    store: MetadataStore
    replicas: ReplicaManager
    scanners: ScannerManager
    table_snapshots: TableSnapshotManager
    transactions: TransactionManager
    notifier: ProgressNotifier
    clock: Clock
    lake: LakeParts
    coordinator: Executor
    """One thread, for changes of metadata."""
    io: Executor
    """Threads for reads that may touch the disk."""
    costs: RequestCosts
    """Limits of one request."""
    counters: ServerCounters
    epochs: LogEpochs
    nodes: dict[str, tuple[ServerNode, ServerNode]] = field(default_factory=dict)
    """(coordinator, tablet server) addresses by listener."""
    connections: Connections | None = None
    """Set by the server; a context without a server has none."""
    started_ms: int = field(init=False)
    descriptions: Descriptions = field(init=False)
    writer_ids: WriterIds = field(init=False)
    _staging: WeakValueDictionary[tuple[int, str], asyncio.Lock] = field(default_factory=WeakValueDictionary)
    _opening: dict[TableBucket, _Opening] = field(default_factory=dict)
    _unfinished: set[asyncio.Task[Any]] = field(default_factory=set)
    _changes: Rotation = field(init=False)
    _reads: Rotation = field(init=False)

    def __post_init__(self) -> None:
        self.started_ms = self.clock.now_ms()
        self.writer_ids = WriterIds(self.store)
        self._changes, self._reads = Rotation(self.coordinator), Rotation(self.io)
        self.descriptions = Descriptions(self.lake.tables.described)

    @property
    def queued_jobs(self) -> int:
        """How many reads wait for a thread."""
        return len(self._reads)

    def untiered(self, table: LiveTable) -> int:
        """Log records of a table that its newest lake snapshot does not have, as far as its buckets' ends are known."""
        ends = self.replicas.known_ends(table)
        try:
            tiered = self.lake.snapshots.newest_readable(table.info)[1].offsets
        except ForebayError:  # none yet; or a damaged file, which retention reports
            tiered = {}
        return sum(max(end - tiered.get(bucket, 0), 0) for bucket, end in ends.items())

    async def in_coordinator(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a change of metadata, one at a time with all others."""
        return await asyncio.wrap_future(self._changes.submit(function, *arguments))

    async def to_the_end(self, change: Coroutine[Any, Any, T]) -> T:
        """Make a change that takes several steps: all of them, also if the client that waits for it has gone."""
        task = asyncio.get_running_loop().create_task(change)
        self._unfinished.add(task)
        task.add_done_callback(self._has_ended)
        return await asyncio.shield(task)

    def _has_ended(self, task: asyncio.Task[Any]) -> None:
        self._unfinished.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may have gone: asyncio need not log an error that no task awaits

    async def ended(self) -> None:
        """Wait for the changes of `to_the_end`."""
        while self._unfinished:
            await asyncio.wait(self._unfinished)

    async def in_io(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function that reads files. It has ended, or never begins, when this returns, even after a cancellation:
        its resources may be released then."""
        work = self._reads.submit(function, *arguments)
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            if not work.cancel():
                await _end_of(work)
            raise

    def stage_turn(self, transaction_id: int, attempt: str) -> asyncio.Lock:
        """The turns of the requests of one attempt, in order of arrival: `async with context.stage_turn(...)`."""
        return self._staging.setdefault((transaction_id, attempt), asyncio.Lock())

    async def remove_data(self, info: TableInfo, partition_ids: Sequence[int], folder: str) -> None:
        """Close the buckets of a dropped object and remove its directory in the background."""
        await self.in_io(self.replicas.drop, buckets_of(info, partition_ids))
        self.coordinator.submit(self.replicas.remove_folders, [folder])

    @asynccontextmanager
    async def using(self, bucket: TableBucket) -> AsyncIterator[BucketReplica]:
        """Yield the replica of a bucket, which stays open inside the block. Raises as `begin` does."""
        replica = await self.begin(bucket)
        try:
            yield replica
        finally:
            self.replicas.end(replica)

    async def begin(self, bucket: TableBucket) -> BucketReplica:
        """The replica of a bucket, which stays open until `replicas.end`.

        Raises `Unavailable` (UNKNOWN_TABLE_OR_BUCKET).

        Calls that wait for a bucket to open are served in order of arrival, with no overtaking: writes of one
        connection must reach the bucket in their order.
        """
        opened = self.begin_if_open(bucket)
        if opened is not None:
            return opened
        queue = self._opening.setdefault(bucket, _Opening())
        queue.waiting += 1
        try:
            async with queue.turn:
                return await self._begin_opened(bucket)
        finally:
            queue.waiting -= 1
            if not queue.waiting:
                del self._opening[bucket]

    @asynccontextmanager
    async def using_group(
        self, buckets: Sequence[TableBucket], of: int
    ) -> AsyncIterator[dict[TableBucket, BucketReplica | Exception]]:
        """Yield, for each of several different buckets, its replica, open inside the block, or the reason it has none.

        Not all buckets can be open at once, so this takes a group of up to `SHORT_LIST` `of` all that a request names.
        """
        found: dict[TableBucket, BucketReplica | Exception] = {}
        unopened: list[TableBucket] = []

        def look_up(bucket: TableBucket) -> None:
            try:
                opened = self.begin_if_open(bucket)
            except ForebayError as e:
                found[bucket] = e.with_traceback(None)  # there may be very many, and frames are larger than errors
            except Exception as e:  # noqa: BLE001 - it belongs to this bucket
                found[bucket] = e
            else:
                if opened is None:
                    unopened.append(bucket)
                else:
                    found[bucket] = opened

        if of > SHORT_LIST:
            await asyncio.sleep(0)  # a group may never wait, while others wait for it
        try:
            await self.costs.each(buckets, of, look_up)
            for bucket in unopened:
                try:
                    found[bucket] = await self.begin(bucket)
                except Exception as e:  # noqa: BLE001 - as above
                    found[bucket] = e
            yield {bucket: found[bucket] for bucket in buckets}
        finally:
            for replica in found.values():
                if isinstance(replica, BucketReplica):
                    self.replicas.end(replica)

    @property
    def has_openings(self) -> bool:
        """Whether calls wait for buckets to open."""
        return bool(self._opening)

    def begin_if_open(self, bucket: TableBucket) -> BucketReplica | None:
        """As `begin`, where the bucket is open and nothing waits for it. Raises as `begin` does."""
        if bucket in self._opening:
            return None
        opened = self.replicas.begin_if_open(bucket)
        if opened is None:
            self.replicas.table_of(bucket)
        return opened

    async def _begin_opened(self, bucket: TableBucket) -> BucketReplica:
        opening = asyncio.ensure_future(self.in_io(self.replicas.begin, bucket))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:  # the thread continues, and the use it begins must end
            opening.add_done_callback(self._end_opened)
            raise

    def _end_opened(self, opening: asyncio.Future[BucketReplica]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self.replicas.end(opening.result())


async def _end_of(work: Future[Any]) -> None:
    """Wait until a thread has done `work`, however often the waiting task is cancelled."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    work.add_done_callback(lambda _: loop.call_soon_threadsafe(ended.set))
    while not work.done():
        with suppress(asyncio.CancelledError):
            await ended.wait()


class _Opening:
    """The calls that wait for one bucket to open."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.waiting = 0


class AnswerRoom:
    """Memory for the response to one call, if it may be large: a place among the connection's responses, and bytes of
    the server's budget.

    It is entered before the response is built, and left when the client has read it, or when there is none yet.
    """

    def __init__(self, room: asyncio.Semaphore, budget: MemoryBudget, consumer: Consumer) -> None:
        self._room = room
        self._budget = budget
        self._half: Half = budget.answering
        self._consumer = consumer
        self.reserved = 0
        self.is_held = False
        self._has_place = False
        self._unwritten: list[Future[Any]] = []

    async def take_place(self) -> None:
        """Wait until the client has read enough of its earlier responses, and keep the place until `close`.

        For long requests, before their gate: inside, other requests would wait for them.
        """
        if not self.is_held:
            await self._room.acquire()
        self._has_place = True

    async def enter(self, size: int) -> None:
        """Wait until the client has read enough of its earlier responses, and there is memory for one of `size` bytes.

        Raises `Unavailable` if there is none in bounded time.
        """
        if self.is_held:
            return
        if not self._has_place:
            await self._room.acquire()
        try:
            await self._reserve(min(size, self._budget.answering.limit // _SHARE_OF_ONE_ANSWER))
        except BaseException:
            self._give_place()
            raise
        self.is_held = True

    async def _reserve(self, size: int) -> None:
        budget = self._budget
        if size <= budget.short_answer_bytes and budget.short_answers.try_take(size):
            self._half = budget.short_answers
        else:
            self._half = budget.answering
            await self._half.reserve(self._consumer, size)
        self.reserved = size

    async def enter_for(self, items: int) -> None:
        """Enter with memory for a response about `items` things; a short one needs no reservation."""
        if items > SHORT_LIST:
            await self.enter(items * ITEM_BYTES)

    async def change_to(self, size: int) -> None:
        """Reserve memory for another attempt at the response, of `size` bytes; the earlier one must be released.

        Raises as `enter` does.
        """
        if self.is_held:
            self.settle()
            await self._reserve(min(size, self._budget.answering.limit))

    async def grow_to(self, size: int) -> None:
        """Reserve more memory for a response that is larger than its reservation. Raises as `enter` does."""
        answering = self._budget.answering
        size = min(size, answering.limit)
        missing = size - self.reserved
        if not self.is_held or missing <= 0:
            return
        if self._half is answering:
            await answering.reserve(self._consumer, missing)
        else:
            await answering.reserve(self._consumer, size)
            self.settle()
            self._half = answering
        self.reserved = size

    def settle(self) -> None:
        """Release the reservation: the response is built, and its unsent part is counted elsewhere."""
        self._half.give(self.reserved)
        self.reserved = 0

    def leave(self) -> None:
        """Release the place and memory, if any are held."""
        if self.is_held:
            self.is_held = False
            self.settle()
            self._give_place()

    def close(self) -> None:
        """Leave for good."""
        self.leave()
        if self._has_place:
            self._has_place = False
            self._give_place()

    # ---- the request, where it is a write ---------------------------------------------------------------------------

    def keep_until(self, written: Future[Any]) -> None:
        """Keep the request's bytes until its queued write is done, even if its response is no longer awaited."""
        self._unwritten.append(written)

    def when_written(self, call: Callable[[], object]) -> None:
        """Call `call` once none of the writes is queued any more; immediately if they are done."""
        queued = [asyncio.wrap_future(written) for written in self._unwritten if not written.done()]
        self._unwritten.clear()
        if not queued:
            call()
            return
        ended = asyncio.gather(*queued, return_exceptions=True)
        ended.add_done_callback(lambda _: call())

    # ---- places -----------------------------------------------------------------------------------------------------

    def _give_place(self) -> None:
        if not self._has_place:
            self._room.release()


@dataclass(frozen=True, slots=True)
class ServerCall:
    """One request: its message, the `records` payloads cut out of it, its sender and listener."""

    message: Any
    payloads: Sequence[memoryview]
    api_version: int
    role: ServerRole
    listener: str
    principal: str | None
    room: AnswerRoom
    is_long: bool = False
    """Whether the request is so long that other long ones wait for it; it must then not wait for long itself."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response message, with the payloads that fill its empty `records` fields in order."""

    message: Message
    payloads: Sequence[Buffer] = ()


def begun(coroutine: Coroutine[Any, Any, T], context: Context | None = None) -> asyncio.Task[T] | None:
    """Run a coroutine to its first wait at once. Return a task with the rest, or None if it has ended already.

    Raises what the coroutine raises until then. Before its first wait it is no task: `asyncio.timeout` and
    `asyncio.current_task` do not work there. (Python 3.12 has eager tasks; simulated loops make tasks of their own.)
    """
    try:
        awaited = coroutine.send(None) if context is None else context.run(coroutine.send, None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_rest_of(coroutine, awaited), context=context)


async def _rest_of(coroutine: Coroutine[Any, Any, T], awaited: Any) -> T:
    """The rest of a coroutine that waits for `awaited` already."""
    return await _resumed(coroutine, awaited)  # a task takes no generator since Python 3.12


@types.coroutine
def _resumed(coroutine: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    while True:
        try:
            sent = yield awaited
        except GeneratorExit:  # the collector of garbage may have closed the coroutine first
            coroutine.close()
            raise
        except BaseException as e:  # noqa: BLE001 - thrown by the task, to the coroutine
            go_on = partial(coroutine.throw, e)
        else:
            go_on = partial(coroutine.send, sent)
        try:
            awaited = go_on()
        except StopIteration as e:
            return e.value  # type: ignore[no-any-return]


Handler = Callable[[ServerContext, ServerCall], "Answer | Message | Coroutine[Any, Any, Answer | Message]"]

HANDLERS: dict[ApiKey, Handler] = {}
"""Every API that this server implements; filled by the modules of forebay.server.handlers."""


def serves(key: ApiKey) -> Callable[[Handler], Handler]:
    """Register a handler for one API."""

    def register(handler: Handler) -> Handler:
        HANDLERS[key] = handler
        return handler

    return register


def write_too_late(timeout_ms: int) -> Unavailable:
    return Unavailable(
        f"the write was not acknowledged within {timeout_ms} ms; it may still be written", ErrorCode.REQUEST_TIME_OUT
    )


def put_error(answer: PerBucketAnswer, error: BaseException) -> None:
    """Put an error into the response for one bucket; internal errors are logged with their trace."""
    if not isinstance(error, ForebayError):
        _LOGGER.error("internal error", exc_info=error)
    answer.error_code, answer.error_message = error_to_wire(error)
