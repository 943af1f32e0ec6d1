"""The faults of a history: see docs/simulation.md."""

from __future__ import annotations

import errno

from forebay.base.errors import CorruptData
from forebay.codec.log.header import CRC_OFFSETS, LogBatchHeader, iter_headers
from forebay.fs import names
from forebay.log.log_ends import read_log_ends
from forebay.testing.memory_lake import commit_as_somebody_else, roll_back
from tests.fs.disk_model import File
from tests.simulation.disk import SECTOR, SimFileSystem
from tests.simulation.machines import DATA
from tests.simulation.workload import Workload
from tests.simulation.world import World

_DISK_CALLS = (
    "append", "append", "sync", "sync", "truncate", "open", "write_atomic", "rename", "read", "sync_directory",
    "make_directories", "remove",
)  # fmt: skip


class Faults:
    """Strikes the machine, the network and the workers of a workload, until its actors are done."""

    def __init__(self, world: World, load: Workload) -> None:
        self.world, self.load, self.sched, self.rng = world, load, world.sched, world.rng

    def misbehave(self) -> None:
        """Strike, at random, until the actors are done."""
        rng, sched, world = self.rng, self.sched, self.world
        while not self.load.ready:
            sched.sleep(0.1)
        while self.load.actors_left > 0 and not world.finished:
            sched.sleep(rng.random() * 2.5)
            if self.load.actors_left <= 0:
                break  # the checks at the end are made on a healthy machine
            fault = rng.choices(
                (self.kill, self.kill_at_call, self.cut, self.lose_message, self.lose_answer, self.part, self.slow_net,
                 self.disk_error, self.fill_disk, self.slow_disk, self.jump, self.stop, self.lose_worker,
                 self.hold_worker, self.lose_driver, self.second_server, self.rot, self.rot_after_kill,
                 self.undo_rounds, self.lose_machine, self.take_over, self.store_away, self.store_fails,
                 self.fill_store, self.stand_by, self.trouble_server, self.back_up),
                weights=(3, 5, 2, 4, 4, 2, 1, 4, 1, 1, 1, 1, 1.5, 1.5, 1, 0.7, world.rot, world.rot,
                         3 if self.load.lake else 0, *self._store_weights),
            )[0]  # fmt: skip
            world.count(fault.__name__)
            fault()
        self.heal()

    @property
    def _store_weights(self) -> tuple[float, ...]:
        world = self.world
        if world.store is None:
            return (0,) * 8
        exact = 2 * world.is_stored  # else what was acknowledged may be lost with its machine
        leased = exact if world.lease_seconds else 0  # without, a server may give old answers when it was replaced
        return exact, leased, 1, 2, 0.5, leased, leased, 4

    def _kind(self) -> str:
        return self.rng.choices(("kill", "power", "remount"), weights=(3, 3, 2))[0]

    def kill(self) -> None:
        self.world.fail_machine(self._kind())

    def kill_at_call(self) -> None:
        """The machine fails at one of the next calls of the file system, in the middle of whatever that is."""
        self.world.fs_failure_kind = self._kind()
        self.world.fs.fails_at = self.world.fs.count + int(self.rng.random() ** 2 * 60) + 1
        self.sched.sleep(self.rng.random())

    def cut(self) -> None:
        connections = list(self.world.network.connections.values())
        if connections:
            self.rng.choice(connections).reset()

    def lose_message(self) -> None:
        """One of the next requests or answers does not arrive: its connection breaks at that moment."""
        self.world.network.lose_in = self.rng.randint(1, 8)

    def lose_answer(self) -> None:
        """The next write is made, and its answer does not arrive: the client asks for it again."""
        self.world.network.loses_answer_of_write = True

    def part(self) -> None:
        living = [p.name for p in self.load.processes if not p.dead]
        for name in self.rng.sample(living, self.rng.randint(1, len(living))):
            self.world.network.partition(name, "server")
        self.sched.sleep(self.rng.random() * 5)
        self.world.network.heal()

    def slow_net(self) -> None:
        self.world.network.slow = self.rng.choice((10.0, 100.0, 400.0))
        self.sched.sleep(self.rng.random() * 3)
        self.world.network.slow = 1.0

    def disk_error(self) -> None:
        rng = self.rng
        operation = rng.choice(_DISK_CALLS)
        effects = {"append": ("before", "after", "partial"), "sync": ("before", "after", "drop"),
                   "write_atomic": ("before", "partial")}  # fmt: skip
        # Of the metadata there are few calls.
        where = rng.choice(("", "", "", f"{DATA}/metadata.sqlite"))
        self.world.fs.inject(
            operation,
            where,
            on_call=rng.randint(1, 6),
            times=rng.choice((1, 1, 1, 3)),
            error=rng.choice((errno.EIO, errno.EIO, errno.ENOSPC)),
            effect=rng.choice(effects.get(operation, ("before", "after"))),
        )
        self.sched.sleep(rng.random() * 2)
        self.world.fs.clear_faults()

    def fill_disk(self) -> None:
        self.world.full_disk(True)
        self.sched.sleep(self.rng.random() * 4)
        self.world.full_disk(False)

    def slow_disk(self) -> None:
        self.world.fs.slow_syncs = 1000.0
        self.sched.sleep(self.rng.random() * 3)
        self.world.fs.slow_syncs = 1.0

    def jump(self) -> None:
        process = self.rng.choice([p for p in (self.world.server_process, *self.load.processes) if p is not None])
        process.wall_offset_ms += self.rng.choice((-86_400_000, -5_000, -100, 100, 5_000, 86_400_000))
        if process is self.world.server_process:
            self.world.wall_offset_ms = process.wall_offset_ms

    def stop(self) -> None:
        self.world.stop_server()

    def lose_worker(self) -> None:
        """A tiering worker dies, and another one comes."""
        living = [p for p in self.load.workers if not p.dead]
        if not living:
            return
        process = self.rng.choice(living)
        self.world.network.process_ended(process, silently=self.rng.random() < 0.3)
        self.sched.kill(process)
        self.load.begin_tiering()

    def lose_driver(self) -> None:
        """A driver of a job dies, and another one comes."""
        self.load.drivers.lose_one()

    def lose_machine(self) -> None:
        """The machine and its disk are gone."""
        self.world.machines.lose()

    def take_over(self) -> None:
        """Another machine takes over from one that may be alive."""
        self.world.machines.take_over(self.rng.choice(("running", "suspended", "cut off")))

    def stand_by(self) -> None:
        """A standby is started, and takes over if the lease ends."""
        self.world.machines.stand_by()

    def back_up(self) -> None:
        """The store is copied into another one, while all this goes on."""
        self.world.machines.back_up()

    def trouble_server(self) -> None:
        """The server is suspended, or cut off from its store, for longer than its lease or not."""
        self.world.machines.trouble(self.rng.choice(("suspended", "cut off")))

    def store_away(self) -> None:
        """The store does not answer for a while."""
        store = self.world.store
        assert store is not None
        store.is_away = True
        self.sched.sleep(self.rng.random() ** 2 * 20)
        store.is_away = False

    def store_fails(self) -> None:
        """Requests to the store are slow, throttled, late, or lose their answers, for a while."""
        store = self.world.store
        assert store is not None
        store.failing_share = self.rng.choice((0.1, 0.4))
        store.latency_seconds = self.rng.choice((0.01, 0.1, 0.5))
        self.sched.sleep(self.rng.random() * 6)
        store.failing_share, store.latency_seconds = 0.0, 0.01

    def fill_store(self) -> None:
        """The store's quota is used up for a while."""
        store = self.world.store
        assert store is not None
        store.is_full = True
        self.sched.sleep(self.rng.random() * 4)
        store.is_full = False

    def second_server(self) -> None:
        """An operator starts another server on the same directory."""
        self.world.start_second_server()

    def hold_worker(self) -> None:
        """A tiering worker is suspended until it is taken for dead, and then goes on as if nothing had been."""
        living = [p for p in self.load.workers if not p.dead and not p.held]
        if not living:
            return
        process = self.rng.choice(living)
        self.sched.hold(process)
        if self.rng.random() < 0.5:
            self.load.begin_tiering()
        seconds = self.rng.choice((2.0, 30.0, 200.0))
        self.sched.at(self.sched.now + seconds, lambda: self.sched.release(process))

    def undo_rounds(self) -> None:
        """Another program rolls a lake table back, and may commit on top, whose snapshots get the undone numbers."""
        storage, rng = self.world.create_storage("", {}), self.rng
        path = rng.choice([path for path in sorted(storage.lake.tables) if storage.table(path).snapshots] or [None])
        if path is None:
            return
        self.load.seen.rolled_back.add(str(path))
        count = min(rng.randint(1, 3), len(storage.table(path).snapshots))
        roll_back(storage, path, count)
        for _ in range(rng.choice((0, count, count + 1))):
            commit_as_somebody_else(storage, path)

    def rot(self) -> None:
        """Bytes on the disk change, land in another place, or never arrive, without any call having failed."""
        rng, fs = self.rng, self.world.fs
        files = [(path, file, _noticed_bytes(fs, path, file)) for path, file in fs.files() if len(file.disk) > 0]
        files = [(path, file, size) for path, file, size in files if size > 0]
        if not files:
            return
        path, file, size = rng.choice(files)
        position = rng.randrange(size)
        self.world.damaged = True
        self.world.note(f"rot {path} at {position}")
        kind = rng.choice(("flip", "flip", "misdirected", "lost"))
        if kind == "flip":
            fs.flip_byte(path, position, 1 << rng.randrange(8))
            return
        if kind == "lost":  # a write that the disk acknowledged and never made: its sector is as it was before
            position -= position % SECTOR
            piece = bytes(SECTOR)
        else:
            source = rng.choice(files)[1].disk
            start = rng.randrange(len(source))
            piece = bytes(source[start : start + rng.choice((8, 64, 512))])
        for content in (file.seen, file.disk):
            end = min(position + len(piece), len(content), size)
            content[position:end] = piece[: max(end - position, 0)]

    def rot_after_kill(self) -> None:
        """The server is killed, and a bit of a log flips before the next start: in any batch that was acknowledged."""
        world, rng = self.world, self.rng
        world.fail_machine("kill")
        if world.server_process is None or not world.server_process.dead:
            return
        fs = world.fs
        marks = read_log_ends(fs, DATA, world.witnesses("")).marks if fs.exists(DATA) else {}
        places = []
        for path, file in fs.files(names.LOG_SUFFIX):
            found = names.parse_tablet_folder(path.removeprefix(f"{DATA}/").rpartition("/")[0])
            known = None if found is None else marks.get(found.bucket)
            if known is not None:
                end = known.synced if known.written is None else known.written
                places += [(path, file, *each) for each in _batches(bytes(file.seen)) if each[1].next_offset <= end]
        if not places:
            return
        path, file, position, header = rng.choice(places)
        position += rng.randrange(CRC_OFFSETS[header.magic], header.size_bytes)
        world.damaged = True
        world.note(f"rot after a kill in {path} at {position}")
        fs.flip_byte(path, position, 1 << rng.randrange(8), everywhere=True)

    def heal(self) -> None:
        world = self.world
        world.fs.clear_faults()
        world.full_disk(False)
        world.fs.fails_at = -1
        world.fs.slow_syncs = 1.0
        world.network.slow = 1.0
        world.network.lose_in = 0
        world.network.loses_answer_of_write = False
        world.network.heal()
        if world.store is not None:
            world.store.is_away = world.store.is_full = False
            world.store.failing_share, world.store.latency_seconds = 0.0, 0.01
        for process in self.load.processes:
            if process.held:
                self.sched.release(process)


def _noticed_bytes(fs: SimFileSystem, path: str, file: File) -> int:
    """How many bytes at the file's beginning have to be noticed when they change: see docs/failure-scenarios.md.

    The engine's own files have no checksums while they are in use, as those of LMDB. Behind the recovery point of a
    log, damage may look like what a power failure leaves of a write: see `rot_after_kill`. The ends of logs are noticed
    by their own checks, and cost nothing but what they say.
    """
    if "/db/" in path:
        return 0
    if not path.endswith(".log"):
        return len(file.disk)
    table, bucket = path.split("/")[-3].rpartition("-")[2], path.split("/")[-2].rpartition("-")[2]
    durable = 0
    for other, checkpoint in fs.files(names.RECOVERY_POINTS_FILE):
        if other == f"{DATA}/{names.RECOVERY_POINTS_FILE}":
            lines = [line.split() for line in bytes(checkpoint.disk).decode(errors="replace").splitlines()]
            durable = next((int(line[3]) for line in lines if line[:3] == [table, "-", bucket]), 0)
    return max((at + header.size_bytes for at, header in _batches(bytes(file.disk)) if header.next_offset <= durable),
               default=0)  # fmt: skip


def _batches(data: bytes) -> list[tuple[int, LogBatchHeader]]:
    """The batches of a segment, up to one that is damaged or torn."""
    found = []
    try:
        for position, header in iter_headers(data, allow_truncated=True):
            found.append((position, header))
    except CorruptData:
        pass  # rotten before: what lies behind it is left alone
    return found
