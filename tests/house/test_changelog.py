"""The changelog has the form of Keep a Changelog: one heading of each kind in a version.

A merge that keeps both sides of a changed file brings old sections back; this test finds it."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).resolve().parents[2] / "CHANGELOG.md").read_text(encoding="utf-8")
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def versions(text: str) -> dict[str, list[str]]:
    """The headings of kinds in each version, in order."""
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    return {part.splitlines()[0]: re.findall(r"^### (.+)$", part, re.MULTILINE) for part in parts}


def test_a_version_has_one_heading_of_each_kind() -> None:
    for version, kinds in versions(TEXT).items():
        assert set(kinds) <= KINDS, version
        assert len(kinds) == len(set(kinds)), version


def test_a_first_release_fixes_nothing() -> None:
    first = list(versions(TEXT).values())[-1]
    assert first == ["Added"]


def test_a_changelog_is_short_enough_to_be_read() -> None:
    first = re.split(r"^## ", TEXT, flags=re.MULTILINE)[-1]
    assert len(first.splitlines()) <= 150
