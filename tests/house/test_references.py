"""What sources refer to exists: pages of docs by their paths and headings, and no document outside the repository."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.anchors import anchors

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    path
    for folder in ("src", "tests", "tools", "benchmarks", "examples")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".pyx", ".pxd", ".java", ".proto", ".sh") and path != Path(__file__)
]
PAGE = re.compile(r"(?<![\w/.])docs/(?P<path>[\w./-]+\.md)(?:#(?P<anchor>[\w-]+))?")
ELSEWHERE = re.compile(
    r"\bdesign\.md\b|\bdesign D\d+\b|\breference[ /:]+(?:\w+\.md)|(?<![\"/])\b(?:fluss|pyspark|performance)\.md\b"
)
"""Names of notes that are not in this repository. Decisions and facts stand in docs/design."""


def references(pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    """Each match in the sources, with its file and line."""
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        for found in pattern.finditer(text):
            yield f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}", found


def test_each_page_that_a_source_names_is_there_with_that_heading() -> None:
    missing = []
    for place, page in references(PAGE):
        if place.startswith("tests/"):  # tests of our tools name pages that they make
            continue
        file = ROOT / "docs" / page["path"]
        if not file.exists() or (page["anchor"] and page["anchor"] not in anchors(file)):
            missing.append(f"{place}: {page[0]}")
    assert missing == []


def test_no_source_refers_to_a_document_outside_the_repository() -> None:
    assert [f"{place}: {found[0]}" for place, found in references(ELSEWHERE)] == []
