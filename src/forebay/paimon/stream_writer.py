"""Exactly-once stream writes: commits are numbered, and can be repeated after any failure.

    with table.stream_writer(user="orders-job") as writer:
        done = writer.last_committed                 # where to resume after a restart; None at the very beginning
        for number, rows in batches_after(done):
            writer.append(rows)                      # in a table with a primary key: upsert, delete
            writer.commit(number)                    # without effect if the number is already committed

A job that must not read its source twice splits a commit in two, as Flink's checkpoints do. `prepare` closes the files
of all rows so far and returns messages, small and picklable, to be stored with the source position; `commit` makes them
visible. After a crash, `restore` takes all stored messages, and commits those that are not committed yet.

If a commit fails, its work is kept, and `commit` with the same number retries it. Files are deleted only if they are
known not to be committed and were not handed to another writer. `Table.remove_orphan_files` finds the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from forebay.api.data import Rows
from forebay.api.keys import key_rows
from forebay.base.errors import Conflict, InvalidRequest, NotFound
from forebay.paimon.commit.committer import Committable, FileStoreCommit
from forebay.paimon.compact.precommit import precommit
from forebay.paimon.format.commit_message import CommitMessage, CompactIncrement, DataIncrement
from forebay.paimon.format.snapshot import BATCH_COMMIT_IDENTIFIER, Snapshot
from forebay.paimon.maintain.maintenance import Maintenance
from forebay.paimon.store.context import TableContext
from forebay.paimon.write.table_write import TableWrite


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Work that is being committed: this writer's `own`, whose messages other writers may have (`is_handed_out`)."""

    work: Committable
    own: bool
    is_handed_out: bool
    is_unknown: bool = False

    @property
    def is_private(self) -> bool:
        """Whether its files are unneeded unless this writer commits them."""
        return self.own and not self.is_handed_out and not self.is_unknown


class WritableTable(Protocol):
    """The part of `Table` that its stream writer uses."""

    name: str
    context: TableContext

    def new_write(self) -> TableWrite: ...

    def new_commit(self, user: str) -> FileStoreCommit: ...

    def maintenance(self) -> Maintenance: ...

    def compact(self, full: bool = False, partitions: Any = None, *, expire: bool = True) -> Snapshot | None: ...


class StreamWriter:
    """Writes a table as one user; created by `Table.stream_writer`. Not thread-safe.

    After an error while writing rows, or in `prepare`, some rows are lost: call `abort`, and write all rows since the
    last commit again. The schema and bucket count are those of when the table was opened: if a commit raises `Conflict`
    because the table was rescaled, reopen the table and create a new writer.
    """

    def __init__(self, table: WritableTable, user: str) -> None:
        """`user` identifies the stream across restarts; two writers of one user must not run at the same time."""
        if not user:
            raise InvalidRequest("a stream writer needs a user: the name by which it finds its commits after a restart")
        self.user = user
        self._table = table
        self._committer: FileStoreCommit = table.new_commit(user)
        self._write: TableWrite | None = None
        self._unprepared = False
        self._is_broken = self._is_stale = False
        self._has_handed_over = False
        self._last_seen: int | None = None  # the last committed number when a writer without commits prepared
        self._pending: list[CommitMessage] | None = None  # prepared; None if `prepare` was not called
        self._attempt: _Attempt | None = None
        self._last: int | None = None

    # -- rows ---------------------------------------------------------------------------------------------------------

    @property
    def has_primary_key(self) -> bool:
        """Whether the table has a primary key, by which rows are replaced."""
        return self._table.context.schema.has_primary_key

    def append(self, data: Rows) -> int:
        """Add rows like `Table.append`, visible after the commit; return their number."""
        self._require_key(False)
        return self._written(lambda w: w.write(data))

    def upsert(self, data: Rows, columns: Sequence[str] | str | None = None, *, missing: str = "error") -> int:
        """Insert or update rows like `Table.upsert`, visible after the commit; return their number."""
        self._require_key(True)
        return self._written(lambda w: w.upsert(data, columns, missing))

    def delete(self, keys: Any) -> int:
        """Delete rows like `Table.delete`, effective after the commit; return the number of keys."""
        self._require_key(True)
        return self._written(
            lambda w: w.delete(key_rows(keys, self._table.context.schema.primary_keys, self._table.name))
        )

    def write_changes(self, data: Rows) -> int:
        """Write changes like `Table.write_changes`, visible after the commit; return their number."""
        return self._written(lambda w: w.write_changes(data))

    def _require_key(self, has: bool) -> None:
        if has is not self.has_primary_key:
            hint = "has no primary key by which to find rows: use append" if has else "has a primary key: use upsert"
            raise InvalidRequest(f"table {self._table.name} {hint}")

    def _written(self, act: Callable[[TableWrite], int]) -> int:
        self._check_whole()
        if self._is_stale and not self._unprepared and self._is_settled:
            self._drop_write()
        if self._write is None:
            self._write = self._table.new_write()
        self._unprepared = self._is_broken = True
        result = act(self._write)
        self._is_broken = False
        return result

    def _check_whole(self) -> None:
        if self._is_broken:
            raise InvalidRequest(
                "a write of this stream writer failed, so its rows are not complete: abort it, and write again what "
                "came after the last commit"
            )

    # -- commits ------------------------------------------------------------------------------------------------------

    @property
    def last_committed(self) -> int | None:
        """The last number that this user committed; None if the user has no snapshot (any longer: see `commit`)."""
        snapshot = self._committer.snapshots.latest_of_user(self.user)
        return None if snapshot is None else snapshot.commit_identifier

    def prepare(self, *, hand_over: bool = False) -> list[CommitMessage]:
        """Close the files of all rows so far; return the commit messages, one per bucket written to.

        The next `commit` commits them. Writing may continue; later rows belong to the commit after it. With
        `hand_over`, another writer of this stream commits them, and this writer is no longer responsible for them.
        """
        messages = self._prepared()
        if hand_over:
            self._has_handed_over = True
        else:
            if self._pending is None and self._last is None:
                self._last_seen = self.last_committed
            self._pending = [*(self._pending or ()), *messages]
        return messages

    def commit(
        self,
        identifier: int,
        messages: Iterable[CommitMessage] | None = None,
        *,
        watermark: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> list[Snapshot]:
        """Commit as number `identifier`, once; return the new snapshots, none if the number is already committed,
        except for that of its compaction, if the process that committed it was killed before.

        Without `messages` (of other writers of this stream), everything prepared since the last commit is committed, or
        everything written if `prepare` was not called. Numbers must increase from commit to commit. A committed number
        is recognized as long as one of this user's snapshots exists.

        After `Conflict` nothing is committed; after other errors the outcome is unknown. In both cases retry the commit
        with the same number, or call `abort`, before committing another number.
        """
        self._check_whole()
        if not 0 <= identifier < BATCH_COMMIT_IDENTIFIER:
            raise InvalidRequest(f"commits are numbered from 0 to {BATCH_COMMIT_IDENTIFIER - 1}, got {identifier}")
        if self._attempt is None:
            work = None if messages is None else tuple(messages)
            if self._last is not None and identifier <= self._last:
                if work is None and (self._pending or self._unprepared):
                    raise InvalidRequest(
                        f"numbers of commits must grow: got {identifier}, {self._last} is committed already"
                    )
                return []
            is_handed_out = work is not None or self._pending is not None
            committable = Committable(identifier, self._work(work), watermark, properties)
            self._attempt = _Attempt(committable, work is None, is_handed_out)
        elif identifier != self._attempt.work.identifier:
            raise InvalidRequest(
                f"commit {self._attempt.work.identifier} failed, and must be repeated, or the writer aborted, before "
                f"commit {identifier}"
            )
        messages = self._attempt.work.messages
        snapshots = self._run(self._attempt)
        self._attempt, self._last = None, identifier
        if not snapshots:  # not before the attempt has ended: its own compaction must not be committed any more
            snapshots = self._compact_left({m.partition for m in messages})
        if snapshots:
            self._table.maintenance().after_commit()
        return snapshots

    def restore(self, prepared: Mapping[int, Sequence[CommitMessage]]) -> list[Snapshot]:
        """Commit the work prepared before a restart, by number, unless already committed; return the snapshots.

        Call it before anything is written. Raises `NotFound` if files that must be committed no longer exist.
        """
        if self._write is not None or self._attempt is not None:
            raise InvalidRequest("restore a stream writer before anything is written with it")
        works = [Committable(number, tuple(prepared[number])) for number in sorted(prepared)]
        snapshots: list[Snapshot] = []
        for work in self._committer.filter_committed(works):
            self._check_files(work)
            snapshots += self.commit(work.identifier, work.messages)
        return snapshots

    def _check_files(self, work: Committable) -> None:
        paths, io = self._committer.paths, self._committer.io
        for m in work.messages:
            for file in (*m.data.new_files, *m.data.changelog_files):
                path = paths.data_file(m.partition, m.bucket, file)
                if not io.exists(path):
                    raise NotFound(
                        f"commit {work.identifier} of user {self.user} cannot be restored: {path} is gone (removed as "
                        "an orphan?); write its rows again"
                    )

    def _work(self, messages: tuple[CommitMessage, ...] | None) -> tuple[CommitMessage, ...]:
        """The messages of the next commit, which are then no longer pending."""
        if messages is not None:
            self._pending = [m for m in self._pending or () if m not in messages] or None
            return messages
        pending = self._pending if self._pending is not None else self._prepared()
        self._pending = None
        return tuple(pending)

    def _run(self, attempt: _Attempt) -> list[Snapshot]:
        """Commit the rows once, then the compaction. A compaction that conflicts with another is dropped."""
        work = attempt.work
        rows = tuple(replace(m, compact=CompactIncrement()) for m in work.messages)
        compacted = [replace(m, data=DataIncrement()) for m in work.messages if not m.compact.is_empty]
        try:
            snapshots = self._committer.filter_and_commit([replace(work, messages=rows)])
            if self._committer.renumbered:
                self._forget()
            is_repeated = not snapshots and any(not m.is_empty for m in rows)
            if is_repeated and not attempt.is_unknown:  # committed before the restart
                self._forget()
                if attempt.is_private:
                    self._committer.abort(work.messages)
                return snapshots
            if compacted:
                snapshots += self._compact(attempt, compacted)
        except BaseException as e:
            if not isinstance(e, Conflict):
                self._attempt = replace(attempt, is_unknown=True)
                self._forget()
            raise
        return snapshots

    def _compact(self, attempt: _Attempt, compacted: list[CommitMessage]) -> list[Snapshot]:
        try:
            return self._committer.commit(compacted, attempt.work.identifier)
        except Conflict:
            self._forget()
            if attempt.is_private:
                self._committer.abort(compacted)
            return []

    def _compact_left(self, partitions: Collection[bytes]) -> list[Snapshot]:
        """Compact, where readers of rows or changes wait for it, what a process that was killed between the commits of
        its rows and of their compaction has left."""
        options = self._table.context.options
        if not partitions or options.write_only or not (self.has_primary_key and options.needs_lookup):
            return []
        try:
            snapshot = self._table.compact(partitions=partitions.__contains__, expire=False)
        except (Conflict, NotFound):  # another job does it
            return []
        return [] if snapshot is None else [snapshot]

    # -- parts --------------------------------------------------------------------------------------------------------

    def _prepared(self) -> list[CommitMessage]:
        """The messages of all rows that have none yet."""
        self._check_whole()
        if self._write is None or not self._unprepared:
            return []
        self._is_broken = True
        messages = self._write.prepare_commit()
        if self._table.context.options.precommit_compact and not self._table.context.schema.has_primary_key:
            messages = precommit(self._table.context, messages)
        self._unprepared = self._is_broken = False
        return messages

    @property
    def _is_settled(self) -> bool:
        """Whether everything prepared is committed, so that the writer may reload the state of the table."""
        return not self._pending and not self._has_handed_over

    def _forget(self) -> None:
        """Reload the state when everything is committed: the known state of the buckets' files is outdated."""
        if self._write is not None:
            self._write.stop_compacting()
            self._is_stale = True

    def _drop_write(self) -> None:
        if self._write is not None:
            self._write.close()
        self._write, self._is_stale = None, False

    def abort(self) -> None:
        """Discard everything uncommitted and delete its files, except for a commit whose outcome is unknown.

        The writer can be used again, from the last commit on. Prepared work can no longer be restored.
        """
        if self._pending and self.last_committed == (self._last if self._last is not None else self._last_seen):
            self._committer.abort(self._pending)  # no other writer can have committed it
        self._pending = None
        if self._attempt is not None and self._attempt.own and not self._attempt.is_unknown:
            self._committer.abort(self._attempt.work.messages)
            self._attempt = None
        self.close()

    def close(self) -> None:
        """Discard uncommitted rows and delete their files. What `prepare` returned stays, for `restore`."""
        self._drop_write()
        if self._attempt is not None and self._attempt.is_private:
            self._committer.abort(self._attempt.work.messages)
        self._attempt = self._pending = self._last = None
        self._unprepared = self._is_broken = False

    def __enter__(self) -> StreamWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
