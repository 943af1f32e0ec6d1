"""Offsets in logs: of places such as "earliest" and of times, asked of the buckets' leaders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forebay.base.errors import CorruptData, ForebayError, InvalidRequest
from forebay.base.quantity import Moment, moment_ms
from forebay.client.cluster.cluster import ClusterClient
from forebay.client.cluster.rpc import Call
from forebay.client.cluster.scatter import BucketItem, Scatter
from forebay.metadata.log_offset import with_epoch
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, ServerNode
from forebay.protocol.messages import (
    error_of,
)

EARLIEST = "earliest"
LATEST = "latest"
LOG_END = "log end"
"""The offset behind all records, of which the last may not be visible yet. Forebay's servers know it."""

_EARLIEST, _LATEST, _TIMESTAMP, _LOG_END = 0, 1, 2, 3
_CLIENT = -1


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
