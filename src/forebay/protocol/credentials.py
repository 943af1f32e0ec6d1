"""Users and passwords of SASL/PLAIN, out of the settings that Fluss has for them.

Where they stand, and which of them count for a listener:

1. `security.sasl.listener.name.<listener>.plain.jaas.config`, if set, alone (listener name in lower case);
2. else `security.sasl.plain.jaas.config` and `security.sasl.plain.credentials` together; a user who is in both has the
   password of the latter.

The first two hold JAAS text, `<module> required user_<name>="<password>" ... ;`, of which Fluss knows one module. The
last is a map (`forebay.protocol.option_syntax`): `admin:secret,alice:secret2`.

Fluss puts the map's entries into JAAS text, unescaped. So a password there may contain ',', ':' and ';' (in quotes, as
the map's syntax wants it), but not '"', '\\' or control characters: Fluss would read another password than was
written, we refuse it. No message here repeats a password.

Sources: SaslServerAuthenticator, JaasConfig, PlainServerCallbackHandler and FlussProtocolPlugin of Fluss. The JAAS
tokenizer follows java.io.StreamTokenizer as JaasConfig sets it up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.protocol.option_syntax import parse_map

CREDENTIALS = "security.sasl.plain.credentials"
JAAS_CONFIG = "security.sasl.plain.jaas.config"
LISTENER_JAAS_CONFIG = "security.sasl.listener.name.{listener}.plain.jaas.config"

PLAIN_LOGIN_MODULE = "org.apache.fluss.security.auth.sasl.plain.PlainLoginModule"

_LISTENER_JAAS = re.compile(r"security\.sasl\.listener\.name\.(.+)\.plain\.jaas\.config")
_USER_PREFIX = "user_"
_CONTROL_FLAGS = frozenset({"REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL"})
_USER_NAME = re.compile(r"[\w.$-]+")
_SPACE_AND_COMMENTS = re.compile(r"(?:[\x00-\x20]|/\*.*?(?:\*/|\Z)|//[^\n\r]*|/[^*/][^\n\r]*|/\Z)*", re.DOTALL)
_NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d*)", re.ASCII)
_WORD = re.compile(r"[A-Za-z_$\xa0-\U0010ffff][A-Za-z0-9_$.\xa0-\U0010ffff-]*")
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_QUOTED = {
    quote: re.compile(rf"{quote}((?:\\.|[^\\\n\r{quote}])*)(?:{quote}|(?=[\n\r])|\Z)", re.DOTALL) for quote in "'\""
}
_UNSAFE_PASSWORD = re.compile(r"[\"\\\x00-\x1f\x7f]")


def jaas_listener(key: str) -> str | None:
    """Return the listener, in lower case, whose passwords the setting `key` holds; None if it is another setting."""
    named = _LISTENER_JAAS.fullmatch(key)
    return None if named is None else named[1]


def plain_credentials(settings: Mapping[str, str], listener: str) -> dict[str, str]:
    """Passwords by user for the listener named `listener`; never empty.

    Raises `InvalidRequest` (CONFIG_EXCEPTION), which names the option, if there are none or they cannot be read.
    """
    own_key = LISTENER_JAAS_CONFIG.format(listener=listener.lower())
    if settings.get(own_key):
        users = jaas_users(settings[own_key], own_key)
    else:
        users = jaas_users(settings[JAAS_CONFIG], JAAS_CONFIG) if settings.get(JAAS_CONFIG) else {}
        users.update(_map_users(settings.get(CREDENTIALS, "")))
    if not users:
        raise InvalidRequest(
            f"listener '{listener}' uses SASL, and no user is known: set '{CREDENTIALS}' to 'name:password,...'",
            ErrorCode.CONFIG_EXCEPTION,
        )
    return users


def _map_users(text: str) -> dict[str, str]:
    users = parse_map(text, CREDENTIALS)
    for user, password in users.items():
        if not _USER_NAME.fullmatch(user):
            raise _invalid(CREDENTIALS, f"user name '{user}' may have letters, digits, '_', '.', '$' and '-' only")
        if not password or _UNSAFE_PASSWORD.search(password):
            reason = "contains '\"', '\\' or a control character" if password else "is empty"
            raise _invalid(CREDENTIALS, f"the password of user '{user}' {reason}")
    return users


def jaas_users(text: str, key: str) -> dict[str, str]:
    """Passwords by user in the JAAS text of option `key`: its entries `user_<name>="<password>"`.

    Raises `InvalidRequest` (CONFIG_EXCEPTION) unless the text has exactly one, well-formed login module entry, for
    the module that Fluss knows.
    """
    entries = list(_jaas_entries(_Tokens(text), key))
    if len(entries) != 1:
        raise _invalid(key, f"it has {len(entries)} login modules instead of one")
    module, options = entries[0]
    if module != PLAIN_LOGIN_MODULE:
        raise _invalid(key, f"its login module is '{module}'; the only one there is, is {PLAIN_LOGIN_MODULE}")
    return {name.removeprefix(_USER_PREFIX): value for name, value in options.items() if name.startswith(_USER_PREFIX)}


def _jaas_entries(tokens: _Tokens, key: str) -> Iterator[tuple[str, dict[str, str]]]:
    while (token := tokens.next()) is not None:
        module = token.text
        flag = tokens.next()
        if module is None or flag is None or flag.text is None or flag.text.upper() not in _CONTROL_FLAGS:
            raise _invalid(key, "an entry must begin with a login module and a control flag such as 'required'")
        options: dict[str, str] = {}
        while True:
            name = tokens.next()
            if name is None:
                raise _invalid(key, "an entry must end with ';'")
            if name.symbol == ";":
                break
            equals, value = tokens.next(), tokens.next()
            if name.text is None or equals is None or equals.symbol != "=" or value is None or value.text is None:
                # Text that is quoted wrongly may show a password here; a name with the prefix is hardly one.
                label = f"'{name.text}'" if name.text and name.text.startswith(_USER_PREFIX) else "an option"
                raise _invalid(key, f'{label} has no value: write name="value"')
            options[name.text] = value.text
        yield module, options


class _JaasToken(NamedTuple):
    """A word or quoted string (`text`), or a single character (`symbol`); a number is neither."""

    text: str | None = None
    symbol: str | None = None


class _Tokens:
    """JAAS text as tokens."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def next(self) -> _JaasToken | None:
        """The next token, or None at the end."""
        self._at = self._end(_SPACE_AND_COMMENTS)
        if self._at == len(self._text):
            return None
        char, begin = self._text[self._at], self._at
        if char in _QUOTED:
            match = _QUOTED[char].match(self._text, begin)
            if match is not None:
                self._at = match.end()
                return _JaasToken(text=_ESCAPE.sub(self._unescape, match[1]))
        for pattern, is_text in ((_NUMBER, False), (_WORD, True)):
            end = self._end(pattern)
            if end > begin:
                self._at = end
                return _JaasToken(text=self._text[begin:end]) if is_text else _JaasToken()
        self._at += 1
        return _JaasToken(symbol=char)

    def _end(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self._text, self._at)
        return self._at if match is None else match.end()

    def _unescape(self, match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPED.get(code, code)


def _invalid(key: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"option '{key}' cannot be used: {reason}", ErrorCode.CONFIG_EXCEPTION)
