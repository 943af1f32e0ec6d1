"""Bring lake tables up to date immediately, ahead of the schedule.

    for report in forebay.tiering.now.tier_now(connection, ["sales.orders"]):
        print(report)

No assignment is requested, so the cluster may assign the same table to a service. That is harmless: the lake accepts
one of the two rounds and refuses the other (`forebay.lake.tiering.check_base`), which is then retried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from forebay.base import threads
from forebay.base.errors import ErrorCode, ForebayError, InternalError
from forebay.client.admin.lake import TieringTable
from forebay.client.connection import Connection
from forebay.client.display import Listing
from forebay.lake.tiering import EPOCH_PROPERTY, CommitterContext
from forebay.metadata.table import TableInfo, TablePath
from forebay.tiering.control import RoundControl
from forebay.tiering.report import RoundReport
from forebay.tiering.round import TieringLake, run_round
from forebay.tiering.runner import SplitRunner, ThreadRunner

_LOGGER = logging.getLogger(__name__)

OVERTAKEN_MAX = 5
"""Maximum attempts at a round if a service is faster."""


@dataclass(frozen=True, slots=True)
class TierOutcome:
    """The outcome for a table: a report, or the error of its round."""

    path: TablePath
    report: RoundReport | None = None
    error: Exception | None = None


def lake_tables(connection: Connection) -> list[TablePath]:
    """Return the cluster's tables that are tiered."""
    return [
        TablePath(database, table)
        for database in connection.list_databases()
        for table in connection.list_tables(database)
        if connection.admin.table_info(TablePath(database, table)).lake_enabled
    ]


def tier_table(
    connection: Connection,
    path: str | TablePath,
    runner: SplitRunner | None = None,
    lake: TieringLake | None = None,
    control: RoundControl | None = None,
) -> RoundReport:
    """Run one round of one table now; return its report. A round that a service overtakes is retried a few times."""
    table_path, lake = TablePath.parse(path), lake or TieringLake()
    for attempt in range(1, OVERTAKEN_MAX + 1):
        info = connection.cluster.table_info(table_path)
        table = as_if_handed_out(connection, info, lake)
        try:
            return run_round(connection, table, runner or ThreadRunner(), control or RoundControl(), lake)
        except ForebayError as e:
            if e.code != ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION or attempt == OVERTAKEN_MAX:
                raise
            _LOGGER.info("table %s: another worker was faster; retrying the round", table_path)
    raise InternalError("a round was neither done nor failed")


def as_if_handed_out(connection: Connection, info: TableInfo, lake: TieringLake) -> TieringTable:
    """Return the table with the epoch of its newest lake snapshot: not newer than any worker's, and not fenced off."""
    committer = lake.factory(info, connection.settings).create_committer(CommitterContext(info, 0, None))
    try:
        newest = committer.get_missing_lake_snapshot(None)
    finally:
        committer.close()
    epoch = 0 if newest is None else int(newest.properties.get(EPOCH_PROPERTY, 0))
    return TieringTable(info.table_id, info.path, epoch >> 32, epoch & 0xFFFF_FFFF)


def tier_now(
    connection: Connection,
    paths: Sequence[str | TablePath] | None = None,
    runner: SplitRunner | None = None,
    lake: TieringLake | None = None,
    *,
    tables_at_once: int = 4,
    on_outcome: Callable[[TierOutcome], None] | None = None,
) -> list[TierOutcome]:
    """Run a round of each table (default: all that are tiered), several at a time; a failure does not stop the others.

    `on_outcome` is called for each as it ends, in the thread of its round.
    """
    selection: Iterable[str | TablePath] = lake_tables(connection) if paths is None else paths
    tables = list(dict.fromkeys(TablePath.parse(path) for path in selection))

    def tier(path: TablePath) -> TierOutcome:
        try:
            outcome = TierOutcome(path, tier_table(connection, path, runner, lake))
        except Exception as e:  # noqa: BLE001 - the other tables continue
            outcome = TierOutcome(path, error=e)
        if on_outcome is not None:
            on_outcome(outcome)
        return outcome

    with threads.executor(max(tables_at_once, 1), "forebay-round") as pool:
        return Listing(pool.map(tier, tables))
