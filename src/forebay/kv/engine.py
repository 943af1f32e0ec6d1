"""The contract of a key-value engine: a map from keys to values, in bytes, that a changelog is applied to.

The log is the source of truth and the engine is an index on it (docs/design/0005-the-log-is-the-truth.md). An engine
therefore needs no log of its own: it stores, in one atomic step, the rows of a batch and the changelog offset up to
which it has applied everything. After a crash, an engine may return to any earlier state, as long as it reports the
offset of that state; the rest of the changelog is replayed.

Stored values are `length i32 | schema id i16 | row` (codec.kv.value_batch), so that a scan page is plain concatenation.

The engines are `forebay.kv.hlog` and `forebay.kv.lmdb`; `forebay.kv.engines` selects one. Parts that engines share are
modules beside this one: the allocation of disk space (`map_space`), pages of values (`value_pages`), and writes held in
memory until a group ends (`buffered_writes`). `tests/kv/kv_engine_contract.py` tests an engine.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from forebay.codec.rows._slices import RowSlices
from forebay.kv._digest import added
from forebay.kv._merge import MergePlan
from forebay.kv.auto_increment import AutoIncrementSequence

UNBOUNDED = (1 << 63) - 1
"""In place of a limit in bytes: no limit."""

_STATE = struct.Struct("<BqqqqQ")
_STATE_VERSION = 2
_STATE_WITHOUT_DIGEST = struct.Struct("<Bqqqq")
_STATE_VERSION_WITHOUT_DIGEST = 1


@dataclass(frozen=True, slots=True)
class EngineState:
    """The metadata that an engine stores beside its rows, changed together with them.

    `applied_offset` is exclusive: the changelog below it is contained. `row_count` is -1 where rows are not counted.
    `next_id` up to `last_id` (inclusive) is the rest of the auto-increment segment; empty when next > last. `digest` is
    that of the rows (`kv._digest`), updated from the writes and not from the files, so that it reveals damage to these;
    None if it is not kept.
    """

    applied_offset: int = 0
    row_count: int = 0
    next_id: int = 1
    last_id: int = 0
    digest: int | None = None

    def to_bytes(self) -> bytes:
        """Return the state as bytes, to be stored under the engine's own key."""
        numbers = self.applied_offset, self.row_count, self.next_id, self.last_id
        if self.digest is None:
            return _STATE_WITHOUT_DIGEST.pack(_STATE_VERSION_WITHOUT_DIGEST, *numbers)
        return _STATE.pack(_STATE_VERSION, *numbers, self.digest)

    @classmethod
    def from_bytes(cls, data: bytes) -> EngineState:
        """Return the state from bytes. Raises `ValueError` for anything that `to_bytes` did not write."""
        if len(data) == _STATE.size and data[0] == _STATE_VERSION:
            return cls(*_STATE.unpack(data)[1:])
        if len(data) == _STATE_WITHOUT_DIGEST.size and data[0] == _STATE_VERSION_WITHOUT_DIGEST:
            return cls(*_STATE_WITHOUT_DIGEST.unpack(data)[1:])
        raise ValueError(f"{data!r} is not the state of a key-value engine")

    def advanced(self, applied_offset: int, rows: int, digest_change: int | None) -> EngineState:
        """Return this state `rows` rows later, at `applied_offset`; `digest_change` is None if unknown."""
        count = self.row_count if self.row_count < 0 else self.row_count + rows
        before = 0 if self.applied_offset == 0 else self.digest
        digest = None if before is None or digest_change is None else added(before, digest_change)
        return EngineState(applied_offset, count, self.next_id, self.last_id, digest)


@dataclass(frozen=True, slots=True)
class KvPage:
    """Rows of a snapshot: a value batch of `rows` rows, the position after the last one (None without rows), and
    whether more rows follow.
    """

    records: bytes
    rows: int
    position: bytes | None
    has_more: bool


@dataclass(frozen=True, slots=True)
class KvRows:
    """A page whose rows are decoded here: schema ids and rows, which may refer to the engine's own memory."""

    schema_ids: npt.NDArray[np.int16]
    rows: RowSlices
    position: bytes | None
    has_more: bool


class KvSnapshot(Protocol):
    """An immutable view of an engine. Not thread-safe; `close` releases its resources."""

    @property
    def state(self) -> EngineState:
        """Return the state that belongs to exactly these rows."""
        ...

    def values(self) -> Iterator[bytes]:
        """Return all stored values in the engine's order."""
        ...

    def page(self, after: bytes | None, bytes_max: int, rows_max: int) -> KvPage:
        """Return rows from the first one on, or after the position of an earlier page of this snapshot.

        A page has at least one row, if there is one, and ends when it has `bytes_max` bytes or `rows_max` rows. Raises
        `InvalidRequest` for an invalid position.
        """
        ...

    def rows(self, after: bytes | None, bytes_max: int, rows_max: int) -> KvRows:
        """Return the same rows as `page`. They stay valid when the snapshot is closed."""
        ...

    def close(self) -> None: ...


MergedPut = tuple[bytes, RowSlices, RowSlices, int]
"""The changelog of a put: its change types, rows, and keys; and the number of rows that it added to the state."""


class GroupWrites(Protocol):
    """The writes of one group, visible only to the group until `apply`. One thread uses it, and ends it by `apply` or
    `abandon` before the next group begins.
    """

    def get(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes | None]:
        """Return the stored values of at least these keys, with the group's writes; None for keys without a row."""
        ...

    def put(self, touched: Mapping[bytes, bytes | None]) -> None:
        """Write (value) and delete (None) keys. Keys whose old values matter have been read by `get` before.

        Raises `DiskFull` (DISK_WRITE_LOCKED), without any effect.
        """
        ...

    def put_records(
        self,
        records: bytes | memoryview,
        start: int,
        count: int,
        plan: MergePlan,
        sequence: AutoIncrementSequence | None,
    ) -> MergedPut | None:
        """Merge and put the `count` KvRecords from `start` on, of the latest schema, in one call of compiled code.

        Returns None, with nothing written, if the engine cannot do so, or not with these records: the caller then
        merges them and calls `put`. Raises `DiskFull` (DISK_WRITE_LOCKED), and the errors of taking an auto-increment
        id, without any effect.
        """
        ...

    def take_back(self) -> None:
        """Undo the last `put` or `put_records`."""
        ...

    def digest_change(self) -> int | None:
        """Return the change of the rows' digest by the group; None if the engine's state has no digest."""
        ...

    def apply(self, state: EngineState) -> None:
        """Make all writes visible and set the state, in one atomic step.

        Raises `StorageFailure` without any effect when the engine cannot write.
        """
        ...

    def abandon(self) -> None:
        """Undo all writes of the group. No effect after `apply`."""
        ...


class KvEngine(Protocol):
    """A persistent map. One thread applies; any thread can read at any time, and sees whole groups only."""

    name: str

    @property
    def state(self) -> EngineState: ...

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the stored value of each key, None if there is none. Keys may repeat."""
        ...

    def begin(self, keeps_digest: bool) -> GroupWrites:
        """Begin a group of writes. `keeps_digest`: whether to compute the digest of the rows."""
        ...

    def apply(self, writes: Mapping[bytes, bytes | None], state: EngineState) -> None:
        """Put (value) and delete (None) all keys and set the state, in one atomic step.

        Raises `StorageFailure` without any effect when the engine cannot write.
        """
        ...

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, stored value) of all rows at one point in time."""
        ...

    def prefix(self, prefix: bytes, bytes_max: int = UNBOUNDED) -> list[bytes]:
        """Return the stored values of all keys that begin with `prefix`, in key order.

        If these together exceed `bytes_max`, only the first ones that do are returned. Raises `UnsupportedOperation`
        if the engine does not keep keys in order.
        """
        ...

    def first(self, limit: int, bytes_max: int = UNBOUNDED) -> list[bytes]:
        """Return the first `limit` stored values in the engine's order; `bytes_max` as in `prefix`."""
        ...

    def snapshot(self) -> KvSnapshot: ...

    def clean(self) -> bool:
        """Remove superseded and deleted rows from the engine's files; return whether there was anything to do.

        LMDB does not: it reuses their pages.
        """
        ...

    def checkpoint(self, directory: Path, previous: Path | None = None) -> None:
        """Write a complete copy into the new folder `directory`, durable when this returns.

        `previous` is the newest checkpoint, of which an engine may link files that have not changed.
        """
        ...

    def sync(self) -> None:
        """Make the engine's own files durable, as for a clean shutdown."""
        ...

    def close(self) -> None: ...


class EngineFactory(Protocol):
    """Opens (or creates) the engine whose files are in a folder."""

    def __call__(self, directory: Path) -> KvEngine: ...
