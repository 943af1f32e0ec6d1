"""Procedures of a table's history: expiry, tags, branches, rollback, consumers."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Any

from forebay.base.errors import InvalidRequest, NotFound
from forebay.base.options import boolean, or_unset
from forebay.base.quantity import moment_at, parse_duration_ms
from forebay.paimon.format.partition_path import partition_spec
from forebay.paimon.maintain.partition_expiry import UPDATE_TIME, VALUES_TIME
from forebay.paimon.table import Table
from forebay.spark.context import LakeContext
from forebay.spark.sql.lake_procedure_arguments import (
    DryRun,
    Int,
    Long,
    Moment,
    Options,
    Span,
    TableName,
    Text,
    in_session_zone,
    listed,
    opened,
    require_positive,
)
from forebay.spark.sql.procedures import (
    BOOLEAN,
    INT,
    LONG,
    TEXT,
    TEXTS,
    Procedure,
    Rows,
    naming,
    procedure,
    result_of,
)

HISTORY: dict[str, Procedure] = {}
"""The procedures of this module, by name."""


# ---- expiry ---------------------------------------------------------------------------------------------------------


@procedure(HISTORY, result_of(deleted_snapshots_count=INT))
def expire_snapshots(
    context: LakeContext,
    table: TableName,
    retain_max: Annotated[Int, "keep at most so many snapshots"] = None,
    retain_min: Annotated[Int, "keep at least so many snapshots"] = None,
    older_than: Annotated[Moment, "only snapshots older than this time: '2026-01-31 12:00:00'"] = None,
    max_deletes: Annotated[Int, "delete at most so many snapshots"] = None,
    options: Options = None,
    dry_run: DryRun = False,
) -> Rows:
    """Delete old snapshots, and the files that only they need; what is left out is as the table's options say."""
    require_positive(retain_min=retain_min, retain_max=retain_max, max_deletes=max_deletes)
    maintenance, time = opened(context, table, options).maintenance(), in_session_zone(context, older_than)
    return [(maintenance.expire_snapshots(retain_min, retain_max, time, max_deletes, dry_run=dry_run).count,)]


def _checked_span(text: str) -> str:
    parse_duration_ms(text)
    return text


@procedure(HISTORY, result_of(expired_partitions=TEXT))
def expire_partitions(
    context: LakeContext,
    table: TableName,
    expiration_time: Annotated[Text, or_unset(_checked_span), "how old partitions may become: '30 d'"] = None,
    timestamp_formatter: Annotated[Text, "how their values are read as times: 'yyyy-MM-dd'"] = None,
    timestamp_pattern: Annotated[Text, "how columns make up that time: '$year-$month-$day'"] = None,
    expire_strategy: Annotated[Text, f"'{VALUES_TIME}' (default) or '{UPDATE_TIME}'"] = None,
    max_expires: Annotated[Int, "drop at most so many partitions"] = None,
    options: Options = None,
    dry_run: DryRun = False,
) -> Rows:
    """Drop old partitions; returns their values."""
    opened_table = opened(context, table, options)
    if expire_strategy not in (None, VALUES_TIME, UPDATE_TIME):
        raise InvalidRequest(
            f"argument 'expire_strategy' is {expire_strategy!r}; write '{VALUES_TIME}' or '{UPDATE_TIME}'"
        )
    stated = {
        "partition.expiration-time": expiration_time,
        "partition.timestamp-formatter": timestamp_formatter,
        "partition.timestamp-pattern": timestamp_pattern,
        "partition.expiration-strategy": expire_strategy,
        "partition.expiration-max-num": max_expires,
    }
    if any(value is not None for value in stated.values()):
        opened_table = opened_table.with_options(
            {key: str(value) for key, value in stated.items() if value is not None}
        )
    expired = opened_table.maintenance().expire_partitions(dry_run=dry_run)
    return ((_partition_text(opened_table, partition),) for partition in expired)


def _partition_text(table: Table, partition: Mapping[str, Any]) -> str:
    """The name of the partition's directory. A DATE is its number of days, unless `partition.legacy-name` is false."""
    fields, o = table.schema.partition_fields, table.context.options
    values = [partition[f.name] for f in fields]
    names = partition_spec(fields, values, o.partition_default_name, o.partition_legacy_name)
    return ", ".join(f"{key}={value}" for key, value in names.items())


@procedure(HISTORY, result_of(expired_tags=TEXT))
def expire_tags(
    context: LakeContext,
    table: TableName,
    older_than: Annotated[Moment, "tags made before this time: '2026-01-31 12:00:00'"] = None,
    dry_run: DryRun = False,
) -> Rows:
    """Delete tags whose time is over, and those made before a time; returns their names."""
    time = in_session_zone(context, older_than)
    return ((name,) for name in opened(context, table).maintenance().expire_tags(time, dry_run=dry_run))


# ---- tags -----------------------------------------------------------------------------------------------------------

TagName = Annotated[str, TEXT, "the tag's name"]
TagSnapshot = Annotated[Long, "the snapshot's id; by default the latest"]
Retained = Annotated[Span, "how long the tag is kept, such as '7 d'; by default for good"]


@procedure(HISTORY)
def create_tag(
    context: LakeContext,
    table: TableName,
    tag: TagName,
    snapshot: TagSnapshot = None,
    time_retained: Retained = None,
) -> None:
    """Keep a snapshot under a name."""
    retain = None if time_retained is None else datetime.timedelta(milliseconds=time_retained)
    opened(context, table).create_tag(tag, snapshot, retain)


@procedure(HISTORY, result_of(tagName=TEXT, snapshot=LONG, commit_time=LONG, watermark=TEXT))
def create_tag_from_timestamp(
    context: LakeContext,
    table: TableName,
    tag: TagName,
    timestamp: Annotated[int, LONG, "milliseconds since 1970"],
    time_retained: Retained = None,
) -> Rows:
    """Keep the first snapshot made at a time or later under a name.

    It may be one that only a tag keeps.
    """
    of = opened(context, table)
    tags = of.context.tags
    candidates = (*tags.tagged_snapshots(), of.context.snapshots.after(timestamp))
    later = [s for s in candidates if s is not None and s.time_millis >= timestamp]
    if not later:
        raise NotFound(f"argument 'timestamp': {of.name} has no snapshot made at {timestamp} ms since 1970 or later")
    first = min(later, key=lambda s: (s.time_millis, s.id))
    tags.create(tag, first, time_retained)
    return [(tag, first.id, first.time_millis, None if first.watermark is None else str(first.watermark))]


@procedure(HISTORY)
def replace_tag(
    context: LakeContext,
    table: TableName,
    tag: TagName,
    snapshot: Annotated[Long, "the snapshot's id; by default the same"] = None,
    time_retained: Retained = None,
) -> None:
    """Let a tag mean another snapshot, or live for another time.

    Without a snapshot the tag means the same one, as in Paimon.
    """
    of = opened(context, table).context
    current = of.tags.tag(tag)
    with naming("snapshot"):
        tagged = current.snapshot if snapshot in (None, current.snapshot.id) else of.snapshots.snapshot(snapshot)
    of.tags.replace(current.name, tagged, time_retained)


@procedure(HISTORY)
def rename_tag(
    context: LakeContext, table: TableName, tag: TagName, target_tag: Annotated[str, TEXT, "the new name"]
) -> None:
    """Give a tag another name."""
    opened(context, table).context.tags.rename(tag, target_tag)


@procedure(HISTORY)
def delete_tag(
    context: LakeContext,
    table: TableName,
    tag: Annotated[list[str], TEXT, listed, "a tag's name, or several: 'a,b'"],
) -> None:
    """Delete tags, and the files that only they need."""
    opened_table = opened(context, table)
    for name in tag:
        opened_table.context.tags.tag(name)  # all must be there before the first one goes
    for name in tag:
        opened_table.delete_tag(name)


@procedure(HISTORY)
def trigger_tag_automatic_creation(context: LakeContext, table: TableName) -> None:
    """Tag snapshots as the table's option 'tag.automatic-creation' says, now."""
    opened(context, table).maintenance().create_auto_tags(batch=True)


# ---- branches -------------------------------------------------------------------------------------------------------

BranchName = Annotated[str, TEXT, "the branch's name"]


@procedure(HISTORY)
def create_branch(
    context: LakeContext,
    table: TableName,
    branch: BranchName,
    tag: Annotated[Text, "the tag that it begins with"] = None,
    ignoreIfExists: Annotated[
        bool | None, TEXT, or_unset(boolean), "'true': a branch that is there is no error"
    ] = None,
) -> None:
    """Make a branch: empty, or beginning with a tag's snapshot."""
    opened(context, table).create_branch(branch, tag, ignore_if_exists=bool(ignoreIfExists))


@procedure(HISTORY)
def delete_branch(
    context: LakeContext,
    table: TableName,
    branch: Annotated[list[str], TEXT, listed, "a branch's name, or several: 'a,b'"],
) -> None:
    """Delete branches."""
    target = opened(context, table)
    for name in branch:
        target.delete_branch(name)


@procedure(HISTORY)
def rename_branch(
    context: LakeContext,
    table: TableName,
    from_branch: BranchName,
    to_branch: Annotated[str, TEXT, "its new name"],
) -> None:
    """Give a branch another name."""
    opened(context, table).rename_branch(from_branch, to_branch)


@procedure(HISTORY)
def fast_forward(context: LakeContext, table: TableName, branch: BranchName) -> None:
    """Make a branch's history that of the table."""
    opened(context, table).fast_forward(branch)


# ---- rollback -------------------------------------------------------------------------------------------------------

_ROLLED_BACK = result_of(previous_snapshot_id=LONG, current_snapshot_id=LONG)


def _rolled_back(table: Table, dry_run: bool, **target: Any) -> Rows:
    """`target` is what `Maintenance.rollback_to` takes."""
    latest = table.context.snapshots.latest_id()
    if latest is None:
        raise NotFound(f"argument 'table': {table.name} has no snapshot to roll back: nothing was written yet")
    return [(latest, table.maintenance().rollback_to(**target, dry_run=dry_run).id)]


@procedure(HISTORY, _ROLLED_BACK, also="rollback_to")
def rollback(
    context: LakeContext,
    table: TableName,
    version: Annotated[Text, "a snapshot's id or a tag's name"] = None,
    snapshot: Annotated[Long, "a snapshot's id"] = None,
    tag: Annotated[Text, "a tag's name"] = None,
    dry_run: DryRun = False,
) -> Rows:
    """Make an older snapshot the latest again; all behind it is dropped."""
    opened_table = opened(context, table)
    if sum(target is not None for target in (version, snapshot, tag)) != 1:
        raise InvalidRequest("give one of the arguments 'snapshot', 'tag' and 'version'")
    if version is not None:
        snapshot, tag = (int(version), None) if version.isdigit() else (None, version)
    return _rolled_back(opened_table, dry_run, snapshot=snapshot, tag=tag)


@procedure(HISTORY, _ROLLED_BACK)
def rollback_to_timestamp(
    context: LakeContext,
    table: TableName,
    timestamp: Annotated[datetime.datetime, LONG, moment_at, "milliseconds since 1970"],
    dry_run: DryRun = False,
) -> Rows:
    """Make the last snapshot made until a time the latest again."""
    opened_table = opened(context, table)
    with naming("timestamp"):
        return _rolled_back(opened_table, dry_run, timestamp=timestamp)


@procedure(HISTORY, _ROLLED_BACK)
def rollback_to_watermark(
    context: LakeContext,
    table: TableName,
    watermark: Annotated[int, LONG, "the watermark"],
    dry_run: DryRun = False,
) -> Rows:
    """Make the last snapshot with at most this watermark the latest again."""
    of = opened(context, table)
    late = [s for s in of.context.snapshots.snapshots() if s.watermark is not None and s.watermark <= watermark]
    if not late:
        raise NotFound(f"argument 'watermark': {of.name} has no snapshot with a watermark of {watermark} or less")
    return _rolled_back(of, dry_run, snapshot=late[-1].id)


# ---- consumers ------------------------------------------------------------------------------------------------------


@procedure(HISTORY)
def reset_consumer(
    context: LakeContext,
    table: TableName,
    consumerId: Annotated[str, TEXT, "the consumer"],
    nextSnapshotId: Annotated[Long, "the snapshot that it reads next; left out, it is forgotten"] = None,
) -> None:
    """Let a consumer go on with another snapshot, or forget it."""
    of = opened(context, table).context
    if nextSnapshotId is None:
        of.consumers.delete(consumerId)
        return
    with naming("nextSnapshotId"):
        of.snapshots.snapshot(nextSnapshotId)
    before = of.snapshots.find(nextSnapshotId - 1)
    of.consumers.record(consumerId, nextSnapshotId, None if before is None else before.delta_manifest_list)


@procedure(HISTORY, result_of(result=BOOLEAN, consumers=TEXTS))
def clear_consumers(
    context: LakeContext,
    table: TableName,
    includingConsumers: Annotated[Text, or_unset(str), "a regular expression for their ids; all if left out"] = None,
    excludingConsumers: Annotated[Text, or_unset(str), "a regular expression for those to keep"] = None,
    dry_run: DryRun = False,
) -> Rows:
    """Forget consumers, and list them; readers that come back under their names start over."""
    maintenance = opened(context, table).maintenance()
    return [(True, sorted(maintenance.clear_consumers(includingConsumers, excludingConsumers, dry_run=dry_run)))]
