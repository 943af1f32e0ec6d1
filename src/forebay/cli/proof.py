"""The quickstart's proof: the same rows by several ways, compared cell by cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay.cli.flights import KEY
from forebay.cli.output import text_table

if TYPE_CHECKING:
    from forebay.client.table import Table

_SUMMED = ("dep_delay", "arr_delay", "distance", "air_time")


def changelog_state(table: Table) -> pa.Table:
    """The rows of a primary-key table, found without its state: the last change of every key, deletions left out."""
    changes = table.log("earliest", "latest", include=("change_type",)).to_arrow()
    changes = changes.filter(pc.not_equal(changes["_change_type"].cast(pa.string()), "update_before"))
    numbered = changes.append_column("position", pa.array(range(changes.num_rows), pa.int64()))
    last = numbered.group_by(KEY).aggregate([("position", "max")])["position_max"]
    rows = changes.take(last)
    return rows.filter(pc.not_equal(rows["_change_type"].cast(pa.string()), "delete"))


@dataclass(frozen=True)
class Witness:
    """One way to the rows: what it is called, the rows in order, and their count and sums."""

    name: str
    rows: Any
    totals: tuple[int, ...]

    @classmethod
    def of(cls, name: str, rows: Any) -> Witness:
        """`rows` is a pandas frame as `forebay.cli.flights.comparable` makes them."""
        return cls(name, rows, (len(rows), *(int(rows[column].sum()) for column in _SUMMED)))


def check_witnesses(
    witnesses: Sequence[Witness], spark_totals: tuple[int, ...], events: Mapping[str, int], expected: Mapping[str, int]
) -> bool:
    """Print what each witness says, and whether they agree with the first; return whether all do."""
    referee = witnesses[0]
    good = True
    lines = []
    for witness in witnesses:
        verdict = _difference(referee, witness)
        good = good and verdict is None
        lines.append([witness.name, *(f"{total:,}" for total in witness.totals), verdict or "equal, every cell"])
    same = spark_totals == referee.totals
    lines.append(
        ["sums made by Spark SQL", *(f"{total:,}" for total in spark_totals), "equal" if same else "DIFFERENT"]
    )
    header = ["", "flights", *(f"sum({column})" for column in _SUMMED), "against pandas"]
    print("\n".join("   " + line for line in text_table(header, lines, set(range(1, len(header) - 1)))))
    logged = dict(events) == dict(expected)
    told = ", ".join(f"{count:,} {kind}" for kind, count in sorted(events.items()))
    print(f"   log table: {told}: {'equal to the source' if logged else f'DIFFERENT, the source has {dict(expected)}'}")
    good = good and same and logged
    print("   PROVEN: all agree, to the row." if good else "   NOT PROVEN: please report this, it is a bug.")
    return good


def _difference(referee: Witness, witness: Witness) -> str | None:
    """What differs first, in a few words; None if nothing does."""
    if list(referee.rows.columns) != list(witness.rows.columns):
        return f"DIFFERENT columns {list(witness.rows.columns)}"
    if len(referee.rows) != len(witness.rows):
        return f"DIFFERENT: {len(witness.rows):,} rows, not {len(referee.rows):,}"
    for column in referee.rows.columns:
        ours, theirs = referee.rows[column], witness.rows[column]
        unequal = (ours.isna() != theirs.isna()) | (ours.ne(theirs).fillna(False) & ours.notna())
        if bool(unequal.any()):
            return f"DIFFERENT in {int(unequal.sum()):,} values of {column}"
    return None
