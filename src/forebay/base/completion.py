"""Restricts what `dir()` and completion show of an object to what users need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

C = TypeVar("C", bound=type)


def hides(*names: str) -> Callable[[C], C]:
    """A class decorator that hides `names` from `dir()`: public for Forebay's other modules, not for users."""

    hidden = set(names)

    def visible_names(self: object) -> Iterable[str]:
        return {*dir(type(self)), *vars(self)} - hidden

    def applied(cls: C) -> C:
        setattr(cls, "__dir__", visible_names)  # noqa: B010 - mypy rejects assigning a method
        return cls

    return applied
