"""Compacting a table: plan, run the tasks, commit; retry if other commits conflict."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from forebay.base.errors import Conflict, NotFound
from forebay.base.lake_events import LakeCompaction, table_of, tell
from forebay.base.progress import OnProgress, no_progress
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.commit.partition_filter import PartitionFilter
from forebay.paimon.compact.clustering import SortOrder
from forebay.paimon.compact.running import TaskRunner, TaskThreads, rows_read, within_budget
from forebay.paimon.compact.tasks import CompactPlanner, run_task
from forebay.paimon.format.commit_message import CommitMessage, CompactIncrement
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.store.context import TableContext

TRIES = 5


def compact_table(
    table: TableContext,
    planner: CompactPlanner,
    new_commit: Callable[[], FileStoreCommit],
    *,
    full: bool = False,
    partitions: Sequence[Mapping[str, Any]] | PartitionFilter | None = None,
    order: SortOrder | None = None,
    progress: OnProgress = no_progress,
    runner: TaskRunner | None = None,
    buckets: Collection[int] | None = None,
) -> tuple[Snapshot | None, list[CommitMessage]]:
    """Compact a table; return the snapshot (None if there was nothing to do) and its messages. `progress` is in rows.

    `runner` runs the tasks: by default in threads of this process. See `CompactPlanner.plan` for the other arguments.

    If other jobs compact or overwrite the same files meanwhile, everything is replanned, up to `TRIES` times; then
    `Conflict` is raised. In no case is a row lost, and files of failed attempts are deleted.
    """

    runner = runner or TaskThreads()

    def run_once() -> list[CommitMessage]:
        tasks = planner.plan(full=full, partitions=partitions, order=order, buckets=buckets)
        began = table.clock.monotonic()
        messages = runner.run(
            partial(run_task, within_budget(table, runner, len(tasks))),
            tasks,
            rows=[rows_read(task.input_files) for task in tasks],
            progress=progress,
            discard=lambda done: new_commit().abort(done),
        )
        if tasks:
            tell(LakeCompaction(table_of(table.paths.root), table.clock.monotonic() - began))
        return messages

    snapshots, messages = commit_until_won(run_once, new_commit)
    return (snapshots[-1] if snapshots else None), messages


def commit_until_won(
    run_once: Callable[[], list[CommitMessage]], new_commit: Callable[[], FileStoreCommit]
) -> tuple[list[Snapshot], list[CommitMessage]]:
    """Commit what `run_once` has planned and compacted; on a conflict, run it again, up to `TRIES` times.

    Returns the snapshots and their messages; both are empty if there was nothing to do. Raises `Conflict`.
    """
    for retries in reversed(range(TRIES)):
        try:
            messages = run_once()
        except NotFound:  # another job compacted the same files, and the old ones have expired already
            if not retries:
                raise
            continue
        if all(m.is_empty for m in messages):
            return [], []
        commit = new_commit()
        try:
            return commit.commit(messages), messages
        except Conflict:
            commit.abort(messages)
            if not retries:
                raise
    return [], []


def commit_with_compaction(
    commit: FileStoreCommit,
    messages: Sequence[CommitMessage],
    commit_rows: Callable[[list[CommitMessage]], list[Snapshot]],
) -> list[Snapshot]:
    """Commit new rows by `commit_rows`, and then the compaction of them and older files.

    A compaction that conflicts with another one is dropped: the rows are committed, and will be compacted later. So if
    `Conflict` is raised, nothing was committed.
    """
    snapshots = commit_rows([replace(m, compact=CompactIncrement()) for m in messages])
    compacted = [CommitMessage(m.partition, m.bucket, m.total_buckets, compact=m.compact) for m in messages]
    compacted = [m for m in compacted if not m.is_empty]
    if compacted:
        try:
            snapshots += commit.commit(compacted)
        except Conflict:
            commit.abort(compacted)
    return snapshots
