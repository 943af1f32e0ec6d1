"""The steps of a round, and the phases under which users see them."""

from __future__ import annotations

from enum import StrEnum


class RoundStep(StrEnum):
    """A step of a round, in order. `forebay.tiering.round` describes each."""

    PLAN = "plan"
    WRITE = "write"
    SAVE = "save"
    COMMIT = "commit"
    REPORT = "report"
    MAINTAIN = "maintain"

    @property
    def phase(self) -> str:
        """The phase in status and metrics; `SAVE`, `COMMIT` and `REPORT` are one, as each is short."""
        match self:
            case RoundStep.PLAN:
                return "planning"
            case RoundStep.WRITE:
                return "writing"
            case RoundStep.MAINTAIN:
                return "maintaining"
        return "committing"
