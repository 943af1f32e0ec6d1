"""The time of a partition, parsed from its values by a pattern and a format of Java's DateTimeFormatter."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping

from forebay.base.errors import InvalidRequest

_LETTERS = {
    "y": r"(?P<year>\d{%s})",
    "u": r"(?P<year>\d{%s})",
    "M": r"(?P<month>\d{%s})",
    "d": r"(?P<day>\d{%s})",
    "H": r"(?P<hour>\d{%s})",
    "m": r"(?P<minute>\d{%s})",
    "s": r"(?P<second>\d{%s})",
    "S": r"(?P<fraction>\d{%s})",
}
_DEFAULT = re.compile(
    r"(?P<year>\d{1,10})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?: (?P<hour>\d{1,2}):(?P<minute>\d{1,2}):(?P<second>\d{1,2})(?:\.(?P<fraction>\d{1,9}))?)?"
)


class PartitionTime:
    """Parses times. `pattern` combines partition values (`$dt $hour:00:00`; None: the first value).

    `formatter` is the format of the result (letters y M d H m s S, text in single quotes; None: `yyyy-MM-dd[
    HH:mm:ss[.S]]`).
    """

    def __init__(self, pattern: str | None = None, formatter: str | None = None) -> None:
        self._pattern = pattern
        self._regex = _DEFAULT if formatter is None else _compiled(formatter)

    def of(self, values: Mapping[str, str | None]) -> datetime.datetime | None:
        """The time of a partition with the given values (as text, in order); None if they contain none."""
        text = self._text(values)
        match = None if text is None else self._regex.fullmatch(text)
        if match is None:
            return None
        parts = {name: value for name, value in match.groupdict().items() if value is not None}
        fraction = parts.pop("fraction", "0")
        numbers = {name: int(value) for name, value in parts.items()}
        try:
            day = datetime.datetime(numbers.pop("year"), numbers.pop("month", 1), numbers.pop("day", 1))
        except (KeyError, ValueError, OverflowError):
            return None
        return day + datetime.timedelta(
            hours=numbers.get("hour", 0),
            minutes=numbers.get("minute", 0),
            seconds=numbers.get("second", 0),
            microseconds=int(fraction.ljust(6, "0")[:6]),
        )

    def _text(self, values: Mapping[str, str | None]) -> str | None:
        if self._pattern is None:
            return next(iter(values.values()), None)
        names = sorted(values, key=len, reverse=True)  # $dt must not match in $dt1
        if not names:
            return self._pattern
        variable = re.compile(r"\$(" + "|".join(map(re.escape, names)) + ")")
        used = variable.findall(self._pattern)
        if any(values[name] is None for name in used):
            return None
        return variable.sub(lambda m: str(values[m[1]]), self._pattern)


def _compiled(formatter: str) -> re.Pattern[str]:
    parts: list[str] = []
    for run in re.finditer(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']", formatter):
        text, quoted = run[0], run[1]
        if quoted is not None:
            parts.append(re.escape(quoted.replace("''", "'") or "'"))
        elif text[0].isalpha():
            if text[0] not in _LETTERS:
                raise InvalidRequest(
                    f"option 'partition.timestamp-formatter' is {formatter!r}; of its letters, {text[0]!r} is not "
                    f"supported: use {' '.join(_LETTERS)}"
                )
            width = "1,9" if len(text) == 1 else str(len(text))
            parts.append(_LETTERS[text[0]] % width)
        else:
            parts.append(re.escape(text))
    try:
        return re.compile("".join(parts))
    except re.error as e:
        raise InvalidRequest(f"option 'partition.timestamp-formatter' is {formatter!r}: {e}") from e
