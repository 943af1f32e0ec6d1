"""Precommit compaction: the small files of one commit are merged before they become visible.

A commit by many writers has a small file from each. Here they are merged per partition and bucket, and the small files
are deleted; no snapshot ever refers to them. In a primary-key table, either all new files of a bucket are merged into
one sorted run of level 0, or none: a merged part would not fit between its neighbours in the order of sequence numbers.
Their changelog files are merged, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from forebay.paimon.commit.sequence_numbers import oldest_base
from forebay.paimon.compact.append import AppendRules, in_order, rewrite_files
from forebay.paimon.files.reader import DataFileReader
from forebay.paimon.files.writer import KEYED_GROUP_ROWS, FileSettings, RollingWriter, key_value_fields
from forebay.paimon.format.commit_message import CommitMessage, DataIncrement
from forebay.paimon.format.file_meta import LEVEL_0, DataFileMeta, FileSource
from forebay.paimon.merge.buffers import sort_and_merge_buffer, sort_buffer
from forebay.paimon.merge.spec import merge_function
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import delete_quietly

UNAWARE = -1


@dataclass(frozen=True, slots=True)
class PrecommitTask:
    """Small new files of one bucket to merge; `is_changelog`: they are changelog files. Can be pickled."""

    partition: bytes
    bucket: int
    total_buckets: int
    files: tuple[DataFileMeta, ...]
    is_changelog: bool = False


def plan_precommit(table: TableContext, messages: Iterable[CommitMessage]) -> list[PrecommitTask]:
    """The tasks for a commit; empty if there is nothing to merge.

    In ordered buckets, only adjacent files are merged.
    """
    if table.schema.has_primary_key:
        return _plan_runs(table, messages)
    rules = AppendRules.of(table.options)
    buckets: dict[tuple[bytes, int, int], list[DataFileMeta]] = {}
    for m in messages:
        buckets.setdefault((m.partition, m.bucket, m.total_buckets), []).extend(m.data.new_files)
    return [
        PrecommitTask(*key, tuple(files))
        for key, bucket_files in buckets.items()
        for files in _packs(bucket_files, rules, ordered=key[2] != UNAWARE)
        if len(files) > 1
    ]


def _plan_runs(table: TableContext, messages: Iterable[CommitMessage]) -> list[PrecommitTask]:
    """All data files of a bucket, and all its changelog files, if together they are no larger than one large file."""
    groups: dict[tuple[bytes, int, int, bool], list[DataFileMeta]] = {}
    for m in messages:
        for is_changelog, files in ((False, m.data.new_files), (True, m.data.changelog_files)):
            groups.setdefault((m.partition, m.bucket, m.total_buckets, is_changelog), []).extend(files)
    largest = table.options.target_file_size(True)
    return [
        PrecommitTask(partition, bucket, total, tuple(files), is_changelog)
        for (partition, bucket, total, is_changelog), files in groups.items()
        if len(files) > 1 and sum(f.file_size for f in files) <= largest and all(f.level == LEVEL_0 for f in files)
    ]


def _packs(files: Sequence[DataFileMeta], rules: AppendRules, *, ordered: bool) -> list[list[DataFileMeta]]:
    """Packs of small files of about the target size."""
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


def run_precommit(table: TableContext, task: PrecommitTask) -> tuple[DataFileMeta, ...]:
    """The files that replace those of `task`. The old ones are kept until `replace_files`."""
    if table.schema.has_primary_key:
        return _merged(table, task)
    increment = rewrite_files(table, task.partition, task.bucket, task.files)
    # Readers must see these files as written by a writer.
    source = task.files[0].file_source
    return tuple(replace(f, file_source=source) for f in increment.compact_after)


def _merged(table: TableContext, task: PrecommitTask) -> tuple[DataFileMeta, ...]:
    """Files of level 0 as one run, or changelog files with all their rows. In memory, as the writers needed it, too."""
    spec = merge_function(table.schema, table.paths.root)
    reader = DataFileReader(table.io, table.schemas.schema, key_value_fields(table.schema))
    rows = [
        batch for f in task.files for batch in reader.read(f, table.paths.data_file(task.partition, task.bucket, f))
    ]
    sort = sort_buffer if task.is_changelog else sort_and_merge_buffer
    settings = FileSettings.of(table.schema, table.options, LEVEL_0, FileSource.APPEND, task.is_changelog)
    directory = table.paths.bucket_directory(task.partition, task.bucket)
    writer = RollingWriter(table.io, directory, settings, table.paths.data_file_names(), clock=table.clock)
    try:
        for piece in sort(rows, spec, KEYED_GROUP_ROWS):
            writer.write(piece)
        return tuple(writer.close())
    except BaseException:
        writer.abort()
        raise


def replace_files(
    table: TableContext,
    messages: Sequence[CommitMessage],
    results: Sequence[tuple[PrecommitTask, tuple[DataFileMeta, ...]]],
) -> list[CommitMessage]:
    """`messages` with the files of each task replaced by its result. The old files are deleted."""
    replaced = {f.file_name for task, _ in results for f in task.files}
    remaining = []
    for m in messages:
        files = tuple(f for f in m.data.new_files if f.file_name not in replaced)
        changes = tuple(f for f in m.data.changelog_files if f.file_name not in replaced)
        remaining.append(replace(m, data=replace(m.data, new_files=files, changelog_files=changes)))
    base = oldest_base(messages)
    added = [
        CommitMessage(
            task.partition,
            task.bucket,
            task.total_buckets,
            DataIncrement(changelog_files=files) if task.is_changelog else DataIncrement(new_files=files),
            base=base,
        )
        for task, files in results
    ]
    for task, _ in results:
        for f in task.files:
            for path in table.paths.data_file_and_companions(task.partition, task.bucket, f):
                delete_quietly(table.io, path)
    return [m for m in [*remaining, *added] if not m.is_empty]


def precommit(table: TableContext, messages: Sequence[CommitMessage]) -> list[CommitMessage]:
    """`messages` with small files merged, all in this process."""
    tasks = plan_precommit(table, messages)
    return replace_files(table, messages, [(task, run_precommit(table, task)) for task in tasks])
