"""A worker in a separate process that is really killed when a round has reached a step.

python -m tests.tiering.dying_worker BOOTSTRAP STEP TABLE
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import forebay
from forebay.tiering.control import RoundControl
from forebay.tiering.now import tier_table
from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]


def killed_at(bootstrap: str, step: str, table: str) -> None:
    """Run a worker that dies at `step` of a round of `table`. Raises `AssertionError` if it does not."""
    command = [sys.executable, "-m", "tests.tiering.dying_worker", bootstrap, step, table]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def main(bootstrap: str, step: str, table: str) -> None:
    def die(reached: str) -> None:
        if reached == step:
            os.kill(os.getpid(), signal.SIGKILL)

    with forebay.connect(bootstrap) as connection:
        tier_table(connection, table, control=RoundControl(reached=die))


if __name__ == "__main__":
    main(*sys.argv[1:])
