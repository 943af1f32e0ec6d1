"""Run one chunk of a trial as a program of its own, and read what it has counted."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.proofs.state import FAILED, NOT_RUN, PASSED
from tools.proofs.trials import Chunk, Trial

NOT_POSSIBLE = 77
"""The exit code of a trial that the machine does not allow."""
NO_TESTS = 5
NO_OTHERS = nullcontext()
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_PATIENCE_SECONDS = 15.0
_TAIL_BYTES = 4000


@dataclass
class Ended:
    """How a chunk has ended."""

    outcome: str
    exit_code: int
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def run(
    trial: Trial, chunk: Chunk, root: Path, place: Path, seconds_max: float, tell: Callable[[str], object],
    installs: AbstractContextManager[object] = NO_OTHERS,
) -> Ended:  # fmt: skip
    """Run a chunk in the repository at `root`, with its files in `place`; `tell` is called each second with the last
    line of its output, and may raise. What takes longer than `seconds_max` is ended, and has failed. What the trial
    needs is installed while `installs` is held.
    """
    command, environment = trial.command_of(chunk)
    told = place / "tests.xml"
    if trial.tests:
        command = [*command, f"--junitxml={told}"]
    environment = {**environment, "RESULTS_FOLDER": str(place / "figures"), "WRITE_RESULTS": "1"}
    log = place / "log.txt"
    if trial.prepare:
        with installs:
            _program(list(trial.prepare), environment, root, log, seconds_max, tell)
    code = _program(command, environment, root, log, seconds_max, tell)
    if code is None:
        return Ended(FAILED, -1, f"it had not ended after {seconds_max / 60:.0f} minutes", _figures(trial, place))
    return _judged(trial, chunk, code, log, _figures(trial, place), told)


def _judged(trial: Trial, chunk: Chunk, code: int, log: Path, figures: dict[str, Any], told: Path) -> Ended:
    if code == NOT_POSSIBLE:
        return Ended(NOT_RUN, code, last_line(log))
    tests, reasons, failures = _tests(told) if trial.tests else ({}, [], [])
    if tests and not tests["passed"] and not tests["failed"] and code in (0, NO_TESTS):
        return Ended(NOT_RUN, code, reasons[0] if reasons else "no test was found")
    if trial.tests and not figures:
        figures = tests
        if reasons:
            figures["skipped_because"] = sorted(set(reasons))
    if trial.unit != "runs" and trial.unit not in figures:
        figures = {trial.unit: chunk.count, **figures}
    if code and not (trial.share_min is not None and "caught" in figures):
        return Ended(FAILED, code, failures[0] if failures else last_line(log), figures)
    return Ended(PASSED, code, "", figures)


def _program(
    command: list[str],
    environment: dict[str, str],
    root: Path,
    log: Path,
    seconds_max: float,
    tell: Callable[[str], object],
) -> int | None:
    """The exit code of a program, None if it did not end in time. It dies with this process."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=root,
            env={**os.environ, **environment}, start_new_session=True,
            preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
        )  # fmt: skip
    began = time.monotonic()
    try:
        while time.monotonic() - began < seconds_max:
            try:
                return process.wait(1)
            except subprocess.TimeoutExpired:
                tell(last_line(log))
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program with all that it has started."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sent)
        except ProcessLookupError:
            break
        try:
            process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _figures(trial: Trial, place: Path) -> dict[str, Any]:
    path = place / "figures" / f"{trial.name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return {name: value for name, value in found.items() if name not in ("date", "commit", "cores")}


def _tests(path: Path) -> tuple[dict[str, Any], list[str], list[str]]:
    """Numbers of tests by outcome, why some were skipped, and what has failed; nothing if it did not get so far."""
    if not path.exists():
        return {}, [], []
    passed = 0
    reasons, names, failures = [], [], []
    for case in ET.parse(path).getroot().iter("testcase"):
        skipped = case.find("skipped")
        failure = case.find("failure")
        failure = case.find("error") if failure is None else failure
        if failure is not None:
            names.append(f"{case.get('classname')}::{case.get('name')}")
            failures.append(f"{case.get('name')}: {failure.get('message', '')}".replace("\n", " ")[:200])
        elif skipped is not None:
            reasons.append(skipped.get("message", ""))
        else:
            passed += 1
    figures: dict[str, Any] = {"passed": passed, "failed": len(names), "skipped": len(reasons)}
    return figures | ({"failed_tests": names} if names else {}), reasons, failures


def last_line(log: Path) -> str:
    """The last line of a program's output that is not empty."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")[:200]
