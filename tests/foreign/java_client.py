"""The Java client of Apache Fluss, driven by a program of ours (`java/client`) against any server.

Terms: a *scenario* is a list of steps in Java; each prints its outcome as one JSON line. The *outcome* has the form of
the differential script: a value, or the Fluss error code, or the name of an exception of the client.

As a program: `java_client.py ADDRESS [--scenarios a,b] [--check GOLDEN | --record GOLDEN] [--deviations FILE]
[--setting key=value]...`. Without `--check` and `--record` it prints the JSON lines.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from differential import Outcomes, print_table, read_deviations, read_golden, write_golden
from exams_cache import HERE, ExamUnavailable, jar_path, java_classes, java_tool

GOLDEN = HERE / "golden" / "java_client_0_9_1.json"
_JVM = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.nio=ALL-UNNAMED"]
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
_CLIENT_ERROR = -2


def run_scenarios(
    address: str,
    scenarios: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    *,
    seconds: float = 300.0,
) -> list[dict[str, Any]]:
    """Run scenarios (all of them by default) and return the lines that they printed.

    Raises `ExamUnavailable` where there is no Java, and `RuntimeError` when the program broke off; its standard error
    is in the message.
    """
    token = f"{os.getpid():x}{time.time_ns() & 0xFFFFFF:x}"
    settings_given = [f"{key}={value}" for key, value in (settings or {}).items()]
    return _lines_of("FlussClientExam", [address, token, ",".join(scenarios) or "all", *settings_given], seconds)


def read_log(address: str, database: str, table: str, count: int, columns: Sequence[int] = ()) -> list[Any]:
    """All `count` records of a table's log, as [bucket, offset, change type, values of these columns, or of all].

    Raises as `run_scenarios` does, and `RuntimeError` with the client's error.
    """
    (line,) = _lines_of("FlussLogReader", [address, database, table, str(count), ",".join(map(str, columns))], 120.0)
    if "error" in line:
        raise RuntimeError(f"the Java client cannot read {database}.{table}: {line}")
    records: list[Any] = line["value"]
    return records


def read_snapshots(address: str, database: str, table: str) -> list[tuple[int, list[Any]]]:
    """(log offset, rows) of the newest snapshot of each bucket, as the client downloads and opens it.

    Raises as `read_log` does.
    """
    lines = _lines_of("FlussSnapshotReader", [address, database, table], 120.0)
    for line in lines:
        if "error" in line:
            raise RuntimeError(f"the Java client cannot read the snapshots of {database}.{table}: {line}")
    return [(offset, rows) for offset, rows in (line["value"] for line in lines)]


def read_standby(address: str, database: str, table: str, keys: int) -> list[dict[str, Any]]:
    """The lines of `FlussStandbyReader`: each way to read a table, and what changes are answered with.

    Raises as `run_scenarios` does.
    """
    return _lines_of("FlussStandbyReader", [address, database, table, str(keys)], 180.0)


def command_of(program: str, arguments: Sequence[str]) -> list[str]:
    """The command that runs one of the programs in `java/client`. Raises `ExamUnavailable`."""
    class_path = jar_path("fluss-client-", "slf4j-", "jsr305-")
    classes = java_classes("client", class_path)
    return [java_tool("java"), *_JVM, _QUIET, "-cp", f"{classes}{os.pathsep}{class_path}", program, *arguments]


def _lines_of(program: str, arguments: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    try:
        done = subprocess.run(
            command_of(program, arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        heard = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        raise RuntimeError(f"the Java client did not finish in {seconds:.0f} s; last lines:\n{heard[-2000:]}") from late
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines or lines[-1] != {"done": True}:
        raise RuntimeError(f"the Java client broke off after {len(lines)} lines:\n{done.stderr[-3000:]}")
    return lines[:-1]


def outcomes_of(lines: Sequence[Mapping[str, Any]]) -> Outcomes:
    """Step -> outcome, without what the server or the client said in words."""
    outcomes: Outcomes = {}
    for line in lines:
        if "error" not in line:
            outcome = {"value": line["value"]}
        elif line["error"] == _CLIENT_ERROR:
            outcome = {"raised": line["type"]}
        else:
            outcome = {"error": line["error"]}
        outcomes[f"{line['scenario']}: {line['step']}"] = outcome
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--scenarios", default="", metavar="NAME,...")
    parser.add_argument("--setting", action="append", default=[], metavar="key=value")
    parser.add_argument("--check", type=Path, metavar="GOLDEN")
    parser.add_argument("--record", type=Path, metavar="GOLDEN")
    parser.add_argument("--deviations", type=Path, metavar="FILE")
    parser.add_argument("--all", action="store_true", help="print the steps that are equal too")
    options = parser.parse_args(arguments)
    wanted = [name for name in options.scenarios.split(",") if name]
    try:
        lines = run_scenarios(options.address, wanted, dict(item.split("=", 1) for item in options.setting))
    except ExamUnavailable as reason:
        print(f"no Java client here: {reason}", file=sys.stderr)
        return 2
    outcomes = outcomes_of(lines)
    if options.record:
        write_golden(options.record, "Apache Fluss 0.9.1-incubating", outcomes)
        return 0
    if options.check:
        golden = read_golden(options.check)
        golden = {step: golden[step] for step in golden if not wanted or step.partition(":")[0] in wanted}
        deviations = read_deviations(options.deviations, "java client") if options.deviations else {}
        return 1 if print_table(("golden", "here"), golden, outcomes, deviations, options.all) else 0
    for line in lines:
        print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
