"""The options for connecting to a server and logging in."""

from __future__ import annotations

import argparse
import os

from forebay.base.errors import InvalidRequest
from forebay.base.indirect import resolved


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--bootstrap-servers`, `--user`, `--password-file` and `--lake-option`."""
    parser.add_argument(
        "-b",
        "--bootstrap-servers",
        metavar="HOST:PORT",
        default=os.environ.get("FOREBAY_BOOTSTRAP_SERVERS", "127.0.0.1:9123"),
        help="the server (default: $FOREBAY_BOOTSTRAP_SERVERS, or 127.0.0.1:9123)",
    )
    parser.add_argument("--user", help="log in as this user, by SASL/PLAIN")
    parser.add_argument(
        "--password-file", metavar="FILE", help="file that holds the password (default: $FOREBAY_PASSWORD)"
    )
    parser.add_argument(
        "--lake-option", action="append", default=[], metavar="key=value",
        help="a lake option that the server does not publish, such as a secret, best given as '${env:NAME}' or "
        "'${directory:path:file}'; may be repeated",
    )  # fmt: skip


def password_of(options: argparse.Namespace) -> str | None:
    """The password for `--user`, from the file or the environment; None without a user."""
    if options.password_file is None:
        return os.environ.get("FOREBAY_PASSWORD") if options.user else None
    with open(options.password_file, encoding="utf-8") as file:
        return file.read().rstrip("\n")


def lake_options_of(options: argparse.Namespace) -> dict[str, str]:
    """The lake options on the command line. Raises `InvalidRequest`."""
    found = {}
    for text in options.lake_option:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidRequest(f"'{key}' does not define an option of the lake: write --lake-option key=value")
        found[key.strip()] = resolved(key.strip(), value.strip())
    return found
