"""Checks that hold for every section of a benchmark."""

from __future__ import annotations

from benchmarks.report import MISS, OK, Section, document, section_text


def whats(section: Section) -> list[str]:
    return [figure.what for figure in section.figures]


def check(section: Section, name: str) -> None:
    """What holds for every section: positive rates, explained tables, and a document with every figure in it."""
    assert section.name == name
    assert all(table.title and table.explanation and table.figures for table in section.tables)
    assert all(figure.value > 0 for figure in section.figures if "/s" in figure.unit)
    assert all(figure.verdict in ("", OK, MISS) for figure in section.figures)
    text, written = section_text(section), document([section], [("date", "today")])
    for figure in section.figures:
        assert figure.what.strip() in text
        assert f"| {' | '.join(figure.cells())} |" in written
    for figure in section.misses:
        assert figure.reason, f"{figure.what} can miss its target without a reason"
