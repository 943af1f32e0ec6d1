"""Views: queries that a catalog keeps under names beside those of its tables, as values and as Java Paimon's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forebay.base.errors import CorruptData
from forebay.paimon.format.schema import DataField
from forebay.paimon.format.schema_json import format_field, parse_field

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class View:
    """A query under the name `database.view`, with the columns that it returned when it was created.

    Catalogs keep the text and run nothing. `query` is for any engine; `dialects` has other texts of the same query, by
    the engine that understands them ("spark", "flink").
    """

    name: str
    fields: tuple[DataField, ...]
    query: str
    dialects: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        from forebay.paimon.format.arrow import arrow_schema

        return arrow_schema(self.fields)

    def query_for(self, dialect: str) -> str:
        """The text for an engine: its own, or the one for any engine."""
        return self.dialects.get(dialect, self.query)


def view_to_json(view: View) -> dict[str, Any]:
    """The JSON of a view's definition, which does not include its name."""
    node: dict[str, Any] = {
        "fields": [format_field(f) for f in view.fields],
        "query": view.query,
        "dialects": dict(view.dialects),
        "options": dict(view.options),
    }
    return node if view.comment is None else {**node, "comment": view.comment}


def view_from_json(name: str, node: Any) -> View:
    """The view `name` with this definition. Raises `CorruptData` if it is none."""
    try:
        return View(
            name,
            tuple(parse_field(f) for f in node["fields"]),
            str(node["query"]),
            {str(key): str(value) for key, value in (node.get("dialects") or {}).items()},
            node.get("comment"),
            {str(key): str(value) for key, value in (node.get("options") or {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CorruptData(f"view '{name}' has no valid definition: {type(e).__name__} {e}") from e


def view_changes_to_json(old: View, new: View) -> list[dict[str, Any]] | None:
    """The changes that make `old` into `new`, in Java Paimon's JSON.

    None if no changes lead there: none exist for columns and for the query of any engine.
    """
    if (old.fields, old.query) != (new.fields, new.query):
        return None
    changes: list[dict[str, Any]] = []
    for key, value in new.options.items():
        if old.options.get(key) != value:
            changes.append({"action": "setOption", "key": key, "value": value})
    changes += [{"action": "removeOption", "key": key} for key in old.options.keys() - new.options.keys()]
    if old.comment != new.comment:
        changes.append({"action": "updateComment", "comment": new.comment})
    for dialect, query in new.dialects.items():
        if old.dialects.get(dialect) != query:
            action = "updateDialect" if dialect in old.dialects else "addDialect"
            changes.append({"action": action, "dialect": dialect, "query": query})
    changes += [{"action": "dropDialect", "dialect": name} for name in old.dialects.keys() - new.dialects.keys()]
    return changes
