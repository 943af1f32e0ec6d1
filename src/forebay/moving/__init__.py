"""Moving tables between a Forebay server and a Fluss cluster, in either direction: rows and lake history.

    with connect("127.0.0.1:9123") as source, connect("fluss-coordinator:9123") as target:
        print(plan_move(source, target, "sales.orders"))      # what would be done; changes nothing
        report = move_table(source, target, "sales.orders")

    plan.py      the state of both sides, and whether a table can be moved
    rows.py      copying logs and keyed rows
    checksum.py  counts and checksums of a table's rows, as proof
    history.py   handing over the lake table: one lake snapshot with the target's log offsets
    move.py      the steps in order

docs/moving.md describes the guarantees.
"""

from __future__ import annotations

from forebay.moving.move import MoveReport, move_database, move_table
from forebay.moving.plan import MovePlan, plan_move

__all__ = ["MovePlan", "MoveReport", "move_database", "move_table", "plan_move"]
