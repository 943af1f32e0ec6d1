"""Lists and maps inside one option value, in the syntax that Fluss reads: `a,b` and `key:value,key2:value2`.

A part may be quoted with ' or ", but only as a whole: the quote must be its first character. Inside quotes the
delimiter is an ordinary character, and a doubled quote stands for itself. So a map value with a comma is written by
quoting the whole entry, and one with a colon by quoting the value:

    admin:secret, "bob:pass,word", carol:'a:b', 'dave:"x,y:z"'

Source of the rules: StructuredOptionsSplitter and ConfigurationUtils of Fluss (the same as Flink's).
"""

from __future__ import annotations

from collections.abc import Iterator

from forebay.base.errors import ErrorCode, InvalidRequest


def split_escaped(text: str, delimiter: str, key: str) -> list[str]:
    """The parts of `text` between delimiters, trimmed, with quotes removed.

    An empty part counts only between two delimiters, as in Fluss. Raises `InvalidRequest`, which names `key` but not
    the value (it may hold passwords), for a quote that is not closed or has text behind it.
    """
    parts: list[str] = []
    before: str | None = None
    for kind, part in _tokens(text, delimiter, key):
        if kind == "delimiter":
            if before == "delimiter":
                parts.append("")
        else:
            if before == "quoted":
                raise _invalid(key, "there is text behind a closing quote")
            parts.append(part)
        before = kind
    return parts


def parse_list(text: str, key: str) -> list[str]:
    """The entries of the comma-separated list `text`. Raises `InvalidRequest` as `split_escaped` does."""
    return split_escaped(text, ",", key)


def parse_map(text: str, key: str) -> dict[str, str]:
    """The entries of the map `text`: `key:value` pairs between commas.

    Raises `InvalidRequest`, which names `key`, for an entry that is not one pair or that names its key again.
    """
    entries: dict[str, str] = {}
    for number, entry in enumerate(split_escaped(text, ",", key), start=1):
        pair = split_escaped(entry, ":", key)
        if len(pair) != 2:
            hint = "write 'key:value', and put a value that contains ':' in quotes"
            raise _invalid(key, f"entry {number} has {len(pair)} parts between colons; {hint}")
        if pair[0] in entries:
            raise _invalid(key, f"'{pair[0]}' appears twice")
        entries[pair[0]] = pair[1]
    return entries


def _tokens(text: str, delimiter: str, key: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        char = text[at]
        if char in "'\"":
            part, at = _quoted(text, at, key)
            yield "quoted", part
        elif char == delimiter:
            at += 1
            yield "delimiter", ""
        elif char.isspace():
            at += 1
        else:
            end = text.find(delimiter, at)
            end = len(text) if end < 0 else end
            yield "plain", text[at:end].strip()
            at = end


def _quoted(text: str, at: int, key: str) -> tuple[str, int]:
    quote = text[at]
    out: list[str] = []
    at += 1
    while at < len(text):
        if text[at] == quote:
            if text[at + 1 : at + 2] != quote:
                return "".join(out), at + 1
            at += 1
        out.append(text[at])
        at += 1
    raise _invalid(key, "a quote is not closed")


def _invalid(key: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"option '{key}' cannot be read: {reason}", ErrorCode.CONFIG_EXCEPTION)
