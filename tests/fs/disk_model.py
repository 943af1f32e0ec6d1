"""The contents of a disk after a power loss: the model that `tests.fs.faulty_fs` is based on.

A `File` has the content that programs see (`seen`), the content on the disk, and the pending changes between the two. A
`Folder` has names in the same three forms. `after_power_loss` decides with a seeded generator which of the pending
changes reached the disk. See `faulty_fs` for the rules; it is the only user of this module.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from forebay.fs.interface import WORD_BYTES

_WRITE_BACK_CHANCE = 0.05


@dataclass
class Write:
    """Bytes written at a position."""

    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        if len(content) < self.position:
            content.extend(bytes(self.position - len(content)))
        content[self.position : self.position + len(self.data)] = self.data

    def pages(self, page_bytes: int) -> Iterator[Write]:
        """This write, split at page boundaries."""
        position, end = self.position, self.position + len(self.data)
        while position < end:
            stop = min(end, (position // page_bytes + 1) * page_bytes)
            yield Write(position, self.data[position - self.position : stop - self.position])
            position = stop


@dataclass
class Truncate:
    """A file truncated, or extended with zeros, to a size."""

    size: int

    def apply(self, content: bytearray) -> None:
        if self.size < len(content):
            del content[self.size :]
        else:
            content.extend(bytes(self.size - len(content)))


@dataclass(eq=False)
class File:
    """The bytes of one file; `seen` already includes the pending changes.

    `stored` are the words, by number, that were stored by `FileSystem.share_words` since the last sync.
    """

    seen: bytearray = field(default_factory=bytearray)
    disk: bytearray = field(default_factory=bytearray)
    pending: list[Write | Truncate] = field(default_factory=list)
    stored: dict[int, None] = field(default_factory=dict)

    def change(self, change: Write | Truncate) -> None:
        change.apply(self.seen)
        self.pending.append(change)

    def sync(self) -> None:
        """Write all pending changes to the disk."""
        for change in self.pending:
            change.apply(self.disk)
        self.pending.clear()
        self._write_words(list(self.stored), self.disk)
        self.stored.clear()

    def store(self, index: int, value: bytes, rng: random.Random) -> None:
        """Store a word; once in a while the kernel writes some of the words back, as it likes."""
        place = slice(index * WORD_BYTES, (index + 1) * WORD_BYTES)
        if place.stop > len(self.seen):
            raise IndexError(f"the file has {len(self.seen) // WORD_BYTES} words, and not number {index}")
        self.seen[place] = value
        self.stored[index] = None
        if rng.random() < _WRITE_BACK_CHANCE:
            written = [index for index in self.stored if rng.random() < 0.8]
            self._write_words(written, self.disk)
            for index in written:
                del self.stored[index]

    def _write_words(self, indexes: list[int], content: bytearray) -> None:
        for index in indexes:
            place = slice(index * WORD_BYTES, (index + 1) * WORD_BYTES)
            content[place] = self.seen[place]

    def forget_cached(self) -> None:
        """Show what a reader sees once the kernel has dropped all clean pages."""
        self.seen = bytearray(self.disk)
        for change in self.pending:
            change.apply(self.seen)

    def after_power_loss(self, rng: random.Random, page_bytes: int) -> File:
        """The file at the next start."""
        content = bytearray(self.disk)
        for change in _surviving_changes(self.pending, len(self.seen), rng, page_bytes):
            change.apply(content)
        if self.stored:
            chance = rng.choice((0.0, 0.5, 1.0))
            self._write_words([index for index in self.stored if rng.random() < chance], content)
        return File(bytearray(content), content)


def _surviving_changes(
    pending: list[Write | Truncate], size: int, rng: random.Random, page_bytes: int
) -> Iterator[Write | Truncate]:
    """The changes of `pending` that reach the disk without a sync."""
    fate = rng.choice(("none", "all", "torn", "pages")) if pending else "none"
    if fate == "all":
        yield from pending
    elif fate == "torn":
        whole = rng.randrange(len(pending))
        yield from pending[:whole]
        last = pending[whole]
        if isinstance(last, Write):
            yield Write(last.position, last.data[: rng.randint(0, len(last.data))])
    elif fate == "pages":
        yield from _written_pages(pending, rng, page_bytes)
        if rng.random() < 0.5:  # The size reached the disk, but some of the bytes did not: zeros at the end.
            yield Truncate(size)


def _written_pages(pending: list[Write | Truncate], rng: random.Random, page_bytes: int) -> Iterator[Write | Truncate]:
    """Some pages, each as it was at some time: with the first of the changes to it, but not with a later one alone."""
    stale: set[int] = set()
    for change in pending:
        if isinstance(change, Truncate):
            if rng.random() < 0.5:
                yield change
            continue
        for part in change.pages(page_bytes):
            page = part.position // page_bytes
            if page not in stale and rng.random() < 0.5:
                yield part
            else:
                stale.add(page)


@dataclass(eq=False)
class NameChange:
    """Names that a folder gains (node) or loses (None), in one atomic step."""

    changes: dict[str, File | Folder | None]

    def apply(self, entries: dict[str, File | Folder]) -> None:
        for name, node in self.changes.items():
            if node is None:
                entries.pop(name, None)
            else:
                entries[name] = node


@dataclass(eq=False)
class Folder:
    """The names of one folder; `seen` already includes the pending changes."""

    seen: dict[str, File | Folder] = field(default_factory=dict)
    disk: dict[str, File | Folder] = field(default_factory=dict)
    pending: list[NameChange] = field(default_factory=list)

    def change(self, changes: dict[str, File | Folder | None]) -> None:
        change = NameChange(changes)
        change.apply(self.seen)
        self.pending.append(change)

    def make_durable(self, name: str) -> None:
        """Write all pending changes of one name to the disk, and no others: the contract promises no more."""
        for change in [change for change in self.pending if name in change.changes]:
            change.apply(self.disk)
            self.pending.remove(change)

    def sync(self) -> None:
        """Write all pending changes of names to the disk."""
        self.disk = dict(self.seen)
        self.pending.clear()

    def after_power_loss(self, rng: random.Random, page_bytes: int) -> Folder:
        """The folder, with everything below it, at the next start."""
        entries = dict(self.disk)
        fate = rng.choice(("none", "all", "first", "subset")) if self.pending else "none"
        count = rng.randint(0, len(self.pending))
        for index, change in enumerate(self.pending):
            if fate == "all" or (fate == "first" and index < count) or (fate == "subset" and rng.random() < 0.5):
                change.apply(entries)
        survivors = {name: entries[name].after_power_loss(rng, page_bytes) for name in sorted(entries)}
        return Folder(dict(survivors), survivors)
