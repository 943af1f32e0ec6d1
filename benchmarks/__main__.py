"""`python -m benchmarks`: choose sections, run them, print and write the report."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine
from benchmarks.report import Section, duration, joined, merged, pages, section_text
from benchmarks.running import Run

SECTIONS = {
    "append": "appending to a log table: ours, pyfluss, the disk alone",
    "upsert": "upserts with changelog: ours, pyfluss, and where the server's time goes",
    "merging": "upserts into tables with merge engines, beside the default engine",
    "transactions": "rows in a transaction, against the same rows written plainly",
    "engines": "hlog and LMDB side by side, with a large state",
    "scan": "full scans of a primary-key table, and their memory",
    "lookup": "lookups by key: latency and rate, ours and pyfluss",
    "spark": "Spark reading and writing our tables, against Parquet files",
    "recovery": "opening after kill -9, and replaying a changelog",
    "peers": "the server beside Java Fluss: writes, reads, lookups, small requests, create, restart",
    "paimon": "the lake engine: ours, pypaimon, its Rust engine, Java Paimon, plain Parquet",
    "union": "lake and stream as one: tiering, freshness, union reads, against Spark on Parquet",
    "pipelines": "lake tables in Spark: streams with and without compaction, scans, INSERT, against Parquet files",
}
_SECONDS = {
    "append": 40, "upsert": 60, "merging": 50, "transactions": 70, "engines": 60, "scan": 45, "lookup": 30,
    "spark": 150, "recovery": 75, "peers": 480, "paimon": 540, "union": 780, "pipelines": 660,
}  # fmt: skip
"""About how long each section takes on two cores with its own number of rows."""

PARTS = ("paimon", "union", "pipelines", "peers")
"""Sections that only run when named, and have a separate part of the report."""

ONLY = {
    "union": ("tiering", "freshness", "reads", "growth"),
    "pipelines": ("ingest", "hours", "scans", "inserts", "growth"),
}
"""The parts of sections that can be run alone."""

_EPILOG = (
    "sections:\n"
    + "\n".join(f"  {name:<9} {what}" for name, what in SECTIONS.items())
    + """

examples:
  python -m benchmarks                                all others, into docs/benchmarks.md (about 10 minutes)
  python -m benchmarks paimon --out docs/benchmarks.md  the part of the lake engine there (about 9 minutes)
  python -m benchmarks union --out docs/benchmarks.md   the part of lake and stream as one (about 13 minutes)
  python -m benchmarks pipelines --out docs/benchmarks.md   the part of lake tables in Spark (about 11 minutes)
  python -m benchmarks peers --out docs/benchmarks.md   the part beside Java Fluss (about 8 minutes; needs Java, Maven)
  python -m benchmarks append upsert --out -          two sections, printed only
  python -m benchmarks scan --rows 200000 --repeat 1  a quick look"""
)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure Forebay, its peers and the limits of this machine in one run.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("sections", nargs="*", metavar="SECTION", help="which ones (default: all but the last four)")
    made.add_argument("--rows", type=int, help="rows of each section, instead of its own number")
    made.add_argument(
        "--batches", type=int, help="micro-batches of the long stream of pipelines (default: 3600, an hour)"
    )
    parts = sorted({part for found in ONLY.values() for part in found})
    made.add_argument("--only", choices=parts, help="one part of union or pipelines")
    made.add_argument("--repeat", type=int, default=3, help="turns; the median counts (default: %(default)s)")
    made.add_argument(
        "--out",
        help="the report: a file, or - for none (default: docs/benchmarks.md for all sections, else none); "
        "the parts of peers, paimon, union and pipelines stay in it when other sections are written, and these stay "
        "when they are; where a folder of its name exists, details are pages there",
    )
    made.add_argument("--dir", help="directory for servers' files (default: the system's temporary directory)")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; misses are printed, but are not failures."""
    made = parser()
    options = made.parse_args(argv)
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        made.error(f"there is no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    if options.only is not None and not all(options.only in ONLY.get(name, ()) for name in options.sections or [""]):
        made.error(
            f"--only {options.only} is for one section of {', '.join(n for n in ONLY if options.only in ONLY[n])}"
        )
    if options.only is not None and options.out not in (None, "-"):
        made.error("a part of a section is no report: --only goes with --out -")
    if any(number is not None and number < 1 for number in (options.repeat, options.rows, options.batches)):
        made.error("--rows, --batches and --repeat must be at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that servers and files are cleaned up
    names = list(dict.fromkeys(options.sections)) or [name for name in SECTIONS if name not in PARTS]
    out = options.out or ("-" if options.sections else "docs/benchmarks.md")
    sections = []
    with tempfile.TemporaryDirectory(prefix="forebay-benchmarks-", dir=options.dir) as folder:
        facts = machine.facts(Path(folder))
        run = Run(options.rows, options.repeat, Path(folder), _say, options.batches, options.only)
        began, ahead = time.perf_counter(), sum(_SECONDS[name] for name in names)
        for done, name in enumerate(names):
            left = sum(_SECONDS[later] for later in names[done:])
            if run.rows is None and run.batches is None and run.only is None:
                pace = (time.perf_counter() - began) / (ahead - left) if done else 1.0
                _say(f"[section {done + 1} of {len(names)}: about {duration(left * pace)} left]")
            sections.append(run_section(name, run))
            print(section_text(sections[-1]), flush=True)
        facts.append(("took", duration(time.perf_counter() - began)))
    if out != "-":
        write_report(Path(out), sections, facts)
        _say(f"wrote {out}")
    return 0


def write_report(path: Path, sections: Sequence[Section], facts: Sequence[tuple[str, str]]) -> None:
    """Write the report; parts that were not measured are kept.

    If there is a folder of the same name beside it, such as docs/benchmarks, the details are pages in that folder.
    """
    folder = path.with_suffix("")
    before = path.read_text() if path.exists() else ""
    if folder.is_dir():
        before = joined({"": before, **{page.stem: page.read_text() for page in sorted(folder.glob("*.md"))}})
    parts = [section for section in sections if section.name in PARTS]
    whole = merged(before, [s for s in sections if s.name not in PARTS], parts, facts)
    if not folder.is_dir():
        path.write_text(whole)
        return
    for name, text in pages(whole, folder.name).items():
        (folder / f"{name}.md" if name else path).write_text(text)


def run_section(name: str, run: Run) -> Section:
    """The figures of one section."""
    run.say(f"{name}: {SECTIONS[name]}")
    began = time.perf_counter()
    section: Section = importlib.import_module(f"benchmarks.{name}").run(run)
    run.say(f"{name} took {time.perf_counter() - began:.0f} s")
    return section


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
