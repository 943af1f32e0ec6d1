"""The machines of a history with a store: the server moves to another one when its machine is lost, when an operator
starts another server, or when a standby takes over. The former server may live on for a while.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from forebay.base.errors import StorageFailure
from forebay.server.config import server_config
from forebay.server.journal.followed_logs import FollowedLogs
from forebay.server.standby.standby import Reads, Standby
from tests.simulation.backups import Backups
from tests.simulation.disk import SimDatabaseFile, SimFileSystem, SimVfs
from tests.simulation.scheduler import Process, SimClock

if TYPE_CHECKING:
    from tests.simulation.world import World

DATA = "/data"
PORTS = (9123, 9124)
MACHINES = 4
"""Addresses of machines: as many may be known to clients."""
STANDBYS_MAX = 2


class Machines:
    """The machines of a world. All but the one with the server are formers, or those of standbys."""

    def __init__(self, world: World) -> None:
        self._world, self._sched, self._rng = world, world.sched, world.rng
        self.number = 0
        """The number of the machine on which the server runs."""
        self.formers: list[Process] = []
        """Servers from which another machine has taken over."""
        self.standbys: list[Process] = []
        self.make_reads: Callable[[Process, SimFileSystem, SimVfs, FollowedLogs], Reads] | None = None
        """Makes the reads of a standby."""
        self._backups: Backups | None = None

    @property
    def ports(self) -> tuple[int, int]:
        """Those of the machine on which the server runs."""
        first = PORTS[0] + 2 * (self.number % MACHINES)
        return first, first + 1

    @property
    def addresses(self) -> str:
        """Of all machines, for clients."""
        machines = 1 if self._world.store is None else MACHINES
        return ",".join(f"127.0.0.1:{PORTS[0] + 2 * number}" for number in range(machines))

    def all_processes(self) -> list[Process]:
        """Those that are not the server."""
        return [*self.formers, *self.standbys]

    def lose(self) -> None:
        """End the machine for ever; a new one takes the store up."""
        self._world.fail_machine("power")
        self._world.count("machines lost")
        self.move()

    def restore(self) -> None:
        """Go on from a backup of the store, which has all that is acknowledged: the server is gone before."""
        self._world.may_restart = False
        self._world.fail_machine("power")
        backup = self._backups.complete() if self._backups is not None else Backups(self._world).complete()
        self._backups = None
        self._world.store = backup
        self._world.may_restart = True
        self.move()

    def back_up(self) -> None:
        """Copy the store into another one, or what is new since the last time, while the server runs."""
        if self._backups is None:
            self._backups = Backups(self._world)
        self._backups.begin()

    def take_over(self, why: str) -> None:
        """Let a new machine take the store up while the server is "running", "suspended", or "cut off" from the store;
        that one lives on for a while."""
        former = self._world.server_process
        if former is None or former.dead or self._world.store is None:
            return
        self._world.note(f"take over from one that is {why}")
        self._world.count(f"takeovers from a server that is {why}")
        seconds = self._trouble(former, why)
        self._retire(former, seconds)
        self.move()

    def _trouble(self, process: Process, why: str) -> float:
        """Suspend a server, or cut it off from the store, and from some clients; return for how long."""
        store = self._world.store
        assert store is not None
        seconds = self._rng.random() ** 2 * 40
        living = [each.name for each in self._world.processes if not each.dead]
        for client in self._rng.sample(living, self._rng.randint(0, len(living))):
            self._world.network.partition(client, process.name)
        if why == "suspended":
            self._sched.hold(process)
            self._sched.at(self._sched.now + seconds, lambda: self._sched.release(process))
        elif why == "cut off":
            store.cut_off.add(process)
            self._sched.at(self._sched.now + seconds, lambda: store.cut_off.discard(process))
        return seconds

    def _retire(self, former: Process, seconds: float) -> None:
        """Let a server that is not the current one any more live on for a while."""
        name, former.name = former.name, f"server-{self.number}"
        partitions = self._world.network.partitions
        self._world.network.partitions = {(client, former.name if to == name else to) for client, to in partitions}
        self.formers.append(former)
        self._world.fs.fails_at = -1
        self._world.fs.clear_faults()
        self._sched.at(self._sched.now + seconds + self._rng.random() * 20, lambda: self._end(former))

    def trouble(self, why: str) -> None:
        """Let the server be "suspended" or "cut off" from the store for a while; a standby may take over."""
        process = self._world.server_process
        if process is not None and not process.dead and self._world.store is not None:
            self._world.note(f"the server is {why}")
            self._trouble(process, why)

    def stand_by(self) -> None:
        """Start a standby on another machine, unless there are two."""
        self.standbys = [each for each in self.standbys if not each.dead and each.tasks]
        if len(self.standbys) < STANDBYS_MAX:
            process = Process("standby")
            self.standbys.append(process)
            self._sched.spawn(process, self._stand_by, process, name="standby")

    def _stand_by(self, process: Process) -> None:
        fs, store = self._world.new_disk(), self._world.store
        assert store is not None
        vfs = SimVfs(f"sim-{id(self._world)}-{len(self._world.vfs)}", fs)
        self._world.vfs.append(vfs)
        config = server_config(DATA, settings=self._world.settings)
        try:
            standby = Standby(
                fs,
                DATA,
                store,
                config.epoch_began("a standby takes over"),
                log_config=config.log_config,
                clock=SimClock(self._sched, process),
                ids=self._world.ids,
                database_file=lambda path: SimDatabaseFile(path, vfs),
                trim_seconds=config.seconds("remote.log.task-interval-duration"),
            )
            if self.make_reads is not None and self._rng.random() < 0.5:
                standby.serve_reads(partial(self.make_reads, process, fs, vfs))
            if not standby.wait():
                return
        except StorageFailure as e:
            self._world.note(f"the standby ends: {e}")
            return
        former = self._world.server_process
        self._world.note("the standby takes over")
        self._world.count("takeovers by a standby")
        if former is not None and not former.dead:
            self._retire(former, self._rng.random() * 20)
        self.move(fs)

    def _end(self, former: Process) -> None:
        self._world.network.process_ended(former, silently=False)
        self._sched.kill(former)

    def move(self, disk: SimFileSystem | None = None) -> None:
        """Go on on another machine, whose disk is empty unless it is that of a standby."""
        self._world.is_up = False
        self._world.server_process = None
        self.number += 1
        self._world.boot += 1
        for former in self.formers:
            if former.name == f"server-{self.number - MACHINES}" and not former.dead:
                self._end(former)  # its addresses are needed
        self._world.fs = disk or self._world.new_disk()
