"""Counters of a server, for its metrics: requests by API, syncs, groups, rows and bytes of tables.

Requests that take long or fail for a reason of the server's are logged here, too, and all of them at level DEBUG. A
request is named by the address of its client's end of the connection and its number there, which the client knows as
well. Short requests are served in groups (forebay.server.wire.short_requests); of a slow group each is logged, with the
time of the group. At level DEBUG all requests are served one by one.

Counting has to cost nothing that a client notices, so there are no labels, no locks on the paths of requests, and no
time is looked up that is not known anyway. Each counter has one writer at a time: requests and answers are counted by
the event loop's thread, the writes of a bucket by whoever writes it. `forebay.server.metrics` shows them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forebay.base.counting import Histogram
from forebay.base.errors import OF_SERVERS, WIRE_ERRORS, error_name
from forebay.protocol.api import ApiKey

if TYPE_CHECKING:
    from forebay.base.tracing import Tracing
    from forebay.protocol._short import ShortRequest

_LOGGER = logging.getLogger(__name__)


def request_name(peer: str, number: int) -> str:
    """How logs of client and server name a request."""
    return f"{peer}/{number}"


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

    def __init__(self, slow_seconds: float | None = None) -> None:
        """Requests that take `slow_seconds` are logged."""
        self._slow_seconds = float("inf") if slow_seconds is None else slow_seconds
        self.logs_all = _LOGGER.isEnabledFor(logging.DEBUG)
        """Whether all requests are logged, and so need names."""
        self.tracing: Tracing | None = None
        """Makes spans of requests, if that is wanted."""
        self.requests: dict[int, RequestCounter] = {}
        self.syncs = Histogram()
        """Syncs of logs that writers waited for."""
        self.groups = 0
        self.group_writes = 0
        """Groups of writes, and the writes in them."""
        self.refused_connections = 0
        self.failed_logins = 0

    def count_requests(
        self,
        api_key: int,
        count: int,
        size: int,
        seconds: float,
        error: int = 0,
        name: tuple[str, int] = ("", 0),
        *,
        group: Sequence[ShortRequest] = (),
    ) -> None:
        """Count requests, together of `size` bytes, that took `seconds` each; `error` is their code, if they failed as
        a whole. `name` is the client's end of the connection, and the number of a single request; of several they are
        in the `group`."""
        counter = self.requests.get(api_key)
        if counter is None:
            counter = self.requests[api_key] = RequestCounter()
        counter.bytes_in += size
        counter.times.observe(seconds, count)
        if error:
            counter.errors[error] = counter.errors.get(error, 0) + count
        if seconds >= self._slow_seconds or error or self.logs_all:
            for each in group:
                length = sum(map(len, each.keys)) if api_key == ApiKey.LOOKUP else len(each.records)
                self._log(ApiKey(api_key), length, seconds, error, (each.client.peer, each.request_id))
            if not group:
                self._log(ApiKey(api_key), size, seconds, error, name)

    def _log(self, api: ApiKey, size: int, seconds: float, error: int, name: tuple[str, int]) -> None:
        is_slow = seconds >= self._slow_seconds and api is not ApiKey.FETCH_LOG  # which waits for records
        wire = WIRE_ERRORS.get(error)
        level = logging.WARNING if is_slow or (wire is not None and wire.kind in OF_SERVERS) else logging.DEBUG
        _LOGGER.log(
            level,
            "%srequest %s, %s of %d bytes: %.1f ms%s",
            "slow: " if is_slow else "",
            request_name(*name),
            api.fluss_name,
            size,
            1000 * seconds,
            f", {error_name(error)}" if error else "",
            extra={
                "request": request_name(*name),
                "api": api.fluss_name,
                "milliseconds": round(1000 * seconds, 3),
                **({"error_code": error_name(error)} if error else {}),
            },
        )


class BucketCounters:
    """Counters of a bucket since it was opened: bytes and rows written, and read from its log."""

    __slots__ = ("bytes_in", "bytes_out", "first_offset")

    def __init__(self, first_offset: int) -> None:
        self.first_offset = first_offset
        """The end of the log when it was opened: what was written since is counted by the log itself."""
        self.bytes_in = 0
        self.bytes_out = 0
