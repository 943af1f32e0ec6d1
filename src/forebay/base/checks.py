"""Assertions that stay on: `python -O` strips `assert`, and a store must not run on past a broken invariant."""

from __future__ import annotations

from forebay.base.errors import InternalError


def check(condition: object, message: str) -> None:
    """Raise `InternalError` unless `condition` holds. For our own invariants, never for a user's input."""
    if not condition:
        raise InternalError(f"internal check failed: {message}")
