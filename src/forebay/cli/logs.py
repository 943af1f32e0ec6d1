"""Where a command's log goes and how its lines look: text for people, or one JSON object a line for collectors."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import logging
import sys
from typing import TextIO

from forebay.cli.log_limit import LogLimit

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def add_log_arguments(parser: argparse.ArgumentParser, level: str) -> None:
    """Add `--log-level`, whose default is `level`, and `--log-format`."""
    parser.add_argument(
        "--log-level", default=level, metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR (default: %(default)s)"
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="json: one object per line, with time, level, logger, message, thread and error (default: %(default)s)",
    )


def configure_logs(options: argparse.Namespace, *, limits_lines: bool = False) -> None:
    """Log to stderr as `add_log_arguments` has asked. `limits_lines`: similar lines are limited in number."""
    log_to_stderr(options.log_level.upper())
    for handler in logging.getLogger().handlers:
        if options.log_format == "json":
            handler.setFormatter(JsonLines())
        if limits_lines:
            handler.addFilter(LogLimit())


def log_to_stderr(level: str) -> None:
    """Log lines of text from `level` on to stderr, and nowhere else."""
    logging.basicConfig(level=level, format=_TEXT, force=True, handlers=[_StandardError()])


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is when a line is written.

    A program that runs a command in its own process may have replaced, and closed, what it was when that began, while
    threads of a server go on logging.
    """

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override] # an attribute there
        return sys.stderr


class JsonLines(logging.Formatter):
    """Each line is an object: `time` (ISO 8601, UTC), `level`, `logger`, `message`, `thread`, and `error` with a trace.

    What a program passes as `extra` is added under its own name.
    """

    _OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON, with the time in UTC and the record's extra fields."""
        time = dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName,
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        line |= {key: value for key, value in record.__dict__.items() if key not in self._OWN}
        return json.dumps(line, default=str)
