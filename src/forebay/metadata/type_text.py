"""Data types as text: `parse_type("DECIMAL(10, 2) NOT NULL")`, `parse_type("ARRAY<ROW<a INT, b STRING>>")`.

The grammar is that of Flink's and Fluss's SQL, which is what `str(DataType)` writes; Spark's `STRUCT<a: INT>` and the
usual synonyms (INTEGER, NUMERIC, VARCHAR, LONG) are read too.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from forebay.base.arguments import did_you_mean
from forebay.base.errors import InvalidRequest
from forebay.metadata import types
from forebay.metadata.types import DataType, RowField

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_]\w*)|(\d+)|([<>(),:]))")
_PLAIN: dict[str, Callable[[], DataType]] = {
    "BOOLEAN": types.boolean,
    "TINYINT": types.tinyint,
    "SMALLINT": types.smallint,
    "INT": types.int_,
    "INTEGER": types.int_,
    "BIGINT": types.bigint,
    "LONG": types.bigint,
    "FLOAT": types.float_,
    "REAL": types.float_,
    "DOUBLE": types.double,
    "STRING": types.string,
    "BYTES": types.bytes_,
    "DATE": types.date,
}
_UNLIMITED = (1 << 31) - 1
"""The length of VARCHAR that means STRING in Flink."""

_SIZED: dict[str, Callable[..., DataType]] = {
    "CHAR": types.char,
    "BINARY": types.binary,
    "DECIMAL": types.decimal,
    "DEC": types.decimal,
    "NUMERIC": types.decimal,
    "TIME": types.time,
    "TIMESTAMP": types.timestamp,
    "TIMESTAMP_LTZ": types.timestamp_ltz,
    "VARCHAR": lambda length=None: types.string(None if length == _UNLIMITED else length),
    "VARBINARY": lambda _length=None: types.bytes_(),
}
_NESTED = ("ARRAY", "MAP", "ROW", "STRUCT")
_DEPTH_MAX = 100


def parse_type(text: str) -> DataType:
    """The data type that `text` names. Raises `InvalidRequest`, which shows where the text makes no sense."""
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def whole(self) -> DataType:
        parsed = self._type(0)
        if self._text[self._at :].strip():
            raise self._wrong("nothing more")
        return parsed

    def _type(self, depth: int) -> DataType:
        if depth > _DEPTH_MAX:
            raise InvalidRequest(f"a type nested more than {_DEPTH_MAX} times is not supported")
        start = self._at
        name = self._word()
        if name in _NESTED:
            parsed = self._nested(name, depth + 1)
        elif name in _PLAIN:
            if name == "DOUBLE":
                self._take("PRECISION")
            parsed = _PLAIN[name]()
        elif name in _SIZED:
            parsed = self._sized(name)
        else:
            self._at = start
            raise self._wrong("a type", did_you_mean(name, [*_PLAIN, *_SIZED, *_NESTED]) if name else "")
        if self._take("NOT"):
            self._need("NULL")
            return parsed.not_null()
        self._take("NULL")
        return parsed

    def _sized(self, name: str) -> DataType:
        sizes: list[int] = []
        if self._take("("):
            sizes.append(self._number())
            while self._take(","):
                sizes.append(self._number())
            self._need(")")
        if name == "TIMESTAMP" and self._take("WITH"):
            self._need("LOCAL")
            name = "TIMESTAMP_LTZ"
            self._zone()
        elif name in ("TIME", "TIMESTAMP") and self._take("WITHOUT"):
            self._zone()
        try:
            return _SIZED[name](*sizes)
        except TypeError as e:
            raise InvalidRequest(f"{self._text!r} is not a data type: {name} takes other sizes than {sizes}") from e

    def _zone(self) -> None:
        self._need("TIME")
        self._need("ZONE")

    def _nested(self, name: str, depth: int) -> DataType:
        closing = ")" if name == "ROW" and self._take("(") else ">"
        if closing == ">":
            self._need("<")
        if name == "ARRAY":
            data_type = types.array(self._type(depth))
        elif name == "MAP":
            key = self._type(depth)
            self._need(",")
            data_type = types.map_(key, self._type(depth))
        else:
            fields = [self._field(depth)]
            while self._take(","):
                fields.append(self._field(depth))
            data_type = types.row(*fields)
        self._need(closing)
        return data_type

    def _field(self, depth: int) -> RowField:
        match = self._match()
        if match is None or not (match[1] or match[2]):
            raise self._wrong("the name of a field")
        self._at = match.end()
        name = match[2] or match[1][1:-1].replace("``", "`")
        self._take(":")
        return types.field(name, self._type(depth))

    # ---- tokens ---------------------------------------------------------------------------------------------------

    def _match(self) -> re.Match[str] | None:
        return _TOKEN.match(self._text, self._at)

    def _word(self) -> str:
        match = self._match()
        if match is None or not match[2]:
            return ""
        self._at = match.end()
        return match[2].upper()

    def _take(self, token: str) -> bool:
        match = self._match()
        if match is None or (match[2] or match[4] or "").upper() != token:
            return False
        self._at = match.end()
        return True

    def _need(self, token: str) -> None:
        if not self._take(token):
            raise self._wrong(f"'{token}'")

    def _number(self) -> int:
        match = self._match()
        if match is None or not match[3]:
            raise self._wrong("a number")
        self._at = match.end()
        return int(match[3])

    def _wrong(self, expected: str, hint: str = "") -> InvalidRequest:
        rest = self._text[self._at :].strip()
        actual = f"there is {rest!r}" if rest else "the text ends"
        hint = hint or "."
        return InvalidRequest(
            f"{self._text!r} is not a data type: where {expected} should stand, {actual}{hint} Types are BIGINT, "
            "DECIMAL(10, 2), STRING, TIMESTAMP(3), ARRAY<INT>, MAP<STRING, INT>, ROW<a INT> and the like"
        )
