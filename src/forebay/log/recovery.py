"""Opening a bucket's log: finds its files, checks their batches, and restores the state of its writers.

Rules:
- Below the *recovery point* the log was synced, and below its *written end* all appends were complete when the last
  process ended (`forebay.log.log_ends`). Damage or missing data there is corruption, and an error that says which
  offsets are lost; nothing is truncated.
- Above them, after an unclean end, every batch is checked, and the log is truncated at the first bad one: it was never
  acknowledged, and the server must start nevertheless (apache/fluss#2942). A segment that does not begin where the
  previous one ends is removed, too.
- If the written end is unknown because the power failed, a bad batch is still an error if no power failure can have
  torn it (`forebay.log.damage`).
- The remaining log is synced before it is used. The kernel's cache is dropped before the check: after a failed sync,
  bytes may appear written without being on the disk.
- A log begins at or below its *noted start*, the name of an empty file that is durable before retention removes
  segments. Otherwise its first segments are lost, which is corruption, too.
- Temporary files, and indexes without a log, are removed.

Flow: `load_segments`, then `rebuild_writer_states`; both are called by `LogTablet.open`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from forebay.base.errors import CorruptData, ErrorCode, StorageFailure
from forebay.fs import names
from forebay.fs.interface import FileMissing, FileSystem
from forebay.log.config import LogConfig
from forebay.log.damage import Gap
from forebay.log.log_ends import LogEndEvidence
from forebay.log.scan import CorruptBatch
from forebay.log.segment import LogSegment, SegmentView
from forebay.log.writer_state import WriterStates

Progress = Callable[[int, int], None]
"""Told (bytes checked so far, bytes to check)."""

_NO_OFFSET = 2**63 - 1


@dataclass(slots=True)
class RecoveryReport:
    """The results of opening a log."""

    clean: bool
    checked_bytes: int = 0
    """Bytes whose checksums were computed."""
    cut_bytes: int = 0
    """Bytes truncated at the end: never acknowledged, or unsynced and torn by a power failure."""
    is_cut_exact: bool = False
    """Whether it is known that none of the truncated bytes were acknowledged, because the log's written end is."""
    cut_reason: str | None = None
    """The defect of the first truncated batch."""
    removed_files: list[str] = field(default_factory=list)
    """Left-over files, and segments after a cut."""
    replayed_batches: int = 0
    """Batches replayed to restore the writers' state."""
    unusable_writer_snapshots: list[str] = field(default_factory=list)
    """Damaged snapshots, removed; the log made good for them."""


def load_segments(
    fs: FileSystem,
    folder: str,
    config: LogConfig,
    evidence: LogEndEvidence,
    start_offset: int,
    progress: Progress | None,
) -> tuple[list[LogSegment], RecoveryReport]:
    """Return the segments of the log in `folder`, in order, the last one open for appending; at least one.

    If it was closed gracefully, only its tail is checked, and nothing may be wrong. A log that does not exist begins,
    empty, at `start_offset`. Raises `CorruptData` and `StorageFailure`.
    """
    report = RecoveryReport(evidence.clean, is_cut_exact=evidence.written is not None)
    fs.make_directories(folder)
    sizes = _list_segments(fs, folder, report)
    if not sizes:
        if evidence.end > start_offset:
            raise _corrupt(f"{folder} holds no log, which {evidence}. {_REMEDY}")
        note_start(fs, folder, start_offset)  # durable with the segment
        return [LogSegment.create(fs, folder, start_offset, config)], report

    bases = sorted(sizes)
    start = noted_start(fs, folder)
    if start is None:
        note_start(fs, folder, bases[0])
    elif start < bases[0]:
        raise _corrupt(f"{folder} {begins_too_late(bases[0], start)}. {_REMEDY}")
    ends = [*bases[1:], bases[-1]]
    segments = [
        LogSegment(fs, folder, base, config, SegmentView(sizes[base], end))
        for base, end in zip(bases, ends, strict=True)
    ]
    check_from = _NO_OFFSET if evidence.clean else evidence.recovery_point or 0
    first = max([index for index, base in enumerate(bases) if base <= check_from], default=0)
    try:
        retained = _check(segments, first, check_from, evidence, report, progress)
        end = retained[-1].view.next_offset
        if not evidence.allows(end):
            raise _corrupt(
                f"{folder} ends at offset {end}, and {evidence}: acknowledged batches are missing. {_REMEDY}"
            )
        _make_durable(fs, folder, segments, retained, first, report)
    except BaseException:
        close_all(segments)
        raise
    return retained, report


def has_segments(fs: FileSystem, folder: str) -> bool:
    """Whether there is a log in `folder`."""
    try:
        entries = fs.list_directory(folder)
    except FileMissing:
        return False
    kinds = [names.parse_offset_file(entry.name) for entry in entries]
    return any(kind is not None and kind[1] == names.LOG_SUFFIX for kind in kinds)


def close_all(segments: Iterable[LogSegment]) -> None:
    """Close segments of a log that cannot be opened: whoever has the error would keep their files open."""
    for segment in segments:
        segment.close()


def note_start(fs: FileSystem, folder: str, offset: int) -> None:
    """Note that a log may begin at `offset`; durable when the folder is synced."""
    fs.open_append(names.offset_file(folder, offset, names.LOG_START_SUFFIX)).close()


def noted_starts(fs: FileSystem, folder: str) -> list[int]:
    """All offsets that were noted, in order; only the last one counts."""
    parsed = [names.parse_offset_file(entry.name) for entry in fs.list_directory(folder)]
    return sorted(kind[0] for kind in parsed if kind is not None and kind[1] == names.LOG_START_SUFFIX)


def noted_start(fs: FileSystem, folder: str) -> int | None:
    """The offset at or below which a log begins; None: not noted, by an earlier release."""
    return max(noted_starts(fs, folder), default=None)


def begins_too_late(base: int, start: int) -> str:
    """In words, that the first segments of a log are lost."""
    return f"begins at offset {base}, and should at {start}: offsets {start} to {base - 1} are lost"


def _list_segments(fs: FileSystem, folder: str, report: RecoveryReport) -> dict[int, int]:
    """Size by base offset of the segment files; removes left-overs."""
    entries = fs.list_directory(folder)
    parsed = {entry.name: names.parse_offset_file(entry.name) for entry in entries if not entry.is_directory}
    sizes = {
        kind[0]: entry.size_bytes
        for entry in entries
        if (kind := parsed.get(entry.name)) is not None and kind[1] == names.LOG_SUFFIX
    }
    for name, kind in parsed.items():
        is_index = kind is not None and kind[1] in (names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)
        if names.is_temporary(name) or (is_index and kind is not None and kind[0] not in sizes):
            fs.remove(names.join(folder, name))
            report.removed_files.append(name)
    return sizes


_REMEDY = (
    "Restore the folder from a backup, or stop the server and give up what is lost by "
    "`forebay repair --accept-loss`; `forebay verify --data-dir` lists it"
)


def _check(
    segments: list[LogSegment],
    first: int,
    check_from: int,
    evidence: LogEndEvidence,
    report: RecoveryReport,
    progress: Progress | None,
) -> list[LogSegment]:
    """Check the batches from offset `check_from` on, in the segments from the `first` on.

    Return the segments to keep, the last of which may need a cut.
    """
    total = sum(segment.view.size for segment in segments[first:])

    def scanned(size: int) -> None:
        report.checked_bytes += size
        if progress is not None:
            progress(report.checked_bytes, total)

    for index in range(first, len(segments)):
        segment = segments[index]
        before = segments[index - 1] if index > first else None
        if before is not None and segment.base_offset != before.view.next_offset:
            missing = before.view.next_offset
            reason = f"{segment.path} begins where offset {missing} should, and {before.path} ends there"
            if missing < evidence.end:
                raise _corrupt(
                    f"{reason}. The log {evidence}: offsets {missing} to {segment.base_offset - 1} are lost. {_REMEDY}"
                )
            report.cut_reason = reason
            return segments[:index]
        problem = segment.recover(check_from, scanned, distrust_cache=not report.clean)
        if problem is not None:
            _require_torn(
                segment, problem, segments[index + 1].base_offset if index + 1 < len(segments) else None, evidence
            )
            report.cut_reason = problem.message
            return segments[: index + 1]
    return segments


def _require_torn(segment: LogSegment, problem: CorruptBatch, next_base: int | None, evidence: LogEndEvidence) -> None:
    """Raise an error if the first bad batch is damage, and not the end of a write that was never acknowledged."""
    gap, may_be_torn = segment.damage_at(problem, next_base)
    if evidence.clean or gap.offset < evidence.end:
        why = f"The log {evidence}, so this is damage"
    elif evidence.written is None and not may_be_torn:
        why = "The batch is all there and none of its sectors is empty, so no power failure has torn it: this is damage"
    else:
        return
    error = CorruptBatch(f"{problem.message}. {why}, and nothing was cut: {_gap_text(gap, evidence.end)}. {_REMEDY}")
    error.position, error.offset = problem.position, problem.offset
    raise error


def _gap_text(gap: Gap, end: int) -> str:
    if gap.end_position == gap.file_size:
        return gap.description(end)
    return f"{gap.description(end)}, and sound batches follow from offset {gap.next_offset} on"


def _make_durable(
    fs: FileSystem,
    folder: str,
    segments: list[LogSegment],
    retained: list[LogSegment],
    first: int,
    report: RecoveryReport,
) -> None:
    """Remove what is not kept, cut the last kept segment, and sync what was checked.

    If a crash brings a removed segment back, it stands behind a gap again, until the folder is synced.
    """
    for segment in segments[len(retained) :]:
        report.cut_bytes += segment.view.size
        report.removed_files.append(segment.path.rpartition("/")[2])
        segment.delete_files()
    if len(retained) < len(segments):
        fs.sync_directory(folder)
    for segment in retained[first:]:
        report.cut_bytes += segment.open_for_append()
        if not report.clean:
            segment.sync()
        if segment is not retained[-1]:
            segment.close_append()


def rebuild_writer_states(
    fs: FileSystem, folder: str, segments: Sequence[LogSegment], states: WriterStates, report: RecoveryReport
) -> list[int]:
    """Set `states` to what the newest usable snapshot and the batches after it say.

    Removes, durably, the snapshots that cannot be used: damaged ones, and those beyond the end of the log, which
    describe batches that are no more. Returns the offsets of the snapshots that stay, in order.
    """
    end = segments[-1].view.next_offset
    offsets = snapshot_offsets(fs, folder)
    usable = [offset for offset in offsets if offset <= end]
    states.clear()
    start = 0
    while usable:
        path = names.writer_snapshot_file(folder, usable[-1])
        try:
            states.load_snapshot(fs.read_bytes(path), usable[-1])
        except CorruptData:
            report.unusable_writer_snapshots.append(path)
            usable.pop()
        else:
            start = usable[-1]
            break
    for offset in offsets:
        if offset not in usable:
            fs.remove(names.writer_snapshot_file(folder, offset))
    if len(usable) < len(offsets):
        fs.sync_directory(folder)
    for segment in segments:
        if segment.view.next_offset > start:
            for _, header in segment.headers_from(max(start, segment.base_offset)):
                states.record(header, header.base_offset, header.commit_timestamp_ms)
                report.replayed_batches += 1
    return usable


def snapshot_offsets(fs: FileSystem, folder: str) -> list[int]:
    """Offsets of the writer snapshots in `folder`, in order."""
    parsed = [names.parse_offset_file(entry.name) for entry in fs.list_directory(folder)]
    return sorted(kind[0] for kind in parsed if kind is not None and kind[1] == names.WRITER_SNAPSHOT_SUFFIX)


def remove_writer_snapshots(fs: FileSystem, folder: str) -> None:
    """Remove, durably, all writer snapshots in `folder`."""
    for offset in snapshot_offsets(fs, folder):
        fs.remove(names.writer_snapshot_file(folder, offset))
    fs.sync_directory(folder)


def take_writer_snapshot(
    fs: FileSystem,
    folder: str,
    states: WriterStates,
    end_offset: int,
    snapshots: list[int],
    retained: int,
    synced_offset: int,
    copied_end: int | None = None,
) -> bool:
    """Write a snapshot at `end_offset`, add it to `snapshots`, and remove the oldest ones beyond `retained`.

    One at or below `synced_offset` always stays: a power loss may cut the log, and then newer ones are void. Those
    behind `copied_end` stay, too: a remote log has yet to get them. Returns False when storage refuses: the log has all
    that a snapshot holds.
    """
    if snapshots and snapshots[-1] == end_offset:
        return True
    try:
        fs.write_atomic(names.writer_snapshot_file(folder, end_offset), states.to_snapshot(end_offset))
    except StorageFailure:
        return False
    snapshots.append(end_offset)
    with contextlib.suppress(StorageFailure):  # What stays is removed by a later call, or is of use.
        needed_from = synced_offset if copied_end is None else min(synced_offset, copied_end)
        while len(snapshots) > retained and snapshots[1] <= needed_from:
            fs.remove(names.writer_snapshot_file(folder, snapshots[0]))
            del snapshots[0]
    return True


def _corrupt(message: str) -> CorruptData:
    return CorruptData(message, ErrorCode.CORRUPT_RECORD_EXCEPTION)
