"""The driver's part of a write: the messages of all tasks -> one commit, and its compaction.

Small files are merged before the commit (`precommit-compact`). After the commit, the written buckets are compacted as
the table's options say, in separate tasks: only one task may compact a bucket, and several tasks may have written it.
Compaction has its own commit. If other jobs always commit first, it is abandoned, without effect on the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from forebay.base.errors import Conflict, InvalidRequest, NotFound
from forebay.paimon.commit.committer import Committable
from forebay.paimon.compact.precommit import PrecommitTask, plan_precommit, replace_files, run_precommit
from forebay.paimon.compact.running import TaskRunner, TaskThreads, rows_read
from forebay.paimon.compact.writing import TableWriteCompaction
from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.format.file_meta import DataFileMeta
from forebay.paimon.format.snapshot import BATCH_COMMIT_IDENTIFIER, Snapshot
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import delete_quietly
from forebay.paimon.table import Table
from forebay.paimon.write.bucketing import UNAWARE

_LOGGER = logging.getLogger(__name__)

DRIVER_ROWS_MAX, DRIVER_BYTES_MAX = 200_000, 16 << 20
"""Maximum rows and bytes of files that the driver merges. Starting a Spark job for them would take longer."""


@dataclass(frozen=True)
class Overwrite:
    """The partitions that a write replaces: those it writes to (`dynamic`), those with values `partition`, or all."""

    partition: Mapping[str, Any] | None = None
    dynamic: bool = False


def commit_batch(
    table: Table,
    messages: Sequence[CommitMessage],
    overwrite: Overwrite | None,
    runner: Callable[[str], TaskRunner],
    transaction: tuple[str, int] | None = None,
) -> list[Snapshot]:
    """Commit the rows of a statement, and compact; returns the snapshots. `runner(description)` runs tasks.

    `transaction` is the name of a job, and the number of its run. If the table has a snapshot of this run or a later
    one, nothing is committed.

    Raises `Conflict` and `InvalidRequest` after deleting all files. After other errors the outcome is unknown.
    """
    if transaction is not None:
        return _commit_once(table, messages, overwrite, runner, transaction)
    return commit_and_compact(table, with_precommit_compaction(table, messages, runner), overwrite, runner)


def _commit_once(
    table: Table,
    messages: Sequence[CommitMessage],
    overwrite: Overwrite | None,
    runner: Callable[[str], TaskRunner],
    transaction: tuple[str, int],
) -> list[Snapshot]:
    application, version = transaction
    user = f"txn.{application}"
    committer = table.new_commit(user)
    if not committer.filter_committed([Committable(version, ())]):
        committer.abort(messages)
        # The attempt that committed it may have been killed before it compacted, which makes the changelog.
        compaction = InlineCompaction(table, runner)
        compaction.run({m.partition for m in messages}, replaced=overwrite is not None)
        return []
    messages = with_precommit_compaction(table, messages, runner)
    return commit_and_compact(table, messages, overwrite, runner, once_as=(user, version))


def commit_and_compact(
    table: Table,
    messages: Sequence[CommitMessage],
    overwrite: Overwrite | None,
    runner: Callable[[str], TaskRunner],
    may_follow: Callable[[Snapshot | None], None] | None = None,
    *,
    once_as: tuple[str, int] | None = None,
) -> list[Snapshot]:
    """Commit as `commit_batch` does, without precommit compaction.

    `once_as` are a user and an identifier: nothing is committed if the user has committed it, or a later one.
    `may_follow` gets the latest snapshot, and raises `Conflict` if the commit must not follow it.
    """
    compaction = InlineCompaction(table, runner)
    full = compaction.full_is_due()
    user, identifier = once_as or (None, BATCH_COMMIT_IDENTIFIER)
    committer, work = table.new_commit(user), Committable(identifier, tuple(messages))
    try:
        if may_follow is not None:
            snapshots = committer.commit_if(may_follow, work)
        elif once_as is not None and overwrite is None:
            snapshots = committer.filter_and_commit([work])
        elif once_as is not None and overwrite is not None:
            snapshots = committer.overwrite_once(work, overwrite.partition, overwrite.dynamic)
        elif overwrite is None:
            snapshots = committer.commit(messages)
        else:
            snapshots = committer.overwrite(messages, overwrite.partition, dynamic=overwrite.dynamic)
    except (Conflict, InvalidRequest):
        committer.abort(messages)
        raise
    if once_as is not None and not snapshots:
        committer.abort(messages)
    if snapshots:
        compaction.run({m.partition for m in messages}, full=full, replaced=overwrite is not None)
        table.maintenance().after_commit(batch=True)
    return snapshots


def with_precommit_compaction(
    table: Table, messages: Sequence[CommitMessage], runner: Callable[[str], TaskRunner]
) -> list[CommitMessage]:
    """`messages`, with small files merged if the table has `precommit-compact`.

    This process merges small amounts, and `runner` all others. After an error the files of `messages` are deleted.
    """
    if not table.context.options.precommit_compact:
        return list(messages)
    tasks = plan_precommit(table.context, messages)
    if not tasks:
        return list(messages)

    files = [f for t in tasks for f in t.files]
    is_small = rows_read(files) <= DRIVER_ROWS_MAX and sum(f.file_size for f in files) <= DRIVER_BYTES_MAX
    task_runner = TaskThreads() if is_small else runner(f"precommit compaction of {table.name}")
    try:
        done = task_runner.run(
            partial(_precompact, table.context),
            tasks,
            rows=[rows_read(t.files) for t in tasks],
            discard=lambda results: _discard(table, results),
        )
    except BaseException:
        table.new_commit().abort(messages)
        raise
    return replace_files(table.context, messages, done)


_PrecommitResult = tuple[PrecommitTask, tuple[DataFileMeta, ...]]


def _precompact(context: TableContext, task: PrecommitTask) -> _PrecommitResult:
    return task, run_precommit(context, task)


def _discard(table: Table, results: Sequence[_PrecommitResult]) -> None:
    for task, files in results:
        for f in files:
            for path in table.context.paths.data_file_and_companions(task.partition, task.bucket, f):
                delete_quietly(table.context.io, path)


class InlineCompaction:
    """Compaction after a commit, for which the writer waits. It counts commits, so each query has one."""

    def __init__(self, table: Table, runner: Callable[[str], TaskRunner]) -> None:
        self._table, self._runner = table, runner
        self._counting = TableWriteCompaction(table.context)
        options = table.context.options
        has_key = table.schema.has_primary_key
        ordered = options.bucket != UNAWARE and not options.deletion_vectors_enabled
        self.is_on = not options.write_only and (has_key or ordered)

    def full_is_due(self) -> bool:
        """Whether the next commit should run a full compaction. Call it once per commit."""
        return self.is_on and self._counting.full_is_due()

    def run(self, partitions: set[bytes], *, full: bool = False, replaced: bool = False) -> bool:
        """Compact the due buckets of `partitions`, or all (`full`); False if other jobs committed first.

        `replaced`: the commit was an overwrite. Then buckets are compacted only if they cannot be read otherwise. The
        changelog has the changes neither of the overwrite nor of this compaction.
        """
        needs_lookup = self._table.context.options.needs_lookup and self._table.schema.has_primary_key
        if not self.is_on or not partitions or (replaced and not needs_lookup):
            return True
        try:
            runner = self._runner(f"compaction of {self._table.name}")
            if replaced:
                runner = _NoChangelogRunner(self._table, runner)
            self._table.compact(full=full, partitions=partitions.__contains__, runner=runner)
        except (Conflict, NotFound) as e:
            _LOGGER.info("compaction of %s after a commit is abandoned: %s", self._table.name, e)
            return False
        return True


@dataclass(frozen=True)
class _NoChangelogRunner:
    """A `TaskRunner` of compaction that deletes the changelog files of its tasks."""

    table: Table
    inner: TaskRunner

    @property
    def parallelism(self) -> int:
        return self.inner.parallelism

    @property
    def process_parallelism(self) -> int:
        return self.inner.process_parallelism

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], **how: Any) -> list[Any]:
        done = self.inner.run(function, tasks, **how)
        for m in done:
            for f in m.compact.changelog_files:
                delete_quietly(self.table.context.io, self.table.context.paths.data_file(m.partition, m.bucket, f))
        return [replace(m, compact=replace(m.compact, changelog_files=())) for m in done]
