"""Figures, sections, and their output: text tables for the terminal, Markdown for docs/benchmarks.md.

The document begins with tables of all kinds of work. Their lines come from the sections' `Kind`s, which the document
keeps in comments after each section. A part that is written alone therefore renews its own lines, and the others stay.
`pages` divides a document into a first page and one page of details for each part, and `joined` reverses this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from forebay.cli.output import text_table

OK, MISS = "ok", "MISS"
_PART = re.compile(r"<!-- part (?P<name>\w+): begin -->\n.*?<!-- part (?P=name): end -->\n?", re.DOTALL)
_KIND = re.compile(r"^<!-- kind (?P<section>\w+): (?P<kind>\{.*\}) -->$", re.MULTILINE)
_PAGE = re.compile(r"<!-- first page: begin -->\n.*?<!-- first page: end -->\n", re.DOTALL)
_DETAILS = "<!-- details -->\n"
"""Separates the first page from the sections that have no part of their own."""
LIVE = "live"
"""The page of these sections."""
_LIVE_TITLE = "# Benchmarks of live tables"
_GROUPS = {
    "peers": ("The server", "make bench-peers", "peers"),
    "spark": ("Live tables in Spark", "make bench", LIVE),
    "paimon": ("Lake tables", "make bench-paimon", "paimon"),
    "pipelines": ("Lake tables in Spark", "make bench-pipelines", "pipelines"),
    "union": ("Tiering and union reads", "make bench-union", "union"),
}
"""Sections in the order of the first page, each with its title there, its command and its page; others follow."""

_PROCESSOR = re.compile(r"^\| processor \| (.*) \|$", re.MULTILINE)
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


@dataclass(frozen=True)
class Limit:
    """What bounds a kind of work on this machine, and how much of it that allows, in the unit of the work."""

    what: str
    value: float


@dataclass(frozen=True)
class Kind:
    """A line of the first page: ours, each peer, and the limit of the machine, in one unit.

    More is better where the unit is a rate; less is where it is a time, `ms`.
    """

    what: str
    unit: str
    ours: float
    peers: Mapping[str, float] = field(default_factory=dict)
    limit: Limit | None = None

    @classmethod
    def of(cls, what: str, table: FigureTable, ours: str, peers: Mapping[str, str], limit: Limit | None = None) -> Kind:
        """The line of a table's row `ours`, and of other rows of it, under the names that `peers` gives them."""
        rows = {figure.what: figure for figure in table.figures}
        return cls(
            what, rows[ours].unit, rows[ours].value, {named: rows[row].value for row, named in peers.items()}, limit
        )

    def cells(self, date: str) -> list[str]:
        is_time = self.unit == "ms"
        peer, theirs = min(self.peers.items(), key=lambda one: one[1] if is_time else -one[1], default=("", 0.0))

        def ratio(other: float) -> float:
            return other / self.ours if is_time else self.ours / other

        return [
            self.what,
            f"{number(self.ours)} {self.unit}",
            f"{number(theirs)}: {peer}" if peer else "",
            f"{ratio(theirs):.2f} x" if peer else "",
            f"{number(self.limit.value)}: {self.limit.what}" if self.limit else "",
            f"{100 * ratio(self.limit.value):.0f} %" if self.limit else "",
            date,
        ]


@dataclass
class Section:
    """One part of the report. `notes` are remarks on how to read it; `kinds` are its lines of the first page."""

    name: str
    title: str
    tables: Sequence[FigureTable | Grid] = ()
    notes: list[str] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)

    @property
    def figures(self) -> list[Figure]:
        return [figure for table in self.tables for figure in table.figures]

    @property
    def misses(self) -> list[Figure]:
        return [figure for figure in self.figures if figure.verdict == MISS]


def duration(seconds: float) -> str:
    """A length of time: 45 s, 12 min."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def section_text(section: Section) -> str:
    """A section for the terminal."""
    lines = [f"== {section.title}"]
    for table in section.tables:
        lines += ["", table.title, *("  " + line for line in table.lines())]
    if section.kinds:
        lines += [
            "",
            "On the first page",
            *text_table(_PAGE_HEADER, [kind.cells("") for kind in section.kinds], {1, 3, 5}),
        ]
    lines += [f"  {figure.what}: {figure.reason}" for figure in section.misses if figure.reason]
    return "\n".join(lines) + "\n"


_PAGE_HEADER = ["work", "Forebay", "the best peer", "ratio", "this machine allows", "reached", "measured"]

_INTRODUCTION = """# Benchmarks

This page compares Forebay with other software that does the same work, measured in the same run on the same machine.
The commands below write it; do not edit it. `python -m benchmarks upsert --repeat 3 --out /tmp/upsert.md` measures one
section alone.
"""

_PAGE_TEXT = """Each row is one kind of work. *The best peer* is the peer that was fastest in that run. A ratio above 1
means that Forebay is faster. If a server has several clients, it is judged by its fastest one. Java Fluss does not sync
its log to the disk before it responds; Forebay does. *This machine allows* is the indispensable part of the work, done
alone, mostly by one core: it was measured in the same run without Forebay and without the peer."""

_HOW_TO_READ = """## How to read the rest

* The figures of one table were taken in turns, on the same machine, server and rows. **Ratios** therefore carry over to
  other machines better than absolute figures. A ratio is a speed relative to the row that the text above its table
  names; above 1 is faster.
* If a row has a target, the last column says `ok` or `MISS`. A list below the tables gives the reason for each miss.
* Each figure is the median of the repetitions, unless its text says that it was taken once. Values in brackets are the
  minimum and the maximum of the repetitions.
* The rows have 8 columns (BIGINT key, INT, DOUBLE, two STRINGs of 12 and 8 characters, TIMESTAMP(6), BOOLEAN,
  DECIMAL(12, 2)), about 70 bytes a row.
"""


def document(sections: Sequence[Section], facts: Sequence[tuple[str, str]]) -> str:
    """docs/benchmarks.md: the machine and the versions (`facts`), all tables, and the reasons of misses."""
    lines = [*_facts_lines(facts)]
    for section in sections:
        lines += ["", *_section_lines(section), *_kinds_lines(section, facts)]
    lines += ["", "## What misses its target", "", *_misses_lines(sections)]
    text = "\n".join(lines) + "\n"
    return f"{_INTRODUCTION}\n{_first_page(text)}\n{_HOW_TO_READ}\n{_DETAILS}{text}"


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
    lines += _kinds_lines(section, facts)
    return "\n".join([*lines, "", f"<!-- part {section.name}: end -->"]) + "\n"


def merged(before: str, sections: Sequence[Section], parts: Sequence[Section], facts: Sequence[tuple[str, str]]) -> str:
    """The document `before`, with `sections` in place of everything outside of parts, and with `parts` replaced.

    Without sections, the existing ones are kept. Parts that are not replaced are kept, too.
    """
    kept = {found["name"]: found[0].rstrip("\n") for found in _PART.finditer(before)}
    rest = _PART.sub("", before)
    text = document(sections, facts) if sections or not rest.strip() else rest
    kept |= {section.name: part(section, facts).rstrip("\n") for section in parts}
    whole = "\n\n".join([text.rstrip("\n"), *(kept[name] for name in sorted(kept))]) + "\n"
    page = _first_page(whole)
    if _PAGE.search(whole):
        return _PAGE.sub(lambda _: page, whole, count=1)
    return whole.replace("\n\n", f"\n\n{page}\n", 1)  # behind the title of a document that has no first page yet


def _first_page(text: str) -> str:
    """The tables of all kinds of work that the sections of a document keep in comments."""
    found: dict[str, list[list[str]]] = {}
    for match in _KIND.finditer(text):
        kept = json.loads(match["kind"])
        date, limit = kept.pop("date"), kept.pop("limit")
        kind = Kind(**kept, limit=limit and Limit(**limit))
        found.setdefault(match["section"], []).append(kind.cells(date))
    processors = dict.fromkeys(_PROCESSOR.findall(text))
    lines = ["<!-- first page: begin -->", _PAGE_TEXT, ""]
    lines += [f"Machine: {'; '.join(processors)}.", ""] if processors else []
    for name in sorted(found, key=lambda name: list(_GROUPS).index(name) if name in _GROUPS else len(_GROUPS)):
        title, command, _ = _GROUPS.get(name, (name, f"python -m benchmarks {name}", LIVE))
        lines += [f"## {title}", "", _measured_by(command), ""]
        lines += [f"| {' | '.join(_PAGE_HEADER)} |", "|---|--:|---|--:|---|--:|---|"]
        lines += [*(f"| {' | '.join(cells)} |" for cells in found[name]), ""]
    return "\n".join([*lines, "<!-- first page: end -->"]) + "\n"


def _measured_by(command: str) -> str:
    return f"Command: `{command}`."


def pages(whole: str, folder: str) -> dict[str, str]:
    """The pages of a document by name: the first one is "", and the others are for `folder`, to which it links."""
    rest, _, live = _PART.sub("", whole).partition(_DETAILS)
    made = {LIVE: f"{_LIVE_TITLE}\n\n{live.strip()}\n"} if live.strip() else {}
    for found in _PART.finditer(whole):
        text = found[0].split("\n", 1)[1].rpartition("<!-- part ")[0]
        made[found["name"]] = re.sub(r"^#(#+ )", r"\1", text.strip(), flags=re.MULTILINE) + "\n"
    for _, command, page in _GROUPS.values():
        if page in made:
            link = f"Command: `{command}`; [details]({folder}/{page}.md)."
            rest = rest.replace(_measured_by(command), link)
    return {"": rest.rstrip("\n") + "\n", **made}


def joined(made: Mapping[str, str]) -> str:
    """The document of which these are the pages."""
    live = made.get(LIVE, "").removeprefix(_LIVE_TITLE).strip()
    whole = [made[""].rstrip("\n") + "\n", f"{_DETAILS}{live}"]
    for name in sorted(set(made) - {"", LIVE}):
        text = re.sub(r"^(#+ )", r"#\1", made[name].strip(), flags=re.MULTILINE)
        whole.append(f"\n<!-- part {name}: begin -->\n\n{text}\n\n<!-- part {name}: end -->")
    return "\n".join(whole) + "\n"


def _kinds_lines(section: Section, facts: Sequence[tuple[str, str]]) -> list[str]:
    date = dict(facts).get("date", "")
    return [
        f"<!-- kind {section.name}: {json.dumps({'date': date, **asdict(kind)}, sort_keys=True)} -->"
        for kind in section.kinds
    ]


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
