"""Figures, sections, and their output: text tables for the terminal, Markdown for docs/benchmarks.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from forebay.cli.output import text_table

OK, MISS = "ok", "MISS"
_PART = re.compile(r"<!-- part (?P<name>\w+): begin -->\n.*?<!-- part (?P=name): end -->\n?", re.DOTALL)
_UNEXPLAINED = "not explained yet."
_NO_MISS = "Nothing in this run."
HEADER = ["what", "figure", "ratio", "target", ""]
_RIGHT = {1, 2, 3}


@dataclass(frozen=True)
class Figure:
    """One measured value.

    `ratio` compares it with another row of its table, which the table's explanation names. A target is a minimum or
    maximum, of the ratio if there is a `ratio_min` or `ratio_max`. `spread` is the minimum and maximum of the turns
    whose median the value is. `cpu` is the CPU time, and the part of it in the kernel, in milliseconds. `reason`
    explains why a target is missed, and is printed only then.
    """

    what: str
    value: float
    unit: str = "rows/s"
    ratio: float | None = None
    value_min: float | None = None
    value_max: float | None = None
    ratio_min: float | None = None
    reason: str = ""
    ratio_max: float | None = None
    spread: tuple[float, float] | None = None
    cpu: tuple[float, float] | None = None

    @property
    def verdict(self) -> str:
        """`OK`, `MISS`, or empty if there is no target."""
        if not self.target:
            return ""
        missed = (
            (self.value_min is not None and self.value < self.value_min)
            or (self.value_max is not None and self.value > self.value_max)
            or (self.ratio_min is not None and (self.ratio is None or self.ratio < self.ratio_min))
            or (self.ratio_max is not None and (self.ratio is None or self.ratio > self.ratio_max))
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
        if self.ratio_max is not None:
            parts.append(f"<= {self.ratio_max:g} x")
        return ", ".join(parts)

    def cells(self) -> list[str]:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f} x"
        value = f"{number(self.value)} {self.unit}".strip()
        if self.spread is not None:
            value += f" ({number(self.spread[0])} to {number(self.spread[1])})"
        if self.cpu is not None:
            value += f", CPU {number(self.cpu[0])} ms, {number(self.cpu[1])} of it in the kernel"
        return [self.what, value, ratio, self.target, self.verdict]


def number(value: float) -> str:
    """A value with about three significant digits: 1,234,567 / 12.3 / 0.123."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 or size == 0 else f"{value:.3f}"


@dataclass
class FigureTable:
    """Figures that belong together. `explanation` says what was done and what ratios are relative to."""

    title: str
    explanation: str
    figures: list[Figure] = field(default_factory=list)

    def add(self, figure: Figure) -> None:
        self.figures.append(figure)

    def lines(self) -> Iterator[str]:
        yield from text_table(HEADER, [figure.cells() for figure in self.figures], _RIGHT)

    def markdown(self) -> Iterator[str]:
        yield f"| {' | '.join(HEADER)} |"
        yield "|---|--:|--:|--:|---|"
        yield from (f"| {' | '.join(figure.cells())} |" for figure in self.figures)


@dataclass
class Grid:
    """A table of values without targets: in each row, one cost at several sizes."""

    title: str
    explanation: str
    header: list[str]
    rows: list[list[str]]
    figures: list[Figure] = field(default_factory=list, init=False)

    def lines(self) -> Iterator[str]:
        yield from text_table(self.header, self.rows, set(range(1, len(self.header))))

    def markdown(self) -> Iterator[str]:
        yield f"| {' | '.join(self.header)} |"
        yield f"|---{'|--:' * (len(self.header) - 1)}|"
        yield from (f"| {' | '.join(row)} |" for row in self.rows)


@dataclass
class Section:
    """One part of the report. `notes` are remarks on how to read it."""

    name: str
    title: str
    tables: Sequence[FigureTable | Grid] = ()
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

Written by `make bench`, and the parts at the end by `make bench-paimon`, `make bench-union`, `make bench-pipelines` and
`make bench-peers`; do not edit. It measures Forebay, other software that does the same, and the limits of the
machine, in one run. One part alone:
`python -m benchmarks upsert --repeat 3 --out /tmp/upsert.md`.

How to read it: figures of one table were taken in turns, on the same machine, server and rows, so **ratios** carry over
to other machines better than absolute figures do. A ratio is a speed against the row that the text above its table
names; above 1 is faster. Where there is a target, the last column says `ok` or `MISS`, and a list below all tables says
why. Each figure is the median of the repetitions, unless its text says that it was taken once; values in brackets are
the least and the most of the repetitions.
The rows have 8 columns (BIGINT key, INT, DOUBLE, two
STRINGs of 12 and 8 characters, TIMESTAMP(6), BOOLEAN, DECIMAL(12, 2)), about 70 bytes a row.
"""


def document(sections: Sequence[Section], facts: Sequence[tuple[str, str]]) -> str:
    """docs/benchmarks.md: the machine and the versions (`facts`), all tables, and the reasons of misses."""
    lines = [_INTRODUCTION, *_facts_lines(facts)]
    for section in sections:
        lines += ["", *_section_lines(section)]
    lines += ["", "## What misses its target", "", *_misses_lines(sections)]
    return "\n".join(lines) + "\n"


def part(section: Section, facts: Sequence[tuple[str, str]]) -> str:
    """A section that is measured by a separate command: with the machine and the misses of that run, and marked."""
    lines = [f"<!-- part {section.name}: begin -->", "", *_section_lines(section, intro=["", *_facts_lines(facts)])]
    missing = [
        f"* {table.title}, {figure.what}: {figure.reason or _UNEXPLAINED}"
        for table in section.tables
        for figure in table.figures
        if figure.verdict == MISS
    ]
    lines += ["", "### What misses its target here", "", *(missing or [_NO_MISS])]
    return "\n".join([*lines, "", f"<!-- part {section.name}: end -->"]) + "\n"


def merged(before: str, sections: Sequence[Section], parts: Sequence[Section], facts: Sequence[tuple[str, str]]) -> str:
    """The document `before`, with `sections` in place of everything outside of parts, and with `parts` replaced.

    Without sections, the existing ones are kept. Parts that are not replaced are kept, too.
    """
    kept = {found["name"]: found[0].rstrip("\n") for found in _PART.finditer(before)}
    rest = _PART.sub("", before)
    text = document(sections, facts) if sections or not rest.strip() else rest
    kept |= {section.name: part(section, facts).rstrip("\n") for section in parts}
    return "\n\n".join([text.rstrip("\n"), *(kept[name] for name in sorted(kept))]) + "\n"


def _facts_lines(facts: Sequence[tuple[str, str]]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts)]


def _section_lines(section: Section, intro: Sequence[str] = ()) -> list[str]:
    lines = [f"## {section.title}", *intro]
    for table in section.tables:
        lines += ["", f"### {table.title}", "", table.explanation, "", *table.markdown()]
    if section.notes:
        lines += ["", *(f"* {note}" for note in section.notes)]
    return lines


def _misses_lines(sections: Sequence[Section]) -> list[str]:
    misses = [(section, figure) for section in sections for figure in section.misses]
    return [f"* {section.title}, {figure.what}: {figure.reason or _UNEXPLAINED}" for section, figure in misses] or [
        _NO_MISS
    ]
