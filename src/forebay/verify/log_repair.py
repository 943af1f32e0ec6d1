"""A damaged log, rewritten so that a server opens it: sound batches stay, at their offsets, and what is lost is empty.

Offsets of a log have no gaps, and readers pass over empty batches. So each lost offset becomes a batch without records.
A batch of which only fields outside its checksum are damaged (its offset, length or version) is not lost: what they
must be is known from its neighbours. The bytes that are replaced are kept beside the log (`names.damaged_file`).

A segment is rewritten under a temporary name and then replaced. After a crash the log is the old one, the new one, or
has some segments of each; the repair can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest
from forebay.codec.log.header import (
    BASE_OFFSET_OFFSET,
    HEADER_SIZES,
    LENGTH_OFFSET,
    LENGTH_OVERHEAD,
    MAGIC_OFFSET,
    MAGIC_V0,
    parse_header,
    stamp,
    verify_crc,
)
from forebay.codec.log.log_batch import build_empty_batch
from forebay.fs import names
from forebay.fs.interface import AppendFile, FileMissing, FileSystem, PositionalReader
from forebay.log.config import SEGMENT_BYTES_LIMIT
from forebay.log.damage import Gap
from forebay.log.log_ends import LogEndEvidence
from forebay.log.recovery import begins_too_late
from forebay.verify.logs import LogImage, check_log
from forebay.verify.report import Report, no_steps

_COPY_BYTES = 4 << 20
_FILLERS_AT_ONCE = 50_000


class Loss(NamedTuple):
    """A damaged part of a log."""

    path: str
    position: int
    offsets: range
    reason: str
    is_mended: bool = False
    """Whether its rows are all there: only fields of a header were damaged."""


class LogRepair:
    """The repair of one log. `losses` is empty if there is nothing to repair."""

    def __init__(self, fs: FileSystem, folder: str, evidence: LogEndEvidence, *, is_append_only: bool) -> None:
        self.image: LogImage = check_log(fs, folder, evidence, Report(), no_steps)
        self._fs = fs
        self._folder = folder
        self._evidence = evidence
        self._template = bytes(build_empty_batch(schema_id=1, append_only=is_append_only))
        self._mended: dict[Gap, bytes] = {}
        self.losses = self._find_losses()

    def _find_losses(self) -> list[Loss]:
        image, evidence = self.image, self._evidence
        losses = []
        head = image.missing_head
        if head:
            reason = f"{self._folder} {begins_too_late(head.stop, head.start)}"
            losses.append(Loss(names.log_file(self._folder, head.start), 0, self._fitting(head, 0, reason), reason))
            image.start = head.start
        for gap in image.gaps:
            if gap.next_offset is not None and gap.next_offset < gap.offset:
                raise CorruptData(f"{gap.reason}: offsets occur twice; restore the log from a backup")
            mended = self._mend(gap)
            if mended is not None:
                self._mended[gap] = mended
            losses.append(Loss(gap.path, gap.position, gap.lost(evidence.end), gap.reason, mended is not None))
        end = image.last_end
        if end is not None and end < evidence.end:
            base, size, _ = self._files()[-1]
            reason = f"{self._folder} ends at offset {end}, and {evidence}"
            lost = self._fitting(range(end, evidence.end), size, reason)
            losses.append(Loss(names.log_file(self._folder, base), size, lost, reason))
        return losses

    def _fitting(self, lost: range, size: int, reason: str) -> range:
        """`lost`, if as many empty batches fit into a segment of `size` bytes."""
        if size + len(lost) * len(self._template) > SEGMENT_BYTES_LIMIT:
            raise CorruptData(
                f"{reason}: too much is lost to continue without it. Restore the log from a backup, or drop the table "
                "or partition",
                ErrorCode.CORRUPT_RECORD_EXCEPTION,
            )
        return lost

    def _files(self) -> list[tuple[int, int, int | None]]:
        """The segments as `LogImage.segment_files`, with an empty one for those that are lost at the beginning."""
        files, head = self.image.segment_files(), self.image.missing_head
        return [(head.start, 0, head.stop), *files] if head else files or [(0, 0, None)]

    @property
    def _missing_end(self) -> range:
        end = self.image.last_end
        return range(0) if end is None else range(end, max(end, self._evidence.end))

    @property
    def end(self) -> int:
        """The end of the log when it is repaired."""
        end = self.image.last_end
        return max(self._evidence.end, self.image.gaps[-1].offset if end is None else end)

    def _mend(self, gap: Gap) -> bytes | None:
        """The batch in a gap, if only its offset, length or version is damaged."""
        reader = self._fs.open_reader(gap.path)
        try:
            data = reader.pread(gap.position, gap.end_position - gap.position)
        finally:
            reader.close()
        if not HEADER_SIZES[0] <= len(data) <= SEGMENT_BYTES_LIMIT:
            return None
        for magic in (data[MAGIC_OFFSET], 0, 1, 2):
            batch = bytearray(data)
            batch[BASE_OFFSET_OFFSET:LENGTH_OFFSET] = gap.offset.to_bytes(8, "little")
            batch[LENGTH_OFFSET:LENGTH_OVERHEAD] = (len(data) - LENGTH_OVERHEAD).to_bytes(4, "little")
            batch[MAGIC_OFFSET] = magic
            try:
                header = parse_header(batch)
                verify_crc(batch, 0, header)
            except CorruptData:
                continue
            if gap.next_offset in (None, header.next_offset):
                return bytes(batch)
        return None

    # ---- making it so

    def keep_damaged(self) -> None:
        """Copy the bytes that will be replaced to files of their own, durably."""
        for gap in self.image.gaps:
            reader = self._fs.open_reader(gap.path)
            try:
                data = reader.pread(gap.position, gap.end_position - gap.position)
            finally:
                reader.close()
            self._fs.publish_if_absent(names.damaged_file(self._folder, gap.offset), data)

    def rewrite(self, added: Sequence[bytes] = ()) -> None:
        """Replace the damaged segments, the last one last, and append the batches `added`, which begin at `end`."""
        files = self._files()
        self._fs.make_directories(self._folder)
        for number, (base, size, _) in enumerate(files):
            path = names.log_file(self._folder, base)
            gaps = [gap for gap in self.image.gaps if gap.path == path]
            is_last = number == len(files) - 1
            head = self.image.missing_head
            filled = head if head and number == 0 else self._missing_end if is_last else range(0)
            if gaps or filled or (is_last and added):
                self._rewrite_segment(path, size, gaps, filled, added if is_last else ())
                for suffix in (names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX):
                    index = names.offset_file(self._folder, base, suffix)
                    if self._fs.exists(index):
                        self._fs.remove(index)
        self._fs.sync_directory(self._folder)

    def _rewrite_segment(
        self, path: str, size: int, gaps: Sequence[Gap], filled: range, added: Sequence[bytes]
    ) -> None:
        temporary = names.join(self._folder, names.temporary_name(path.rpartition("/")[2], "repair"))
        try:
            self._fs.remove(temporary)
        except FileMissing:
            pass  # it is there only after a repair that was interrupted
        if not self._fs.exists(path):
            self._fs.write_atomic(path, b"")
        reader = self._fs.open_reader(path)
        file = self._fs.open_append(temporary)
        try:
            position = 0
            for gap in gaps:
                _copy(reader, file, position, gap.position)
                for part in [self._mended[gap]] if gap in self._mended else self._fillers(gap.lost(self._evidence.end)):
                    file.append([part])
                position = gap.end_position
            _copy(reader, file, position, size)
            for part in self._fillers(filled):
                file.append([part])
            for batch in added:
                file.append([batch])
            if file.size > SEGMENT_BYTES_LIMIT:
                raise InvalidRequest(
                    f"{path} would become larger than a segment can be: {file.size} bytes. Restore it from a backup, "
                    "or drop the table",
                    ErrorCode.INVALID_CONFIG_EXCEPTION,
                )
            file.sync()
        finally:
            file.close()
            reader.close()
        self._fs.rename(temporary, path)

    def _fillers(self, offsets: range) -> Iterator[bytes]:
        """Empty batches, one for each offset, with the commit time of the batch before."""
        template = bytearray(self._template)
        stamp(template, 0, 0, self._time_before(offsets.start))
        for first in range(offsets.start, offsets.stop, _FILLERS_AT_ONCE):
            count = min(_FILLERS_AT_ONCE, offsets.stop - first)
            batches = np.tile(np.frombuffer(template, np.uint8), count).reshape(count, HEADER_SIZES[MAGIC_V0])
            numbers = np.arange(first, first + count, dtype="<i8").view(np.uint8).reshape(count, 8)
            batches[:, BASE_OFFSET_OFFSET:LENGTH_OFFSET] = numbers
            yield batches.tobytes()

    def last_time(self) -> int:
        """The commit time of the last sound batch."""
        return self._time_before(1 << 62)

    def _time_before(self, offset: int) -> int:
        time = 0
        for header, _ in self.image.sound_batches():
            if header.base_offset >= offset:
                return time or header.commit_timestamp_ms
            time = header.commit_timestamp_ms
        return time


def _copy(reader: PositionalReader, file: AppendFile, start: int, end: int) -> None:
    while start < end:
        data = reader.pread(start, min(_COPY_BYTES, end - start))
        if not data:
            raise CorruptData(f"{file.path}: the segment became shorter while it was copied")
        file.append([data])
        start += len(data)
