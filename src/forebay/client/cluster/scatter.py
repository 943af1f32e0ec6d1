"""Requests about many buckets, sent to their leaders at once.

A request about many buckets is sent to each bucket's leader, and retried for the buckets that failed (`Scatter`). An
*item* is the part that concerns one bucket. Items of one leader are sent in as few requests as the API allows; all
requests are in flight concurrently, up to a limit. Each item succeeds or fails separately. An item with a transient
failure (leader moved, server unavailable) is retried with backoff until `client.retry-timeout`; any other failure fails
the whole operation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from forebay.base.errors import CorruptData, ForebayError
from forebay.base.retrying import BackOff, WaitNotice, may_read_again
from forebay.client.cluster.cluster import ClusterClient
from forebay.client.cluster.rpc import Call
from forebay.metadata.table import TableBucket, TablePath
from forebay.protocol.api import ServerNode
from forebay.protocol.messages import (
    error_of,
    partition_id_of,
)


class Item(Protocol):
    """The part of a request that concerns one bucket."""

    @property
    def bucket(self) -> TableBucket: ...


I = TypeVar("I", bound=Item)  # noqa: E741 - an item
A = TypeVar("A")


class BucketItem(Hashable):
    """An item that consists of a bucket only."""

    __slots__ = ("bucket",)

    def __init__(self, bucket: TableBucket) -> None:
        self.bucket = bucket

    def __hash__(self) -> int:
        return hash(self.bucket)


class Scatter(Generic[I, A]):
    """The calls of one API: subclasses define how a request is built and how its response is split."""

    in_flight_max = 1 << 30
    retries_max = 1 << 31

    def requests(self, items: Sequence[I]) -> Iterable[Sequence[I]]:
        """The items of one leader, divided into requests."""
        return (items,)

    def send(self, node: ServerNode, items: Sequence[I]) -> Call:
        raise NotImplementedError

    def answers(self, call: Call, items: Sequence[I]) -> Iterable[tuple[I, A | ForebayError]]:
        """The result or error of each item, from a completed call. Raises the error of the whole request."""
        raise NotImplementedError

    def ask(self, cluster: ClusterClient, path: TablePath, items: Sequence[I]) -> list[tuple[I, A]]:
        """All results, in no particular order. Raises the first permanent failure."""
        deadline = cluster.clock.monotonic() + cluster.retry_seconds
        pauses: tuple[BackOff, WaitNotice] | None = None  # once there was a failure
        done: list[tuple[I, A]] = []
        pending: Sequence[I] = items
        retries = 0
        while pending:
            failed, error = self._round(cluster, path, pending, done)
            if error is None:
                break
            back_off, notice = pauses = pauses or (BackOff(cluster.ids), WaitNotice(cluster.clock))
            seconds = back_off.next_seconds()
            retries += 1
            if retries > self.retries_max or cluster.closed or cluster.clock.monotonic() + seconds > deadline:
                raise error
            notice.tell(error.message)
            cluster.clock.sleep(seconds)
            if error.stale_metadata:
                cluster.forget_leader(item.bucket for item in failed)
            pending = failed
        if pauses is not None:
            pauses[1].over()
        return done

    def _round(
        self, cluster: ClusterClient, path: TablePath, items: Sequence[I], done: list[tuple[I, A]]
    ) -> tuple[list[I], ForebayError | None]:
        """Try all `items` once. Returns those with transient failures, and the last of their errors."""
        failed: list[I] = []
        last: ForebayError | None = None
        by_node: dict[ServerNode, list[I]] = {}
        for item in items:
            try:
                by_node.setdefault(cluster.leader(path, item.bucket), []).append(item)
            except ForebayError as e:
                last = _passing(e)
                failed.append(item)
        waiting = deque((node, part) for node, all_of in by_node.items() for part in self.requests(all_of))
        under_way: deque[tuple[Call, Sequence[I]]] = deque()
        while waiting or under_way:
            try:
                if waiting and len(under_way) < self.in_flight_max:
                    node, part = waiting.popleft()
                    under_way.append((self.send(node, part), part))
                    continue
                call, part = under_way.popleft()
                if not call.wait(cluster.request_seconds):
                    call.give_up(cluster.request_seconds)
                for item, answer in self.answers(call, part):
                    if isinstance(answer, ForebayError):
                        last = _passing(call.named(answer))
                        failed.append(item)
                    else:
                        done.append((item, answer))
            except ForebayError as e:
                last = _passing(e)
                failed.extend(part)
        return failed, last


def _passing(error: ForebayError) -> ForebayError:
    """`error` if it is transient; otherwise it is raised."""
    if not may_read_again(error):
        raise error
    return error


def pair_up(items: Sequence[I], messages: Iterable[Any]) -> Iterable[tuple[I, Any | ForebayError]]:
    """Items with their results, matched by bucket: Fluss's servers return them in any order.

    Raises `CorruptData` if a bucket is missing.
    """
    by_bucket = {(partition_id_of(message), message.bucket_id): message for message in messages}
    for item in items:
        message = by_bucket.get((item.bucket.partition_id, item.bucket.bucket))
        if message is None:
            raise CorruptData(f"the server left bucket {item.bucket} out of its response")
        error = error_of(message)
        yield item, message if error is None else error
