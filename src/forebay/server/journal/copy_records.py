"""What was copied into a store when, so that a copy of a store need not grow for ever.

Each copy leaves a record of the objects that it brings, and another one when it has brought them. An object that an
earlier copy brought, and that is not needed at a later instant, is needed at none after it: an object is in the list of
what will be deleted before it is created, and until it is named by the metadata, and again when it is not any more
(`MetadataStore.doomed_objects`). So an object that was there once, and is in neither list now, is gone. Records are
found by a listing; one that a listing lacks keeps its objects until the next time.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import NamedTuple

from forebay.base.ambient import SYSTEM_IDS, IdSource
from forebay.base.errors import CorruptData
from forebay.base.progress import OnProgress, no_progress
from forebay.server.journal.store_instant import StoreInstant, instant_of
from forebay.store.journal import JournalObject, is_anchor, object_name
from forebay.store.objects import ObjectMissing, ObjectStore

_PREFIX = "copies/"
_DELETED_AT_ONCE = 1000


class CopyRecord(NamedTuple):
    """One copy; or several ones, of which this is the last."""

    number: int
    """The object of the journal at whose end the copy is."""
    at_ms: int
    """When that object was created, in ms since 1970."""
    first: int
    """The copy brought no object of the journal with a lower number, beside anchors and beginnings of epochs."""
    names: Sequence[str]
    """The objects that it brought, beside those of the journal."""
    is_whole: bool
    """Whether it came to its end; else it was interrupted, or is under way, and some objects may be missing."""


class CopiesForgotten(NamedTuple):
    """What was deleted."""

    since_ms: int
    """The copy is as of this time, in ms since 1970, and of later ones."""
    objects: int


def record_copy(target: ObjectStore, record: CopyRecord, ids: IdSource = SYSTEM_IDS) -> str:
    """Add a record, before anything is copied and when everything is; return the name of its object."""
    document = json.dumps({**record._asdict(), "names": list(record.names)})
    name = f"{_PREFIX}{record.number:020d}-{ids.token_hex()}"
    target.create(name, document.encode())
    return name


def forget_copies(
    target: ObjectStore, until_ms: int, progress: OnProgress = no_progress, ids: IdSource = SYSTEM_IDS
) -> CopiesForgotten | None:
    """Delete what only instants need that are before the newest copy that was made by `until_ms`.

    None if no copy is that old. `target`: what `copy_store` has copied to, and no server has used. `progress` is in
    objects. Raises `StorageFailure` and `CorruptData`. If it is interrupted, the next call continues.
    """
    records = copy_records(target)
    oldest = _oldest_that_stays(target, records.values(), until_ms)
    if oldest is None:
        return None
    record, instant = oldest
    merged = {place: each for place, each in records.items() if each.number <= record.number}
    names = {name for each in merged.values() for name in each.names}
    needed = names.intersection((*instant.named, *instant.doomed))
    first = min(each.first for each in merged.values())
    unneeded = [
        *sorted(names - needed),
        *(object_name(n) for n in range(first, instant.first) if not is_anchor(n) and n not in instant.fences),
    ]
    for done in range(0, len(unneeded), _DELETED_AT_ONCE):
        target.delete(unneeded[done : done + _DELETED_AT_ONCE])
        progress(min(done + _DELETED_AT_ONCE, len(unneeded)), len(unneeded))
    if unneeded:
        record_copy(target, record._replace(first=instant.first, names=sorted(needed)), ids)
        target.delete(merged)
    return CopiesForgotten(record.at_ms, len(unneeded))


def _oldest_that_stays(
    target: ObjectStore, records: Collection[CopyRecord], until_ms: int
) -> tuple[CopyRecord, StoreInstant] | None:
    for record in sorted(records, reverse=True):
        if record.is_whole and record.at_ms <= until_ms:
            try:
                return record, instant_of(target, JournalObject(target, record.number))
            except ObjectMissing:
                continue  # a call that was interrupted has begun to forget it
    return None


def copy_records(target: ObjectStore) -> dict[str, CopyRecord]:
    """All records, by the names of their objects."""
    found = {}
    for entry in target.list(_PREFIX):
        try:
            data = target.read(entry.name)
        except ObjectMissing:
            continue
        try:
            found[entry.name] = CopyRecord(**json.loads(data))
        except (ValueError, TypeError) as e:
            raise CorruptData(
                f"{target.location}/{entry.name} does not describe a copy: {data[:200]!r}. Delete it: then the objects "
                "that this copy brought stay"
            ) from e
    return found
