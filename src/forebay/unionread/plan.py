"""The plan of a union read, and its description in words: what is read from lake and logs, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from forebay.lake.source import LakeSplit
from forebay.metadata.predicate import Predicate, conjuncts, predicate_text
from forebay.metadata.table import TableBucket
from forebay.unionread.reading import UnionReader
from forebay.unionread.splits import (
    KeyLookupSplit,
    KvBucketSplit,
    LakeSnapshotAndLogSplit,
    LakeSnapshotSplit,
    LogSplit,
    UnionSplit,
)

_LINES_MAX = 12
"""Maximum number of listed splits of one kind; the rest are only counted."""


@dataclass(frozen=True)
class PlanFacts:
    """The facts behind a plan, for users (`UnionPlan.explain`)."""

    lake_format: str | None = None
    snapshot_id: int | None = None
    expired_snapshot_id: int | None = None
    """The snapshot that should have been read, if the lake does not have it (`forebay.unionread.expired`)."""

    lake_offsets: Mapping[TableBucket, int] = field(default_factory=dict)
    partition_names: Mapping[int, str] = field(default_factory=dict)
    lake_only_partitions: tuple[str, ...] = ()
    pruned_partitions: tuple[str, ...] = ()
    partition_filter: Predicate | None = None
    selection: str | None = None
    """Which buckets the filter leaves; None for all."""

    rolled_back: bool = False
    """Whether the snapshot that should have been read was undone by a rollback, and did not expire."""


@dataclass(frozen=True)
class UnionPlan:
    """The splits to read. `log_offsets`: for each bucket, the offset up to which its changes are in the result.

    A `KvBucketSplit` has no such offset before it is read, unless its bucket is empty; a `KeyLookupSplit` has none.
    """

    reader: UnionReader
    splits: tuple[UnionSplit, ...]
    log_offsets: Mapping[TableBucket, int]
    facts: PlanFacts

    @property
    def selection(self) -> str | None:
        """Which keys are looked up, or which buckets the filter leaves; None for all."""
        keys = sum(len(keys) for split in self.splits if isinstance(split, KeyLookupSplit) for _, keys in split.keys)
        where = [] if self.facts.selection is None else [self.facts.selection]
        return " in ".join([f"lookup of {_count(keys, 'key')}", *where]) if keys else self.facts.selection

    def pieces(self) -> list[PlanPiece]:
        """Return what is read of each bucket, in the order of the splits; lake splits of one place are one piece."""
        names, offsets = self.facts.partition_names, self.facts.lake_offsets
        alone: dict[tuple[str | None, int], list[LakeSplit]] = {}
        found = []

        def piece(kind: PieceKind, bucket: TableBucket, **values: Any) -> PlanPiece:
            partition = (
                None if bucket.partition_id is None else names.get(bucket.partition_id, str(bucket.partition_id))
            )
            return PlanPiece(
                kind, partition, bucket.bucket, table_bucket=bucket, is_in_lake=bucket in offsets, **values
            )

        for split in self.splits:
            match split:
                case LakeSnapshotSplit(lake):
                    alone.setdefault(("$".join(lake.partition()) or None, lake.bucket()), []).append(lake)
                case LakeSnapshotAndLogSplit(bucket, lakes, start, stop):
                    found.append(piece("overridden", bucket, lake=lakes, start=start, stop=stop))
                case LogSplit(bucket, start, stop):
                    found.append(piece("log", bucket, start=start, stop=stop))
                case KvBucketSplit(bucket):
                    found.append(piece("server", bucket))
                case KeyLookupSplit(keys):
                    found += [piece("lookup", bucket, keys=len(some)) for bucket, some in keys]
        first = [PlanPiece("lake", partition, number, tuple(lake)) for (partition, number), lake in alone.items()]
        return [*first, *found]

    def explain(self) -> str:
        """Return which lake splits and which log ranges are read, and why."""
        return "\n".join([*_head(self), *_filters(self), *_partitions(self), *_splits(self)])


PieceKind = Literal["lake", "overridden", "log", "lookup", "server"]


@dataclass(frozen=True)
class PlanPiece:
    """The part of a plan that concerns one bucket.

    `kind`: the "lake" alone, the lake "overridden" by the log, the "log" alone, keys to "lookup", or the current rows
    of the "server". `bucket` is `UNAWARE_BUCKET` where lake files are of all buckets. The log is read from `start` to
    before `stop`. `is_in_lake`: the lake has the log of the bucket up to `start`.
    """

    kind: PieceKind
    partition: str | None
    bucket: int
    lake: tuple[LakeSplit, ...] = ()
    start: int = 0
    stop: int = 0
    keys: int = 0
    is_in_lake: bool = False
    table_bucket: TableBucket | None = None

    @property
    def lake_rows(self) -> int | None:
        """The rows in its lake files, before they are merged; None if the format does not say."""
        rows = [split.rows() for split in self.lake]
        return None if None in rows else sum(each or 0 for each in rows)

    def __str__(self) -> str:
        where = "files of all buckets" if self.bucket < 0 else f"bucket {self.bucket}"
        return where if self.partition is None else f"partition {self.partition}, {where}"


# ---- in words -------------------------------------------------------------------------------------------------------


def _head(plan: UnionPlan) -> Iterator[str]:
    info, facts = plan.reader.info, plan.facts
    kind = f"primary key ({', '.join(info.schema.primary_key)})" if info.has_primary_key else "log table"
    buckets = f"{info.bucket_count} buckets{' in each partition' if info.is_partitioned else ''}"
    yield f"union read of {info.path}, {kind}, {buckets}"
    yield f"columns: {', '.join(plan.reader.schema.names) or 'none, rows are counted'}"
    if plan.reader.limit is not None:
        yield f"limit: {plan.reader.limit} rows; splits are read one after the other until it is reached"
    if plan.selection is not None:
        yield f"chosen by the filter: {plan.selection}"
    if facts.expired_snapshot_id is not None:
        how = "undone by a rollback of the lake table" if facts.rolled_back else "expired by another process"
        ends = "it" if facts.rolled_back else "the other one"
        yield f"lake: {facts.lake_format}, snapshot {facts.expired_snapshot_id} was {how}, so " + (
            "only the stream is read, which has all rows"
            if facts.snapshot_id is None
            else f"snapshot {facts.snapshot_id} is read, with the log from where {ends} ends"
        )
    elif facts.snapshot_id is not None:
        yield f"lake: {facts.lake_format}, snapshot {facts.snapshot_id}, the newest that a union read may start from"
    elif info.lake_enabled and facts.lake_format is None:
        yield "lake: no readable snapshot yet, so only the stream is read"
    else:
        yield "lake: the table is not tiered, so only the stream is read"


def _filters(plan: UnionPlan) -> Iterator[str]:
    parts = conjuncts(plan.reader.view.predicate)
    if not parts:
        return
    yield f"filter: {' AND '.join(map(predicate_text, parts))}"
    if plan.reader.lake is not None:
        for part in parts:
            is_accepted = part in plan.reader.lake.accepted
            yield f"  the lake {'skips rows by' if is_accepted else 'cannot use'}: {predicate_text(part)}"
    if plan.reader.info.has_primary_key and any(isinstance(s, LakeSnapshotAndLogSplit) for s in plan.splits):
        yield "  log ranges are read whole: a change that does not match may override a lake row that does"


def _partitions(plan: UnionPlan) -> Iterator[str]:
    facts = plan.facts
    if facts.pruned_partitions:
        yield f"partitions of the stream that are left out: {_some(facts.pruned_partitions)}"
    if facts.lake_only_partitions:
        yield f"partitions that only the lake has: {_some(facts.lake_only_partitions)}"


def _splits(plan: UnionPlan) -> Iterator[str]:
    pieces = plan.pieces()
    for kind, title in _TITLES.items():
        yield from _section(title, [_line(piece) for piece in pieces if piece.kind == kind])
    if not pieces:
        yield "nothing is read"


_TITLES = {
    "lake": "lake alone, as nothing in the log changes it",
    "overridden": "lake overridden by the changelog behind it",
    "log": "log alone",
    "lookup": "lookups on the servers, which have all rows of these buckets",
    "server": "current rows from the servers, as the lake has nothing of these buckets",
}


def _line(piece: PlanPiece) -> str:
    place, log = str(piece), f"log {piece.start} to {piece.stop} ({_count(piece.stop - piece.start, 'record')})"
    match piece.kind:
        case "lake":
            return f"{place}: {_count(len(piece.lake), 'lake split')}"
        case "overridden":
            why = f", because the snapshot holds the log up to {piece.start}" if piece.is_in_lake else ""
            return f"{place}: {_count(len(piece.lake), 'lake split')}, then {log}{why}"
        case "log":
            held = (
                "behind what the lake holds" if piece.is_in_lake else "from its beginning: the lake has nothing of it"
            )
            return f"{place}: {log}, {held}"
        case "lookup":
            return f"{place}: {_count(piece.keys, 'key')}"
    return place


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if not lines:
        return
    yield f"{title}:"
    for line in lines[:_LINES_MAX]:
        yield f"  {line}"
    if len(lines) > _LINES_MAX:
        yield f"  and {len(lines) - _LINES_MAX} more"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_LINES_MAX])
    return shown if len(names) <= _LINES_MAX else f"{shown} and {len(names) - _LINES_MAX} more"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
