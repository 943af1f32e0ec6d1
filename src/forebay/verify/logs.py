"""One bucket's log, read without opening it: checksum of every batch, offsets, indexes, writer snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from forebay.base.errors import CorruptData
from forebay.codec.log_batch import HEADER_SIZE_MAX, LogBatchHeader, parse_header
from forebay.fs import names
from forebay.fs.interface import FileMissing, FileSystem, PositionalReader
from forebay.log.config import LogConfig
from forebay.log.recovery import snapshot_offsets
from forebay.log.scan import CorruptBatch, scan_batches, scan_headers
from forebay.log.writer_state import WriterStates
from forebay.verify.report import OnStep, Report

_CONFIG = LogConfig()


@dataclass(frozen=True, slots=True)
class _SegmentFile:
    path: str
    base: int
    size: int


@dataclass
class LogImage:
    """The sound part of a log: offsets from `start` to `end` (exclusive)."""

    fs: FileSystem
    folder: str
    start: int = 0
    end: int = 0
    is_whole: bool = True
    """Whether nothing is damaged; otherwise `end` is the offset of the first damage."""
    segments: list[_SegmentFile] = field(default_factory=list)

    def batches(self, start: int, end: int) -> Iterator[tuple[LogBatchHeader, memoryview]]:
        """Yield (header, bytes) of the batches that hold the offsets from `start` to `end`."""
        for segment in self.segments:
            reader = self.fs.open_reader(segment.path)
            try:
                for position, header in scan_headers(reader, 0, segment.size, segment.base):
                    if header.base_offset >= end:
                        return
                    if header.next_offset > start:
                        yield header, memoryview(reader.pread(position, header.size_bytes))
            finally:
                reader.close()


class _Indexes:
    """The entries of a segment's index files, compared with the batches as they are read."""

    def __init__(self, fs: FileSystem, folder: str, base: int) -> None:
        self._base = base
        self._offset_path = names.offset_file(folder, base, names.OFFSET_INDEX_SUFFIX)
        self._time_path = names.offset_file(folder, base, names.TIME_INDEX_SUFFIX)
        self._positions = dict(_entries(fs, self._offset_path, ">i4"))
        self._times = dict(_entries(fs, self._time_path, ">i8"))
        self._wrong: dict[str, int] = {}

    @property
    def positions(self) -> list[int]:
        """The positions of batches according to the index."""
        return sorted(self._positions)

    def compare(self, position: int, header: LogBatchHeader) -> None:
        """Compare the entries with a batch."""
        relative = header.base_offset - self._base
        entry = self._positions.pop(position, None)
        if entry is not None and entry[0] != relative:
            self._wrong.setdefault(self._offset_path, entry[1])
        entry = self._times.pop(relative, None)
        if entry is not None and entry[0] != header.commit_timestamp_ms:
            self._wrong.setdefault(self._time_path, entry[1])

    def report(self, report: Report, end_position: int, end_offset: int) -> None:
        """Report entries that disagree with a batch, or point to none, below the sound end of the segment."""
        for position, (_, byte) in sorted(self._positions.items()):
            if position < end_position:
                self._wrong.setdefault(self._offset_path, byte)
        for relative, (_, byte) in sorted(self._times.items()):
            if relative < end_offset - self._base:
                self._wrong.setdefault(self._time_path, byte)
        for path, byte in self._wrong.items():
            report.fault(path, f"{path} is damaged at byte {byte}: no batch is as it says (indexes are rebuilt)")


def _entries(fs: FileSystem, path: str, key: str) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield (value, (key, byte)) of an index file's entries, without zeros at its end, which a power failure leaves."""
    try:
        data = fs.read_bytes(path)
    except FileMissing:
        return
    entry = np.dtype([("key", key), ("value", ">i4")])
    found = np.frombuffer(data, entry, len(data) // entry.itemsize)
    for number, (first, second) in enumerate(found.tolist()):
        if first or second:
            yield second, (first, number * entry.itemsize)


def check_log(
    fs: FileSystem, folder: str, recovery_point: int | None, clean: bool, report: Report, on_step: OnStep
) -> LogImage:
    """Check all files of a log, and return its sound part; damage goes to `report`.

    `recovery_point`: below it the log was synced. `clean`: it was closed, so nothing may be missing at its end.
    """
    sizes = {}
    for entry in fs.list_directory(folder):
        kind = names.parse_offset_file(entry.name)
        if kind is not None and kind[1] == names.LOG_SUFFIX:
            sizes[kind[0]] = entry.size_bytes
    image = LogImage(fs, folder)
    durable = 2**63 - 1 if clean else (recovery_point or 0)
    if sizes:
        image.start = image.end = min(sizes)
    total = sum(sizes.values())
    done = 0
    for base in sorted(sizes):
        path = names.log_file(folder, base)
        if base != image.end:
            text = f"{path} begins where offset {image.end} should: batches in between are missing"
            _bad_end(report, path, text, image.end < durable or not image.is_whole)
            image.is_whole = False
            break
        _check_segment(image, path, sizes[base], durable, base != max(sizes), report)
        done += sizes[base]
        on_step(f"log {folder}", done, total)
        if not image.is_whole:
            break
    report.count("log segments", len(sizes))
    report.count("bytes of log", total)
    wrong_end = image.end != recovery_point if clean and sizes else image.end < (recovery_point or 0)
    if image.is_whole and recovery_point is not None and wrong_end:
        report.fault(folder, f"{folder} ends at offset {image.end}, and was durable up to {recovery_point}")
        image.is_whole = False
    _check_writer_snapshots(fs, folder, image, clean, report)
    return image


def _check_segment(image: LogImage, path: str, size: int, durable: int, has_later: bool, report: Report) -> None:
    indexes = _Indexes(image.fs, image.folder, image.end)
    base, position = image.end, 0
    hints = indexes.positions
    reader = image.fs.open_reader(path)
    try:
        for at, header in scan_batches(reader, 0, size, base, _CONFIG.scan_bytes):
            indexes.compare(at, header)
            position, image.end = at + header.size_bytes, header.next_offset
            report.count("batches")
    except CorruptBatch as problem:
        behind = (
            has_later
            or any(hint > problem.position and _is_batch(reader, hint, size) for hint in hints)
            or _follows(reader, problem, size)
        )
        is_fault = problem.offset < durable or behind
        _bad_end(report, path, problem.message, is_fault)
        image.is_whole = not is_fault
    finally:
        reader.close()
    image.segments.append(_SegmentFile(path, base, position))
    indexes.report(report, position, image.end)


def _bad_end(report: Report, path: str, text: str, is_fault: bool) -> None:
    if is_fault:
        report.fault(path, text)
    else:
        report.note(path, f"{text}. It is the unsynced end of the log, which the server truncates when it starts")


def _follows(reader: PositionalReader, problem: CorruptBatch, size: int) -> bool:
    """Whether the damaged batch still gives the position of the next one, and that is sound."""
    try:
        position, header = next(scan_headers(reader, problem.position, size, problem.offset))
    except (CorruptData, StopIteration):
        return False
    return _is_batch(reader, position + header.size_bytes, size)


def _is_batch(reader: PositionalReader, position: int, size: int) -> bool:
    """Whether a sound batch begins at `position`, whatever its offset."""
    try:
        header = parse_header(reader.pread(position, HEADER_SIZE_MAX), 0, size - position)
        return next(scan_batches(reader, position, size, header.base_offset, _CONFIG.scan_bytes), None) is not None
    except CorruptData:
        return False


def _check_writer_snapshots(fs: FileSystem, folder: str, image: LogImage, clean: bool, report: Report) -> None:
    for offset in snapshot_offsets(fs, folder):
        path = names.writer_snapshot_file(folder, offset)
        report.count("writer snapshots")
        try:
            WriterStates(_CONFIG.writer_expiry_ms).load_snapshot(fs.read_bytes(path), offset)
        except CorruptData as e:
            report.fault(path, f"{path} is damaged: {e.message} (the server reads the log instead)")
            continue
        if offset > image.end and image.is_whole:
            text = f"it stands for the batches below offset {offset}, and the log ends at {image.end}"
            (report.fault if clean else report.note)(path, text)
