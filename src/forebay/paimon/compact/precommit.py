"""Precommit compaction: small files of one commit are put together before anybody sees them.

A commit by many writers brings a small file of each. Here the files of a partition and bucket become few, and the
small ones are deleted: no snapshot ever had them. It is for append tables, whose files need no merging.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from forebay.base.clock import SYSTEM_CLOCK, Clock
from forebay.base.errors import InvalidRequest
from forebay.paimon.compact.append import AppendRules, in_order, rewrite_files
from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.format.file_meta import DataFileMeta
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import delete_quietly

UNAWARE = -1


@dataclass(frozen=True, slots=True)
class PrecommitTask:
    """Small new files of one bucket, to be put together. Pickles."""

    partition: bytes
    bucket: int
    total_buckets: int
    files: tuple[DataFileMeta, ...]


def plan_precommit(table: TableContext, messages: Iterable[CommitMessage]) -> list[PrecommitTask]:
    """The tasks for what is going to be committed; none if there is nothing to put together.

    Only files that follow each other are put together in a bucket with an order.
    """
    if table.schema.has_primary_key:
        raise InvalidRequest("precommit compaction is for append tables; files of a primary key are merged by levels")
    rules = AppendRules.of(table.options)
    buckets: dict[tuple[bytes, int, int], list[DataFileMeta]] = {}
    for m in messages:
        buckets.setdefault((m.partition, m.bucket, m.total_buckets), []).extend(m.data.new_files)
    return [
        PrecommitTask(*key, tuple(files))
        for key, found in buckets.items()
        for files in _packs(found, rules, ordered=key[2] != UNAWARE)
        if len(files) > 1
    ]


def _packs(files: Sequence[DataFileMeta], rules: AppendRules, *, ordered: bool) -> list[list[DataFileMeta]]:
    """Small files in packs of about the target size."""
    packs: list[list[DataFileMeta]] = [[]]
    size = 0
    for f in in_order(files) if ordered else files:
        if not rules.is_small(f):
            if ordered:
                packs.append([])
                size = 0
            continue
        packs[-1].append(f)
        size += f.file_size
        if size >= rules.target_size:
            packs.append([])
            size = 0
    return packs


def run_precommit(table: TableContext, task: PrecommitTask, clock: Clock = SYSTEM_CLOCK) -> tuple[DataFileMeta, ...]:
    """The files that replace those of `task`. The old ones stay until `replace_files`."""
    increment = rewrite_files(table, task.partition, task.bucket, task.files, clock=clock)
    # To everybody else these files are what a writer wrote.
    source = task.files[0].file_source
    return tuple(replace(f, file_source=source) for f in increment.compact_after)


def replace_files(
    table: TableContext,
    messages: Sequence[CommitMessage],
    done: Sequence[tuple[PrecommitTask, tuple[DataFileMeta, ...]]],
) -> list[CommitMessage]:
    """`messages` with the files of each task replaced by its result. The old files are deleted."""
    gone = {f.file_name for task, _ in done for f in task.files}
    kept = []
    for m in messages:
        files = tuple(f for f in m.data.new_files if f.file_name not in gone)
        kept.append(m if len(files) == len(m.data.new_files) else replace(m, data=replace(m.data, new_files=files)))
    added = [
        CommitMessage(task.partition, task.bucket, task.total_buckets, replace(_NOTHING, new_files=files))
        for task, files in done
    ]
    for task, _ in done:
        for f in task.files:
            for path in table.paths.data_file_and_companions(task.partition, task.bucket, f):
                delete_quietly(table.io, path)
    return [m for m in [*kept, *added] if not m.is_empty]


_NOTHING = CommitMessage(b"", 0, 0).data


def precommit(
    table: TableContext, messages: Sequence[CommitMessage], clock: Clock = SYSTEM_CLOCK
) -> list[CommitMessage]:
    """`messages` with small files put together, all in this process."""
    tasks = plan_precommit(table, messages)
    return replace_files(table, messages, [(task, run_precommit(table, task, clock)) for task in tasks])
