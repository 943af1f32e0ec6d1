"""A process that has imported the third-party modules of our tests, and forks for each test run.

Starting Python, pytest, Arrow and pandas takes longer than the few tests that judge most mutants, so tools/mutants.py
keeps one of these for each copy of the sources (set by PYTHONPATH). It reads a request as a line of JSON: the arguments
of pytest, environment variables, and the time limit of the run. It answers with a line: the exit code of pytest, or
`null` for a run that exceeded its limit. Each run is a separate process group, which is killed at the end together with
servers that its tests have left behind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import coverage  # noqa: F401
import hypothesis  # noqa: F401
import numpy as np  # noqa: F401
import pandas as pd  # noqa: F401
import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet  # noqa: F401
import pytest

_LOOK_SECONDS = 0.02


def _run(request: dict[str, Any]) -> int:
    """Run the tests in the child, without output."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    os.environ.update(request["environment"])
    # pytest would have rewritten the assertions of plugins that are imported already.
    return int(pytest.main([*request["arguments"], "-W", "ignore::pytest.PytestAssertRewriteWarning"]))


def _wait(child: int, seconds: float) -> int | None:
    """The exit code of a child, or None if it exceeded its time limit."""
    deadline = time.monotonic() + seconds
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        ended, status = os.waitpid(child, os.WNOHANG)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if ended:
        return os.waitstatus_to_exitcode(status)
    os.waitpid(child, 0)
    return None


def main() -> None:
    ours = [name for name in sys.modules if name.partition(".")[0] in ("forebay", "tests")]
    assert not ours, f"{ours} would be the same for each mutant"
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = _run(request)
            finally:
                os._exit(code)
        print(json.dumps(_wait(child, request["seconds"])), flush=True)


if __name__ == "__main__":
    main()
