"""One round: the log records that a table's lake does not have are written into it, as one lake snapshot.

The steps (`forebay.tiering.steps.RoundStep`):

    plan     what the cluster and the lake know of the lake table, where the logs end now -> splits
    write    workers turn splits into files (`forebay.tiering.splits`); nothing is visible yet
    save     the cluster stores the new offsets durably in a file, whose path goes into the lake snapshot
    commit   the lake snapshot becomes visible: all rows, and the path of the offsets, atomically
    report   the cluster registers the snapshot: union reads start from it, and the log may be trimmed up to it
    maintain expiry and compaction, according to the table's options

A round that dies before `commit` has changed nothing: its files belong to no snapshot, and the lake's own clean-up
finds them. One that dies between `commit` and `report` leaves a snapshot that the cluster does not know; the next plan
asks the lake for it first, reports it to the cluster, and continues from its offsets. So each row is written exactly
once. Two rounds of one table never both commit: the lake refuses the one whose base is no longer the newest
snapshot (`forebay.lake.tiering.check_base`).

The lake table may be rolled back by others (`forebay.tiering.base`): the plan then takes up the offsets of the
snapshot that is its newest one now, so the rows that were undone come into the lake again.

Order matters in `plan`: the log ends are requested first and the table's schema after that, so every row below the end
has a schema that the round knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from forebay.base.ambient import SYSTEM_CLOCK, SYSTEM_IDS, Clock, IdSource
from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest, NotFound, OutcomeUnknown
from forebay.client.admin.lake import LakeTieringClient, TieringTable
from forebay.client.cluster.offsets import EARLIEST, LATEST, list_offsets
from forebay.client.cluster.partitions import list_partitions
from forebay.client.connection import Connection
from forebay.client.reading.log_epochs import log_epoch
from forebay.client.reading.table_snapshot import TableSnapshot, open_snapshot_of
from forebay.client.settings import Settings
from forebay.lake.formats import create_lake_storage
from forebay.lake.storage import LakeStorage
from forebay.lake.tiering import (
    KEEP_ALL_PREVIOUS,
    LOG_EPOCH_PROPERTY,
    OFFSETS_PROPERTY,
    CommitterContext,
    LakeCommitResult,
    LakeCommitter,
    LakeTieringFactory,
)
from forebay.metadata.table import TableBucket, TableInfo
from forebay.tiering.base import RoundBase, agreed_base
from forebay.tiering.control import RoundControl
from forebay.tiering.report import RoundReport
from forebay.tiering.runner import SplitRunner
from forebay.tiering.splits import SplitResult, SplitTask, TieringSplit
from forebay.tiering.steps import RoundStep

_LOGGER = logging.getLogger(__name__)

CreateStorage: TypeAlias = Callable[[str, Mapping[str, str]], LakeStorage]


@dataclass(frozen=True)
class TieringLake:
    """How a worker accesses the lakes of tables: by the options that the cluster publishes, overridden by `options`.

    `options` are the lake's (`s3.access-key`, ...), for secrets that a cluster does not publish. They override those of
    the connection (`forebay.connect(lake_options=...)`).
    """

    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    create_storage: CreateStorage = create_lake_storage

    def factory(self, info: TableInfo, settings: Settings) -> LakeTieringFactory:
        """Return the tiering factory of a table's lake. Raises `InvalidRequest` if the table is not tiered."""
        return self.storage(info, settings).create_tiering_factory()

    def storage(self, info: TableInfo, settings: Settings) -> LakeStorage:
        """Return a table's lake. Raises as `factory`."""
        name = info.descriptor.lake_format
        if not info.lake_enabled or name is None:
            raise InvalidRequest(f"table {info.path} is not tiered: 'table.datalake.enabled' is not true")
        options = {**settings.lake_options_of(info), **self.options}
        return self.create_storage(name, options)


@dataclass(frozen=True)
class TieringRound:
    """A planned round. `base` is the lake's newest tiering snapshot, with the log end offsets that the lake has before
    the round; `stops` are the ends of the logs when it was planned. `lost_records`: log offsets that were removed from
    the log before a round reached them. `log_epoch`: the epoch of the logs, None on clusters without epochs.
    """

    table: TieringTable
    info: TableInfo
    factory: LakeTieringFactory
    base: RoundBase
    splits: tuple[TieringSplit, ...]
    stops: Mapping[TableBucket, int]
    lost_records: int = 0
    log_epoch: str | None = None

    def committer(self) -> LakeCommitter:
        base = self.base
        context = CommitterContext(self.info, self.table.fence, base.snapshot_id, base_offsets=base.offsets_name)
        return self.factory.create_committer(context)


# ---- planning -------------------------------------------------------------------------------------------------------


def plan_round(
    connection: Connection, table: TieringTable, lake: TieringLake | None = None, *, accept_loss: bool = False
) -> TieringRound:
    """Return the plan of a round of `table`. `accept_loss`: as for `forebay.tiering.base.agreed_base`.

    A lake snapshot that the cluster does not know is reported to it first. Raises `NotFound` if the table was dropped
    or recreated, `InvalidRequest` if it has no lake, the lake's table does not fit, or it was rolled back and the log
    does not have the rows any more, `Conflict` if the lake is ahead of a server that was restored from an older copy.
    """
    info = same_table(connection, table)
    partitions = buckets_with_partitions(connection, info)
    stops = list_offsets(connection.cluster, info, list(partitions), LATEST)
    info = same_table(connection, table)
    factory = (lake or TieringLake()).factory(info, connection.settings)
    factory.validate(info)
    epoch = log_epoch(connection, info, next(iter(partitions))) if partitions else None
    base = agreed_base(connection, table, info, factory, partitions, accept_loss=accept_loss)
    splits, lost = _splits(connection, info, partitions, base.offsets, stops)
    return TieringRound(table, info, factory, base, splits, stops, lost, epoch)


def same_table(connection: Connection, table: TieringTable) -> TableInfo:
    """Return the current description of the table. Raises `NotFound` if it was dropped, even if it was recreated."""
    info = connection.cluster.table_info(table.path)
    if info.table_id != table.table_id:
        raise NotFound(
            f"table {table.path} with id {table.table_id} was dropped; the one of this name now has id {info.table_id}",
            ErrorCode.TABLE_NOT_EXIST,
        )
    return info


def buckets_with_partitions(connection: Connection, info: TableInfo) -> dict[TableBucket, Mapping[str, str] | None]:
    """Return all buckets, each with the values of its partition."""
    numbers = range(info.bucket_count)
    if not info.is_partitioned:
        return {TableBucket(info.table_id, number): None for number in numbers}
    return {
        TableBucket(info.table_id, number, partition.partition_id): dict(partition.spec)
        for partition in sorted(list_partitions(connection.cluster, info.path), key=lambda p: p.partition_id)
        for number in numbers
    }


def _splits(
    connection: Connection,
    info: TableInfo,
    partitions: Mapping[TableBucket, Mapping[str, str] | None],
    starts: Mapping[TableBucket, int],
    stops: Mapping[TableBucket, int],
) -> tuple[tuple[TieringSplit, ...], int]:
    """Return the splits of a round, longest first, and the number of lost records."""
    behind = [bucket for bucket in partitions if stops[bucket] > starts.get(bucket, 0)]
    in_log = [bucket for bucket in behind if bucket in starts or not info.has_primary_key]
    earliest = list_offsets(connection.cluster, info, in_log, EARLIEST) if in_log else {}
    splits, lost = [], 0
    for bucket in behind:
        if bucket not in earliest:
            splits.append(TieringSplit(bucket, partitions[bucket]))
            continue
        start = starts.get(bucket, earliest[bucket])
        if start < earliest[bucket]:
            _check_may_skip(info, bucket, start, earliest[bucket])
            lost += earliest[bucket] - start
            start = earliest[bucket]
        splits.append(TieringSplit(bucket, partitions[bucket], start, stops[bucket]))
    splits.sort(key=lambda split: (not split.is_snapshot, -split.records))
    return tuple(splits), lost


def _check_may_skip(info: TableInfo, bucket: TableBucket, start: int, earliest: int) -> None:
    """Check a log trimmed before it was tiered: an appended log is then shorter, but a state would be wrong."""
    gap = (
        f"records {start} to {earliest - 1} of bucket {bucket} of table {info.path} were removed from the log "
        "('table.log.ttl') before they were tiered"
    )
    if info.has_primary_key:
        raise InvalidRequest(
            f"{gap}, so the lake table cannot be brought up to date: drop it, and recreate the stream table",
            ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
        )
    _LOGGER.error("%s: the lake table will not have them", gap)


# ---- running --------------------------------------------------------------------------------------------------------


def run_round(
    connection: Connection,
    table: TieringTable,
    runner: SplitRunner,
    control: RoundControl,
    lake: TieringLake | None = None,
    clock: Clock = SYSTEM_CLOCK,
    ids: IdSource = SYSTEM_IDS,
) -> RoundReport:
    """Plan, write and commit one round; return its report. After an error, the next plan checks what was committed."""
    began = clock.monotonic()
    control.on_phase(RoundStep.PLAN.phase)
    planned = plan_round(connection, table, lake)
    control.begin(planned.info.descriptor.option("table.datalake.freshness"))
    control.reached(RoundStep.PLAN)
    results = write_round(connection, planned, runner, control, ids)
    report = commit_round(connection, planned, results, control, clock)
    return replace(report, seconds=clock.monotonic() - began)


def write_round(
    connection: Connection,
    planned: TieringRound,
    runner: SplitRunner,
    control: RoundControl,
    ids: IdSource = SYSTEM_IDS,
) -> list[SplitResult]:
    """Write all splits; return their results. On failure, the files of finished ones are removed."""
    attempt = ids.token_hex()[:12]
    pinned = _pinned(connection, planned)
    tasks = [
        SplitTask(
            planned.info, planned.factory, split, attempt, control.deadline_ms,
            None if pinned is None or split.bucket not in pinned.log_offsets else pinned.of_buckets([split.bucket]),
        )
        for split in planned.splits
    ]  # fmt: skip
    results: list[SplitResult] = []

    def finished(result: SplitResult) -> None:
        results.append(result)
        control.on_progress(len(results), len(tasks))

    control.on_phase(RoundStep.WRITE.phase)
    control.on_progress(0, len(tasks))
    try:
        if tasks:
            runner.run(tasks, connection, control, finished)
    except BaseException:
        _abort(planned, results)
        raise
    finally:
        if pinned is not None:
            pinned.release()
    control.reached(RoundStep.WRITE)
    return results


def _pinned(connection: Connection, planned: TieringRound) -> TableSnapshot | None:
    """Return a snapshot of all buckets whose current rows are to be written; None to read current states.

    So the first lake snapshot of a table is a state that the table really had, across buckets, and a retried task reads
    the same rows. It is leased, and reads renew the lease. Without one (a Fluss cluster has none; the server has too
    many; a column was just added) each bucket is exact on its own.
    """
    buckets = [split.bucket for split in planned.splits if split.is_snapshot]
    if not buckets:
        return None
    info = planned.info
    try:
        snapshot = open_snapshot_of(connection, info, buckets, None, f"tiering {info.path}")
    except ForebayError as e:
        _LOGGER.warning("table %s: its buckets are read one by one, without a table snapshot: %s", info.path, e)
        return None
    snapshot.release_when_collected()
    current = connection.cluster.table_info(info.path)
    if snapshot.is_exact and (current.table_id, current.schema_id) == (info.table_id, info.schema_id):
        return snapshot
    snapshot.release()
    return None


def commit_round(
    connection: Connection,
    planned: TieringRound,
    results: Sequence[SplitResult],
    control: RoundControl,
    clock: Clock = SYSTEM_CLOCK,
) -> RoundReport:
    """Make the results visible in the lake, and report them to the cluster. Without new records there is no snapshot.

    Raises `Conflict` if the round was overtaken, `NotFound` if the table was dropped; its files are then removed.
    """
    begun = {split.bucket: split.start for split in planned.splits}
    done = [result for result in results if result.end_offset not in (None, begun[result.bucket])]
    report = RoundReport.of(planned.info, results, lost_records=planned.lost_records)
    if not planned.splits and not planned.base.must_commit:
        return replace(report, finished_ms=clock.now_ms(), lag_records=0)  # the ends of the logs were just asked for
    if not done and not planned.base.must_commit:
        return _with_lag(report, connection, planned, {}, clock)
    control.on_phase(RoundStep.SAVE.phase)
    ends = {result.bucket: result.end_offset for result in done if result.end_offset is not None}
    tiering = LakeTieringClient(connection)
    try:
        control.check()
        if planned.base.rolled_back:  # not together with the offsets of what was undone
            path = tiering.prepare(planned.info, {**planned.base.offsets, **ends}, merge=False)
        else:
            path = tiering.prepare(planned.info, ends)
    except BaseException:
        _abort(planned, results)
        raise
    control.reached(RoundStep.SAVE)
    _check_still_ours(connection, planned, done, control)
    committer = planned.committer()
    try:
        committed = _commit_to_lake(committer, planned, done, path)
        control.reached(RoundStep.COMMIT)
        _report_snapshot(connection, tiering, planned, committed, path, ends, done)
        control.reached(RoundStep.REPORT)
        stats = committed.stats
        report = replace(report, snapshot_id=committed.snapshot_id, lake_bytes=stats.file_bytes, lake_rows=stats.rows)
        report = _with_lag(report, connection, planned, ends, clock)
        control.on_phase(RoundStep.MAINTAIN.phase)
        # By the committer of the round, which knows the changed buckets.
        report = replace(report, maintenance_error=_maintain(committer, planned))
    finally:
        committer.close()
    control.reached(RoundStep.MAINTAIN)
    return report


def _check_still_ours(
    connection: Connection, planned: TieringRound, done: Sequence[SplitResult], control: RoundControl
) -> None:
    try:
        same_table(connection, planned.table)
        control.check_still_mine()
    except BaseException:
        _abort(planned, done)
        raise


def _commit_to_lake(
    committer: LakeCommitter, planned: TieringRound, done: Sequence[SplitResult], path: str
) -> LakeCommitResult:
    """Commit to the lake. After an error, ask the lake whether the commit succeeded all the same.

    If the lake's own commit had an unknown outcome, the files stay: its request may still arrive.
    """
    try:
        properties = {OFFSETS_PROPERTY: path}
        if planned.log_epoch is not None:
            properties[LOG_EPOCH_PROPERTY] = planned.log_epoch
        return committer.commit([r.written for r in done if r.written is not None], properties)
    except Exception as e:
        newest = None if _is_fenced(e) else committer.get_missing_lake_snapshot(planned.base.snapshot_id)
        if newest is None or newest.properties.get(OFFSETS_PROPERTY) != path:
            if not isinstance(e, OutcomeUnknown):
                _abort(planned, done)
            raise
        _LOGGER.warning("table %s: the lake commit failed (%s) after it had become visible", planned.info.path, e)
        return LakeCommitResult(newest.snapshot_id, None, KEEP_ALL_PREVIOUS)


def _is_fenced(error: Exception) -> bool:
    return isinstance(error, ForebayError) and error.code == ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION


def _report_snapshot(
    connection: Connection,
    tiering: LakeTieringClient,
    planned: TieringRound,
    committed: LakeCommitResult,
    path: str,
    ends: Mapping[TableBucket, int],
    done: Sequence[SplitResult],
) -> None:
    """Report the new snapshot to the cluster, and an earlier one that it made readable."""
    info, earliest = planned.info, committed.earliest_snapshot_to_keep
    if earliest is None and not committed.is_readable:
        earliest = KEEP_ALL_PREVIOUS  # readers start from one of them
    tiering.commit(
        info,
        committed.snapshot_id,
        path,
        readable_path=path if committed.is_readable else None,
        earliest_to_keep=earliest,
        replaces=planned.base.replaces,
        log_end_offsets=ends,
        max_timestamps={result.bucket: result.newest_ms for result in done if result.newest_ms is not None},
    )
    readable = committed.readable_snapshot_id
    if readable is None or committed.is_readable:
        return
    offsets = connection.admin.lake_snapshot(info.path, snapshot_id=readable).log_offsets
    its_path = tiering.prepare(info, offsets, merge=False)
    tiering.commit(info, readable, its_path, readable_path=its_path, earliest_to_keep=KEEP_ALL_PREVIOUS)


def _maintain(committer: LakeCommitter, planned: TieringRound) -> str | None:
    """Run expiry and compaction. They are not part of the round: failures are reported, and retried by the next one."""
    try:
        committer.maintain()
    except Exception as e:  # noqa: BLE001 - a lake may raise anything, and the round is done
        _LOGGER.warning("table %s: maintenance of the lake table failed: %s", planned.info.path, e)
        return str(e)
    return None


def _abort(planned: TieringRound, results: Sequence[SplitResult]) -> None:
    """Remove files that will not be committed; the lake's own clean-up finds the rest."""
    written = [result.written for result in results if result.written is not None]
    if not written:
        return
    try:
        committer = planned.committer()
        try:
            committer.abort(written)
        finally:
            committer.close()
    except Exception as e:  # noqa: BLE001 - a lake may raise anything, and the error that led here matters more
        _LOGGER.warning("table %s: files of a failed round are left behind: %s", planned.info.path, e)


def _with_lag(
    report: RoundReport,
    connection: Connection,
    planned: TieringRound,
    ends: Mapping[TableBucket, int],
    clock: Clock,
) -> RoundReport:
    """Return the report with the current lag; unknown if the servers do not respond."""
    now_ms = clock.now_ms()
    try:
        buckets = list(buckets_with_partitions(connection, planned.info))
        latest = list_offsets(connection.cluster, planned.info, buckets, LATEST)
    except ForebayError:
        return replace(report, finished_ms=now_ms)
    in_lake = {**planned.base.offsets, **ends}
    lag = sum(max(offset - in_lake.get(bucket, 0), 0) for bucket, offset in latest.items())
    return replace(report, finished_ms=now_ms, lag_records=lag)
