"""Streaming reads: a full snapshot, if the mode says so, then the changes of each following snapshot in order.

Snapshots are never skipped or combined, so a reader that lags behind sees each change once, even if files have been
compacted meanwhile. With changelog producer `none`, changes are the appended files; with others, the changelog files.
Compactions without a changelog, and statistics, contribute no changes. Overwrites are left out unless
`streaming-read-overwrite` (append tables: `streaming-read-append-overwrite`) is set.

The state of a scan is a small dictionary of JSON values. A scan restored from it with the same options and filter
continues exactly after the last split that was returned, even within a snapshot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.base.errors import InvalidRequest, NotFound, UnsupportedOperation
from forebay.paimon.format.file_meta import LEVEL_0, ManifestEntry
from forebay.paimon.format.snapshot import CommitKind, Snapshot
from forebay.paimon.options import CoreOptions
from forebay.paimon.read.change_planner import BucketFilter, ChangePlanner, ChangeSplit, EntryFilter, file_names
from forebay.paimon.read.expired import expiry_errors
from forebay.paimon.read.pieces import by_file
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.startup import LATEST, Startup
from forebay.paimon.store.context import TableContext

STATE_VERSION = 1

Accept = Callable[[int, ChangeSplit], bool]
"""Whether a split may be returned, given its index among the splits of its snapshot (from 0)."""

_MERGED_ENGINES = ("partial-update", "aggregation", "first-row")


@dataclass(frozen=True)
class StreamPlan:
    """Splits of one snapshot. `is_full`: they are its rows, otherwise its changes. `is_last`: it has no more splits.

    `schema_id` is the schema of the snapshot; `before` is the state of the scan before these splits.
    """

    snapshot_id: int
    schema_id: int
    splits: tuple[ChangeSplit, ...]
    is_full: bool
    is_last: bool
    watermark: int | None
    before: Mapping[str, Any]


@dataclass(frozen=True)
class _Pending:
    """The splits of the snapshot that is being returned."""

    snapshot: Snapshot
    splits: Sequence[ChangeSplit]
    digest: str


class StreamScan:
    """Plans a streaming read, snapshot by snapshot. Not thread-safe, but its splits can be read in any thread."""

    def __init__(
        self,
        table: TableContext,
        scan_filter: ScanFilter | None = None,
        buckets: Collection[int] | None = None,
        *,
        cut_by_file: bool = False,
    ) -> None:
        """Create a scan. `buckets`: read only these. `cut_by_file`: make splits minimal (`forebay.paimon.read.pieces`).

        Raises `UnsupportedOperation` for tables that do not record changes.
        """
        check_streamable(table, scan_filter)
        self._table, self._snapshots = table, table.snapshots
        self._options = table.options
        self._filter = scan_filter or ScanFilter.of(table.schema, None)
        self._buckets = _bucket_filter(table.options, buckets)
        self._cut_by_file = cut_by_file
        self._startup = Startup(table)
        # Postponed changes without a changelog are those that were written; with one, those of their compaction.
        self._with_postponed = table.options.changelog_producer == "none"
        self._changes = ChangePlanner(table, with_postponed=self._with_postponed)
        self._consumers = table.consumers
        self._began_empty = self._startup.mode == LATEST and self._snapshots.latest_id() is None
        self._full_id: int | None = None  # the snapshot that is being read in full
        self._next_id: int | None = None  # the snapshot whose changes are next; None before the start
        self._split = 0  # the number of splits of the current snapshot that have been returned
        self._digest: str | None = None
        self._pending: _Pending | None = None
        self._recorded: int | None = None
        self._passed: str | None = None  # identifies the snapshot before the next one, in case its id is reused
        self.watermark: int | None = None
        self.finished = False

    # -- planning -----------------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Resolve the starting point if necessary; False while that is impossible because the table is empty."""
        return self._full_id is not None or self._next_id is not None or self._start()

    def plan(self, max_rows: int | None = None, accept: Accept | None = None) -> StreamPlan | None:
        """The next splits; None if there is nothing new yet, or, once `finished`, ever.

        All splits belong to one snapshot: all that are left of it, or with `max_rows` as many as hold that many rows
        (but at least one), or those before the first one that `accept` refuses (possibly none). Raises `NotFound` if
        the next snapshot has expired.
        """
        while not self.finished:
            if not self.begin():
                return None
            pending = self._pending or self._load()
            if pending is None:
                return None
            if self._split < len(pending.splits):
                return self._hand_out(pending, max_rows, accept)
            self._advance(pending.snapshot)
        return None

    def _start(self) -> bool:
        """Determine the starting point; False if there is none yet."""
        consumer = self._options.consumer_id
        recorded = None
        if consumer is not None and not self._options.consumer_ignore_progress:
            recorded = self._consumers.position(consumer)
        if recorded is None:
            start = self._startup.of_stream(self._began_empty)
        else:
            self._passed = recorded.passed
            self._check_history(recorded.next_snapshot)
            start = self._startup.from_consumer(recorded.next_snapshot)
        if start is None:
            return False
        if start.full is not None:
            self._full_id = start.full.id
        elif start.next_id is not None:
            before = self._begin_with(start.next_id)
            if recorded is not None and recorded.passed is not None:
                self._passed = recorded.passed
            self.finished = before is not None and self._is_beyond_bound(before)
        return True

    def _begin_with(self, snapshot_id: int) -> Snapshot | None:
        """Let the changes of a snapshot be the next ones; return the one before, if it is there."""
        self._next_id = snapshot_id
        before = self._snapshots.find(snapshot_id - 1)
        self._passed = None if before is None else before.delta_manifest_list
        return before

    def _load(self) -> _Pending | None:
        """The current snapshot with its splits; None if it does not exist yet, or ends the stream."""
        if self._full_id is not None:
            snapshot = self._snapshots.find(self._full_id)
            if snapshot is None:
                latest = self._snapshots.latest_id()
                if latest is None or latest < self._full_id:
                    raise self._rewritten(f"the snapshot to begin with is {self._full_id}, but the latest is {latest}")
                raise self._expired(self._full_id)
            with expiry_errors(self._snapshots, snapshot.id):
                splits: Sequence[ChangeSplit] = self._full_planner().full(snapshot, self._filter, self._buckets)
        else:
            assert self._next_id is not None
            next_snapshot = self._next_snapshot(self._next_id)
            if next_snapshot is None:
                return None
            snapshot = next_snapshot
            if self._is_beyond_bound(snapshot):
                self.finished = True
                return None
            if self._is_too_young(snapshot):
                return None
            with expiry_errors(self._snapshots, snapshot.id):
                splits = self._changes_of(snapshot)
        if self._cut_by_file:
            splits = by_file(splits)
        pending = _Pending(snapshot, splits, _digest(splits))
        self._check_digest(pending)
        self._pending, self._digest = pending, pending.digest
        return pending

    def _check_digest(self, pending: _Pending) -> None:
        if self._digest not in (None, pending.digest):
            raise InvalidRequest(
                f"the state is about snapshot {pending.snapshot.id} planned in another way: a scan is restored with "
                "the options, filter and buckets that it had"
            )

    def _changes_of(self, snapshot: Snapshot) -> Sequence[ChangeSplit]:
        keyed = self._table.schema.has_primary_key
        if snapshot.commit_kind is CommitKind.OVERWRITE:
            if keyed and self._options.streaming_read_overwrite:
                return self._changes.overwritten(snapshot, self._filter, self._buckets)
            if not keyed and self._options.streaming_read_append_overwrite:
                return self._changes.delta(snapshot, self._filter, self._buckets)
        if self._options.changelog_producer == "none":
            if snapshot.commit_kind is not CommitKind.APPEND:
                return ()
            return self._changes.delta(snapshot, self._filter, self._buckets)
        if snapshot.changelog_manifest_list is None:
            return ()
        return self._changes.changelog(snapshot, self._filter, self._buckets)

    def _hand_out(self, pending: _Pending, max_rows: int | None, accept: Accept | None) -> StreamPlan:
        remaining = pending.splits[self._split :]
        count, rows = 0, 0
        for place, split in enumerate(remaining, self._split):
            if count and max_rows is not None and rows + split.row_count > max_rows:
                break
            if accept is not None and not accept(place, split):
                break
            count += 1
            rows += split.row_count
        before = self.state()
        self._split += count
        self.watermark = pending.snapshot.watermark
        plan = StreamPlan(
            pending.snapshot.id,
            pending.snapshot.schema_id,
            tuple(remaining[:count]),
            self._full_id is not None,
            count == len(remaining),
            self.watermark,
            before,
        )
        if plan.is_last:
            self._advance(pending.snapshot)
        return plan

    def _advance(self, snapshot: Snapshot) -> None:
        if self._full_id is not None and self._is_beyond_bound(snapshot):
            self.finished = True
        self._full_id, self._next_id, self._passed = None, snapshot.id + 1, snapshot.delta_manifest_list
        self._split, self._digest, self._pending = 0, None, None
        self.watermark = snapshot.watermark

    def _full_planner(self) -> ChangePlanner:
        """The planner of the full phase, which leaves out rows that changelogs will return later.

        It includes other rows of level 0, also in tables with deletion vectors, whose batch reads only see compacted
        rows: no later snapshot would return them.
        """
        levels = _visible_levels(self._options) if self._table.schema.has_primary_key else None
        created = self._startup.entry_filter(reads_in_full=True)
        keep = levels if created is None else created if levels is None else _both(levels, created)
        return ChangePlanner(self._table, keep, with_level0=True, with_postponed=self._with_postponed)

    def _is_beyond_bound(self, snapshot: Snapshot) -> bool:
        bound = self._options.scan_bounded_watermark
        return bound is not None and snapshot.watermark is not None and snapshot.watermark > bound

    def _is_too_young(self, snapshot: Snapshot) -> bool:
        delay = self._options.streaming_read_snapshot_delay_ms
        return delay is not None and snapshot.time_millis > self._table.clock.now_ms() - delay

    # -- the next snapshot --------------------------------------------------------------------------------------------

    def _next_snapshot(self, snapshot_id: int) -> Snapshot | None:
        """The next snapshot, or its remaining changelog; None if it does not exist yet."""
        snapshot = self._startup.readable(snapshot_id)
        self._check_history(snapshot_id)
        if snapshot is not None:
            return snapshot
        earliest, latest = self._snapshots.earliest_id(), self._snapshots.latest_id()
        if (earliest is None and snapshot_id > 1) or (latest is not None and snapshot_id > latest + 1):
            raise self._rewritten(f"the next snapshot to read is {snapshot_id}, but the latest is {latest}")
        if earliest is not None and snapshot_id < earliest:
            # It, and later ones, may have been created since the last check.
            snapshot = self._startup.readable(snapshot_id)
            if snapshot is None:
                raise self._expired(snapshot_id)
        return snapshot

    def _check_history(self, snapshot_id: int) -> None:
        """Raise if the snapshot that was read last has been replaced.

        After a rollback, ids are reused. A stream that relied on the id alone would miss new snapshots whose ids it has
        already passed. Expired snapshots cannot be compared.
        """
        before = None if self._passed is None else self._startup.readable(snapshot_id - 1)
        if before is not None and before.delta_manifest_list != self._passed:
            raise self._rewritten(f"snapshot {snapshot_id - 1} is another one than the stream has read")

    def _rewritten(self, what: str) -> NotFound:
        consumer = self._options.consumer_id
        remedy = "start the stream without its old state"
        if consumer is not None:
            remedy += (
                f", and with 'consumer.ignore-progress' = 'true', or move consumer '{consumer}' to a snapshot of now "
                "(CALL sys.reset_consumer)"
            )
        return NotFound(
            f"{what}, of {self._table.paths.root}: the table was rolled back, fast-forwarded or recreated; {remedy}"
        )

    def _expired(self, snapshot_id: int) -> NotFound:
        earliest, latest = self._snapshots.earliest_id(), self._snapshots.latest_id()
        return NotFound(
            f"snapshot {snapshot_id} of {self._table.paths.root}, the next to read, has expired "
            f"(there are {earliest} to {latest}); keep snapshots longer ('snapshot.time-retained', "
            "'changelog.time-retained'), or read with a 'consumer-id', which keeps what is not read yet"
        )

    # -- state --------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The position after all returned splits, as JSON values for `restore`."""
        return {
            "version": STATE_VERSION,
            "full": self._full_id,
            "next": self._next_id,
            "split": self._split,
            "plan": self._digest,
            "began_empty": self._began_empty,
            "passed": self._passed,
            "watermark": self.watermark,
            "finished": self.finished,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`. Raises `InvalidRequest` for an invalid state."""
        try:
            if state["version"] != STATE_VERSION:
                raise InvalidRequest(f"stream state of version {state['version']!r} is not known; {STATE_VERSION} is")
            in_hand = self._full_id, self._next_id
            self._full_id, self._next_id, self._split = state["full"], state["next"], int(state["split"])
            self._digest, self._began_empty = state["plan"], bool(state["began_empty"])
            self._passed = state.get("passed")  # states of earlier releases have none
            self.watermark, self.finished = state["watermark"], bool(state["finished"])
        except (KeyError, TypeError) as e:
            raise InvalidRequest(f"this is no state of a stream: {e!r}") from e
        if self._pending is not None and in_hand == (self._full_id, self._next_id):
            self._check_digest(self._pending)  # the same snapshot need not be planned twice
            self._digest = self._pending.digest
        else:
            self._pending = None

    def acknowledge(self, state: Mapping[str, Any] | None = None, *, again: bool = False) -> None:
        """Record for the scan's `consumer-id` that everything before `state` (default: now) may expire.

        An unchanged record is rewritten only with `again`, which shows that the consumer is still alive. Nothing is
        recorded during the initial full snapshot, because a consumer's record only says where reading changes
        continues.
        """
        consumer = self._options.consumer_id
        position = self.state() if state is None else state
        if consumer is None or position["full"] is not None or position["next"] is None:
            return
        if position["next"] == self._recorded and not again:
            return
        self._consumers.record(consumer, position["next"], position.get("passed"))
        self._recorded = position["next"]


def check_streamable(table: TableContext, scan_filter: ScanFilter | None = None) -> None:
    """Raise `UnsupportedOperation` if a stream of the table, or a filtered one, could return wrong results."""
    schema, options = table.schema, table.options
    producer = options.changelog_producer
    if schema.has_primary_key and options.streaming_read_overwrite and producer in ("lookup", "full-compaction"):
        raise UnsupportedOperation(
            f"option 'streaming-read-overwrite' does not go with changelog-producer {producer}: what an overwrite "
            "brings comes when it is compacted, and would come twice"
        )
    if not schema.has_primary_key or producer != "none":
        return
    if options.merge_engine in _MERGED_ENGINES:
        raise UnsupportedOperation(
            f"a table with merge-engine {options.merge_engine} records its input, not its changes; to stream it, set "
            "'changelog-producer' to 'lookup' (or 'full-compaction', but for first-row)"
        )
    if scan_filter is not None and scan_filter.rows is not None and scan_filter.key != scan_filter.rows:
        raise UnsupportedOperation(
            "without a changelog producer, updates do not tell the values that they replace, so a stream cannot be "
            "filtered by columns that are not in the primary key; filter its rows, or set 'changelog-producer'"
        )


def _visible_levels(options: CoreOptions) -> EntryFilter | None:
    """A filter for the files that a stream starts with; the others follow as changelog when they are compacted."""
    if options.changelog_producer == "lookup":
        return lambda entry: entry.file.level > LEVEL_0
    if options.changelog_producer == "full-compaction":
        top = options.num_levels - 1
        return lambda entry: entry.file.level == top
    return None


def _both(a: EntryFilter, b: EntryFilter) -> EntryFilter:
    def test(entry: ManifestEntry) -> bool:
        return a(entry) and b(entry)

    return test


def _bucket_filter(options: CoreOptions, buckets: Collection[int] | None) -> BucketFilter | None:
    for bucket in buckets or ():
        if not isinstance(bucket, int) or bucket < 0:
            raise InvalidRequest(f"buckets are whole numbers, 0 or more; got {bucket!r}")
    allowed = None if buckets is None else frozenset(buckets)
    if options.scan_bucket is not None:
        allowed = frozenset({options.scan_bucket}) & (allowed if allowed is not None else {options.scan_bucket})
    if allowed is not None:
        return allowed.__contains__
    return None


def _digest(splits: Sequence[ChangeSplit]) -> str:
    """A digest that identifies a plan: the files of its splits, in order."""
    text = "\n".join(",".join(file_names(split)) for split in splits)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
