"""Texts without the secrets of options: what errors and logs may say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from forebay.base.errors import ForebayError, InternalError
from forebay.lake.public_options import (
    ADDRESS,
    HARMLESS_PARAMETERS,
    HIDDEN,
    NEXT_ADDRESS,
    public_options,
)

_SECRET_CHARS_MIN = 4
"""Shorter values are not masked: they are too common in other words."""

# ---- texts ----------------------------------------------------------------------------------------------------------


class SecretMask:
    """Hides the secrets of a lake's options in texts: error messages and log lines."""

    def __init__(self, options: Mapping[str, str], also: Iterable[str] = ()) -> None:
        """`also` are further options that are not secret, as for `public_options`."""
        public = public_options(options, also)
        secrets: set[str] = set()
        for key, value in options.items():
            if public.get(key) == value:
                continue
            secrets.add(value)
            secrets |= _parts(value)
        long = {text for text in secrets if len(text) >= _SECRET_CHARS_MIN and text.lower() not in ("true", "false")}
        self._secrets = sorted(long - set(public.values()), key=len, reverse=True)

    def __repr__(self) -> str:
        return f"SecretMask({len(self._secrets)})"

    def clean(self, text: str) -> str:
        """`text` with every secret replaced."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def cleaned(self, error: Exception) -> Exception:
        """`error` itself if it contains no secret, otherwise a copy without secrets."""
        text = str(error)
        clean = self.clean(text)
        if clean == text:
            return error
        if isinstance(error, ForebayError):
            return type(error)(self.clean(error.message), error.code)
        return InternalError(f"{type(error).__name__}: {clean}")


def _parts(value: str) -> set[str]:
    """The parts of an address besides its host and path: the password and parameter values, escaped and unescaped."""
    secrets: set[str] = set()
    for part in NEXT_ADDRESS.split(value):
        match = ADDRESS.fullmatch(part)
        if match is not None and "@" in match["rest"]:
            secrets.add(match["rest"].rpartition("@")[0].partition(":")[2])
        for parameter in re.split(r"[?&;]", part)[1:]:
            name, _, text = parameter.partition("=")
            if name.strip().lower() not in HARMLESS_PARAMETERS:
                secrets.add(text)
    return secrets | {unquote(text) for text in secrets}
