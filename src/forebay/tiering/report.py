"""The figures of a finished round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay.metadata.table import TableInfo, TablePath
from forebay.tiering.splits import SplitResult


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One finished round.

    `snapshot_id` is None if the lake already had everything. `rows` and `read_bytes` (Arrow) are those written into the
    lake. `lag_records` counts the log offsets that the lake did not have when the round ended; None if it could not be
    determined. Timestamps are milliseconds since the epoch: `oldest_ms` and `newest_ms` are commit times of the round's
    log records (None without any), `finished_ms` is when the cluster knew the snapshot. `lake_bytes` and `lake_rows`
    are those of the whole lake table, if the format knows them. `was_cut`: the round's time was up before the end of
    the log.
    """

    path: TablePath
    table_id: int
    snapshot_id: int | None = None
    splits: int = 0
    rows: int = 0
    read_bytes: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None
    finished_ms: int | None = None
    seconds: float = 0.0
    was_cut: bool = False
    dropped_buckets: int = 0
    lost_records: int = 0
    lag_records: int | None = None
    lake_bytes: int | None = None
    lake_rows: int | None = None
    maintenance_error: str | None = None

    @classmethod
    def of(cls, info: TableInfo, results: Sequence[SplitResult], lost_records: int = 0) -> RoundReport:
        """Return the report of a round with these results of its splits."""
        oldest = [result.oldest_ms for result in results if result.oldest_ms is not None]
        newest = [result.newest_ms for result in results if result.newest_ms is not None]
        return cls(
            info.path,
            info.table_id,
            splits=len(results),
            rows=sum(result.rows for result in results),
            read_bytes=sum(result.read_bytes for result in results),
            oldest_ms=min(oldest, default=None),
            newest_ms=max(newest, default=None),
            was_cut=any(result.was_cut for result in results),
            dropped_buckets=sum(result.gone for result in results),
            lost_records=lost_records,
        )

    @property
    def lag_seconds(self) -> float | None:
        """How far the lake was behind the log when the round ended: 0 if it had everything.

        Otherwise the age of the newest record that it had; None where neither is known.
        """
        if self.lag_records == 0:
            return 0.0
        if self.lag_records is None or self.newest_ms is None or self.finished_ms is None:
            return None
        return max(self.finished_ms - self.newest_ms, 0) / 1000

    def __str__(self) -> str:
        what = "nothing new" if self.snapshot_id is None else f"{self.rows:,} rows in lake snapshot {self.snapshot_id}"
        lag = "" if self.lag_records is None else f", {self.lag_records:,} records behind"
        return f"{self.path}: {what}, {self.seconds:.1f} s{lag}"
