"""A second server on the directory of another one, as an operator or a supervisor may start it by mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SECONDS_MAX = 120


def check_refused(data_dir: Path) -> None:
    """Start another server on the directory of one that runs: it has to end at once, and to say why."""
    command = [sys.executable, "-m", "forebay", "server", "--data-dir", str(data_dir), "--coordinator-port", "0"]
    done = subprocess.run(
        [*command, "--tablet-port", "0"], capture_output=True, text=True, check=False, timeout=_SECONDS_MAX
    )
    assert done.returncode != 0, f"a second server has run in {data_dir}"
    assert f"the data directory {data_dir} is in use by another server" in done.stdout + done.stderr
