"""Cutting splits into files and joining them again, for engines that need other sizes than planners produce.

A split can be cut where each of its files can be read separately: files of append tables, files that need no merging,
and files of changes. `by_file` cuts there and leaves other splits whole. `joined` joins adjacent pieces again; reading
the result returns the rows of the pieces in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from forebay.paimon.format.split import DataSplit
from forebay.paimon.read.change_planner import ChangeSplit


def by_file(splits: Iterable[ChangeSplit]) -> list[ChangeSplit]:
    """`splits`, cut into single files where possible, in the same order."""
    return [piece for split in splits for piece in _files_of(split)]


def _files_of(split: ChangeSplit) -> Sequence[ChangeSplit]:
    if not isinstance(split, DataSplit) or not (split.raw_convertible or split.is_streaming) or len(split.files) < 2:
        return (split,)
    deletions = split.deletion_files or (None,) * len(split.files)
    return [
        replace(split, files=(file,), deletion_files=None if deletion is None else (deletion,))
        for file, deletion in zip(split.files, deletions, strict=True)
    ]


def joined(pieces: Iterable[ChangeSplit]) -> list[ChangeSplit]:
    """`pieces`, with adjacent ones of the same kind, bucket and snapshot joined into one split."""
    splits: list[ChangeSplit] = []
    for group in _neighbours(pieces):
        first = group[0]
        if not isinstance(first, DataSplit):
            splits += group
            continue
        parts = [piece for piece in group if isinstance(piece, DataSplit)]
        deletions = tuple(d for p in parts for d in p.deletion_files or (None,) * len(p.files))
        files = tuple(file for part in parts for file in part.files)
        splits.append(replace(first, files=files, deletion_files=deletions if any(deletions) else None))
    return splits


def _neighbours(pieces: Iterable[ChangeSplit]) -> list[list[ChangeSplit]]:
    groups: list[list[ChangeSplit]] = []
    last: tuple[object, ...] | None = None
    for piece in pieces:
        kind = _kind(piece)
        if kind is None or kind != last:
            groups.append([])
        groups[-1].append(piece)
        last = kind
    return groups


def _kind(split: ChangeSplit) -> tuple[object, ...] | None:
    """The common key of pieces that can be read as one split; None for a piece that must be read alone."""
    if not isinstance(split, DataSplit) or not (split.raw_convertible or split.is_streaming):
        return None
    return split.snapshot_id, split.partition, split.bucket, split.total_buckets, split.is_streaming


def file_count(split: ChangeSplit) -> int:
    """The number of data files that a reader of `split` opens."""
    return len(split.files) if isinstance(split, DataSplit) else len(split.file_names)


def byte_count(split: ChangeSplit) -> int:
    """The total size of the data files of `split`, in bytes."""
    halves = (split,) if isinstance(split, DataSplit) else (split.before, split.after)
    return sum(file.file_size for half in halves for file in half.files)
