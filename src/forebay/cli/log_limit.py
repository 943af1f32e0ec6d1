"""A rate limit for similar log lines, so that clients cannot fill a disk with them."""

from __future__ import annotations

import logging
from dataclasses import dataclass

LINES_MAX = 20
PERIOD_SECONDS = 10.0
"""Number of lines of one kind that are logged per period. The next one after that reports how many were suppressed."""

_KINDS_MAX = 1000


@dataclass(slots=True)
class _Kind:
    """Lines of one logger and level that differ only in their arguments."""

    since: float
    lines: int = 0
    left_out: int = 0


class LogLimit(logging.Filter):
    """For a handler of the root logger. The time is that of the lines; errors with traces are lines like others.

    Lines at DEBUG are not limited: who asks for that level wants each, and follows single requests by them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[str, int, str], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log a line. Handlers call this one line at a time."""
        if record.levelno <= logging.DEBUG:
            return True
        key = (record.name, record.levelno, str(record.msg))
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
