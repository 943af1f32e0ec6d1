"""Conversions between milliseconds since the epoch and local wall-clock time like Java's LocalDateTime."""

from __future__ import annotations

import datetime

from forebay.base.errors import InvalidRequest

_EPOCH = datetime.datetime(1970, 1, 1)
_MILLISECOND = datetime.timedelta(milliseconds=1)


def epoch_millis(local_millis: int) -> int:
    """Milliseconds since the epoch for a local wall-clock time that is given as if it were UTC."""
    return round((_EPOCH + local_millis * _MILLISECOND).timestamp() * 1000)


def local_millis(millis: int) -> int:
    """The inverse of `epoch_millis`."""
    return (datetime.datetime.fromtimestamp(millis / 1000) - _EPOCH) // _MILLISECOND


def parse_local_time(text: str, option: str) -> int:
    """Milliseconds since the epoch of a time such as `2024-01-31 12:00:00.123` or `2024-01-31`.

    It is in the machine's zone unless it has one, as in Java Paimon, which reads the same options. Raises
    `InvalidRequest` naming `option`.
    """
    try:
        return round(datetime.datetime.fromisoformat(text.strip()).timestamp() * 1000)
    except ValueError as e:
        raise InvalidRequest(f"{option} is {text!r}; write a local time such as '2024-01-31 12:00:00'") from e
