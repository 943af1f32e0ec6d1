"""Reads buckets of a primary-key table: `BucketReader` reads one, `TableReader` several at a time.

Nouns: a *cursor* (`BucketCursor`) is the read of one bucket: it names the next request, and decides what a failure
means. A *page* is one response to a ScanKv request. Some cursors have pages, the others give rows directly. There are
four:

    live_cursor.py       the current rows: a scan session on the bucket's leader
    snapshot_cursor.py   the rows of a table snapshot, from any position on
    key_cursor.py        the current rows of some keys: lookups
    replay.py            the current rows on clusters without ScanKv: the changelog, folded

Flow: `ask` sends the request for the next page, `take` decodes the page that has arrived, and asks for the one after it
first, so that the server works while the client decodes. `wait` blocks until `take` does not. Memory does not depend on
the size of the table: at most two pages of each bucket that is being read.

Failures: the cursor decides whether an error is final, and for how long another attempt makes sense (`Retry`). Attempts
are made with growing pauses, until that time is over. `take` and `ask` only postpone the next request (`not_before`).

Rules: a limit is sent to the server if there is no filter, and with a limit buckets are read one at a time, so that no
more rows are read than the limit needs. A `BucketReader` is for one thread. Responses arrive in the threads of the
connections, which only wake the reader.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from forebay.api.scan import RowReader
from forebay.base import threads
from forebay.base.errors import ForebayError
from forebay.base.retrying import BackOff, WaitNotice
from forebay.client.cluster.rpc import Call
from forebay.client.reading.pages import Pages
from forebay.client.row_view import RowView
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, ServerNode
from forebay.protocol.messages import error_of

if TYPE_CHECKING:
    from forebay.client.session import Session


class PageRequest(NamedTuple):
    """The request for a page, and the server to send it to."""

    node: ServerNode
    message: pb.ScanKvRequest


class Retry(NamedTuple):
    """How a failure is handled that may pass: attempts for `seconds` from the first failure on, then `error` is raised.

    `notice` is logged if the wait takes long; None: nothing is. `is_refusal`: the server has too many scan sessions.
    """

    seconds: float
    error: ForebayError
    notice: str | None = None
    is_refusal: bool = False


class BucketCursor(ABC):
    """The read of one bucket: the next request, and what a failure means. For one `BucketReader`."""

    bucket: TableBucket

    @property
    @abstractmethod
    def log_offset(self) -> int | None:
        """Changes below this offset are included in the rows, all others are not. None: not known, or not yet."""

    @property
    def next_position(self) -> bytes | None:
        """The place after the page that was received last, for cursors that can resume there."""
        return None

    @abstractmethod
    def request(self, pages: Pages, limit: int | None) -> PageRequest | None:
        """The request for the next page, of at most `limit` rows. None: there are no pages, call `rows`."""

    def rows(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        """All rows of a cursor without pages, as users see them."""
        return iter(())

    def received(self, response: pb.ScanKvResponse, rows: int) -> bool:
        """Take note of a page with so many rows. Returns whether it is the last one. Raises `CorruptData`."""
        return True

    @abstractmethod
    def failed(self, error: ForebayError, rows_read: int) -> Retry:
        """How to go on after `error`, when `rows_read` rows have been returned. Raises if it is final."""

    def close(self, call: Call | None) -> None:
        """Release what a server holds; `call` is the last request, which has completed, if there is one."""
        return


class BucketReader:
    """A reader of one bucket. Iterate over it, or let a `TableReader` drive it. Not thread-safe.

    `position` is the place after the rows returned so far, for cursors that can resume; otherwise, and before the first
    row, None. A page that a limit cuts because of a filter does not advance it.
    """

    def __init__(
        self,
        session: Session,
        view: RowView,
        cursor: BucketCursor,
        limit: int | None = None,
        *,
        pages: Pages | None = None,
        wake: Callable[[], None] | None = None,
    ) -> None:
        """`pages` can be shared by readers of the same view. `wake` is called when a response has arrived."""
        self._session = session
        self._view = view
        self._cursor = cursor
        self._pages = pages or Pages(view, session.cluster)
        self._wake = wake
        self.bucket = cursor.bucket
        self._left = limit
        self._pushes_limit = view.bound is None
        self.position = cursor.next_position
        self.rows_handed_out = 0
        self.finished = limit == 0  # on the wire 0 means no limit
        self.not_before = 0.0
        self.refused = False
        self._rows: Iterator[pa.RecordBatch] | None = None
        self._call: Call | None = None
        self._closing = False
        self._back_off = BackOff(session.ids)
        self._failing_since: float | None = None
        self._notice = WaitNotice(session.clock)

    @property
    def schema(self) -> pa.Schema:
        return self._view.schema

    @property
    def log_offset(self) -> int | None:
        """Changes below this offset are included in the rows, all others are not. None: not known yet."""
        return self._cursor.log_offset

    # ---- driven by a TableReader, or by __iter__ --------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether `take` returns without blocking."""
        return self.finished or self._rows is not None or (self._call is not None and self._call.done)

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight: call `ask`, once `not_before` has passed."""
        return not self.finished and self._call is None and self._rows is None

    def ask(self) -> None:
        """Send the next request. A transient failure only postpones `not_before`."""
        limit = self._left if self._pushes_limit else None
        try:
            request = self._cursor.request(self._pages, limit)
            if request is None:
                self._rows = self._cursor.rows(limit)
            else:
                node, message = request
                self._call = self._session.cluster.send(node, ApiKey.SCAN_KV, message, callback=self._answered)
        except ForebayError as e:
            self._failed(e)

    def take(self) -> pa.RecordBatch | None:
        """The page that has arrived, or None if it has no rows; the next one is requested before decoding this one."""
        if self._rows is not None:
            return self._take_rows(self._rows)
        call, self._call = self._call, None
        if call is None:
            return None
        try:
            response, payloads = call.response().parse_split(pb.ScanKvResponse)
            error = error_of(response)
            if error is not None:
                raise error
        except ForebayError as e:
            self._failed(e)
            return None
        if self._failing_since is not None:
            self._failing_since, self._back_off = None, BackOff(self._session.ids)
            self._notice.over()
        self.refused = False
        return self._take_page(response, payloads)

    def _take_page(self, response: pb.ScanKvResponse, payloads: Sequence[memoryview]) -> pa.RecordBatch | None:
        page = self._pages.page(response, payloads)
        is_last = self._cursor.received(response, page.rows)
        self.rows_handed_out += page.rows
        if self._left is not None and self._pushes_limit:
            self._left -= page.rows
        self.finished = is_last or self._left == 0
        here = self._cursor.next_position
        if not self.finished and (self._pushes_limit or self._left is None):
            self.ask()
        batch = self._view.show(page.decode()) if page.rows else None
        if batch is None or self._pushes_limit or self._left is None:
            self.position = here
        else:
            if batch.num_rows <= self._left:
                self.position = here
            batch = self._cut(batch)
        if self.finished and not is_last:
            self.close()
        return batch

    def _take_rows(self, rows: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        batch = next(rows, None)
        if batch is None:
            self.finished = True
            return None
        self.rows_handed_out += batch.num_rows
        return self._cut(batch)

    def _cut(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of `batch` that the limit leaves."""
        if self._left is None:
            return batch
        batch = batch.slice(0, self._left)
        self._left -= batch.num_rows
        self.finished = self.finished or self._left == 0
        return batch

    def wait(self) -> None:
        """Wait until `take` does not block, or until a request has failed."""
        clock = self._session.clock
        if self.is_idle:
            clock.sleep(max(self.not_before - clock.monotonic(), 0.0))
            self.ask()
        call, limit = self._call, self._session.cluster.request_seconds
        if call is not None and not call.wait(call.sent_at + limit - clock.monotonic()):
            call.give_up(limit)

    def check_overdue(self) -> None:
        """Abandon a request that has timed out."""
        call, limit = self._call, self._session.cluster.request_seconds
        if call is None or call.done:
            return
        if call.sent_at + limit <= self._session.clock.monotonic():
            call.give_up(limit)
        else:
            call.tell_if_late()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            while not self.finished:
                self.wait()
                batch = self.take()
                if batch is not None and batch.num_rows:
                    yield batch
        finally:
            self.close()

    # ---- failures ---------------------------------------------------------------------------------------------------

    def _failed(self, error: ForebayError) -> None:
        """Postpone the next request, or raise."""
        self._call = None
        try:
            retry = self._cursor.failed(error, self.rows_handed_out)
        except ForebayError:
            self.close()
            raise
        now = self._session.clock.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        self.refused = retry.is_refusal
        if now - self._failing_since > retry.seconds:
            raise retry.error
        if retry.notice is not None:
            self._notice.tell(retry.notice)
        self.not_before = now + self._back_off.next_seconds()

    # ---- ends -------------------------------------------------------------------------------------------------------

    def _answered(self, call: Call) -> None:
        if self._closing:
            self._cursor.close(call)
        elif self._wake is not None:
            self._wake()

    def close(self) -> None:
        """Stop reading, and release what the server holds, without waiting for that. Idempotent."""
        self.finished = True
        if self._closing:
            return
        self._closing = True
        call = self._call
        # A call under way must complete first: closing its session concurrently is an error. Its callback closes it.
        if call is None or call.done:
            self._cursor.close(call)

    def __repr__(self) -> str:
        state = "finished" if self.finished else f"{self.rows_handed_out} rows read"
        return f"<forebay.BucketReader of {self._view.info.path}, {self.bucket}, {state}>"


OpenCursor = Callable[[TableBucket], BucketCursor]
"""Opens the cursor of a bucket. It may be called again for a bucket that a server has refused."""


class TableReader(RowReader):
    """A reader of buckets of a primary-key table, several at a time: `table.scan().reader()`."""

    def __init__(
        self,
        session: Session,
        view: RowView,
        buckets: Iterable[TableBucket],
        open_cursor: OpenCursor,
        limit: int | None = None,
        *,
        log_offsets: Mapping[TableBucket, int] | None = None,
        begun: Iterable[TableBucket] = (),
        takes_turns: bool = False,
    ) -> None:
        """`log_offsets` are those that are known before anything is read. `begun`: buckets whose first rows another
        reader has returned. With `takes_turns` pages come in a fixed order; otherwise the first to arrive is the first.
        """
        super().__init__(view.schema, limit)
        self._session, self._view, self._open_cursor = session, view, open_cursor
        self._pages = Pages(view, session.cluster)
        self.buckets: Sequence[TableBucket] = tuple(buckets)
        self._waiting = deque(self.buckets if limit != 0 else ())
        self._active: deque[BucketReader] = deque()
        self._log_offsets = dict(log_offsets or {})
        self._begun = set(begun)
        self._finished: set[TableBucket] = set()
        self._changed = threads.event()
        self._takes_turns = takes_turns
        # With a limit, buckets are read one at a time: prefetching would be wasted.
        self._sessions_max: int = 1 if limit is not None else session.settings["client.scanner.kv.max-sessions"]

    @property
    def log_offsets(self) -> Mapping[TableBucket, int]:
        return dict(self._log_offsets)

    @property
    def remaining(self) -> list[TableBucket]:
        """The buckets that have not been read completely: `table.scan(buckets=...)` with these reads the rest.

        After an error they include the buckets that were being read; discard the rows already returned for these.
        """
        return [bucket for bucket in self.buckets if bucket not in self._finished]

    @property
    def unread(self) -> list[TableBucket]:
        """The buckets of which no rows have been returned yet, without those that turned out to be empty."""
        return [bucket for bucket in self.remaining if bucket not in self._begun]

    @property
    def partly_read(self) -> list[TableBucket]:
        """The buckets of which some but not all rows have been returned."""
        return [bucket for bucket in self.remaining if bucket in self._begun]

    def _described(self) -> str:
        read = len(self.buckets) - len(self.remaining)
        return f" of {self._view.info.path}, {read} of {len(self.buckets)} buckets read"

    def _read(self) -> Iterator[tuple[TableBucket | None, pa.RecordBatch]]:
        try:
            while self._active or self._waiting:
                self._open_more()
                reader = self._next_ready()
                if reader is None:
                    continue
                batch = reader.take()
                if reader.log_offset is not None:
                    self._log_offsets[reader.bucket] = reader.log_offset
                if reader.finished:
                    self._active.remove(reader)
                    self._finished.add(reader.bucket)
                if batch is not None and batch.num_rows:
                    self._begun.add(reader.bucket)
                    yield reader.bucket, batch
        finally:
            for reader in self._active:
                reader.close()
            self._active.clear()

    def _open_more(self) -> None:
        while self._waiting and len(self._active) < self._sessions_max:
            reader = BucketReader(
                self._session,
                self._view,
                self._open_cursor(self._waiting.popleft()),
                self._left if self._view.bound is None else None,
                pages=self._pages,
                wake=self._changed.set,
            )
            self._active.append(reader)
            reader.ask()

    def _next_ready(self) -> BucketReader | None:
        """A reader whose page has arrived, in round-robin order; None if none arrives within the wait."""
        self._changed.clear()
        now = self._session.clock.monotonic()
        wake_in = 1.0
        for reader in list(self._active)[: 1 if self._takes_turns else None]:
            if reader.is_idle:
                if reader.refused and len(self._active) > 1:
                    # One of our own sessions will end before those of other clients do.
                    self._active.remove(reader)
                    self._waiting.appendleft(reader.bucket)
                    self._sessions_max = len(self._active)
                    continue
                if reader.not_before <= now:
                    reader.ask()
                else:
                    wake_in = min(wake_in, reader.not_before - now)
            reader.check_overdue()
            if reader.is_ready:
                self._active.remove(reader)
                self._active.append(reader)
                return reader
        if self._active:
            self._changed.wait(wake_in)
        return None


def about(doing: str, error: ForebayError, info: TableInfo, bucket: TableBucket) -> ForebayError:
    """`error` with the bucket that it concerns; `doing` is what failed ("scanning")."""
    return type(error)(f"{doing} bucket {bucket.bucket} of table {info.path} failed: {error.message}", error.code)
