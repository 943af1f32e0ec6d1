"""What a verification found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

OnStep = Callable[[str, int, int], None]
"""Told of what is being checked, how much of it is done, and of how much (0: not known)."""


def no_steps(_what: str, _done: int, _total: int) -> None:
    """For callers who do not want to know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found, at a file (with the position in it) or a bucket.

    A *fault* is damage: what is stored there is not what was written, also where the server will make it good. Anything
    else is a *note*: what an unclean end leaves behind, and what could not be compared.
    """

    is_fault: bool
    place: str
    message: str

    def __str__(self) -> str:
        text = self.message if self.place in self.message else f"{self.place}: {self.message}"
        return f"{'FAULT' if self.is_fault else 'note '} {text}"


@dataclass
class Report:
    """All findings, and how much was checked."""

    findings: list[Finding] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def faults(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_fault]

    @property
    def is_clean(self) -> bool:
        """Whether there is no fault."""
        return not self.faults

    def fault(self, place: str, message: str) -> None:
        """Note damage."""
        self.findings.append(Finding(True, place, message))

    def note(self, place: str, message: str) -> None:
        """Note something that is no damage."""
        self.findings.append(Finding(False, place, message))

    def count(self, what: str, number: int = 1) -> None:
        """Count something that was checked."""
        self.counts[what] = self.counts.get(what, 0) + number

    def summary(self) -> str:
        """What was checked, and the verdict."""
        checked = ", ".join(f"{number:,} {what}" for what, number in self.counts.items()) or "nothing"
        faults, notes = len(self.faults), len(self.findings) - len(self.faults)
        found = [
            f"{count or 'no'} {what}{'' if count == 1 else 's'}" for count, what in ((faults, "fault"), (notes, "note"))
        ]
        return f"checked {checked}: {', '.join(found)}"
