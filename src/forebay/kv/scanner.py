"""Full scans of the key-value state: sessions of the ScanKv protocol (FIP-17), on one server.

A session pins a snapshot of one bucket and returns its rows page by page, in the order of its engine. `ScannerManager`
keeps the sessions. It limits them per bucket and per server, expires idle ones (after the TTL; sooner if the limit is
reached and others want to scan), and remembers expired ones for a while, so that a client learns that its scan
*expired* and not merely that it is unknown.

Rules (docs/design/0007-resumable-full-scans.md; numbers there):

- A session is used by one call at a time. A concurrent call fails, and the session ends (rule 7). Removing a session
  never frees a snapshot during a running call: the last user closes it.
- Calls are numbered. The response to the call before the expected one is repeated byte for byte, because it may have
  been lost (Fluss fails such a scan). Any other number fails, and the session ends (rule 8).
- Every error ends the session. So do the last page and a close; the last page may still be requested again.

Costs do not grow with the number of ended scans: sessions, ended scans and expired ids are kept in the order of their
last use, and the size of kept pages is counted as they come and go.

Threads: everything here may be called from any thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from forebay.base import threads
from forebay.base.ambient import Clock, IdSource
from forebay.base.errors import ErrorCode, InvalidRequest, LimitExceeded, NotFound, Unavailable
from forebay.codec.kv.value_batch import ArrowRows
from forebay.kv.engine import KvPage, KvRows, KvSnapshot
from forebay.metadata.table import TableBucket

FIRST_CALL = 0

PRESSED_SECONDS = 60.0
"""How long a session may be idle when the limit is reached and another scan is requested."""


@dataclass(frozen=True, slots=True)
class ScannerLimits:
    """The `kv.scanner.*` settings. A page never exceeds `page_bytes_max` by more than one row."""

    ttl_seconds: float = 600.0
    per_bucket_max: int = 8
    per_server_max: int = 200
    page_bytes_max: int = 10 << 20
    replayable_bytes_max: int = 256 << 20
    """Total size of pages kept for clients that may have lost a response; the oldest are dropped first."""
    finished_max: int = 10_000
    """Number of ended scans whose last page is kept, and of remembered expired scans; the oldest are dropped first."""


@dataclass(frozen=True, slots=True)
class ScanPage:
    """One response: a value batch, and whether the scan continues; or a message in Arrow with `arrow_rows` rows."""

    records: bytes | bytearray
    has_more: bool
    arrow_rows: int | None = None


@dataclass(frozen=True, slots=True)
class ScanDescription:
    """An open scan as shown to users. `pages`: how many it has returned."""

    bucket: TableBucket
    log_offset: int
    pages: int
    age_seconds: float
    idle_seconds: float


class ScanSession:
    """One scan of one bucket. `ScannerManager` creates sessions and guards their use."""

    def __init__(
        self,
        scanner_id: bytes,
        bucket: TableBucket,
        snapshot: KvSnapshot,
        limit: int | None,
        as_arrow: ArrowRows | None = None,
    ) -> None:
        self.scanner_id = scanner_id
        self.bucket = bucket
        self.log_offset = snapshot.state.applied_offset
        self.call = FIRST_CALL - 1
        self.last_page: ScanPage | None = None
        self.opened_at = self.last_used = 0.0
        self._snapshot = snapshot
        self._position: bytes | None = None
        self.is_empty = not snapshot.page(None, 0, 1).rows
        self._remaining = limit
        self._as_arrow = as_arrow
        self._use = threads.lock()
        self.is_closed = False

    def try_begin_use(self) -> bool:
        """Begin a call; return False if another one is running, or the session is closed."""
        if not self._use.acquire(blocking=False):
            return False
        if self.is_closed:  # by the call that has just ended, which has not released the snapshot yet
            self.end_use()
            return False
        return True

    def end_use(self) -> None:
        """End a call; release the snapshot if the session was closed in the meantime."""
        self._use.release()
        if self.is_closed:
            self.close()

    def close(self) -> bool:
        """Release the snapshot, and refuse further calls. Returns False if one is running, which then releases it."""
        self.is_closed = True
        if not self._use.acquire(blocking=False):
            return False
        self._snapshot.close()
        return True

    def close_unless_used(self) -> bool:
        """Refuse further calls; the snapshot is to be released by `release`. Returns False if a call is running."""
        if not self._use.acquire(blocking=False):
            return False
        self.is_closed = True
        return True

    def release(self) -> None:
        """Release the snapshot of a session that `close_unless_used` has closed."""
        self._snapshot.close()

    def next_page(self, bytes_max: int) -> ScanPage:
        """Return the next rows: at least one, and no more once `bytes_max` bytes are reached.

        The caller must have begun a use (`try_begin_use`)."""
        rows_max = (1 << 62) if self._remaining is None else self._remaining
        if self._as_arrow is None:
            page = self._snapshot.page(self._position, bytes_max, rows_max)
            return ScanPage(page.records, self._goes_on(page, page.rows))
        bytes_max, arrow_rows_max = self._as_arrow.limits(bytes_max)
        arrow_page = self._snapshot.rows(self._position, bytes_max, min(rows_max, arrow_rows_max))
        message, rows = self._as_arrow.message(arrow_page.schema_ids, arrow_page.rows)
        return ScanPage(message, self._goes_on(arrow_page, len(arrow_page.rows)), rows)

    def _goes_on(self, page: KvPage | KvRows, rows: int) -> bool:
        """Store the position after `page`; return whether more rows follow."""
        self._position = page.position
        if self._remaining is not None:
            self._remaining -= rows
        return page.has_more and self._remaining != 0


@dataclass(slots=True)
class _OpeningScan:
    """A scan that is being opened and has no session yet, and whether its bucket went away in the meantime."""

    bucket: TableBucket
    is_gone: bool = False

    def note_gone(self, bucket: TableBucket) -> None:
        self.is_gone |= bucket == self.bucket


class ScannerManager:
    """All scan sessions of a server."""

    def __init__(self, limits: ScannerLimits, clock: Clock, ids: IdSource) -> None:
        self.limits = limits
        self._clock = clock
        self._ids = ids
        self._lock = threads.lock()
        self._sessions: OrderedDict[bytes, ScanSession] = OrderedDict()
        self._per_bucket: dict[TableBucket, int] = {}
        self._drained: OrderedDict[bytes, ScanSession] = OrderedDict()
        self._expired: OrderedDict[bytes, float] = OrderedDict()
        self._kept_bytes = 0
        self._opening: list[_OpeningScan] = []
        self._shut_down = False

    @property
    def session_count(self) -> int:
        """Return the number of open sessions."""
        with self._lock:
            return len(self._sessions)

    def describe(self) -> list[ScanDescription]:
        """Return the open sessions, oldest first."""
        now = self._clock.monotonic()
        with self._lock:
            sessions = list(self._sessions.values())
        return [
            ScanDescription(s.bucket, s.log_offset, s.call - FIRST_CALL + 1, now - s.opened_at, now - s.last_used)
            for s in sorted(sessions, key=lambda s: s.opened_at)
        ]

    def bucket_session_count(self, bucket: TableBucket) -> int:
        """Return the number of open sessions of a bucket."""
        with self._lock:
            return self._per_bucket.get(bucket, 0)

    # ---- the three calls of the protocol ----------------------------------------------------------------------------

    def open(
        self,
        bucket: TableBucket,
        take_snapshot: Callable[[], KvSnapshot],
        limit: int | None,
        as_arrow: ArrowRows | None = None,
    ) -> tuple[ScanSession | None, int]:
        """Begin a scan; return (session, or None if the bucket is empty; log offset that the snapshot contains).

        `as_arrow` makes its pages.

        Raises `LimitExceeded` (TOO_MANY_SCANNERS), and `Unavailable` if the bucket goes away meanwhile.
        """
        try:
            opening = self._reserve(bucket)
        except LimitExceeded:
            if not self._close_longest_idle(bucket):
                raise
            opening = self._reserve(bucket)
        session: ScanSession | None = None
        try:
            scanner_id = self._ids.token_hex().encode()
            session = ScanSession(scanner_id, bucket, take_snapshot(), limit if (limit or 0) > 0 else None, as_arrow)
        finally:
            with self._lock:
                self._opening = [other for other in self._opening if other is not opening]
                refused = self._shut_down
                if session is None or session.is_empty or refused or opening.is_gone:
                    self._forget_bucket(bucket)
                else:
                    session.opened_at = session.last_used = self._clock.monotonic()
                    self._sessions[scanner_id] = session
        if refused:
            session.close()
            raise _shutting_down()
        if opening.is_gone:
            session.close()
            raise Unavailable(
                f"bucket {bucket} was dropped, or had to grow, while a scan of it began; scan it again",
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
            )
        if session.is_empty:
            session.close()
            return None, session.log_offset
        return session, session.log_offset

    def page(self, scanner_id: bytes, call: int | None, bytes_max: int) -> ScanPage:
        """Return the page of call number `call` of a session, including the first call.

        Raises `NotFound` (SCANNER_EXPIRED, UNKNOWN_SCANNER_ID) and `InvalidRequest` (INVALID_SCAN_REQUEST), after
        which the session is gone.
        """
        replayed = self._replay_drained(scanner_id, call)
        if replayed is not None:
            return replayed
        session = self._begin_use(scanner_id)
        finished = True
        try:
            if call is None or call not in (session.call, session.call + 1) or call < FIRST_CALL:
                raise _invalid(
                    f"Out-of-order call of scanner {scanner_id.decode()}: call {call} came where "
                    f"{session.call + 1} was expected"
                )
            if call == session.call:
                last_page = session.last_page
                if last_page is None:
                    raise _invalid(f"page {call} of scanner {scanner_id.decode()} is no longer kept; scan again")
                finished = False
                return last_page
            self._used(session)
            page = session.next_page(min(bytes_max, self.limits.page_bytes_max))
            session.call = call
            finished = not page.has_more
            self._keep_page(session, page)
            return page
        finally:
            if finished:
                self._remove(session)
                session.close()
            session.end_use()

    def close(self, scanner_id: bytes) -> None:
        """End a scan; unknown ids are fine. Raises `InvalidRequest` while a call is running (and ends the scan)."""
        with self._lock:
            drained = self._drained.pop(scanner_id, None)
            if drained is not None:
                self._drop_page(drained)
            session = self._sessions.get(scanner_id)
        if session is None:
            return
        if self._remove(session) and not session.close():
            raise _invalid(f"scanner {scanner_id.decode()} was closed while one of its calls was running")

    # ---- expiry and removal -----------------------------------------------------------------------------------------

    def expire(self) -> int:
        """Close sessions idle for longer than the TTL; return how many. The server calls this periodically."""
        now = self._clock.monotonic()
        with self._lock:
            sessions = takewhile(lambda s: now - s.last_used > self.limits.ttl_seconds, list(self._sessions.values()))
            idle = [session for session in sessions if self._expire_unless_used(session, now)]
            horizon = now - 2 * self.limits.ttl_seconds
            while self._expired and next(iter(self._expired.values())) < horizon:
                self._expired.popitem(last=False)
            while self._drained:
                session = next(iter(self._drained.values()))
                if now - session.last_used <= self.limits.ttl_seconds:
                    break
                self._drop_oldest_drained()
        for session in idle:
            session.release()
        return len(idle)

    def _close_longest_idle(self, bucket: TableBucket) -> bool:
        """Make room for a scan of `bucket`; return whether a session was idle for long enough."""
        now = self._clock.monotonic()
        with self._lock:
            is_full = self._per_bucket.get(bucket, 0) >= self.limits.per_bucket_max
            idle = takewhile(lambda s: s.last_used < now - PRESSED_SECONDS, list(self._sessions.values()))
            candidates = (s for s in idle if not is_full or s.bucket == bucket)
            longest = next((s for s in candidates if self._expire_unless_used(s, now)), None)
        if longest is None:
            return False
        longest.release()
        return True

    def _expire_unless_used(self, session: ScanSession, now: float) -> bool:
        """Close an idle session; return False if a call has just begun to use it. With the lock held."""
        if not session.close_unless_used():
            return False
        self._remove_with_lock(session)
        self._note_expired(session, now)
        return True

    def close_bucket(self, bucket: TableBucket) -> int:
        """Close all sessions of a bucket (it is dropped, moved, or its engine must grow); return how many."""
        with self._lock:
            for opening in self._opening:
                opening.note_gone(bucket)
            sessions = [s for s in self._sessions.values() if s.bucket == bucket]
        self._close_as_expired(sessions)
        return len(sessions)

    def shut_down(self) -> None:
        """Close all sessions and accept no more."""
        with self._lock:
            self._shut_down = True
            sessions = list(self._sessions.values())
            while self._drained:
                self._drop_oldest_drained()
        self._close_as_expired(sessions)

    def _close_as_expired(self, sessions: list[ScanSession]) -> None:
        now = self._clock.monotonic()
        for session in sessions:
            if self._remove(session):
                with self._lock:
                    self._note_expired(session, now)
            session.close()

    def _note_expired(self, session: ScanSession, now: float) -> None:
        """With the lock held."""
        self._expired[session.scanner_id] = now
        if len(self._expired) > self.limits.finished_max:
            self._expired.popitem(last=False)

    # ---- bookkeeping ------------------------------------------------------------------------------------------------

    def _reserve(self, bucket: TableBucket) -> _OpeningScan:
        with self._lock:
            if self._shut_down:
                raise _shutting_down()
            if len(self._sessions) + len(self._opening) >= self.limits.per_server_max:
                raise LimitExceeded(
                    f"the server has its {self.limits.per_server_max} scans open already "
                    "('kv.scanner.max-per-server'); retry when some have ended",
                    ErrorCode.TOO_MANY_SCANNERS,
                )
            if self._per_bucket.get(bucket, 0) >= self.limits.per_bucket_max:
                raise LimitExceeded(
                    f"bucket {bucket} has its {self.limits.per_bucket_max} scans open already "
                    "('kv.scanner.max-per-bucket'); retry when some have ended",
                    ErrorCode.TOO_MANY_SCANNERS,
                )
            self._per_bucket[bucket] = self._per_bucket.get(bucket, 0) + 1
            opening = _OpeningScan(bucket)
            self._opening.append(opening)
            return opening

    def _forget_bucket(self, bucket: TableBucket) -> None:
        """Count one session of `bucket` less. With the lock held."""
        left = self._per_bucket.pop(bucket) - 1
        if left:
            self._per_bucket[bucket] = left

    def _remove(self, session: ScanSession) -> bool:
        with self._lock:
            return self._remove_with_lock(session)

    def _remove_with_lock(self, session: ScanSession) -> bool:
        if self._sessions.pop(session.scanner_id, None) is None:
            return False
        self._forget_bucket(session.bucket)
        if session.scanner_id not in self._drained:
            self._drop_page(session)
        return True

    def _used(self, session: ScanSession) -> None:
        session.last_used = self._clock.monotonic()
        with self._lock:
            if session.scanner_id in self._sessions:
                self._sessions.move_to_end(session.scanner_id)

    def _begin_use(self, scanner_id: bytes) -> ScanSession:
        with self._lock:
            session = self._sessions.get(scanner_id)
            expired = scanner_id in self._expired
        if session is None:
            if expired:
                raise NotFound(
                    f"scanner {_shown(scanner_id)} was closed after {self.limits.ttl_seconds:.0f} s without a call "
                    f"('kv.scanner.ttl'; {PRESSED_SECONDS:.0f} s if others want to scan), or because its bucket "
                    "went away; scan again",
                    ErrorCode.SCANNER_EXPIRED,
                )
            raise NotFound(
                f"there is no scanner {_shown(scanner_id)}: it is finished, closed, or never was",
                ErrorCode.UNKNOWN_SCANNER_ID,
            )
        if not session.try_begin_use():
            with self._lock:  # it is closed and removed in one step of whoever lets it expire
                is_closed = session.is_closed
            if is_closed:  # in the meantime, after it was removed
                return self._begin_use(scanner_id)
            self._remove(session)
            session.close()
            raise _invalid(f"two calls of scanner {_shown(scanner_id)} ran at the same time; the scan is ended")
        return session

    def _replay_drained(self, scanner_id: bytes, call: int | None) -> ScanPage | None:
        """Return the last page of a finished scan, for a client that did not get it."""
        with self._lock:
            session = self._drained.get(scanner_id)
            return session.last_page if session is not None and session.call == call else None

    def _keep_page(self, session: ScanSession, page: ScanPage) -> None:
        """Keep a page, in case its client requests it again, and drop the oldest ones above the limit."""
        with self._lock:
            self._drop_page(session)
            if session.scanner_id not in self._sessions:  # ended by another call in the meantime
                return
            session.last_page = page
            self._kept_bytes += len(page.records)
            if not page.has_more and not self._shut_down:
                self._drained[session.scanner_id] = session
            while self._drained and (
                len(self._drained) > self.limits.finished_max or self._kept_bytes > self.limits.replayable_bytes_max
            ):
                self._drop_oldest_drained()
            for other in self._sessions.values():
                if self._kept_bytes <= self.limits.replayable_bytes_max:
                    break
                self._drop_page(other)

    def _drop_oldest_drained(self) -> None:
        """Forget the scan that ended first among those whose last page is kept. With the lock held."""
        self._drop_page(self._drained.popitem(last=False)[1])

    def _drop_page(self, session: ScanSession) -> None:
        """Forget the last page of a session. With the lock held."""
        if session.last_page is not None:
            self._kept_bytes -= len(session.last_page.records)
            session.last_page = None


def _shown(scanner_id: bytes) -> str:
    return scanner_id.decode("utf-8", "replace")


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, ErrorCode.INVALID_SCAN_REQUEST)


def _shutting_down() -> LimitExceeded:
    return LimitExceeded("the server is shutting down and opens no more scans", ErrorCode.TOO_MANY_SCANNERS)
