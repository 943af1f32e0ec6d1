"""The SQL engine of `Connection.sql`: a function of a package above the client, loaded when it is first called.

A package registers its function by an entry point of the group `forebay.sql_engines`, as `forebay.query` does. So the
client can offer SQL without importing an engine that is built on the client.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Protocol

from forebay.base.errors import UnsupportedOperation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from forebay.api.sql_result import Result

ENTRY_POINTS = "forebay.sql_engines"
DUCKDB = "duckdb"


class SqlEngine(Protocol):
    """Runs one statement over the live tables of a connection and over lakes."""

    def __call__(
        self,
        statement: str,
        connection: Any,
        warehouse: Any = None,
        *,
        parameters: Sequence[Any] | Mapping[str, Any] = (),
        lakes: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> Result:
        """The rows of `statement`."""


@cache
def sql_engine(name: str = DUCKDB) -> SqlEngine:
    """The engine that is registered as `name`. Raises `UnsupportedOperation` if there is none."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINTS, name=name):
        engine: SqlEngine = entry.load()
        return engine
    raise UnsupportedOperation(
        f"no SQL engine {name!r} is registered (entry points {ENTRY_POINTS!r}): reinstall forebay (pip install forebay)"
    )
