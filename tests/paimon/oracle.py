"""pypaimon (and its Rust reader) in a separate environment, driven by subprocess: an independent Paimon reader.

pypaimon pins an old pyarrow, so it cannot be installed with ours. The environment is `~/.cache/forebay-exams/pypaimon`
(or below `FOREBAY_EXAMS_CACHE`), and is created on first use; tests that need it are skipped if that fails.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

PACKAGES = ("pypaimon==2.1.0", "pypaimon-rust==0.4.0")
_INSTALL_SECONDS = 900


def _root() -> Path:
    configured = os.environ.get("FOREBAY_EXAMS_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "forebay-exams"


@lru_cache(maxsize=1)
def find_python() -> tuple[Path | None, str]:
    """The interpreter with pypaimon, or None and why there is none."""
    root = _root()
    root.mkdir(parents=True, exist_ok=True)
    python = root / "pypaimon" / "bin" / "python"
    with (root / ".pypaimon-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _works(python):
            try:
                _run([sys.executable, "-m", "venv", str(root / "pypaimon")])
                _run([str(python), "-m", "pip", "install", "-q", *PACKAGES])
            except (OSError, subprocess.SubprocessError) as e:
                return None, f"pypaimon cannot be installed into {root / 'pypaimon'}: {e}"
    return (python, "") if _works(python) else (None, f"{python} cannot import pypaimon")


def _works(python: Path) -> bool:
    return python.exists() and subprocess.run([python, "-c", "import pypaimon"], capture_output=True).returncode == 0


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, timeout=_INSTALL_SECONDS, capture_output=True)


def oracle_python() -> Path:
    """The interpreter that has pypaimon; skips the test where there is none."""
    python, reason = find_python()
    if python is None:
        pytest.skip(reason)
    return python


def ask(program: str, *arguments: str, timeout: float = 120) -> Any:
    """Run `program` (Python source) under the oracle with `arguments`; its last printed line as JSON (or None)."""
    done = subprocess.run(
        [oracle_python(), "-c", program, *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode != 0:
        pytest.fail(f"the oracle failed:\n{done.stdout}\n{done.stderr}")
    lines = done.stdout.strip().splitlines()
    return json.loads(lines[-1]) if lines else None
