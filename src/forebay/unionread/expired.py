"""What a union read does where the lake snapshot that the cluster names is not there any more.

The cluster names the newest snapshot of tiering. Somebody else's expiry may remove it, as it sees nothing but another
old snapshot: a compaction job that keeps only what it has made, for one. Then, in this order:

1. the snapshot behind it, where that has the same rows (a compaction) or where the log decides anyway: of a primary-key
   table every key that was written since is in the log behind the lake's offsets, and overrides whatever a newer
   snapshot has of it. This holds only for reads up to now, since the newer snapshot may know of later changes than a
   read up to given offsets wants;
2. the stream alone, where it has everything: logs that begin at offset 0, or the current rows of a primary-key table;
   and no partition that was dropped, whose rows only the lake had;
3. nothing: the error says what brings the snapshot back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from forebay.base.errors import ErrorCode, NotFound
from forebay.client.results import LakeSnapshot
from forebay.lake.source import LakeSource
from forebay.metadata.table import TableBucket, TableInfo


def successor_of(info: TableInfo, source: LakeSource, snapshot_id: int, *, up_to_now: bool) -> int | None:
    """The snapshot that a read may use with the log offsets of `snapshot_id`, which has expired; None without one."""
    found = source.successor(snapshot_id)
    if found is None or not (found.has_same_rows or (info.has_primary_key and up_to_now)):
        return None
    return found.snapshot_id


def check_stream_is_complete(
    info: TableInfo,
    snapshot: LakeSnapshot,
    buckets: Sequence[TableBucket],
    partition_ids: frozenset[int],
    from_log: Callable[[TableBucket], bool],
    earliest: Callable[[Sequence[TableBucket]], Mapping[TableBucket, int]],
) -> None:
    """Raise `NotFound` (LAKE_SNAPSHOT_NOT_EXIST) unless the stream has all rows of `buckets`, which a read covers.

    `partition_ids` are all that the stream has, `from_log` says of a bucket that it has to be read from its log, and
    `earliest` where logs begin.
    """
    gone = {b.partition_id for b in snapshot.log_offsets if b.partition_id is not None} - partition_ids
    if gone:
        raise _lost(info, snapshot, f"{len(gone)} partitions that only the lake had cannot be read")
    trimmed = [bucket for bucket, first in earliest([b for b in buckets if from_log(b)]).items() if first > 0]
    if trimmed:
        raise _lost(info, snapshot, f"the log of bucket {trimmed[0].bucket} does not begin at 0 any more")


def _lost(info: TableInfo, snapshot: LakeSnapshot, why: str) -> NotFound:
    return NotFound(
        f"lake snapshot {snapshot.snapshot_id} of table {info.path}, the newest one that the cluster knows, does not "
        f"exist, or was expired by somebody else, and the stream alone cannot stand in for it: {why}. The next round "
        f"of tiering makes another one (forebay tiering --once --table {info.path})",
        ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
    )
