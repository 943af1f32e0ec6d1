"""Figures, sections, and how they are written: text tables for the terminal, Markdown for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from forebay.cli.output import text_table

OK, MISS = "ok", "MISS"
HEADER = ["what", "figure", "ratio", "target", ""]
_RIGHT = {1, 2, 3}


@dataclass(frozen=True)
class Figure:
    """One measured value.

    `ratio` compares it with another row of its table; which one, the table's explanation says. A target is a least or
    a most, of the ratio if there is a `ratio_min`. `reason` tells why a target is missed, and is printed only then.
    """

    what: str
    value: float
    unit: str = "rows/s"
    ratio: float | None = None
    value_min: float | None = None
    value_max: float | None = None
    ratio_min: float | None = None
    reason: str = ""

    @property
    def verdict(self) -> str:
        """`OK`, `MISS`, or nothing where there is no target."""
        if self.value_min is None and self.value_max is None and self.ratio_min is None:
            return ""
        missed = (
            (self.value_min is not None and self.value < self.value_min)
            or (self.value_max is not None and self.value > self.value_max)
            or (self.ratio_min is not None and (self.ratio is None or self.ratio < self.ratio_min))
        )
        return MISS if missed else OK

    @property
    def target(self) -> str:
        parts = []
        if self.value_min is not None:
            parts.append(f">= {number(self.value_min)}")
        if self.value_max is not None:
            parts.append(f"<= {number(self.value_max)}")
        if self.ratio_min is not None:
            parts.append(f">= {self.ratio_min:g} x")
        return ", ".join(parts)

    def cells(self) -> list[str]:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f} x"
        return [self.what, f"{number(self.value)} {self.unit}".strip(), ratio, self.target, self.verdict]


def number(value: float) -> str:
    """A value with about three digits that matter: 1,234,567 / 12.3 / 0.123."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 or size == 0 else f"{value:.3f}"


@dataclass
class FigureTable:
    """Figures that are read together. `explanation` says what was done and what ratios are against."""

    title: str
    explanation: str
    figures: list[Figure] = field(default_factory=list)

    def add(self, figure: Figure) -> None:
        self.figures.append(figure)

    def lines(self) -> Iterator[str]:
        yield from text_table(HEADER, [figure.cells() for figure in self.figures], _RIGHT)


@dataclass
class Section:
    """One part of the report. `notes` are remarks on how to read it."""

    name: str
    title: str
    tables: list[FigureTable] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def figures(self) -> list[Figure]:
        return [figure for table in self.tables for figure in table.figures]

    @property
    def misses(self) -> list[Figure]:
        return [figure for figure in self.figures if figure.verdict == MISS]


def section_text(section: Section) -> str:
    """A section for the terminal."""
    lines = [f"== {section.title}"]
    for table in section.tables:
        lines += ["", table.title, *("  " + line for line in table.lines())]
    lines += [f"  {figure.what}: {figure.reason}" for figure in section.misses if figure.reason]
    return "\n".join(lines) + "\n"


_INTRODUCTION = """# Benchmarks

Written by `make bench`; do not edit. It measures Forebay, other software that does the same, and the limits of the
machine, in one run. One part alone: `python -m benchmarks upsert --repeat 3 --out /tmp/upsert.md`.

How to read it: figures of one table were taken in turns, on the same machine, server and rows, so **ratios** carry over
to other machines better than absolute figures do. A ratio is a speed against the row that the text above its table
names; above 1 is faster. Where there is a target, the last column says `ok` or `MISS`, and a list below all tables says
why. Each figure is the median of the repetitions, unless its text says that it was taken once.
The rows have 8 columns (BIGINT key, INT, DOUBLE, two
STRINGs of 12 and 8 characters, TIMESTAMP(6), BOOLEAN, DECIMAL(12, 2)), about 70 bytes a row.
"""


def document(sections: Sequence[Section], facts: Sequence[tuple[str, str]]) -> str:
    """docs/benchmarks.md: the machine and the versions (`facts`), all tables, and the reasons of misses."""
    lines = [_INTRODUCTION, "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts)]
    for section in sections:
        lines += ["", f"## {section.title}"]
        for table in section.tables:
            lines += ["", f"### {table.title}", "", table.explanation, ""]
            lines += [f"| {' | '.join(HEADER)} |", "|---|--:|--:|--:|---|"]
            lines += [f"| {' | '.join(figure.cells())} |" for figure in table.figures]
        if section.notes:
            lines += ["", *(f"* {note}" for note in section.notes)]
    lines += ["", "## What misses its target", ""]
    misses = [(section, figure) for section in sections for figure in section.misses]
    lines += [
        f"* {section.title}, {figure.what}: {figure.reason or 'not explained yet.'}" for section, figure in misses
    ] or ["Nothing in this run."]
    return "\n".join(lines) + "\n"
