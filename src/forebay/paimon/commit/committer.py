"""Commits: the results of writers become visible to all readers as one snapshot, or have no effect.

A commit reads the latest snapshot, checks its changes for conflicts, writes manifests, and creates the file
`snapshot-<latest + 1>` unless another commit has. The loser of the race checks the new snapshot and tries again
(`forebay.paimon.commit.loop.CommitLoop`). New rows and compaction results are committed as two snapshots, so that
readers of changes can skip the second.

Each attempt's snapshot has a UUID. If the outcome of creating the file is unknown (a lost response), the file is read
back: if it has our UUID, the commit succeeded. While the id is free, the identical file is retried, so a delayed
request that arrives later does no harm.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from forebay.base.errors import Conflict, InvalidRequest, UnsupportedOperation
from forebay.paimon.commit.conflicts import overlapping
from forebay.paimon.commit.file_changes import Changes, collect_changes
from forebay.paimon.commit.loop import ChangesProvider, CommitContext, CommitLoop, CommitRequest
from forebay.paimon.commit.partition_filter import PartitionFilter, partition_filter
from forebay.paimon.commit.sequence_numbers import CommittedNumbers, Numbering, oldest_base
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.format.file_meta import FileKind, IndexManifestEntry, ManifestEntry
from forebay.paimon.format.snapshot import BATCH_COMMIT_IDENTIFIER, CommitKind, Snapshot
from forebay.paimon.options import POSTPONE_BUCKET
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.lock import CommitGuard
from forebay.paimon.store.manifests import delete_quietly

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Committable:
    """The work of all writers up to a checkpoint of a stream; the input of `filter_and_commit`."""

    identifier: int
    messages: tuple[CommitMessage, ...]
    watermark: int | None = None
    properties: Mapping[str, str] | None = None


class AlreadyCommitted(Conflict):
    """This user has already committed this identifier or a later one; nothing was done."""


class _NothingToDo(Exception):
    """Raised to end a commit that is no longer needed, without effect."""


class FileStoreCommit:
    """Commits to one branch of a table as one user. Not thread-safe: use one instance per thread.

    A stream keeps its `user` across restarts, by which `filter_and_commit` finds out what was already committed.
    """

    def __init__(
        self,
        table: TableContext,
        user: str,
        *,
        lock: CommitGuard | None = None,
        ignore_empty: bool = True,
    ) -> None:
        self.options = table.options
        self.options.check_supported()
        self.io, self.paths, self.schema, self.user = table.io, table.paths, table.schema, user
        self.snapshots, self.manifests = table.snapshots, table.manifests
        self.ignore_empty = self.options.ignore_empty_commit(ignore_empty)
        self._table, self._context = table, CommitContext(table, user, lock)
        self._numbers = CommittedNumbers(table)
        self.renumbered = False
        """Whether the last commit has rewritten new files with greater sequence numbers: its writers began before other
        commits, and continue with numbers that are too small."""
        self._appended: frozenset[tuple[bytes, int, str]] = frozenset()

    def _run(self, request: CommitRequest, provider: ChangesProvider) -> Snapshot:
        return CommitLoop(self._context, request, provider).run()

    def _run_numbered(self, request: CommitRequest, numbering: Numbering, provider: ChangesProvider) -> Snapshot:
        """The snapshot of new rows, whose sequence numbers follow those of the commits before it."""
        try:
            snapshot = self._run(request, numbering.provider(provider))
        except (Conflict, InvalidRequest, UnsupportedOperation):  # after others, its files may be in the table
            numbering.discard()
            raise
        numbering.settle(snapshot)
        self.renumbered = numbering.is_renumbered
        return snapshot

    # ---- commits ---------------------------------------------------------------------------------------------------

    def commit(
        self,
        messages: Iterable[CommitMessage],
        identifier: int = BATCH_COMMIT_IDENTIFIER,
        watermark: int | None = None,
        properties: Mapping[str, str] | None = None,
        check_conflicts: bool = False,
    ) -> list[Snapshot]:
        """Commit new rows and compaction results, and return the snapshots created: none, one or two.

        `check_conflicts` also checks appended files against all files of their partitions; without it, only their
        bucket count is checked. Raises `Conflict` if the changes conflict with other commits: nothing was committed
        then, and the caller may `abort`. A compaction that conflicts is dropped if new rows were committed with it:
        they are compacted later. Raises `OutcomeUnknown` if it is unknown whether the snapshot exists: the files must
        then be kept.
        """
        work = Committable(identifier, tuple(messages), watermark, properties)
        return self._commit(work, check_conflicts, _fixed)

    def commit_if(self, may_follow: Callable[[Snapshot | None], None], work: Committable) -> list[Snapshot]:
        """Commit `work` unless `may_follow` raises; its exception ends the commit without effect.

        Each attempt calls it with the latest snapshot, which the new snapshot must directly follow.
        """

        def guarded(changes: Changes) -> ChangesProvider:
            def provide(latest: Snapshot | None) -> Changes:
                may_follow(latest)
                return changes

            return provide

        return self._commit(work, False, guarded, guarded)

    def _commit(
        self,
        work: Committable,
        check_conflicts: bool,
        provider: Callable[[Changes], ChangesProvider],
        compaction: Callable[[Changes], ChangesProvider] | None = None,
    ) -> list[Snapshot]:
        """`commit`, with `provider` applied to the changes of new rows and `compaction` to those of compaction."""
        append, compact = collect_changes(work.messages)
        identifier, watermark, properties = work.identifier, work.watermark, work.properties or {}
        self._appended, self.renumbered = frozenset(), False
        self._context.checker.check_bucket_counts(append.files)
        snapshots = []
        if not (append.is_empty and self.ignore_empty):
            kind = CommitKind.OVERWRITE if append.removes_rows else CommitKind.APPEND
            check = check_conflicts or kind is CommitKind.OVERWRITE
            request = CommitRequest(kind, identifier, watermark, properties, check_conflicts=check)
            numbering = Numbering(self._table, self._numbers, append, oldest_base(work.messages))
            snapshots.append(self._run_numbered(request, numbering, provider(append)))
            new = [*numbering.changes.files, *numbering.changes.changelog]
            self._appended = frozenset((e.partition, e.bucket, e.file.file_name) for e in new)
        if not compact.is_empty:
            request = CommitRequest(CommitKind.COMPACT, identifier, watermark, properties, check_conflicts=True)
            snapshots += self._compacted(request, (compaction or _fixed)(compact), are_rows_there=bool(snapshots))
        return snapshots

    def _compacted(self, request: CommitRequest, changes: ChangesProvider, *, are_rows_there: bool) -> list[Snapshot]:
        """The snapshot of a compaction; none if it conflicts after rows were committed with it.

        An error would say that nothing was committed, and who tries again writes the rows twice. The files stay for
        `remove_orphan_files`: another process may have committed them.
        """
        try:
            return [self._run(request, changes)]
        except Conflict as e:
            if not are_rows_there:
                raise
            _LOGGER.warning("new rows were committed without the compaction that came with them: %s", e.message)
            return []

    def filter_and_commit(self, committables: Sequence[Committable], check_conflicts: bool = False) -> list[Snapshot]:
        """Commit those of `committables` that are not committed yet, as a stream does after a restart.

        They must be ordered by identifier. After a crash the outcome of the last commit is unknown, so with
        `check_conflicts` appended files are also checked against the table.
        """
        checked_id = self.snapshots.latest_id() or 0
        snapshots = []
        for work in self.filter_committed(committables):
            once = functools.partial(self._once, work.identifier, checked_id)
            with contextlib.suppress(AlreadyCommitted):  # committed meanwhile by another process of this user
                snapshots += self._commit(work, check_conflicts, once)
            checked_id = snapshots[-1].id if snapshots else checked_id
        return snapshots

    def _once(self, identifier: int, checked_id: int, append: Changes) -> ChangesProvider:
        """`append`, unless this user has committed `identifier` after snapshot `checked_id`.

        The check is made on the snapshot that the commit builds on: if two processes commit the same identifier, the
        second sees the first.
        """

        def changes(latest: Snapshot | None) -> Changes:
            nonlocal checked_id
            if latest is None:
                return append
            there = self.snapshots.latest_of_user(self.user, checked_id + 1)
            if there is not None and there.commit_identifier >= identifier:
                raise AlreadyCommitted(f"user {self.user} has committed {identifier} already (snapshot {there.id})")
            checked_id = latest.id
            return append

        return changes

    def filter_committed(self, committables: Sequence[Committable]) -> list[Committable]:
        """The committables (ordered by identifier) that this user has not committed yet.

        A commit that crashed between its new rows and its compaction counts as committed. Its compaction is lost, but
        no rows.
        """
        identifiers = [c.identifier for c in committables]
        if any(a >= b for a, b in itertools.pairwise(identifiers)):
            raise InvalidRequest(f"commits must be ordered by identifier, got {identifiers}")
        if not committables:
            return []
        latest = self.snapshots.latest_of_user(self.user)
        if latest is None:
            return list(committables)
        return [c for c in committables if c.identifier > latest.commit_identifier]

    def overwrite(
        self,
        messages: Iterable[CommitMessage],
        partition: Mapping[str, Any] | None = None,
        identifier: int = BATCH_COMMIT_IDENTIFIER,
        watermark: int | None = None,
        properties: Mapping[str, str] | None = None,
        dynamic: bool | None = None,
        may_follow: Callable[[Snapshot | None], object] = lambda _: None,
    ) -> list[Snapshot]:
        """Replace the contents of some partitions with the new files of `messages`, and return the snapshots created.

        Dynamic (the default for partitioned tables, `dynamic-partition-overwrite`): the partitions that `messages`
        write to. Otherwise: the partitions that match `partition` (values by column, not necessarily of all columns),
        or the whole table. Everything present at the time of the commit is replaced. Changelog files are not committed.
        `may_follow` is as in `commit_if`.
        """
        append, compact = collect_changes(messages)
        self._context.checker.check_bucket_counts(append.files)
        if dynamic is None:
            dynamic = self.options.dynamic_partition_overwrite
        selection: PartitionFilter | None
        if self.schema.partition_keys and dynamic:
            partitions = {e.partition for e in append.files}
            selection = partitions.__contains__
            skip = not partitions
        else:
            selection, skip = partition_filter(self.schema, partition), False
            outside = [e for e in append.files if selection is not None and not selection(e.partition)]
            if outside:
                where = self.paths.partition_directory(outside[0].partition)
                raise InvalidRequest(f"a file of partition {where} is not in the partition to overwrite ({partition})")
        if compact.is_empty:
            append.files = self._upgraded(append.files)
        snapshots = []
        if not skip:
            snapshots.append(self._replace(selection, append, identifier, watermark, properties, may_follow))
        for e in (*append.changelog, *compact.changelog):  # written, but not committed
            for path in self.paths.data_file_and_companions(e.partition, e.bucket, e.file):
                delete_quietly(self.io, path)
        if not (compact.files or compact.index):
            return snapshots
        compact.changelog = []
        request = CommitRequest(CommitKind.COMPACT, identifier, watermark, properties or {}, check_conflicts=True)
        return [*snapshots, *self._compacted(request, lambda _: compact, are_rows_there=bool(snapshots))]

    def overwrite_once(
        self, work: Committable, partition: Mapping[str, Any] | None = None, dynamic: bool | None = None
    ) -> list[Snapshot]:
        """`overwrite`, unless this user has committed the identifier of `work` or a later one; then nothing is done.

        As in `filter_and_commit`, the check is made on the snapshot that the commit builds on. So a late overwrite of a
        process that was replaced by another one does not undo commits of the new process.
        """
        checked_id = self.snapshots.latest_id() or 0
        if not self.filter_committed([work]):
            return []
        once = self._once(work.identifier, checked_id, Changes())
        with contextlib.suppress(AlreadyCommitted):
            return self.overwrite(
                work.messages, partition, work.identifier, work.watermark, work.properties, dynamic, once
            )
        return []

    def replace_exactly(
        self,
        base: Snapshot,
        partitions: Set[bytes],
        messages: Iterable[CommitMessage],
        identifier: int = BATCH_COMMIT_IDENTIFIER,
    ) -> Snapshot:
        """Replace the contents of `partitions` in `base` with the new files of `messages`, which hold the same rows.

        Unlike an overwrite, it never loses concurrent writes: it raises `Conflict` if there were any.
        """
        append, _ = collect_changes(messages)
        self._context.checker.check_bucket_counts(append.files)
        touched = {*partitions, *append.partitions}
        read = {e.identity for e in self.manifests.live_files(base, touched)}
        replacement = self._replacement(touched.__contains__, append)

        def changes(latest: Snapshot | None) -> Changes:
            current = set() if latest is None else {e.identity for e in self.manifests.live_files(latest, touched)}
            if current != read:
                raise Conflict(
                    f"{self.paths.root} was written to since snapshot {base.id}, in partitions that were being "
                    "rewritten; repeat the work on the latest snapshot"
                )
            return replacement(latest)

        request = CommitRequest(CommitKind.OVERWRITE, identifier, check_conflicts=True, fixed_changes=False)
        return self._run(request, changes)

    def drop_partitions(
        self, partitions: Sequence[Mapping[str, Any]], identifier: int = BATCH_COMMIT_IDENTIFIER
    ) -> Snapshot:
        """Delete all partitions that match one of `partitions` (values by column, not necessarily of all columns)."""
        if not partitions:
            raise InvalidRequest("name at least one partition to drop; to empty the table, truncate it")
        filters = [f for f in (partition_filter(self.schema, p) for p in partitions) if f is not None]
        if len(filters) != len(partitions):
            raise InvalidRequest("a partition to drop has no values; to empty the table, truncate it")
        return self._replace(lambda p: any(f(p) for f in filters), Changes(), identifier)

    def drop_selected(self, choose: Callable[[Snapshot], Collection[bytes]]) -> Snapshot | None:
        """Delete the partitions that `choose` finds in the snapshot that the commit builds on; None if there are none.

        Each attempt calls it: another commit may have come in between.
        """

        def changes(latest: Snapshot | None) -> Changes:
            partitions = frozenset(() if latest is None else choose(latest))
            if not partitions:
                raise _NothingToDo
            return self._replacement(partitions.__contains__, Changes())(latest)

        request = CommitRequest(
            CommitKind.OVERWRITE, BATCH_COMMIT_IDENTIFIER, check_conflicts=True, fixed_changes=False
        )
        try:
            return self._run(request, changes)
        except _NothingToDo:
            return None

    def truncate(self, identifier: int = BATCH_COMMIT_IDENTIFIER) -> Snapshot:
        """Delete all rows."""
        return self._replace(None, Changes(), identifier)

    def commit_statistics(self, name: str, identifier: int = BATCH_COMMIT_IDENTIFIER) -> Snapshot:
        """Commit the existing statistics file `name` as the statistics of the table."""
        return self._run(CommitRequest(CommitKind.ANALYZE, identifier, statistics=name), lambda _: Changes())

    def compact_manifests(self) -> Snapshot | None:
        """Merge all manifests that can be merged, in a snapshot without data changes; None if there are none."""
        latest = self.snapshots.latest()
        manifests = [] if latest is None else self.manifests.data_manifests(latest)
        target = self.options.manifest_target_file_size
        if len(manifests) <= 1 or not any(m.num_deleted_files or m.file_size < target for m in manifests):
            return None
        request = CommitRequest(CommitKind.COMPACT, BATCH_COMMIT_IDENTIFIER, merge_manifests=True)
        return self._run(request, lambda _: Changes())

    def abort(self, messages: Iterable[CommitMessage]) -> None:
        """Delete the files of work that will not be committed. Never call it after `OutcomeUnknown`.

        New rows that the last commit did commit are kept.
        """
        for m in messages:
            compact = m.compact
            # Files that compaction only moved up a level still belong to the table.
            before = {f.file_name for f in compact.compact_before}
            after = [f for f in compact.compact_after if f.file_name not in before]
            for file in (*m.data.new_files, *m.data.changelog_files, *after, *compact.changelog_files):
                if (m.partition, m.bucket, file.file_name) in self._appended:
                    continue
                for path in self.paths.data_file_and_companions(m.partition, m.bucket, file):
                    delete_quietly(self.io, path)
            committed = {(m.partition, m.bucket, f.file_name) for f in m.data.new_files} & self._appended
            for index in (*(() if committed else m.data.new_index_files), *compact.new_index_files):
                delete_quietly(self.io, self.paths.index_file(index, m.partition, m.bucket))

    # ---- overwriting -----------------------------------------------------------------------------------------------

    def _replace(
        self,
        selection: PartitionFilter | None,
        added: Changes,
        identifier: int,
        watermark: int | None = None,
        properties: Mapping[str, str] | None = None,
        may_follow: Callable[[Snapshot | None], object] = lambda _: None,
    ) -> Snapshot:
        request = CommitRequest(
            CommitKind.OVERWRITE, identifier, watermark, properties or {}, check_conflicts=True, fixed_changes=False
        )
        replacement = self._replacement(selection, added)

        def changes(latest: Snapshot | None) -> Changes:
            may_follow(latest)
            return replacement(latest)

        return self._run(request, changes)

    def _replacement(self, selection: PartitionFilter | None, added: Changes) -> Callable[[Snapshot | None], Changes]:
        """The changes that replace the partitions in `selection` (None: all) of a snapshot with `added`."""
        with_postponed = self.options.bucket == POSTPONE_BUCKET

        def changes(latest: Snapshot | None) -> Changes:
            if latest is None:
                return Changes(added.files, [], added.index)
            removed = [
                replace(e, kind=FileKind.DELETE)
                for e in self.manifests.live_files(latest)
                if (selection is None or selection(e.partition)) and (with_postponed or e.bucket >= 0)
            ]
            removed_indexes = [
                IndexManifestEntry(FileKind.DELETE, e.partition, e.bucket, e.index_file)
                for e in self.manifests.read_index(latest.index_manifest)
                if selection is None or selection(e.partition)
            ]
            return Changes([*removed, *added.files], [], [*removed_indexes, *added.index])

        return changes

    def _upgraded(self, files: list[ManifestEntry]) -> list[ManifestEntry]:
        """`files`, moved to the top level in buckets where they do not overlap, so they need no compaction."""
        if not (self.options.overwrite_upgrade and self.schema.has_primary_key):
            return files
        if any(e.file.level > 0 or e.bucket < 0 or e.kind is FileKind.DELETE for e in files):
            return files
        if any(e.file.delete_row_count != 0 for e in files):  # the top level must not hold deletions
            return files
        layout = row_layout(self.schema.key_fields)
        buckets: dict[tuple[bytes, int], list[ManifestEntry]] = {}
        for e in files:
            buckets.setdefault((e.partition, e.bucket), []).append(e)
        top = self.options.num_levels - 1
        result: list[ManifestEntry] = []
        for entries in buckets.values():
            if overlapping(layout, entries) is None:
                entries = [replace(e, file=e.file.upgrade(top)) for e in entries]
            result.extend(entries)
        return result


def _fixed(changes: Changes) -> ChangesProvider:
    """A provider of the same changes for any latest snapshot."""
    return lambda _: changes
