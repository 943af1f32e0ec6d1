"""Objects in notebooks and terminals: small HTML with everything escaped, and lists of names that are cut short."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_ROWS_MAX = 200
"""The maximum number of table rows shown; further ones are counted."""

_CELL = "text-align:left;vertical-align:top;padding:1px 8px"


def heading(what: object, kind: str) -> str:
    return f"<div><b>{escaped(what)}</b> <i>{escaped(kind)}</i></div>"


def facts_html(facts: Mapping[str, Any]) -> str:
    """A table of names and values; names without a value are omitted."""
    return grid((), [(name, value) for name, value in facts.items() if value not in (None, "")])


def grid(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """An HTML table."""
    table_rows = list(rows)
    head = "".join(f'<th style="{_CELL}">{escaped(name)}</th>' for name in names)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escaped(value)}</td>' for value in row) + "</tr>"
        for row in table_rows[:_ROWS_MAX]
    )
    more = f"<div>and {len(table_rows) - _ROWS_MAX} more</div>" if len(table_rows) > _ROWS_MAX else ""
    return f"<table>{f'<tr>{head}</tr>' if names else ''}{body}</table>{more}"


def abbreviated(names: Sequence[str], most: int = 8) -> str:
    """Return names for a `repr`: the first few, and the number of further ones."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f", and {rest} more" if rest > 0 else "")


def escaped(value: object) -> str:
    """A value as text with HTML escaped. Secrets never get here: settings mask theirs."""
    return html.escape("" if value is None else str(value))
