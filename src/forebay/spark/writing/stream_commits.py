"""Commits of a streaming query, each micro-batch once.

The commit user has the id of the query, which its checkpoint keeps over restarts, and the commit identifier is the
number of the micro-batch. By these two, a micro-batch that Spark repeats after a failure is recognized: it is not
committed again, and its new files are deleted. A query with a new checkpoint is another user.

Compaction runs beside the query (forebay.spark.writing.background). A commit waits for it only where readers would not
see new files before (`lookup-wait`), where it writes the changelog of each commit (`full-compaction`), or where
`commit.force-compact` is set.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import Conflict, InvalidRequest
from forebay.base.quantity import parse_bool
from forebay.paimon.commit.committer import Committable, FileStoreCommit
from forebay.paimon.compact.running import TaskRunner
from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.table import Table
from forebay.paimon.write.bucketing import UNAWARE
from forebay.spark.context import LakeContext
from forebay.spark.jvm.session_state import stream_is_active
from forebay.spark.lake_jobs import SparkTasks
from forebay.spark.lake_options import (
    COMPACTION_PARALLELISM,
    LakeWriteOptions,
    value_in,
    with_write_options,
)
from forebay.spark.writing.background import (
    BackgroundCompaction,
    BucketRounds,
    LimitedRunner,
    PackRounds,
    Rounds,
    new_files,
)
from forebay.spark.writing.committing import InlineCompaction, Overwrite, with_precommit_compaction

_LOOKUP_WAIT = ("lookup-wait", "changelog-producer.lookup-wait")

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Epoch:
    """A micro-batch: its number, the files of its tasks, and what it replaces."""

    number: int
    messages: list[CommitMessage]
    rows: int = 0
    overwrite: Overwrite | None = None


@dataclass
class Counts:
    """The counters of a query since it was started, for its progress report."""

    rows: int = 0
    files: int = 0
    commits: int = 0
    repeated: int = 0
    seconds: float = 0.0
    snapshot: int | None = None


@dataclass
class StreamCommits:
    """The commits of one run of a query to one table. Used by one thread.

    `is_active` returns whether the query still runs; `cores` is the number of tasks that run at a time.
    """

    name: str
    table: Table
    query: str
    options: LakeWriteOptions
    runner: Callable[[str], TaskRunner]
    is_active: Callable[[], bool]
    cores: int
    proxied: Table
    """The table without the options of this write, by which Spark's proxy of the table is recognized."""

    beside: bool = True
    """Whether compaction may run beside the query. Otherwise every commit waits for it."""
    counts: Counts = field(default_factory=Counts, init=False)

    def __post_init__(self) -> None:
        prefix = self.table.context.options.commit_user_prefix
        self.user = f"{'forebay' if prefix is None else prefix}-{self.query}"
        self.inline = InlineCompaction(self.table, self.runner)
        self.rounds = self._rounds()
        waits = not self.beside or must_wait(self.table)
        self.background = None
        if self.rounds is not None and not waits:
            self.background = BackgroundCompaction(self.name, self.rounds, self.is_active)
        self._is_first = True

    def _rounds(self) -> Rounds | None:
        """The compaction rounds that the table needs, if any."""
        table = self.table
        if table.context.options.write_only:
            return None
        few = value_in(table.schema.options, COMPACTION_PARALLELISM) or max(1, self.cores // 2)

        def runner(what: str) -> TaskRunner:
            return LimitedRunner(self.runner(what), few) if self.beside else self.runner(what)

        if table.context.options.bucket == UNAWARE and not table.schema.has_primary_key:
            has_vectors = table.context.options.deletion_vectors_enabled
            return None if has_vectors else PackRounds(table, runner(f"compaction beside {self.name}"))
        inline = InlineCompaction(table, runner)
        return BucketRounds(table, inline) if inline.is_on else None

    # -- commits ------------------------------------------------------------------------------------------------------

    def commit(self, epoch: Epoch) -> list[Snapshot]:
        """Commit a micro-batch; returns its snapshots, which are none if it was committed before.

        Raises `Conflict` if it cannot be committed. Nothing was committed then, and the restarted query repeats it.
        """
        started = SYSTEM_CLOCK.monotonic()
        committer = self.table.new_commit(self.user)
        self._check_memory(committer, epoch)
        epoch = replace(epoch, messages=with_precommit_compaction(self.table, epoch.messages, self.runner))
        full = self.inline.full_is_due()
        try:
            work = Committable(epoch.number, tuple(epoch.messages))
            if epoch.overwrite is None:
                snapshots = committer.filter_and_commit([work])
            else:
                snapshots = committer.overwrite_once(work, epoch.overwrite.partition, epoch.overwrite.dynamic)
        except (Conflict, InvalidRequest):  # nothing was committed; after other errors the outcome is unknown
            committer.abort(epoch.messages)
            raise
        if snapshots:
            self._compact(epoch, full)
            self.table.maintenance().after_commit()
        elif epoch.messages:
            committer.abort(epoch.messages)
            self.counts.repeated += 1
            if isinstance(self.rounds, BucketRounds):
                # The run that committed it may have been killed before it compacted, which makes the changelog.
                self._compact(epoch, full)
        self._count(epoch, snapshots, SYSTEM_CLOCK.monotonic() - started)
        return snapshots

    def _check_memory(self, committer: FileStoreCommit, epoch: Epoch) -> None:
        """Warn where a restarted query cannot know whether its last micro-batch was committed."""
        if not self._is_first:
            return
        self._is_first = False
        snapshots = committer.snapshots
        if epoch.number > 0 and (snapshots.earliest_id() or 1) > 1 and snapshots.latest_of_user(self.user) is None:
            _LOGGER.warning(
                "query %s goes on with micro-batch %s of %s, but all snapshots that it made have expired: if the batch "
                "was committed before the query stopped, its rows are written twice. Restart queries sooner, or raise "
                "'snapshot.time-retained'",
                self.query, epoch.number, self.name,
            )  # fmt: skip

    def _compact(self, epoch: Epoch, full: bool) -> None:
        if self.rounds is None:
            return
        self.rounds.full_is_due |= full
        if self.background is None:
            self.rounds.run(new_files(epoch.messages), replaced=epoch.overwrite is not None)
            return
        self.background.committed(epoch.messages)
        if self.table.schema.has_primary_key:
            # New files of a bucket are its sorted runs in level 0.
            self.background.wait_until_runs_below(self.table.context.options.num_sorted_run_stop_trigger)

    # -- progress -----------------------------------------------------------------------------------------------------

    def _count(self, epoch: Epoch, snapshots: list[Snapshot], seconds: float) -> None:
        files = sum(len(m.data.new_files) for m in epoch.messages) if snapshots else 0
        counts = self.counts
        counts.seconds += seconds
        if snapshots:
            counts.commits += 1
            counts.rows += epoch.rows
            counts.files += files
            counts.snapshot = snapshots[-1].id
        what = f"{epoch.rows:,} rows in {files} files, snapshot {snapshots[-1].id}" if snapshots else "nothing new"
        waiting = 0 if self.rounds is None else self.rounds.waiting
        backlog = f"; {waiting} small files wait for compaction" if waiting else ""
        line = f"{self.name}: micro-batch {epoch.number}: {what}, {seconds:.2f} s{backlog}"
        _LOGGER.info(line)
        if self.options.shows_progress:
            print(line, file=sys.stderr, flush=True)

    def metrics(self) -> dict[str, str]:
        """The values of `sink.metrics` in the query's progress, counted since this run of the query started."""
        counts, background = self.counts, self.background
        values = {
            "rowsWritten": counts.rows,
            "filesWritten": counts.files,
            "commits": counts.commits,
            "repeatedBatches": counts.repeated,
            "commitMillis": int(counts.seconds * 1000),
            "snapshotId": counts.snapshot,
            "compactionRounds": None if background is None else background.done,
            "filesCompacted": None if background is None else background.files,
            "filesWaiting": None if self.rounds is None else self.rounds.waiting,
        }
        return {name: str(value) for name, value in values.items() if value is not None}


def must_wait(table: Table) -> bool:
    """Whether a commit is complete only when its buckets are compacted."""
    options = table.context.options
    if options.write_only:
        return False
    if options.commit_force_compact or options.changelog_producer == "full-compaction":
        return True
    waits = next((table.schema.options[n] for n in _LOOKUP_WAIT if n in table.schema.options), "true")
    return table.schema.has_primary_key and options.needs_lookup and parse_bool(waits)


# ---- the queries of this process ------------------------------------------------------------------------------------

_running: dict[tuple[str, str, str], StreamCommits] = {}
_lock = threading.Lock()


def stream_commits(
    context: LakeContext, name: str, proxied: Table, query: str, options: LakeWriteOptions
) -> StreamCommits:
    """The commits of a query to `proxied` under `options`: one object for all micro-batches since its start."""
    table = with_write_options(proxied, options)
    key = (table.context.paths.root, table.context.paths.branch, query)
    with _lock:
        commits = _running.get(key)
        if commits is None or commits.table is not table:

            def is_active() -> bool:  # the session is held weakly
                return stream_is_active(context.jvm, context.session, query)

            runner = partial(SparkTasks, context.jvm.context)
            commits = StreamCommits(name, table, query, options, runner, is_active, context.cores, proxied)
            for ended in [other for other, other_commits in _running.items() if not other_commits.is_active()]:
                del _running[ended]
            _running[key] = commits
        return commits


def sink_metrics(table: Table) -> dict[str, str]:
    """The metrics of the query whose table object in Spark is `table`; empty if there is no such query."""
    with _lock:
        matching = [c for c in _running.values() if c.proxied is table]
    return matching[-1].metrics() if matching else {}
