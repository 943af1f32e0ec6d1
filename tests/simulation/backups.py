"""Backups of a store: copies of it into another one, again and again while servers run, and the old ones forgotten."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from forebay.base.errors import StorageFailure
from forebay.server.journal.copy_records import forget_copies
from forebay.server.journal.store_copy import copy_store
from tests.simulation.object_store import SimObjectStore
from tests.simulation.scheduler import Process, SimClock

if TYPE_CHECKING:
    from tests.simulation.world import World

_FAILING_SHARE = 0.005
_AGES_MS = (0, 1000, 10_000, 100_000_000)
"""How old a copy is that is forgotten; clocks of servers jump by a day."""


class Backups:
    """The backup of one store. Some copies are made by a process that may be slow, and fails with either store."""

    def __init__(self, world: World) -> None:
        self._world, self._sched = world, world.sched
        self.store = SimObjectStore(world.sched, random.Random(world.rng.random()))
        self.store.failing_share = _FAILING_SHARE
        self._process: Process | None = None

    def begin(self) -> None:
        """Begin another copy, unless one is under way."""
        if self._process is None or not self._process.tasks:
            self._process = Process("backup")
            self._sched.spawn(self._process, self._back_up, self._process, name="backup")

    def _back_up(self, process: Process) -> None:
        world, rng = self._world, self._world.rng
        for _ in range(rng.randint(1, 8)):
            try:
                self._copy()
                if rng.random() < 0.5:
                    self._forget(SimClock(self._sched, process).now_ms() - rng.choice(_AGES_MS))
            except StorageFailure as e:
                world.note(f"no backup: {e}")
            self._sched.sleep(rng.random() * 3)

    def _copy(self) -> None:
        world = self._world
        assert world.store is not None
        copied = copy_store(world.store, self.store, ids=world.ids)
        world.count("backups")
        world.note(f"a backup at object {copied.number}, of {copied.objects} objects")

    def _forget(self, until_ms: int) -> None:
        forgotten = forget_copies(self.store, until_ms, ids=self._world.ids)
        if forgotten is not None and forgotten.objects:
            self._world.count("backups that forgot something")
            self._world.note(f"the backup forgets {forgotten.objects} objects")

    def complete(self) -> SimObjectStore:
        """Copy what the store has, once no server writes to it any more; return the backup."""
        if self._process is not None:
            self._sched.kill(self._process)
        self.store.failing_share = 0.0
        assert self._world.store is not None
        copied = copy_store(self._world.store, self.store, ids=self._world.ids)
        self._world.count("stores restored from a backup")
        self._world.note(f"the last backup at object {copied.number}, of {copied.objects} objects")
        return self.store
