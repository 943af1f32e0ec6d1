"""The status of a tiering service: values for metrics, text and HTML for users."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.base.markup import grid, heading
from forebay.metadata.table import TablePath
from forebay.tiering.report import RoundReport
from forebay.tiering.steps import RoundStep

HEADER = ("table", "state", "splits", "rounds", "rows", "MB read", "behind (records)", "behind (s)", "last error")


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The status of one table of a service.

    `phase` is its round's phase (`RoundStep.phase`), "pausing" after a failure, or "waiting" while the table is not
    assigned. Counts are those of this service since it was started.
    """

    path: TablePath
    phase: str
    splits_done: int = 0
    splits: int = 0
    rounds: int = 0
    failures: int = 0
    rows: int = 0
    read_bytes: int = 0
    last_report: RoundReport | None = None
    last_error: str | None = None

    def cells(self) -> tuple[str, ...]:
        """The values below `HEADER`."""
        report = self.last_report
        lag = None if report is None else report.lag_records
        seconds = None if report is None else report.lag_seconds
        return (
            str(self.path),
            self.phase,
            f"{self.splits_done}/{self.splits}" if self.phase == RoundStep.WRITE.phase else "",
            f"{self.rounds:,}" + (f" ({self.failures} failed)" if self.failures else ""),
            f"{self.rows:,}",
            f"{self.read_bytes / 1e6:,.1f}",
            "" if lag is None else f"{lag:,}",
            "" if seconds is None else f"{seconds:,.1f}",
            self.last_error or "",
        )


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """All tables of a service. `cluster_error` is the error of the last heartbeat, None if it succeeded."""

    running: bool
    tables: tuple[TableStatus, ...]
    cluster_error: str | None = None

    @property
    def rounds(self) -> int:
        return sum(table.rounds for table in self.tables)

    @property
    def failures(self) -> int:
        return sum(table.failures for table in self.tables)

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)

    @property
    def read_bytes(self) -> int:
        return sum(table.read_bytes for table in self.tables)

    @property
    def title(self) -> str:
        state = "running" if self.running else "stopped"
        trouble = f", the cluster does not respond: {self.cluster_error}" if self.cluster_error else ""
        return f"{state}, {self.rounds:,} rounds, {self.rows:,} rows{trouble}"

    def _repr_html_(self) -> str:
        return status_html(self)


def status_html(status: ServiceStatus) -> str:
    """Return a heading and a row for each table."""
    return heading("Forebay tiering", status.title) + grid(HEADER, [table.cells() for table in status.tables])
