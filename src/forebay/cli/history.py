"""`forebay history TABLE KEY`: one key's changes in log and lake, in order, who has its row now, and why."""

from __future__ import annotations

import argparse
from typing import Any

import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.cli.conditions import column_names
from forebay.cli.connecting import add_connection_arguments, connected
from forebay.cli.output import Progress, output_argument, print_batches, print_object
from forebay.unionread.key_history import KeyEvent, KeyHistory, in_order

_EPILOG = """Log records come in the order of their offsets. A lake snapshot stands behind the records that it holds,
where its row differs from that of the snapshot before. The last line says who has the key's row now: the lake, or the
stream, whose newer record overrides it.

examples:
  forebay history sales.orders 17
  forebay history sales.visits user=7,day=2026-01-31 -c page -o json"""


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay history`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("table", help="a table with a primary key, as database.table")
    parser.add_argument(
        "key", help="the key: its value, or column=value pairs with commas where the key has several columns"
    )
    parser.add_argument("-c", "--columns", metavar="A,B,...", help="only these columns of the rows")
    parser.add_argument(
        "--snapshots",
        type=int,
        default=20,
        metavar="N",
        help="search this number of the newest lake snapshots (default: 20)",
    )
    add_connection_arguments(parser)
    output_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Print a key's changes in log and lake, oldest first, and why the row is what it is now."""
    with connected(options) as connection, Progress("reading the log:", unit="changes") as progress:
        table = connection.table(options.table)
        if not table.has_primary_key:
            raise InvalidRequest(f"{table.path} is a log table and has no keys; try `forebay changes --where ...`")
        history = KeyHistory(table, options.key, column_names(options.columns))
        events = [*history.log(on_changes=progress.advance), *history.lake(options.snapshots)]
        why = history.why(events)
    schema = _schema(history)
    rows = [_row(history, schema, event) for event in in_order(events)]
    print_batches(
        pa.Table.from_pylist(rows, schema).to_batches(), options.output,
        schema=None if options.output == "json" else schema,
    )  # fmt: skip
    if options.output == "table":
        print(f"\n{why}")
    elif options.output == "json":
        print_object({"now": why})
    return 0


def _schema(history: KeyHistory) -> pa.Schema:
    heads = (("where", pa.string()), ("offset", pa.int64()), ("time", pa.string()), ("change", pa.string()))
    head_names = {name for name, _ in heads}
    row_fields = (f.with_name(f"row.{f.name}") if f.name in head_names else f for f in history.schema)
    return pa.schema([*heads, *row_fields])


def _row(history: KeyHistory, schema: pa.Schema, event: KeyEvent) -> dict[str, Any]:
    time = "" if event.time is None else str(event.time)
    values = [None if event.row is None else event.row.get(name) for name in history.schema.names]
    return dict(zip(schema.names, [event.where, event.offset, time, event.change, *values], strict=True))
