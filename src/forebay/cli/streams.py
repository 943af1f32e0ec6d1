"""Arguments and streams whose encoding cannot hold every text, such as ASCII (`LC_ALL=C`, `PYTHONIOENCODING=ascii`)."""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Sequence
from typing import Any

from forebay.base.errors import InvalidRequest

_ESCAPES = "forebay.escapes"


def escape_what_does_not_fit(out: Any) -> None:
    """Make a stream whose encoding is not UTF-8 write `\\u4e2d` for what it cannot hold.

    That is text for people, and inside the texts of JSON the same value. CSV has no escapes: there it is an error.
    """
    if isinstance(out, io.TextIOWrapper) and codecs.lookup(out.encoding).name != "utf-8":
        out.reconfigure(errors=_ESCAPES)


def exact(text: str, out: Any) -> str:
    """`text`, if `out` can hold it without escapes. Raises `InvalidRequest`."""
    if getattr(out, "errors", None) == _ESCAPES:
        try:
            text.encode(out.encoding)
        except UnicodeEncodeError as e:
            raise InvalidRequest(
                f"the encoding of the output, {out.encoding}, has no {e.object[e.start]!a}, and CSV no escapes: set "
                "PYTHONIOENCODING=utf-8, or print JSON"
            ) from e
    return text


def in_utf8(text: str, encoding: str | None) -> str:
    """`text` that Python has read in an encoding, with bytes that this does not have as surrogates, read as UTF-8.

    Raises `UnicodeDecodeError`.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(encoding or "utf-8", "surrogateescape").decode("utf-8")
    return text


def check_words(words: Sequence[str]) -> None:
    """Raise `InvalidRequest` for arguments that are not UTF-8, whatever the locale: names, filters and paths are."""
    for word in words:
        try:
            in_utf8(word, sys.getfilesystemencoding())
        except UnicodeError as e:
            raise InvalidRequest(f"the argument {word!a} is not text in UTF-8") from e


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)), error.end


codecs.register_error(_ESCAPES, _escaped)
