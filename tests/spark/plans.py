"""SQL as a fixture runs it, and the executed plans of frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Sql = Callable[[str], list[tuple[Any, ...]]]


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())
