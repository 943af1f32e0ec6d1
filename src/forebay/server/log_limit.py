"""A limit for lines of the log that say the same, so that clients who cause them cannot fill a disk with them."""

from __future__ import annotations

import logging
from dataclasses import dataclass

LINES_MAX = 20
PERIOD_SECONDS = 10.0
"""Of one kind of line so many are logged in so long a time. The next one after that tells how many were left out."""

_KINDS_MAX = 1000


@dataclass(slots=True)
class _Kind:
    """Lines of one logger that are alike but for their arguments."""

    since: float
    lines: int = 0
    left_out: int = 0


class LogLimit(logging.Filter):
    """For a handler of the root logger. The time is that of the lines; errors with traces are lines like others."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log a line. Handlers call this one line at a time."""
        key = (record.name, str(record.msg))
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= _KINDS_MAX:
                self._kinds.clear()
            kind = self._kinds[key] = _Kind(record.created)
        if not 0 <= record.created - kind.since < PERIOD_SECONDS:
            if kind.left_out:
                record.msg = f"{record.getMessage()} ({kind.left_out} more like this since the last one)"
                record.args = None
            kind.since, kind.lines, kind.left_out = record.created, 0, 0
        kind.lines += 1
        if kind.lines <= LINES_MAX:
            return True
        kind.left_out += 1
        return False
