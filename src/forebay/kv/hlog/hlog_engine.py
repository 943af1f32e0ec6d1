"""The key-value engine `hlog`: a hash index in memory over an append-only log of records in mapped files.

What the files hold, and why they can be trusted, is in docs/format/hlog.md; the log and the index themselves are
kernels beside this module: records (`_record`) in mapped segments (`_segments`), the index (`_index`), groups of writes
and cleaning (`_log`), the put in one piece (`_put`), lookups (`_lookup`), scans (`_scan`), and copies and opening
(`_restore`). This module has the files: opening, room, snapshots, checkpoints, closing.

Writes of a group go straight into the log, behind its visible end, and `apply` makes them visible in one step. Rows
are in the order of the log, not of their keys, so there are no lookups by prefix. Each group of writes also compacts a
part of the log when superseded records take more than half of it: it walks over a few times as many bytes of the oldest
segment as it has written, and moves the live records to the end.

Space is allocated before a store into a map, as for LMDB (`forebay.kv.map_space`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import struct
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from forebay.base import threads
from forebay.base.ambient import SystemIds
from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest, StorageFailure, UnsupportedOperation, check
from forebay.fs import names
from forebay.fs.interface import RESERVE_BYTES, DiskFull, storage_failure
from forebay.fs.local import LocalFileSystem
from forebay.kv._merge import MergePlan
from forebay.kv.auto_increment import AutoIncrementSequence
from forebay.kv.engine import UNBOUNDED, EngineState, KvPage, KvRows, MergedPut
from forebay.kv.hlog import _lookup, _restore, _scan
from forebay.kv.hlog._log import HashLog
from forebay.kv.hlog._put import put_records
from forebay.kv.hlog._segments import FIRST_POSITION
from forebay.kv.map_space import MapSpace
from forebay.kv.value_pages import just_longer_than

_LOGGER = logging.getLogger(__name__)

HEAD_FILE = "head"
SEGMENTS_FILE = "segments"

_HEAD = struct.Struct("<8sIIqq")
_HEAD_BYTES = 4096
_MAGIC, _VERSION = b"FBYhlog\n", 1
_SEGMENT_NAME = re.compile(r"log-(\d{20})\.(\d+)k")
_SEGMENT_BYTES_MIN, _SEGMENT_BYTES_MAX = 64 << 10, 64 << 20
GARBAGE_BYTES_MIN = 4 << 20
"""Bytes of superseded records below which no log is compacted."""
_WALK_FACTOR = 4
_WALK_BYTES_MIN = 64 << 10
"""A commit compacts this many times the bytes that it has written, plus the minimum."""
_VALUES_AT_ONCE = 256
_COPY_BYTES = 4 << 20
"""How much one call into compiled code returns: rows of a scan, and bytes of a copy."""
_POSITION = struct.Struct("<qQ")


def _segment_name(position: int, size: int) -> str:
    return f"log-{position:020d}.{size >> 10}k"


@dataclass(frozen=True, slots=True)
class _CopiedSegment:
    """A whole segment in a checkpoint: bytes and sum of its records, and the checksum of its file."""

    used: int
    sum: int
    checksum: int


class HlogSnapshot:
    """A position of the log, and the state there."""

    def __init__(self, engine: HlogEngine, log: HashLog, start: int, end: int, state: EngineState) -> None:
        self._engine = engine
        self._log: HashLog | None = log
        self._start, self._end = start, end
        self.state = state

    def values(self) -> Iterator[bytes]:
        return (value for _, value in self.items())

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Return all keys and stored values, in no order of the keys."""
        self._require_open()
        return self._items()

    def _items(self) -> Iterator[tuple[bytes, bytes]]:
        place = self._start
        while place < self._end:
            pairs, place = _scan.items(self._require_open(), self._end, place, _VALUES_AT_ONCE)
            yield from pairs

    def _require_open(self) -> HashLog:
        check(self._log is not None, "a closed KV snapshot was read")
        assert self._log is not None
        return self._log

    def page(self, after: bytes | None, bytes_max: int, rows_max: int) -> KvPage:
        log, place = self._require_open(), self._place(after)
        records, rows, place = _scan.scan(log, self._end, place, max(0, bytes_max), max(1, rows_max))
        return KvPage(records, rows, self._position(place) if rows else None, self._has_rows(place))

    def rows(self, after: bytes | None, bytes_max: int, rows_max: int) -> KvRows:
        log, place = self._require_open(), self._place(after)
        schema_ids, rows, place = _scan.rows(log, self._end, place, max(0, bytes_max), max(1, rows_max))
        return KvRows(schema_ids, rows, self._position(place) if len(rows) else None, self._has_rows(place))

    def _place(self, position: bytes | None) -> int:
        """Return the place in the log that `position` means. Raises `InvalidRequest` for bytes that are no position."""
        if position is None:
            return self._start
        place, proof = _POSITION.unpack(position) if len(position) == _POSITION.size else (-1, 0)
        # Reading from anywhere but the beginning of a record would take bytes of rows for sizes.
        if not self._start <= place <= self._end or proof != self._require_open().proof(place):
            raise InvalidRequest(
                f"these {len(position)} bytes are no position in a bucket's rows: {position[:64].hex()}"
            )
        return int(place)

    def _position(self, place: int) -> bytes:
        return _POSITION.pack(place, self._require_open().proof(place))

    def _has_rows(self, place: int) -> bool:
        return place < self._end and bool(_scan.items(self._require_open(), self._end, place, 1)[0])

    def close(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.release_snapshot(self._end)
            self._engine.remove_freed()


class HlogWrites:
    """The writes of a group, in the log already, where only this group sees them."""

    def __init__(self, engine: HlogEngine, log: HashLog) -> None:
        self._engine = engine
        self.log = log
        self._begin = log.end
        self._savepoint = 0
        self._is_ended = False

    def get(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes | None]:
        return dict(zip(keys, _lookup.get(self.log, keys, by_writer=True)))

    def put(self, touched: Mapping[bytes, bytes | None]) -> None:
        """Append the writes to the log; if that fails, roll all of them back."""
        self._savepoint = self.log.savepoint
        try:
            self.log.put(touched)
        except BaseException:
            self.take_back()
            raise

    def put_records(
        self,
        records: bytes | memoryview,
        start: int,
        count: int,
        plan: MergePlan,
        sequence: AutoIncrementSequence | None,
    ) -> MergedPut | None:
        """Merge and append in compiled code; if that fails or is not possible, roll all of it back."""
        self._savepoint = self.log.savepoint
        merged = None
        try:
            merged = put_records(self.log, records, start, count, plan, sequence)
        finally:
            if merged is None:
                self.take_back()
        return merged

    def take_back(self) -> None:
        self.log.rollback(self._savepoint)

    def digest_change(self) -> int | None:
        return None  # the log keeps a digest of its own

    def apply(self, state: EngineState) -> None:
        try:
            self._engine.commit(state, self.log.end - self._begin)
        finally:
            self.abandon()  # without effect on what is visible

    def abandon(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self.log.rollback(0)
            self._engine.writing.release()


class HlogEngine:
    """One bucket's rows in one log."""

    name = "hlog"

    def __init__(
        self,
        directory: Path,
        *,
        kept_free: Callable[[], int] = lambda: RESERVE_BYTES,
        garbage_min: int = GARBAGE_BYTES_MIN,
    ) -> None:
        """`kept_free`: bytes of the disk that writes leave free. `garbage_min`: bytes of superseded records from which
        on the log is compacted.

        Raises `CorruptData` for files that are not whole and sound, `StorageFailure`, `DiskFull`.
        """
        directory.mkdir(names.FOLDER_MODE, parents=True, exist_ok=True)
        self._directory = directory
        self._kept_free = kept_free
        self._garbage_min = garbage_min
        self._visible = threads.lock()
        self._removing = threads.lock()
        self.writing = threads.lock()
        """Held by the group that is under way: nothing is stored into files that are closed."""
        self._closed = False
        self.close_snapshots: Callable[[], None] = lambda: None
        try:
            self._log = self._create() if not any(directory.iterdir()) else self._open()
        except BaseException as e:
            traceback.clear_frames(e.__traceback__)  # or the files stay mapped while the error is held
            if isinstance(e, OSError):
                raise storage_failure("open", str(directory), e) from e
            raise
        self._log.make_room = self._make_room

    # ---- opening ----------------------------------------------------------------------------------------------------

    def _create(self) -> HashLog:
        path = self._directory / _segment_name(FIRST_POSITION, _SEGMENT_BYTES_MIN)
        self._space = MapSpace(path, self._kept_free)
        _new_file(path)
        self._space.begin(0, _SEGMENT_BYTES_MIN)
        # Last: a folder with segments and no head is a damaged one.
        head = self._directory / HEAD_FILE
        content = _HEAD.pack(_MAGIC, _VERSION, 0, FIRST_POSITION, FIRST_POSITION).ljust(_HEAD_BYTES, b"\0")
        descriptor = os.open(head, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, names.FILE_MODE)
        try:
            os.write(descriptor, content)
            log = HashLog(descriptor, _seed())
        finally:
            os.close(descriptor)
        _map(log, path, FIRST_POSITION, _SEGMENT_BYTES_MIN, 0)
        log.begin()
        self._state = EngineState()
        return log

    def _open(self) -> HashLog:
        start, end = self._read_head()
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._directory / SEGMENTS_FILE)  # of the checkpoint from which this was restored
        descriptor = os.open(self._directory / HEAD_FILE, os.O_RDWR | os.O_CLOEXEC)
        try:
            log = HashLog(descriptor, _seed())
        finally:
            os.close(descriptor)
        place, last = start, (start, 0)
        for position, size in _segments(self._directory):
            path = self._directory / _segment_name(position, size)
            if position + size <= start or position >= max(end, start + 1):
                path.unlink()  # cleared away, or begun by a transaction that did not end
                continue
            if position != place or not size or size % _SEGMENT_BYTES_MIN:
                raise self._damage(f"its segments do not follow each other: one begins at {position}, not {place}")
            place, last = position + size, (position, size)
        if place < end or place == start:
            raise self._damage(f"its segments end at {place}, and its records at {end}")
        for position, size in _segments(self._directory):
            path = self._directory / _segment_name(position, size)
            used = min(size, end - position)
            if (position, size) == last:
                self._space = MapSpace(path, self._kept_free)
                self._space.begin(used, size)  # releases what a transaction that did not end has left
            elif path.stat().st_size < size:
                os.truncate(path, size)
            _map(log, path, position, size, used)
        try:
            state = _restore.load(log, start, end)
            self._state = EngineState.from_bytes(state) if state else EngineState()
        except ValueError as e:
            raise self._damage(str(e)) from e
        return log

    def _read_head(self) -> tuple[int, int]:
        try:
            content = (self._directory / HEAD_FILE).read_bytes()
        except FileNotFoundError as e:
            raise self._damage("its file 'head' is missing") from e
        if len(content) != _HEAD_BYTES:
            raise self._damage(f"its file 'head' has {len(content)} bytes instead of {_HEAD_BYTES}")
        magic, version, _, start, end = _HEAD.unpack_from(content)
        if magic != _MAGIC or version != _VERSION or not 0 < start <= end or start % _SEGMENT_BYTES_MIN or end % 8:
            raise self._damage(f"its file 'head' begins with {content[: _HEAD.size].hex()}")
        return start, end

    def _damage(self, reason: str) -> CorruptData:
        return CorruptData(
            f"the key-value state in {self._directory} is damaged: {reason}", ErrorCode.KV_STORAGE_EXCEPTION
        )

    # ---- reading ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def index_bytes(self) -> int:
        """Return the memory that the index of this bucket takes."""
        return self._log.index_bytes

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._require_open()
        return _lookup.get(self._log, keys)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        snapshot = self.snapshot()
        try:
            yield from snapshot.items()
        finally:
            snapshot.close()

    def prefix(self, prefix: bytes, bytes_max: int = UNBOUNDED) -> list[bytes]:
        raise UnsupportedOperation(
            "lookups by a prefix of the key need keys in order, which the key-value engine 'hlog' does not keep; move "
            "the table to the engine 'lmdb' ('forebay kv-engine --help')"
        )

    def first(self, limit: int, bytes_max: int = UNBOUNDED) -> list[bytes]:
        """Return values in the order of the log, which is not the order of keys."""
        snapshot = self.snapshot()
        try:
            values = (value for value, _ in zip(snapshot.values(), range(limit)))
            return just_longer_than(bytes_max, values)
        finally:
            snapshot.close()

    def snapshot(self) -> HlogSnapshot:
        with self._visible:
            self._require_open()
            start, end = self._log.take_snapshot()
            return HlogSnapshot(self, self._log, start, end, self._state)

    # ---- writing ----------------------------------------------------------------------------------------------------

    def begin(self, keeps_digest: bool) -> HlogWrites:
        """Wait until the group before has ended, then begin one. The log keeps the digest in any case."""
        self.writing.acquire()
        try:
            self._require_open()
            return HlogWrites(self, self._log)
        except BaseException:
            self.writing.release()
            raise

    def apply(self, writes: Mapping[bytes, bytes | None], state: EngineState) -> None:
        """Write one group that consists of these writes. Waits until the group before has ended."""
        group = self.begin(False)
        try:
            group.put(writes)
            group.apply(state)
        finally:
            group.abandon()

    def commit(self, state: EngineState, written: int) -> None:
        """Make the writes of the group visible, with `state`, and compact a part of the log."""
        log = self._log
        live = log.live_bytes
        garbage = log.end - log.start - live
        if garbage > max(live, self._garbage_min) and log.pinned_bytes <= live:
            with contextlib.suppress(DiskFull):  # a full disk stops this, but no write that has its room
                log.compact(_WALK_FACTOR * written + _WALK_BYTES_MIN)
        with self._visible:
            log.commit(state.to_bytes())
            self._state = state
        self.remove_freed()

    def clean(self) -> bool:
        """Move all current rows to new segments, and remove those that also have superseded and deleted ones.

        Returns whether there was anything to do. Groups of writes take turns with this. Files that open snapshots need
        are removed when these are closed.
        """
        with self.writing:
            self._require_open()
            if self._log.visible == self._cleaned_end:
                return False
            position, size, _ = self._log.tail
            self._begin_segment(position + size, _SEGMENT_BYTES_MIN)
            self._move(0)
        while self._log.start < position + size:
            with self.writing:
                self._require_open()
                self._move(_SEGMENT_BYTES_MAX)
                self._cleaned_end = self._log.visible
            self.remove_freed()
        return True

    _cleaned_end = -1

    def _move(self, walk: int) -> None:
        """Move the current rows among the next `walk` bytes to the end, as a group. The caller holds `writing`."""
        try:
            self._log.compact(walk)
            with self._visible:
                self._log.commit(self._state.to_bytes())
        finally:
            self._log.rollback(0)

    def _make_room(self, record_bytes: int) -> None:
        """Allocate blocks for a record of `record_bytes` bytes at the end of the log, in a new segment if need be."""
        position, size, _ = self._log.tail
        used = self._log.end - position
        if used + record_bytes <= size:
            self._space.allocate(used + record_bytes, size)
            self._log.set_allocated(self._space.allocated)
            return
        self._begin_segment(position + size, record_bytes)

    def _begin_segment(self, position: int, record_bytes: int) -> None:
        """Let the log go on in a new segment at `position`, with room for a record of `record_bytes` bytes."""
        whole = _SEGMENT_BYTES_MIN
        # Few maps for a process that has many buckets (vm.max_map_count), and no large part of a log to clear at once.
        while whole < record_bytes or (whole < _SEGMENT_BYTES_MAX and whole * 4 < self._log.end - self._log.start):
            whole *= 2
        path = self._directory / _segment_name(position, whole)
        space = MapSpace(path, self._kept_free)
        try:
            _new_file(path)
            space.begin(0, whole)
            space.allocate(record_bytes, whole)
            _map(self._log, path, position, whole, space.allocated)
        except OSError as e:
            raise storage_failure("write", str(path), e) from e
        self._space = space

    def remove_freed(self) -> None:
        """Remove the files of segments that no reader needs any more."""
        if not self._removing.acquire(blocking=False):
            return
        try:
            first = self._log.first_position
            if first == self._kept_from or self._closed:
                return
            for position, size in _segments(self._directory):
                if position < first:
                    (self._directory / _segment_name(position, size)).unlink(missing_ok=True)
            self._kept_from = first
        except OSError as e:
            _LOGGER.warning("segments of %s that are no longer needed cannot be removed yet: %s", self._directory, e)
        finally:
            self._removing.release()

    _kept_from = -1

    # ---- checkpoints, closing ---------------------------------------------------------------------------------------

    def checkpoint(self, directory: Path, previous: Path | None = None) -> None:
        """Copy the log as of now, or link segments that `previous` has. Writers continue meanwhile.

        Raises `StorageFailure`, `DiskFull`, and `CorruptData` for a damaged record.
        """
        snapshot = self.snapshot()
        try:
            directory.mkdir(names.FOLDER_MODE, parents=True)
            self._copy(snapshot._start, snapshot._end, directory, previous)
        except OSError as e:
            raise storage_failure("write a checkpoint to", str(directory), e) from e
        except ValueError as e:
            raise self._damage(str(e)) from e
        finally:
            snapshot.close()

    def _copy(self, start: int, end: int, directory: Path, previous: Path | None) -> None:
        """Write the log between two positions, which are pinned, into `directory`.

        A whole segment that `previous` has is linked instead if its checksum is still the one from when it was
        written. Records do not change; which of them are superseded follows from reading them in order.
        """
        copied = {} if previous is None else _copied_segments(previous)
        listing = []
        for position, size, used, total in self._log.segment_list(start, end):
            name = _segment_name(position, size)
            target = directory / name
            segment = copied.get(name)
            if previous is not None and segment is not None and (segment.used, segment.sum) == (used, total):
                with contextlib.suppress(OSError):  # for instance on a file system without links
                    if _checksum(previous / name) == segment.checksum:
                        os.link(previous / name, target)
            if not target.exists():
                self._space.require_free(used, may_use_reserve=True)
                checksum = self._copy_segment(end, position, position + used, target)
                segment = None if total is None else _CopiedSegment(used, total, checksum)
            if segment is not None:
                listing.append(f"{name} {segment.used} {segment.sum} {segment.checksum}\n")
        content = _HEAD.pack(_MAGIC, _VERSION, 0, start, end).ljust(_HEAD_BYTES, b"\0")
        for name, data in ((HEAD_FILE, content), (SEGMENTS_FILE, "".join(listing).encode())):
            with _created(directory / name) as descriptor:
                os.write(descriptor, data)
                os.fsync(descriptor)
        LocalFileSystem().sync_directory(str(directory))

    def _copy_segment(self, snapshot: int, position: int, until: int, target: Path) -> int:
        """Copy records into the new file `target`; return its checksum."""
        checksum = 0
        with _created(target) as descriptor:
            while copied := _restore.copy(self._log, snapshot, position, until, _COPY_BYTES):
                checksum = google_crc32c.extend(checksum, copied)
                left = memoryview(copied)
                while left:
                    left = left[os.write(descriptor, left) :]
                position += len(copied)
            os.fsync(descriptor)
        return checksum

    def sync(self) -> None:
        """Sync the head file and all segments, then their folder. Raises `StorageFailure`."""
        try:
            for name in (HEAD_FILE, *(_segment_name(*segment) for segment in _segments(self._directory))):
                descriptor = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            LocalFileSystem().sync_directory(str(self._directory))
        except OSError as e:
            raise storage_failure("sync the key-value state in", str(self._directory), e) from e

    def close(self) -> None:
        """Close the engine; snapshots that are still read keep their memory until they are closed.

        Releases the space that the log has reserved beyond its records, so that copying or checking it takes no longer
        than necessary.
        """
        self.close_snapshots()
        with self.writing:
            with self._visible:
                if self._closed:
                    return
                self._closed = True
            self._log.make_room = _no_room  # without a circle of references, the memory goes at once
            position, _, _ = self._log.tail
            with contextlib.suppress(FileNotFoundError):  # the folder of a dropped table may be gone already
                os.truncate(self._space.path, max(0, self._log.visible - position))

    def _require_open(self) -> None:
        if self._closed:
            raise StorageFailure(
                f"the key-value state in {self._directory} is closed", ErrorCode.NOT_LEADER_OR_FOLLOWER
            )


def _segments(directory: Path) -> list[tuple[int, int]]:
    """(position, bytes) of the segments in a folder, in order."""
    matches = (_SEGMENT_NAME.fullmatch(entry.name) for entry in directory.iterdir())
    return sorted((int(match[1]), int(match[2]) << 10) for match in matches if match is not None)


def _no_room(size: int) -> None:
    raise AssertionError("a closed engine was written")


def _seed() -> int:
    """Of the index's hash function: no client can choose keys that collide."""
    return int(SystemIds().token_hex()[:16], 16)


def _new_file(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, names.FILE_MODE))


def _map(log: HashLog, path: Path, position: int, size: int, allocated: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        log.map_segment(descriptor, position, size, allocated)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _created(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, names.FILE_MODE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_COPY_BYTES):
            checksum = google_crc32c.extend(checksum, chunk)
    return checksum


def _copied_segments(directory: Path) -> dict[str, _CopiedSegment]:
    """The whole segments of a checkpoint by name; none if its list cannot be read."""
    try:
        lines = (directory / SEGMENTS_FILE).read_text().splitlines()
        return {name: _CopiedSegment(int(a), int(b), int(c)) for name, a, b, c in map(str.split, lines)}
    except (OSError, ValueError):
        return {}
