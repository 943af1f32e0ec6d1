"""What a union read does when the lake snapshot that the cluster names no longer exists.

The cluster names the newest tiering snapshot. Another process may expire it, because to it this is just another old
snapshot: for example a compaction job that keeps only its own. Then a read uses, in this order:

1. the snapshot after it, if that has the same rows (a compaction) or if the log decides anyway: for a primary-key
   table, every key that was written since is in the log after the lake's offsets, and overrides whatever a newer
   snapshot has for it. This holds only for reads up to now, since the newer snapshot may contain later changes than a
   read up to given offsets wants;
2. the stream alone, if it has everything: logs that begin at offset 0, or the current rows of a primary-key table, and
   no dropped partition, whose rows only the lake had;
3. nothing: the error names the command that creates another snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from forebay.base.errors import ErrorCode, NotFound
from forebay.client.results import LakeSnapshot
from forebay.lake.source import LakeSource
from forebay.metadata.table import TableBucket, TableInfo


def successor_of(info: TableInfo, source: LakeSource, snapshot_id: int, *, up_to_now: bool) -> int | None:
    """Return the snapshot that a read may use with the log offsets of the expired `snapshot_id`; None without one."""
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

    `partition_ids` are those of the stream, `from_log` says whether a bucket has to be read from its log, and
    `earliest` where logs begin.
    """
    gone = {b.partition_id for b in snapshot.log_offsets if b.partition_id is not None} - partition_ids
    if gone:
        raise _lost(info, snapshot, f"{len(gone)} partitions that only the lake had cannot be read")
    trimmed = [bucket for bucket, first in earliest([b for b in buckets if from_log(b)]).items() if first > 0]
    if trimmed:
        raise _lost(info, snapshot, f"the log of bucket {trimmed[0].bucket} no longer begins at 0")


def _lost(info: TableInfo, snapshot: LakeSnapshot, why: str) -> NotFound:
    return NotFound(
        f"lake snapshot {snapshot.snapshot_id} of table {info.path}, the newest one that the cluster knows, does not "
        f"exist, or was expired by another process, and the stream alone cannot replace it: {why}. The next round "
        f"of tiering creates another one (forebay tiering --once --table {info.path})",
        ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
    )
