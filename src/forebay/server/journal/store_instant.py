"""A store as of an instant: the end of an object of its journal, and what a server needs there."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple, TypeVar

from forebay.base import threads
from forebay.base.errors import InvalidRequest
from forebay.log.remote import RemoteLogSegment
from forebay.server.journal.skimming import replay_metadata
from forebay.server.remote_log.manifest import tablet_of_manifest
from forebay.store.journal import JournalObject, anchors, newest_checkpoint
from forebay.store.journal_format import EpochBegan, JournalCheckpoint
from forebay.store.objects import ObjectMissing, ObjectStore

A = TypeVar("A")
R = TypeVar("R")

_AT_ONCE = 8


class StoreInstant(NamedTuple):
    """A store at the end of an object of its journal."""

    last: JournalObject
    first: int
    """From this object on the journal is needed."""
    named: list[str]
    """Objects that are needed, beside the journal."""
    doomed: list[str]
    """Those that are not any more, but may have been at the checkpoint; some were deleted."""
    fences: set[int]


def last_by(store: ObjectStore, end: JournalObject, at_ms: int, copies: Collection[int] = ()) -> JournalObject:
    """The last object that was created by that time. Raises `InvalidRequest`, and `ObjectMissing` if it is gone.

    `copies`: in a store that is a copy of another one, the objects at whose ends it was copied. What the other one had
    deleted before the next copy is missing there; then it is the last object before that.
    """
    number = end.footer.identity.number
    if end.index.last_ms <= at_ms:
        return end
    for start in (*sorted({*anchors(number), *copies}, reverse=True), 0):
        found, number = None, start
        try:
            if start and (found := JournalObject(store, start)).index.last_ms > at_ms:
                continue
            while (following := JournalObject(store, number + 1)).index.last_ms <= at_ms:
                found, number = following, number + 1
        except ObjectMissing:
            if not copies:
                raise
            if start not in copies:
                continue  # an anchor, which stays alone
        if found is not None:
            return found
    raise InvalidRequest(f"the store {store.location} is younger than that time")


def instant_of(store: ObjectStore, last: JournalObject) -> StoreInstant:
    """The store at the end of this object. Raises `ObjectMissing` if objects that it needs are gone."""
    number = last.footer.identity.number
    checkpoint = newest_checkpoint(store, number) or JournalCheckpoint(1, 1, 1)
    fences: set[int] = set()
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as sql:
        for found in at_once(partial(JournalObject, store), range(checkpoint.image, number + 1)):
            replay_metadata(sql, found)
            if any(isinstance(each.entry, EpochBegan) for each in found.index.entries):
                fences.add(found.footer.identity.number)
        if not sql.execute("SELECT name FROM sqlite_master").fetchall():  # it ends before the first image
            return StoreInstant(last, checkpoint.first, [], [], fences)
        fences.update(each for (each,) in sql.execute("SELECT number FROM journal_fences"))
        doomed = [name for (name,) in sql.execute("SELECT name FROM doomed_objects")]
        return StoreInstant(last, checkpoint.first, list(_named(sql)), doomed, fences)


def _named(sql: sqlite3.Connection) -> Iterator[str]:
    """The objects that the metadata name, beside those of the journal."""
    yield from (name for (name,) in sql.execute("SELECT manifest FROM remote_logs WHERE manifest <> ''"))
    for manifest, *segment in sql.execute(
        "SELECT manifest, segment_id, start_offset, remote_segments.end_offset, max_timestamp_ms, size_bytes "
        "FROM remote_segments JOIN remote_logs USING (table_id, partition_id, bucket)"
    ):
        yield from RemoteLogSegment(*segment).objects(tablet_of_manifest(manifest))
    for (files,) in sql.execute("SELECT files FROM state_snapshots"):
        yield from (name for _, name in json.loads(files))
    for (files,) in sql.execute("SELECT files FROM kv_snapshots"):
        yield from (name for _, name, _ in json.loads(files))


def at_once(call: Callable[[A], R], arguments: Sequence[A]) -> Iterator[R]:
    """The results of calls, in order, some of which are made ahead."""
    pool = threads.executor(_AT_ONCE, "forebay-store-copy")
    try:
        for first in range(0, len(arguments), _AT_ONCE):
            for made in [pool.submit(call, each) for each in arguments[first : first + _AT_ONCE]]:
                yield made.result()
    finally:
        pool.shutdown(wait=True)
