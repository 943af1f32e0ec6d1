"""Errors of Python workers: Spark shows a worker's whole traceback, so ours are made short before they leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forebay.base.errors import ForebayError


@contextmanager
def short_errors(doing: str = "") -> Iterator[None]:
    """Let a `ForebayError` go on without its history, and with what the worker was `doing` in its message.

    Bugs keep their tracebacks.
    """
    short: ForebayError | None = None
    try:
        yield
    except ForebayError as e:
        short = type(e)(f"{doing}: {e.message}" if doing else e.message, e.code)
    if short is not None:
        raise short from None
