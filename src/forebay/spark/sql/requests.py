"""The requests of statements to a catalog: Spark's objects, converted to values for both sides.

`TableRequest` is CREATE TABLE, `LoadRequest` says how a table is to be loaded, and a `TableChange` is one change of
ALTER TABLE, with the name of Spark's class. Releases of Spark differ in these objects; the functions support all of
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.types import DataType, StructType

from forebay.base.errors import UnsupportedOperation
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject, Jvm
from forebay.spark.jvm.spark_values import python_options, python_schema
from forebay.spark.options import changes_option


def names_in(array: JavaObject) -> list[str]:
    """The texts of a String[]."""
    return [str(part) for part in array]


def texts_in(mapping: JavaObject) -> dict[str, str]:
    """The entries of a Map of texts."""
    return {str(key): str(value) for key, value in mapping.items()}


# ---- CREATE TABLE ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transform:
    """An item of PARTITIONED BY or CLUSTERED BY: its function, the columns, and the number of a bucket transform."""

    name: str
    columns: tuple[tuple[str, ...], ...]
    number: int | None = None


@dataclass(frozen=True)
class TableRequest:
    """The table that CREATE TABLE requests. Comments and default values are in the metadata of the fields.

    `is_copy`: by CREATE TABLE LIKE, whose columns are those of another table.
    """

    schema: StructType
    transforms: tuple[Transform, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    primary_key: tuple[str, ...] = ()
    is_copy: bool = False


def table_request(jvm: Jvm, what: tuple[Any, ...], *, is_copy: bool = False) -> TableRequest:
    """The request in `what`: a TableInfo, or schema, transforms and properties (Spark before 4.1).

    Raises `UnsupportedOperation` for constraints other than PRIMARY KEY.
    """
    constraints: JavaObject = ()
    if len(what) == 1:
        what, constraints = (what[0].schema(), what[0].partitions(), what[0].properties()), what[0].constraints()
    schema, transforms, properties = what
    if schema.getClass().isArray():  # of Column
        schema = jvm.class_(CONNECTOR + "catalog.CatalogV2Util").v2ColumnsToStructType(schema)
    return TableRequest(
        python_schema(schema),
        tuple(_transform(transform) for transform in transforms),
        texts_in(properties),
        _primary_key(constraints),
        is_copy,
    )


def _transform(transform: JavaObject) -> Transform:
    columns: list[tuple[str, ...]] = []
    number: int | None = None
    for argument in transform.arguments():
        kind = str(argument.getClass().getSimpleName())
        if kind == "FieldReference":
            columns.append(tuple(names_in(argument.fieldNames())))
        elif kind == "LiteralValue" and isinstance(argument.value(), int):
            number = argument.value()
    return Transform(str(transform.name()), tuple(columns), number)


def _primary_key(constraints: JavaObject) -> tuple[str, ...]:
    key: tuple[str, ...] = ()
    for constraint in constraints:
        kind = str(constraint.getClass().getSimpleName())
        if kind != "PrimaryKey":
            raise UnsupportedOperation(f"tables know no constraint like {constraint.toDDL()}, only PRIMARY KEY")
        key = tuple(".".join(map(str, column.fieldNames())) for column in constraint.columns())
    return key


# ---- loading a table ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimeTravel:
    """The past state of a table that a statement reads: a version, as written in SQL, or a time."""

    version: str | None = None
    timestamp_us: int | None = None


@dataclass(frozen=True)
class LoadRequest:
    """The arguments of loading a table. Spark 4.3 or newer passes `options`, and whether they are for a write."""

    travel: TimeTravel | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    is_write: bool = False

    @property
    def takes_changes(self) -> bool:
        """Whether changes are to be written into the table, with their types in a column."""
        return self.is_write and changes_option(self.options)


def load_request(jvm: Jvm, how: tuple[Any, ...]) -> LoadRequest:
    """The request in the arguments of `loadTable` after the name."""
    if len(how) != 2:
        return LoadRequest(_version_or_time(how))
    context, options = how
    own_options = without_travel(python_options(options))
    is_write = bool(own_options) and not context.writePrivileges().isEmpty()
    travel = context.timeTravel()
    if not travel.isPresent():
        return LoadRequest(None, own_options, is_write)
    spec = travel.get()
    is_version = str(spec.getClass().getSimpleName()) == "AsOfVersion"
    return LoadRequest(
        _version_or_time((str(spec.version()) if is_version else int(spec.micros()),)), own_options, is_write
    )


def _version_or_time(how: tuple[Any, ...]) -> TimeTravel | None:
    if how and isinstance(how[0], str):
        return TimeTravel(version=how[0])
    return TimeTravel(timestamp_us=how[0]) if how and isinstance(how[0], int) else None


def without_travel(options: Mapping[str, str]) -> dict[str, str]:
    """The options without those for time travel of DataFrames, which Spark has evaluated."""
    return {name: value for name, value in options.items() if name.lower() not in ("timestampasof", "versionasof")}


# ---- ALTER TABLE ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetProperty:
    """SET TBLPROPERTIES of one property, or COMMENT ON; without a value UNSET TBLPROPERTIES."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ColumnPosition:
    """FIRST, or AFTER the column `after`."""

    after: str | None = None

    def __str__(self) -> str:
        return "FIRST" if self.after is None else f"AFTER {self.after}"


@dataclass(frozen=True, slots=True)
class ColumnAddition:
    """ADD COLUMN. Without a position it comes last."""

    path: tuple[str, ...]
    data_type: DataType
    nullable: bool = True
    comment: str | None = None
    position: ColumnPosition | None = None
    has_default: bool = False


@dataclass(frozen=True, slots=True)
class ColumnRenaming:
    """RENAME COLUMN."""

    path: tuple[str, ...]
    new_name: str


@dataclass(frozen=True, slots=True)
class ColumnDeletion:
    """DROP COLUMN."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TypeChange:
    """ALTER COLUMN TYPE."""

    path: tuple[str, ...]
    data_type: DataType


@dataclass(frozen=True, slots=True)
class NullabilityChange:
    """ALTER COLUMN SET NOT NULL, or DROP NOT NULL."""

    path: tuple[str, ...]
    nullable: bool


@dataclass(frozen=True, slots=True)
class CommentChange:
    """ALTER COLUMN COMMENT."""

    path: tuple[str, ...]
    comment: str


@dataclass(frozen=True, slots=True)
class PositionChange:
    """ALTER COLUMN FIRST, or AFTER."""

    path: tuple[str, ...]
    position: ColumnPosition


@dataclass(frozen=True, slots=True)
class DefaultChange:
    """ALTER COLUMN SET DEFAULT; without a text DROP DEFAULT."""

    path: tuple[str, ...]
    text: str | None


ColumnChange = (
    ColumnAddition
    | ColumnRenaming
    | ColumnDeletion
    | TypeChange
    | NullabilityChange
    | CommentChange
    | PositionChange
    | DefaultChange
)


@dataclass(frozen=True, slots=True)
class OtherChange:
    """A change that is none of these, by the name of Spark's class for it."""

    kind: str


TableChange = SetProperty | ColumnChange | OtherChange


def table_change(jvm: Jvm, change: JavaObject) -> TableChange:
    """One change of ALTER TABLE."""
    kind = str(change.getClass().getSimpleName())
    match kind:
        case "SetProperty":
            return SetProperty(str(change.property()), str(change.value()))
        case "RemoveProperty":
            return SetProperty(str(change.property()), None)
        case "AddColumn":
            comment, position = change.comment(), change.position()
            return ColumnAddition(
                _path(change),
                _spark_type(jvm, change.dataType()),
                bool(change.isNullable()),
                None if comment is None else str(comment),
                None if position is None else _position(position),
                change.defaultValue() is not None,
            )
        case "RenameColumn":
            return ColumnRenaming(_path(change), str(change.newName()))
        case "DeleteColumn":
            return ColumnDeletion(_path(change))
        case "UpdateColumnType":
            return TypeChange(_path(change), _spark_type(jvm, change.newDataType()))
        case "UpdateColumnNullability":
            return NullabilityChange(_path(change), bool(change.nullable()))
        case "UpdateColumnComment":
            return CommentChange(_path(change), str(change.newComment()))
        case "UpdateColumnPosition":
            return PositionChange(_path(change), _position(change.position()))
        case "UpdateColumnDefaultValue":
            return DefaultChange(_path(change), str(change.newDefaultValue()) or None)
        case _:
            return OtherChange(kind)


def _path(change: JavaObject) -> tuple[str, ...]:
    return tuple(names_in(change.fieldNames()))


def _position(position: JavaObject) -> ColumnPosition:
    is_after = str(position.getClass().getSimpleName()) == "After"
    return ColumnPosition(str(position.column()) if is_after else None)


def _spark_type(jvm: Jvm, java: JavaObject) -> DataType:
    wrapper = jvm.class_("org.apache.spark.sql.types.StructType")().add("c", java)
    spark_type: DataType = python_schema(wrapper).fields[0].dataType
    return spark_type
