"""How a connection, a table, a reader and listings are displayed in a notebook: small HTML, everything escaped.

`_repr_html_` of these classes calls the functions here. Display sends no requests and consumes no rows: inspecting an
object does not change it. In a terminal `repr` is what counts.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from forebay.base.markup import escaped, facts_html, grid, heading
from forebay.metadata.ddl import column_role
from forebay.metadata.table import Schema, TableInfo

__all__ = ["Listing", "escaped", "facts_html", "grid", "heading", "schema_html", "table_html"]

T = TypeVar("T")


class Listing(list[T]):
    """A list of values with the same fields, shown as a table in a notebook."""

    def _repr_html_(self) -> str:
        if not self or not dataclasses.is_dataclass(self[0]):
            return grid(("",), [(item,) for item in self])
        names = [field.name for field in dataclasses.fields(self[0])]
        return grid(names, [[getattr(item, name) for name in names] for item in self])


def table_html(info: TableInfo) -> str:
    """The HTML of a table: its path and kind, columns, keys, buckets, properties."""
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
    """The columns with their types and nullability."""
    rows = [
        (column.name, column.data_type, column_role(schema, column), column.comment or "") for column in schema.columns
    ]
    return grid(("column", "type", "", "comment"), rows)
