"""Restricts what `dir()` and completion show of an object to what users need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

C = TypeVar("C", bound=type)


def hidden_from_completion(*names: str) -> Callable[[C], C]:
    """Return a class decorator that removes `names` from `dir()`: other modules of Forebay use them, users do not."""

    hidden = set(names)

    def visible_names(self: object) -> Iterable[str]:
        return {*dir(type(self)), *vars(self)} - hidden

    def applied(cls: C) -> C:
        setattr(cls, "__dir__", visible_names)  # noqa: B010 - mypy rejects assigning a method
        return cls

    return applied
