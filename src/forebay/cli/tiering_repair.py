"""`forebay tiering status` and `forebay tiering repair`: lake tables that others have rolled back."""

from __future__ import annotations

import argparse
import sys

from forebay.base.errors import InvalidRequest
from forebay.cli.connecting import connected
from forebay.cli.output import print_rows
from forebay.client.connection import Connection
from forebay.tiering.now import lake_tables
from forebay.tiering.repair import LakeState, lake_state, lake_states, repair
from forebay.tiering.round import TieringLake

_HEADER = ["table", "state", "snapshot known", "snapshot in the lake", "records lost", "what to do"]


def run_action(options: argparse.Namespace, lake: TieringLake) -> int:
    """Run the action of the command line; return 1 if a table needs a decision, or could not be looked at."""
    with connected(options) as connection:
        if options.action == "status":
            return _status(connection, options, lake)
        if len(options.tables) != 1:
            raise InvalidRequest("name the one table to repair: forebay tiering repair DATABASE.TABLE")
        return _repair(connection, options, lake)


def _status(connection: Connection, options: argparse.Namespace, lake: TieringLake) -> int:
    rows: list[tuple[object, ...]] = []
    is_bad = False
    for entry in lake_states(connection, options.tables or lake_tables(connection), lake):
        if isinstance(entry, LakeState):
            is_bad |= entry.needs_decision
            lost_count = sum(each.stop - each.start for each in entry.lost)
            remedy = f"forebay tiering repair {entry.path}" if entry.needs_decision else "; ".join(entry.remedies)
            rows.append((str(entry.path), entry.state, entry.registered, entry.newest, lost_count, remedy))
        else:
            is_bad = True
            rows.append((str(entry[0]), "unknown", None, None, None, str(entry[1])))
    print_rows(
        _HEADER, rows, options.output, empty="(no table has a lake)",
        plain_numbers=["snapshot known", "snapshot in the lake"],
    )  # fmt: skip
    return 1 if is_bad else 0


def _repair(connection: Connection, options: argparse.Namespace, lake: TieringLake) -> int:
    (path,) = options.tables
    state = lake_state(connection, path, lake)
    decisions = {"restore": options.restore, "rebuild": options.rebuild, "accept_loss": options.accept_loss}
    if state.needs_decision and not any(decisions.values()):
        print(state, file=sys.stderr)
        return 1
    print(repair(connection, path, **decisions, lake=lake))
    return 0
