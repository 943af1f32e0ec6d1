"""The representation of tables and catalogs in a notebook. Displaying an object reads nothing."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.base.markup import facts_html, grid, heading
from forebay.paimon.format.schema import TableSchema


def table_html(name: str, schema: TableSchema, facts: Mapping[str, str]) -> str:
    """A table as HTML: its name and kind, columns, keys, options, and further `facts`."""
    roles = dict.fromkeys(schema.partition_keys, "partition") | dict.fromkeys(schema.primary_keys, "primary key")
    columns = [(f.name, f.type, roles.get(f.name, ""), f.description or "") for f in schema.fields]
    shown = {
        "comment": schema.comment,
        "primary key": ", ".join(schema.primary_keys),
        "partitioned by": ", ".join(schema.partition_keys),
        **facts,
        **dict(sorted(schema.options.items())),
    }
    kind = "Paimon primary-key table" if schema.has_primary_key else "Paimon append table"
    return (
        heading(name, f"{kind}, schema {schema.id}")
        + grid(("column", "type", "", "comment"), columns)
        + facts_html(shown)
    )
