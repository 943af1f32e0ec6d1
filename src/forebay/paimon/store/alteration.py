"""Translates users' changes to a table into schema changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forebay.api.schemas import SchemaLike, TypeLike, columns_of, type_of
from forebay.base.errors import InvalidRequest
from forebay.paimon.store.schema_changes import (
    AddColumn,
    DropColumn,
    Path,
    RemoveOption,
    RenameColumn,
    SchemaChange,
    SetOption,
    UpdateColumnType,
    UpdateComment,
)


def alteration(
    *,
    add_columns: SchemaLike | None,
    drop_columns: Sequence[str],
    rename_columns: Mapping[str, str] | None,
    change_types: Mapping[str, TypeLike] | None,
    comment: str | None,
    options: Mapping[str, str],
    reset: Sequence[str],
) -> list[SchemaChange]:
    """The schema changes, ordered so that columns are called by their old names and dropped names are free.

    Raises `InvalidRequest` if there are none.
    """
    changes: list[SchemaChange] = []
    for name, type_like in (change_types or {}).items():
        t = type_of(type_like, name)
        changes.append(UpdateColumnType(_path(name), t, keep_nullability=t.nullable))
    changes += [DropColumn(_path(name)) for name in drop_columns]
    changes += [RenameColumn(_path(old), _new_name(old, new)) for old, new in (rename_columns or {}).items()]
    if add_columns is not None:
        changes += [AddColumn(_path(c.name), c.data_type, c.comment) for c in columns_of(add_columns)]
    if comment is not None:
        changes.append(UpdateComment(comment))
    changes += [SetOption(key, value) for key, value in options.items()]
    changes += [RemoveOption(key) for key in reset]
    if not changes:
        raise InvalidRequest("alter() has nothing to change: give add_columns, drop_columns, set, or another")
    return changes


def _path(name: str) -> Path:
    return tuple(name.split("."))


def _new_name(old: str, new: str) -> str:
    """The new name of a column; like the old name, it may be qualified by the enclosing row."""
    parent = old.rpartition(".")[0]
    if parent and new.startswith(f"{parent}."):
        new = new[len(parent) + 1 :]
    if "." in new:
        raise InvalidRequest(f"column '{old}' cannot be renamed to '{new}': it stays where it is; names have no dots")
    return new
