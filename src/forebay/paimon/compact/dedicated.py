"""Compacting a table in one process: plan, run, commit; again if others were faster."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

from forebay.base.clock import SYSTEM_CLOCK, Clock
from forebay.base.errors import Conflict, NotFound
from forebay.base.progress import OnProgress, no_progress
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.compact.clustering import SortOrder
from forebay.paimon.compact.tasks import CompactPlanner, CompactTask, run_task
from forebay.paimon.format.commit_message import CommitMessage, CompactIncrement
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.store.context import TableContext

TRIES = 5
_TICK_S = 0.5
"""How long callers wait at most for a sign of life."""


def compact_table(
    table: TableContext,
    planner: CompactPlanner,
    new_commit: Callable[[], FileStoreCommit],
    *,
    full: bool = False,
    partitions: Sequence[Mapping[str, Any]] | None = None,
    order: SortOrder | None = None,
    clock: Clock = SYSTEM_CLOCK,
    progress: OnProgress = no_progress,
) -> tuple[Snapshot | None, list[CommitMessage]]:
    """Compact a table; the snapshot, or None if there was nothing to do, and what was done. `progress` is in rows.

    See `CompactPlanner.plan` for the other arguments.

    If others compact or overwrite the same files meanwhile, all is planned anew, up to `TRIES` times; then `Conflict`
    is raised. Whatever happens, no row is lost, and files that were made in vain are deleted.
    """

    def run_once() -> list[CommitMessage]:
        tasks = planner.plan(full=full, partitions=partitions, order=order)
        return _run_all(table, tasks, new_commit, clock, progress)

    made, messages = commit_until_won(run_once, new_commit)
    return (made[-1] if made else None), messages


def commit_until_won(
    run_once: Callable[[], list[CommitMessage]], new_commit: Callable[[], FileStoreCommit]
) -> tuple[list[Snapshot], list[CommitMessage]]:
    """Commit what `run_once` (which plans, too) has compacted; if others were faster, all again, up to `TRIES` times.

    Returns the snapshots and the messages that made them; none of either if there was nothing to do. Raises `Conflict`.
    """
    for left in reversed(range(TRIES)):
        try:
            messages = run_once()
        except NotFound:  # others compacted the same files, and the old ones have expired already
            if not left:
                raise
            continue
        if all(m.is_empty for m in messages):
            return [], []
        commit = new_commit()
        try:
            return commit.commit(messages), messages
        except Conflict:
            commit.abort(messages)
            if not left:
                raise
    return [], []


def _run_all(
    table: TableContext,
    tasks: Sequence[CompactTask],
    new_commit: Callable[[], FileStoreCommit],
    clock: Clock,
    progress: OnProgress,
) -> list[CommitMessage]:
    """The messages of all tasks. If one fails, the files of the others are deleted."""
    if not tasks:
        return []
    rows = [sum(f.row_count for f in task.input_files) for task in tasks]
    done = 0
    progress(done, sum(rows))
    with ThreadPoolExecutor(min(len(tasks), os.cpu_count() or 1)) as pool:
        futures = [pool.submit(run_task, table, task, clock) for task in tasks]
        rows_of = dict(zip(futures, rows, strict=True))
        failure: BaseException | None = None
        try:
            waiting = set(futures)
            while waiting:
                ended, waiting = wait(waiting, _TICK_S, FIRST_COMPLETED)
                done += sum(rows_of[f] for f in ended)
                progress(done, sum(rows))
        except BaseException as e:  # noqa: BLE001 - of `progress`, or the user's interrupt: what was made must go
            failure = e
            for future in futures:
                future.cancel()
    finished = [f for f in futures if not f.cancelled() and f.exception() is None]
    failure = failure or next((f.exception() for f in futures if f not in finished), None)
    if failure is not None:
        new_commit().abort(f.result() for f in finished)
        raise failure
    return [f.result() for f in futures]


def commit_with_compaction(
    commit: FileStoreCommit,
    messages: Sequence[CommitMessage],
    commit_rows: Callable[[list[CommitMessage]], list[Snapshot]],
) -> list[Snapshot]:
    """Commit new rows by `commit_rows`, and then what compaction did with them and older files.

    A compaction that lost against another one is given up: the rows are committed, and compacted another time. So a
    `Conflict` that is raised means that nothing was committed.
    """
    made = commit_rows([replace(m, compact=CompactIncrement()) for m in messages])
    compacted = [CommitMessage(m.partition, m.bucket, m.total_buckets, compact=m.compact) for m in messages]
    compacted = [m for m in compacted if not m.is_empty]
    if compacted:
        try:
            made += commit.commit(compacted)
        except Conflict:
            commit.abort(compacted)
    return made
