"""Find phrases that documents and sources must not use, and print the usual term for each.

The list is the table "Words" of CONTRIBUTING.md: a row has phrases, and their replacement. A phrase is found in any
case and across line ends, in documents and everywhere in sources: docstrings, comments, messages and names.

    python tools/plain_english.py            # exit code 1 if there are any; `make lint` runs it
    python tools/plain_english.py --count    # their number in each package, exceptions included
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WORDS_IN = "CONTRIBUTING.md"
WORDS_HEADING = "## Words"
SUFFIXES = (".py", ".pyx", ".pxd", ".java", ".md")
LINE_END = r"(?:\s+(?:#:?|//|\*)?\s*)"
"""The separator between two words of a phrase: spaces, or a line end and a comment marker."""

NOT_YET: tuple[str, ...] = ()
"""Files and directories that still use these phrases. Remove entries; never add one."""


class Finding(NamedTuple):
    """A forbidden phrase: its location, and the usual term."""

    path: str
    line: int
    phrase: str
    usual: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.phrase!r}: write {self.usual}"


def words(contributing: str) -> dict[str, str]:
    """The usual term for each phrase in the table of CONTRIBUTING.md."""
    table = contributing.partition(WORDS_HEADING + "\n")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:3] for line in table.splitlines() if line.startswith("|")][2:]
    return {phrase.strip().lower(): usual.strip() for phrases, usual in rows for phrase in phrases.split(",")}


def findings(path: str, text: str, usual: dict[str, str]) -> Iterator[Finding]:
    """Yield each listed phrase in a file's text, in the order of its lines."""
    if path == WORDS_IN:
        text = re.sub(rf"(?ms)^{WORDS_HEADING}\n.*?(?=^## |\Z)", lambda table: "\n" * table[0].count("\n"), text)
    any_phrase = "|".join(LINE_END.join(map(re.escape, phrase.split())) for phrase in usual)
    for found in re.finditer(rf"\b(?:{any_phrase})\b", text, re.IGNORECASE):
        phrase = " ".join(re.findall(r"[^\s#*/:]+", found[0])).lower()
        yield Finding(path, text.count("\n", 0, found.start()) + 1, phrase, usual[phrase])


def documents_and_sources() -> list[str]:
    """The paths, relative to the repository, of all checked files."""
    found = [*ROOT.glob("*.md")]
    for folder in ("docs", "src"):
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def is_excepted(path: str) -> bool:
    """Whether a file may still use the phrases."""
    return any(path == exception or path.startswith(exception + "/") for exception in NOT_YET)


def all_findings() -> list[Finding]:
    """All listed phrases, exceptions included."""
    usual = words((ROOT / WORDS_IN).read_text())
    return [found for path in documents_and_sources() for found in findings(path, (ROOT / path).read_text(), usual)]


def main(arguments: list[str]) -> int:
    """Print the findings and return the exit code."""
    found = all_findings()
    if arguments == ["--count"]:
        packages = Counter("/".join(finding.path.split("/")[:3]) for finding in found)
        for package, count in packages.most_common():
            print(f"{count:5} {package}")
        print(f"{len(found):5} in all")
        return 0
    found = [finding for finding in found if not is_excepted(finding.path)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
