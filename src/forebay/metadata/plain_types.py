"""Types whose values every reader of Parquet finds alike in a file, by whichever writer it was made.

Left out: what lakes store in several ways, or engines read in several (TIME, timestamps of nanoseconds, which are
INT96 in Paimon's files and integers elsewhere, and nested types, whose inner names differ).
"""

from __future__ import annotations

from forebay.metadata.types import DataType, TypeRoot

_PLAIN = frozenset(TypeRoot) - {
    TypeRoot.TIME,
    TypeRoot.TIMESTAMP,
    TypeRoot.TIMESTAMP_LTZ,
    TypeRoot.ARRAY,
    TypeRoot.MAP,
    TypeRoot.ROW,
}
_TIMESTAMPS = frozenset({TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ})
_MICROSECONDS = 6
"""The precision of a timestamp in microseconds."""


def is_plain(t: DataType) -> bool:
    """Whether a column of type `t` can be read from Parquet by any reader."""
    return t.root in _PLAIN or (t.root in _TIMESTAMPS and not has_nanoseconds(t))


def is_timestamp(t: DataType) -> bool:
    """Whether `t` is a timestamp, with or without a zone."""
    return t.root in _TIMESTAMPS


def has_nanoseconds(t: DataType) -> bool:
    """Whether `t` is a timestamp of more than six digits."""
    return t.root in _TIMESTAMPS and (t.precision or 0) > _MICROSECONDS
