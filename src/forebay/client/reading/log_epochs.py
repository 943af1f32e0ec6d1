"""Whether offsets that were stored belong to the logs that the servers have now (docs/format/log_epochs.md).

Our server says so (CHECK_LOG_OFFSETS). Clusters of Apache Fluss have no epochs: there, offsets are only compared with
the ends of the logs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest
from forebay.client.cluster.offsets import LATEST, list_offsets
from forebay.client.cluster.rpc import Call
from forebay.client.cluster.scatter import Scatter, pair_up
from forebay.client.session import Session
from forebay.metadata.log_offset import epoch_of
from forebay.metadata.table import TableBucket, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, ServerNode

_BEHIND_SECONDS = 10.0
"""How long the end of a log of a Fluss cluster may be before an offset that it has given: that of a snapshot can be
that much ahead."""


def check_offsets(session: Session, info: TableInfo, offsets: Mapping[TableBucket, int]) -> None:
    """Raise `InvalidRequest` (LOG_OFFSET_OUT_OF_RANGE) for an offset that does not belong to the log of its bucket:
    its epoch is another one's, or it is behind the end.
    """
    if not offsets:
        return
    cluster = session.cluster
    if not cluster.has_log_epochs(cluster.leader(info.path, next(iter(offsets)))):
        _check_ends(session, info, offsets)
        return
    by_epoch: dict[str | None, list[_Offset]] = {}
    for bucket, offset in offsets.items():
        by_epoch.setdefault(epoch_of(offset), []).append(_Offset(bucket, offset))
    for epoch, items in by_epoch.items():
        try:
            _CheckLogOffsets(session, info, epoch).ask(cluster, info.path, items)
        except InvalidRequest as e:
            raise InvalidRequest(f"table {info.path} cannot be read from this position: {e.message}", e.code) from e


def log_epoch(session: Session, info: TableInfo, bucket: TableBucket) -> str | None:
    """The epoch that the logs of a table have now; None on clusters without epochs."""
    cluster = session.cluster
    node = cluster.leader(info.path, bucket)
    if not cluster.has_log_epochs(node):
        return None
    request = pb.CheckLogOffsetsRequest(table_id=bucket.table_id)
    return cluster.call(node, ApiKey.CHECK_LOG_OFFSETS, request, pb.CheckLogOffsetsResponse).log_epoch


def _check_ends(session: Session, info: TableInfo, offsets: Mapping[TableBucket, int]) -> None:
    deadline = session.clock.monotonic() + _BEHIND_SECONDS
    while True:
        ends = list_offsets(session.cluster, info, list(offsets), LATEST)
        behind = [bucket for bucket, offset in offsets.items() if offset > ends[bucket]]
        if not behind:
            return
        if session.clock.monotonic() >= deadline:
            bucket = behind[0]
            raise InvalidRequest(
                f"the log of bucket {bucket} of table {info.path} ends at offset {ends[bucket]}, and has no offset "
                f"{offsets[bucket]}: records were lost, or the position is another table's. Start from 'earliest' or "
                "'full'",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            )
        session.clock.sleep(_BEHIND_SECONDS / 50)


class _Offset:
    """An offset to check."""

    __slots__ = ("bucket", "offset")

    def __init__(self, bucket: TableBucket, offset: int) -> None:
        self.bucket, self.offset = bucket, offset


class _CheckLogOffsets(Scatter[_Offset, None]):
    def __init__(self, session: Session, info: TableInfo, epoch: str | None) -> None:
        self._session, self._info, self._epoch = session, info, epoch

    def send(self, node: ServerNode, items: Sequence[_Offset]) -> Call:
        request = pb.CheckLogOffsetsRequest(table_id=self._info.table_id, log_epoch=self._epoch)
        for item in items:
            partition_id, number = item.bucket.partition_id, item.bucket.bucket
            request.offsets.add(partition_id=partition_id, bucket_id=number, log_offset=item.offset)
        return self._session.cluster.send(node, ApiKey.CHECK_LOG_OFFSETS, request)

    def answers(self, call: Call, items: Sequence[_Offset]) -> Iterable[tuple[_Offset, ForebayError | None]]:
        response = call.response().parse(pb.CheckLogOffsetsResponse)
        for item, message in pair_up(items, response.offsets):
            yield item, message if isinstance(message, ForebayError) else None
