"""Filters written as SQL text, for readers that have no Spark session to parse them (the option `filter`).

    id >= 10 AND (status IN ('new', 'open') OR note LIKE 'urgent%') AND paid IS NOT NULL AND day = DATE '2024-01-15'

Grammar: comparisons of a column with a literal, either way round; `IN`, `LIKE` (a pattern with `%` at its end, its
beginning, or both), `BETWEEN`, `IS NULL`, each with `NOT`; `AND`, `OR`, `NOT`, parentheses. Literals: numbers, 'text',
TRUE, FALSE, NULL, DATE '...', TIMESTAMP '...' (with a zone or "Z" for TIMESTAMP_LTZ columns), X'hex'. Names that are
not plain words go in `backticks`.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar

from forebay.base.errors import InvalidRequest
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import Column
from forebay.spark.filters import require_predicate
from forebay.spark.jvm.expressions import Expression, Function, Reference, Value

FILTER_DEPTH_MAX = 100
"""How deep parentheses and NOTs may be nested."""

T = TypeVar("T")

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(?P<hex>[xX]'[0-9a-fA-F]*')|(?P<text>'(?:[^']|'')*')
    |(?P<name>`(?:[^`]|``)+`)|(?P<word>[A-Za-z_]\w*)|(?P<sign><=>|<=|>=|<>|!=|=|<|>|\(|\)|,))""",
    re.VERBOSE,
)
_WORDS = frozenset(
    ["AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "NULL", "TRUE", "FALSE", "DATE", "TIMESTAMP"],
)
_COMPARISONS = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "<=>": "<=>"}


class _FilterToken(NamedTuple):
    kind: str
    text: str
    position: int


def parse_filter(text: str, columns: Sequence[Column]) -> Predicate:
    """The predicate that `text` means for `columns`. Raises `InvalidRequest`, which says where it does not read."""
    return require_predicate(_FilterParser(text).parse(), columns)


def _tokens(text: str) -> list[_FilterToken]:
    tokens, position = [], 0
    end = len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position)
        if found is None or found.lastgroup is None:
            raise _unreadable(text, position)
        kind, part = found.lastgroup, found.group(found.lastgroup)
        start = found.end() - len(part)
        if kind == "word" and part.upper() in _WORDS:
            kind, part = "keyword", part.upper()
        tokens.append(_FilterToken(kind, part, start))
        position = found.end()
    return tokens


def _unreadable(text: str, position: int) -> InvalidRequest:
    rest = text[position:].strip()
    where = f"at '{rest[:20]}'" if rest else "at its end"
    return InvalidRequest(f"the filter does not read {where} (character {position + 1}): {text}")


class _FilterParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0

    def parse(self) -> Expression:
        expression = self._any_of()
        if self._next < len(self._tokens):
            raise self._unexpected()
        return expression

    def _unexpected(self) -> InvalidRequest:
        position = self._tokens[self._next].position if self._next < len(self._tokens) else len(self._text)
        return _unreadable(self._text, position)

    def _take(self, *texts: str) -> str | None:
        """The next token, if it is one of these keywords or signs."""
        if self._next < len(self._tokens):
            token = self._tokens[self._next]
            if token.kind in ("keyword", "sign") and token.text in texts:
                self._next += 1
                return token.text
        return None

    def _require(self, text: str) -> None:
        if self._take(text) is None:
            raise self._unexpected()

    def _nested(self, parse: Callable[[], T]) -> T:
        self._depth += 1
        if self._depth > FILTER_DEPTH_MAX:
            raise InvalidRequest(f"the filter is nested more than {FILTER_DEPTH_MAX} deep")
        result = parse()
        self._depth -= 1
        return result

    def _any_of(self) -> Expression:
        parts = [self._all_of()]
        while self._take("OR"):
            parts.append(self._all_of())
        return parts[0] if len(parts) == 1 else Function("OR", tuple(parts))

    def _all_of(self) -> Expression:
        parts = [self._negated()]
        while self._take("AND"):
            parts.append(self._negated())
        return parts[0] if len(parts) == 1 else Function("AND", tuple(parts))

    def _negated(self) -> Expression:
        if self._take("NOT"):
            return Function("NOT", (self._nested(self._negated),))
        if self._take("("):
            inside = self._nested(self._any_of)
            self._require(")")
            return inside
        return self._condition()

    def _condition(self) -> Expression:
        if self._next < len(self._tokens) and self._tokens[self._next].kind in ("word", "name"):
            return self._about_column(self._column())
        value = self._literal()
        sign = self._take(*_COMPARISONS)
        if sign is None:
            raise self._unexpected()
        return Function(_COMPARISONS[sign], (value, self._column()))

    def _column(self) -> Reference:
        if self._next >= len(self._tokens) or self._tokens[self._next].kind not in ("word", "name"):
            raise self._unexpected()
        token = self._tokens[self._next]
        self._next += 1
        return Reference((token.text if token.kind == "word" else token.text[1:-1].replace("``", "`"),))

    def _about_column(self, column: Reference) -> Expression:
        sign = self._take(*_COMPARISONS)
        if sign is not None:
            return Function(_COMPARISONS[sign], (column, self._literal()))
        if self._take("IS"):
            negated = self._take("NOT")
            self._require("NULL")
            return Function("IS_NOT_NULL" if negated else "IS_NULL", (column,))
        negated = self._take("NOT")
        condition = self._in_like_between(column)
        if condition is None:
            if negated:
                raise self._unexpected()
            return Function("=", (column, Value(True)))
        return Function("NOT", (condition,)) if negated else condition

    def _in_like_between(self, column: Reference) -> Expression | None:
        if self._take("IN"):
            self._require("(")
            values = [self._literal().value]
            while self._take(","):
                values.append(self._literal().value)
            self._require(")")
            return Function("IN", (column, Value(tuple(values))))
        if self._take("LIKE"):
            return self._like(column)
        if self._take("BETWEEN"):
            low = self._literal()
            self._require("AND")
            return Function("AND", (Function(">=", (column, low)), Function("<=", (column, self._literal()))))
        return None

    def _like(self, column: Reference) -> Expression:
        start = self._next
        pattern = self._literal().value
        if not isinstance(pattern, str):
            self._next = start
            raise self._unexpected()
        inner = pattern.strip("%")
        if "%" in inner or "_" in inner or "\\" in inner or not inner:
            raise InvalidRequest(f"LIKE '{pattern}' cannot be evaluated here: use 'x%', '%x' or '%x%'")
        name = {(False, False): "=", (False, True): "STARTS_WITH", (True, False): "ENDS_WITH", (True, True): "CONTAINS"}
        return Function(name[pattern.startswith("%"), pattern.endswith("%")], (column, Value(inner)))

    def _literal(self) -> Value:
        if self._next >= len(self._tokens):
            raise self._unexpected()
        token = self._tokens[self._next]
        self._next += 1
        constants = {"TRUE": True, "FALSE": False, "NULL": None}
        if token.kind == "keyword" and token.text in constants:
            return Value(constants[token.text])
        if token.kind == "keyword" and token.text in ("DATE", "TIMESTAMP"):
            return Value(self._moment(token))
        read = _LITERALS.get(token.kind)
        if read is None:
            self._next -= 1
            raise self._unexpected()
        return Value(read(token.text))

    def _moment(self, token: _FilterToken) -> Any:
        text = self._literal().value
        kind: Any = dt.date if token.text == "DATE" else dt.datetime
        try:
            return kind.fromisoformat(text)
        except (TypeError, ValueError) as e:
            raise InvalidRequest(f"{token.text} '{text}' in the filter does not read: write it as in ISO 8601") from e


def _number(text: str) -> Any:
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    return float(text) if "e" in text.lower() else Decimal(text)


def _text(text: str) -> str:
    return text[1:-1].replace("''", "'")


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text[2:-1])
    except ValueError as e:
        raise InvalidRequest(f"{text} in the filter has an odd number of digits") from e


_LITERALS: dict[str, Callable[[str], Any]] = {"number": _number, "text": _text, "hex": _hex}
