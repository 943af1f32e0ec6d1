"""The same script of questions to two clusters, and the differences between their answers.

Usage: differential.py ADDRESS ADDRESS [--sasl ADDRESS ADDRESS]      compare two clusters differential.py ADDRESS
--check GOLDEN [--sasl ADDRESS]       compare one cluster with a golden file differential.py ADDRESS --record GOLDEN
[--sasl ADDRESS]      write the golden file

Each prints a table of the steps that differ (`--all` for every step) and the counts. Exit code 0 if nothing differs
except what `--deviations FILE` names: a JSON object {"differential": {step name: reason}}. A named deviation that no
longer differs is reported too, so that the list only shrinks. Users on the SASL listener must be admin/admin-secret and
alice/alice-secret, as in the third-party suites.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from exam_script import Exam

Outcomes = dict[str, dict[str, Any]]
USERS = {"admin": "admin-secret", "alice": "alice-secret"}
GOLDEN = Path(__file__).resolve().parent / "golden" / "real_fluss_0_9_1.json"
DEVIATIONS = Path(__file__).resolve().parent / "golden" / "deviations.json"


class Difference(NamedTuple):
    step: str
    first: dict[str, Any] | None
    second: dict[str, Any] | None
    known: str | None


def scenarios() -> dict[str, Callable[[Exam], Awaitable[None]]]:
    """All scenarios in the order in which they run."""
    import steps_catalog
    import steps_data
    import steps_protocol
    import steps_raw

    return {
        "databases": steps_catalog.databases,
        "tables": steps_catalog.tables,
        "alter": steps_catalog.alter,
        "partitions": steps_catalog.partitions,
        "log tables": steps_data.log_tables,
        "key tables": steps_data.key_tables,
        "offsets": steps_data.offsets,
        "partitioned tables": steps_data.partitioned_tables,
        "dropped tables": steps_data.dropped_tables,
        "writes to logs": steps_raw.writes_to_logs,
        "reads of logs": steps_raw.reads_of_logs,
        "writes to keys": steps_raw.writes_to_keys,
        "reads of keys": steps_raw.reads_of_keys,
        "dropped ids": steps_raw.dropped_ids,
        "frames": steps_protocol.frames,
        "sasl": steps_protocol.sasl,
    }


async def run_script(address: str, sasl_address: str, only: Sequence[str] = ()) -> Outcomes:
    """Run the script against one cluster."""
    from exam_script import Exam

    exam = Exam(address, sasl_address, USERS, token=f"{os.getpid():x}{time.time_ns() & 0xFFFFFF:x}")
    try:
        for name, scenario in scenarios().items():
            if not only or name in only:
                await exam.run(name, scenario)
    finally:
        await exam.close()
    return exam.outcomes


def compare(first: Outcomes, second: Outcomes, deviations: Mapping[str, str] | None = None) -> list[Difference]:
    """Every step whose outcomes differ, or that only one side has.

    A deviation names a step, or with a `*` at its end all the steps that begin so.
    """
    known = deviations or {}
    steps = [*first, *(step for step in second if step not in first)]
    return [
        Difference(step, first.get(step), second.get(step), _reason(step, known))
        for step in steps
        if first.get(step) != second.get(step)
    ]


def _reason(step: str, deviations: Mapping[str, str]) -> str | None:
    for name, reason in deviations.items():
        if step == name or (name.endswith("*") and step.startswith(name[:-1])):
            return reason
    return None


def healed(differences: Sequence[Difference], deviations: Mapping[str, str], outcomes: Outcomes) -> list[str]:
    """Known deviations that did not show, of steps that did run."""
    still = [difference.step for difference in differences]
    covers = {name: [step for step in still if _reason(step, {name: ""}) is not None] for name in deviations}
    ran = {name for name in deviations if any(_reason(step, {name: ""}) is not None for step in outcomes)}
    return [name for name in deviations if name in ran and not covers[name]]


def label(outcome: dict[str, Any] | None) -> str:
    """An outcome in a few words."""
    if outcome is None:
        return "(no such step)"
    ((kind, value),) = outcome.items()
    if kind == "value":
        return "ok" if value is None else json.dumps(value, sort_keys=True)
    return f"{kind} {_name(value)}"


def _name(code: Any) -> str:
    if not isinstance(code, int) or importlib.util.find_spec("forebay") is None:
        return str(code)
    from forebay.base.errors import ErrorCode

    return f"{code} {ErrorCode(code).name}" if code in ErrorCode._value2member_map_ else str(code)


def print_table(
    names: tuple[str, str], first: Outcomes, second: Outcomes, deviations: Mapping[str, str], every: bool
) -> int:
    """Print the comparison; returns the number of unknown differences."""
    differences = {difference.step: difference for difference in compare(first, second, deviations)}
    shown = [*first, *(step for step in second if step not in first)] if every else list(differences)
    for step in shown:
        difference = differences.get(step)
        verdict = "equal" if difference is None else "KNOWN" if difference.known else "DIFFERS"
        print(f"{verdict:8} {step}")
        if difference is None:
            print(f"         {label(first.get(step))}")
            continue
        print(f"         {names[0]:6} {label(difference.first)}")
        print(f"         {names[1]:6} {label(difference.second)}")
        if difference.known:
            print(f"         {difference.known}")
    for step in healed(list(differences.values()), deviations, second):
        print(f"HEALED   {step}: no longer differs, take it off the list of deviations")
    unknown = sum(1 for difference in differences.values() if not difference.known)
    total = len({*first, *second})
    print(f"{total} steps: {total - len(differences)} equal, {len(differences) - unknown} known, {unknown} differ")
    return unknown


def read_golden(file: Path) -> Outcomes:
    """The outcomes in a golden file."""
    outcomes: Outcomes = json.loads(file.read_text())["outcomes"]
    return outcomes


def read_deviations(file: Path, exam: str) -> dict[str, str]:
    """Step -> why our answer is another one on purpose, or not yet the same, for one exam."""
    deviations: dict[str, str] = json.loads(file.read_text())[exam]
    return deviations


def write_golden(file: Path, server: str, outcomes: Outcomes) -> None:
    """Write a golden file, one step a line, so that changes can be read."""
    lines = [f"  {json.dumps(step)}: {json.dumps(outcome, sort_keys=True)}" for step, outcome in outcomes.items()]
    body = ",\n".join(lines)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'{{"server": {json.dumps(server)},\n "outcomes": {{\n{body}\n}}}}\n')


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("addresses", nargs="+", metavar="ADDRESS")
    parser.add_argument("--sasl", nargs="+", default=[], metavar="ADDRESS")
    parser.add_argument("--check", type=Path, metavar="GOLDEN")
    parser.add_argument("--record", type=Path, metavar="GOLDEN")
    parser.add_argument("--server", default="Apache Fluss 0.9.1-incubating", help="whose answers a golden file has")
    parser.add_argument("--deviations", type=Path, metavar="FILE")
    parser.add_argument("--only", default="", metavar="SCENARIO,...")
    parser.add_argument("--all", action="store_true", help="print the steps that are equal too")
    options = parser.parse_args(arguments)
    only = [name for name in options.only.split(",") if name]
    sasl = [*options.sasl, "", ""]
    deviations = read_deviations(options.deviations, "differential") if options.deviations else {}

    runs = [asyncio.run(run_script(address, sasl[i], only)) for i, address in enumerate(options.addresses[:2])]
    if options.record:
        write_golden(options.record, options.server, runs[0])
        print(f"{len(runs[0])} outcomes written to {options.record}")
        return 0
    if options.check:
        golden = read_golden(options.check)
        if only:
            golden = {step: outcome for step, outcome in golden.items() if step.partition(":")[0] in only}
        return 1 if print_table(("golden", "here"), golden, runs[0], deviations, options.all) else 0
    if len(runs) != 2:
        parser.error("name two addresses, or one with --check or --record")
    return 1 if print_table(("first", "second"), runs[0], runs[1], deviations, options.all) else 0


if __name__ == "__main__":
    sys.exit(main())
