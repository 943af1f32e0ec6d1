"""Plans a union read: the readable lake snapshot, how far it holds each log, and where each log ends now.

The lake snapshot is requested first and the log end offsets afterwards, so no record falls between the two. What the
lake's planner skips because of a filter moves nothing: the snapshot's offsets determine where a log begins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from forebay.base.errors import Conflict, ErrorCode, ForebayError, NotFound, UnsupportedOperation
from forebay.client.admin.admin import Admin
from forebay.client.cluster.offsets import EARLIEST, LATEST, list_offsets
from forebay.client.cluster.partitions import PartitionSelector, list_partitions
from forebay.client.reading.key_check import may_fix_keys
from forebay.client.results import LakeSnapshot
from forebay.client.row_view import RowView
from forebay.lake.source import LakeSplit, Planner
from forebay.lake.storage import LakeStorage
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import PartitionInfo, TableBucket
from forebay.unionread.expired import check_stream_is_complete, planner_of, stand_in_for
from forebay.unionread.lake_side import LakeSide
from forebay.unionread.open_lakes import OpenLakes
from forebay.unionread.partitions import PartitionFilter, PartitionMatch, Values
from forebay.unionread.plan import PlanFacts, UnionPlan
from forebay.unionread.reading import UnionReader
from forebay.unionread.splits import (
    KeyLookupSplit,
    KvBucketSplit,
    LakeSnapshotAndLogSplit,
    LakeSnapshotSplit,
    LogSplit,
    UnionSplit,
)

if TYPE_CHECKING:
    from forebay.client.reading.key_filter import KeyFilter
    from forebay.client.reading.key_plan import BucketKeys
    from forebay.client.table import Table

_PLANNINGS = 3
"""Maximum attempts at a plan if a snapshot expires, or a partition is dropped, during planning."""

_PASSING = (
    ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
    ErrorCode.PARTITION_NOT_EXISTS,
    ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
)


def plan_union(
    table: Table,
    columns: Sequence[str] | None = None,
    filter: Predicate | None = None,  # noqa: A002 - the word of pyarrow
    limit: int | None = None,
    stop: Mapping[TableBucket, int] | None = None,
    *,
    partitions: Sequence[PartitionSelector] | PartitionSelector | None = None,
    storage: LakeStorage | None = None,
    lake_only: bool = False,
    ordered: bool = False,
    look_up: bool = False,
) -> UnionPlan:
    """Return the plan of reading a table up to now, or up to the offsets `stop` (those of other buckets are requested).

    If the lake holds more of a bucket's log than `stop`, the bucket is read as the lake has it. `storage` is the lake
    (by default the one that the table's options name); `lake_only` reads nothing but the lake, as of its newest
    readable snapshot. With `look_up`, rows of a primary-key table whose keys the filter fixes are looked up, as the
    servers have all rows of their buckets; their log offsets are then unknown. Raises `NotFound` and `InvalidRequest`
    as `Table.scan` does, and `Conflict` for a handle of a table that was recreated.
    """
    return plan_view(
        table, RowView(table.info, columns, filter), limit, stop,
        partitions=partitions, storage=storage, lake_only=lake_only, ordered=ordered, look_up=look_up,
    )  # fmt: skip


def plan_view(
    table: Table,
    view: RowView,
    limit: int | None = None,
    stop: Mapping[TableBucket, int] | None = None,
    *,
    partitions: Sequence[PartitionSelector] | PartitionSelector | None = None,
    storage: LakeStorage | None = None,
    lake_only: bool = False,
    ordered: bool = False,
    look_up: bool = False,
) -> UnionPlan:
    """Return the same plan as `plan_union` of the columns and the filter of `view`."""
    for attempt in range(_PLANNINGS):
        planning = _Planning(table, view, limit, stop, partitions, ordered, look_up)
        try:
            return planning.plan(storage, lake_only)
        except ForebayError as e:
            if e.code not in _PASSING or attempt == _PLANNINGS - 1:
                raise
    raise AssertionError("unreachable")


def plan_at_snapshot(
    table: Table,
    view: RowView,
    limit: int | None,
    partitions: Sequence[PartitionSelector] | PartitionSelector | None,
    *,
    lake_snapshot: LakeSnapshot | None,
    stop: Mapping[TableBucket, int] | None = None,
    storage: LakeStorage | None = None,
    lake_only: bool = False,
    within_stop: bool = False,
    from_snapshot: bool = False,
    identity: str | None = None,
) -> UnionPlan:
    """Return the plan of a read that starts from `lake_snapshot` (None: from the logs alone) and ends at `stop`.

    With `within_stop` only the buckets of `stop` are read; raises `NotFound` if a partition of these was dropped. With
    `from_snapshot`, buckets of a primary-key table that the lake does not have are a `KvBucketSplit` each, to be
    read from a table snapshot that ends at `stop`. `identity` is that of a snapshot which the user selected by number
    or tag, as read at lookup (`forebay.lake.source.Planner.identity`). It detects that the number was reused; None
    skips the check.
    """
    planning = _Planning(table, view, limit, stop, partitions, ordered=False, look_up=False)
    planning.within_stop, planning.from_snapshot, planning.identity = within_stop, from_snapshot, identity
    return planning.plan(storage, lake_only, lambda: lake_snapshot)


def readable_snapshot(table: Table) -> LakeSnapshot | None:
    """Return the newest snapshot from which a union read can start, or None. Raises `Conflict` as `plan_union`."""
    if not table.info.lake_enabled:
        return None
    try:
        snapshot = Admin(table.connection).lake_snapshot(table.info.path, readable=True)
    except NotFound as e:
        if e.code != ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
            raise
        return None
    if snapshot.table_id != table.info.table_id:
        raise Conflict(
            f"table {table.path} was dropped and recreated since this handle was opened: open it again",
            ErrorCode.TABLE_NOT_EXIST,
        )
    return snapshot


def _key_filter(view: RowView) -> KeyFilter | None:
    """Return what a filter says about keys and buckets; None if nothing."""
    if not may_fix_keys(view):
        return None
    from forebay.client.reading.key_filter import KeyFilter

    return KeyFilter.of(view)


class _Planning:
    """One attempt at a plan."""

    def __init__(
        self,
        table: Table,
        view: RowView,
        limit: int | None,
        stop: Mapping[TableBucket, int] | None,
        partitions: Sequence[PartitionSelector] | PartitionSelector | None,
        ordered: bool,
        look_up: bool,
    ) -> None:
        self._table, self._info = table, table.info
        self._cluster = table.connection.cluster
        self._view = view
        self._limit = limit
        self._fixed_stops = {} if stop is None else dict(stop)
        self._ordered = ordered
        self.within_stop = self.from_snapshot = False
        self.identity: str | None = None
        self._filter = PartitionFilter(view, partitions)
        self._keys = _key_filter(view)
        self._look_up = look_up and stop is None and self._keys is not None and self._keys.keys is not None
        self._partitions: list[PartitionInfo] = []
        self._names: dict[int, str] = {}
        self._pruned: list[str] = []
        self._splits: list[UnionSplit] = []
        self._log_offsets: dict[TableBucket, int] = {}

    def plan(
        self,
        storage: LakeStorage | None,
        lake_only: bool,
        find: Callable[[], LakeSnapshot | None] | None = None,
    ) -> UnionPlan:
        info = self._info
        if self._keys is not None and self._keys.is_empty:
            return UnionPlan(self._reader(None), (), {}, PlanFacts(selection="nothing, as no row can match the filter"))
        registered = readable_snapshot(self._table) if find is None else find()
        if lake_only and registered is None:
            return UnionPlan(self._reader(None), (), {}, PlanFacts(info.descriptor.lake_format))
        buckets, match = self._stream_buckets()
        side, snapshot, lake_splits, rolled_back = None, registered, list[LakeSplit](), False
        looked_up = {} if lake_only or not self._look_up else self._keys_to_look_up(buckets)
        if registered is not None and not self._is_complete_in_stream(buckets, looked_up, registered):
            lakes = OpenLakes.of(self._table.connection)
            side = lakes.side(storage or lakes.storage(self._table), self._view, counting=lake_only)
            snapshot, lake_splits, rolled_back = self._lake_splits(side, registered, buckets, lake_only)
            side = None if snapshot is None else side
        offsets = {} if snapshot is None else snapshot.log_offsets
        lake_only_partitions = sorted(
            {"$".join(s.partition()) for s in lake_splits if match.find(s.partition()) is None}
        )
        if lake_only:
            self._splits = [LakeSnapshotSplit(split) for split in lake_splits]
            self._log_offsets = {bucket: offsets[bucket] for bucket in buckets if bucket in offsets}
        elif info.has_primary_key:
            self._plan_keyed(buckets, offsets, lake_splits, match, looked_up)
        else:
            self._plan_log(buckets, offsets, lake_splits)
        facts = PlanFacts(
            None if registered is None else info.descriptor.lake_format,
            None if snapshot is None else snapshot.snapshot_id,
            None if registered is None or registered is snapshot else registered.snapshot_id,
            {bucket: offsets[bucket] for bucket in buckets if bucket in offsets},
            self._names,
            tuple(lake_only_partitions) if info.is_partitioned else (),
            tuple(self._pruned),
            self._filter.predicate,
            self._selection(buckets),
            rolled_back,
        )
        return UnionPlan(self._reader(side), tuple(self._splits), self._log_offsets, facts)

    def _reader(self, side: LakeSide | None) -> UnionReader:
        return UnionReader(self._table.connection.settings, self._view, self._limit, side, self._ordered)

    def _lake_splits(
        self, side: LakeSide, registered: LakeSnapshot, buckets: Sequence[TableBucket], lake_only: bool
    ) -> tuple[LakeSnapshot | None, list[LakeSplit], bool]:
        """Return the snapshot to read, its splits, and whether it replaces one that was rolled back.

        No snapshot if the stream replaces one that the lake does not have. Raises `NotFound` (LAKE_SNAPSHOT_NOT_EXIST)
        if nothing can replace it, or if the cluster knows another one by now.
        """
        info, stops, source = self._info, self._fixed_stops, side.source

        def from_log(bucket: TableBucket) -> bool:
            return bucket in stops or not info.has_primary_key

        try:
            return registered, self._covered(planner_of(self._table, source, registered, self.identity)), False
        except NotFound as e:
            newest = readable_snapshot(self._table) if e.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST else None
            if newest is None or not newest.is_same(registered):
                raise
            where = buckets, frozenset(self._names), from_log, self._earliest
            up_to_now = not (stops or self.within_stop or lake_only)
            stand_in = stand_in_for(self._table, source, registered, *where, up_to_now=up_to_now)
            if stand_in is not None:
                return stand_in.snapshot, self._covered(stand_in.planner), stand_in.rolled_back
            if lake_only:
                raise
        check_stream_is_complete(info, source, registered, *where)
        return None, [], source.was_undone(registered.snapshot_id, registered.offsets_name)

    def _covered(self, planner: Planner[LakeSplit]) -> list[LakeSplit]:
        splits = planner.plan()
        if self._keys is not None and self._keys.numbers is not None:
            splits = [split for split in splits if self._may_have_keys(split, self._keys.numbers)]
        if not self._info.is_partitioned:
            return splits
        return [split for split in splits if self._filter.covers(split.partition())]

    def _may_have_keys(self, split: LakeSplit, numbers: Collection[int]) -> bool:
        """Return whether the split's bucket is in `numbers`, or does not correspond to a bucket of the stream."""
        count, info = split.bucket_count(), self._info
        has_stream_buckets = count == info.bucket_count or (count is None and info.has_primary_key)
        return split.bucket() in numbers or not (has_stream_buckets and 0 <= split.bucket() < info.bucket_count)

    # ---- keys that the filter fixes ---------------------------------------------------------------------------------

    def _keys_to_look_up(self, buckets: Sequence[TableBucket]) -> BucketKeys:
        from forebay.client.reading.key_plan import choose

        assert self._keys is not None
        return choose(self._keys, buckets, self._partitions).keys or {}

    def _is_complete_in_stream(
        self, buckets: Sequence[TableBucket], looked_up: BucketKeys, registered: LakeSnapshot
    ) -> bool:
        """Return whether lookups find all rows, so the lake is not read.

        The servers have all rows of a bucket that the lake snapshot has a log offset of. A partitioned table is never
        complete: the lake may have rows of a partition that the stream has dropped and recreated since.
        """
        if not looked_up or self._info.is_partitioned:
            return False
        return all(bucket in registered.log_offsets for bucket in looked_up)

    def _selection(self, buckets: Sequence[TableBucket]) -> str | None:
        """Return which buckets the filter leaves, in words."""
        if self._keys is None or self._keys.numbers is None or len(self._keys.numbers) == self._info.bucket_count:
            return None
        of = len(buckets) // len(self._keys.numbers) * self._info.bucket_count
        return f"{len(buckets)} of {of} buckets"

    # ---- the stream's half ------------------------------------------------------------------------------------------

    def _stream_buckets(self) -> tuple[list[TableBucket], PartitionMatch]:
        """Return the buckets that the read covers, and the partitions of the stream."""
        info = self._info
        bucket_numbers = None if self._keys is None else self._keys.numbers
        numbers = range(info.bucket_count) if bucket_numbers is None else sorted(bucket_numbers)
        if not info.is_partitioned:
            return [TableBucket(info.table_id, number) for number in numbers], PartitionMatch(info, ())
        partitions = sorted(list_partitions(self._cluster, info.path), key=lambda p: p.partition_id)
        self._names = {p.partition_id: p.name for p in partitions}
        if self.within_stop:  # the state that is read has none that were created since, also not of the same name
            then = {bucket.partition_id for bucket in self._fixed_stops}
            dropped = then - self._names.keys()
            if dropped:
                raise NotFound(
                    f"{len(dropped)} partitions of table {info.path} were dropped meanwhile",
                    ErrorCode.PARTITION_NOT_EXISTS,
                )
            partitions = [p for p in partitions if p.partition_id in then]
        self._partitions = partitions
        covered = []
        for partition in partitions:
            if self._filter.covers(tuple(value for _, value in partition.spec)):
                covered.append(partition)
            else:
                self._pruned.append(partition.name)
        buckets = [TableBucket(info.table_id, number, p.partition_id) for p in covered for number in numbers]
        if self.within_stop:
            buckets = [bucket for bucket in buckets if bucket in self._fixed_stops]
        return buckets, PartitionMatch(info, partitions)

    def _stops(self, buckets: Sequence[TableBucket]) -> dict[TableBucket, int]:
        fixed = {bucket: self._fixed_stops[bucket] for bucket in buckets if bucket in self._fixed_stops}
        rest = [bucket for bucket in buckets if bucket not in fixed]
        latest = list_offsets(self._cluster, self._info, rest, LATEST) if rest else {}
        return {**latest, **fixed}

    def _earliest(self, buckets: Sequence[TableBucket]) -> dict[TableBucket, int]:
        return list_offsets(self._cluster, self._info, buckets, EARLIEST) if buckets else {}

    # ---- log tables -------------------------------------------------------------------------------------------------

    def _plan_log(
        self, buckets: Sequence[TableBucket], offsets: Mapping[TableBucket, int], lake_splits: Sequence[LakeSplit]
    ) -> None:
        """Return splits of the lake's rows as they are, and of each log from where the lake ends."""
        self._splits += [LakeSnapshotSplit(split) for split in lake_splits]
        stops = self._stops(buckets)
        starts = {**self._earliest([b for b in buckets if b not in offsets]), **offsets}
        for bucket in buckets:
            start, stop = starts[bucket], stops[bucket]
            if start < stop:
                self._splits.append(LogSplit(bucket, start, stop))
            self._log_offsets[bucket] = max(start, stop)

    # ---- primary-key tables -----------------------------------------------------------------------------------------

    def _plan_keyed(
        self,
        buckets: Sequence[TableBucket],
        offsets: Mapping[TableBucket, int],
        lake_splits: Sequence[LakeSplit],
        match: PartitionMatch,
        looked_up: BucketKeys,
    ) -> None:
        in_lake, unbound = self._by_bucket(lake_splits, match)
        self._splits += [LakeSnapshotSplit(split) for split in unbound]
        if looked_up:
            # Not those that only the lake has a beginning of: its rows may be of a partition that was dropped.
            keys = {b: tuple(k) for b, k in looked_up.items() if b in offsets or b not in in_lake}
            if keys:
                self._splits.append(KeyLookupSplit(tuple(keys.items())))
            buckets = [bucket for bucket in buckets if bucket in looked_up and bucket not in keys]
        stops = self._stops(buckets)
        unknown = [bucket for bucket in buckets if bucket not in offsets]
        from_log = [b for b in unknown if b in in_lake or (b in self._fixed_stops and not self.from_snapshot)]
        starts = {**self._earliest(from_log), **offsets}
        for bucket in buckets:
            lake, stop = in_lake.get(bucket, ()), stops[bucket]
            start = starts.get(bucket)
            if start is None:
                self._plan_kv(bucket, stop)
                continue
            if bucket not in offsets and start > 0 and start < stop:
                raise UnsupportedOperation(
                    f"bucket {bucket} of table {self._info.path} cannot be read: lake snapshot and log do not meet, "
                    f"because the lake does not say how far it holds the log, which begins at offset {start}"
                )
            if start < stop:
                self._splits.append(LakeSnapshotAndLogSplit(bucket, tuple(lake), start, stop))
            else:
                self._splits += [LakeSnapshotSplit(split) for split in lake]
            self._log_offsets[bucket] = max(start, stop)

    def _plan_kv(self, bucket: TableBucket, stop: int) -> None:
        """Return the split of a bucket that the lake does not have: its current rows."""
        if stop > 0:
            self._splits.append(KvBucketSplit(bucket))
        else:
            self._log_offsets[bucket] = 0

    def _by_bucket(
        self, lake_splits: Sequence[LakeSplit], match: PartitionMatch
    ) -> tuple[dict[TableBucket, list[LakeSplit]], list[LakeSplit]]:
        """Return the lake's splits by the stream's buckets, and those of partitions that the stream does not have."""
        info = self._info
        by_bucket: dict[TableBucket, list[LakeSplit]] = {}
        rest: list[LakeSplit] = []
        ids: dict[Values, int | None] = {}
        for split in lake_splits:
            partition_id = None
            if info.is_partitioned:
                values = split.partition()
                if values not in ids:
                    ids[values] = match.find(values)
                partition_id = ids[values]
                if partition_id is None:
                    rest.append(split)
                    continue
            if not 0 <= split.bucket() < info.bucket_count or split.bucket_count() not in (None, info.bucket_count):
                of_how_many = "" if split.bucket_count() is None else f" of {split.bucket_count()}"
                raise UnsupportedOperation(
                    f"the lake table of {info.path} has rows in bucket {split.bucket()}{of_how_many}, and the stream's "
                    f"buckets are 0 to {info.bucket_count - 1}: rows of both cannot be matched. The lake "
                    f"table was given another number of buckets; change it back to {info.bucket_count}"
                )
            by_bucket.setdefault(TableBucket(info.table_id, split.bucket(), partition_id), []).append(split)
        return by_bucket, rest
