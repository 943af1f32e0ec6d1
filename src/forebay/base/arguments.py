"""Checks of arguments that callers often get wrong, with helpful messages."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping

from forebay.base.errors import ForebayError, InvalidRequest


def name_list(names: Iterable[str], what: str) -> tuple[str, ...]:
    """Return `names` as a tuple. Raises `InvalidRequest` for a single string, which would be split into letters."""
    if isinstance(names, str):
        raise InvalidRequest(f"{what} is a list of names, got the text {names!r}: write [{names!r}]")
    return tuple(names)


def one_or_more_names(names: Iterable[str] | str, what: str) -> tuple[str, ...]:
    """`names` as a tuple; a single string is one name. Raises `InvalidRequest` for values that are not names."""
    if isinstance(names, str):
        return (names,)
    values = tuple(names) if isinstance(names, Iterable) else (names,)
    for name in values:
        if not isinstance(name, str):
            raise InvalidRequest(f"{what}={names!r}: {name!r} is not a name")
    return values


def whole_number(value: object, what: str) -> int:
    """Return `value`, which must be an int. Raises `InvalidRequest`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"{what} is a whole number, got {value!r}")
    return value


def did_you_mean(name: str, names: Iterable[str], likeness: float = 0.6) -> str:
    """Return a suggestion to append to an error message about `name`; empty if none of `names` resembles it."""
    return _suggestion(name, {one: one for one in names}, likeness)


def _suggestion(name: str, shown_by_name: Mapping[str, str], likeness: float = 0.6) -> str:
    by_lower = {one.lower(): shown for one, shown in shown_by_name.items()}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=likeness)
    return f"; did you mean '{by_lower[close[0]]}'?" if close else ""


def did_you_mean_table(
    database: str,
    table: str | None,
    list_databases: Callable[[], Iterable[str]],
    list_tables: Callable[[str], Iterable[str]],
) -> str:
    """Return a suggestion for a table, or with None for a database, that does not exist; empty if there is none.

    It is empty, too, if the names cannot be listed: the error that it follows is the one to report.
    """
    try:
        databases = list(list_databases())
        if table is None:
            return did_you_mean(database, databases)
        if database in databases:
            return _suggestion(table, {name: f"{database}.{name}" for name in list_tables(database)})
        return f"; there is no database '{database}'{did_you_mean(database, databases)}"
    except ForebayError:
        return ""
