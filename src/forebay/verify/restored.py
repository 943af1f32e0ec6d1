"""Rows of a primary-key table whose changelog is damaged, and whose state is not.

The state is an index on the changelog, so it must be the fold of the remaining changelog. But a sound state also has
the effects of the lost changes. So the two are compared, and the differences become changes at the end of
the changelog: no row changes, and only its history has a gap. Keys that were changed again behind the state's
offset are left alone: the changelog has their newest rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from forebay.base.errors import CorruptData
from forebay.codec.kv.value_batch import STORED_PREFIX_BYTES
from forebay.codec.log.header import stamp
from forebay.codec.log.log_batch import ChangeType
from forebay.codec.rows._slices import RowSlices
from forebay.fs import names
from forebay.fs.interface import FileMissing, FileSystem
from forebay.kv.checkpoint import PageCacheWitnesses, checkpoints, damage_of_checkpoint
from forebay.kv.engine import EngineState
from forebay.kv.lmdb.lmdb_engine import LmdbEngine
from forebay.kv.tablet import ChangelogCodec, TableView
from forebay.verify.logs import LogImage
from forebay.verify.report import Report, no_steps
from forebay.verify.states import ReadableState, StateCheck, same_row

_ROWS_AT_ONCE = 5000
_CHANGES_PER_BATCH = 10_000

Change = tuple[bytes, bytes | None, bytes | None]
"""A key, the stored value that the changelog's rest gives it, and the one that the state has."""


class Restored(NamedTuple):
    """Lost changes that were recovered from a sound state."""

    changes: list[Change]
    up_to: int
    """Lost changes below this offset are restored; -1 if there is no sound state."""


class StateRepair:
    """The state of one bucket whose changelog is damaged from offset `first_lost` on."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        image: LogImage,
        first_lost: int,
        table: TableView,
        scratch: Path,
        witnesses: PageCacheWitnesses,
    ) -> None:
        self._fs = fs
        self._folder = folder
        self._image = image
        self._table = table
        self._scratch = scratch
        self._witnesses = witnesses
        self._check = StateCheck(fs, folder, image, table, scratch, Report(), no_steps)
        sound = [
            (int(name.rpartition("-")[2]), names.join(folder, name))
            for name in checkpoints(fs, folder)
            if damage_of_checkpoint(fs, names.join(folder, name)) is None
        ]
        before = [each for each in sound if each[0] <= first_lost]
        self._base = max(before, default=None)
        """The checkpoint that will be the beginning of the rebuilt state, if it is not the beginning of the log."""
        if self._base is None and image.start > 0:
            self._base = max(sound, default=None)
        self._newest = max(sound, default=None)

    @property
    def can_be_rebuilt(self) -> bool:
        """Whether the changelog, with a checkpoint, still amounts to a state."""
        return self._image.start == 0 or (self._base is not None and self._base[0] >= self._image.start)

    def restored(self) -> Restored:
        """The changes that bring what is left of the changelog to the rows of the state."""
        state = self._sound_state()
        if state is None:
            return Restored([], -1)
        try:
            applied = state.state.applied_offset
            folder = self._scratch / "left"
            engine = self._check.begin_fold(folder, None if self._base is None else self._base[1], applied)
            if engine is None:
                return Restored([], -1)
            try:
                newer = self._fold(engine, applied)
                changes = [change for change in self._differences(state, engine) if change[0] not in newer]
            finally:
                engine.close()
            return Restored(changes, applied)
        finally:
            state.close()

    def _sound_state(self) -> ReadableState | None:
        """The state that the server would use, else the newest checkpoint; None if neither is sound."""
        try:
            state = self._check.open_trusted(False, self._witnesses)
        except (CorruptData, FileMissing):
            state = None
        if state is not None and state.state.digest in (None, state.digest):
            return state
        if state is not None:
            state.close()
        return None if self._newest is None else self._check.open(self._newest[1])

    def _fold(self, engine: LmdbEngine, end: int) -> set[bytes]:
        """Apply what is left of the changelog up to `end`; return the keys that it changes behind that."""
        codec = ChangelogCodec(self._table.info, self._table.schema_by_id)
        start = engine.state.applied_offset
        newer: set[bytes] = set()
        for header, data in self._image.sound_batches():
            if header.next_offset <= start:
                continue
            writes = codec.replay(header, data)[0]
            if header.base_offset >= end:
                newer.update(writes)
            else:
                engine.apply(writes, EngineState(header.next_offset, -1))
        return newer

    def _differences(self, state: ReadableState, engine: LmdbEngine) -> Iterator[Change]:
        """Rows of the state that the engine lacks or has otherwise, and rows that only the engine has.

        Takes the rows that it has compared out of the engine.
        """
        codec = ChangelogCodec(self._table.info, self._table.schema_by_id)
        items = state.items()
        while chunk := dict(islice(items, _ROWS_AT_ONCE)):
            previous_values = engine.multi_get(list(chunk))
            engine.apply(dict.fromkeys(chunk), engine.state)
            for (key, value), previous in zip(chunk.items(), previous_values):
                if previous is None or (previous != value and not same_row(codec, value, previous)):
                    yield key, previous, value
        for key, value in engine.items():
            yield key, value, None

    def batches(self, changes: list[Change], base_offset: int, timestamp_ms: int) -> Iterator[bytes]:
        """Changelog batches of the changes for a log, from `base_offset` on."""
        codec = ChangelogCodec(self._table.info, self._table.schema_by_id)
        is_full = self._table.info.descriptor.has_full_changelog
        for first in range(0, len(changes), _CHANGES_PER_BATCH):
            kinds, values, keys = bytearray(), [], []
            for key, old, new in changes[first : first + _CHANGES_PER_BATCH]:
                for kind, value in _records(old, new, is_full):
                    kinds.append(kind)
                    values.append(value)
                    keys.append(key)
            rows = RowSlices.from_values(codec.upgrade(values), STORED_PREFIX_BYTES)
            batch = bytearray(codec.build(bytes(kinds), rows, keys, -1, -1))
            stamp(batch, 0, base_offset, timestamp_ms)
            base_offset += len(kinds)
            yield bytes(batch)

    def shown(self, changes: list[Change], count: int) -> list[str]:
        """The keys of the first `count` changes, in words."""
        codec = ChangelogCodec(self._table.info, self._table.schema_by_id)
        return [codec.shown_keys([key]) for key, _, _ in changes[:count]]

    def discard(self) -> None:
        """Remove, durably, the state's files and the checkpoints that do not fit the repaired changelog."""
        base_name = None if self._base is None else self._base[1].rpartition("/")[2]
        if self._fs.exists(self._folder):
            for entry in self._fs.list_directory(self._folder):
                path = names.join(self._folder, entry.name)
                if entry.is_directory and entry.name != base_name:
                    self._fs.remove_tree(path)
                elif not entry.is_directory:
                    self._fs.remove(path)
            self._fs.sync_directory(self._folder)


def _records(old: bytes | None, new: bytes | None, is_full: bool) -> Iterator[tuple[int, bytes]]:
    if new is None:
        if old is not None:
            yield ChangeType.DELETE, old
    elif old is None:
        yield ChangeType.INSERT, new
    else:
        if is_full:
            yield ChangeType.UPDATE_BEFORE, old
        yield ChangeType.UPDATE_AFTER, new
