"""Procedures of a table's history: expiry, tags, branches, rollback, consumers."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType

from forebay.base.errors import InvalidRequest, NotFound
from forebay.base.quantity import moment_at, parse_bool
from forebay.paimon.format.partition_path import partition_spec
from forebay.paimon.maintain.partition_expiry import UPDATE_TIME, VALUES_TIME
from forebay.paimon.store.branches import BranchManager
from forebay.paimon.table import Table
from forebay.spark.context import PaimonContext
from forebay.spark.sql.lake_procedure_arguments import (
    DRY_RUN,
    OPTIONS,
    TABLE,
    names_in,
    naming,
    opened,
    parse_moment,
    parse_span,
)
from forebay.spark.sql.procedures import RESULT, Arguments, Parameter, Procedure, optional, result_of, rows, simple

# ---- expiry ---------------------------------------------------------------------------------------------------------

_SNAPSHOTS_GONE = result_of(deleted_snapshots_count=IntegerType())
_PARTITIONS_GONE = result_of(expired_partitions=StringType())
_TAGS_GONE = result_of(expired_tags=StringType())
_PARTITION_OPTIONS = {
    "expiration_time": "partition.expiration-time",
    "timestamp_formatter": "partition.timestamp-formatter",
    "timestamp_pattern": "partition.timestamp-pattern",
    "expire_strategy": "partition.expiration-strategy",
    "max_expires": "partition.expiration-max-num",
}
"""The options that arguments of expire_partitions stand for."""


def _expire_snapshots(context: PaimonContext, arguments: Arguments) -> pa.Table:
    table = opened(context, arguments)
    older_than = parse_moment(context, arguments["older_than"], "older_than")
    for name in ("retain_min", "retain_max", "max_deletes"):
        if arguments[name] is not None and arguments[name] < 1:
            raise InvalidRequest(f"argument '{name}' is {arguments[name]}; it is at least 1")
    expired = table.maintenance().expire_snapshots(
        arguments["retain_min"], arguments["retain_max"], older_than, arguments["max_deletes"],
        dry_run=arguments["dry_run"],
    )  # fmt: skip
    return rows(_SNAPSHOTS_GONE, (expired.count,))


def _expire_partitions(context: PaimonContext, arguments: Arguments) -> pa.Table:
    table = opened(context, arguments)
    strategy = arguments["expire_strategy"]
    if strategy not in (None, VALUES_TIME, UPDATE_TIME):
        raise InvalidRequest(f"argument 'expire_strategy' is {strategy!r}; write '{VALUES_TIME}' or '{UPDATE_TIME}'")
    parse_span(arguments["expiration_time"], "expiration_time")
    given = {key: str(arguments[name]) for name, key in _PARTITION_OPTIONS.items() if arguments[name] is not None}
    if given:
        table = table.with_options(given)
    gone = table.maintenance().expire_partitions(dry_run=arguments["dry_run"])
    return rows(_PARTITIONS_GONE, *((_partition_text(table, partition),) for partition in gone))


def _partition_text(table: Table, partition: Mapping[str, Any]) -> str:
    """As its directory is called, and as Paimon says it: a DATE is its number of days, but with the option
    `partition.legacy-name` = false."""
    fields, o = table.schema.partition_fields, table.context.options
    values = [partition[f.name] for f in fields]
    names = partition_spec(fields, values, o.partition_default_name, o.partition_legacy_name)
    return ", ".join(f"{key}={value}" for key, value in names.items())


def _expire_tags(context: PaimonContext, arguments: Arguments) -> pa.Table:
    table = opened(context, arguments)
    older_than = parse_moment(context, arguments["older_than"], "older_than")
    gone = table.maintenance().expire_tags(older_than, dry_run=arguments["dry_run"])
    return rows(_TAGS_GONE, *((name,) for name in gone))


# ---- tags -----------------------------------------------------------------------------------------------------------

_TAG = Parameter("tag", StringType(), None, "the tag's name")
_SNAPSHOT = optional("snapshot", LongType(), "the snapshot's id; by default the latest")
_RETAINED = optional("time_retained", StringType(), "how long the tag is kept, such as '7 d'; by default for good")
_TAGGED = result_of(tagName=StringType(), snapshot=LongType(), commit_time=LongType(), watermark=StringType())


def _create_tag(context: PaimonContext, arguments: Arguments) -> None:
    retained_ms = parse_span(arguments["time_retained"], "time_retained")
    retain = None if retained_ms is None else datetime.timedelta(milliseconds=retained_ms)
    opened(context, arguments).create_tag(arguments["tag"], arguments["snapshot"], retain)


def _replace_tag(context: PaimonContext, arguments: Arguments) -> None:
    """Without a snapshot the tag means the same one, for another time, as in Paimon."""
    table = opened(context, arguments)
    tag = table.context.tags.tag(arguments["tag"])
    wanted = arguments["snapshot"]
    with naming("snapshot"):
        snapshot = tag.snapshot if wanted in (None, tag.snapshot.id) else table.context.snapshots.snapshot(wanted)
    table.context.tags.replace(tag.name, snapshot, parse_span(arguments["time_retained"], "time_retained"))


def _create_tag_from_timestamp(context: PaimonContext, arguments: Arguments) -> pa.Table:
    """Of the first snapshot made at that time or later, which may be one that only a tag keeps."""
    table, time_ms = opened(context, arguments), arguments["timestamp"]
    found = [
        s for s in (*table.context.tags.tagged_snapshots(), table.context.snapshots.after(time_ms)) if s is not None
    ]
    later = [s for s in found if s.time_millis >= time_ms]
    if not later:
        raise NotFound(f"argument 'timestamp': {table.name} has no snapshot made at {time_ms} ms since 1970 or later")
    chosen = min(later, key=lambda s: (s.time_millis, s.id))
    table.context.tags.create(arguments["tag"], chosen, parse_span(arguments["time_retained"], "time_retained"))
    watermark = None if chosen.watermark is None else str(chosen.watermark)
    return rows(_TAGGED, (arguments["tag"], chosen.id, chosen.time_millis, watermark))


def _delete_tags(context: PaimonContext, arguments: Arguments) -> None:
    table = opened(context, arguments)
    names = names_in(arguments["tag"], "tag")
    for name in names:
        table.context.tags.tag(name)  # all must be there before the first one goes
    for name in names:
        table.delete_tag(name)


def _rename_tag(context: PaimonContext, arguments: Arguments) -> None:
    opened(context, arguments).context.tags.rename(arguments["tag"], arguments["target_tag"])


def _tag_automatically(context: PaimonContext, arguments: Arguments) -> None:
    opened(context, arguments).maintenance().create_auto_tags(batch=True)


# ---- branches -------------------------------------------------------------------------------------------------------

_BRANCH = Parameter("branch", StringType(), None, "the branch's name")


def _branches(context: PaimonContext, arguments: Arguments) -> BranchManager:
    table = opened(context, arguments)
    return table.context.branches


def _create_branch(context: PaimonContext, arguments: Arguments) -> None:
    with naming("ignoreIfExists"):
        ignore = parse_bool(arguments["ignoreIfExists"] or "false")
    _branches(context, arguments).create(arguments["branch"], arguments["tag"], ignore)


def _delete_branches(context: PaimonContext, arguments: Arguments) -> None:
    branches = _branches(context, arguments)
    for name in names_in(arguments["branch"], "branch"):
        branches.drop(name)


def _rename_branch(context: PaimonContext, arguments: Arguments) -> None:
    _branches(context, arguments).rename(arguments["from_branch"], arguments["to_branch"])


def _fast_forward(context: PaimonContext, arguments: Arguments) -> None:
    _branches(context, arguments).fast_forward(arguments["branch"])


# ---- rollback -------------------------------------------------------------------------------------------------------

_ROLLED_BACK = result_of(previous_snapshot_id=LongType(), current_snapshot_id=LongType())


def _rolled_back(table: Table, arguments: Arguments, **target: Any) -> pa.Table:
    """`target` is what `Maintenance.rollback_to` takes."""
    latest = table.context.snapshots.latest_id()
    if latest is None:
        raise NotFound(f"argument 'table': {table.name} has no snapshot to roll back: nothing was written yet")
    return rows(_ROLLED_BACK, (latest, table.maintenance().rollback_to(**target, dry_run=arguments["dry_run"]).id))


def _rollback(context: PaimonContext, arguments: Arguments) -> pa.Table:
    """Roll back. `version` is a snapshot id or a tag's name; the other two arguments name one of these explicitly."""
    table = opened(context, arguments)
    version, snapshot, tag = (arguments[name] for name in ("version", "snapshot", "tag"))
    if sum(given is not None for given in (version, snapshot, tag)) != 1:
        raise InvalidRequest("give one of the arguments 'snapshot', 'tag' and 'version'")
    if version is not None:
        snapshot, tag = (int(version), None) if version.isdigit() else (None, version)
    return _rolled_back(table, arguments, snapshot=snapshot, tag=tag)


def _rollback_to_timestamp(context: PaimonContext, arguments: Arguments) -> pa.Table:
    table = opened(context, arguments)
    with naming("timestamp"):
        return _rolled_back(table, arguments, timestamp=moment_at(arguments["timestamp"]))


def _rollback_to_watermark(context: PaimonContext, arguments: Arguments) -> pa.Table:
    """To the last snapshot whose watermark is not above the one that is given."""
    table, watermark = opened(context, arguments), arguments["watermark"]
    found = [s for s in table.context.snapshots.snapshots() if s.watermark is not None and s.watermark <= watermark]
    if not found:
        raise NotFound(f"argument 'watermark': {table.name} has no snapshot with a watermark of {watermark} or less")
    return _rolled_back(table, arguments, snapshot=found[-1].id)


# ---- consumers ------------------------------------------------------------------------------------------------------

_CLEARED = result_of(result=RESULT["result"].dataType, consumers=ArrayType(StringType()))


def _reset_consumer(context: PaimonContext, arguments: Arguments) -> None:
    table = opened(context, arguments)
    consumers = table.context.consumers
    consumer, snapshot = arguments["consumerId"], arguments["nextSnapshotId"]
    if snapshot is None:
        consumers.delete(consumer)
        return
    with naming("nextSnapshotId"):
        table.context.snapshots.snapshot(snapshot)
    consumers.record(consumer, snapshot)


def _clear_consumers(context: PaimonContext, arguments: Arguments) -> pa.Table:
    given = (arguments[name] for name in ("includingConsumers", "excludingConsumers"))
    cleared = (
        opened(context, arguments)
        .maintenance()
        .clear_consumers(*(text if text and text.strip() else None for text in given), dry_run=arguments["dry_run"])
    )
    return rows(_CLEARED, (True, sorted(cleared)))


_ROLLBACK = Procedure(
    "rollback",
    "Make an older snapshot the latest again; all behind it is dropped.",
    (
        TABLE,
        optional("version", StringType(), "a snapshot's id or a tag's name"),
        optional("snapshot", LongType(), "a snapshot's id"),
        optional("tag", StringType(), "a tag's name"),
        DRY_RUN,
    ),
    _ROLLED_BACK,
    _rollback,
)

HISTORY = (
    Procedure(
        "expire_snapshots",
        "Delete old snapshots, and the files that only they need; what is left out is as the table's options say.",
        (
            TABLE,
            optional("retain_max", IntegerType(), "keep at most so many snapshots"),
            optional("retain_min", IntegerType(), "keep at least so many snapshots"),
            optional("older_than", StringType(), "only snapshots older than this time: '2026-01-31 12:00:00'"),
            optional("max_deletes", IntegerType(), "delete at most so many snapshots"),
            OPTIONS,
            DRY_RUN,
        ),
        _SNAPSHOTS_GONE,
        _expire_snapshots,
    ),
    Procedure(
        "expire_partitions",
        "Drop old partitions; returns their values.",
        (
            TABLE,
            optional("expiration_time", StringType(), "how old partitions may become: '30 d'"),
            optional("timestamp_formatter", StringType(), "how their values are read as times: 'yyyy-MM-dd'"),
            optional("timestamp_pattern", StringType(), "how columns make up that time: '$year-$month-$day'"),
            optional("expire_strategy", StringType(), f"'{VALUES_TIME}' (default) or '{UPDATE_TIME}'"),
            optional("max_expires", IntegerType(), "drop at most so many partitions"),
            OPTIONS,
            DRY_RUN,
        ),
        _PARTITIONS_GONE,
        _expire_partitions,
    ),
    Procedure(
        "expire_tags",
        "Delete tags whose time is over, and those made before a time; returns their names.",
        (TABLE, optional("older_than", StringType(), "tags made before this time: '2026-01-31 12:00:00'"), DRY_RUN),
        _TAGS_GONE,
        _expire_tags,
    ),
    simple("create_tag", "Keep a snapshot under a name.", (TABLE, _TAG, _SNAPSHOT, _RETAINED), _create_tag),
    Procedure(
        "create_tag_from_timestamp",
        "Keep the first snapshot made at a time or later under a name.",
        (TABLE, _TAG, Parameter("timestamp", LongType(), None, "milliseconds since 1970"), _RETAINED),
        _TAGGED,
        _create_tag_from_timestamp,
    ),
    simple(
        "replace_tag",
        "Let a tag mean another snapshot, or live for another time.",
        (TABLE, _TAG, replace(_SNAPSHOT, comment="the snapshot's id; by default the same"), _RETAINED),
        _replace_tag,
    ),
    simple(
        "rename_tag",
        "Give a tag another name.",
        (TABLE, _TAG, Parameter("target_tag", StringType(), None, "the new name")),
        _rename_tag,
    ),
    simple(
        "delete_tag",
        "Delete tags, and the files that only they need.",
        (TABLE, replace(_TAG, comment="a tag's name, or several: 'a,b'")),
        _delete_tags,
    ),
    simple(
        "trigger_tag_automatic_creation",
        "Tag snapshots as the table's option 'tag.automatic-creation' says, now.",
        (TABLE,),
        _tag_automatically,
    ),
    simple(
        "create_branch",
        "Make a branch: empty, or beginning with a tag's snapshot.",
        (
            TABLE,
            _BRANCH,
            optional("tag", StringType(), "the tag that it begins with"),
            optional("ignoreIfExists", StringType(), "'true': a branch that is there is no error"),
        ),
        _create_branch,
    ),
    simple(
        "delete_branch",
        "Delete branches.",
        (TABLE, replace(_BRANCH, comment="a branch's name, or several: 'a,b'")),
        _delete_branches,
    ),
    simple(
        "rename_branch",
        "Give a branch another name.",
        (
            TABLE,
            Parameter("from_branch", StringType(), None, "the branch's name"),
            Parameter("to_branch", StringType(), None, "its new name"),
        ),
        _rename_branch,
    ),
    simple("fast_forward", "Make a branch's history that of the table.", (TABLE, _BRANCH), _fast_forward),
    _ROLLBACK,
    replace(_ROLLBACK, name="rollback_to"),
    Procedure(
        "rollback_to_timestamp",
        "Make the last snapshot made until a time the latest again.",
        (TABLE, Parameter("timestamp", LongType(), None, "milliseconds since 1970"), DRY_RUN),
        _ROLLED_BACK,
        _rollback_to_timestamp,
    ),
    Procedure(
        "rollback_to_watermark",
        "Make the last snapshot with at most this watermark the latest again.",
        (TABLE, Parameter("watermark", LongType(), None, "the watermark"), DRY_RUN),
        _ROLLED_BACK,
        _rollback_to_watermark,
    ),
    simple(
        "reset_consumer",
        "Let a consumer go on with another snapshot, or forget it.",
        (
            TABLE,
            Parameter("consumerId", StringType(), None, "the consumer"),
            optional("nextSnapshotId", LongType(), "the snapshot that it reads next; left out, it is forgotten"),
        ),
        _reset_consumer,
    ),
    Procedure(
        "clear_consumers",
        "Forget consumers, and list them; readers that come back under their names start over.",
        (
            TABLE,
            optional("includingConsumers", StringType(), "a regular expression for their ids; all if left out"),
            optional("excludingConsumers", StringType(), "a regular expression for those to keep"),
            DRY_RUN,
        ),
        _CLEARED,
        _clear_consumers,
    ),
)
"""The procedures of this module."""
