"""Sequence numbers in the order of commits: the rows of a later commit are newer than those that readers saw before.

A writer numbers its rows from the state of the table that it began with. If others commit to the same buckets before
it does, its numbers are equal to theirs or smaller. Merging would then ignore its rows, or, for equal numbers, prefer
either. So the commit rewrites these files with greater numbers. No other files are read: what others committed is found
in their manifests, from the snapshot on that the writer began with (`CommitMessage.base`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import Conflict, NotFound
from forebay.paimon.commit.file_changes import Changes
from forebay.paimon.files.reader import DataFileReader
from forebay.paimon.files.writer import FileSettings, RollingWriter, key_value_fields
from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.format.file_meta import FileKind, FileSource, ManifestEntry
from forebay.paimon.format.schema import SEQUENCE_NUMBER
from forebay.paimon.format.snapshot import CommitKind, Snapshot
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import delete_quietly

_FOLLOWED_MAX = 50
"""With more new snapshots than this, the live files are read instead of their changes."""

_ROOM = 1 << 32
"""The sequence numbers that a commit leaves free when it rewrites its files again."""

_SAME_ROWS = (CommitKind.COMPACT, CommitKind.ANALYZE)
"""Kinds of commits that add no rows."""

Bucket = tuple[bytes, int]


class CommittedNumbers:
    """The greatest sequence numbers by bucket that were committed since a snapshot. Not thread-safe."""

    def __init__(self, table: TableContext) -> None:
        self._table = table
        self._after: int | None = None  # all of the numbers that were committed after this snapshot,
        self._seen: Snapshot | None = None  # up to this one, are in `_greatest`
        self._greatest: dict[Bucket, int] = {}

    def greatest(self, base: int, latest: Snapshot, buckets: Iterable[Bucket]) -> dict[Bucket, int]:
        """The greatest numbers in `buckets` that came after snapshot `base`, up to `latest`; buckets may be missing.

        If `base` is too long ago, those of all rows in `buckets`.
        """
        if self._follow(base, latest):
            return {bucket: self._greatest[bucket] for bucket in buckets if bucket in self._greatest}
        wanted = set(buckets)
        live = self._table.manifests.live_files(latest, {partition for partition, _ in wanted})
        return _greatest_of(e for e in live if (e.partition, e.bucket) in wanted)

    def add(self, snapshot: Snapshot, entries: Iterable[ManifestEntry]) -> None:
        """Note what `snapshot` has committed, to save reading it again."""
        if self._seen is not None and snapshot.id == self._seen.id + 1:
            self._raise(_greatest_of(entries))
            self._seen = snapshot

    def _follow(self, base: int, latest: Snapshot) -> bool:
        """Read what was committed after `base`, or after what is known already; False if that is too much or gone."""
        seen = self._seen
        if seen is None or self._after is None or base < self._after or not self._is_current(seen, latest):
            first, greatest = base + 1, {}
        else:
            first, greatest = seen.id + 1, self._greatest
        if latest.id < first - 1 or latest.id - first >= _FOLLOWED_MAX:
            return False
        try:
            between = [self._table.snapshots.snapshot(number) for number in range(first, latest.id)]
            added = [_greatest_of(self._added(s)) for s in (*between, *([latest] if latest.id >= first else []))]
        except NotFound:
            return False
        if greatest is not self._greatest:
            self._after, self._greatest = base, {}
        for numbers in added:
            self._raise(numbers)
        self._seen = latest
        return True

    def _is_current(self, seen: Snapshot, latest: Snapshot) -> bool:
        """Whether `seen` is still a snapshot of the table: after a rollback, its number is used again."""
        if seen.id >= latest.id:
            return seen == latest
        current = self._table.snapshots.find(seen.id)
        return current is None or current == seen

    def _added(self, snapshot: Snapshot) -> Iterable[ManifestEntry]:
        if snapshot.commit_kind in _SAME_ROWS:
            return ()
        manifests = self._table.manifests
        return manifests.entries(manifests.delta_manifests(snapshot))

    def _raise(self, numbers: dict[Bucket, int]) -> None:
        for bucket, number in numbers.items():
            self._greatest[bucket] = max(self._greatest.get(bucket, -1), number)


class Numbering:
    """The new files of one commit, numbered after the rows that are in their buckets when it is made."""

    def __init__(self, table: TableContext, committed: CommittedNumbers, changes: Changes, base: int | None) -> None:
        """`base` is the snapshot that the numbers of `changes` continue; 0: there was none.

        None: they continue no snapshot, so that they are left as they are.
        """
        self._table, self._committed, self._original, self._base = table, committed, changes, base
        self._least: dict[Bucket, int] = {}
        if table.schema.has_primary_key and base is not None:
            for e in changes.files:
                if e.kind is FileKind.ADD and e.bucket >= 0:
                    bucket = e.partition, e.bucket
                    self._least[bucket] = min(e.file.min_sequence_number, self._least.get(bucket, 1 << 62))
        self._shifts: dict[Bucket, int] = {}
        self._rewritten: dict[str, list[ManifestEntry]] = {}  # by the name of the original file
        self.changes = changes
        """The changes, numbered for the last attempt."""

    @property
    def is_renumbered(self) -> bool:
        """Whether files were rewritten."""
        return bool(self._shifts)

    def after(self, latest: Snapshot | None) -> Changes:
        """The changes for a commit that follows `latest`; the same object as before if nothing differs.

        Raises `Conflict` where files must keep their names, by which a repeated commit is recognized.
        """
        if latest is None or self._base is None or not self._least:
            return self.changes
        greatest = self._committed.greatest(self._base, latest, self._least)
        # After a lost race there is room for the numbers of commits that are faster than rewriting once more.
        room = _ROOM if self._shifts else 0
        shifts = {
            bucket: greatest[bucket] + 1 + room - least
            for bucket, least in self._least.items()
            if greatest.get(bucket, -1) >= least + self._shifts.get(bucket, 0)
        }
        if not shifts:
            return self.changes
        if self._table.options.commit_discard_duplicate_files:
            raise Conflict(
                f"others have committed to {self._table.paths.root} since these rows were written, which must be newer "
                "than theirs; write the rows again ('commit.discard-duplicate-files' forbids to rewrite the files)"
            )
        self._shift(shifts)
        return self.changes

    def provider(self, provide: Callable[[Snapshot | None], Changes]) -> Callable[[Snapshot | None], Changes]:
        """A provider that calls `provide`, which may end the commit, and returns the numbered changes."""

        def numbered(latest: Snapshot | None) -> Changes:
            provide(latest)
            return self.after(latest)

        return numbered

    def discard(self) -> None:
        """Delete the rewritten files, which are not committed."""
        self._delete(e for entries in self._rewritten.values() for e in entries)
        self.changes, self._shifts, self._rewritten = self._original, {}, {}

    def settle(self, snapshot: Snapshot) -> None:
        """Delete the files that were rewritten: `snapshot` has committed the others."""
        self._committed.add(snapshot, self.changes.files)
        originals = (*self._original.files, *self._original.changelog)
        self._delete(e for e in originals if e.file.file_name in self._rewritten)

    def _delete(self, entries: Iterable[ManifestEntry]) -> None:
        for e in entries:
            for path in self._table.paths.data_file_and_companions(e.partition, e.bucket, e.file):
                delete_quietly(self._table.io, path)

    # -- files --------------------------------------------------------------------------------------------------------

    def _shift(self, shifts: dict[Bucket, int]) -> None:
        """Rewrite the original files of some buckets with numbers that are greater by `shifts`.

        What was rewritten for an earlier attempt is deleted. An error leaves no new files of this one.
        """
        work = [
            (e, shift, changelog)
            for entries, changelog in ((self._original.files, False), (self._original.changelog, True))
            for e in entries
            if e.kind is FileKind.ADD and (shift := shifts.get((e.partition, e.bucket))) is not None
        ]
        with ThreadPoolExecutor(min(len(work), os.cpu_count() or 1)) as pool:
            futures = [pool.submit(self._rewrite, *each) for each in work]
        failure = next((error for f in futures if (error := f.exception()) is not None), None)
        if failure is not None:
            self._delete(e for f in futures if f.exception() is None for e in f.result())
            raise failure
        for (original, _, _), future in zip(work, futures, strict=True):
            self._delete(self._rewritten.pop(original.file.file_name, ()))
            self._rewritten[original.file.file_name] = future.result()
        self._shifts |= shifts
        files, changelog = (
            [new for e in entries for new in self._rewritten.get(e.file.file_name, (e,))]
            for entries in (self._original.files, self._original.changelog)
        )
        self.changes = Changes(files, changelog, self._original.index)

    def _rewrite(self, entry: ManifestEntry, shift: int, changelog: bool) -> list[ManifestEntry]:
        table, file, place = self._table, entry.file, (entry.partition, entry.bucket)
        schema = table.schemas.schema(file.schema_id).with_options(table.schema.options)
        source = FileSource.APPEND if file.file_source is None else file.file_source
        settings = FileSettings.of(schema, table.options, file.level, source, changelog)
        names, directory = table.paths.data_file_names(), table.paths.bucket_directory(*place)
        writer = RollingWriter(table.io, directory, settings, names, clock=table.clock)
        reader = DataFileReader(table.io, table.schemas.schema, key_value_fields(schema))
        try:
            for batch in reader.read(file, table.paths.data_file(*place, file)):
                writer.write(_with_greater_numbers(batch, shift))
            return [replace(entry, file=f) for f in writer.close()]
        except BaseException:
            writer.abort()
            raise


def oldest_base(messages: Iterable[CommitMessage]) -> int | None:
    """The first of the snapshots that the numbers of `messages` continue; None if some continue none."""
    bases = [m.base for m in messages if m.data.new_files]
    known = [base for base in bases if base is not None]
    return min(known) if known and len(known) == len(bases) else None


def _greatest_of(entries: Iterable[ManifestEntry]) -> dict[Bucket, int]:
    greatest: dict[Bucket, int] = {}
    for e in entries:
        if e.kind is FileKind.ADD:
            bucket = e.partition, e.bucket
            greatest[bucket] = max(greatest.get(bucket, -1), e.file.max_sequence_number)
    return greatest


def _with_greater_numbers(batch: pa.RecordBatch, shift: int) -> pa.RecordBatch:
    at = batch.schema.get_field_index(SEQUENCE_NUMBER)
    return batch.set_column(at, batch.schema.field(at), pc.add(batch.column(at), shift))
