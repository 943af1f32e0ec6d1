"""Changes of a table's schema, as values, and their application.

Columns are named by a path: `("address", "city")` is a field of a row; inside an array the element is called `element`,
inside a map the value is called `value`. Column ids never change and are never reused, which is how old data files are
read with new schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.base.quantity import parse_bool
from forebay.metadata.types import DataType, RowField, TypeRoot, child
from forebay.paimon.bucket_function import bucket_function
from forebay.paimon.format.arrow import storage_type
from forebay.paimon.format.schema import SCHEMA_VERSION, DataField, TableSchema
from forebay.paimon.format.type_casts import supports_cast
from forebay.paimon.options import CoreOptions

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """The new position of a column: `place` is "first", "last", "before" or "after", the latter two of `reference`."""

    place: str
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One change; see the subclasses."""


@dataclass(frozen=True, slots=True)
class AddColumn(SchemaChange):
    """Adds a column, which must be nullable: old rows have null there."""

    path: Path
    type: DataType
    comment: str | None = None
    position: Position | None = None


@dataclass(frozen=True, slots=True)
class RenameColumn(SchemaChange):
    """Renames a column; its data stays."""

    path: Path
    new_name: str


@dataclass(frozen=True, slots=True)
class DropColumn(SchemaChange):
    """Drops a column; its id is never reused."""

    path: Path


@dataclass(frozen=True, slots=True)
class UpdateColumnType(SchemaChange):
    """Changes a column's type, if Paimon can cast the old one. `keep_nullability`: ignore the nullability of `type`."""

    path: Path
    type: DataType
    keep_nullability: bool = False


@dataclass(frozen=True, slots=True)
class UpdateColumnNullability(SchemaChange):
    """Sets whether a column may hold nulls."""

    path: Path
    nullable: bool


@dataclass(frozen=True, slots=True)
class UpdateColumnComment(SchemaChange):
    """Sets a column's comment; None removes it."""

    path: Path
    comment: str | None


@dataclass(frozen=True, slots=True)
class UpdateColumnDefault(SchemaChange):
    """Sets the value, as text, that writers use if a column is omitted; None removes it."""

    path: Path
    default: str | None


@dataclass(frozen=True, slots=True)
class MoveColumn(SchemaChange):
    """Moves a column, which only changes the order of display."""

    name: str
    position: Position


@dataclass(frozen=True, slots=True)
class SetOption(SchemaChange):
    """Sets a table option."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class RemoveOption(SchemaChange):
    """Resets a table option to its default."""

    key: str


@dataclass(frozen=True, slots=True)
class UpdateComment(SchemaChange):
    """Sets the table's comment."""

    comment: str | None


@dataclass(frozen=True, slots=True)
class DropPrimaryKey(SchemaChange):
    """Drops the primary key, which is only possible while the table is empty."""


IMMUTABLE_OPTIONS = frozenset(
    {
        "type", "path", "bucket-key", "bucket-function.type", "data-file.path-directory", "merge-engine",
        "sequence.snapshot-ordering", "aggregation.remove-record-on-delete", "partial-update.remove-record-on-delete",
        "partial-update.remove-record-on-sequence-group", "rowkind.field", "primary-key", "primary-key.nullable",
        "partition", "dynamic-bucket.initial-buckets", "force-lookup", "row-tracking.enabled",
        "data-evolution.enabled", "index-file-in-data-file-dir", "blob-field", "blob-descriptor-field",
        "blob-view-field", "pk-clustering-override",
    }
)  # fmt: skip
"""Options that the stored data depends on: they cannot change once the table has a snapshot."""

_ALWAYS_IMMUTABLE = ("type", "path")
_NEVER_BACK_TO_FALSE = ("ignore-delete", "ignore-update-before")


def apply_changes(
    schema: TableSchema, changes: Sequence[SchemaChange], now_millis: int, has_snapshots: bool = True
) -> TableSchema | None:
    """The schema after `changes`, with the next id; None if it does not change.

    Raises `InvalidRequest` or `UnsupportedOperation`, naming the first change that is not possible.
    """
    draft = _Draft(schema, has_snapshots)
    for change in changes:
        draft.apply(change)
    after = draft.finish()
    if after == schema:
        return None
    if after.fields != schema.fields and CoreOptions(after.options).bucket != -1:
        bucket_function(after)  # rejects a bucket key of a type that it does not support
    return replace(after, id=schema.id + 1, time_millis=now_millis, version=SCHEMA_VERSION)


class _Draft:
    """A schema that is being changed."""

    def __init__(self, schema: TableSchema, has_snapshots: bool) -> None:
        self._schema, self._has_snapshots = schema, has_snapshots
        self._old_options = CoreOptions(schema.options)
        self._fields = list(schema.fields)
        self._highest_id = schema.highest_field_id
        self._options = dict(schema.options)
        self._primary_keys = schema.primary_keys
        self._comment = schema.comment

    def finish(self) -> TableSchema:
        return replace(
            self._schema,
            fields=tuple(self._fields),
            highest_field_id=self._highest_id,
            primary_keys=self._primary_keys,
            options=self._options,
            comment=self._comment,
        )

    def apply(self, change: SchemaChange) -> None:
        match change:
            case AddColumn():
                self._add(change)
            case RenameColumn():
                self._rename(change)
            case DropColumn(path):
                self._refuse_keys(path, "drop", self._schema.partition_keys, self._schema.primary_keys)
                _edit(self._fields, path, _drop)
            case UpdateColumnType():
                self._update_type(change)
            case UpdateColumnNullability(path, nullable):
                self._update_nullability(path, nullable)
            case UpdateColumnComment(path, comment):
                _edit(self._fields, path, _replacing(lambda f: replace(f, description=comment)))
            case UpdateColumnDefault(path, default):
                if len(path) > 1:
                    raise UnsupportedOperation(f"'{_dotted(path)}' is nested: only columns have default values")
                _edit(self._fields, path, _replacing(lambda f: replace(f, default=default)))
            case MoveColumn(name, position):
                self._move(name, position)
            case SetOption(key, value):
                if self._options.get(key) != value:
                    if self._has_snapshots or key in _ALWAYS_IMMUTABLE:
                        self._check_option(key, value)
                    self._options[key] = value
            case RemoveOption(key):
                if self._has_snapshots or key in _ALWAYS_IMMUTABLE:
                    self._check_option(key, None)
                self._options.pop(key, None)
            case UpdateComment(comment):
                self._comment = comment
            case DropPrimaryKey():
                if self._has_snapshots:
                    raise UnsupportedOperation("the primary key of a table with data cannot be dropped")
                self._primary_keys = ()
            case _:
                raise UnsupportedOperation(f"{type(change).__name__} is not a change of a schema that is known here")

    # ---- columns ---------------------------------------------------------------------------------------------------

    def _add(self, change: AddColumn) -> None:
        if not change.type.nullable:
            raise InvalidRequest(f"column '{_dotted(change.path)}' must be nullable: old rows have no value for it")
        self._highest_id += 1
        field_id = self._highest_id
        data_type = self._with_new_ids(change.type)
        position = change.position
        if position is None and len(change.path) == 1 and self._old_options.add_column_before_partition:
            position = next(
                (Position("before", f.name) for f in self._fields if f.name in self._schema.partition_keys), None
            )

        def add(fields: list[DataField], name: str) -> None:
            _require_absent(fields, name)
            fields.append(DataField(field_id, name, data_type, change.comment))
            if position is not None and position.place != "last":
                _move(fields, name, position)

        _edit(self._fields, change.path, add)

    def _rename(self, change: RenameColumn) -> None:
        self._refuse_keys(change.path, "rename", self._schema.partition_keys)

        def rename(fields: list[DataField], name: str) -> None:
            _find(fields, name)
            _require_absent(fields, change.new_name)
            _replacing(lambda f: replace(f, name=change.new_name))(fields, name)

        _edit(self._fields, change.path, rename)
        if len(change.path) == 1:
            old, new = change.path[0], change.new_name
            self._primary_keys = tuple(new if key == old else key for key in self._primary_keys)
            self._options = rename_in_options(self._options, old, new)

    def _update_type(self, change: UpdateColumnType) -> None:
        self._refuse_keys(change.path, "change the type of", self._schema.partition_keys, self._schema.primary_keys)

        def update(f: DataField) -> DataField:
            target = change.type
            if change.keep_nullability:
                target = replace(target, nullable=f.type.nullable)
            else:
                self._check_nullability(change.path, f.type.nullable, target.nullable)
            if not supports_cast(f.type, target, not self._old_options.disable_explicit_type_casting):
                raise InvalidRequest(f"column '{_dotted(change.path)}' of type {f.type} cannot become {target}")
            self._check_buckets(change.path, f.type, target)
            return replace(f, type=target)

        _edit(self._fields, change.path, _replacing(update))

    def _check_buckets(self, path: Path, before: DataType, after: DataType) -> None:
        """Reject a type for which old rows would belong to other buckets: filters would not find them."""
        same = storage_type(before).not_null() == storage_type(after).not_null()
        widened = self._old_options.bucket_function_type == "mod" and after.root is TypeRoot.BIGINT
        bucketed = self._old_options.bucket != -1 and len(path) == 1 and path[0] in self._schema.bucket_keys
        if bucketed and self._has_snapshots and not same and not widened:
            raise UnsupportedOperation(
                f"column '{path[0]}' of type {before} cannot become {after}: it is in the bucket key, and its "
                "rows would belong to other buckets"
            )

    def _update_nullability(self, path: Path, nullable: bool) -> None:
        if nullable:
            self._refuse_keys(path, "make nullable", self._schema.primary_keys)

        def update(f: DataField) -> DataField:
            self._check_nullability(path, f.type.nullable, nullable)
            return replace(f, type=replace(f.type, nullable=nullable))

        _edit(self._fields, path, _replacing(update))

    def _check_nullability(self, path: Path, before: bool, after: bool) -> None:
        if before and not after and self._old_options.alter_column_null_to_not_null_disabled:
            raise UnsupportedOperation(
                f"column '{_dotted(path)}' may hold nulls already, so it cannot become NOT NULL; if you are sure that "
                "it does not, set 'alter-column-null-to-not-null.disabled' to false"
            )

    def _move(self, name: str, position: Position) -> None:
        if position.reference == name:
            raise InvalidRequest(f"column '{name}' cannot be moved beside itself")
        _move(self._fields, name, position)

    def _refuse_keys(self, path: Path, action: str, *keys: tuple[str, ...]) -> None:
        if len(path) == 1 and any(path[0] in group for group in keys):
            raise UnsupportedOperation(f"cannot {action} '{path[0]}': it is a key column of the table")

    def _with_new_ids(self, t: DataType) -> DataType:
        """`t` with new ids for all nested row fields."""
        fields = []
        for f in t.fields:
            self._highest_id += 1
            field_id = self._highest_id
            fields.append(replace(f, field_id=field_id, data_type=self._with_new_ids(f.data_type)))
        return replace(
            t,
            fields=tuple(fields),
            element=None if t.element is None else self._with_new_ids(t.element),
            key=None if t.key is None else self._with_new_ids(t.key),
            value=None if t.value is None else self._with_new_ids(t.value),
        )

    # ---- options ---------------------------------------------------------------------------------------------------

    def _check_option(self, key: str, value: str | None) -> None:
        """Raise `UnsupportedOperation` if the stored data forbids setting `key` to `value` (None: its default)."""
        if key in IMMUTABLE_OPTIONS:
            raise UnsupportedOperation(f"option '{key}' cannot be changed: the table's data depends on it")
        old, new = self._old_options, self._old_options.with_overrides({key: value or ""})
        if value is None:
            new = CoreOptions({k: v for k, v in self._options.items() if k != key})
        if key == "bucket" and old.bucket != new.bucket and -1 in (old.bucket, new.bucket):
            raise UnsupportedOperation(
                f"'bucket' cannot change from {old.bucket} to {new.bucket}: -1 is another layout"
            )
        modifiable = parse_bool(self._options.get("deletion-vectors.modifiable", "false"))
        if old.deletion_vectors_enabled != new.deletion_vectors_enabled and not modifiable:
            raise UnsupportedOperation(
                "'deletion-vectors.enabled' cannot change without a full compaction; if you have done one, set "
                "'deletion-vectors.modifiable' to true"
            )
        if key in _NEVER_BACK_TO_FALSE and parse_bool(self._options.get(key, "false")):
            raise UnsupportedOperation(f"option '{key}' cannot go back to false: rows were dropped meanwhile")


# ---- editing lists of fields ----------------------------------------------------------------------------------------

_Edit = Callable[[list[DataField], str], None]


def _edit(fields: list[DataField], path: Path, edit: _Edit) -> None:
    """Call `edit` with the list of fields at the parent of `path`, and the last name of `path`."""
    if not path or not all(path):
        raise InvalidRequest(f"{path!r} does not name a column")
    if len(path) == 1:
        edit(fields, path[0])
        return
    at = _find(fields, path[0])
    fields[at] = replace(fields[at], type=_edit_type(fields[at].type, path, 1, edit))


def _edit_type(t: DataType, path: Path, depth: int, edit: _Edit) -> DataType:
    rest = path[depth:]
    if t.root is TypeRoot.ROW:
        inner = [
            DataField(-1 if f.field_id is None else f.field_id, f.name, f.data_type, f.description) for f in t.fields
        ]
        _edit(inner, rest, edit)
        return replace(t, fields=tuple(RowField(f.name, f.type, f.description, f.id) for f in inner))
    part = {TypeRoot.ARRAY: "element", TypeRoot.MAP: "value"}.get(t.root)
    if part is None or rest[0] != part:
        expected = f"its part is called '{part}'" if part else "it has no parts"
        raise InvalidRequest(f"'{_dotted(path)}': '{_dotted(path[:depth])}' is {t}, {expected}")
    single = [DataField(-1, part, child(t.element if t.root is TypeRoot.ARRAY else t.value))]
    _edit(single, rest, edit)
    if [f.name for f in single] != [part]:
        raise InvalidRequest(f"'{_dotted(path)}' is a part of {t}, which can neither be renamed, added nor dropped")
    if t.root is TypeRoot.ARRAY:
        return replace(t, element=single[0].type)
    return replace(t, value=single[0].type)


def _find(fields: list[DataField], name: str) -> int:
    for i, f in enumerate(fields):
        if f.name == name:
            return i
    raise InvalidRequest(f"there is no column '{name}'; there are {', '.join(f.name for f in fields)}")


def _require_absent(fields: list[DataField], name: str) -> None:
    if any(f.name == name for f in fields):
        raise InvalidRequest(f"there is a column '{name}' already")


def _replacing(update: Callable[[DataField], DataField]) -> _Edit:
    def edit(fields: list[DataField], name: str) -> None:
        at = _find(fields, name)
        fields[at] = update(fields[at])

    return edit


def _drop(fields: list[DataField], name: str) -> None:
    del fields[_find(fields, name)]
    if not fields:
        raise InvalidRequest(f"'{name}' is the only column left; it cannot be dropped")


def _move(fields: list[DataField], name: str, position: Position) -> None:
    moved = fields.pop(_find(fields, name))
    match position.place:
        case "first":
            at = 0
        case "last":
            at = len(fields)
        case "before" | "after":
            if position.reference is None:
                raise InvalidRequest(f"column '{name}': say {position.place} which column it goes")
            at = _find(fields, position.reference) + (position.place == "after")
        case _:
            raise InvalidRequest(f"{position.place!r} is not a place: write first, last, before or after")
    fields.insert(at, moved)


def _dotted(path: Path) -> str:
    return ".".join(path)


def rename_in_options(options: dict[str, str], old: str, new: str) -> dict[str, str]:
    """`options` with a column's old name replaced wherever it is used as a name."""

    def names(text: str) -> str:
        return ",".join(new if part.strip() == old else part for part in text.split(","))

    renamed = {}
    for key, value in options.items():
        if key in ("bucket-key", "sequence.field", "rowkind.field", "partial-update.remove-record-on-sequence-group"):
            value = names(value)
        elif key.startswith("fields."):
            columns, _, what = key.removeprefix("fields.").rpartition(".")
            if columns:
                key = f"fields.{names(columns)}.{what}"
                if what == "sequence-group":
                    value = names(value)
        renamed[key] = value
    return renamed
