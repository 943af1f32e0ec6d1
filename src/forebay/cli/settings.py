"""The settings of the command line, from files and the environment; `forebay config` shows them.

From the weakest to the strongest: the default; `config.toml` in `$XDG_CONFIG_HOME/forebay` (~/.config/forebay);
`forebay.toml` in the working directory; the environment; an option on the command line.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.base.arguments import did_you_mean
from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.base.indirect import UTF_8

_LOCAL_FILE = "forebay.toml"


@dataclass(frozen=True)
class SettingDefinition:
    """A setting: the variables of the environment that set it, its default, and what it is."""

    variables: tuple[str, ...]
    about: str
    default: str | None = None
    values: tuple[str, ...] = ()


SETTINGS = {
    "bootstrap-servers": SettingDefinition(
        ("FOREBAY_BOOTSTRAP_SERVERS",), "the server, as host:port", "127.0.0.1:9123"
    ),
    "user": SettingDefinition(
        ("FOREBAY_USER",), "log in as this user; the password is in $FOREBAY_PASSWORD or the password file"
    ),
    "password-file": SettingDefinition(("FOREBAY_PASSWORD_FILE",), "file that holds the password"),
    "warehouse": SettingDefinition(
        ("FOREBAY_WAREHOUSE", "FOREBAY_PAIMON_WAREHOUSE"), "directory or URI of a Paimon warehouse"
    ),
    "output": SettingDefinition(("FOREBAY_OUTPUT",), "how results are printed", "table", ("table", "json", "csv")),
}
TABLES = {
    "lake-options": "options of the lake that the server does not publish, such as secrets ('${env:NAME}')",
    "lakes": "further lakes for `forebay sql`: a name, and its warehouse or a table of options",
}
"""The settings that have a name and a value of their own; files only."""


@dataclass(frozen=True)
class Setting:
    """A value, and where it comes from."""

    value: Any
    origin: str


def files() -> list[Path]:
    """The files that are read where they exist, the weakest first."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return [Path(home) / "forebay" / "config.toml", Path(_LOCAL_FILE)]


def settings() -> dict[str, Setting]:
    """All settings. Raises `InvalidRequest` (CONFIG_EXCEPTION) for a file that is no TOML, or has unknown settings."""
    by_name = {name: Setting(definition.default, "default") for name, definition in SETTINGS.items()}
    by_name |= {name: Setting({}, "default") for name in TABLES}
    for path in files():
        for name, value in _read(path).items():
            if name in TABLES:
                value = {**by_name[name].value, **value}
            by_name[name] = Setting(value, str(path))
    for name, definition in SETTINGS.items():
        for variable in reversed(definition.variables):
            if os.environ.get(variable):
                by_name[name] = Setting(os.environ[variable], f"${variable}")
    for name, definition in SETTINGS.items():
        setting = by_name[name]
        if definition.values and setting.value not in definition.values:
            raise _refused(setting.origin, f"{name} = {setting.value!r} is none of {', '.join(definition.values)}")
    return by_name


def setting(name: str) -> Any:
    """The value of one setting, if the command line says nothing."""
    return settings()[name].value


def is_set(name: str) -> bool:
    """Whether a file or the environment sets it."""
    return settings()[name].origin != "default"


def _read(path: Path) -> Mapping[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding=UTF_8))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise _refused(str(path), str(e)) from e
    for name, value in document.items():
        if name in TABLES:
            if not isinstance(value, dict):
                raise _refused(str(path), f"{name} is a table: [{name}]")
        elif name not in SETTINGS:
            known = (*SETTINGS, *TABLES)
            hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
            raise _refused(str(path), f"there is no setting {name!r}{hint}")
        elif not isinstance(value, str):
            raise _refused(str(path), f"{name} = {value!r} is not text")
    return document


def _refused(origin: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"settings of {origin}: {why}", ErrorCode.CONFIG_EXCEPTION)
