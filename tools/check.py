"""All checks, quick ones first; the last lines say what failed, how to run it again, and what took longest.

`python -m tools.check lint` stops before the tests.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

BIN = Path(".venv/bin")
FAILURES_SHOWN = 40
SLOWEST_SHOWN = 20
GIGABYTE = 1 << 30


class Step(NamedTuple):
    """One check: its name, and the command that runs it, also again."""

    name: str
    command: tuple[str, ...]


STYLE = (
    Step("style", (f"{BIN}/ruff", "check", ".")),
    Step("format", (f"{BIN}/ruff", "format", "--check", ".")),
)
CLOSER = (
    Step("types", (f"{BIN}/mypy",)),
    Step("imports", (f"{BIN}/lint-imports",)),
    Step("plain English", (f"{BIN}/python", "tools/plain_english.py")),
)
TESTS = (f"{BIN}/python", "-m", "pytest", "-m", "not slow", "--dist", "loadfile", "--no-loadscope-reorder")
"""Whole files go to one of three processes: many tests wait rather than compute, and share what a file sets up.
tests/conftest.py says in which order."""


def _announce(name: str, output: TextIO = sys.stdout) -> None:
    print(f"\n== {name}", file=output, flush=True)


def run(steps: Sequence[Step], output: TextIO = sys.stdout) -> list[Step]:
    """The steps that fail."""
    failed = []
    for step in steps:
        _announce(step.name, output)
        if subprocess.run(step.command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode:
            failed.append(step)
    return failed


@contextmanager
def beside(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Run the steps beside the block, and show their output after it; from then on the list has those that fail.

    Types and imports are checked beside the tests, which leave a third of two cores idle.
    """
    failed: list[Step] = []
    with tempfile.TemporaryFile("w+") as output:
        thread = threading.Thread(target=lambda: failed.extend(run(steps, output)))
        thread.start()
        try:
            yield failed
        finally:
            thread.join()
            output.seek(0)
            print(output.read(), end="", flush=True)


def _compile() -> None:
    """Compile the modules of Forebay and of the tests once, for all processes that the tests start, also where
    PYTHONDONTWRITEBYTECODE is set. What cannot be imported is told by the tests themselves."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [f"{BIN}/python", "-m", "pytest", "--collect-only", "-q", "-m", "not slow"]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def _available_memory() -> int:
    """Bytes that programs may still take here, in a container at most its limit; 0 if the system does not say."""
    limit = 1 << 60
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        limit = int(text) if text != "max" else limit
    except (OSError, ValueError):
        limit = 1 << 60
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min(limit, *found) if found else 0


@contextmanager
def _files_in_memory() -> Iterator[None]:
    """The tests' files are in memory where there is room for them (they take 2 GB): a third of the time in the kernel
    is for a disk."""
    shared = Path("/dev/shm")
    if "TMPDIR" in os.environ or not os.access(shared, os.W_OK) or _available_memory() < 12 * GIGABYTE:
        yield
        return
    if shutil.disk_usage(shared).free < 6 * GIGABYTE:
        yield
        return
    folder = tempfile.mkdtemp(prefix="tests.", dir=shared)
    os.chmod(folder, 0o755)  # PostgreSQL runs as another user
    os.environ["TMPDIR"] = folder
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _test(report: Path) -> int:
    workers = os.environ.get("TEST_WORKERS", "3")
    _announce("tests")
    environment = {**os.environ, "TEST_REPORT": str(report)}
    return subprocess.run([*TESTS, "-n", workers], env=environment, check=False).returncode


# ---- the last lines -------------------------------------------------------------------------------------------------


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def cpu_seconds() -> float:
    """The user and system time of this process and of all that it has waited for, as `time` has it.

    The JVM of Spark and its Python workers outlive the process that started them, so they are not among these.
    """
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def summary(failed: Sequence[Step], tests: Mapping[str, Any] | None, elapsed: float, cpu: float) -> list[str]:
    """What failed and how to run it again, what took longest, and how much there was.

    `tests` is what tests/conftest.py reports of a run, and None if there was none.
    """
    lines = []
    for step in failed:
        lines += [f"FAILED {step.name}; again: {shlex.join(step.command)}"]
    if tests is not None:
        wrong = tests["failed"]
        for node, message in list(wrong.items())[:FAILURES_SHOWN]:
            lines += [f"FAILED {node}: {message}", f"  again: {BIN}/python -m pytest {shlex.quote(node)}"]
        if len(wrong) > FAILURES_SHOWN:
            lines += [f"and {len(wrong) - FAILURES_SHOWN} more; again: {BIN}/python -m pytest --last-failed"]
        slowest = sorted(tests["seconds"].items(), key=lambda found: -found[1])[:SLOWEST_SHOWN]
        lines += ["slowest tests, in seconds:"] if slowest else []
        lines += [f"{seconds:7.1f}  {node}" for node, seconds in slowest]
        counts = ", ".join(f"{number:,} {outcome}" for outcome, number in tests["counts"].items() if number)
        lines += [f"tests: {counts or 'none'}"]
    lines += [f"{'FAILED' if failed or (tests and tests['failed']) else 'passed'} in {_minutes(elapsed)}, "
              f"with {_minutes(cpu)} of CPU (user and system, without Spark's JVM)"]  # fmt: skip
    return lines


def _read(report: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(report.read_text())
    except (OSError, ValueError):
        return None
    return found


def _end(failed: list[Step], tests: Mapping[str, Any] | None, began: float) -> int:
    _announce("summary")
    for line in summary(failed, tests, time.monotonic() - began, cpu_seconds()):
        print(line)
    return 1 if failed or (tests is not None and tests["failed"]) else 0


def main(what: str = "") -> int:
    """Run all checks, or with "lint" those before the tests; the exit code."""
    began = time.monotonic()
    failed = run(STYLE)
    if what == "lint" or failed:
        return _end(failed + run(CLOSER), None, began)
    with tempfile.TemporaryDirectory() as folder, _files_in_memory():
        report = Path(folder, "tests.json")
        with beside(CLOSER) as failed:
            _compile()
            code = _test(report)
        tests = _read(report)
    if code and not (tests and tests["failed"]):
        failed.append(Step(f"tests, which ended with code {code} and without a failure of one", TESTS))
    return _end(failed, tests, began)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
