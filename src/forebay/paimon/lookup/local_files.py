"""Local copies of data files for lookups by key: in memory, then on the local disk, within limits.

A copy is an uncompressed Arrow file with the requested columns of a data file, in the same order, and an index: the
hashes of all keys, ascending, with their rows. Data files never change, so copies are never stale; copies of files that
the table no longer has, and copies that have not been used for a while, are deleted.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import StorageFailure
from forebay.codec.rows.floats import canonical_floats
from forebay.paimon.format.binary_row import RowLayout
from forebay.paimon.format.file_meta import DataFileMeta
from forebay.paimon.format.split import DeletionFile
from forebay.paimon.write.bucketing import java_row_hash

_INDEX_ENTRY_BYTES = 8

Build = Callable[[], Iterable[pa.RecordBatch]]


def copy_name(file: DataFileMeta, deletion: DeletionFile | None) -> str:
    """The unique name of the copy of a file with some rows deleted."""
    return file.file_name if deletion is None else f"{file.file_name}@{deletion.path}:{deletion.offset}"


def encoded_keys(layout: RowLayout, rows: pa.RecordBatch) -> pa.BinaryArray:
    """The keys of `rows` as lookups compare them: -0.0 is 0.0 and there is one NaN, as in merges."""
    names = [f.name for f in layout.fields]
    keys = [canonical_floats(rows.column(name)) for name in names]
    return layout.encode(pa.RecordBatch.from_arrays(keys, names=names))


class Probe:
    """The distinct keys of a lookup: encoded, and their hashes."""

    def __init__(self, keys: pa.BinaryArray) -> None:
        self.keys = keys
        self.hashes = java_row_hash(keys)


class LocalFile:
    """An open copy."""

    def __init__(self, rows: pa.ipc.RecordBatchFileReader, index: npt.NDArray[np.int32]) -> None:
        """`index`: all hashes, then the row of each."""
        count = len(index) // 2
        self._hashes, self._rows = index[:count], index[count:]
        self._batches = [rows.get_batch(i) for i in range(rows.num_record_batches)]
        self._borders = np.cumsum([0, *(b.num_rows for b in self._batches)])

    def find(self, probe: Probe, layout: RowLayout) -> Iterator[pa.RecordBatch]:
        """The rows whose keys, of columns `layout`, are requested, in file order."""
        first = np.searchsorted(self._hashes, probe.hashes, "left")
        counts = np.searchsorted(self._hashes, probe.hashes, "right") - first
        total = int(counts.sum())
        if total == 0:
            return
        key_numbers = np.repeat(np.arange(len(counts)), counts)
        starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
        rows = self._rows[starts + np.arange(total)]
        order = np.argsort(rows, kind="stable")
        rows, key_numbers = rows[order], key_numbers[order]
        of_batch = np.searchsorted(self._borders, rows, "right") - 1
        for i in np.unique(of_batch).tolist():
            hits = np.flatnonzero(of_batch == i)
            batch = self._batches[i].take(pa.array(rows[hits] - self._borders[i]))
            # Different keys may have the same hash.
            same = pc.equal(encoded_keys(layout, batch), probe.keys.take(pa.array(key_numbers[hits])))
            matches = batch.filter(same)
            if matches.num_rows:
                yield matches


class LocalFiles:
    """All copies of one lookup. Not thread-safe."""

    def __init__(
        self,
        layout: RowLayout,
        *,
        directory: str | None = None,
        memory_bytes_max: int,
        disk_bytes_max: int,
        retention_ms: int,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Copies are stored in a new directory inside `directory` (by default the directory for temporary files)."""
        self._layout, self._parent, self._clock = layout, directory, clock
        self._memory_max, self._disk_max, self._retention_s = memory_bytes_max, disk_bytes_max, retention_ms / 1000
        self._directory: Path | None = None
        self._copies = 0
        self._on_disk: OrderedDict[str, tuple[Path, int]] = OrderedDict()
        self._in_memory: OrderedDict[str, tuple[LocalFile, int]] = OrderedDict()
        self._requests = 0
        self._used: dict[str, tuple[int, float]] = {}

    @property
    def memory_bytes(self) -> int:
        return sum(size for _, size in self._in_memory.values())

    @property
    def disk_bytes(self) -> int:
        return sum(size for _, size in self._on_disk.values())

    def open(self, name: str, build: Build) -> LocalFile | None:
        """The copy of data file `name`, created from the batches of `build` if necessary.

        None if it is too large for the disk limit.
        """
        before = self._used.get(name)
        self._requests += 1
        self._used[name] = (self._requests, self._clock.monotonic())
        if name in self._in_memory:
            self._in_memory.move_to_end(name)
            return self._in_memory[name][0]
        if name not in self._on_disk and not self._make(name, build):
            return None
        self._on_disk.move_to_end(name)
        path, size = self._on_disk[name]
        if size <= self._memory_max and self._make_memory(size, before):
            return self._load(name, path, size)
        return self._map(path)

    def keep_only(self, names: Collection[str]) -> None:
        """Delete the copies of all other files, and those that have not been used for too long."""
        now = self._clock.monotonic()
        for name in list(self._used):
            if name not in names or now - self._used[name][1] > self._retention_s:
                self._drop(name)

    def close(self) -> None:
        """Delete everything."""
        for name in list(self._used):
            self._drop(name)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    # -- memory -------------------------------------------------------------------------------------------------------

    def _make_memory(self, size: int, before: tuple[int, float] | None) -> bool:
        """Make room in memory for a file of `size` bytes, last used at `before`; False if other files need it more.

        Only files that have not been used since then are evicted: if more files are used in turn than memory holds,
        those in memory stay there, and the others are read through the page cache.
        """
        while self._in_memory and self.memory_bytes + size > self._memory_max:
            oldest = next(iter(self._in_memory))
            if before is None or self._used[oldest] > before:
                return False
            del self._in_memory[oldest]
        return True

    def _load(self, name: str, path: Path, size: int) -> LocalFile:
        with _storage_errors(path):
            index = np.fromfile(path.with_suffix(".index"), np.int32)
            loaded = LocalFile(pa.ipc.open_file(pa.BufferReader(path.read_bytes())), index)
        self._in_memory[name] = (loaded, size)
        return loaded

    def _map(self, path: Path) -> LocalFile:
        with _storage_errors(path):
            index_path = path.with_suffix(".index")
            index = np.memmap(index_path, np.int32, "r") if index_path.stat().st_size else np.empty(0, np.int32)
            return LocalFile(pa.ipc.open_file(pa.memory_map(str(path))), index)

    # -- disk ---------------------------------------------------------------------------------------------------------

    def _make(self, name: str, build: Build) -> bool:
        """Write a copy; False if it is larger than the disk limit."""
        if self._directory is None:
            with _storage_errors(self._parent):
                self._directory = Path(tempfile.mkdtemp(prefix="forebay-lookup-", dir=self._parent))
        self._copies += 1
        path = self._directory / f"{self._copies}.arrow"
        try:
            with _storage_errors(path):
                size = self._write(path, build)
        except BaseException:
            _delete(path)
            raise
        if size is None:
            _delete(path)
            return False
        self._on_disk[name] = (path, size)
        return True

    def _write(self, path: Path, build: Build) -> int | None:
        hashes: list[npt.NDArray[np.int32]] = []
        writer: pa.ipc.RecordBatchFileWriter | None = None
        with contextlib.ExitStack() as stack:
            sink = stack.enter_context(pa.OSFile(str(path), "wb"))
            for batch in build():
                if writer is None:
                    writer = stack.enter_context(pa.ipc.new_file(sink, batch.schema))
                hashes.append(java_row_hash(encoded_keys(self._layout, batch)))
                indexed = sum(map(len, hashes)) * _INDEX_ENTRY_BYTES
                if not self._make_room(sink.tell() + batch.nbytes + indexed):
                    return None
                writer.write_batch(batch)
            if writer is None:
                stack.enter_context(pa.ipc.new_file(sink, pa.schema([])))
        all_hashes = np.concatenate(hashes) if hashes else np.empty(0, np.int32)
        order = np.argsort(all_hashes, kind="stable").astype(np.int32)
        index = np.concatenate([all_hashes[order], order])
        index.tofile(path.with_suffix(".index"))
        return path.stat().st_size + index.nbytes

    def _make_room(self, size: int) -> bool:
        """Delete the least recently used copies until `size` bytes fit; False if they never will."""
        if size > self._disk_max:
            return False
        while self._on_disk and self.disk_bytes + size > self._disk_max:
            self._drop(next(iter(self._on_disk)))
        return True

    def _drop(self, name: str) -> None:
        self._in_memory.pop(name, None)
        self._used.pop(name, None)
        path, _ = self._on_disk.pop(name, (None, 0))
        if path is not None:
            _delete(path)


def _delete(path: Path) -> None:
    for each in (path, path.with_suffix(".index")):
        with contextlib.suppress(OSError):
            each.unlink(missing_ok=True)


@contextlib.contextmanager
def _storage_errors(path: object) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise StorageFailure(f"the lookup's local copies cannot be kept at {path}: {e}") from e
