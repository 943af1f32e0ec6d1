"""Becoming the writer of a store's journal: with a new data directory, or with one that has written to it before.

A fence has to be the object after the last one that was read (`forebay.store.journal`), so reading and fencing are one
loop. A server that creates objects faster than they are read is asked to end.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from forebay.base.ambient import Clock, IdSource
from forebay.base.errors import Conflict
from forebay.fs.interface import FileSystem
from forebay.log.checkpoints import DataDirectory
from forebay.log.config import LogConfig
from forebay.server.journal.follower import JournalFollower
from forebay.server.journal.journal_state import JournalState, read_journal_state, write_journal_state
from forebay.server.journal.loss import loss_before, write_loss
from forebay.server.metadata_store import DatabaseFile, LocalDatabaseFile, commits_told
from forebay.store.journal import JournalCursor, JournalObject, JournalWriter, open_journal
from forebay.store.journal_format import (
    EpochBegan,
    JournalCheckpoint,
    LogCut,
    LogGrew,
    MetadataChanged,
    decode_statements,
)
from forebay.store.objects import ObjectStore

_LOGGER = logging.getLogger(__name__)

_RACES_MAX = 3
"""After so many objects that were created before a fence could be, the other server is asked to end."""

_WRITERS_MAX = 1000
"""Starts without success, of which no more are remembered."""


@dataclass
class TakenStore:
    """A store whose writer this server is."""

    writer: JournalWriter
    state: JournalState
    """Where the journal was. What it has behind that is this directory's own."""
    fences: list[int] = field(default_factory=list)
    """Numbers of the fences that were read, and may not be in the metadata."""
    commits: int = 0
    """`MetadataStore.journal_commits` that the metadata of the data directory has at least, if they were not put back
    from a copy."""


def take_over(
    store: ObjectStore,
    fs: FileSystem,
    directory: DataDirectory,
    began: EpochBegan,
    *,
    log_config: LogConfig,
    clock: Clock,
    ids: IdSource,
    database_file: Callable[[str], DatabaseFile] = LocalDatabaseFile,
) -> TakenStore:
    """Make the data directory what the journal says, and become its writer, in an epoch that begins with `began`.

    Raises `Conflict` if the directory is of a server without a store, of another store, or of a server from which
    another one has taken over; `CorruptData` and `StorageFailure`.
    """
    store_id = open_journal(store, ids=ids)
    writer_id = bytes.fromhex(ids.token_hex())
    state = read_journal_state(fs, directory.path)
    if state is None:
        follower = JournalFollower(
            fs, directory, store, store_id, log_config=log_config, clock=clock, database_file=database_file
        )
        return _in_new_directory(follower, fs, directory.path, began, writer_id, clock)
    if state.store != store_id.hex():
        raise Conflict(
            f"the data directory {directory.path} belongs to another store, {state.store}, and not to "
            f"{store.location}: give that one, or a new directory"
        )
    return _again(store, state, fs, directory.path, began, writer_id, clock)


def _in_new_directory(
    follower: JournalFollower, fs: FileSystem, data_dir: str, began: EpochBegan, writer_id: bytes, clock: Clock
) -> TakenStore:
    writer = _fenced(follower.cursor, began, writer_id, clock, follower.follow)
    return TakenStore(writer, _of_writer(follower, writer, fs, data_dir, writer_id), follower.fences)


def fence_once(
    follower: JournalFollower, fs: FileSystem, data_dir: str, began: EpochBegan, clock: Clock, ids: IdSource
) -> bool:
    """Make the directory of a follower the one of the journal's writer, unless there is an object that it has not read.

    Returns whether it is; the follower is at its end then, and `take_over` goes on in the directory. Raises
    `StorageFailure` if that is not known.
    """
    writer_id = bytes.fromhex(ids.token_hex())
    writer = follower.cursor.fence(began, writer_id, clock)
    if writer is not None:
        _of_writer(follower, writer, fs, data_dir, writer_id)
    return writer is not None


def _of_writer(
    follower: JournalFollower, writer: JournalWriter, fs: FileSystem, data_dir: str, writer_id: bytes
) -> JournalState:
    """Make the directory of a follower the one of this writer."""
    cursor = follower.cursor
    where = cursor.store.location
    if cursor.number:
        _LOGGER.info("the data directory is at object %d of the journal in %s", cursor.number, where)
        loss = loss_before(cursor.store, writer.number, follower.all_fences(), follower.ends)
        if loss is not None:
            write_loss(fs, data_dir, loss)
            _LOGGER.warning(
                "%s was not stopped, and what it acknowledged from %s on may be missing: `forebay verify --data-dir "
                "%s` lists where each log ends", loss.holder, loss.since, data_dir,
            )  # fmt: skip
        follower.finish(f"the data directory was made from the journal in {where}")
    state = JournalState(
        cursor.store_id.hex(), writer.number, writer.seal, writer.epoch, [writer_id.hex()], dict(follower.ends),
        follower.needed_from, follower.deleted_until,
    )  # fmt: skip
    write_journal_state(fs, data_dir, state)
    follower.forget()
    return state


def _again(
    store: ObjectStore,
    state: JournalState,
    fs: FileSystem,
    data_dir: str,
    began: EpochBegan,
    writer_id: bytes,
    clock: Clock,
) -> TakenStore:
    """Become the writer again, unless another server has taken over."""
    cursor = JournalCursor(store, bytes.fromhex(state.store), state.number, state.seal, state.epoch)
    cursor.require_place()
    fences: list[int] = []
    commits = 0

    def catch_up() -> None:
        nonlocal commits
        for found in _own_objects(cursor, state, data_dir):
            for each in found.index.entries:
                match each.entry:
                    case LogGrew(bucket, _, end) | LogCut(bucket, end):
                        state.ends[bucket] = end
                    case EpochBegan():
                        fences.append(cursor.number)
                    case JournalCheckpoint(_, needed_from, deleted_until):
                        state.needed_from, state.deleted_until = needed_from, deleted_until
                    case MetadataChanged():
                        commits = max(commits, commits_told(decode_statements(found.payload(each))))
                    case _:
                        pass
        if writer_id.hex() not in state.writers:
            # Remembered before it writes: its fence must not be taken for another server's after a crash.
            state.writers = [*state.writers[-_WRITERS_MAX:], writer_id.hex()]
            write_journal_state(fs, data_dir, state)

    writer = _fenced(cursor, began, writer_id, clock, catch_up)
    return TakenStore(writer, state, fences, commits)


def _fenced(
    cursor: JournalCursor, began: EpochBegan, writer_id: bytes, clock: Clock, catch_up: Callable[[], object]
) -> JournalWriter:
    """Become the journal's writer. `catch_up` moves the cursor to the last object."""
    for races_lost in itertools.count():
        catch_up()
        writer = cursor.fence(began, writer_id, clock)
        if writer is not None:
            if races_lost >= _RACES_MAX:
                cursor.forget_takeover()
            return writer
        if (races_lost + 1) % _RACES_MAX == 0:
            _LOGGER.info("asking the server that writes to %s to end", cursor.store.location)
            cursor.request_takeover()
    raise AssertionError("unreachable")


def _own_objects(cursor: JournalCursor, state: JournalState, data_dir: str) -> Iterator[JournalObject]:
    """What the store got since the state was saved, all by this data directory. Raises `Conflict` for another's.

    `number` stays in the state: what was read is known for good when the metadata have it.
    """
    while (found := cursor.next()) is not None:
        if found.footer.identity.writer.hex() not in state.writers:
            raise Conflict(
                f"another server has taken over the store {cursor.store.location} (object {cursor.number} of "
                f"its journal), and {data_dir} may have what the store lacks. Start with a new data "
                "directory, which is made from the store"
            )
        yield found
