"""Options: a name, how its value is read, and a default. One kind for connections, servers and tables.

A value is text, as in configuration files and table properties, or what Python users would write: a number, a bool, a
timedelta. Parsers raise `InvalidRequest` that says what is wrong with the value; `Option.read` adds the option's name.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest, UnsupportedOperation
from forebay.base.quantity import parse_bool, parse_duration_ms, parse_memory_bytes

_PORT_MAX = 65_535

Parser: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """One option. A default that is text is read as a user's value would be; None is an option that is not set.

    Without `parse` the option is accepted and has no effect. `alterable` says that ALTER TABLE may change it.
    """

    name: str
    parse: Parser | None = None
    default: Any = None
    about: str = ""
    alterable: bool = False

    def read(self, value: Any, kind: str = "option", code: ErrorCode = ErrorCode.CONFIG_EXCEPTION) -> Any:
        """The value of `value`.

        Raises `InvalidRequest` or `UnsupportedOperation` with `code`, which names the option as a `kind`.
        """
        if self.parse is None:
            return str(value)
        try:
            return self.parse(value)
        except (ForebayError, ValueError) as e:
            reason = e.message if isinstance(e, ForebayError) else str(e)
            error = UnsupportedOperation if isinstance(e, UnsupportedOperation) else InvalidRequest
            raise error(f"{kind} '{self.name}': {reason}", code) from e

    @property
    def default_value(self) -> Any:
        """The default as a value."""
        text = self.default
        return self.parse(text) if isinstance(text, str) and self.parse is not None else text


def by_name(options: Iterable[Option]) -> dict[str, Option]:
    """Options by their names."""
    return {option.name: option for option in options}


def boolean(value: Any) -> bool:
    """True or false, also as text."""
    return value if isinstance(value, bool) else parse_bool(str(value))


def integer(value: Any) -> int:
    """A whole number, also as text."""
    try:
        return int(value)
    except (TypeError, ValueError) as e:
        raise InvalidRequest(f"{value!r} is not an integer") from e


def number(value: Any) -> float:
    """A number, also as text."""
    try:
        return float(value)
    except (TypeError, ValueError) as e:
        raise InvalidRequest(f"{value!r} is not a number") from e


def between(minimum: int, maximum: int = (1 << 31) - 1) -> Parser:
    """Whole numbers from `minimum` to `maximum`."""

    def parse(value: Any) -> int:
        number = integer(value)
        if not minimum <= number <= maximum:
            raise InvalidRequest(f"{number} is not between {minimum} and {maximum}")
        return number

    return parse


def positive(value: Any) -> int:
    """A whole number from 1 on."""
    text = str(value)
    number = int(text) if re.fullmatch(r"\s*-?\d+\s*", text) else 0
    if number < 1:
        raise InvalidRequest(f"{value!r} is not a positive whole number")
    return number


def up_to(most: int) -> Parser:
    """Positive whole numbers with an upper bound."""

    def parse(value: Any) -> int:
        number = positive(value)
        if number > most:
            raise InvalidRequest(f"{number} is more than {most}")
        return number

    return parse


def ports(text: str) -> range:
    """A port, or a range of ports such as "9250-9260". Raises `InvalidRequest`."""
    first, dash, last = text.partition("-")
    lowest = integer(first)
    highest = integer(last) if dash else lowest
    if not 0 <= lowest <= highest <= _PORT_MAX:
        raise InvalidRequest(f"'{text}' is neither a port, 0 to {_PORT_MAX}, nor a range such as 9250-9260")
    return range(lowest, highest + 1)


def share(value: Any) -> float:
    """A number above 0 and at most 1."""
    try:
        fraction = number(value)
    except InvalidRequest:
        fraction = 0.0
    if not 0 < fraction <= 1:
        raise InvalidRequest(f"{value!r} is not a share: choose more than 0 and at most 1")
    return fraction


def size(value: Any) -> int:
    """Bytes: a number, or text such as "4mb"."""
    return value if isinstance(value, int) and not isinstance(value, bool) else parse_memory_bytes(str(value))


def positive_size(value: Any) -> int:
    """The same, at least one byte."""
    size_bytes: int = size(value)
    if size_bytes < 1:
        raise InvalidRequest(f"{value!r} is not a size above 0")
    return size_bytes


def milliseconds(value: Any) -> int:
    """Milliseconds: text such as "30 s", a timedelta, or a number of milliseconds (as in Fluss)."""
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(milliseconds=1)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return round(value)
    return parse_duration_ms(str(value))


def seconds(value: Any) -> float:
    """The same in seconds."""
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value / 1000
    return parse_duration_ms(str(value)) / 1000


def one_of(*names: str) -> Parser:
    """One of `names`, in any case; "-" and "_" are the same. The value is spelled as in `names`."""
    spellings = {name.replace("-", "_"): name for name in names}

    def parse(value: Any) -> str:
        name = spellings.get(str(value).strip().lower().replace("-", "_"))
        if name is None:
            raise InvalidRequest(f"{value!r} is not one of {', '.join(names)}")
        return name

    return parse


def names(value: Any) -> tuple[str, ...]:
    """The names between commas."""
    return tuple(name.strip() for name in str(value).split(",") if name.strip())


def networks(value: Any) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """The addresses and networks (such as 10.0.0.0/8) between commas."""
    return tuple(ipaddress.ip_network(name) for name in names(value))


def or_unset(parse: Parser) -> Parser:
    """An option that may be left out: its text is then empty, and its value None."""
    return lambda value: parse(value) if str(value).strip() else None
