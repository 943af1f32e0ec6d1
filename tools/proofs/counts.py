"""The counts of trials: those of chunks are added up to one, and kept as a file in docs/results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Figures = dict[str, Any]

_ABOUT = ("date", "commit", "cores", "minutes", "outcome", "again", "failed_before", "parts", "code", "not_run")
"""What each file of docs/results has beside the figures of its trial."""
_SMALLEST = ("first_seed",)
_LARGEST = ("last_seed", "workers", "server_mb", "server_mb_at_most", "kinds_of_requests")
_LISTED = ("seed",)


def added(chunks: Sequence[Mapping[str, Any]]) -> Figures:
    """The figures of several chunks as those of one run.

    Numbers are added up, but for those whose name says that they are the largest or a speed. Texts are those of the
    first chunk.
    """
    total: Figures = {}
    for chunk in chunks:
        for name, value in chunk.items():
            if name not in _ABOUT:
                total[name] = _with(name, total[name], value) if name in total else value
    if len(chunks) > 1:
        _derive(total, len(chunks))
    return total


def _with(name: str, total: Any, value: Any) -> Any:
    if name in _LISTED:
        return f"{total}, {value}"
    if name in _SMALLEST:
        return min(total, value)
    if name in _LARGEST or name.endswith(("_max", "_max_ms", "_at_most")):
        return max(total, value)
    if isinstance(value, float):
        return round(total + value, 2)
    if isinstance(value, list) or (isinstance(value, int) and not isinstance(value, bool)):
        return total + value
    if isinstance(value, dict):
        merged = {**value, **total}
        return merged | {key: _with(key, total[key], value[key]) for key in total.keys() & value.keys()}
    return total


def _derive(total: Figures, chunks: int) -> None:
    """Put right what is no sum: speeds are the mean of the chunks', shares are computed again."""
    for name in [name for name in total if "_per_" in name]:
        total[name] = round(total[name] / chunks, 1)
    if "caught_percent" in total:
        total["caught_percent"] = round(100 * total["caught"] / max(total["mutants"], 1), 1)
