"""Table snapshots: all buckets of a primary-key table pinned at one point in time, for many readers.

Nouns: a *handle* is one table snapshot, identified by its id; a *pin* is the snapshot of one bucket that a handle
holds; a *page* is one response with rows of a pin; a *position* is a place between two rows, as returned with a page.

Rules:

- A handle has no reading state. A page is requested by bucket and position, by any client that knows the id, in any
  order, any number of times: a lost page, a second attempt of a task, a reader that continues where another one
  stopped.
- A handle lives for its lease after it was last used, never longer than `age_seconds_max`, because a pin keeps the
  engine from reusing the space of rows that have changed since. Time is monotonic.
- Pages of one pin are built one after the other: an engine's snapshot is not thread-safe. Nothing is freed while a page
  is being built.
- When a bucket goes away (its table is dropped, its engine must grow, the server stops), its pins are released, even of
  handles that are just being opened. A handle ends with its last pin.

The caller that takes the pins ensures that no write falls between two of them (forebay.server.storage.replica).

Threads: everything here may be called from any thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from forebay.base import threads
from forebay.base.ambient import Clock, IdSource
from forebay.base.errors import ErrorCode, InvalidRequest, LimitExceeded, NotFound
from forebay.kv.engine import EngineState, KvPage, KvRows, KvSnapshot
from forebay.metadata.table import TableBucket

T = TypeVar("T")

_ENDED_REMEMBERED = 1000
"""Number of ended handles whose reason is remembered."""


@dataclass(frozen=True, slots=True)
class TableSnapshotLimits:
    """The `kv.snapshot-handle.*` settings. A page never exceeds `page_bytes_max` by more than one row."""

    handles_max: int = 256
    lease_seconds_default: float = 600.0
    lease_seconds_max: float = 86_400.0
    age_seconds_max: float = 86_400.0
    page_bytes_max: int = 10 << 20


@dataclass(frozen=True, slots=True)
class OpenedSnapshot:
    """A new handle: its id, the granted lease, and the state of each bucket at its point in time."""

    snapshot_id: bytes
    lease_seconds: float
    states: Mapping[TableBucket, EngineState]


@dataclass(frozen=True, slots=True)
class SnapshotDescription:
    """A handle as shown to users."""

    snapshot_id: bytes
    table_id: int
    name: str
    age_seconds: float
    lease_left_seconds: float
    bucket_count: int
    pages: int
    read_bytes: int


class _Pin:
    """The snapshot of one bucket, read by one thread at a time."""

    def __init__(self, snapshot: KvSnapshot) -> None:
        self._snapshot: KvSnapshot | None = snapshot
        self._use = threads.lock()

    def read(self, read: Callable[[KvSnapshot], T]) -> T | None:
        """Return what `read` gives, or None if the pin is released."""
        with self._use:
            return None if self._snapshot is None else read(self._snapshot)

    def close(self) -> None:
        """Release the snapshot, once no page of it is being built."""
        with self._use:
            snapshot, self._snapshot = self._snapshot, None
            if snapshot is not None:
                snapshot.close()


@dataclass
class _Handle:
    snapshot_id: bytes
    table_id: int
    name: str
    opened_at: float
    lease_seconds: float
    expires_at: float
    pins: dict[TableBucket, _Pin]
    lost: set[TableBucket] = field(default_factory=set)
    pages: int = 0
    read_bytes: int = 0


class TableSnapshotManager:
    """All table snapshots of a server."""

    def __init__(self, limits: TableSnapshotLimits, clock: Clock, ids: IdSource) -> None:
        self.limits = limits
        self._clock = clock
        self._ids = ids
        self._lock = threads.lock()
        self._handles: dict[bytes, _Handle] = {}
        self._opening: list[set[TableBucket]] = []
        self._ended: OrderedDict[bytes, str] = OrderedDict()
        self._shut_down = False

    # ---- the calls of the protocol ----------------------------------------------------------------------------------

    def open(
        self,
        table_id: int,
        buckets: Collection[TableBucket],
        take_pins: Callable[[], Mapping[TableBucket, KvSnapshot]],
        lease_seconds: float | None = None,
        name: str = "",
    ) -> OpenedSnapshot:
        """Begin a table snapshot of `buckets`, whose snapshots `take_pins` takes at one point in time.

        Raises `LimitExceeded` (TOO_MANY_SCANNERS), `InvalidRequest` for an invalid lease, and the errors of
        `take_pins`.
        """
        lease = self._granted(self.limits.lease_seconds_default if lease_seconds is None else lease_seconds)
        lost = self._begin_opening()
        try:
            snapshots = take_pins()
            states = {bucket: snapshot.state for bucket, snapshot in snapshots.items()}
            pins = {bucket: _Pin(snapshot) for bucket, snapshot in snapshots.items()}
        except BaseException:
            with self._lock:
                self._end_opening(lost)
            raise
        now = self._clock.monotonic()
        handle = _Handle(self._ids.token_hex().encode(), table_id, name, now, lease, 0.0, pins)
        self._extend(handle)
        with self._lock:
            self._end_opening(lost)
            refused = self._shut_down
            if refused:
                doomed = list(pins.values())
            else:
                self._handles[handle.snapshot_id] = handle
                doomed = self._take_away(handle, lost & set(buckets))
        for pin in doomed:
            pin.close()
        if refused:
            raise _shutting_down()
        return OpenedSnapshot(handle.snapshot_id, lease, states)

    def page(
        self, snapshot_id: bytes, bucket: TableBucket, after: bytes | None, bytes_max: int, rows_max: int | None
    ) -> KvPage:
        """Return rows of a bucket from position `after` on (None: from the first), at least one if there is any.

        Raises `NotFound` (SCANNER_EXPIRED, UNKNOWN_SCANNER_ID), `InvalidRequest` (INVALID_SCAN_REQUEST).
        """
        limits = self._limits_of_page(bytes_max, rows_max)
        page = self._read(snapshot_id, bucket, lambda snapshot: snapshot.page(after, *limits))
        self._note_read(snapshot_id, len(page.records))
        return page

    def rows(
        self, snapshot_id: bytes, bucket: TableBucket, after: bytes | None, bytes_max: int, rows_max: int | None
    ) -> KvRows:
        """Return the same rows for those who decode them. Raises as `page` does."""
        limits = self._limits_of_page(bytes_max, rows_max)
        rows = self._read(snapshot_id, bucket, lambda snapshot: snapshot.rows(after, *limits))
        self._note_read(snapshot_id, rows.rows.total_bytes)
        return rows

    def _limits_of_page(self, bytes_max: int, rows_max: int | None) -> tuple[int, int]:
        rows = (1 << 62) if rows_max is None or rows_max <= 0 else rows_max
        return min(bytes_max, self.limits.page_bytes_max), rows

    def _read(self, snapshot_id: bytes, bucket: TableBucket, read: Callable[[KvSnapshot], T]) -> T:
        with self._lock:
            handle = self._find(snapshot_id)
            self._extend(handle)
            pin = handle.pins.get(bucket)
            if pin is None and bucket not in handle.lost:
                raise InvalidRequest(
                    f"table snapshot {_shown(snapshot_id)} does not hold bucket {bucket}",
                    ErrorCode.INVALID_SCAN_REQUEST,
                )
        result = None if pin is None else pin.read(read)
        if result is None:
            raise NotFound(
                f"bucket {bucket} is no longer in table snapshot {_shown(snapshot_id)}: it was dropped, had to grow "
                "or was closed; open another table snapshot",
                ErrorCode.SCANNER_EXPIRED,
            )
        return result

    def _note_read(self, snapshot_id: bytes, size: int) -> None:
        with self._lock:
            handle = self._handles.get(snapshot_id)
            if handle is not None:
                handle.pages += 1
                handle.read_bytes += size
                self._extend(handle)

    def renew(self, snapshot_id: bytes, lease_seconds: float | None = None) -> float:
        """Renew the lease, with another length if one is given; return the seconds that the handle will live unused.

        Raises as `page` does.
        """
        with self._lock:
            handle = self._find(snapshot_id)
            if lease_seconds is not None:
                handle.lease_seconds = self._granted(lease_seconds)
            self._extend(handle)
            return handle.expires_at - self._clock.monotonic()

    def release(self, snapshot_id: bytes) -> None:
        """End a handle; unknown ids are fine."""
        self._end([snapshot_id], "it was released")

    def describe(self, table_id: int | None = None) -> list[SnapshotDescription]:
        """Return the open handles (of one table), oldest first."""
        now = self._clock.monotonic()
        with self._lock:
            return [
                SnapshotDescription(
                    handle.snapshot_id,
                    handle.table_id,
                    handle.name,
                    now - handle.opened_at,
                    max(0.0, handle.expires_at - now),
                    len(handle.pins),
                    handle.pages,
                    handle.read_bytes,
                )
                for handle in self._handles.values()
                if table_id is None or handle.table_id == table_id
            ]

    # ---- expiry and removal -----------------------------------------------------------------------------------------

    def expire(self) -> int:
        """End the handles whose lease has expired; return how many. The server calls this periodically."""
        now = self._clock.monotonic()
        with self._lock:
            over = [handle.snapshot_id for handle in self._handles.values() if now >= handle.expires_at]
        self._end(over, self._expiry_reason())
        return len(over)

    def close_bucket(self, bucket: TableBucket) -> int:
        """Release all pins of a bucket, including those being taken now; return how many there were."""
        doomed: list[_Pin] = []
        with self._lock:
            for lost in self._opening:
                lost.add(bucket)
            for handle in list(self._handles.values()):
                doomed += self._take_away(handle, {bucket})
        for pin in doomed:
            pin.close()
        return len(doomed)

    def has_pinned(self, bucket: TableBucket) -> bool:
        """Return whether an open table snapshot, or one being opened, may read the bucket."""
        with self._lock:
            return any(bucket in handle.pins for handle in self._handles.values())

    def shut_down(self) -> None:
        """End all handles and open no more."""
        with self._lock:
            self._shut_down = True
            ids = list(self._handles)
        self._end(ids, "the server was stopped")

    # ---- bookkeeping ------------------------------------------------------------------------------------------------

    def _begin_opening(self) -> set[TableBucket]:
        """Reserve a handle. The returned set collects the buckets that go away in the meantime."""
        self.expire()
        with self._lock:
            if self._shut_down:
                raise _shutting_down()
            if len(self._handles) + len(self._opening) >= self.limits.handles_max:
                raise LimitExceeded(
                    f"the server has its {self.limits.handles_max} table snapshots open already "
                    "('kv.snapshot-handle.max-count'); release unused ones, or retry later",
                    ErrorCode.TOO_MANY_SCANNERS,
                )
            lost: set[TableBucket] = set()
            self._opening.append(lost)
            return lost

    def _end_opening(self, lost: set[TableBucket]) -> None:
        """With the lock held."""
        self._opening = [other for other in self._opening if other is not lost]

    def _take_away(self, handle: _Handle, buckets: Collection[TableBucket]) -> list[_Pin]:
        """Remove and return the handle's pins of these buckets, for the caller to close. With the lock held."""
        doomed = [pin for bucket in buckets if (pin := handle.pins.pop(bucket, None)) is not None]
        if doomed:
            handle.lost.update(buckets)
            if not handle.pins:
                self._handles.pop(handle.snapshot_id, None)
                self._remember(handle.snapshot_id, "its buckets were dropped, had to grow or were closed")
        return doomed

    def _end(self, ids: Collection[bytes], reason: str) -> None:
        doomed: list[_Pin] = []
        with self._lock:
            for snapshot_id in ids:
                handle = self._handles.pop(snapshot_id, None)
                if handle is not None:
                    doomed += handle.pins.values()
                    self._remember(snapshot_id, reason)
        for pin in doomed:
            pin.close()

    def _remember(self, snapshot_id: bytes, reason: str) -> None:
        self._ended[snapshot_id] = reason
        while len(self._ended) > _ENDED_REMEMBERED:
            self._ended.popitem(last=False)

    def _find(self, snapshot_id: bytes) -> _Handle:
        """With the lock held."""
        handle = self._handles.get(snapshot_id)
        if handle is not None and self._clock.monotonic() < handle.expires_at:
            return handle
        if handle is None and snapshot_id not in self._ended:
            raise NotFound(
                f"there is no table snapshot {_shown(snapshot_id)}: the server has restarted since it was "
                "opened, or it never existed; open another one",
                ErrorCode.UNKNOWN_SCANNER_ID,
            )
        reason = self._expiry_reason() if handle is not None else self._ended[snapshot_id]
        raise NotFound(
            f"table snapshot {_shown(snapshot_id)} has ended: {reason}; open another one", ErrorCode.SCANNER_EXPIRED
        )

    def _extend(self, handle: _Handle) -> None:
        """Note that the handle is in use now."""
        lease_end = self._clock.monotonic() + handle.lease_seconds
        handle.expires_at = min(lease_end, handle.opened_at + self.limits.age_seconds_max)

    def _granted(self, lease_seconds: float) -> float:
        if not lease_seconds > 0:
            raise InvalidRequest(f"a lease must be positive, not {lease_seconds:g} s", ErrorCode.INVALID_SCAN_REQUEST)
        return min(lease_seconds, self.limits.lease_seconds_max, self.limits.age_seconds_max)

    def _expiry_reason(self) -> str:
        return (
            "it was not used for the length of its lease, or it reached the maximum age "
            f"('kv.snapshot-handle.max-age', {self.limits.age_seconds_max:g} s)"
        )


def _shown(snapshot_id: bytes) -> str:
    return snapshot_id.decode("utf-8", "replace")


def _shutting_down() -> LimitExceeded:
    return LimitExceeded("the server is shutting down and opens no more table snapshots", ErrorCode.TOO_MANY_SCANNERS)
