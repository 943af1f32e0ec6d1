"""The findings of a verification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from forebay.base.quantity import format_bytes

OnStep = Callable[[str, int, int], None]
"""Called with the name of what is being checked, the amount done, and the total (0: unknown)."""


def no_steps(_what: str, _done: int, _total: int) -> None:
    """Ignore progress: the default callback."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding, at a file (with the position in it) or a bucket.

    A *fault* is damage: the stored data is not what was written, even if the server will repair it. Anything else is a
    *note*: the traces of a crash, and data that could not be compared.
    """

    is_fault: bool
    place: str
    message: str

    def __str__(self) -> str:
        text = self.message if self.place in self.message else f"{self.place}: {self.message}"
        return f"{'FAULT' if self.is_fault else 'note '} {text}"


@dataclass
class Report:
    """All findings, and the number of checked things."""

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
        """Add a fault."""
        self.findings.append(Finding(True, place, message))

    def note(self, place: str, message: str) -> None:
        """Add a note."""
        self.findings.append(Finding(False, place, message))

    def count(self, what: str, number: int = 1) -> None:
        """Count checked things."""
        self.counts[what] = self.counts.get(what, 0) + number

    def summary(self) -> str:
        """The number of checked things, and the verdict, in words."""
        checked = ", ".join(_counted(number, what) for what, number in self.counts.items()) or "nothing"
        faults, notes = len(self.faults), len(self.findings) - len(self.faults)
        totals = [
            f"{count or 'no'} {what}{'' if count == 1 else 's'}" for count, what in ((faults, "fault"), (notes, "note"))
        ]
        return f"checked {checked}: {', '.join(totals)}"


def _counted(number: int, what: str) -> str:
    kind = what.removeprefix("bytes of ")
    return f"{number:,} {what}" if kind == what else f"{format_bytes(number)} of {kind}"
