"""An object store in virtual time: a `forebay.store.objects.ObjectStore` that outlives all machines, and misbehaves.

A request takes effect at some moment between its beginning and its answer, whether or not its process lives to see
that. It may also fail without an effect, fail although it has one (a lost answer), or fail and take effect a minute
later (a late request). A creation may be told that the name is taken, by its own earlier attempt: clients of clouds
repeat requests themselves. Listings are old.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from forebay.base.errors import StorageFailure
from forebay.store.objects import ObjectEntry, ObjectMissing
from tests.simulation.scheduler import Process, Scheduler

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")

LATE_SECONDS_MAX = 60.0
TIMEOUT_SECONDS = 2.0
"""After which a client gives a request up."""

LISTING_LAG_SECONDS = 20.0


class SimObjectStore:
    """The store. Faults are set from outside; all are off at first."""

    location = "sim://store"

    def __init__(self, sched: Scheduler, rng: random.Random) -> None:
        self._sched, self._rng = sched, rng
        self.objects: dict[str, bytes] = {}
        self._created: dict[str, float] = {}
        self._deleted: dict[str, tuple[int, float]] = {}
        """The size of objects that were deleted, and when."""
        self.latency_seconds = 0.01
        self.failing_share = 0.0
        """The part of all requests that go wrong in one of the ways."""
        self.is_away = False
        self.is_full = False
        self.cut_off: set[Process] = set()
        """Those that cannot reach it."""
        self.requests = 0

    # ---- the interface ----------------------------------------------------------------------------------------------

    def create(self, name: str, data: Buffer) -> bool:
        """See `ObjectStore.create`."""
        content = bytes(data)

        def effect() -> bool:
            if name in self.objects:
                return False
            self._put(name, content)
            return True

        created = self._request(f"create {name}", effect, is_change=True)
        return created and not self._goes_wrong(4)  # told that it is there, by its own first attempt

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """See `ObjectStore.read`."""

        def effect() -> bytes | None:
            content = self.objects.get(name)
            if content is None:
                return None
            first = max(len(content) + start, 0) if start < 0 else start
            return content[first:end]

        found = self._request(f"read {name}", effect, is_change=False)
        if found is None:
            raise ObjectMissing(f"there is no object {name} in {self.location}")
        return found

    def upload(self, name: str, parts: Iterable[Buffer]) -> None:
        """See `ObjectStore.upload`."""
        content = b"".join(bytes(part) for part in parts)
        self._request(f"upload {name}", lambda: self._put(name, content), is_change=True)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectEntry]:
        """See `ObjectStore.list`."""
        return iter(self._request(f"list {prefix}", lambda: self._listing(prefix, after), is_change=False))

    def _listing(self, prefix: str, after: str) -> list[ObjectEntry]:
        since = self._sched.now - LISTING_LAG_SECONDS
        listed = {name: size for name, (size, when) in self._deleted.items() if when > since}
        listed |= {name: len(self.objects[name]) for name, when in self._created.items() if when <= since}
        return [ObjectEntry(name, listed[name]) for name in sorted(listed) if name.startswith(prefix) and name > after]

    def delete(self, names: Iterable[str]) -> None:
        """See `ObjectStore.delete`."""
        listed = list(names)

        def effect() -> None:
            for name in listed:
                content = self.objects.pop(name, None)
                if content is not None:
                    del self._created[name]
                    self._deleted[name] = len(content), self._sched.now

        self._request("delete", effect, is_change=True)

    def _put(self, name: str, content: bytes) -> None:
        self._deleted.pop(name, None)
        self.objects[name] = content
        self._created[name] = self._sched.now

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _goes_wrong(self, one_in: int = 1) -> bool:
        return self._rng.random() < self.failing_share / one_in

    def _request(self, what: str, effect: Callable[[], T], *, is_change: bool) -> T:
        """The result of `effect`, which happens while this waits. Raises `StorageFailure`."""
        sched, rng = self._sched, self._rng
        self.requests += 1
        if sched.current is None:
            return effect()
        if sched.current.process.dead:
            sched.park()  # raises: what a dead process does when it unwinds has no effect
        if self.is_away or sched.current.process in self.cut_off:
            sched.sleep(TIMEOUT_SECONDS * rng.random())
            raise StorageFailure(f"cannot {what} in {self.location}: it does not answer")
        if self.is_full and is_change and not what.startswith("delete"):
            sched.sleep(self._seconds())
            raise StorageFailure(f"cannot {what} in {self.location}: its quota is used up")
        fate = rng.choice(("throttled", "lost", "late")) if self._goes_wrong() else "good"
        if fate == "throttled" or (fate != "good" and not is_change):
            sched.sleep(self._seconds())
            raise StorageFailure(f"cannot {what} in {self.location}: 503 slow down")
        results: list[T] = []
        delay = rng.random() * LATE_SECONDS_MAX if fate == "late" else self._seconds()
        sched.at(sched.now + delay, lambda: results.append(effect()))
        if fate != "good":
            sched.note(f"{what} is {fate}")
            sched.sleep(TIMEOUT_SECONDS)
            raise StorageFailure(f"cannot {what} in {self.location}: no answer within {TIMEOUT_SECONDS:g} s")
        sched.sleep(delay + self._seconds())
        return results[0]

    def _seconds(self) -> float:
        return self._rng.expovariate(1.0) * self.latency_seconds

    # ---- readers ----------------------------------------------------------------------------------------------------

    def open(self, path: str) -> RemoteFile:
        """What a client that reads a remote log opens: see `forebay.client.reading.remote_log`. Raises `OSError`."""
        name = path.removeprefix(f"{self.location}/")
        try:
            self.read(name, -1)
        except StorageFailure as e:
            raise OSError(e.message) from e
        return RemoteFile(self, name)


class RemoteFile:
    """An object that is open for reading."""

    def __init__(self, store: SimObjectStore, name: str) -> None:
        self._store, self._name = store, name

    def read_at(self, nbytes: int, offset: int) -> bytes:
        """Some bytes; fewer at the end. Raises `OSError`."""
        try:
            return self._store.read(self._name, offset, offset + nbytes)
        except StorageFailure as e:
            raise OSError(e.message) from e

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(self, *_: object) -> None:
        pass
