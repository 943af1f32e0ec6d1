"""The quickstart's output: steps with their duration, a progress bar, lines in between."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

from forebay.base.ambient import SYSTEM_CLOCK

BAR_CHARACTERS = 40

_screen = threading.Lock()
"""Spark's answers come from another thread, so lines that belong together are printed under this lock."""


@contextlib.contextmanager
def step(name: str, what: str) -> Iterator[None]:
    """Print what is being done, and its duration at the end."""
    print(f"{name:<11} {what}", end=" ", flush=True)
    began = SYSTEM_CLOCK.monotonic()
    yield
    print(f"({SYSTEM_CLOCK.monotonic() - began:.1f} s)", flush=True)


def say(*lines: str) -> None:
    """Print separate lines, in the place of the current bar."""
    with _screen:
        if sys.stdout.isatty():
            print("\r\033[K", end="")
        for line in lines:
            print(line, flush=True)


def draw_bar(fraction: float, text: str, *, last: bool = False) -> None:
    """Draw a bar over the previous one. Without a terminal, only the `last` one is printed."""
    terminal = sys.stdout.isatty()
    if not terminal and not last:
        return
    filled = round(BAR_CHARACTERS * min(fraction, 1))
    line = f"   {'█' * filled}{'·' * (BAR_CHARACTERS - filled)} {fraction:4.0%}  {text}"
    with _screen:
        print(f"\r{line}\033[K" if terminal else line, end="\n" if last else "", flush=True)


def indented(text: str, spaces: int = 3) -> list[str]:
    """The lines of a program or a statement, indented."""
    return [" " * spaces + line if line else "" for line in text.rstrip().splitlines()]
