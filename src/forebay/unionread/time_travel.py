"""Union reads of an earlier state: a snapshot of the lake, or all rows as of an instant. A commit of a table without a
lake is the instant of its decision.

An instant is read from the newest lake snapshot that holds nothing later, and the log from there up to the instant: a
record belongs to it if the log's server wrote it at that time or before. Where there is no such snapshot the log must
have its beginning. Rows of partitions that were dropped since are those that the lake snapshot has.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest, NotFound, UnsupportedOperation
from forebay.base.quantity import moment_at, moment_ms
from forebay.client.admin.admin import Admin
from forebay.client.cluster.offsets import EARLIEST, list_offsets
from forebay.client.cluster.partitions import PartitionSelector
from forebay.client.results import LakeSnapshot
from forebay.client.row_view import RowView
from forebay.lake.source import LakeSource
from forebay.lake.storage import LakeStorage
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import TableBucket
from forebay.unionread.expired import planner_of
from forebay.unionread.open_lakes import lake_of
from forebay.unionread.plan import UnionPlan
from forebay.unionread.planning import plan_at_snapshot
from forebay.unionread.time_range import offsets_at

if TYPE_CHECKING:
    from forebay.client.table import Table

AsOf = int | str | dt.datetime
"""A lake snapshot's number, or that of a commit of a table without a lake, a tag's name, or a time (a datetime, or ISO
text)."""

_PLANNINGS = 3
"""Maximum attempts at a plan if a partition is dropped during planning."""

_DROPPED = (ErrorCode.PARTITION_NOT_EXISTS, ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION)
"""The errors that mean so."""

_CANDIDATES_MAX = 100
"""Maximum number of lake snapshots that are examined: those of compactions, for instance, have no log offsets."""


def plan_as_of(
    table: Table,
    as_of: AsOf,
    columns: Sequence[str] | None = None,
    filter: Predicate | None = None,  # noqa: A002 - the word of pyarrow
    limit: int | None = None,
    *,
    partitions: Sequence[PartitionSelector] | PartitionSelector | None = None,
    storage: LakeStorage | None = None,
) -> UnionPlan:
    """Return the plan of reading a table as of a lake snapshot (a number, a tag), or of an instant.

    Columns are those that the table has now. Raises `NotFound` for a snapshot or tag that does not exist, and where the
    log of that time is gone; `InvalidRequest` for a time in the future.
    """
    view = RowView(table.info, columns, filter)
    return plan_view_as_of(table, as_of, view, limit, partitions=partitions, storage=storage)


def plan_view_as_of(
    table: Table,
    as_of: AsOf,
    view: RowView,
    limit: int | None = None,
    *,
    partitions: Sequence[PartitionSelector] | PartitionSelector | None = None,
    storage: LakeStorage | None = None,
) -> UnionPlan:
    """Return the same plan as `plan_as_of` of the columns and the filter of `view`."""
    for attempt in range(_PLANNINGS):
        try:
            point = resolve(table, as_of, storage)
            return plan_at_snapshot(
                table, view, limit, partitions,
                lake_snapshot=point.lake_snapshot, stop=point.stops, storage=storage, lake_only=point.lake_only,
                within_stop=point.stops is not None, identity=point.identity,
            )  # fmt: skip
        except ForebayError as e:
            if e.code not in _DROPPED or attempt == _PLANNINGS - 1:
                raise
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class ReadPoint:
    """The state that a read sees: a lake snapshot, and the end of each log after it.

    `lake_only`: only the lake is read, and `stops` is None. `identity` is that of a snapshot that the user selected by
    number or tag (`forebay.lake.source.Planner.identity`).
    """

    lake_snapshot: LakeSnapshot | None
    stops: dict[TableBucket, int] | None
    lake_only: bool = False
    identity: str | None = None


def resolve(table: Table, as_of: AsOf, storage: LakeStorage | None = None) -> ReadPoint:
    """Return the state that `as_of` names. Raises as `plan_as_of`."""
    lake = storage
    if lake is None and table.info.lake_enabled:
        lake = lake_of(table)
    source = None if lake is None else lake.create_source(table.info.path)
    if isinstance(as_of, int) and not isinstance(as_of, bool) and source is None:
        as_of = _time_of_commit(table, as_of)
    version = _version(table, source, as_of)
    if version is not None and source is not None:
        identity = source.create_planner(version).identity
        return ReadPoint(LakeSnapshot(table.info.table_id, version, {}, {}), None, True, identity)
    assert not isinstance(as_of, int)
    at_ms = moment_ms(as_of, "as_of")
    stops = _offsets_after(table, at_ms)
    base = None if source is None else _base(table, source, at_ms, stops)
    if base is None and at_ms < table.info.created_ms:  # a table that was moved has a lake from before
        created = moment_at(table.info.created_ms)
        raise NotFound(f"table {table.path} did not exist as of {moment_at(at_ms)}: it was created at {created}")
    _check_log(table, at_ms, {} if base is None else base.log_offsets, stops)
    return ReadPoint(base, stops)


def _time_of_commit(table: Table, number: int) -> dt.datetime:
    """The time of a commit in the history of a table without a lake. All rows of the commit have it."""
    try:
        history = Admin(table.connection).history(table.info)
    except UnsupportedOperation as e:
        raise UnsupportedOperation(
            f"table {table.path} has no lake and no history, and so no version {number}: give a time, if its log has "
            "its beginning"
        ) from e
    found = history.filter(pc.equal(history["number"], number))
    if not found.num_rows:
        numbers = history["number"].to_pylist()
        known = f"{numbers[0]} to {numbers[-1]}" if numbers else "none: no transaction has written to it"
        raise NotFound(f"table {table.path} has no commit {number}: its history has {known}")
    committed_at: dt.datetime = found["committed_at"][0].as_py()
    return committed_at


def _version(table: Table, source: LakeSource | None, as_of: AsOf) -> int | None:
    """Return the lake snapshot that `as_of` names; None if it is a time."""
    if isinstance(as_of, bool) or not isinstance(as_of, int | str | dt.datetime):
        raise InvalidRequest(
            f"as_of={as_of!r} is no earlier state of table {table.path}: give an open snapshot of it, the number or a "
            "tag of a lake snapshot, or a time"
        )
    if isinstance(as_of, int):
        return as_of
    if isinstance(as_of, str):
        tagged = None if source is None else source.tagged(as_of)
        if tagged is not None:
            return tagged
        try:
            moment_ms(as_of, "as_of")
        except InvalidRequest as e:
            raise NotFound(
                f"as_of={as_of!r} is neither a tag of the lake of table {table.path} nor a time such as "
                "'2026-01-31T12:00:00+01:00'"
            ) from e
    return None


def _offsets_after(table: Table, at_ms: int) -> dict[TableBucket, int]:
    """Return the first offset of each bucket that was written after `at_ms`."""
    now = table.connection.clock.now_ms()
    if at_ms > now:
        raise InvalidRequest(
            f"table {table.path} cannot be read as of {moment_at(at_ms)}: it is {moment_at(now)} now (a time without a "
            "zone is in UTC)"
        )
    return offsets_at(table, table.buckets(), at_ms + 1)


def _base(table: Table, source: LakeSource, at_ms: int, stops: Mapping[TableBucket, int]) -> LakeSnapshot | None:
    """Return the newest lake snapshot that holds nothing from `stops` on; None if there is none."""
    admin = Admin(table.connection)

    def candidates() -> Iterator[LakeSnapshot]:
        for snapshot_id in islice(source.snapshots_until(at_ms), _CANDIDATES_MAX):
            try:
                snapshot = admin.lake_snapshot(table.info.path, snapshot_id)
                planner_of(table, source, snapshot)  # not another one, that has its number after a rollback
                yield snapshot
            except NotFound as e:  # of a compaction, or one that the cluster has forgotten
                if e.code != ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
                    raise

    for candidate in candidates():
        if all(offset <= stops.get(bucket, offset) for bucket, offset in candidate.log_offsets.items()):
            return candidate
    return None


def _check_log(table: Table, at_ms: int, starts: Mapping[TableBucket, int], stops: Mapping[TableBucket, int]) -> None:
    """Raise `NotFound` if a log has lost records from before the instant that no lake snapshot holds."""
    earliest = list_offsets(table.connection.cluster, table.info, list(stops), EARLIEST)
    for bucket, stop in stops.items():
        start = starts.get(bucket, 0)
        if start < stop and start < earliest[bucket]:
            raise NotFound(
                f"table {table.path} cannot be read as of {at_ms} ms since 1970: the log of bucket {bucket} begins at "
                f"offset {earliest[bucket]}, and no known lake snapshot from before that time has the records from "
                f"{start} on. Read a lake snapshot by its number, or a later time",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            )
