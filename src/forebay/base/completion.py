"""What `dir()` and completion show of an object: what users need and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

C = TypeVar("C", bound=type)


def hides(*names: str) -> Callable[[C], C]:
    """A class decorator that leaves `names` out of `dir()`: public for Forebay's other modules, not for users."""

    def applied(cls: C) -> C:
        listed = cls.__dir__

        def __dir__(self: object) -> Iterable[str]:
            return [name for name in listed(self) if name not in names]

        cls.__dir__ = __dir__  # type: ignore[method-assign,assignment]
        return cls

    return applied
