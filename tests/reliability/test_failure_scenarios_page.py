"""docs/failure-scenarios.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_that_the_page_names_exists() -> None:
    text = (ROOT / "docs" / "failure-scenarios.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 40
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or (name and not re.search(rf"def {name}\(", (ROOT / path).read_text()))
    ]
    assert missing == []
