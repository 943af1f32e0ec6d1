"""The quickstart's proof: the same rows, read in several ways, compared cell by cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay.cli.output import text_table
from forebay.cli.quickstart.flights import KEY

if TYPE_CHECKING:
    from forebay.client.table import Table

_SUMMED = ("dep_delay", "arr_delay", "distance", "air_time")


def changelog_state(table: Table) -> pa.Table:
    """The rows of a primary-key table, computed from the changelog: the last change of every key, without deletes."""
    changes = table.changes("earliest", "latest", include=("change_type",)).to_arrow()
    changes = changes.filter(pc.not_equal(changes["_change_type"].cast(pa.string()), "update_before"))
    numbered = changes.append_column("position", pa.array(range(changes.num_rows), pa.int64()))
    last = numbered.group_by(KEY).aggregate([("position", "max")])["position_max"]
    rows = changes.take(last)
    return rows.filter(pc.not_equal(rows["_change_type"].cast(pa.string()), "delete"))


@dataclass(frozen=True)
class Witness:
    """One way to read the rows: its name, the rows in order, and their count and sums."""

    name: str
    rows: Any
    totals: tuple[int, ...]

    @classmethod
    def of(cls, name: str, rows: Any) -> Witness:
        """The witness for `rows`, a pandas frame as returned by `forebay.cli.quickstart.flights.comparable`."""
        return cls(name, rows, (len(rows), *(int(rows[column].sum()) for column in _SUMMED)))


@dataclass(frozen=True)
class Proof:
    """The results that must agree at the end.

    The first of the `witnesses` is the reference. `spark_totals` are sums computed by Spark SQL, in the order of
    `Witness.totals`; `logs` has the number of events of each kind that each reader found, and `expected` the right
    numbers.
    """

    witnesses: Sequence[Witness]
    spark_totals: tuple[int, ...]
    logs: Mapping[str, Mapping[str, int]]
    expected: Mapping[str, int]

    def show(self, checks: int, disagreeing: int) -> bool:
        """Print the result of each witness; return whether all agree, and all `checks` made on the way did, too."""
        good = self._show_flights()
        for name, counts in self.logs.items():
            summary = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items()))
            is_same = dict(counts) == dict(self.expected)
            verdict = "equal to the source" if is_same else f"DIFFERENT, the source has {dict(self.expected)}"
            print(f"   log table, {name}: {summary}: {verdict}")
            good = good and is_same
        on_the_way = "all equal" if not disagreeing else f"{disagreeing} DIFFERENT"
        print(f"   checks while the tables changed: {checks}, {on_the_way if checks else 'NONE WAS MADE'}")
        good = good and checks > 0 and not disagreeing
        print("   PROVEN: all agree, to the row." if good else "   NOT PROVEN: please report this, it is a bug.")
        return good

    def _show_flights(self) -> bool:
        referee = self.witnesses[0]
        verdicts = [_difference(referee, witness) for witness in self.witnesses]
        lines = [
            [witness.name, *(f"{total:,}" for total in witness.totals), verdict or "equal, every cell"]
            for witness, verdict in zip(self.witnesses, verdicts, strict=True)
        ]
        is_same = self.spark_totals == referee.totals
        sums = [f"{total:,}" for total in self.spark_totals]
        lines.append(["sums made by Spark SQL", *sums, "equal" if is_same else "DIFFERENT"])
        header = ["", "flights", *(f"sum({column})" for column in _SUMMED), "against pandas"]
        print("\n".join("   " + line for line in text_table(header, lines, set(range(1, len(header) - 1)))))
        return is_same and not any(verdicts)


def _difference(referee: Witness, witness: Witness) -> str | None:
    """The first difference, in a few words; None if there is none."""
    if list(referee.rows.columns) != list(witness.rows.columns):
        return f"DIFFERENT columns {list(witness.rows.columns)}"
    if len(referee.rows) != len(witness.rows):
        return f"DIFFERENT: {len(witness.rows):,} rows, not {len(referee.rows):,}"
    for column in referee.rows.columns:
        expected, values = referee.rows[column], witness.rows[column]
        unequal = (expected.isna() != values.isna()) | (expected.ne(values).fillna(False) & expected.notna())
        if bool(unequal.any()):
            return f"DIFFERENT in {int(unequal.sum()):,} values of {column}"
    return None
