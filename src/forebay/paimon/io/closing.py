"""Closing what rows are read from as soon as no more of them are needed.

A generator that is left before its end holds its file open until it is collected. After an error that may be long: the
error's traceback keeps it. So whoever consumes rows closes their source.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


@contextlib.contextmanager
def closed_after(source: Iterable[_T]) -> Iterator[Iterable[_T]]:
    """`source`, closed when the block ends if it can be (generators can, lists cannot)."""
    try:
        yield source
    finally:
        close_sources([source])


def close_sources(sources: Iterable[object]) -> None:
    """Close those of `sources` that can be closed; all, even if some fail."""
    with contextlib.ExitStack() as stack:
        for source in sources:
            close = getattr(source, "close", None)
            if close is not None:
                stack.callback(close)
