"""The README's Spark program in a separate process; all blocks of the README run in tests/spark/test_pages.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import forebay
from tests.jvm import QUICK_JVM

ROOT = Path(__file__).parents[2]


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def run(program: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_spark_program_runs_where_no_virtual_environment_is_active(tmp_path):
    """Spark's workers must not take any `python3` that is first in the PATH."""
    foreign = tmp_path / "bin" / "python3"
    foreign.parent.mkdir()
    foreign.write_text("#!/bin/sh\necho 'the wrong Python' >&2\nexit 1\n")
    foreign.chmod(0o755)
    path = f"{foreign.parent}:{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if k != "PYSPARK_PYTHON"}
    run(programs()[0], tmp_path)
    with forebay.embedded(tmp_path / "data") as live:
        program = programs()[1].replace("127.0.0.1:9123", live.bootstrap_servers)
        done = subprocess.run(
            [sys.executable, "-c", program + "\nspark.stop()"],
            cwd=tmp_path,
            env={**environment, **QUICK_JVM, "PATH": path},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stderr
        assert re.search(r"\| cup\|\s+7\.0\|", done.stdout)
        assert live.table("fluss.clicks").scan().to_arrow().num_rows == 2
