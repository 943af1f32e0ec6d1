"""The context of request handlers: the server's parts, and one call.

A request names things in lists: tables, partitions, buckets, keys. Each list is processed once for each distinct thing.
What a request may cost is bounded by `forebay.server.flow.request_limits`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from forebay.base.ambient import Clock
from forebay.base.errors import ErrorCode, ForebayError, Unavailable
from forebay.base.threads import Executor, Future
from forebay.kv.scanner import ScannerManager
from forebay.kv.table_snapshots import TableSnapshotManager
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol.api import ApiKey, ServerNode, ServerRole
from forebay.protocol.messages import Buffer, Message, PerBucketAnswer, error_to_wire
from forebay.server.config import ServerConfig
from forebay.server.connections import Connections
from forebay.server.counters import ServerCounters
from forebay.server.flow.fair_executor import FairExecutor
from forebay.server.flow.request_limits import SHORT_LIST, RequestLimits, T
from forebay.server.flow.response_memory import ResponseMemory
from forebay.server.journal.server_journal import ServerJournal
from forebay.server.journal.store_gate import AnswerGate
from forebay.server.lake.lake_snapshots import LakeSnapshots
from forebay.server.lake.lake_tiering import TieringManager
from forebay.server.metadata.catalog import Descriptions, LiveTable, TableCatalog, buckets_of
from forebay.server.metadata.lake_tables import LakeTables
from forebay.server.metadata_store import MetadataStore
from forebay.server.remote_log.remote_logs import RemoteLogs
from forebay.server.remote_state.kv_snapshots import KvSnapshots
from forebay.server.storage.log_epochs import LogEpochs
from forebay.server.storage.progress_notifier import ProgressNotifier
from forebay.server.storage.replica import BucketReplica
from forebay.server.storage.replicas import ReplicaManager
from forebay.server.storage.writer_ids import WriterIds
from forebay.server.transactions.manager import TransactionManager

_LOGGER = logging.getLogger(__name__)


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
    store_io: Executor
    """Threads for what waits for the store, which may take long."""
    limits: RequestLimits
    """Limits of one request."""
    counters: ServerCounters
    epochs: LogEpochs
    gate: AnswerGate | None = None
    """What holds answers back until they are in the store, if anything does."""
    remote_logs: RemoteLogs | None = None
    kv_snapshots: KvSnapshots | None = None
    """Those that clients download; None if they cannot read the store."""
    """Log segments in the store, if there is one."""
    journal: ServerJournal | None = None
    """What uploads to the store, if there is one."""
    handlers: Mapping[ApiKey, Handler] = field(default_factory=lambda: HANDLERS)
    """Those of a standby refuse what would change something."""
    standby: Callable[[], tuple[int, float]] | None = None
    """Of a standby: as of when reads are, by the clock of the server that it follows (ms), and for how many seconds it
    was not seen that this is all that the journal has. None for a server."""
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
    _changes: FairExecutor = field(init=False)
    _reads: FairExecutor = field(init=False)
    _store_reads: FairExecutor = field(init=False)

    def __post_init__(self) -> None:
        self.started_ms = self.clock.now_ms()
        self.writer_ids = WriterIds(self.store)
        self._changes, self._reads = FairExecutor(self.coordinator), FairExecutor(self.io)
        self._store_reads = FairExecutor(self.store_io)
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
        return await to_its_end(self._reads.submit(function, *arguments))

    async def in_store(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function that waits for the store, as `in_io` does, and without delaying reads of files."""
        return await to_its_end(self._store_reads.submit(function, *arguments))

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
        self, buckets: Sequence[TableBucket], total: int
    ) -> AsyncIterator[dict[TableBucket, BucketReplica | Exception]]:
        """Yield, for each of several different buckets, its replica, open inside the block, or the reason it has none.

        Not all buckets can be open at once, so a group has up to `SHORT_LIST` of the request's `total` buckets.
        """
        results: dict[TableBucket, BucketReplica | Exception] = {}
        unopened: list[TableBucket] = []

        def look_up(bucket: TableBucket) -> None:
            try:
                opened = self.begin_if_open(bucket)
            except ForebayError as e:
                results[bucket] = e.with_traceback(None)  # there may be very many, and frames are larger than errors
            except Exception as e:  # noqa: BLE001 - it belongs to this bucket
                results[bucket] = e
            else:
                if opened is None:
                    unopened.append(bucket)
                else:
                    results[bucket] = opened

        if total > SHORT_LIST:
            await asyncio.sleep(0)  # a group may never wait, while others wait for it
        try:
            await self.limits.each(buckets, total, look_up)
            for bucket in unopened:
                try:
                    results[bucket] = await self.begin(bucket)
                except Exception as e:  # noqa: BLE001 - as above
                    results[bucket] = e
            yield {bucket: results[bucket] for bucket in buckets}
        finally:
            for replica in results.values():
                if isinstance(replica, BucketReplica):
                    self.replicas.end(replica)

    @property
    def has_openings(self) -> bool:
        """Whether calls wait for buckets to open."""
        return bool(self._opening)

    def begin_if_open(self, bucket: TableBucket) -> BucketReplica | None:
        """Return the replica as `begin` does if the bucket is open and nothing waits for it, otherwise None. Raises as
        `begin`.
        """
        if bucket in self._opening:
            return None
        opened = self.replicas.begin_if_open(bucket)
        if opened is None:
            self.replicas.table_of(bucket)
        return opened

    async def _begin_opened(self, bucket: TableBucket) -> BucketReplica:
        is_from_store = self.journal is not None and await self.in_io(self.replicas.begins_from_store, bucket)
        run = self.in_store if is_from_store else self.in_io
        opening = asyncio.ensure_future(run(self.replicas.begin, bucket))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:  # the thread continues, and the use it begins must end
            opening.add_done_callback(self._end_opened)
            raise

    def _end_opened(self, opening: asyncio.Future[BucketReplica]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self.replicas.end(opening.result())


async def to_its_end(work: Future[T]) -> T:
    """The result of work in a thread. It has ended, or never begins, when this returns, even after a cancellation."""
    try:
        return await asyncio.wrap_future(work)
    except asyncio.CancelledError:
        if not work.cancel():
            await _end_of(work)
        raise


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


@dataclass(frozen=True, slots=True)
class ServerCall:
    """One request: its message, the `records` payloads cut out of it, its sender and listener."""

    message: Any
    payloads: Sequence[memoryview]
    api_version: int
    role: ServerRole
    listener: str
    principal: str | None
    memory: ResponseMemory
    is_long: bool = False
    """Whether the request is so long that other long ones wait for it; it must then not wait for long itself."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response message, with the payloads that fill its empty `records` fields in order."""

    message: Message
    payloads: Sequence[Buffer] = ()


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
