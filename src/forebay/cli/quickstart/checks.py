"""The check that the quickstart repeats while the stream and the tiering run: three ways to the same totals.

At one point in time a union read is planned, a table snapshot is opened, and the model's totals are recorded; the
stream is only held for these milliseconds. Both reads are then fixed, so they run while the tables continue to change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import InternalError
from forebay.cli.quickstart.screen import say
from forebay.cli.quickstart.stream import COUNTED, Stream, Totals
from forebay.unionread.scan import UnionRowReader
from forebay.unionread.splits import KvBucketSplit, LakeSnapshotAndLogSplit

if TYPE_CHECKING:
    from forebay.client.table import Table
    from forebay.unionread.plan import UnionPlan

_HEADER = "model", "full scan", "union read", "", "of the log in the lake", "from the log", "held", "read"


@dataclass(frozen=True)
class Check:
    """The results of the three ways at one point in time, and the composition of the union read.

    `in_lake` and `in_log` are numbers of changelog records: those that the union read took from the lake, as rows, and
    those that it read from the log; both are 0 while the lake is empty. `held_ms` is how long the stream was held.
    """

    day: str
    model: Totals
    full_scan: Totals
    union: Totals
    in_lake: int
    in_log: int
    held_ms: float
    read_seconds: float

    @property
    def agrees(self) -> bool:
        return self.model == self.full_scan == self.union

    def __str__(self) -> str:
        records = self.in_lake + self.in_log
        in_lake = f"{self.in_lake:,} ({self.in_lake / records:.0%})" if records else "nothing yet"
        cells = (
            f"{self.model.flights:,}",
            f"{self.full_scan.flights:,}",
            f"{self.union.flights:,}",
            "equal" if self.agrees else "DIFFERENT",
            in_lake,
            f"{self.in_log:,}" if records else "",
            f"{self.held_ms:.0f} ms",
            f"{self.read_seconds:.1f} s",
        )
        return _line(self.day, cells)


class Checker:
    """Runs checks, prints them, and collects them in `checks`."""

    def __init__(self, table: Table, stream: Stream) -> None:
        self._table, self._stream = table, stream
        self.checks: list[Check] = []

    def check(self) -> Check:
        """Compare now. Prints a line, and the differences if the three do not agree."""
        check = self._made()
        if not self.checks:
            say("", _line("day", _HEADER))
        self.checks.append(check)
        say(str(check))
        if not check.agrees:
            say(f"     model {check.model}", f"     full scan {check.full_scan}", f"     union read {check.union}")
        return check

    @property
    def all_agree(self) -> bool:
        return bool(self.checks) and all(check.agrees for check in self.checks)

    def _made(self) -> Check:
        began = SYSTEM_CLOCK.monotonic()
        with self._stream.held() as model:
            day = self._stream.day
            held_since = SYSTEM_CLOCK.monotonic()
            snapshot = self._table.snapshot(name="quickstart")
            reader = self._table.scan(COUNTED, source="union").reader()
            if not isinstance(reader, UnionRowReader):
                kind = type(reader).__name__
                raise InternalError(f"the source 'union' gives {kind}: another package has taken the name")
            plan = reader.plan
            # Buckets that are not in the lake yet are read at the time of the read, which must be now.
            early = Totals.of(reader) if any(isinstance(split, KvBucketSplit) for split in plan.splits) else None
            rows = snapshot.scan(COUNTED)
            full_scan = None if snapshot.is_exact else Totals.of(rows)  # clusters without table snapshots
            held_ms = (SYSTEM_CLOCK.monotonic() - held_since) * 1000
        with snapshot:
            full_scan = full_scan or Totals.of(rows)
        union = Totals.of(reader) if early is None else early
        in_lake, in_log = _parts(plan)
        return Check(day, model, full_scan, union, in_lake, in_log, held_ms, SYSTEM_CLOCK.monotonic() - began)


def _parts(plan: UnionPlan) -> tuple[int, int]:
    """The number of changelog records that the read takes from the lake, and from the log."""
    in_log = sum(split.stop - split.start for split in plan.splits if isinstance(split, LakeSnapshotAndLogSplit))
    return sum(plan.facts.lake_offsets.values()), in_log


def _line(day: str, cells: tuple[str, ...]) -> str:
    widths = (9, 10, 11, 10, 23, 13, 7, 6)
    return f"   {day:<10}" + "".join(f" {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
