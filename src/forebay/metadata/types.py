"""The data types of Fluss tables, as values.

One class serves all types: `TypeRoot` says which type it is, and only the parameters of that root are set. That
suits the codecs, which are driven by tables of roots and not by class hierarchies. Build types with the functions at
the end of this module (`int_()`, `decimal(10, 2)`, `row(field("a", int_()))`), which check the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from forebay.base.errors import ErrorCode, InvalidRequest


class TypeRoot(Enum):
    """The kinds of data types; the value is the name in Fluss's schema JSON."""

    BOOLEAN = "BOOLEAN"
    TINYINT = "TINYINT"
    SMALLINT = "SMALLINT"
    INT = "INTEGER"
    BIGINT = "BIGINT"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    CHAR = "CHAR"
    STRING = "STRING"
    BINARY = "BINARY"
    BYTES = "BYTES"
    DECIMAL = "DECIMAL"
    DATE = "DATE"
    TIME = "TIME_WITHOUT_TIME_ZONE"
    TIMESTAMP = "TIMESTAMP_WITHOUT_TIME_ZONE"
    TIMESTAMP_LTZ = "TIMESTAMP_WITH_LOCAL_TIME_ZONE"
    ARRAY = "ARRAY"
    MAP = "MAP"
    ROW = "ROW"

    __hash__ = object.__hash__  # members are unique objects; Enum's own hash is a call in Python


NESTED_ROOTS = frozenset({TypeRoot.ARRAY, TypeRoot.MAP, TypeRoot.ROW})

DECIMAL_PRECISION_MAX = 38
"""The maximum precision of a DECIMAL."""

DECIMAL_COMPACT_PRECISION_MAX = 18
"""Up to this precision the unscaled value fits into 64 bits, and row formats store it so."""

TIMESTAMP_COMPACT_PRECISION_MAX = 3
"""Up to this precision (milliseconds) row formats store a timestamp as one 64-bit number."""


@dataclass(frozen=True, slots=True)
class RowField:
    """A field of a ROW type. `field_id` is None until a schema assigns ids."""

    name: str
    data_type: DataType
    description: str | None = None
    field_id: int | None = None


@dataclass(frozen=True, slots=True, repr=False)
class DataType:
    """A data type: root, nullability, and the parameters which that root has."""

    root: TypeRoot
    nullable: bool = True
    length: int | None = None
    precision: int | None = None
    scale: int | None = None
    element: DataType | None = None
    key: DataType | None = None
    value: DataType | None = None
    fields: tuple[RowField, ...] = ()

    def __hash__(self) -> int:  # types are often keys of caches; what is left out rarely decides
        return hash((self.root, self.nullable, self.length, self.precision, self.scale, len(self.fields)))

    @property
    def is_nested(self) -> bool:
        return self.root in NESTED_ROOTS

    def children(self) -> tuple[DataType, ...]:
        """The types directly inside this one: element; key and value; fields; or none."""
        if self.root is TypeRoot.ARRAY:
            return (child(self.element),)
        if self.root is TypeRoot.MAP:
            return (child(self.key), child(self.value))
        return tuple(field.data_type for field in self.fields)

    def not_null(self) -> DataType:
        """Return this type as NOT NULL."""
        return replace(self, nullable=False)

    def as_nullable(self) -> DataType:
        """Return this type as nullable."""
        return replace(self, nullable=True)

    def __str__(self) -> str:
        return _render(self) + ("" if self.nullable else " NOT NULL")

    __repr__ = __str__


def child(data_type: DataType | None) -> DataType:
    """`data_type`, which the constructors of this module guarantee to be set."""
    if data_type is None:
        raise InvalidRequest("a nested data type lacks its element, key or value type")
    return data_type


def walk(data_type: DataType) -> Iterator[DataType]:
    """`data_type` and all types inside it, depth first."""
    yield data_type
    for inner in data_type.children():
        yield from walk(inner)


def _render(t: DataType) -> str:
    match t.root:
        case TypeRoot.CHAR | TypeRoot.BINARY:
            return f"{t.root.name}({t.length})"
        case TypeRoot.STRING if t.length is not None:
            return f"VARCHAR({t.length})"
        case TypeRoot.DECIMAL:
            return f"DECIMAL({t.precision}, {t.scale})"
        case TypeRoot.TIME | TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            return f"{t.root.name}({t.precision})"
        case TypeRoot.ARRAY:
            return f"ARRAY<{t.element}>"
        case TypeRoot.MAP:
            return f"MAP<{t.key}, {t.value}>"
        case TypeRoot.ROW:
            return "ROW<" + ", ".join(f"`{f.name}` {f.data_type}" for f in t.fields) + ">"
        case _:
            return t.root.name


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidRequest(message, ErrorCode.INVALID_TABLE_EXCEPTION)


def boolean() -> DataType:
    return DataType(TypeRoot.BOOLEAN)


def tinyint() -> DataType:
    return DataType(TypeRoot.TINYINT)


def smallint() -> DataType:
    return DataType(TypeRoot.SMALLINT)


def int_() -> DataType:
    return DataType(TypeRoot.INT)


def bigint() -> DataType:
    return DataType(TypeRoot.BIGINT)


def float_() -> DataType:
    return DataType(TypeRoot.FLOAT)


def double() -> DataType:
    return DataType(TypeRoot.DOUBLE)


def char(length: int) -> DataType:
    """A text of up to `length` code points. Neither row formats nor Fluss pad it."""
    _require(length >= 1, f"CHAR needs a length of at least 1, got {length}")
    return DataType(TypeRoot.CHAR, length=length)


def string(length: int | None = None) -> DataType:
    """A text; with `length`, VARCHAR(length): a text of up to `length` code points."""
    _require(length is None or length >= 1, f"VARCHAR needs a length of at least 1, got {length}")
    return DataType(TypeRoot.STRING, length=length)


def binary(length: int) -> DataType:
    """`length` bytes."""
    _require(length >= 1, f"BINARY needs a length of at least 1, got {length}")
    return DataType(TypeRoot.BINARY, length=length)


def bytes_() -> DataType:
    return DataType(TypeRoot.BYTES)


def decimal(precision: int = 10, scale: int = 0) -> DataType:
    """An exact number of `precision` digits, `scale` of them behind the point."""
    _require(
        1 <= precision <= DECIMAL_PRECISION_MAX and 0 <= scale <= precision,
        f"DECIMAL needs 1 <= precision <= 38 and 0 <= scale <= precision, got ({precision}, {scale})",
    )
    return DataType(TypeRoot.DECIMAL, precision=precision, scale=scale)


def date() -> DataType:
    """Days since 1970-01-01."""
    return DataType(TypeRoot.DATE)


def _fractional(root: TypeRoot, precision: int) -> DataType:
    _require(0 <= precision <= 9, f"{root.name} needs a precision from 0 to 9, got {precision}")
    return DataType(root, precision=precision)


def time(precision: int = 0) -> DataType:
    """A time of day. Rows hold whole milliseconds whatever the precision (as in Fluss)."""
    return _fractional(TypeRoot.TIME, precision)


def timestamp(precision: int = 6) -> DataType:
    """A wall-clock date and time without a zone."""
    return _fractional(TypeRoot.TIMESTAMP, precision)


def timestamp_ltz(precision: int = 6) -> DataType:
    """An instant, shown in the session's zone."""
    return _fractional(TypeRoot.TIMESTAMP_LTZ, precision)


def array(element: DataType) -> DataType:
    return DataType(TypeRoot.ARRAY, element=element)


def map_(key: DataType, value: DataType) -> DataType:
    """A map; its keys are never null."""
    return DataType(TypeRoot.MAP, key=key.not_null(), value=value)


def field(name: str, data_type: DataType, description: str | None = None) -> RowField:
    return RowField(name, data_type, description)


def row(*fields: RowField) -> DataType:
    """A nested row. Field names must be unique within it."""
    names = [f.name for f in fields]
    _require(len(set(names)) == len(names), f"a ROW type has duplicate field names: {names}")
    return DataType(TypeRoot.ROW, fields=tuple(fields))
