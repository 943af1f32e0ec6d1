"""Indirect option values, so that secrets need not be on a command line, which `ps` shows.

    ${env:NAME}                   the environment variable NAME
    ${file:/etc/forebay.properties:key}    the value of `key` in a file of `key: value` or `key = value` lines
    ${directory:/run/secrets:name}         the content of the file /run/secrets/name, without a newline at its end

The syntax is that of Fluss's config providers. The marker has to be the whole value; `$${` escapes a value that starts
with a literal `${`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from forebay.base.errors import ErrorCode, InvalidRequest

UTF_8 = "utf-8-sig"
"""The encoding of files that people write: editors of Windows put a byte order mark at the beginning."""

_LINE = re.compile(r"^\s*([A-Za-z0-9_.\-]+)\s*[:=]\s*(.*?)\s*$")


def is_marker(text: str) -> bool:
    """Whether a value is a marker."""
    return len(text) > len("${}") and text.startswith("${") and text.endswith("}")


def resolved(key: str, text: str) -> str:
    """The value of option `key` specified as `text`, resolved if `text` is a marker.

    Raises `InvalidRequest`, which names the option and the marker but no value.
    """
    if text.startswith("$${"):
        return text[1:]
    if not is_marker(text):
        return text

    def refuse(reason: str) -> InvalidRequest:
        return InvalidRequest(f"option '{key}' is given as {text}: {reason}", ErrorCode.CONFIG_EXCEPTION)

    provider, _, rest = text[2:-1].partition(":")
    path, _, name = rest.rpartition(":")
    if not name:
        raise refuse("write ${env:NAME}, ${file:path:key} or ${directory:path:file}")
    if provider == "env":
        if path:
            raise refuse("a variable has no path; write ${env:NAME}")
        if name not in os.environ:
            raise refuse(f"the environment has no variable {name}")
        return os.environ[name]
    if provider not in ("file", "directory"):
        raise refuse(f"there is no provider {provider!r}; there are env, file and directory")
    if not path:
        raise refuse(f"a path is missing; write ${{{provider}:path:{name}}}")
    try:
        if provider == "directory":
            return (Path(path) / name).read_text(encoding=UTF_8).removesuffix("\n")
        settings = settings_of(path)
    except (OSError, UnicodeDecodeError) as e:
        raise refuse(f"it cannot be read: {e}") from e
    if name not in settings:
        raise refuse(f"{path} has no line '{name}: ...'")
    return settings[name]


def settings_of(path: str | Path, *, unique: bool = False) -> dict[str, str]:
    """Settings from a file of `key: value` (Fluss's server.yaml) or `key = value` lines; '#' begins a comment.

    The last line of a key counts, unless keys must be `unique`. Raises `InvalidRequest` naming the line that cannot be
    read, `OSError` and `UnicodeDecodeError`.
    """
    settings: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(Path(path).read_text(encoding=UTF_8).splitlines(), start=1):
        text = re.sub(r"(^|\s)#.*$", "", line)
        if not text.strip():
            continue
        match = _LINE.match(text)
        if match is None:  # the line is not shown: it may contain a secret
            raise InvalidRequest(f"line {number} of {path} is not 'key: value'", ErrorCode.CONFIG_EXCEPTION)
        if unique and match[1] in settings:
            raise InvalidRequest(
                f"line {number} of {path} sets '{match[1]}' again, after line {lines[match[1]]}: keep one of them",
                ErrorCode.CONFIG_EXCEPTION,
            )
        settings[match[1]], lines[match[1]] = _unquoted(match[2]), number
    return settings


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" else text
