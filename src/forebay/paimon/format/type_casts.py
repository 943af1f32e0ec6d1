"""The allowed changes of a column's type: Paimon's rules (`DataTypeCasts` and its cast executors)."""

from __future__ import annotations

from forebay.metadata.types import NESTED_ROOTS, DataType, TypeRoot

R = TypeRoot

_INTEGERS = frozenset({R.TINYINT, R.SMALLINT, R.INT, R.BIGINT})
_NUMERIC = _INTEGERS | {R.FLOAT, R.DOUBLE, R.DECIMAL}
_TEXT = frozenset({R.CHAR, R.STRING})
_BYTES = frozenset({R.BINARY, R.BYTES})
_TIMESTAMPS = frozenset({R.TIMESTAMP, R.TIMESTAMP_LTZ})
_DAYS_AND_TIMES = _TIMESTAMPS | {R.DATE, R.TIME}

_IMPLICIT: dict[TypeRoot, frozenset[TypeRoot]] = {
    R.STRING: _TEXT,
    R.BYTES: _BYTES,
    R.DECIMAL: _NUMERIC,
    R.SMALLINT: frozenset({R.TINYINT}),
    R.INT: frozenset({R.TINYINT, R.SMALLINT}),
    R.BIGINT: frozenset({R.TINYINT, R.SMALLINT, R.INT}),
    R.FLOAT: _INTEGERS | {R.DECIMAL},
    R.DOUBLE: _NUMERIC,
    R.DATE: frozenset({R.TIMESTAMP}),
    R.TIME: frozenset({R.TIMESTAMP}),
    R.TIMESTAMP: _TIMESTAMPS,
    R.TIMESTAMP_LTZ: _TIMESTAMPS,
}
"""Source types by target type, for casts that are lossless in principle. Changes of parameters are included."""

_EXPLICIT: dict[TypeRoot, frozenset[TypeRoot]] = {
    R.CHAR: frozenset(TypeRoot),
    R.STRING: frozenset(TypeRoot),
    R.BOOLEAN: _TEXT | _INTEGERS,
    R.BINARY: _TEXT | _BYTES,
    R.BYTES: _TEXT | _BYTES,
    R.DECIMAL: _TEXT | {R.BOOLEAN},
    R.TINYINT: _NUMERIC | _TEXT | {R.BOOLEAN},
    R.SMALLINT: _NUMERIC | _TEXT | {R.BOOLEAN},
    R.INT: _NUMERIC | _TEXT | _TIMESTAMPS | {R.BOOLEAN},
    R.BIGINT: _NUMERIC | _TEXT | _TIMESTAMPS | {R.BOOLEAN},
    R.FLOAT: _NUMERIC | _TEXT | {R.BOOLEAN},
    R.DOUBLE: _TEXT | {R.BOOLEAN},
    R.DATE: _TIMESTAMPS | _TEXT,
    R.TIME: _TIMESTAMPS | _TEXT,
    R.TIMESTAMP: frozenset({R.DATE, R.TIME, R.INT, R.BIGINT}) | _TEXT,
    R.TIMESTAMP_LTZ: frozenset({R.DATE, R.TIME, R.INT, R.BIGINT}) | _TEXT,
}
"""Source types by target type, for lossy casts, which `disable-explicit-type-casting` forbids."""

_WITHOUT_A_CAST = frozenset({(R.TIME, R.TIME)})
"""Pairs that the rules allow but Paimon cannot convert (TIME always has milliseconds)."""


def supports_cast(source: DataType, target: DataType, explicit: bool = True) -> bool:
    """Whether the type of a column may change from `source` to `target`.

    `explicit` allows lossy changes. Rows, arrays and maps can only become text; their parts change separately.
    """
    if source.nullable and not target.nullable and not explicit:
        return False
    if source.as_nullable() == target.as_nullable():
        return True
    if target.root in NESTED_ROOTS or (source.root, target.root) in _WITHOUT_A_CAST:
        return False
    if source.root is target.root or source.root in _IMPLICIT.get(target.root, frozenset()):
        return True
    if source.root in _DAYS_AND_TIMES and target.root in _TEXT and target.length is not None:
        return False  # Paimon writes dates and times only into text of unlimited length
    if source.root in _BYTES and target.root in _TEXT:
        return explicit
    return explicit and source.root in _EXPLICIT.get(target.root, frozenset())
