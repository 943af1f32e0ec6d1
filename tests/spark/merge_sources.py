"""Sources of MERGE."""

from __future__ import annotations

from typing import Any


def source(*rows: tuple[Any, ...]) -> str:
    """A source of MERGE with the columns of `TABLE`."""
    values = ", ".join("(" + ", ".join("NULL" if v is None else repr(v) for v in row) + ")" for row in rows)
    return f"(SELECT * FROM VALUES {values} AS v(id, name, amount)) s"
