"""Closing sources of rows as soon as no more rows are needed.

An unfinished generator holds its file open until it is garbage-collected. After an error that may take long, because
the traceback refers to it. So every consumer of rows closes their source.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


@contextlib.contextmanager
def closed_after(source: Iterable[_T]) -> Iterator[Iterable[_T]]:
    """Yield `source`, and close it at the end of the block if it has a `close` (generators do, lists do not)."""
    try:
        yield source
    finally:
        close_sources([source])


def close_sources(sources: Iterable[object]) -> None:
    """Close those of `sources` that have a `close`; all, even if some fail."""
    with contextlib.ExitStack() as stack:
        for source in sources:
            close = getattr(source, "close", None)
            if close is not None:
                stack.callback(close)
