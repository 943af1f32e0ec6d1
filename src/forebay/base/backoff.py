"""Pauses between attempts."""

from __future__ import annotations


def backoff(failures: int, first: float, most: float) -> float:
    """The pause after so many failures in a row: `first` after one, twice as long after each more, at most `most`.

    In the unit of `first` and `most`.
    """
    return float(min(first * 2.0 ** min(failures - 1, 64), most))
