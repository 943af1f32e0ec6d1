"""What a server counts while it works, for its metrics: requests by API, syncs, groups, rows and bytes of tables.

Counting has to cost nothing that a client notices, so there are no labels, no locks on the paths of requests, and no
time is looked up that is not known anyway. Each counter has one writer at a time: requests and answers are counted by
the event loop's thread, the writes of a bucket by whoever writes it. `forebay.server.metrics` shows them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper bounds of a histogram's buckets; a last one has no bound."""

QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
"""Those that Fluss reports of its histograms."""


class Histogram:
    """How often, how long in all, and how often up to which of `SECONDS`. One thread observes at a time."""

    __slots__ = ("buckets", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(SECONDS) + 1)

    def observe(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.seconds += seconds * count
        self.buckets[bisect_left(SECONDS, seconds)] += count


def quantile(share: float, buckets: Sequence[int]) -> float:
    """The seconds that this share of observations did not exceed: at most one bound of `SECONDS` too high.

    Inside of a bucket the observations are taken to be spread evenly. NaN without observations; those above the last
    bound count as that.
    """
    rank = share * sum(buckets)
    if not rank:
        return float("nan")
    below = 0.0
    for bound, count in zip(SECONDS, buckets, strict=False):
        if count and rank <= count:
            return below + (bound - below) * rank / count
        rank -= count
        below = bound
    return SECONDS[-1]


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
