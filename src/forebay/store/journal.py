"""The journal of a store: a chain of numbered objects, read by anyone, and written by the server that fenced it last.

Nouns: a *cursor* is a place in a journal, behind the objects that were read. A *fence* is the first object of an epoch:
whoever creates it is the writer from then on. Earlier writers find their next number taken, and are *fenced*
(docs/design/0020-the-store-is-the-home.md, docs/format/journal.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from forebay.base.ambient import SYSTEM_CLOCK, SYSTEM_IDS, Clock, IdSource
from forebay.base.errors import Conflict, CorruptData, ErrorCode, StorageFailure, Unavailable, UnsupportedOperation
from forebay.store.journal_format import (
    FOOTER_BYTES,
    FORMAT_VERSION,
    Entry,
    EpochBegan,
    Footer,
    Identity,
    Index,
    IndexedEntry,
    JournalCheckpoint,
    decode_footer,
    decode_index,
    decode_payload,
    encode_object,
)
from forebay.store.objects import ObjectMissing, ObjectStore, create_once

if TYPE_CHECKING:
    from typing_extensions import Buffer

STORE_OBJECT = "store.json"

ANCHOR_EVERY = 1024
"""Objects with multiples of this number stay for ever."""

_END_BYTES = 64 << 10
"""How much of an object's end is read at first: the footer, and nearly always the whole index."""


class Fenced(Unavailable):
    """Another server has taken the store over. This one must not acknowledge anything more."""

    default_code = ErrorCode.NOT_LEADER_OR_FOLLOWER


def object_name(number: int) -> str:
    """The name of the journal's object with this number."""
    return f"journal/{number:020d}"


def _takeover_name(epoch: int) -> str:
    return f"takeover/{epoch:020d}"


def is_anchor(number: int) -> bool:
    """Whether the object with this number is an anchor."""
    return number % ANCHOR_EVERY == 0


def anchors(until: int) -> range:
    """The numbers of all anchors up to `until`."""
    return range(ANCHOR_EVERY, until + 1, ANCHOR_EVERY)


def anchor_from(number: int) -> int:
    """The lowest number of an anchor at or above `number`."""
    return -(-number // ANCHOR_EVERY) * ANCHOR_EVERY


def _exists(store: ObjectStore, number: int) -> bool:
    try:
        store.read(object_name(number), -1)
    except ObjectMissing:
        return False
    return True


class JournalGone(StorageFailure):
    """Objects that a reader needs were deleted: its place in the journal is too old."""


def open_journal(store: ObjectStore, *, ids: IdSource = SYSTEM_IDS) -> bytes:
    """The id of the store, which is made if the store is new.

    Raises `CorruptData` if the store is not one of ours, `UnsupportedOperation` for one of a newer version.
    """
    document = json.dumps({"format": FORMAT_VERSION, "store": ids.token_hex()})
    store.create(STORE_OBJECT, document.encode())
    data = store.read(STORE_OBJECT)
    try:
        found = json.loads(data)
        version, store_id = int(found["format"]), bytes.fromhex(found["store"])
    except (ValueError, KeyError, TypeError) as e:
        raise CorruptData(
            f"{store.location}/{STORE_OBJECT} does not describe a store of Forebay: {data[:200]!r}"
        ) from e
    if version != FORMAT_VERSION:
        raise UnsupportedOperation(
            f"the store {store.location} has format {version}, this version of Forebay knows format {FORMAT_VERSION}; "
            "use the version that wrote it"
        )
    return store_id


def _highest(exists: Callable[[int], bool]) -> int:
    """The highest number that exists, of those from 1 on without a gap; 0 if there is none."""
    high = 1
    while exists(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if exists(middle) else (low, middle)
    return low


def newest_object(store: ObjectStore) -> JournalObject | None:
    """The last object of the journal; None if it has none. Makes about two requests for each doubling, too."""
    number = last_number(store, _highest(lambda place: _exists(store, place * ANCHOR_EVERY)) * ANCHOR_EVERY)
    return JournalObject(store, number) if number else None


def last_number(store: ObjectStore, number: int) -> int:
    """The number of the last object, behind `number`, which is there. Makes about two requests for each doubling."""
    return number + _highest(lambda place: _exists(store, number + place))


def newest_checkpoint(store: ObjectStore, until: int | None = None) -> JournalCheckpoint | None:
    """The checkpoint of the newest anchor that has one; None if no anchor does: the journal is read from its start.

    With `until` only anchors up to this number count. Makes about two requests for each doubling of the number of
    anchors.
    """
    low = _highest(lambda place: _exists(store, place * ANCHOR_EVERY)) if until is None else until // ANCHOR_EVERY
    for place in range(low, 0, -1):
        for each in JournalObject(store, place * ANCHOR_EVERY).index.entries:
            if isinstance(each.entry, JournalCheckpoint):
                return each.entry
    return None


class JournalObject:
    """An object of a journal, read in parts: first what it has, then the payloads that are asked for."""

    def __init__(self, store: ObjectStore, number: int) -> None:
        """Raises `ObjectMissing`, and `CorruptData` if the end of the object is damaged."""
        self.name = object_name(number)
        self._store = store
        self._loaded: dict[int, Buffer] = {}
        """Payloads as they are stored, by their positions."""
        self._end = store.read(self.name, -_END_BYTES)
        self.footer: Footer = decode_footer(self._end, self._shown)
        if self.footer.identity.number != number:
            raise CorruptData(f"{self._shown} has the content of object {self.footer.identity.number}")

    @property
    def _shown(self) -> str:
        return f"{self._store.location}/{self.name}"

    @cached_property
    def index(self) -> Index:
        """What it has. Raises `CorruptData`."""
        stored = self._stored(self.footer.index_position, self.footer.index_stored_bytes)
        return decode_index(stored, self.footer, self._shown)

    def payload(self, of: IndexedEntry) -> bytes:
        """The bytes of an entry; none if it has no payload. Raises `CorruptData`."""
        if of.payload is None:
            return b""
        stored: Buffer | None = self._loaded.get(of.payload.position)
        if not of.payload.stored_bytes:  # that of an empty file, which is where the next payload is, too
            stored = b""
        if stored is None:
            stored = self._stored(of.payload.position, of.payload.stored_bytes)
        return decode_payload(stored, of.payload, self._shown)

    def load(self, wants: Callable[[Entry], bool]) -> None:
        """Read the payloads of these entries at once. Raises `ObjectMissing`, and `CorruptData` for its index."""
        places = [each.payload for each in self.index.entries if each.payload is not None and wants(each.entry)]
        if not places:
            return
        first = min(place.position for place in places)
        size = max(place.position + place.stored_bytes for place in places) - first
        data = memoryview(self._stored(first, size))
        for place in places:
            at = place.position - first
            self._loaded[place.position] = data[at : at + place.stored_bytes]

    def _stored(self, position: int, size: int) -> Buffer:
        """A range of the object, which needs a request if it is not in what was read at first."""
        end_position = self.footer.index_position + self.footer.index_stored_bytes + FOOTER_BYTES - len(self._end)
        if position < end_position:
            return self._store.read(self.name, position, position + size)
        return memoryview(self._end)[position - end_position : position - end_position + size]


class JournalCursor:
    """A place in a journal: all objects up to `number` were read. One thread."""

    def __init__(self, store: ObjectStore, store_id: bytes, number: int = 0, seal: int = 0, epoch: int = 0) -> None:
        """`number`, `seal` and `epoch` are those of the last object that was read; 0 before the first one."""
        self.store, self.store_id = store, store_id
        self.read_object: Callable[[int], JournalObject] = partial(JournalObject, store)
        """How an object is read; by who reads ahead, it may be there already."""
        self.number, self.seal, self.epoch = number, seal, epoch

    @classmethod
    def behind(cls, found: JournalObject, store: ObjectStore, store_id: bytes) -> JournalCursor:
        """A cursor behind an object. Raises `CorruptData` if the object is of another store."""
        identity = found.footer.identity
        if identity.store_id != store_id:
            raise CorruptData(f"{store.location}/{found.name} is of another store")
        return cls(store, store_id, identity.number, found.footer.seal, identity.epoch)

    def next(self) -> JournalObject | None:
        """The next object, behind which the cursor stands then; None if there is none yet.

        Raises `CorruptData` if it does not follow the one before, `JournalGone` if it was deleted, and
        `StorageFailure`; the cursor stays then.
        """
        try:
            found = self.read_object(self.number + 1)
        except ObjectMissing:
            self._require_end(self.number + 1)
            return None
        identity = found.footer.identity
        if identity.store_id != self.store_id or identity.before != self.seal or identity.epoch < self.epoch:
            checkpoint = newest_checkpoint(self.store)
            if checkpoint is not None and checkpoint.first > identity.number:
                # A late request of some writer may have created an object again that was deleted.
                raise self._gone(identity.number, checkpoint.first)
            raise CorruptData(
                f"{self.store.location}/{found.name} does not follow the object before: one of the two was replaced. "
                "Restore the objects from their versions or from a copy"
            )
        self.number, self.seal, self.epoch = identity.number, found.footer.seal, identity.epoch
        return found

    def require_place(self) -> None:
        """Check that the store has the object behind which this cursor stands.

        Raises `Conflict` if it ends before, or has another one: it was put back, or is a copy that has gone on; raises
        `JournalGone` if the object was deleted.
        """
        if not self.number:
            return
        try:
            found = JournalObject(self.store, self.number)
        except ObjectMissing:
            self._require_end(self.number)
        else:
            if found.footer.seal == self.seal:
                return
        raise Conflict(
            f"the store {self.store.location} has not the object {self.number} of the journal that this place in it is "
            "behind: it was put back to an earlier state, or is a copy. Start with a new data directory, which is made "
            "from the store"
        )

    def _require_end(self, number: int) -> None:
        """Raise `JournalGone` if there are objects behind `number`: it was deleted, which leaves its name free."""
        anchor = anchor_from(number)
        if _exists(self.store, anchor):
            raise self._gone(number, anchor)

    def _gone(self, number: int, known: int) -> JournalGone:
        return JournalGone(
            f"object {number} of the journal in {self.store.location} was deleted, and the journal has gone on to "
            f"object {known} at least: this place in it is too old. Start with a new data directory, which is made "
            "from the store"
        )

    def fence(self, began: EpochBegan, writer_id: bytes, clock: Clock = SYSTEM_CLOCK) -> JournalWriter | None:
        """Become the journal's writer, in a new epoch, unless there is an object that this cursor has not read.

        `writer_id`: 16 random bytes, which no other writer has.

        In that case the result is None: read on, and try again. Raises `StorageFailure` if it is not known who won; a
        further attempt of this or another server decides it then. Raises `JournalGone` if the journal is further than
        this cursor: objects behind it were deleted.
        """
        writer = JournalWriter(self, writer_id, clock)
        try:
            writer.write([(began, None)])
        except Fenced:
            return None
        try:
            self._require_end(writer.number + 1)
        except JournalGone:
            self.store.delete([object_name(writer.number)])
            raise
        return writer

    def request_takeover(self) -> None:
        """Ask the writer to end, for one that creates objects faster than this cursor reads them."""
        self.store.create(_takeover_name(self.epoch), b"")

    def forget_takeover(self) -> None:
        """Take the request back, which the next epoch has no use for."""
        self.store.delete([_takeover_name(self.epoch)])


class JournalWriter:
    """Appends objects to a journal, as its writer in one epoch. One thread."""

    def __init__(self, cursor: JournalCursor, writer: bytes, clock: Clock) -> None:
        self._store, self._store_id = cursor.store, cursor.store_id
        self._writer, self._clock = writer, clock
        self.epoch = cursor.epoch + 1
        self.number, self.seal = cursor.number, cursor.seal
        """Those of the last object that is known to be there."""
        self._pending: Buffer | None = None

    @property
    def is_anchor_next(self) -> bool:
        """Whether the next object is an anchor."""
        return is_anchor(self.number + 1)

    def is_asked_to_end(self) -> bool:
        """Whether another server waits to take over. Raises `StorageFailure`."""
        try:
            self._store.read(_takeover_name(self.epoch))
        except ObjectMissing:
            return False
        return True

    def write(self, entries: Sequence[tuple[Entry, Buffer | None]], first_ms: int | None = None) -> int:
        """Create the next object with these entries; return its number. `first_ms`: when the first one was noted.

        Raises `Fenced` if another server has taken over: nothing of it is in the journal, and nothing will be. Raises
        `StorageFailure` if it is not known whether the object is there; `retry` must find out, before anything else.
        """
        if self._pending is not None:
            raise StorageFailure(f"object {self.number + 1} of the journal in {self._store.location} is still unknown")
        now_ms = self._clock.now_ms()
        identity = Identity(self._store_id, self.epoch, self._writer, self.number + 1, self.seal)
        self._pending = encode_object(identity, now_ms if first_ms is None else first_ms, now_ms, entries)
        return self.retry()

    def retry(self) -> int:
        """Try again to create the object whose creation failed; return its number. Raises as `write` does."""
        assert self._pending is not None, "no creation has failed"
        number = self.number + 1
        if not create_once(self._store, object_name(number), self._pending):
            raise Fenced(
                f"another server has taken over the store {self._store.location} (object {number} of its journal is "
                "not this server's)"
            )
        self.seal = decode_footer(self._pending, object_name(number)).seal
        self.number, self._pending = number, None
        return number
