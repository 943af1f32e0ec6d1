"""One bucket's log, read without opening it: checksum of every batch, offsets, indexes, writer snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from forebay.base.errors import CorruptData
from forebay.codec.log.header import LogBatchHeader
from forebay.fs import names
from forebay.fs.interface import FileMissing, FileSystem
from forebay.log.config import LogConfig
from forebay.log.damage import Gap, Segment, may_be_torn, read_segment
from forebay.log.log_ends import LogEndEvidence
from forebay.log.recovery import begins_too_late, noted_start, snapshot_offsets
from forebay.log.scan import scan_headers
from forebay.log.segment import indexed_positions
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
    gaps: list[Gap] = field(default_factory=list)
    """The damaged ranges; sound batches may follow each."""
    missing_head: range = range(0)
    """Offsets of first segments that are lost."""
    last_end: int | None = 0
    """Where the last sound batch ends, behind damage or not; None if the last one of all is damaged."""

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

    def sound_batches(self) -> Iterator[tuple[LogBatchHeader, memoryview]]:
        """Yield (header, bytes) of all sound batches, those behind damage, too."""
        for base, size, next_base in self.segment_files():
            with opened_segment(self.fs, self.folder, base, size, next_base) as segment:
                for item in read_segment(segment, _CONFIG.scan_bytes):
                    if not isinstance(item, Gap):
                        position, header = item
                        yield header, memoryview(segment.reader.pread(position, header.size_bytes))

    def segment_files(self) -> list[tuple[int, int, int | None]]:
        """(base offset, size, base offset of the next one) of each segment file."""
        sizes = segment_sizes(self.fs, self.folder)
        bases = sorted(sizes)
        return [(base, sizes[base], after) for base, after in zip(bases, [*bases[1:], None])]


class _Indexes:
    """The entries of a segment's index files, compared with the batches while they are read."""

    def __init__(self, fs: FileSystem, folder: str, base: int) -> None:
        self._base = base
        self._offset_path = names.offset_file(folder, base, names.OFFSET_INDEX_SUFFIX)
        self._time_path = names.offset_file(folder, base, names.TIME_INDEX_SUFFIX)
        self._positions = dict(_entries(fs, self._offset_path, ">i4"))
        self._times = dict(_entries(fs, self._time_path, ">i8"))
        self._wrong: dict[str, int] = {}

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
    entries = np.frombuffer(data, entry, len(data) // entry.itemsize)
    for number, (first, second) in enumerate(entries.tolist()):
        if first or second:
            yield second, (first, number * entry.itemsize)


def check_log(fs: FileSystem, folder: str, evidence: LogEndEvidence, report: Report, on_step: OnStep) -> LogImage:
    """Check all files of a log, and return its sound part; damage goes to `report`. The folder may be missing."""
    image = LogImage(fs, folder)
    sizes = segment_sizes(fs, folder)
    bases = sorted(sizes)
    if sizes:
        image.start = image.end = image.last_end = bases[0]
        start = noted_start(fs, folder)
        if start is not None and start < bases[0]:
            report.fault(folder, f"{folder} {begins_too_late(bases[0], start)}")
            image.missing_head = range(start, bases[0])
            image.is_whole = False
    total = sum(sizes.values())
    done = 0
    for base, next_base in zip(bases, [*bases[1:], None]):
        if not _check_segment(image, base, sizes[base], next_base, evidence, report):
            break
        done += sizes[base]
        on_step(f"log {folder}", done, total)
    report.count("log segments", len(sizes))
    report.count("bytes of log", total)
    end = image.last_end
    if end is not None and not (evidence.allows(end) if sizes else end >= evidence.end):
        lost = f"offsets {end} to {evidence.end - 1} are lost" if evidence.end > end else "it has batches beyond that"
        report.fault(folder, f"{folder} ends at offset {end}, and {evidence}: {lost}")
        image.is_whole = False
    _check_writer_snapshots(fs, folder, image, evidence.clean, report)
    return image


def segment_sizes(fs: FileSystem, folder: str) -> dict[int, int]:
    """The size of each segment file of a log, by its base offset."""
    sizes: dict[int, int] = {}
    if not fs.exists(folder):
        return sizes
    for entry in fs.list_directory(folder):
        kind = names.parse_offset_file(entry.name)
        if kind is not None and kind[1] == names.LOG_SUFFIX:
            sizes[kind[0]] = entry.size_bytes
    return sizes


@contextmanager
def opened_segment(fs: FileSystem, folder: str, base: int, size: int, next_base: int | None) -> Iterator[Segment]:
    """A segment file, to be read to its end whatever is damaged."""
    reader = fs.open_reader(names.log_file(folder, base))
    try:
        yield Segment(reader, size, base, next_base, indexed_positions(fs, folder, base, size))
    finally:
        reader.close()


def _check_segment(
    image: LogImage, base: int, size: int, next_base: int | None, evidence: LogEndEvidence, report: Report
) -> bool:
    """Check a segment. Return whether those behind it count: the server cuts them off behind a torn batch."""
    path = names.log_file(image.folder, base)
    indexes = _Indexes(image.fs, image.folder, base)
    position, offset = 0, base
    sound: tuple[int, int] | None = None
    goes_on = True
    last_ms = -1
    with opened_segment(image.fs, image.folder, base, size, next_base) as segment:
        for item in read_segment(segment, _CONFIG.scan_bytes):
            if isinstance(item, Gap):
                sound = sound or (item.position, item.offset)
                goes_on = _check_gap(image, segment, item, evidence, report)
                if not goes_on:
                    break
                image.last_end = item.next_offset
                continue
            at, header = item
            indexes.compare(at, header)
            if header.commit_timestamp_ms < last_ms:
                report.fault(path, f"{path} is damaged at byte {at}: the commit time of offset {header.base_offset} is "
                                   f"before that of the batch in front of it")  # fmt: skip
            last_ms = header.commit_timestamp_ms
            report.count("batches")
            position, offset = at + header.size_bytes, header.next_offset
            image.last_end = offset
            if not image.gaps:
                image.end = offset
    if not image.gaps:
        image.segments.append(_SegmentFile(path, base, position))
    elif base <= image.end:
        image.segments.append(_SegmentFile(path, base, min(position, image.gaps[0].position)))
    indexes.report(report, *(sound or (position, offset)))
    return goes_on


def _check_gap(image: LogImage, segment: Segment, gap: Gap, evidence: LogEndEvidence, report: Report) -> bool:
    """Report a gap, and return whether it is damage, after which the log continues."""
    is_fault = (
        evidence.clean or gap.offset < evidence.end or (evidence.written is None and not may_be_torn(segment, gap))
    )
    if is_fault:
        report.fault(gap.path, f"{gap.reason}: {gap.description(evidence.end)}")
        image.is_whole = False
        image.gaps.append(gap)
        return True
    what = "the unsynced end of the log" if evidence.written is None else "the end of a write that was not acknowledged"
    report.note(gap.path, f"{gap.reason}. It is {what}, which the server truncates when it starts")
    return False


def _check_writer_snapshots(fs: FileSystem, folder: str, image: LogImage, clean: bool, report: Report) -> None:
    for offset in snapshot_offsets(fs, folder) if image.segments else ():
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
