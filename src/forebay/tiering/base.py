"""The base of a round: what the cluster knows of the lake table, and what the lake has, brought into agreement.

The cluster knows a lake snapshot by its id and the name of its offsets. The lake's newest tiering snapshot is the same
one, as a rule. Otherwise, in this order:

    a newer one      its worker died before it reported it: it is reported now
    an older one     others have rolled the lake table back: the older one is reported, in place of the one that was
                     undone, and the round continues from its offsets, so the rows are added to the lake again
    none, and the known one has expired       another snapshot is due, for readers
    none, and it was undone                   the table is empty again, so the round begins with the first record

If the log does not have the undone rows any more, the table is not changed and the round is refused with the lost rows
in its message; `forebay tiering repair` (`forebay.tiering.repair`) offers ways out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field

from forebay.base.errors import Conflict, ErrorCode, ForebayError, InternalError, InvalidRequest
from forebay.client.admin.lake import LakeTieringClient, TieringTable
from forebay.client.admin.lake_history import has_offsets_of, registered_snapshot
from forebay.client.cluster.offsets import EARLIEST, list_offsets
from forebay.client.connection import Connection
from forebay.client.reading.log_epochs import log_epoch
from forebay.client.results import LakeSnapshot
from forebay.lake.tiering import (
    KEEP_ALL_PREVIOUS,
    LOG_EPOCH_PROPERTY,
    OFFSETS_PROPERTY,
    CommittedLakeSnapshot,
    CommitterContext,
    LakeCommitter,
    LakeTieringFactory,
    belongs_to,
    inline_offsets,
    offsets_name,
    whose_snapshot,
)
from forebay.metadata.table import TableBucket, TableInfo
from forebay.tiering.lag import newest_lake_snapshot

_LOGGER = logging.getLogger(__name__)

_SHOWN = 5
"""Lost ranges that a message names."""

_REMEDY = "Nothing is tiered until you decide what to do: `forebay tiering repair {path}` shows what can be done"


BucketPartitions = Mapping[TableBucket, Mapping[str, str] | None]
"""The buckets of the stream, each with the values of its partition."""


@dataclass(frozen=True)
class RoundBase:
    """The base of a round: a tiering snapshot, None if the lake has none, and the log offsets that the lake has.

    `must_commit`: a snapshot is due without rows, too. `rolled_back`: these offsets are behind those that the cluster
    knows. The round's snapshot then takes the place of the one whose offsets have the name `replaces`.
    """

    snapshot_id: int | None = None
    offsets: Mapping[TableBucket, int] = field(default_factory=dict)
    offsets_name: str | None = None
    must_commit: bool = False
    rolled_back: bool = False
    replaces: str | None = None

    @classmethod
    def of(cls, snapshot: LakeSnapshot, *, must_commit: bool = False) -> RoundBase:
        """A snapshot that the cluster knows."""
        return cls(snapshot.snapshot_id, snapshot.log_offsets, snapshot.offsets_name, must_commit)


@dataclass(frozen=True, slots=True)
class LostRecords:
    """Records of a bucket that are in neither the lake nor the stream any more: [`start`, `stop`) of its log.

    `is_dropped`: the stream has dropped their partition.
    """

    bucket: TableBucket
    start: int
    stop: int
    is_dropped: bool = False

    def __str__(self) -> str:
        return f"{self.start} to {self.stop - 1} of bucket {self.bucket}"


def agreed_base(
    connection: Connection,
    table: TieringTable,
    info: TableInfo,
    factory: LakeTieringFactory,
    partitions: BucketPartitions,
    *,
    accept_loss: bool = False,
) -> RoundBase:
    """Return the base of a round, after what only the lake knows was reported to the cluster.

    `accept_loss`: the round continues without the lost rows of a rolled back table.

    Raises `InvalidRequest` (LOG_OFFSET_OUT_OF_RANGE) for a rolled back table whose rows are gone from the log,
    `Conflict` for a lake table of another stream table.
    """
    recorded = newest_lake_snapshot(connection.admin, info)
    context = CommitterContext(info, table.fence, None if recorded is None else recorded.snapshot_id)
    with closing(factory.create_committer(context)) as committer:
        newest = committer.get_missing_lake_snapshot(None)
        if recorded is None:
            return RoundBase() if newest is None else _reported(connection, info, newest, None, partitions)
        if newest is None:
            return _without_snapshot(connection, info, committer, recorded, partitions, accept_loss)
        if newest.snapshot_id == recorded.snapshot_id and has_offsets_of(recorded, newest):
            return RoundBase.of(recorded)
        return _with_another(connection, info, committer, recorded, newest, partitions, accept_loss)


# ---- the lake and the cluster disagree -----------------------------------------------------------------------------


def _with_another(
    connection: Connection,
    info: TableInfo,
    committer: LakeCommitter,
    recorded: LakeSnapshot,
    newest: CommittedLakeSnapshot,
    partitions: BucketPartitions,
    accept_loss: bool,
) -> RoundBase:
    """Return the base where the lake has another newest tiering snapshot than the cluster knows."""
    earlier = registered_snapshot(connection.admin, info.path, recorded, newest)
    if earlier is not None:
        held = earlier.log_offsets
        if not accept_loss:
            check_log(connection, info, recorded, newest.snapshot_id, held, partitions)
        if any(held.get(bucket, 0) < stop for bucket, stop in recorded.log_offsets.items()):
            check_added_again(committer, info, recorded, newest.snapshot_id, held, partitions)
            _log_rollback(info, recorded, newest.snapshot_id)
    try:
        is_ahead = earlier is None and not committer.was_undone(recorded.snapshot_id, recorded.offsets_name)
        return _reported(connection, info, newest, recorded, partitions, is_ahead=is_ahead)
    except ForebayError:
        again = newest_lake_snapshot(connection.admin, info)
        if earlier is not None or again is None or not again.is_same(recorded):
            raise  # another worker was faster, or the cluster has a problem of its own
        if not committer.was_undone(recorded.snapshot_id, recorded.offsets_name):
            raise  # the lake is ahead: the cluster was restored from a copy, and its logs are others now
        by_rows = held_by_rows(committer, partitions) or {}
        if any(offset > recorded.log_offsets.get(bucket, 0) for bucket, offset in by_rows.items()):
            raise  # ahead all the same
    return _from_rows(connection, info, committer, recorded, newest, partitions, accept_loss)


def _reported(
    connection: Connection,
    info: TableInfo,
    newest: CommittedLakeSnapshot,
    recorded: LakeSnapshot | None,
    partitions: BucketPartitions,
    *,
    is_ahead: bool = False,
) -> RoundBase:
    """Report the lake's newest tiering snapshot to the cluster, in place of the one that it knows.

    `is_ahead`: the lake has that one as well, so that it stays known: readers continue from it until the next round.

    Raises `Conflict` for a snapshot of logs that this cluster does not have.
    """
    tiering = LakeTieringClient(connection)
    path = _offsets_path(tiering, info, newest)
    # Whether a union read may start there is not known; the round that follows commits a snapshot that says so.
    try:
        tiering.commit(
            info, newest.snapshot_id, path, earliest_to_keep=KEEP_ALL_PREVIOUS,
            replaces=None if recorded is None or is_ahead else recorded.offsets_name,
        )  # fmt: skip
    except (Conflict, InvalidRequest) as e:  # the cluster does not have the file of its offsets
        theirs = newest.properties.get(LOG_EPOCH_PROPERTY)
        epoch = log_epoch(connection, info, next(iter(partitions))) if partitions else None
        if theirs is None or epoch in (None, theirs):
            raise
        before = "to before its first tiering snapshot" if recorded is None else f"to snapshot {recorded.snapshot_id}"
        raise Conflict(
            f"the lake table of {info.path} holds snapshot {newest.snapshot_id}, which was tiered from logs of epoch "
            f"{theirs}. Those of this server are of epoch {epoch} and do not have all of its rows: the server was "
            "restored from an older copy, and the lake was not. Nothing was tiered. Restore the lake of the same time, "
            f"or roll its table back {before}, the newest that this server knows (docs/how-to/back-up.md)"
        ) from e
    _LOGGER.warning(
        "table %s: the newest lake snapshot is %d, and the cluster knew %s; it was reported",
        info.path, newest.snapshot_id, recorded and recorded.snapshot_id,
    )  # fmt: skip
    reported = newest_lake_snapshot(connection.admin, info)
    if reported is None:
        raise InternalError(f"the cluster does not know lake snapshot {newest.snapshot_id} of {info.path} that it took")
    return RoundBase.of(reported, must_commit=True)


def _without_snapshot(
    connection: Connection,
    info: TableInfo,
    committer: LakeCommitter,
    recorded: LakeSnapshot,
    partitions: BucketPartitions,
    accept_loss: bool,
) -> RoundBase:
    """Return the base where the lake has no tiering snapshot, and the cluster knows one."""
    if not committer.was_undone(recorded.snapshot_id, recorded.offsets_name):
        expired = not committer.has_snapshot(recorded.snapshot_id)
        if expired:
            _LOGGER.warning(
                "table %s: lake snapshot %d was expired by another process although readers need it; creating another "
                "one", info.path, recorded.snapshot_id,
            )  # fmt: skip
        return RoundBase.of(recorded, must_commit=expired)
    if committer.has_rows():
        return _from_rows(connection, info, committer, recorded, None, partitions, accept_loss)
    if not accept_loss:
        check_log(connection, info, recorded, None, {}, partitions)
    _log_rollback(info, recorded, None)
    return RoundBase(must_commit=True, rolled_back=True, replaces=recorded.offsets_name)


def _from_rows(
    connection: Connection,
    info: TableInfo,
    committer: LakeCommitter,
    recorded: LakeSnapshot,
    newest: CommittedLakeSnapshot | None,
    partitions: BucketPartitions,
    accept_loss: bool,
) -> RoundBase:
    """Return a base whose offsets follow from the rows of the lake table, because no file of them is left."""
    snapshot_id = None if newest is None else newest.snapshot_id
    held = held_by_rows(committer, partitions)
    if held is None:
        raise InvalidRequest(
            f"{_rolled_back(info, recorded, snapshot_id)}. The log offsets of that state are not known any more, and "
            f"its rows do not have them (columns __bucket and __offset). {_REMEDY.format(path=info.path)}",
            ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
        )
    if not accept_loss:
        check_log(connection, info, recorded, snapshot_id, held, partitions)
    _log_rollback(info, recorded, snapshot_id)
    name = None if newest is None else offsets_name(newest.properties)
    return RoundBase(snapshot_id, held, name, must_commit=True, rolled_back=True, replaces=recorded.offsets_name)


def _log_rollback(info: TableInfo, recorded: LakeSnapshot, snapshot_id: int | None) -> None:
    _LOGGER.warning("%s; the rows since then come into the lake again", _rolled_back(info, recorded, snapshot_id))


# ---- offsets --------------------------------------------------------------------------------------------------------


def held_by_rows(committer: LakeCommitter, partitions: BucketPartitions) -> dict[TableBucket, int] | None:
    """Return how much of each log the lake table has, by its rows; None if the rows have no log offsets.

    It may be less than the lake really has. That is harmless for a table with a primary key, whose changes are
    applied again.
    """
    held = committer.held_offsets()
    if held is None:
        return None
    places = {(tuple((values or {}).values()), bucket.bucket): bucket for bucket, values in partitions.items()}
    return {places[place]: offset for place, offset in held.items() if place in places}


def added_again(
    committer: LakeCommitter, info: TableInfo, held: Mapping[TableBucket, int], partitions: BucketPartitions
) -> list[TableBucket]:
    """Return the buckets of which a rolled back table has rows that its newest tiering snapshot, with the offsets
    `held`, does not have: others have added undone rows again, as a cherry-pick does.

    Those of a table with a primary key do no harm: their keys are written again.
    """
    if info.has_primary_key:
        return []
    by_rows = held_by_rows(committer, partitions) or {}
    return [bucket for bucket, offset in by_rows.items() if offset > held.get(bucket, 0)]


def check_added_again(
    committer: LakeCommitter,
    info: TableInfo,
    recorded: LakeSnapshot,
    snapshot_id: int,
    held: Mapping[TableBucket, int],
    partitions: BucketPartitions,
) -> None:
    """Raise `InvalidRequest` if a round would add rows twice: see `added_again`."""
    buckets = added_again(committer, info, held, partitions)
    if buckets:
        raise InvalidRequest(
            f"{_rolled_back(info, recorded, snapshot_id)}, and some of the rows since then were added to it again, as "
            f"by a cherry-pick: rows of bucket {', '.join(map(str, buckets[:_SHOWN]))}. A round would add them twice. "
            f"{_REMEDY.format(path=info.path)}"
        )


def lost_records(
    connection: Connection,
    info: TableInfo,
    recorded: LakeSnapshot,
    held: Mapping[TableBucket, int],
    partitions: BucketPartitions,
) -> list[LostRecords]:
    """Return the records that the lake had as of `recorded`, and that neither a lake with the offsets `held` nor the
    stream has now."""
    behind = {b: stop for b, stop in recorded.log_offsets.items() if held.get(b, 0) < stop}
    in_log = [b for b in behind if b in partitions and (b in held or not info.has_primary_key)]
    earliest = list_offsets(connection.cluster, info, in_log, EARLIEST) if in_log else {}
    lost = []
    for bucket, stop in behind.items():
        start = held.get(bucket, 0)
        if bucket not in partitions:  # the stream has dropped the partition
            lost.append(LostRecords(bucket, start, stop, is_dropped=True))
        elif bucket in earliest and start < earliest[bucket]:
            lost.append(LostRecords(bucket, start, min(stop, earliest[bucket])))
    return lost


def check_log(
    connection: Connection,
    info: TableInfo,
    recorded: LakeSnapshot,
    snapshot_id: int | None,
    held: Mapping[TableBucket, int],
    partitions: BucketPartitions,
) -> None:
    """Raise `InvalidRequest` (LOG_OFFSET_OUT_OF_RANGE) if records were lost by a rollback to `snapshot_id`."""
    lost = lost_records(connection, info, recorded, held, partitions)
    if lost:
        shown = ", ".join(map(str, lost[:_SHOWN])) + (f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else "")
        raise InvalidRequest(
            f"{_rolled_back(info, recorded, snapshot_id)}, and the log does not have all rows since then any more: it "
            f"lacks records {shown}. {_REMEDY.format(path=info.path)}",
            ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
        )


def _rolled_back(info: TableInfo, recorded: LakeSnapshot, snapshot_id: int | None) -> str:
    to = "a state without any round" if snapshot_id is None else f"snapshot {snapshot_id}"
    return f"the lake table of {info.path} was rolled back by others, from snapshot {recorded.snapshot_id} to {to}"


def _offsets_path(tiering: LakeTieringClient, info: TableInfo, snapshot: CommittedLakeSnapshot) -> str:
    """Return the path of a snapshot's offsets. Raises `Conflict` if the snapshot does not belong to this table."""
    held = snapshot.properties.get(OFFSETS_PROPERTY)
    if not belongs_to(snapshot.properties, info) or held is None:
        whose = whose_snapshot(snapshot.properties) if held is not None else "a writer that recorded no log offsets"
        raise Conflict(
            f"the lake table of {info.path} (table id {info.table_id}) holds snapshot {snapshot.snapshot_id} of "
            f"{whose}; drop the lake table, or create the stream table under another name",
            ErrorCode.LAKE_TABLE_ALREADY_EXIST,
        )
    inline = inline_offsets(snapshot.properties)
    if inline is not None:  # Fluss 0.8 kept the offsets themselves there
        return tiering.prepare(info, inline.offsets)
    return held
