"""How a connection, a table, a reading and listings look in a notebook: small HTML, everything escaped.

`_repr_html_` of these classes calls the functions here. Nothing is read from a server for it, and no rows of a scan are
taken: looking at a thing does not change it. In a terminal `repr` is what counts.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from forebay.metadata.table import Schema, TableInfo

T = TypeVar("T")

_ROWS_MAX = 200
"""Most rows of a table on the page; the rest is counted."""

_CELL = "text-align:left;vertical-align:top;padding:1px 8px"


class Listing(list[T]):
    """A list of values with the same fields, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        if not self or not dataclasses.is_dataclass(self[0]):
            return grid(("",), [(item,) for item in self])
        names = [field.name for field in dataclasses.fields(self[0])]
        return grid(names, [[getattr(item, name) for name in names] for item in self])


def table_html(info: TableInfo) -> str:
    """A table: its path and kind, columns, keys, buckets, properties."""
    descriptor = info.descriptor
    kind = "primary-key table" if info.has_primary_key else "log table"
    facts = {
        "primary key": ", ".join(info.schema.primary_key),
        "partitioned by": ", ".join(descriptor.partition_keys),
        "buckets": f"{descriptor.bucket_count} in each partition" if info.is_partitioned else descriptor.bucket_count,
        "bucket key": ", ".join(descriptor.bucket_keys),
        "comment": descriptor.comment,
        "table id": info.table_id,
        **dict(sorted(descriptor.properties.items())),
        **dict(sorted(descriptor.custom_properties.items())),
    }
    return heading(info.path, kind) + schema_html(info.schema) + facts_html(facts)


def schema_html(schema: Schema) -> str:
    """Columns with their types, and whether they may be null."""
    rows = [
        (column.name, column.data_type, _role(schema, column.name), column.comment or "") for column in schema.columns
    ]
    return grid(("column", "type", "", "comment"), rows)


def _role(schema: Schema, name: str) -> str:
    roles = ["primary key"] if name in schema.primary_key else []
    return ", ".join([*roles, "numbered by the server"] if name == schema.auto_increment_column else roles)


def heading(what: object, kind: str) -> str:
    return f"<div><b>{escaped(what)}</b> <i>{escaped(kind)}</i></div>"


def facts_html(facts: Mapping[str, Any]) -> str:
    """Names and values; those without a value are left out."""
    return grid((), [(name, value) for name, value in facts.items() if value not in (None, "")])


def grid(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """An HTML table."""
    found = list(rows)
    head = "".join(f'<th style="{_CELL}">{escaped(name)}</th>' for name in names)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escaped(value)}</td>' for value in row) + "</tr>"
        for row in found[:_ROWS_MAX]
    )
    more = f"<div>and {len(found) - _ROWS_MAX} more</div>" if len(found) > _ROWS_MAX else ""
    return f"<table>{f'<tr>{head}</tr>' if names else ''}{body}</table>{more}"


def escaped(value: object) -> str:
    """A value as text that cannot be taken for HTML. Secrets do not come here: settings mask theirs."""
    return html.escape("" if value is None else str(value))


def shown(names: Sequence[str], most: int = 8) -> str:
    """Column names for a `repr`: the first ones, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f", and {rest} more" if rest > 0 else "")
