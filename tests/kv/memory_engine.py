"""An in-memory key-value engine: the simplest implementation of the contract, for tests and simulation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from forebay.kv.buffered_writes import BufferedWrites, WriteSize
from forebay.kv.engine import UNBOUNDED, EngineState, KvPage, KvRows
from forebay.kv.value_pages import just_longer_than, page_of, rows_of


class MemorySnapshot:
    """A copy of the rows at one point in time."""

    def __init__(self, rows: dict[bytes, bytes], state: EngineState) -> None:
        self._rows = rows
        self.state = state

    def values(self) -> Iterator[bytes]:
        return iter([self._rows[key] for key in sorted(self._rows)])

    def page(self, after: bytes | None, bytes_max: int, rows_max: int) -> KvPage:
        keys = iter([key for key in sorted(self._rows) if after is None or key > after])
        given = [b""]

        def values() -> Iterator[bytes]:
            for key in keys:
                given[0] = key
                yield self._rows[key]

        return page_of(values(), lambda: given[0], bytes_max, rows_max)

    def rows(self, after: bytes | None, bytes_max: int, rows_max: int) -> KvRows:
        return rows_of(self.page(after, bytes_max, rows_max))

    def close(self) -> None:
        self._rows = {}


class MemoryEngine:
    """Rows in a dict. Closing keeps the rows, so that a test can "reopen" the same object."""

    name = "memory"

    def __init__(self, directory: Path | None = None) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._state = EngineState()

    @property
    def state(self) -> EngineState:
        return self._state

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._rows.get(key) for key in keys]

    def begin(self, keeps_digest: bool) -> BufferedWrites:
        return BufferedWrites(self, keeps_digest)

    def make_room(self, size: WriteSize) -> None:
        """Memory has room."""

    def apply(self, writes: Mapping[bytes, bytes | None], state: EngineState) -> None:
        rows = dict(self._rows)
        for key, value in writes.items():
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        self._rows, self._state = rows, state

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(self._rows.items()))

    def prefix(self, prefix: bytes, bytes_max: int = UNBOUNDED) -> list[bytes]:
        return just_longer_than(bytes_max, (self._rows[key] for key in sorted(self._rows) if key.startswith(prefix)))

    def first(self, limit: int, bytes_max: int = UNBOUNDED) -> list[bytes]:
        return just_longer_than(bytes_max, (self._rows[key] for key in islice(sorted(self._rows), limit)))

    def snapshot(self) -> MemorySnapshot:
        return MemorySnapshot(dict(self._rows), self._state)

    def clean(self) -> bool:
        return False

    def checkpoint(self, directory: Path, previous: Path | None = None) -> None:
        directory.mkdir(parents=True)

    def sync(self) -> None:
        """Memory has nothing to make durable."""

    def close(self) -> None:
        """Nothing to release."""
