"""README's first program, in a process of its own as a new user runs it: it prints what the page shows below it."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from tests.docs.blocks import blocks


def test_the_first_program_of_the_readme_prints_what_the_page_shows_and_no_errors(tmp_path: Path) -> None:
    program, shown = next(pair for pair in pairwise(blocks("README.md")) if pair[0].language == "python")
    done = subprocess.run(
        [sys.executable, "-c", program.text], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    # On a busy machine the client tells that it waits; that is no error.
    errors = [line for line in done.stderr.splitlines() if not line.startswith("forebay: waiting for ")]
    assert (done.returncode, errors) == (0, [])
    assert (shown.language, shown.text) == ("", done.stdout)
