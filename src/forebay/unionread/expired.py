"""Union reads whose lake snapshot is gone: the lake does not have the snapshot that the cluster names.

The cluster names the newest tiering snapshot, by its id and the name of its offsets. Another process may expire it,
because to it this is just another old snapshot: for example a compaction job that keeps only its own. Or others roll
the lake table back; its id is then gone, or that of another snapshot. Then a read uses, in this order:

1. the newest tiering snapshot that the lake has now, with its own log offsets, if the cluster still knows these, and
   the log has all records from there on;
2. the snapshot after an expired one, if that has the same rows (a compaction) or if the log decides anyway: for a
   primary-key table, every key that was written since is in the log after the lake's offsets, and overrides whatever a
   newer snapshot has for it. This holds only for reads up to now, since the newer snapshot may contain later changes
   than a read up to given offsets wants;
3. the stream alone, if it has everything: logs that begin at offset 0, or the current rows of a primary-key table, and
   no dropped partition, whose rows only the lake had;
4. nothing: the error names the command that creates another snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from forebay.base.errors import ErrorCode, NotFound
from forebay.client.admin.admin import Admin
from forebay.client.admin.lake_history import registered_snapshot
from forebay.client.results import LakeSnapshot
from forebay.lake.source import LakeSource, LakeSplit, Planner
from forebay.lake.tiering import has_offsets
from forebay.metadata.table import TableBucket, TableInfo

if TYPE_CHECKING:
    from forebay.client.table import Table

Earliest: TypeAlias = Callable[[Sequence[TableBucket]], Mapping[TableBucket, int]]
"""Where the logs of buckets begin."""


@dataclass(frozen=True)
class StandIn:
    """A snapshot that is read in place of one that the lake does not have, with the log offsets that go with it."""

    snapshot: LakeSnapshot
    planner: Planner[LakeSplit]
    rolled_back: bool = False


def planner_of(
    table: Table, source: LakeSource, registered: LakeSnapshot, identity: str | None = None
) -> Planner[LakeSplit]:
    """Return the planner of a snapshot that the cluster knows, or of one with a known `identity`.

    Raises `NotFound` (LAKE_SNAPSHOT_NOT_EXIST) if it does not exist, or if its id is that of another snapshot now.
    """
    planner = source.create_planner(registered.snapshot_id)
    properties = planner.properties
    if not registered.log_offsets:
        is_it = identity is None or planner.identity == identity
    elif properties is not None:
        is_it = has_offsets(properties, registered.offsets_name, registered.log_offsets)
    else:
        is_it = planner.identity is None or not _newest_was_undone(table, source)
    if not is_it:
        raise NotFound(
            f"lake snapshot {registered.snapshot_id} of table {table.path} was rolled back by another process, and "
            "another snapshot has its number now",
            ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
        )
    return planner


def _newest_was_undone(table: Table, source: LakeSource) -> bool:
    """Whether the newest snapshot that the cluster knows was rolled back. Otherwise all before it are as they were."""
    newest = Admin(table.connection).lake_snapshot(table.info.path)
    return source.was_undone(newest.snapshot_id, newest.offsets_name)


def stand_in_for(
    table: Table,
    source: LakeSource,
    registered: LakeSnapshot,
    buckets: Sequence[TableBucket],
    partition_ids: frozenset[int],
    from_log: Callable[[TableBucket], bool],
    earliest: Earliest,
    *,
    up_to_now: bool,
) -> StandIn | None:
    """Return what is read in place of `registered`, which the lake does not have; None if nothing of the lake can be.

    The arguments are those of `check_stream_is_complete`; `up_to_now`: the read has no given end.
    """
    info = table.info
    newest = source.newest_tiered()
    older = None if newest is None else registered_snapshot(Admin(table.connection), info.path, registered, newest)
    if older is not None and _reaches(registered, older, buckets, partition_ids, from_log, earliest):
        return StandIn(older, source.create_planner(older.snapshot_id), rolled_back=True)
    if older is not None or source.was_undone(registered.snapshot_id, registered.offsets_name):
        return None
    later = successor_of(info, source, registered.snapshot_id, up_to_now=up_to_now)
    return None if later is None else StandIn(replace(registered, snapshot_id=later), source.create_planner(later))


def _reaches(
    registered: LakeSnapshot,
    older: LakeSnapshot,
    buckets: Sequence[TableBucket],
    partition_ids: frozenset[int],
    from_log: Callable[[TableBucket], bool],
    earliest: Earliest,
) -> bool:
    """Whether the logs have all records that are not in the `older` snapshot.

    Those of a partition that the stream has dropped are gone, whether the read covers it or not.
    """
    behind = [b for b, stop in registered.log_offsets.items() if older.log_offsets.get(b, 0) < stop]
    if any(b.partition_id is not None and b.partition_id not in partition_ids for b in behind):
        return False
    covered = set(buckets)
    needed = [b for b in behind if b in covered and (b in older.log_offsets or from_log(b))]
    return all(first <= older.log_offsets.get(b, 0) for b, first in (earliest(needed) if needed else {}).items())


def successor_of(info: TableInfo, source: LakeSource, snapshot_id: int, *, up_to_now: bool) -> int | None:
    """Return the snapshot that a read may use with the log offsets of the expired `snapshot_id`; None without one."""
    successor = source.successor(snapshot_id)
    if successor is None or not (successor.has_same_rows or (info.has_primary_key and up_to_now)):
        return None
    return successor.snapshot_id


def check_stream_is_complete(
    info: TableInfo,
    source: LakeSource,
    snapshot: LakeSnapshot,
    buckets: Sequence[TableBucket],
    partition_ids: frozenset[int],
    from_log: Callable[[TableBucket], bool],
    earliest: Earliest,
) -> None:
    """Raise `NotFound` (LAKE_SNAPSHOT_NOT_EXIST) unless the stream has all rows of `buckets`, which a read covers.

    `partition_ids` are those of the stream, `from_log` says whether a bucket has to be read from its log, and
    `earliest` where logs begin.
    """
    dropped = {b.partition_id for b in snapshot.log_offsets if b.partition_id is not None} - partition_ids
    trimmed = [bucket for bucket, first in earliest([b for b in buckets if from_log(b)]).items() if first > 0]
    if dropped:
        why = f"{len(dropped)} partitions that only the lake had cannot be read"
    elif trimmed:
        why = f"the log of bucket {trimmed[0].bucket} no longer begins at 0"
    else:
        return
    if source.was_undone(snapshot.snapshot_id, snapshot.offsets_name):
        what = "was rolled back by another process"
        remedy = "`forebay tiering repair {path}` says which rows are lost, and what can be done"
    else:
        what = "does not exist, or was expired by another process"
        remedy = "The next round of tiering creates another one (forebay tiering --once --table {path})"
    raise NotFound(
        f"lake snapshot {snapshot.snapshot_id} of table {info.path}, the newest one that the cluster knows, {what}, "
        f"and the stream alone cannot replace it: {why}. {remedy.format(path=info.path)}",
        ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
    )
