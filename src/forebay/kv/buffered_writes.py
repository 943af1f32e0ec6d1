"""Writes of a group that are held in memory until its end, for an engine that takes them in one step (LMDB)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from forebay.kv._digest import added
from forebay.kv._digest import change as digest_change
from forebay.kv._merge import MergePlan
from forebay.kv.auto_increment import AutoIncrementSequence
from forebay.kv.engine import EngineState, KvEngine

LARGE_VALUE_BYTES = 1500
"""Engines may store values from this size on separately."""


@dataclass(frozen=True, slots=True)
class WriteSize:
    """How much one `apply` writes. Deletes are among the keys.

    `longest` is the longest key and value together, of values below `LARGE_VALUE_BYTES`; the others are counted by
    `large_values` and `large_bytes`. `longest_key` is that of all keys.
    """

    keys: int = 0
    deletes: int = 0
    total_bytes: int = 0
    longest: int = 0
    large_values: int = 0
    large_bytes: int = 0
    longest_key: int = 0

    def __add__(self, other: WriteSize) -> WriteSize:
        return WriteSize(
            self.keys + other.keys,
            self.deletes + other.deletes,
            self.total_bytes + other.total_bytes,
            max(self.longest, other.longest),
            self.large_values + other.large_values,
            self.large_bytes + other.large_bytes,
            max(self.longest_key, other.longest_key),
        )


def size_of(writes: Mapping[bytes, bytes | None]) -> WriteSize:
    """Return the size of an `apply` of these writes."""
    deletes = 0
    if None in writes.values():
        lengths = [-1 if value is None else len(value) for value in writes.values()]
        deletes = lengths.count(-1)
    else:
        lengths = list(map(len, cast("Iterable[bytes]", writes.values())))
    key_lengths = np.fromiter(map(len, writes), np.int64, len(writes))
    value_lengths = np.maximum(np.array(lengths, np.int64), 0)
    is_large = value_lengths >= LARGE_VALUE_BYTES
    large = value_lengths[is_large]
    pairs = key_lengths + value_lengths
    return WriteSize(
        len(pairs),
        deletes,
        int(pairs.sum()),
        int(pairs[~is_large].max(initial=0)),
        len(large),
        int(large.sum()),
        int(key_lengths.max(initial=0)),
    )


class BufferedEngine(KvEngine, Protocol):
    """An engine that takes the writes of a group at its end (`BufferedWrites`)."""

    def make_room(self, size: WriteSize) -> None:
        """Reserve disk space for an `apply` of this size, before anything is written for it.

        Raises `DiskFull` (DISK_WRITE_LOCKED).
        """
        ...


class BufferedWrites:
    """The writes of a group, in memory, until the engine takes them in one step."""

    def __init__(self, engine: BufferedEngine, keeps_digest: bool) -> None:
        self._engine = engine
        self._keeps_digest = keeps_digest
        self._values: dict[bytes, bytes | None] = {}
        self._changed: dict[bytes, bytes | None] = {}
        self._size = WriteSize()
        self._digest_change = 0
        self._last: Mapping[bytes, bytes | None] = {}

    def get(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes | None]:
        self._settle()
        values = self._values
        missing = [key for key in dict.fromkeys(keys) if key not in values]
        values.update(zip(missing, self._engine.multi_get(missing)))
        return values

    def put(self, touched: Mapping[bytes, bytes | None]) -> None:
        self._settle()
        self._engine.make_room(self._size + size_of(touched))
        self._last = touched

    def put_records(
        self,
        records: bytes | memoryview,
        start: int,
        count: int,
        plan: MergePlan,
        sequence: AutoIncrementSequence | None,
    ) -> None:
        """Such an engine takes nothing before the group ends."""

    def _settle(self) -> None:
        """Take over the last `put`, which can no longer be taken back."""
        last, self._last = self._last, {}
        if not last:
            return
        self._size += size_of(last)
        if self._keeps_digest:
            self._digest_change = added(self._digest_change, digest_change(last, self._values))
        self._values.update(last)
        self._changed.update(last)

    def take_back(self) -> None:
        self._last = {}

    def digest_change(self) -> int | None:
        self._settle()
        return self._digest_change if self._keeps_digest else None

    def apply(self, state: EngineState) -> None:
        self._settle()
        self._engine.apply(self._changed, state)

    def abandon(self) -> None:
        """Nothing of it is anywhere but here."""
