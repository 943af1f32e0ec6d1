"""A running server: assembly, listeners, maintenance, shutdown.

One process plays both roles of a Fluss cluster, coordinator and tablet server, each on its own port, because clients
check which role they reach (docs/design/0003-two-ports-two-roles.md). Everything visible to clients happens on one
event loop; blocking work runs in threads: one for metadata, some for writing buckets, some for reading.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.base import threads
from forebay.base.ambient import SYSTEM_CLOCK, SYSTEM_IDS, Clock, IdSource
from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest
from forebay.base.host import page_cache_witnesses, place_of_files
from forebay.base.threads import Executor
from forebay.fs import names
from forebay.fs.interface import FileSystem
from forebay.fs.local import LocalFileSystem
from forebay.kv.checkpoint import PageCacheWitnesses
from forebay.kv.engine import EngineFactory
from forebay.kv.engines import wants_rocksdb_files
from forebay.kv.scanner import ScannerManager
from forebay.kv.table_snapshots import TableSnapshotManager
from forebay.lake.formats import create_lake_storage
from forebay.log.checkpoints import DataDirectory
from forebay.metadata.table import PhysicalTablePath, TableBucket
from forebay.protocol.api import ApiKey, ServerNode, ServerRole, offered
from forebay.protocol.listeners import (
    Listener,
    SecurityProtocol,
    authenticator_factory,
    check_named_listeners,
    parse_listeners,
)
from forebay.server import handlers as _handlers  # noqa: F401 - importing the package registers the handlers
from forebay.server.config import ServerConfig, check_warehouse
from forebay.server.connections import Connections
from forebay.server.context import HANDLERS, LakeParts, ServerContext, to_its_end
from forebay.server.counters import ServerCounters
from forebay.server.flow.disk_reserve import DiskReserve
from forebay.server.flow.request_limits import RequestLimits
from forebay.server.journal.journaled_logs import JournaledLogs
from forebay.server.journal.server_journal import ServerJournal, StoreSettings
from forebay.server.journal.taking_over import take_over
from forebay.server.lake.lake_snapshots import LakeSnapshots
from forebay.server.lake.lake_tiering import TieringManager
from forebay.server.maintenance.auto_partitions import follow_the_clock
from forebay.server.maintenance.retention import LogRetention
from forebay.server.metadata.catalog import TableCatalog
from forebay.server.metadata.lake_tables import LakeStorageFactory, LakeTables
from forebay.server.metadata_store import (
    COORDINATOR_EPOCH_COUNTER,
    METADATA_FILE,
    DatabaseFile,
    LocalDatabaseFile,
    MetadataStore,
)
from forebay.server.remote_log.planned_objects import PlannedObjects
from forebay.server.remote_log.remote_log import SegmentReaders
from forebay.server.remote_log.remote_logs import RemoteLogs
from forebay.server.remote_log.tiering import LogTiering, TieringSettings
from forebay.server.remote_state.kv_snapshot_list import KvSnapshotList
from forebay.server.remote_state.kv_snapshots import KvSnapshots
from forebay.server.remote_state.state_snapshots import StateSnapshots
from forebay.server.storage.log_epochs import LogEpochs, begin_epoch_if_needed
from forebay.server.storage.progress_notifier import ProgressNotifier
from forebay.server.storage.replica import BucketReplica
from forebay.server.storage.replicas import ReplicaManager, refuse_rocksdb
from forebay.server.transactions.manager import TransactionManager
from forebay.server.transactions.stages import StageFiles
from forebay.server.wire._poller import HAS_POLLER, Poller
from forebay.server.wire.rpc import RpcProtocol
from forebay.server.wire.serving_loop import ServingLoop
from forebay.server.wire.short_requests import ShortRequests
from forebay.store.objects import ObjectStore
from forebay.store.opening import open_store

if TYPE_CHECKING:
    from forebay.base.monitoring import Monitoring

_LOGGER = logging.getLogger(__name__)

CLIENT_LISTENER = "CLIENT"
SASL_LISTENER = "CLIENT_SASL"
_COORDINATOR_ID = 0
_COMMITS_AT_ONCE = 2
"""Transactions whose rows are written at a time; others wait for their turn."""
_PROBLEMS_SHOWN = 3
"""Buckets that a message names; the rest is only counted."""
LOOP_SECONDS = 5.0
"""An event loop without an iteration for this long is reported as hanging: pieces of work take milliseconds."""
_DRAIN_SECONDS = 5.0
"""How long a stopping server waits for requests in flight."""
_PRODUCERS_SECONDS = 3600.0
"""How often expired producer offsets are removed; registering others removes them, too."""
_STORE_READS_AT_ONCE = 8
"""Reads of log segments and states in the store, each of which waits for it."""
_FENCED_SECONDS = 30.0
"""How long the journal waits until no client gets an answer any more; the loop may have ended, when there is none."""
_STORED_SECONDS = 60.0
"""How long objects are not created or deleted, because they wait for the journal, before they are left for the next
time."""
_ENDS_SECONDS = 0.2
"""How often the ends of logs are made durable while they change. After a power failure, damage of what was synced
earlier is distinguished from a torn write."""


def event_loop() -> asyncio.AbstractEventLoop:
    """A new event loop on which a server reads and writes sockets by its kernel; other loops work, but more slowly."""
    return ServingLoop()


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a server: `host:port` of the coordinator role, which clients bootstrap from."""

    bootstrap_servers: str
    sasl_bootstrap_servers: str | None
    tablet_servers: str
    monitoring: str | None = None
    """Where `/metrics`, `/healthz` and `/readyz` are served; None if they are not."""


@dataclass(frozen=True)
class _RemoteParts:
    """What a server with a store knows of the logs and the states there."""

    logs: RemoteLogs
    states: StateSnapshots
    downloads: KvSnapshots | None
    """Snapshots for clients, if they read the store themselves."""


@dataclass
class _Bound:
    """A listener of one role, bound to its port."""

    role: ServerRole
    listener: Listener
    sockets: list[socket.socket]
    server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        port: int = self.sockets[0].getsockname()[1]
        return port


@dataclass
class Injected:
    """Replaceable parts, for tests: clock, ids, files, engine, page cache, places of files, lake, network, database."""

    clock: Clock = SYSTEM_CLOCK
    ids: IdSource = SYSTEM_IDS
    fs: FileSystem = field(default_factory=LocalFileSystem)
    engine_factory: EngineFactory | None = None
    witnesses: PageCacheWitnesses = page_cache_witnesses
    place_of_files: Callable[[str, str], str | None] = place_of_files
    create_lake_storage: LakeStorageFactory = create_lake_storage
    bind: Callable[[Listener], socket.socket] = field(default_factory=lambda: bind_tcp)
    database_file: Callable[[str], DatabaseFile] = LocalDatabaseFile
    open_store: Callable[[str, Mapping[str, str]], ObjectStore] = open_store


class ForebayServer:
    """One server. `start` and `stop` belong to one event loop; create a new object to start again."""

    def __init__(self, config: ServerConfig, injected: Injected | None = None) -> None:
        self.config = config
        self._injected = injected or Injected()
        self._connections: Connections | None = None
        self._lost: ForebayError | None = None
        self._is_lost = asyncio.Event()
        self._bound: list[_Bound] = []
        self._poller: Poller | None = None
        self._upkeep: list[asyncio.Task[None]] = []
        self._context: ServerContext | None = None
        self._directory: DataDirectory | None = None
        self._store: MetadataStore | None = None
        self._executors: list[Executor] = []
        self._monitoring: Monitoring | None = None
        self._journal: ServerJournal | None = None
        self._tiering: LogTiering | None = None

    @property
    def context(self) -> ServerContext:
        """The parts of the running server."""
        if self._context is None:
            raise InvalidRequest("the server is not running")
        return self._context

    @property
    def connections(self) -> Connections:
        """The connections of the running server."""
        if self._connections is None:
            raise InvalidRequest("the server is not running")
        return self._connections

    # ---- starting ---------------------------------------------------------------------------------------------------

    async def start(self) -> Addresses:
        """Open the data directory, bind the listeners and serve; return the addresses, or release everything."""
        if self._injected.create_lake_storage is create_lake_storage:
            check_warehouse(self.config)
        try:
            self._bound = _bind_all(self.config, self._injected.bind)
            self._open_parts()
            self._connections = Connections(
                asyncio.get_running_loop(), self._injected.clock, self.config, self.context.counters
            )
            self.context.connections = self._connections
            await self._listen()
            monitoring = self._start_monitoring()
        except BaseException:
            await self.stop()
            raise
        self._start_upkeep()
        if self.config.lake.enabled:
            self.context.io.submit(self.context.lake.tables.load)
        if all(each.listener.protocol is SecurityProtocol.PLAINTEXT for each in self._bound):
            unused = [key for key in self.config.settings if key.startswith("security.sasl.")]
            if unused:
                _LOGGER.warning("no listener asks for a login: '%s' has no effect without --sasl", unused[0])
        addresses = replace(self._addresses(), monitoring=monitoring)
        _LOGGER.info("serving %s on %s", self.config.data_dir, addresses.bootstrap_servers)
        return addresses

    def _start_monitoring(self) -> str | None:
        """Serve metrics and health, if that is wanted; return the address."""
        settings = self.config.monitoring
        if settings is None:
            return None
        from forebay.base.monitoring import Monitoring
        from forebay.server.metrics import SAMPLE_SECONDS, ServerMetrics

        data_dir = str(Path(self.config.data_dir).absolute())
        metrics = ServerMetrics(self.context, self.connections, self._injected.fs, data_dir)
        self._every(SAMPLE_SECONDS, metrics.sample)
        self._monitoring = Monitoring([metrics], self._hangs(), self._problems)
        host, port = self._monitoring.start(settings.host, settings.ports, settings.allowed_hosts)
        _LOGGER.info("metrics on http://%s:%d/metrics", host, port)
        return f"{host}:{port}"

    @staticmethod
    def _hangs() -> Callable[[], list[str]]:
        """Whether the running event loop takes its turns, to be asked in any other thread."""
        loop = asyncio.get_running_loop()

        def faults() -> list[str]:
            turn = threads.event()
            try:
                loop.call_soon_threadsafe(turn.set)
            except RuntimeError:
                return ["the server has stopped"]
            return [] if turn.wait(LOOP_SECONDS) else [f"the event loop has not taken a turn for {LOOP_SECONDS:g} s"]

        return faults

    def _problems(self) -> list[str]:
        """Why the server is not ready."""
        context, connections = self._context, self._connections
        if context is None or connections is None or connections.is_closing:
            return ["the server is stopping"]
        problems = []
        offline = [replica for replica in context.replicas.replicas() if replica.log.is_offline]
        if offline:
            shown = ", ".join(str(replica.log.folder) for replica in offline[:_PROBLEMS_SHOWN])
            problems.append(f"{len(offline)} buckets are offline since writing to them failed, such as {shown}")
        damaged = context.replicas.damaged()
        if damaged:
            shown = "; ".join(error.message for error in list(damaged.values())[:_PROBLEMS_SHOWN])
            problems.append(f"{len(damaged)} buckets are offline since their files are damaged: {shown}")
        if not context.replicas.accepts_writes:
            problems.append("the data disk is full: writes are refused until space is free")
        return problems

    def _open_parts(self) -> None:
        config, injected = self.config, self._injected
        data_dir = str(Path(config.data_dir).absolute())
        directory = self._directory = DataDirectory.open(injected.fs, data_dir)
        coordinator = self._executor("forebay-coordinator", 1)
        writers = self._executor("forebay-write", config.value("server.worker-threads"))
        io = self._executor("forebay-io", config.value("server.io-pool.size"))
        store_io = io if config.value("store") is None else self._executor("forebay-store", _STORE_READS_AT_ONCE)
        reserve = DiskReserve(
            injected.fs,
            data_dir,
            config.value("server.data-disk.reserve"),
            config.value("server.data-disk.write-limit-ratio"),
        )
        journal = self._journal = self._take_over(directory)
        store, epochs = self._open_metadata(directory, data_dir)
        if journal is not None:
            journal.begin(store)
        gate = None if journal is None else journal.open_gate(asyncio.get_running_loop())
        remote = None if journal is None else self._remote_parts(journal.store, store, reserve)
        lake = self._lake_parts(store, data_dir)
        catalog = TableCatalog(store, injected.clock, config.catalog_limits, lake.tables)
        refuse_rocksdb(injected.fs, data_dir, catalog.tables())  # before anything of the last shutdown is changed
        lake.tables.opened(table.info for table in catalog.tables())
        scanners = ScannerManager(config.scanner_limits, injected.clock, injected.ids)
        table_snapshots = TableSnapshotManager(config.table_snapshot_limits, injected.clock, injected.ids)
        counters = counters_of(config)
        notifier = ProgressNotifier(asyncio.get_running_loop(), lake.tiering)
        replicas = ReplicaManager(
            injected.fs,
            directory,
            catalog,
            store,
            scanners,
            table_snapshots,
            epochs=epochs,
            log_config=config.log_config,
            reserve=reserve,
            engine=config.value("kv.engine"),
            open_max=config.open_buckets_max,
            checkpoint_records=config.value("kv.checkpoint.records"),
            engine_factory=injected.engine_factory,
            witnesses=injected.witnesses,
            clock=injected.clock,
            writers=writers,
            on_progress=notifier.progressed,
            counters=counters,
            log_store=None if journal is None or remote is None else JournaledLogs(journal, remote.logs, remote.states),
        )
        transactions = self._transactions(store, catalog, replicas, reserve, data_dir)
        limits = RequestLimits(injected.clock, config.value("server.request.max-items"), config.answer_bytes_max)
        self._context = ServerContext(
            config, catalog, store, replicas, scanners, table_snapshots, transactions, notifier, injected.clock, lake,
            coordinator, io, store_io, limits, counters, epochs, gate, None if remote is None else remote.logs,
            None if remote is None else remote.downloads, journal,
        )  # fmt: skip
        for bound in self._bound:
            self._context.nodes[bound.listener.name] = self._nodes_of(bound.listener.name)
        # Before the next one is made there.
        _remove_leftover(injected.fs, names.join(data_dir, names.DOWNLOADS_FOLDER))
        if journal is not None and remote is not None:
            self._start_journal(journal, self._context, remote)
        coordinator.submit(replicas.remove_folders, replicas.doomed_folders())
        if journal is not None:
            # Of a standby that was killed. Reads of this process that are just ending remove it, too.
            coordinator.submit(_remove_leftover, injected.fs, names.join(data_dir, names.READS_FOLDER))
        store_io.submit(transactions.finish_decided)

    def _take_over(self, directory: DataDirectory) -> ServerJournal | None:
        """Take over the store, if there is one."""
        config, injected = self.config, self._injected
        where = config.value("store")
        if where is None:
            return None
        settings = StoreSettings(
            config.seconds("store.interval"),
            lease_seconds=config.lease_seconds,
            retention_seconds=config.seconds("store.retention"),
            is_awaited=config.value("store.durability") == "store",
            put_interval_seconds=config.seconds("store.put-interval"),
        )
        store = injected.open_store(where, config.store_options)
        began = config.epoch_began("the server was started")
        taken = take_over(
            store,
            injected.fs,
            directory,
            began,
            log_config=config.log_config,
            clock=injected.clock,
            ids=injected.ids,
            database_file=injected.database_file,
        )
        return ServerJournal(store, taken, injected.fs, directory.path, settings, injected.clock)

    def _remote_parts(self, store: ObjectStore, metadata: MetadataStore, reserve: DiskReserve) -> _RemoteParts:
        config, injected, planned = self.config, self._injected, self._planned_objects(metadata)
        clock, ids, retention_ms = injected.clock, injected.ids, config.value("store.retention")
        states = StateSnapshots(metadata, store, planned, injected.fs, clock, ids, retention_ms)
        downloads = None
        if config.value("store.client-access") == "direct":
            scratch = names.join(str(Path(config.data_dir).absolute()), names.DOWNLOADS_FOLDER)
            downloads = KvSnapshots(
                KvSnapshotList(metadata), store, planned, clock, ids, retention_ms, scratch, reserve
            )
        return _RemoteParts(self._remote_logs(store, metadata), states, downloads)

    def _remote_logs(self, store: ObjectStore, metadata: MetadataStore) -> RemoteLogs:
        injected, retention_ms = self._injected, self.config.value("store.retention")
        cache_bytes = self.config.value("remote.log.index-file-cache-size")
        readers = SegmentReaders(store, self.config.log_config, cache_bytes)
        planned = self._planned_objects(metadata)
        return RemoteLogs(metadata, readers, planned, injected.clock, injected.ids, retention_ms)

    def _planned_objects(self, metadata: MetadataStore) -> PlannedObjects:
        return PlannedObjects(metadata, self._injected.clock, self._wait_until_stored)

    def _wait_until_stored(self) -> bool:
        """Wait until the journal has all metadata; return whether it does."""
        return self._journal is not None and self._journal.wait_until_stored(_STORED_SECONDS)

    def _start_journal(self, journal: ServerJournal, context: ServerContext, remote: _RemoteParts) -> None:
        """Upload from now on, and move log segments and state to the store."""
        config, replicas, loop = self.config, context.replicas, asyncio.get_running_loop()

        def fenced(why: ForebayError) -> None:
            is_done = threads.event()

            def end() -> None:
                self._fenced(why)
                is_done.set()

            loop.call_soon_threadsafe(end)
            is_done.wait(_FENCED_SECONDS)

        def note_files() -> None:
            journal.note_files(names.STAGES_FOLDER)
            for path in context.lake.snapshots.paths():
                journal.note_file(path)

        note_files()  # what a process that was killed had written may be missing
        journal.start(replicas, fenced, copied_ends=remote.logs.ends, note_files=note_files)
        for bucket in replicas.ends_beyond(journal.stored_end):
            context.store_io.submit(replicas.touch, bucket)

        def put_state(replica: BucketReplica, path: PhysicalTablePath) -> None:
            folder, bucket = replica.kv_folder, replica.bucket
            if folder is None:
                return
            if remote.states.put(bucket, path, folder):
                _LOGGER.info("copied the state of %s (bucket %s) to the store", path, bucket)
            downloads = context.kv_snapshots
            if downloads is not None and wants_rocksdb_files(replica.table.info.descriptor):
                try:
                    if downloads.put(bucket, path, folder):
                        _LOGGER.info("made a snapshot of %s (bucket %s) for clients", path, bucket)
                except ForebayError as e:
                    _LOGGER.error("no snapshot of %s (bucket %s) is made for clients for now: %s", path, bucket, e)

        def forget() -> None:
            def exists(bucket: TableBucket) -> bool:
                return replicas.find_table(bucket) is not None

            remote.states.forget_dropped(exists)
            if context.kv_snapshots is not None:
                context.kv_snapshots.sweep(exists)

        self._tiering = LogTiering(
            remote.logs,
            replicas,
            context.lake.snapshots,
            TieringSettings(config.value("store.segment-age"), config.value("remote.log.task-max-upload-segments")),
            stored_end=journal.stored_end,
            wait_until_stored=self._wait_until_stored,
            state_end=remote.states.end,
            put_state=put_state,
            forget=forget,
            clock=self._injected.clock,
        )

    async def wait_until_lost(self) -> ForebayError:
        """Return the reason when the server cannot serve any more, as when another one has taken over its store."""
        await self._is_lost.wait()
        assert self._lost is not None
        return self._lost

    def _fenced(self, why: ForebayError) -> None:
        """Serve nothing any more: another server has the store."""
        self._lost = why
        self._is_lost.set()
        if self._connections is not None:
            self._connections.is_closing = True
            for connection in list(self._connections):
                connection.abort()

    def _open_metadata(self, directory: DataDirectory, data_dir: str) -> tuple[MetadataStore, LogEpochs]:
        injected = self._injected
        database = injected.database_file(names.join(data_dir, METADATA_FILE))
        store = self._store = MetadataStore(database, is_new=not directory.was_used)
        epochs = LogEpochs(store, injected.clock, injected.ids)
        begin_epoch_if_needed(
            epochs,
            store,
            injected.fs,
            data_dir,
            witnesses=injected.witnesses(data_dir),
            place=injected.place_of_files(names.join(data_dir, names.LOCK_FILE), database.path),
        )
        return store, epochs

    def _transactions(
        self, store: MetadataStore, catalog: TableCatalog, replicas: ReplicaManager, reserve: DiskReserve, data_dir: str
    ) -> TransactionManager:
        config = self.config
        feed = None if self._journal is None else self._journal.feed
        transactions = TransactionManager(
            store,
            StageFiles(
                self._injected.fs,
                names.join(data_dir, names.STAGES_FOLDER),
                None if feed is None else feed.file_grew,
                None if feed is None else feed.file_removed,
                *(() if feed is None else (feed.when_stored,)),
            ),
            catalog,
            replicas,
            reserve,
            config.transaction_limits,
            self._injected.clock,
            self._executor("forebay-commit", _COMMITS_AT_ONCE),
            self._executor("forebay-commit-write", config.value("server.worker-threads")),
        )
        replicas.decided = transactions
        return transactions

    def _lake_parts(self, store: MetadataStore, data_dir: str) -> LakeParts:
        injected = self._injected
        tiering = TieringManager(injected.clock)
        feed = None if self._journal is None else self._journal.feed
        snapshots = LakeSnapshots(
            injected.fs, data_dir, store, injected.clock, injected.ids,
            None if feed is None else feed.file_grew, None if feed is None else feed.file_removed,
            *(() if feed is None else (feed.when_stored,)),
        )  # fmt: skip
        tables = LakeTables(self.config.lake, tiering, snapshots, injected.create_lake_storage)
        return LakeParts(tables, snapshots, tiering, store.take(COORDINATOR_EPOCH_COUNTER))

    def _executor(self, name: str, threads_max: int) -> Executor:
        executor = threads.executor(threads_max, name)
        self._executors.append(executor)
        return executor

    def _nodes_of(self, listener: str) -> tuple[ServerNode, ServerNode]:
        """Return coordinator and tablet server, at the addresses that clients of this listener can reach."""
        by_role = {bound.role: bound for bound in self._bound if bound.listener.name == listener}

        def node(role: ServerRole, node_id: int) -> ServerNode:
            bound = by_role[role]
            return ServerNode(
                node_id, bound.listener.advertised_host, bound.listener.advertised_port or bound.port, role
            )

        return node(ServerRole.COORDINATOR, _COORDINATOR_ID), node(
            ServerRole.TABLET, self.config.value("tablet-server.id")
        )

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        connections, short = self.connections, ShortRequests(self.context, self.connections)
        if (
            HAS_POLLER
            and isinstance(loop, ServingLoop)
            and all(isinstance(sock, socket.socket) for bound in self._bound for sock in bound.sockets)
        ):
            self._poller = Poller(loop, self._injected.clock, short)
        for bound in self._bound:
            apis = offered((ApiKey.API_VERSIONS, ApiKey.AUTHENTICATE, *HANDLERS), bound.role)
            authenticators = authenticator_factory(bound.listener, _security_settings(self.config))

            def connection(bound: _Bound = bound, apis=apis, authenticators=authenticators) -> RpcProtocol:  # type: ignore[no-untyped-def]
                name = bound.listener.name
                return RpcProtocol(self.context, bound.role, name, apis, authenticators(), connections, short)

            for sock in bound.sockets:
                if self._poller is None:  # simulated ones, another kind of loop, or no epoll
                    bound.server = await loop.create_server(connection, sock=sock)
                else:
                    self._poller.listen(sock, connection)

    def _addresses(self) -> Addresses:
        def of(role: ServerRole, protocol: SecurityProtocol) -> str | None:
            for bound in self._bound:
                if bound.role is role and bound.listener.protocol is protocol:
                    return f"{bound.listener.advertised_host}:{bound.listener.advertised_port or bound.port}"
            return None

        plain = of(ServerRole.COORDINATOR, SecurityProtocol.PLAINTEXT)
        sasl = of(ServerRole.COORDINATOR, SecurityProtocol.SASL)
        tablets = of(ServerRole.TABLET, SecurityProtocol.PLAINTEXT) or of(ServerRole.TABLET, SecurityProtocol.SASL)
        return Addresses(plain or sasl or "", sasl, tablets or "")

    # ---- upkeep -----------------------------------------------------------------------------------------------------

    def _start_upkeep(self) -> None:
        context, config = self.context, self.config
        every = self._every
        replicas = context.replicas
        every(config.seconds("kv.scanner.expiration-interval"), context.scanners.expire)
        every(config.seconds("kv.scanner.expiration-interval"), context.table_snapshots.expire)
        every(config.seconds("kv.scanner.expiration-interval"), context.transactions.expire)
        every(_ENDS_SECONDS, replicas.sync_ends, replicas.has_new_ends)
        every(config.seconds("log.replica.high-watermark.checkpoint-interval"), replicas.sync_idle)
        every(config.seconds("log.replica.high-watermark.checkpoint-interval"), replicas.save_offsets)
        every(config.seconds("log.replica.high-watermark.checkpoint-interval"), replicas.close_idle)
        every(config.seconds("log.replica.high-watermark.checkpoint-interval"), replicas.close_offline)
        every(config.seconds("kv.snapshot.interval"), replicas.checkpoint_grown)
        every(config.seconds("server.writer-id.expiration-check-interval"), replicas.expire_writers)
        every(_PRODUCERS_SECONDS, lambda: context.store.expire_producer_offsets(context.clock.now_ms()))
        stored = {} if self._journal is None else {"stored_end": self._journal.stored_end}
        retention = LogRetention(replicas, context.catalog, context.lake.snapshots, context.clock, **stored)
        every(config.seconds("remote.log.task-interval-duration"), retention.run)
        if self._tiering is not None:
            # In a thread of its own: it may copy for minutes.
            pool = self._executor("forebay-log-tiering", 1)
            every(config.seconds("remote.log.task-interval-duration"), self._tiering.run, pool=pool)
        self._upkeep.append(asyncio.create_task(self._auto_partition(config.seconds("auto-partition.check.interval"))))
        self._upkeep.append(asyncio.create_task(self._close_idle_connections()))

    async def _auto_partition(self, seconds: float) -> None:
        """Run now, and every `seconds`; a failure is logged and does not end the loop."""
        while True:
            try:
                await follow_the_clock(self.context)
            except Exception:
                _LOGGER.exception("automatic partitions failed and will be retried")
            await asyncio.sleep(seconds)

    def _every(
        self,
        seconds: float,
        work: Callable[[], object],
        is_due: Callable[[], bool] = lambda: True,
        pool: Executor | None = None,
    ) -> None:
        """Run `work` in a thread every `seconds`, if it is due; a failure is logged and does not end the loop."""

        async def repeat() -> None:
            while True:
                await asyncio.sleep(seconds)
                if not is_due():
                    continue
                try:
                    await (self.context.in_io(work) if pool is None else to_its_end(pool.submit(work)))
                except ForebayError as e:
                    _LOGGER.error("maintenance failed and will be retried: %s", e)
                except Exception:
                    _LOGGER.exception("maintenance failed and will be retried")

        self._upkeep.append(asyncio.create_task(repeat()))

    async def _close_idle_connections(self) -> None:
        idle_max = self.config.seconds("netty.connection.max-idle-time")
        login_max = self.config.seconds("server.connections.login-timeout")
        while True:
            await asyncio.sleep(min(idle_max, login_max, 30.0))
            self.connections.close_idle(idle_max, login_max)

    # ---- stopping ---------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop accepting requests, finish those in flight, close everything. A second call does nothing.

        If something cannot be closed, the rest is closed all the same, and the data directory is unlocked; the error is
        raised afterwards.
        """
        tiering, self._tiering = self._tiering, None
        if tiering is not None:
            tiering.stop()
        upkeep, self._upkeep = self._upkeep, []
        for task in upkeep:
            task.cancel()
        monitoring, self._monitoring = self._monitoring, None
        if monitoring is not None:
            await asyncio.get_running_loop().run_in_executor(None, monitoring.stop)
        connections = self._connections
        if connections is not None:
            connections.is_closing = True
        await self._close_listeners()
        if connections is not None:
            await self._drain(connections)
            for transport in list(connections.refused):
                transport.abort()
            connections.memory_pools.close()
        poller, self._poller = self._poller, None
        if poller is not None:
            await poller.close()
        # What looks after the buckets has ended when they are closed, and saves no older state after them.
        await asyncio.gather(*upkeep, return_exceptions=True)
        context, self._context = self._context, None
        if context is not None:
            await context.ended()
        directory, self._directory = self._directory, None
        store, self._store = self._store, None
        executors, self._executors = self._executors, []
        journal, self._journal = self._journal, None
        with ExitStack() as closing:  # the last one first
            if directory is not None:
                closing.callback(directory.close)
            if store is not None:
                closing.callback(store.close)
            if context is not None:
                closing.callback(context.lake.tables.close)
            for executor in executors:
                closing.callback(executor.shutdown, wait=True)
            if context is not None:
                context.scanners.shut_down()
                context.table_snapshots.shut_down()
                context.transactions.close()
                if journal is not None:
                    await asyncio.get_running_loop().run_in_executor(None, _stop_journal, journal, context.replicas)
                await asyncio.get_running_loop().run_in_executor(None, context.replicas.close)

    async def _close_listeners(self) -> None:
        loop = asyncio.get_running_loop()
        if self._poller is not None:
            self._poller.stop_listening()
        for bound in self._bound:
            if bound.server is not None:
                for sock in bound.sockets:
                    loop.remove_reader(sock)
        # asyncio forgets a connection, and leaves it open, if its server is closed between `accept` and the next two
        # iterations of the loop.
        for _ in range(3):
            await asyncio.sleep(0)
        for bound in self._bound:
            if bound.server is not None:
                bound.server.close()
            for sock in bound.sockets:
                sock.close()
        self._bound.clear()

    async def _drain(self, connections: Connections) -> None:
        """Give requests in flight, except long polls, and their responses a moment to finish; close all connections."""
        for connection in connections:
            connection.stop_reading()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _DRAIN_SECONDS
        while loop.time() < deadline and any(not each.is_idle or each.unsent_bytes for each in connections):
            await asyncio.sleep(0.01)
        for connection in list(connections):
            connection.close()
        await asyncio.sleep(0)
        while loop.time() < deadline and connections:  # peers that are about to read the end of a response
            await asyncio.sleep(0.01)
        for connection in list(connections):
            connection.abort()


def _remove_leftover(fs: FileSystem, folder: str) -> None:
    """Remove a folder that is of use only while a process runs."""
    try:
        fs.remove_tree(folder)
    except ForebayError as e:
        _LOGGER.info("%s", e.message)


def _stop_journal(journal: ServerJournal, replicas: ReplicaManager) -> None:
    """Upload all that the buckets have, before they are closed."""
    replicas.sync_idle()
    journal.stop()


# ---- listeners ------------------------------------------------------------------------------------------------------


def _security_settings(config: ServerConfig) -> Mapping[str, str]:
    settings = dict(config.settings)
    if config.sasl:
        settings.setdefault("security.sasl.enabled.mechanisms", "PLAIN")
    return settings


def _listeners(config: ServerConfig, role: ServerRole) -> tuple[Listener, ...]:
    """The listeners of one role: from Fluss's settings where they are given, else from host and ports."""
    prefix = "coordinator." if role is ServerRole.COORDINATOR else "tablet-server."
    settings = dict(_security_settings(config))
    for key in ("bind.listeners", "advertised.listeners"):
        own = settings.get(prefix + key)
        if own is not None:
            settings[key] = own
        elif role is ServerRole.TABLET and key in settings:
            settings[key] = _with_port(settings[key], config.tablet_port)
    port = config.coordinator_port if role is ServerRole.COORDINATOR else config.tablet_port
    if "bind.listeners" in settings:
        return _named_listeners(config, settings)
    plain = Listener(CLIENT_LISTENER, SecurityProtocol.PLAINTEXT, config.host, port, config.host, 0)
    if not config.sasl:
        return (plain,)
    sasl_port = 0 if config.plain else port
    sasl = Listener(SASL_LISTENER, SecurityProtocol.SASL, config.host, sasl_port, config.host, 0)
    return (plain, sasl) if config.plain else (sasl,)


def _named_listeners(config: ServerConfig, settings: Mapping[str, str]) -> tuple[Listener, ...]:
    """The listeners of `bind.listeners`. Who asks for `sasl` gets it, or an error: never a server without a login."""
    if not config.sasl:
        return parse_listeners(settings)
    if config.plain:
        listeners = parse_listeners(settings)
        if all(each.protocol is SecurityProtocol.PLAINTEXT for each in listeners):
            raise InvalidRequest(
                "sasl=True (--sasl) asks for a listener with a login, and 'bind.listeners' has none: name it in "
                "'security.protocol.map' (CLIENT:SASL)",
                ErrorCode.CONFIG_EXCEPTION,
            )
        return listeners
    listeners = parse_listeners(settings, default=SecurityProtocol.SASL)
    for each in listeners:
        if each.protocol is SecurityProtocol.PLAINTEXT:
            raise InvalidRequest(
                f"sasl=True (--sasl) requires a login on all ports, and 'security.protocol.map' has the listener "
                f"'{each.name}' as PLAINTEXT; plain=True (--plain) allows that",
                ErrorCode.CONFIG_EXCEPTION,
            )
    return listeners


def _with_port(listeners: str, port: int) -> str:
    """The same listeners for the other role: the first at `port`, the others at ports that the system picks."""
    parts = [part.strip().rpartition(":")[0] for part in listeners.split(",")]
    return ",".join(f"{part}:{port if i == 0 else 0}" for i, part in enumerate(parts))


def _bind_all(config: ServerConfig, bind: Callable[[Listener], socket.socket]) -> list[_Bound]:
    """Bind every listener of both roles; nothing stays bound when one of them fails."""
    listeners = [
        (role, each) for role in (ServerRole.COORDINATOR, ServerRole.TABLET) for each in _listeners(config, role)
    ]
    check_named_listeners([each for _, each in listeners], config.settings)
    bound: list[_Bound] = []
    try:
        for role, listener in listeners:
            bound.append(_Bound(role, listener, [bind(listener)]))
    except BaseException:
        for each in bound:
            for sock in each.sockets:
                sock.close()
        raise
    return bound


def bind_tcp(listener: Listener) -> socket.socket:
    """Return a socket bound to the address of `listener`. Raises `InvalidRequest` if that is impossible."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            listener.host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
    except OSError as e:
        raise InvalidRequest(
            f"cannot listen on {listener.host}:{listener.port}: {e.strerror or e}. Stop what uses that port, or "
            "choose another one (0 lets the system choose)",
            ErrorCode.CONFIG_EXCEPTION,
        ) from e
    return sock


def counters_of(config: ServerConfig) -> ServerCounters:
    """The counters of a server, with what it logs and traces of requests."""
    slow_ms = config.value("server.request.slow-log-threshold")
    counters = ServerCounters(None if slow_ms is None else slow_ms / 1000)
    if config.value("tracing.enabled"):
        from forebay.base.tracing import Tracing

        counters.tracing = Tracing()
    return counters
