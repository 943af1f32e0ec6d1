"""The state of a table on both sides, and whether it can be moved.

The table on the target has a *mark*, a custom property that names the table it is a copy of. So an interrupted move
finds its target again, and never writes to an unrelated table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from forebay.base.errors import AlreadyExists, ErrorCode, ForebayError, InvalidRequest, NotFound, UnsupportedOperation
from forebay.base.locations import location
from forebay.client.cluster.buckets import plan_buckets
from forebay.client.cluster.offsets import EARLIEST, LATEST, list_offsets
from forebay.client.cluster.partitions import list_partitions
from forebay.client.connection import Connection
from forebay.client.results import LakeSnapshot
from forebay.metadata.table import TableBucket, TableDescriptor, TableInfo, TablePath
from forebay.tiering.lag import newest_lake_snapshot

MARK = "forebay.moved-from"
"""The custom property of the target table that names the source table."""

ENABLED = "table.datalake.enabled"
_OF_THE_SERVER = ("table.replication.factor", "table.kv.standby-replica.enabled")
"""Properties that depend on the servers: the target sets its own, or does not know them."""

LAKE_FORMAT = "paimon"
"""The lake format whose tables can be handed over."""

Place = tuple[str | None, int]
"""The name of a partition (None in tables without), and a bucket: equal on both sides, while ids differ."""


@dataclass(frozen=True)
class Side:
    """A table on one of the two sides: its buckets by place, and the start and end of their logs."""

    connection: Connection
    info: TableInfo
    buckets: Mapping[Place, TableBucket]
    starts: Mapping[Place, int]
    ends: Mapping[Place, int]

    @classmethod
    def of(cls, connection: Connection, path: TablePath) -> Side:
        """The current state of the table. Raises `NotFound`."""
        info = connection.cluster.table_info(path)
        names = (
            {p.partition_id: p.name for p in list_partitions(connection.cluster, path)} if info.is_partitioned else {}
        )
        buckets = plan_buckets(connection.cluster, info)
        places = {(None if b.partition_id is None else names.get(b.partition_id), b.bucket): b for b in buckets}
        starts = list_offsets(connection.cluster, info, buckets, EARLIEST)
        ends = list_offsets(connection.cluster, info, buckets, LATEST)
        return cls(
            connection,
            info,
            places,
            {place: starts[bucket] for place, bucket in places.items()},
            {place: ends[bucket] for place, bucket in places.items()},
        )

    def again(self) -> Side:
        """The current state of the same table. Raises `NotFound` if another one has its name."""
        now = Side.of(self.connection, self.info.path)
        if now.info.table_id != self.info.table_id:
            raise NotFound(f"table {self.info.path} was dropped while it was being moved", ErrorCode.TABLE_NOT_EXIST)
        return now

    @property
    def lake_snapshot(self) -> LakeSnapshot | None:
        """The newest lake snapshot that this side knows."""
        return newest_lake_snapshot(self.connection.admin, self.info)

    @property
    def records(self) -> int:
        """The number of records in its logs."""
        return sum(end - self.starts[place] for place, end in self.ends.items())


@dataclass(frozen=True)
class MovePlan:
    """The plan for moving one table. `target` is None if the table does not exist there yet."""

    path: TablePath
    source: Side
    target: Side | None
    descriptor: TableDescriptor
    """The descriptor of the table on the target: without a lake at first."""
    with_lake: bool
    with_log: bool

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps in words."""
        source = self.source
        count = f"{len(source.buckets)} buckets, {source.records:,} records in their logs"
        lines = [f"table {self.path}: {count}"]
        if self.with_lake:
            snapshot = source.lake_snapshot
            tiered = {} if snapshot is None else snapshot.log_offsets
            behind = sum(end - tiered.get(source.buckets[p], 0) for p, end in source.ends.items())
            lines.append(f"tier what the lake lacks on the source ({max(behind, 0):,} log offsets)")
        if self.target is None:
            lines.append("create the table on the target, without a lake")
        else:
            lines.append(f"continue with the table on the target, whose logs have {self.target.records:,} records")
        partitions = sorted({place[0] for place in source.buckets if place[0] is not None})
        if partitions:
            lines.append(f"create partitions that are missing there, of {len(partitions)}")
        if source.info.has_primary_key:
            lines.append("upsert all rows")
        elif self.with_log:
            lines.append("append the logs, bucket by bucket in their order")
        if self.with_lake:
            lines.append("hand the lake table over: one lake snapshot with the target's offsets")
            lines.append("switch the lake on for the table on the target")
        lines.append("compare counts and checksums of both sides")
        return tuple(lines)

    def __str__(self) -> str:
        return "\n".join([self.steps[0], *(f"  {number}. {step}" for number, step in enumerate(self.steps[1:], 1))])


def plan_move(
    source: Connection,
    target: Connection,
    path: str | TablePath,
    *,
    with_log: bool = True,
    leave_out: Sequence[str] = (),
) -> MovePlan:
    """The plan of a move. Changes nothing.

    `with_log`: records of a log table that are in its lake are also appended to the target's log. `leave_out` names
    properties that the target does not know. Raises `UnsupportedOperation` or `InvalidRequest` for tables that cannot
    be moved, `AlreadyExists` if the target has another table of this name.
    """
    table_path = TablePath.parse(path)
    from_side = Side.of(source, table_path)
    info = from_side.info
    _check_movable(source, target, info)
    with_lake = info.lake_enabled
    descriptor = _target_descriptor(info, leave_out)
    to_side = None
    if target.table_exists(table_path):
        to_side = Side.of(target, table_path)
        _check_own_target(to_side.info, descriptor)
        if to_side.info.bucket_count != info.bucket_count:
            raise InvalidRequest(f"table {table_path} has {to_side.info.bucket_count} buckets on the target")
    return MovePlan(table_path, from_side, to_side, descriptor, with_lake, with_log or not with_lake)


def _check_movable(source: Connection, target: Connection, info: TableInfo) -> None:
    number = info.schema.auto_increment_column
    if number is not None:
        raise UnsupportedOperation(
            f"table {info.path} cannot be moved: its column '{number}' is numbered by the server, and the target would "
            "number its rows otherwise; copy it into a table with a plain column"
        )
    if not info.lake_enabled:
        return
    if info.descriptor.lake_format != LAKE_FORMAT:
        raise UnsupportedOperation(
            f"table {info.path} cannot be moved with its lake table in format '{info.descriptor.lake_format}': only "
            f"those of '{LAKE_FORMAT}' can be handed over; switch '{ENABLED}' off to move what the stream has"
        )
    here, there = info.lake_options().get("warehouse"), _warehouse(target)
    if there is not None and here is not None and location(here) != location(there):
        raise InvalidRequest(
            f"table {info.path} has its lake in '{here}', and the target's lake is '{there}': both sides must have the "
            "same lake ('datalake.paimon.warehouse'); docs/moving.md says how to copy a lake table"
        )


def _warehouse(target: Connection) -> str | None:
    """The warehouse of a cluster's lake; None if it does not publish it."""
    try:
        configs = {entry.key: entry.value for entry in target.admin.describe_configs()}
    except ForebayError:
        return None
    return configs.get("datalake.paimon.warehouse")


def _target_descriptor(info: TableInfo, leave_out: Sequence[str]) -> TableDescriptor:
    """The descriptor of the new table. Properties that its server sets for each table are omitted."""
    prefix = info.descriptor.lake_options_prefix
    unknown = sorted(set(leave_out) - {*info.descriptor.properties, *info.descriptor.custom_properties})
    if unknown:
        raise InvalidRequest(f"table {info.path} has no property {', '.join(map(repr, unknown))} to leave out")
    excluded_keys = {ENABLED, *_OF_THE_SERVER, *leave_out}
    properties = {
        key: value
        for key, value in info.descriptor.properties.items()
        if key not in excluded_keys and not (prefix is not None and key.startswith(prefix))
    }
    custom = {key: value for key, value in info.descriptor.custom_properties.items() if key not in (*leave_out, MARK)}
    return replace(info.descriptor, properties=properties, custom_properties={**custom, MARK: _mark(info)})


def _mark(info: TableInfo) -> str:
    return f"{info.path}, table {info.table_id}, created {info.created_ms}"


def _check_own_target(there: TableInfo, expected: TableDescriptor) -> None:
    mark = there.descriptor.custom_properties.get(MARK)
    if mark != expected.custom_properties[MARK]:
        origin = "something else" if mark is None else f"a copy of {mark}"
        raise AlreadyExists(
            f"table {there.path} exists already on the target, and is {origin}; drop it there first (its lake table "
            "stays), and run the move again",
            ErrorCode.TABLE_ALREADY_EXIST,
        )
    if there.schema.names != expected.schema.names:
        raise InvalidRequest(
            f"table {there.path} was altered since its move began: its columns are {', '.join(expected.schema.names)}, "
            f"and on the target {', '.join(there.schema.names)}; drop it on the target, and begin again"
        )
