"""Shared parts of the actions of `forebay paimon`: arguments for tables, partitions and times, and output."""

from __future__ import annotations

import argparse
import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from forebay.api.texts import typed_values
from forebay.base.errors import InvalidRequest
from forebay.base.indirect import resolved
from forebay.base.locations import location
from forebay.base.quantity import parse_span
from forebay.cli.output import FORMATS
from forebay.cli.settings import setting
from forebay.paimon import Catalog, Table
from forebay.paimon.io.opening import open_file_io

_BRANCH_MARK = "$branch_"


class Action(NamedTuple):
    """One action: its help line, its arguments, its implementation."""

    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


class _OutputOrOption(argparse.Action):
    """`-o json`, as in all commands; and `-o KEY=VALUE`, which is --option, as it was before there was an output."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, value: Any, flag: str | None = None) -> None:
        if value in FORMATS:
            namespace.output, namespace.json = value, value == "json"
        elif flag == "-o" and "=" in value:
            namespace.option = [*namespace.option, value]
        else:
            parser.error(f"argument {flag}: {value!r} is none of {', '.join(FORMATS)}")


def catalog_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the catalog and its options."""
    parser.add_argument(
        "-w", "--warehouse", metavar="WHERE", default=setting("warehouse"),
        help="directory or URI of the catalog's warehouse (default: $FOREBAY_WAREHOUSE)",
    )  # fmt: skip
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE",
        help="an option of the catalog or its file system, such as metastore=jdbc or s3.endpoint=...; may be "
        "repeated (-o KEY=VALUE says the same)",
    )  # fmt: skip
    parser.set_defaults(output=setting("output"), json=setting("output") == "json")
    parser.add_argument(
        "-o", "--output", action=_OutputOrOption, default=setting("output"), metavar="table|json|csv",
        help="how to print the result (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
        help="replace an option of the table for this command, such as scan.mode=latest; may be repeated",
    )  # fmt: skip


def pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """A dictionary of KEY=VALUE texts. Raises `InvalidRequest`, which names `flag`."""
    mapping = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidRequest(f"{flag} {text!r} is not KEY=VALUE")
        mapping[key.strip()] = value.strip()
    return mapping


def open_table(options: argparse.Namespace, name: str | None = None) -> Table:
    """The table named on the command line."""
    name = options.table if name is None else name
    catalog_settings, settings = catalog_options(options), pairs(options.settings, "--set")
    if "/" in name:
        path, _, branch = name.partition(_BRANCH_MARK)
        path = location(path, "the directory of the table")
        return Table(open_file_io(path, catalog_settings), path, branch=branch or "main", options=settings)
    if not catalog_settings:
        raise InvalidRequest(
            f"in which catalog is {name!r}? Say -w WAREHOUSE (or set FOREBAY_WAREHOUSE), or name the table by "
            "its directory"
        )
    return Catalog.open(catalog_settings).table(name, options=settings)


def catalog_options(options: argparse.Namespace) -> dict[str, str]:
    catalog_settings = {key: resolved(key, value) for key, value in pairs(options.option, "--option").items()}
    if options.warehouse is not None:
        catalog_settings.setdefault("warehouse", options.warehouse)
    return catalog_settings


def json_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", default=setting("output") == "json", help="the same as -o json: one JSON object"
    )


def print_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False, default=str))


def time_text(milliseconds: int) -> str:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def type_of(table: Table, column: str) -> pa.DataType:
    return table.arrow_schema.field(table.schema.field_named(column).name).type


def partition_argument(parser: argparse.ArgumentParser, several: bool) -> None:
    parser.add_argument(
        "-p", "--partition", action="append", default=[], metavar="A=X,B=Y",
        help="only this partition, or those with these values" + ("; may be repeated" if several else ""),
    )  # fmt: skip


def partitions_typed(table: Table, texts: Sequence[str]) -> list[dict[str, Any]] | None:
    """The partitions given by the user; None for all."""
    partitions = []
    for text in texts:
        values = pairs(text.split(","), "--partition")
        strange = [name for name in values if name not in table.schema.partition_keys]
        if strange:
            keys = ", ".join(table.schema.partition_keys) or "nothing"
            raise InvalidRequest(f"{table.name} is partitioned by {keys}, not by {strange[0]}")
        partitions.append(
            {k: typed_values(table.name, k, type_of(table, k), [v])[0].as_py() for k, v in values.items()}
        )
    return partitions or None


def older_argument(parser: argparse.ArgumentParser, what: str, more: str = "") -> None:
    parser.add_argument(
        "--older-than", metavar="DURATION", help=f"{what} older than this, such as '3 d' or '12 h'{more}"
    )


def age(text: str | None) -> dt.timedelta | None:
    """The duration given by an option such as `--older-than '3 d'`; None without it."""
    return None if text is None else parse_span(text)
