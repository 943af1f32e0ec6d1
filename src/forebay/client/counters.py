"""Counters of a connection, for its metrics (forebay.client.metrics).

Counting has to cost nothing that a program notices: no labels, no time that is not looked up anyway, and no lock beyond
those that are held anyway. Each counter has one writer at a time: `CallCounter` belongs to a channel, where requests
are counted under its lock and responses by its reader thread; `WriteCounters` is guarded by the accumulator's lock.
Readers and lookups of one table may work in several threads, so `ClientCounters` has a lock, which is taken once for
many rows.
"""

from __future__ import annotations

from forebay.base import threads
from forebay.base.counting import Histogram
from forebay.metadata.table import TablePath
from forebay.protocol.api import ApiKey


class CallCounter:
    """The requests of one API on one channel."""

    __slots__ = ("bytes_in", "bytes_out", "errors", "sent", "times")

    def __init__(self) -> None:
        self.sent = 0
        self.bytes_out = 0
        self.bytes_in = 0
        self.times = Histogram()
        """From a request to its response, of those that were answered."""
        self.errors: dict[int, int] = {}
        """By error code: requests that failed as a whole, also those without an answer."""

    def failed(self, code: int) -> None:
        self.errors[code] = self.errors.get(code, 0) + 1

    def add(self, other: CallCounter) -> None:
        """Count what another one has counted."""
        self.sent += other.sent
        self.bytes_out += other.bytes_out
        self.bytes_in += other.bytes_in
        self.times.add(other.times)
        for code, count in list(other.errors.items()):
            self.errors[code] = self.errors.get(code, 0) + count


class WriteCounters:
    """The batches of a connection's writers."""

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.bytes = 0
        """What was acknowledged."""
        self.retries: dict[int, int] = {}
        """By error code: batches that were queued again."""
        self.retried_rows = 0
        self.failures: dict[int, int] = {}
        """By error code: batches that failed for good."""
        self.queue_times = Histogram()
        """From `add` to the first attempt to send."""
        self.times = Histogram()
        """From `add` to the acknowledgement."""
        self.last_queue_seconds = self.last_seconds = 0.0
        self.waiting_threads = 0
        self.waited_seconds = 0.0
        """How long writers have waited for memory."""


class ReadCounters:
    """The readers of one table's log. Guarded by the lock of `ClientCounters`, but for the times of polls."""

    __slots__ = (
        "bytes",
        "fetches",
        "last_fetch_seconds",
        "last_poll",
        "remote_bytes",
        "remote_errors",
        "remote_segments",
        "rows",
        "seconds_between_polls",
    )

    def __init__(self) -> None:
        self.fetches = 0
        self.bytes = 0
        self.rows = 0
        self.remote_segments = 0
        self.remote_bytes = 0
        self.remote_errors = 0
        self.last_fetch_seconds = 0.0
        self.last_poll: float | None = None
        self.seconds_between_polls = 0.0

    def polled(self, now: float) -> None:
        if self.last_poll is not None:
            self.seconds_between_polls = now - self.last_poll
        self.last_poll = now


class ClientCounters:
    """Counters of a connection, without the requests of open channels."""

    def __init__(self) -> None:
        self.lock = threads.lock()
        self.writes = WriteCounters()
        self.reads: dict[TablePath, ReadCounters] = {}
        self.looked_up_keys = 0
        self.found_keys = 0
        self.past_calls: dict[ApiKey, CallCounter] = {}
        """The requests of channels that are closed."""

    def reads_of(self, path: TablePath) -> ReadCounters:
        """The counters of a table's readers."""
        with self.lock:
            return self.reads.setdefault(path, ReadCounters())

    def looked_up(self, keys: int, matches: int) -> None:
        with self.lock:
            self.looked_up_keys += keys
            self.found_keys += matches


def add_calls(totals: dict[ApiKey, CallCounter], calls: dict[ApiKey, CallCounter]) -> None:
    """Add the counters of a channel to `totals`."""
    for key, counter in list(calls.items()):
        totals.setdefault(key, CallCounter()).add(counter)
