"""A copy of a store in another one, as of an instant: a backup, which a server takes up like any store.

An instant is the end of an object of the journal: what is copied is the journal up to there, as far as its newest
checkpoint needs it, and the objects that the metadata name there. All of these are created once and never changed, so a
later copy into the same store adds what is new. The journal is copied last and in order: a copy that was interrupted is
as of an earlier instant, or no store yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from forebay.base.ambient import SYSTEM_IDS, IdSource
from forebay.base.errors import Conflict, InvalidRequest, StorageFailure
from forebay.base.progress import OnProgress, no_progress
from forebay.fs.names import WRITER_SNAPSHOT_SUFFIX
from forebay.server.journal.copy_records import CopyRecord, copy_records, record_copy
from forebay.server.journal.store_instant import StoreInstant, at_once, instant_of, last_by
from forebay.store.journal import STORE_OBJECT, JournalObject, anchors, newest_object, object_name
from forebay.store.objects import ObjectMissing, ObjectStore, create_once

_READ_BYTES = 8 << 20


class StoreCopied(NamedTuple):
    """What was copied."""

    number: int
    """The object of the journal at whose end the copy is."""
    at_ms: int
    """When that object was created, in ms since 1970, by the clock of the server that wrote it."""
    objects: int
    bytes: int


def copy_store(
    source: ObjectStore,
    target: ObjectStore,
    at_ms: int | None = None,
    progress: OnProgress = no_progress,
    ids: IdSource = SYSTEM_IDS,
) -> StoreCopied:
    """Copy a store as of now, or as of `at_ms`: the last object of its journal that was created by then.

    The target is new, or has an earlier copy of the same store. `progress` is in objects. Raises `InvalidRequest` if
    the source has no journal, or does not reach back so far; `Conflict` if the target is not an earlier copy;
    `StorageFailure`, also if an object was deleted that is needed, and `CorruptData`.
    """
    try:
        return _copied(source, target, at_ms, progress, ids)
    except ObjectMissing as e:
        raise StorageFailure(
            f"{e.message}: it was deleted, as the store keeps what is not needed any more for 'store.retention' of its "
            "server, and a copy for what --keep says. That has to be longer than a copy takes, and longer than the "
            "time goes back"
        ) from e


def _copied(
    source: ObjectStore, target: ObjectStore, at_ms: int | None, progress: OnProgress, ids: IdSource
) -> StoreCopied:
    end = newest_object(source)
    if end is None:
        raise InvalidRequest(f"no server has written to the store {source.location} yet")
    instant = instant_of(source, end if at_ms is None else _last_by(source, end, at_ms))
    number = instant.last.footer.identity.number
    before = newest_object(target)
    if before is not None:
        _require_earlier_copy(source, target, instant, before)
    copied_until = 0 if before is None else before.footer.identity.number
    whole, known = _last_whole_copy(target)
    if whole == number:
        return StoreCopied(number, instant.last.index.last_ms, 0, 0)
    numbers = {*range(instant.first, number + 1), *anchors(number), *instant.fences}
    new = [object_name(each) for each in sorted(numbers) if each > copied_until]
    named = [name for name in instant.named if name not in known]
    doomed = [name for name in instant.doomed if name not in known]
    first = max(instant.first, copied_until + 1)
    record = CopyRecord(number, instant.last.index.last_ms, first, [*named, *doomed], is_whole=False)
    begun = record_copy(target, record, ids)
    copying = _Copying(source, target, progress, len(named) + len(doomed) + len(new) + 1)
    copying.upload(named, is_needed=True)
    copying.upload(doomed, is_needed=False)
    copying.create(new)
    copying.create([STORE_OBJECT])
    record_copy(target, record._replace(is_whole=True), ids)
    target.delete([begun])
    return StoreCopied(number, instant.last.index.last_ms, copying.objects, copying.bytes)


def _last_by(source: ObjectStore, end: JournalObject, at_ms: int) -> JournalObject:
    """The last object by then of a store, which may be a copy itself."""
    return last_by(source, end, at_ms, {each.number for each in copy_records(source).values() if each.is_whole})


def _last_whole_copy(target: ObjectStore) -> tuple[int, set[str]]:
    """The object of the journal at whose end the target is a whole copy, and the other objects that it has for sure.

    A copy that was interrupted behind it may have all of its journal and lack what is named there.
    """
    records = copy_records(target).values()
    for number in sorted({each.number for each in records if each.is_whole}, reverse=True):
        try:
            # Those that were doomed then may have been created later: they are doomed before they are created, too.
            return number, set(instant_of(target, JournalObject(target, number)).named)
        except ObjectMissing:
            continue  # it is being forgotten
    return 0, set()


def _require_earlier_copy(
    source: ObjectStore, target: ObjectStore, instant: StoreInstant, before: JournalObject
) -> None:
    """Raise `Conflict` unless what the target has was copied from the source."""
    number, identity = instant.last.footer.identity.number, before.footer.identity
    what = f"the store {target.location}, which is at object {identity.number} of its journal,"
    if identity.store_id != instant.last.footer.identity.store_id:
        raise Conflict(f"{what} is not a copy of {source.location}: choose a new one")
    if identity.number > number:
        raise Conflict(f"{what} has more than {source.location} had at that time, object {number}: choose a new one")
    try:
        is_same = JournalObject(source, identity.number).footer.seal == before.footer.seal
    except ObjectMissing:  # deleted since; the beginnings of epochs stay, and an epoch has one writer
        began = JournalObject(source, max(fence for fence in instant.fences if fence <= identity.number))
        is_same = began.footer.identity.writer == identity.writer
    if not is_same:
        raise Conflict(f"{what} has gone on as a store of its own: choose a new one")


class _Copying:
    """Copies objects, several at once."""

    def __init__(self, source: ObjectStore, target: ObjectStore, progress: OnProgress, total: int) -> None:
        self._source, self._target, self._progress, self._total = source, target, progress, total
        self.objects = self.bytes = 0

    def upload(self, names: Sequence[str], *, is_needed: bool) -> None:
        """Copy objects of any size, in any order; those that are not needed may be missing."""

        def copy(name: str) -> int | None:
            try:
                return self._upload(name)
            except ObjectMissing:
                if is_needed and not name.endswith(WRITER_SNAPSHOT_SUFFIX):
                    raise
                return None

        for size in at_once(copy, names):
            if size is not None:
                self._count(size)

    def _upload(self, name: str) -> int:
        part, size = self._source.read(name, 0, _READ_BYTES), 0

        def parts() -> Iterator[bytes]:
            nonlocal part, size
            while part:
                yield part
                size += len(part)
                part = self._source.read(name, size, size + _READ_BYTES)

        self._target.upload(name, parts())
        return size

    def create(self, names: Sequence[str]) -> None:
        """Copy objects of the journal, one after the other."""
        for name, content in zip(names, at_once(self._source.read, names), strict=True):
            if not create_once(self._target, name, content):
                raise Conflict(f"{self._target.location}/{name} has another content: choose a new store")
            self._count(len(content))

    def _count(self, size: int) -> None:
        self.objects += 1
        self.bytes += size
        self._progress(self.objects, self._total)
