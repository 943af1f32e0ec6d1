"""README's first program, in a process of its own as a new user runs it: it ends well, and stderr stays empty."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import blocks


def test_the_first_program_of_the_readme_prints_its_rows_and_no_errors(tmp_path: Path) -> None:
    program = next(block.text for block in blocks("README.md") if block.language == "python")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "[{'id': 2, 'item': 'tin', 'amount': 2.5}]\n" in done.stdout
