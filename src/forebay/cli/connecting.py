"""The options for connecting to a server and logging in."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay.base.errors import InvalidRequest
from forebay.base.indirect import UTF_8, resolved
from forebay.cli.settings import is_set, setting
from forebay.client.connection import Connection, connect


def add_connection_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add `--bootstrap-servers` (whose default is None if a server is not `required`), `--user`, `--password-file` and
    `--lake-option`."""
    server = setting("bootstrap-servers")
    parser.add_argument(
        "-b",
        "--bootstrap-servers",
        metavar="HOST:PORT",
        default=server if required else None,
        help=f"the server (default: $FOREBAY_BOOTSTRAP_SERVERS, or {server})",
    )
    parser.add_argument("--user", default=setting("user"), help="log in as this user, by SASL/PLAIN")
    parser.add_argument(
        "--password-file",
        metavar="FILE",
        default=setting("password-file"),
        help="file that holds the password (default: $FOREBAY_PASSWORD)",
    )
    parser.add_argument(
        "--lake-option", action="append", default=[], metavar="key=value",
        help="a lake option that the server does not publish, such as a secret, preferably as '${env:NAME}' or "
        "'${directory:path:file}'; may be repeated",
    )  # fmt: skip


def password_of(options: argparse.Namespace) -> str | None:
    """The password for `--user`, from the file or the environment; None without a user.

    Raises `InvalidRequest` if the file cannot be read.
    """
    if options.password_file is None:
        return os.environ.get("FOREBAY_PASSWORD") if options.user else None
    return password_in(options.password_file)


def password_in(file: str) -> str:
    """The password in a file, without the newline at its end. Raises `InvalidRequest` if it cannot be read."""
    try:
        return Path(file).read_text(encoding=UTF_8).rstrip("\n")
    except OSError as e:
        raise InvalidRequest(f"the password file {file} cannot be read: {e.strerror}") from e
    except UnicodeDecodeError as e:  # without the bytes, which are secret
        raise InvalidRequest(f"the password file {file} is not text in UTF-8: see byte {e.start + 1}") from e


def lake_options_of(options: argparse.Namespace) -> dict[str, str]:
    """The lake options on the command line. Raises `InvalidRequest`."""
    lake_options = {key: resolved(key, str(value)) for key, value in setting("lake-options").items()}
    for text in options.lake_option:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidRequest(f"'{key}' does not define an option of the lake: write --lake-option key=value")
        lake_options[key.strip()] = resolved(key.strip(), value.strip())
    return lake_options


@contextmanager
def connected(options: argparse.Namespace) -> Iterator[Connection]:
    """The connection that the options name, closed at the end of the block."""
    lake = lake_options_of(options)
    with connect(options.bootstrap_servers, options.user, password_of(options), lake_options=lake) as connection:
        yield connection


# ---- tables of a server or of lakes, by the names of SQL ------------------------------------------------------------


def add_place_arguments(parser: argparse.ArgumentParser, *, server_required: bool = False) -> None:
    """Add what `add_connection_arguments` does, `-w` and `--lake`."""
    add_connection_arguments(parser, required=server_required)
    alone = "" if server_required else "; without -b, only its tables are available"
    parser.add_argument(
        "-w", "--warehouse", metavar="WHERE", default=setting("warehouse"),
        help=f"a Paimon warehouse, whose tables are lake.database.table{alone}",
    )  # fmt: skip
    parser.add_argument(
        "--lake", action="append", default=[], metavar="NAME=WHERE",
        help="another warehouse, whose tables are NAME.database.table; may be repeated",
    )  # fmt: skip


def lakes_of(options: argparse.Namespace) -> dict[str, Any]:
    """The lakes by name. Raises `InvalidRequest`."""
    lake_options: dict[str, Any] = {name: _lake(where) for name, where in setting("lakes").items()}
    if options.warehouse is not None:
        lake_options["lake"] = options.warehouse
    for text in options.lake:
        name, equals, where = text.partition("=")
        if not equals or not name:
            raise InvalidRequest(f"--lake {text!r} is not NAME=WHERE")
        lake_options[name] = where
    return lake_options


def _lake(where: Any) -> Any:
    if isinstance(where, Mapping):
        return {key: resolved(key, str(value)) for key, value in where.items()}
    return str(where)


@contextmanager
def place_of(options: argparse.Namespace) -> Iterator[tuple[Connection | None, dict[str, Any]]]:
    """The connection, and the lakes. No connection if a lake is named but no server, here or by a setting."""
    lakes = lakes_of(options)
    if options.bootstrap_servers is None and lakes and not is_set("bootstrap-servers"):
        yield None, lakes
        return
    options.bootstrap_servers = options.bootstrap_servers or setting("bootstrap-servers")
    with connected(options) as connection:
        yield connection, lakes
