"""Compaction beside a streaming query, in separate tasks for which the query does not wait.

A thread of the driver gets the new files of every commit, plans which of them to compact, runs the tasks in Spark, and
commits under its own commit user. The number of concurrent tasks is limited to a part of the cores, so that the tasks
of the query always find free cores, whatever Spark's scheduler prefers.

The faster commit wins: if another job compacted or overwrote the same files, the work is discarded and replanned from
the current files. When the query ends, the running round finishes, and one more round handles the remaining commits.
Small files that are too few to pack stay for the next writer, or for `CALL sys.compact`.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from forebay.base.errors import Conflict, ForebayError, NotFound
from forebay.paimon.compact.append import AppendCoordinator, AppendRules, pack
from forebay.paimon.compact.running import TaskRunner, rows_read, within_budget
from forebay.paimon.compact.tasks import CompactTask, run_task
from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.format.file_meta import DataFileMeta
from forebay.paimon.table import Table
from forebay.paimon.write.bucketing import UNAWARE
from forebay.spark.writing.committing import InlineCompaction

IDLE_SECONDS = 0.5
"""Interval in which an idle thread checks whether its query still runs."""

PACKED_MAX = 10_000
"""Maximum number of groups of packed files that are remembered. The files of the oldest groups stay unpacked."""

_LOGGER = logging.getLogger(__name__)

BucketKey = tuple[bytes, int]
NewFiles = dict[bytes, list[DataFileMeta]]
"""New data files by partition."""


def new_files(messages: Iterable[CommitMessage]) -> NewFiles:
    """The data files added by a commit of `messages`."""
    files: NewFiles = {}
    for m in messages:
        files.setdefault(m.partition, []).extend(m.data.new_files)
    return files


class LimitedRunner:
    """A `TaskRunner` that passes tasks to another one, at most `parallelism` at a time."""

    def __init__(self, inner: TaskRunner, parallelism: int) -> None:
        self._inner, self.parallelism = inner, parallelism

    @property
    def process_parallelism(self) -> int:
        return min(self.parallelism, self._inner.process_parallelism)

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], **how: Any) -> list[Any]:
        """The results of all tasks, in order. After an error the results so far are discarded (`how["discard"]`)."""
        done: list[Any] = []
        rows, discard = how["rows"], how.get("discard", lambda results: None)
        try:
            for at in range(0, len(tasks), self.parallelism):
                chunk = slice(at, at + self.parallelism)
                done += self._inner.run(function, tasks[chunk], rows=rows[chunk], discard=discard)
        except BaseException:
            discard(done)
            raise
        return done


class PackRounds:
    """Compaction rounds of an append table without buckets, which pack small files of a partition together.

    A packed file may still be small. It is packed again once there are enough files that were packed the same number of
    times. So a row is rewritten only as often as the logarithm of the number of files, and few files are left. (Paimon
    packs such a file again with the next small ones: just as few are left, but rows are rewritten many more times.)
    """

    def __init__(self, table: Table, runner: TaskRunner) -> None:
        self._table, self._runner = table, runner
        self._rules = AppendRules.of(table.context.options)
        self.full_is_due = False  # ignored: only small files are packed
        self._coordinator: AppendCoordinator | None = None
        # Small files by partition and number of times packed.
        self._packed: dict[tuple[bytes, int], list[DataFileMeta]] = {}

    @property
    def waiting(self) -> int:
        """The number of small files that wait to be packed."""
        return 0 if self._coordinator is None else sum(map(len, self._coordinator.waiting.values()))

    def run(self, new_files: NewFiles, *, replaced: bool = False) -> int:
        """Run one round after commits that added `new_files`; returns the number of files that were packed.

        `replaced`: the commits have replaced existing files.
        """
        if self._coordinator is None or replaced:
            self._coordinator, new_files = AppendCoordinator(self._rules), self._live_files()
            self._packed = {}
        coordinator, self._coordinator = self._coordinator, None  # set again below: an error or a conflict starts over
        planned = [(partition, 0, files) for partition, files in coordinator.plan(new_files)]
        compacted = 0
        while planned:
            chunk, planned = planned[: self._runner.parallelism], planned[self._runner.parallelism :]
            done = self._compact([CompactTask(partition, 0, UNAWARE, tuple(files)) for partition, _, files in chunk])
            if done is None:
                return compacted
            for (partition, times, files), message in zip(chunk, done, strict=True):
                compacted += len(files)
                planned += self._pack_again((partition, times + 1), message.compact.compact_after)
        self._coordinator = coordinator
        return compacted

    def _pack_again(
        self, key: tuple[bytes, int], files: Iterable[DataFileMeta]
    ) -> list[tuple[bytes, int, list[DataFileMeta]]]:
        """The packs that are due after `files` were added; `key` is their partition and number of times packed."""
        waiting = self._packed.pop(key, []) + [f for f in files if self._rules.is_small(f)]
        packs = pack(waiting, self._rules)
        packed = {f.file_name for files in packs for f in files}
        if unpacked := [f for f in waiting if f.file_name not in packed]:
            self._packed[key] = unpacked  # at the end, as the key that was used last
        while len(self._packed) > PACKED_MAX:
            del self._packed[next(iter(self._packed))]
        return [(*key, files) for files in packs]

    def _compact(self, tasks: Sequence[CompactTask]) -> list[CommitMessage] | None:
        """Run and commit `tasks`, and return their messages; None if another commit conflicted."""
        committer = self._table.new_commit()
        try:
            done: list[CommitMessage] = self._runner.run(
                partial(run_task, within_budget(self._table.context, self._runner, len(tasks))),
                tasks,
                rows=[rows_read(task.files) for task in tasks],
                discard=committer.abort,
            )
        except NotFound as e:
            _LOGGER.info("compaction of %s is replanned: %s", self._table.name, e)
            return None
        try:
            committer.commit(done)
        except Conflict as e:
            committer.abort(done)
            _LOGGER.info("compaction of %s is replanned: %s", self._table.name, e)
            return None
        return done

    def _live_files(self) -> NewFiles:
        files: NewFiles = {}
        latest = self._table.context.snapshots.latest()
        for e in [] if latest is None else self._table.context.manifests.live_files(latest):
            files.setdefault(e.partition, []).append(e.file)
        return files


class BucketRounds:
    """Compaction rounds of a table with buckets, according to the table's options."""

    waiting = 0

    def __init__(self, table: Table, compaction: InlineCompaction) -> None:
        self._table, self._compaction = table, compaction
        self.full_is_due = False

    def run(self, new_files: NewFiles, *, replaced: bool = False) -> int:
        """Run one round, as `PackRounds.run` does. Files are not counted."""
        full, self.full_is_due = self.full_is_due, False
        self._compaction.run(set(new_files), full=full, replaced=replaced)
        return 0


Rounds = PackRounds | BucketRounds


class BackgroundCompaction:
    """The compaction thread of one query and table. It starts at the first commit and ends with the query."""

    def __init__(self, name: str, rounds: Rounds, is_active: Callable[[], bool]) -> None:
        """`is_active` returns whether the query still runs."""
        self._name, self.rounds, self._is_active = name, rounds, is_active
        self._lock = threading.Condition()
        self._uncompacted: list[CommitMessage] = []
        self._runs: Counter[BucketKey] = Counter()  # new files of each bucket since its last round
        self._current_runs: Counter[BucketKey] = Counter()  # the part of `_runs` that the current round handles
        self._thread: threading.Thread | None = None
        self._is_working = False
        self.done = self.files = 0
        """The number of finished rounds, and of files that they packed."""

    def committed(self, messages: Iterable[CommitMessage]) -> None:
        """Notify the thread of a commit."""
        with self._lock:
            self._uncompacted += messages
            self._runs.update({(m.partition, m.bucket): len(m.data.new_files) for m in messages})
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"forebay-compact-{self._name}", daemon=True)
                self._thread.start()
            self._lock.notify_all()

    def wait_until_runs_below(self, limit: int) -> None:
        """Wait while a bucket has `limit` or more new files since its last round, and the thread runs."""
        with self._lock:
            while self._thread is not None and max(self._runs.values(), default=0) >= limit:
                self._lock.wait(IDLE_SECONDS)

    def wait_idle(self, timeout: float) -> bool:
        """Wait until all commits so far have been processed; False after `timeout` seconds."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._uncompacted and not self._is_working, timeout)

    def _work(self) -> None:
        try:
            while (commits := self._next()) is not None:
                self._round(commits)
        finally:
            with self._lock:
                if self._thread in (None, threading.current_thread()):  # `committed` may have started another one
                    self._thread, self._is_working = None, False
                self._lock.notify_all()

    def _next(self) -> list[CommitMessage] | None:
        """The commits since the last round; None when the query has ended."""
        with self._lock:
            self._is_working = False
            self._lock.notify_all()
            while not self._uncompacted:
                if not self._lock.wait(IDLE_SECONDS) and not self._uncompacted and not self._query_runs():
                    self._thread = None
                    return None
            commits, self._uncompacted, self._is_working = self._uncompacted, [], True
            self._current_runs = self._runs.copy()
            return commits

    def _query_runs(self) -> bool:
        try:
            return self._is_active()
        except ForebayError as e:  # Spark has been stopped
            _LOGGER.info("compaction beside %s ends: %s", self._name, e)
            return False

    def _round(self, commits: Sequence[CommitMessage]) -> None:
        try:
            self.files += self.rounds.run(new_files(commits))
            self.done += 1
        except Exception as e:
            # The rows are committed, so the query must not fail. The next commit starts another round.
            reason = str(e).strip().splitlines()  # an error of the JVM has its stack in its text
            # Errors that come from stopping Spark with the query are no failures.
            stopped = not isinstance(e, ForebayError) and not self._query_runs()
            level, what = (logging.INFO, "is given up") if stopped else (logging.WARNING, "failed")
            _LOGGER.log(
                level, "compaction beside %s %s: %s", self._name, what, reason[0] if reason else type(e).__name__
            )
            _LOGGER.debug("how compaction beside %s failed", self._name, exc_info=True)
        with self._lock:
            self._runs.subtract(self._current_runs)
            self._lock.notify_all()
