"""A machine with a server on a simulated disk, clients, tiering workers and a lake; its faults; its true state.

`World(seed).run()` is one history: actors use the real client against the real server while faults strike, then all
faults stop and the checks of `tests.simulation.checks` are made. See docs/simulation.md.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

from forebay.base import threads
from forebay.base.ambient import SeededIds
from forebay.base.errors import Conflict, CorruptData, ForebayError, InternalError, StorageFailure, Unavailable
from forebay.client import session
from forebay.client.cluster.rpc import Call
from forebay.client.connection import Connection
from forebay.client.reading import remote_log
from forebay.client.settings import make_settings
from forebay.client.writing.writer import TableWriter
from forebay.server.config import server_config
from forebay.server.flow import write_queue
from forebay.server.journal import checkpoints
from forebay.server.server import ForebayServer, Injected
from forebay.server.wire.rpc import RpcProtocol
from forebay.store import journal
from forebay.testing.memory_lake import MemoryLakeStorage, forget_lake
from forebay.tiering.round import TieringLake
from forebay.tiering.service import TieringService
from forebay.unionread import open_lakes
from tests.simulation.disk import MapEngine, SimDatabaseFile, SimFileSystem, SimVfs
from tests.simulation.hlog import engine_on
from tests.simulation.machines import DATA, PORTS, Machines
from tests.simulation.network import Network
from tests.simulation.object_store import RemoteFile, SimObjectStore
from tests.simulation.scheduler import Process, Scheduler, SimClock, SimEvent, SimLoop, SimTask, SimThreads, Stop

LAKE = "simulation"

SERVER_SETTINGS = {
    "log.index.interval-size": "200b",
    "kv.snapshot.interval": "3 s",
    "kv.checkpoint.records": "8",
    "log.replica.high-watermark.checkpoint-interval": "2 s",
    "kv.scanner.ttl": "5 s",
    "kv.scanner.expiration-interval": "2 s",
    "remote.log.task-interval-duration": "4 s",
    "server.writer-id.expiration-check-interval": "10 s",
    "auto-partition.check.interval": "20 s",
    "server.worker-threads": "2",
    "server.io-pool.size": "3",
    "datalake.format": "paimon",
    "datalake.paimon.name": LAKE,
}

OPEN_BUCKETS = (1, 2, 3, 1000)
"""How many buckets may stay open unused: by the seed. A history has four."""

SEGMENT_SIZES = ("2kb", "2kb", "2kb", "400b", "400b", "2kb")
"""Of logs, by the seed: a small one is full after one or two batches, also where the loop writes short requests."""

STORE_EACH = 4
"""Every fourth world has a store, which outlives its machines."""

STORE_SETTINGS = {
    "store": SimObjectStore.location,
    "store.interval": "300 ms",
    "store.retention": "5 s",
    "store.segment-age": "5 s",
}
ANCHOR_EVERY, PREPARED_BEFORE = 16, 6
"""Of the journal, in place of a thousand."""

QUICK_DISK_EACH = 3
QUICK_SYNC_SECONDS = 20e-6
"""Every third world has a disk with syncs as quick as this: there the event loop soon writes short requests itself."""

CLIENT_OPTIONS = {
    "client.connect-timeout": "2 s",
    "client.request-timeout": "3 s",
    "client.retry-timeout": "6 s",
    "client.writer.delivery-timeout": "15 s",
    "client.writer.batch-timeout": "50 ms",
    "client.scanner.log.fetch.wait-max-time": "300 ms",
}


class Damage(AssertionError):
    """A promise is broken."""


@contextmanager
def ordered_sets() -> Iterator[None]:
    """Give objects of the product that stand in sets a hash that does not depend on where they lie in memory."""
    numbers, SimTask.numbers = count(1), count(1)

    def numbered(self: Any) -> int:
        number: int | None = self.__dict__.get("_sim_number")
        if number is None:
            number = self.__dict__["_sim_number"] = next(numbers)
        return number

    def of_call(self: Any) -> int:
        return int(self.request_id)

    patched: list[tuple[Any, Any]] = [(cls, numbered) for cls in (RpcProtocol, TableWriter, asyncio.Event)]
    patched.append((Call, of_call))
    before = [(cls, cls.__hash__) for cls, _ in patched]
    for cls, function in patched:
        cls.__hash__ = function
    try:
        yield
    finally:
        for cls, function in before:
            cls.__hash__ = function


class _Complaints(logging.Handler):
    """Takes what the product logs as an error with a traceback: a bug, unless it is an error on purpose."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        world = self._world
        task = world.sched.current
        if task is not None and task.process.dead:
            return
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, InternalError) or (error is not None and not isinstance(error, ForebayError | Stop)):
            world.complaints.append((record.getMessage(), error))


class World:
    """See the module. `counts` tells what happened, by name."""

    def __init__(self, seed: int, keep_trace: bool = False) -> None:
        self.seed = seed
        self.sched = Scheduler(seed, keep_trace)
        self.rng = random.Random(seed ^ 0x5EED)
        self.network = Network(self.sched)
        self.counts: Counter[str] = Counter()
        self.complaints: list[tuple[str, BaseException | None]] = []
        self.control = Process("control")
        self.server_process: Process | None = None
        self.server: ForebayServer | None = None
        self.loop: SimLoop | None = None
        self.is_up = False
        self.changed = SimEvent(self.sched)
        self.finished = False
        self.may_restart = True
        self.open_buckets_max = OPEN_BUCKETS[seed % len(OPEN_BUCKETS)]
        self.boot = 1
        self.mount = 1
        self.has_witnesses = self.rng.random() < 0.9
        self.damaged = False
        """Whether bytes were changed behind the server's back: then data may be refused, but never be wrong."""
        self.connections: list[Connection] = []
        self.fs = self.new_disk()
        self.fs_failure_kind = "kill"
        self.vfs: list[SimVfs] = []
        self.ids = SeededIds(self.rng.getrandbits(32))
        self.machines = Machines(self)
        self.store: SimObjectStore | None = None
        self.is_stored = False
        """Whether all that is acknowledged is in the store."""
        self.lease_seconds = 0
        if seed % STORE_EACH == STORE_EACH - 1:
            self.store = SimObjectStore(self.sched, random.Random(self.rng.random()))
            self.is_stored = self.rng.random() < 0.75
            self.lease_seconds = self.rng.choice((0, 3))
        self._stack = ExitStack()

    def note(self, text: str) -> None:
        self.sched.note(text)

    def count(self, what: str) -> None:
        self.counts[what] += 1

    # ---- the frame --------------------------------------------------------------------------------------------------

    def __enter__(self) -> World:
        self._stack.enter_context(threads.use(SimThreads(self.sched)))
        if self.seed % QUICK_DISK_EACH == 0:
            self._stack.enter_context(patch.object(write_queue, "QUICK_SYNCS_MIN", 2))
        handler = _Complaints(self)
        logger = logging.getLogger("forebay")
        before = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.propagate = False
        self._stack.callback(lambda: setattr(logger, "propagate", before[1]))
        self._stack.callback(logger.removeHandler, handler)
        if self.store is not None:
            self._stack.enter_context(patch.object(remote_log, "_open", self._open_object))
            self._stack.enter_context(patch.object(journal, "ANCHOR_EVERY", ANCHOR_EVERY))
            self._stack.enter_context(patch.object(checkpoints, "_PREPARED_BEFORE", PREPARED_BEFORE))
        create = open_lakes.create_lake_storage
        open_lakes.create_lake_storage = self.create_storage  # type: ignore[assignment]
        self._stack.callback(lambda: setattr(open_lakes, "create_lake_storage", create))
        self._stack.enter_context(ordered_sets())
        gc.disable()
        self._stack.callback(gc.enable)
        forget_lake(LAKE)
        return self

    def __exit__(self, *_: object) -> None:
        for process in [self.server_process, *self.machines.all_processes(), self.control, *self.processes]:
            if process is not None:
                self.sched.kill(process)
        for connection in self.connections:
            self._forget(connection)
        self.connections.clear()
        self.server = self.loop = None
        self.sched.timers.clear()
        self._stack.close()
        for vfs in self.vfs:
            vfs.close()
        forget_lake(LAKE)

    processes: list[Process]

    def create_storage(self, _name: str, _options: Any) -> MemoryLakeStorage:
        return MemoryLakeStorage({"name": LAKE})

    # ---- the server -------------------------------------------------------------------------------------------------

    def supervise(self) -> None:
        """Start the server whenever there is none. Runs until the world ends."""
        while not self.finished:
            if not self.may_restart:
                self.sched.sleep(0.1)
                continue
            process = self.server_process = Process("server")
            outcome: list[BaseException | None] = []
            self.sched.spawn(process, self._serve, process, outcome, name="start")
            while not outcome and process is self.server_process and not process.dead:
                self.sched.sleep(0.02)
            if process is not self.server_process:
                continue  # another machine is to take over
            error = outcome[0] if outcome else None
            if error is not None:
                self.note(f"start failed: {type(error).__name__}: {error}")
                self.count("starts that failed")
                self._judge_start(error)
                self.sched.kill(process)
                self.network.process_ended(process, silently=False)
                if self.store is not None and isinstance(error, Conflict | journal.JournalGone):
                    self.machines.move()  # as the error says: with a new data directory
                else:
                    self.fs = self.fs.kill()
                self.sched.sleep(0.5 + self.rng.random())
                continue
            if not process.dead:
                self.is_up = True
                self.network.reset_silent()
                self.network.down.discard("server")
                self.note("server up")
            while process is self.server_process and not process.dead and not self.finished:
                self.sched.sleep(0.05)
                if self._is_fenced:
                    self.fail_machine("kill")
            self.is_up = False
            if not self.finished:
                self.sched.sleep(self.rng.random())

    @property
    def settings(self) -> dict[str, str]:
        """Those of every server of this world."""
        return (
            SERVER_SETTINGS
            | self._store_settings
            | {
                "server.open-buckets.max": str(self.open_buckets_max),
                "log.segment.file-size": SEGMENT_SIZES[self.seed % len(SEGMENT_SIZES)],
            }
        )

    @property
    def _store_settings(self) -> dict[str, str]:
        if self.store is None:
            return {}
        durability = "store" if self.is_stored else "local"
        return STORE_SETTINGS | {
            "store.durability": durability,
            "store.lease": f"{self.lease_seconds} s",
            "store.client-access": "direct" if self.seed % 8 == 3 else "server",
        }

    @property
    def _is_fenced(self) -> bool:
        server_journal = None if self.server is None else self.server._journal
        return server_journal is not None and server_journal.is_fenced

    def _open_object(self, path: str) -> RemoteFile:
        """What clients that read the store themselves open."""
        assert self.store is not None
        return self.store.open(path)

    def new_disk(self) -> SimFileSystem:
        disk = SimFileSystem(self.sched, random.Random(self.rng.random()), self._fs_failure)
        if self.seed % QUICK_DISK_EACH == 0:
            disk.sync_seconds_max = QUICK_SYNC_SECONDS
        return disk

    def _serve(self, process: Process, outcome: list[BaseException | None]) -> None:
        loop = self.loop = SimLoop(self.sched, process, self.network)
        clock = SimClock(self.sched, process)
        process.wall_offset_ms = self.wall_offset_ms
        ports = self.machines.ports
        config = server_config(DATA, coordinator_port=ports[0], tablet_port=ports[1], settings=self.settings)
        fs = self.fs
        vfs = SimVfs(f"sim-{id(self)}-{len(self.vfs)}", fs)
        self.vfs.append(vfs)
        server = self.server = ForebayServer(config, self._injected(fs, clock, vfs))
        try:
            loop.run(server.start())
        except Stop:
            raise
        except BaseException as e:  # noqa: BLE001 - judged by the supervisor
            outcome.append(e)
            return
        process.serves = True
        outcome.append(None)

    def _injected(self, fs: SimFileSystem, clock: SimClock, vfs: SimVfs) -> Injected:
        return Injected(
            clock=clock,
            ids=self.ids,
            fs=fs,
            engine_factory=engine_on(fs, MapEngine),  # type: ignore[arg-type]
            witnesses=self.witnesses,
            place_of_files=lambda *_: None,
            create_lake_storage=self.create_storage,
            bind=self.network.bind,  # type: ignore[arg-type]
            database_file=lambda path: SimDatabaseFile(path, vfs),
            open_store=lambda *_: self.store,  # type: ignore[arg-type,return-value]
        )

    wall_offset_ms = 0
    rot = 0.0
    refused = False
    """Whether the server has said that it does not start on these files."""

    def witnesses(self, _folder: str) -> frozenset[str]:
        return frozenset({f"mount boot-{self.boot} {self.mount}"}) if self.has_witnesses else frozenset()

    def _judge_start(self, error: BaseException) -> None:
        if self.damaged and isinstance(error, CorruptData | StorageFailure):
            self.refused = isinstance(error, CorruptData)
            return
        if isinstance(error, StorageFailure) and not isinstance(error, CorruptData):
            return
        if isinstance(error, Conflict) and self.machines.number:
            return  # another machine has taken over from this one
        raise Damage(f"the server does not start: {type(error).__name__}: {error}") from error

    def _fs_failure(self) -> None:
        self.fail_machine(self.fs_failure_kind)

    def fail_machine(self, kind: str) -> None:
        """End the server: "kill" (the process), "power" (the machine), "remount" (the volume went away and came back),
        each with what it does to the disk and to those who are connected."""
        process = self.server_process
        if process is None or process.dead:
            return
        self.note(f"fail {kind}")
        self.count(kind)
        self.is_up = False
        if kind == "kill":
            self.fs = self.fs.kill()
        else:
            self.fs = self.fs.crash()
            self.mount += 1
            if kind == "power":
                self.boot += 1
                self.network.down.add("server")
        self.network.process_ended(process, silently=kind == "power")
        self.sched.kill(process)

    def stop_server(self) -> None:
        """Stop as SIGTERM does, in order; a stop that hangs is a fault of its own."""
        process, server, loop = self.server_process, self.server, self.loop
        fs = self.fs  # of its machine: a standby on another one may take over while it stops
        if process is None or process.dead or server is None or loop is None or not self.is_up:
            return
        self.note("stop")
        self.count("stop")
        outcome: list[BaseException | None] = []

        def stop() -> None:
            try:
                loop.run(server.stop())
                outcome.append(None)
            except Stop:
                raise
            except BaseException as e:  # noqa: BLE001 - judged below
                outcome.append(e)

        # When all connections are closed, the server waits for its threads in a callback: it has nothing else to do.
        process.serves = False
        self.sched.spawn(process, stop, name="stop")
        deadline = self.sched.now + 60
        while not outcome and not process.dead:
            if self.sched.now > deadline:
                raise Damage("the server does not stop within 60 s")
            self.sched.sleep(0.02)
        if outcome and outcome[0] is not None and not isinstance(outcome[0], ForebayError):
            raise Damage(f"stopping fails: {outcome[0]!r}") from outcome[0]
        if outcome and fs._locks:
            raise Damage(f"a stopped server has not given back {sorted(fs._locks)}")
        self.is_up = False
        self.network.process_ended(process, silently=False)
        if not process.dead:
            self.fs = self.fs.kill()
            self.sched.kill(process)

    def start_second_server(self) -> None:
        """Start another server on the directory of the first: it must refuse, and the first one must not notice."""
        first, fs = self.server_process, self.fs
        if first is None or not self.is_up:
            return
        process = Process("second server")
        outcome: list[BaseException | None] = []
        self.sched.spawn(process, self._serve_second, process, outcome, name="second")
        deadline = self.sched.now + 20
        while not outcome and self.fs is fs and not first.dead and self.sched.now < deadline:
            self.sched.sleep(0.01)
        self.sched.kill(process)
        if self.fs is not fs or first.dead:
            return  # the first one has ended meanwhile, and with it what the second one could have seen
        if not outcome:
            raise Damage("a second server on the directory neither starts nor refuses within 20 s")
        if not isinstance(outcome[0], Conflict | StorageFailure | Unavailable):
            raise Damage(f"a second server on the directory of another one: {outcome[0]!r}")
        self.count("second servers refused")

    def _serve_second(self, process: Process, outcome: list[BaseException | None]) -> None:
        loop = SimLoop(self.sched, process, self.network)
        config = server_config(DATA, coordinator_port=PORTS[0] + 10, tablet_port=PORTS[1] + 10, settings=self.settings)
        vfs = SimVfs(f"sim-{id(self)}-{len(self.vfs)}", self.fs)
        self.vfs.append(vfs)
        server = ForebayServer(config, self._injected(self.fs, SimClock(self.sched, process), vfs))
        try:
            loop.run(server.start())
        except Stop:
            raise
        except BaseException as e:  # noqa: BLE001 - judged by who has started it
            outcome.append(e)
            return
        outcome.append(None)

    # ---- clients ----------------------------------------------------------------------------------------------------

    def connect(self, process: Process, addresses: str | None = None, **options: str) -> Connection:
        settings = make_settings(addresses or self.machines.addresses, None, None, {**CLIENT_OPTIONS, **options})
        connection = Connection(
            settings,
            clock=SimClock(self.sched, process),
            ids=self.ids,
            dial=self.network.dialler(process),  # type: ignore[arg-type]
        )
        self.connections.append(connection)
        process.on_kill.append(lambda: self._forget(connection))
        return connection

    def _forget(self, connection: Connection) -> None:
        for finalizer in (connection._finalizer, connection._sender_finalizer):
            if finalizer is not None:
                finalizer.detach()
        session._live.discard(connection)

    def tiering(self, process: Process, connection: Connection) -> TieringService:
        return TieringService(
            connection,
            tables_max=2,
            poll_seconds=0.4,
            lake=TieringLake(create_storage=self.create_storage),
            clock=SimClock(self.sched, process),
        )

    # ---- waiting ----------------------------------------------------------------------------------------------------

    def full_disk(self, full: bool) -> None:
        self.fs.full = full

    def inject(self, operation: Any, **options: Any) -> None:
        self.fs.inject(operation, error=options.pop("error", errno.EIO), **options)


Actor = Callable[[], None]
