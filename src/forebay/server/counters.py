"""What a server counts while it works, for its metrics: requests by API, syncs, groups, rows and bytes of tables.

Counting has to cost nothing that a client notices, so there are no labels, no locks on the paths of requests, and no
time is looked up that is not known anyway. Each counter has one writer at a time: requests and answers are counted by
the event loop's thread, the writes of a bucket by whoever writes it. `forebay.server.metrics` shows them.
"""

from __future__ import annotations

from forebay.base.counting import Histogram


class RequestCounter:
    """The requests of one API. Belongs to the event loop's thread."""

    __slots__ = ("bytes_in", "errors", "times")

    def __init__(self) -> None:
        self.times = Histogram()
        self.bytes_in = 0
        self.errors: dict[int, int] = {}
        """By error code: requests that failed as a whole."""


class ServerCounters:
    """The counters of a server that belong to no bucket."""

    def __init__(self) -> None:
        self.requests: dict[int, RequestCounter] = {}
        self.syncs = Histogram()
        """Syncs of logs that writers waited for."""
        self.groups = 0
        self.group_writes = 0
        """Groups of writes, and the writes in them."""
        self.refused_connections = 0
        self.failed_logins = 0

    def count_requests(self, api_key: int, count: int, size: int, seconds: float, error: int = 0) -> None:
        """Count requests, together of `size` bytes, that took `seconds` each; `error` is their code, if they failed as
        a whole."""
        counter = self.requests.get(api_key)
        if counter is None:
            counter = self.requests[api_key] = RequestCounter()
        counter.bytes_in += size
        counter.times.observe(seconds, count)
        if error:
            counter.errors[error] = counter.errors.get(error, 0) + count


class BucketCounters:
    """What was written to a bucket and read from its log since it was opened."""

    __slots__ = ("bytes_in", "bytes_out", "first_offset")

    def __init__(self, first_offset: int) -> None:
        self.first_offset = first_offset
        """The end of the log when it was opened: what was written since is counted by the log itself."""
        self.bytes_in = 0
        self.bytes_out = 0
