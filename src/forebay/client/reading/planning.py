"""The scope of a read: buckets and partitions, and offsets in their logs.

A table has `bucket_count` buckets; a partitioned one has them in each partition. `plan_buckets` resolves the partitions
and buckets that a user selects to `TableBucket`s; `list_offsets` fetches offsets from their leaders.

A request about many buckets is sent to each bucket's leader, and retried for the buckets that failed (`Scatter`). An
*item* is the part that concerns one bucket. Items of one leader are sent in as few requests as the API allows; all
requests are in flight concurrently, up to a limit. Each item succeeds or fails separately. An item with a transient
failure (leader moved, server unavailable) is retried with backoff until `client.retry-timeout`; any other failure fails
the whole operation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from forebay.api.scan import ScanRequest
from forebay.base.errors import CorruptData, ErrorCode, ForebayError, InvalidRequest, NotFound
from forebay.base.quantity import Moment, moment_ms
from forebay.base.retrying import BackOff, WaitNotice, may_read_again
from forebay.client.cluster.cluster import ClusterClient
from forebay.client.cluster.rpc import Call
from forebay.metadata.log_offset import with_epoch
from forebay.metadata.partitions import matches_partial, partition_text
from forebay.metadata.predicate import Compound, Leaf, LeafFunction, Predicate, predicate_text
from forebay.metadata.table import PartitionInfo, TableBucket, TableInfo, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, ServerNode
from forebay.protocol.messages import (
    error_of,
    partition_id_of,
    partition_info_from_pb,
    partition_spec_to_pb,
    table_path_to_pb,
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


PartitionSelector = str | Mapping[str, Any]
"""A partition by its name ("2024-01-15$EMEA"), or all partitions with these values of some keys.

Values are of the key's type (`datetime.date(2024, 1, 15)`, `True`), or their text in names."""

EARLIEST = "earliest"
LATEST = "latest"
LOG_END = "log end"
"""The offset behind all records, of which the last may not be visible yet. Forebay's servers know it."""

_EARLIEST, _LATEST, _TIMESTAMP, _LOG_END = 0, 1, 2, 3
_CLIENT = -1


def partition_texts(info: TableInfo, spec: Any) -> dict[str, str]:
    """Partition values as they are written in partition names. Text is used as it is; values may be of the key's type.

    Raises `InvalidRequest` (PARTITION_SPEC_INVALID) for a value of another type.
    """
    if not isinstance(spec, Mapping):
        keys = ", ".join(info.descriptor.partition_keys)
        raise InvalidRequest(
            f"{spec!r} is not a partition of table {info.path}: write a dict with values of its keys ({keys})",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )
    texts = {}
    for key, value in spec.items():
        if isinstance(value, str) or key not in info.descriptor.partition_keys:
            texts[key] = str(value)
            continue
        data_type = info.schema.column(key).data_type
        try:
            texts[key] = partition_text(data_type, value)
        except (TypeError, ValueError, AttributeError) as e:
            raise InvalidRequest(
                f"{value!r} is not a value of partition key '{key}' of table {info.path}, which is {data_type}",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            ) from e
    return texts


def list_partitions(
    cluster: ClusterClient, path: TablePath, partial: Mapping[str, Any] | None = None
) -> list[PartitionInfo]:
    """The partitions of a table, only those with the values of `partial`."""
    request = pb.ListPartitionInfosRequest(table_path=table_path_to_pb(path))
    wanted = dict(partial or {})
    if any(not isinstance(value, str) for value in wanted.values()):
        wanted = partition_texts(cluster.table_info(path), wanted)
    if wanted:
        request.partial_partition_spec.CopyFrom(partition_spec_to_pb(list(wanted.items())))
    response = cluster.any_call(ApiKey.LIST_PARTITION_INFOS, request, pb.ListPartitionInfosResponse)
    found = [partition_info_from_pb(message) for message in response.partitions_info]
    return [partition for partition in found if matches_partial(partition, wanted)]


def select_partitions(
    cluster: ClusterClient, info: TableInfo, selectors: Sequence[PartitionSelector] | PartitionSelector | None
) -> list[PartitionInfo]:
    """The existing partitions that `selectors` match (None: all), each once, in the order of their ids.

    Raises `NotFound` (PARTITION_NOT_EXISTS) for a name that no partition has.
    """
    existing = list_partitions(cluster, info.path)
    if selectors is None:
        return sorted(existing, key=lambda partition: partition.partition_id)
    chosen: dict[int, PartitionInfo] = {}
    for selector in [selectors] if isinstance(selectors, str | Mapping) else selectors:
        if isinstance(selector, str):
            found = [partition for partition in existing if partition.name == selector]
            if not found:
                raise NotFound(f"table {info.path} has no partition '{selector}'", ErrorCode.PARTITION_NOT_EXISTS)
        else:
            unknown = [key for key in selector if key not in info.descriptor.partition_keys]
            if unknown:
                raise InvalidRequest(
                    f"table {info.path} is partitioned by {list(info.descriptor.partition_keys)}, not by {unknown}",
                    ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
                )
            wanted = partition_texts(info, selector)
            found = [partition for partition in existing if matches_partial(partition, wanted)]
        chosen.update({partition.partition_id: partition for partition in found})
    return [chosen[partition_id] for partition_id in sorted(chosen)]


def plan_buckets(
    cluster: ClusterClient,
    info: TableInfo,
    partitions: Sequence[PartitionSelector] | PartitionSelector | None = None,
    buckets: Iterable[int | TableBucket] | None = None,
) -> list[TableBucket]:
    """The buckets that a read covers, in order.

    Raises `NotFound` for a partition and `InvalidRequest` for a bucket that the table does not have.
    """
    wanted = None if buckets is None else list(buckets)
    if wanted == [] and partitions is None:
        return []
    if wanted and all(isinstance(bucket, TableBucket) for bucket in wanted) and partitions is None:
        return [check_bucket(info, bucket) for bucket in dict.fromkeys(wanted)]
    numbers = bucket_numbers(info, wanted)
    if not info.is_partitioned:
        if partitions is not None:
            raise InvalidRequest(f"table {info.path} is not partitioned", ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION)
        return [TableBucket(info.table_id, number) for number in numbers]
    return [
        TableBucket(info.table_id, number, partition.partition_id)
        for partition in select_partitions(cluster, info, partitions)
        for number in numbers
    ]


def bucket_numbers(info: TableInfo, buckets: Iterable[int | TableBucket] | None) -> Sequence[int]:
    """The numbers of `buckets` (None: of all), in order. Raises `InvalidRequest` for one that does not exist."""
    if buckets is None:
        return range(info.bucket_count)
    numbers = sorted({bucket.bucket if isinstance(bucket, TableBucket) else bucket for bucket in buckets})
    for number in numbers:
        check_bucket_number(info, number)
    return numbers


def check_bucket_number(info: TableInfo, number: int) -> None:
    if not 0 <= number < info.bucket_count:
        raise InvalidRequest(f"table {info.path} has no bucket {number}; it has 0 to {info.bucket_count - 1}")


def check_bucket(info: TableInfo, bucket: Any) -> TableBucket:
    """`bucket` as a TableBucket of this table; a number is enough without partitions."""
    if isinstance(bucket, int):
        if info.is_partitioned:
            raise InvalidRequest(f"table {info.path} is partitioned: name bucket {bucket} by a TableBucket")
        bucket = TableBucket(info.table_id, bucket)
    if not isinstance(bucket, TableBucket):
        raise InvalidRequest(f"{bucket!r} is neither a bucket number nor a TableBucket")
    if bucket.table_id != info.table_id:
        raise InvalidRequest(f"bucket {bucket} does not belong to table {info.path}, whose id is {info.table_id}")
    if (bucket.partition_id is None) == info.is_partitioned:
        kind = "is partitioned" if info.is_partitioned else "is not partitioned"
        raise InvalidRequest(f"bucket {bucket} does not fit table {info.path}, which {kind}")
    check_bucket_number(info, bucket.bucket)
    return bucket


def fixes_keys(info: TableInfo, predicate: Predicate | None) -> bool:
    """Whether `predicate` may choose keys, buckets or partitions; `client.reading.key_filter` then says which."""
    if predicate is None:
        return False
    fixed, pending = set[str](), [predicate]
    while pending:
        part = pending.pop()
        if isinstance(part, Compound):
            pending.extend(part.children)
        elif isinstance(part, Leaf) and part.function in (LeafFunction.EQUAL, LeafFunction.IN):
            fixed.add(part.column)
    descriptor = info.descriptor
    if descriptor.bucket_keys and fixed.issuperset(descriptor.bucket_keys):
        return True
    return bool(descriptor.partition_keys) and not predicate.columns().isdisjoint(descriptor.partition_keys)


def explained(request: ScanRequest, buckets: int) -> list[str]:
    """A text form of a request, for `explain`."""
    columns = "all" if request.columns is None else ", ".join(request.columns) or "none, rows are counted"
    lines = [f"buckets: {buckets}", f"columns: {columns}"]
    if request.predicate is not None:
        lines.append(f"filter: {predicate_text(request.predicate)}")
    if request.limit is not None:
        lines.append(f"limit: {request.limit} rows, of one bucket after the other")
    return lines


# ---- offsets --------------------------------------------------------------------------------------------------------

LogPlace = Moment
"""A place in a log: "earliest", "latest", or a time (a datetime, or ISO text)."""


def place_of(place: LogPlace, what: str) -> str | int:
    """A place as `list_offsets` takes it: "earliest", "latest", or milliseconds since 1970. Raises `InvalidRequest`."""
    if place in (EARLIEST, LATEST):
        return str(place)
    try:
        return moment_ms(place, what)
    except InvalidRequest as e:
        raise InvalidRequest(
            f"{what}={place!r} is not a place in a log: write 'earliest', 'latest', a datetime, ISO text such as "
            "'2026-01-31T12:00:00+01:00', or offsets as a dict with a number for each bucket"
        ) from e


def list_offsets(
    cluster: ClusterClient, info: TableInfo, buckets: Sequence[TableBucket], place: str | int
) -> dict[TableBucket, int]:
    """The offset at `place` per bucket: "earliest", "latest" (the offset of the next record), or a time in
    milliseconds.

    A time means the first record written at that time or later; the latest offset if there is none. Raises
    `InvalidRequest` (INVALID_TIMESTAMP) for a time in the server's future. The offsets name their epoch
    (`forebay.metadata.log_offset`) where the servers have any.
    """
    kinds = {EARLIEST: (_EARLIEST, None), LATEST: (_LATEST, None), LOG_END: (_LOG_END, None)}
    kind, timestamp = (_TIMESTAMP, place) if isinstance(place, int) else kinds[place]
    question = _ListOffsets(cluster, info, kind, timestamp)
    return {item.bucket: offset for item, offset in question.ask(cluster, info.path, [BucketItem(b) for b in buckets])}


class _ListOffsets(Scatter[BucketItem, int]):
    def __init__(self, cluster: ClusterClient, info: TableInfo, offset_type: int, timestamp: int | None) -> None:
        self._cluster = cluster
        self._info = info
        self._offset_type = offset_type
        self._timestamp = timestamp

    def requests(self, items: Sequence[BucketItem]) -> Iterable[Sequence[BucketItem]]:
        by_partition: dict[int | None, list[BucketItem]] = {}
        for item in items:
            by_partition.setdefault(item.bucket.partition_id, []).append(item)
        return by_partition.values()

    def send(self, node: ServerNode, items: Sequence[BucketItem]) -> Call:
        request = pb.ListOffsetsRequest(
            follower_server_id=_CLIENT,
            offset_type=self._offset_type,
            table_id=self._info.table_id,
            partition_id=items[0].bucket.partition_id,
            bucket_id=[item.bucket.bucket for item in items],
            startTimestamp=self._timestamp,
        )
        if self._cluster.has_log_epochs(node):
            request.with_log_epoch = True
        return self._cluster.send(node, ApiKey.LIST_OFFSETS, request)

    def answers(self, call: Call, items: Sequence[BucketItem]) -> Iterable[tuple[BucketItem, int | ForebayError]]:
        response = call.response().parse(pb.ListOffsetsResponse)
        by_number = {message.bucket_id: message for message in response.buckets_resp}
        for item in items:
            message = by_number.get(item.bucket.bucket)
            if message is None:
                raise CorruptData(f"the server left bucket {item.bucket} out of its response")
            error = error_of(message)
            yield item, with_epoch(message.offset, message.log_epoch or response.log_epoch) if error is None else error
