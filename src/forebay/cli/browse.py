"""Inspect a server: `forebay tables | describe | changes | get | scan | explain | status | transactions`."""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from forebay.api.texts import keys_of
from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.base.quantity import format_bytes, moment_at, moment_ms
from forebay.cli import explain
from forebay.cli.conditions import column_names, conjunction, where_argument
from forebay.cli.connecting import add_connection_arguments, connected
from forebay.cli.output import Progress, output_argument, print_batches, print_object, print_rows, text_table
from forebay.client.connection import Connection
from forebay.metadata.ddl import column_role


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare the options of the command `name`, one of `_COMMANDS`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    command = _COMMANDS[name]
    parser.epilog = command.epilog
    parser.set_defaults(browse=command.run)
    add_connection_arguments(parser)
    output_argument(parser)
    command.arguments(parser)


def run(options: argparse.Namespace) -> int:
    with connected(options) as connection:
        result: int = options.browse(connection, options)
    return result


# ---- tables, describe, status ---------------------------------------------------------------------------------------


def _tables_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("database", nargs="?", help="list this database only")


def _tables(connection: Connection, options: argparse.Namespace) -> int:
    admin = connection.admin
    databases = [options.database] if options.database else connection.list_databases()
    rows = []
    for database in databases:
        for name in connection.list_tables(database):
            info = admin.table_info(f"{database}.{name}")
            kind = "primary key" if info.has_primary_key else "log"
            count: int | str | None = _row_count(connection, info)
            if count is None and options.output == "table":
                count = "?"
            rows.append([str(info.path), kind, info.bucket_count, count, info.descriptor.comment or ""])
    where = f"database {databases[0]}" if options.database else f"{', '.join(databases)}"
    print_rows(["table", "kind", "buckets", "rows", "comment"], rows, options.output, empty=f"(no tables in {where})")
    return 0


def _row_count(connection: Connection, info: Any) -> int | None:
    try:
        return connection.admin.table_stats(info).row_count
    except UnsupportedOperation:  # Fluss 0.9 does not count
        return None


def _table_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", help="the table, as database.table")


def _describe(connection: Connection, options: argparse.Namespace) -> int:
    table = connection.table(options.table)
    info, descriptor = table.info, table.info.descriptor
    columns = [
        (column.name, str(column.data_type), column_role(info.schema, column), column.comment or "")
        for column in info.schema.columns
    ]
    if options.output == "csv":
        print_rows(["column", "type", "role", "comment"], columns, "csv")
        return 0
    rows = _row_count(connection, info)
    partitions = [p.name for p in connection.table(info).partitions()] if descriptor.partition_keys else []
    if options.output == "json":
        print_object({
            "table": str(info.path), "id": info.table_id, "comment": descriptor.comment,
            "columns": [dict(zip(("name", "type", "role", "comment"), column, strict=True)) for column in columns],
            "primary_key": info.schema.primary_key, "partitioned_by": descriptor.partition_keys,
            "bucket_key": descriptor.bucket_keys, "buckets": info.bucket_count,
            "auto_increment": info.schema.auto_increment_column, "created": _time(info.created_ms),
            "changed": _time(info.modified_ms), "rows": rows, "options": dict(descriptor.properties),
            "properties": dict(descriptor.custom_properties), "partitions": partitions,
        })  # fmt: skip
        return 0
    print(f"{info.path}  ({'primary-key table' if info.has_primary_key else 'log table'}, id {info.table_id})")
    if descriptor.comment:
        print(f"  {descriptor.comment}")
    print()
    print("\n".join(text_table(["column", "type", "", "comment"], columns)))
    print()
    facts = {
        "primary key": ", ".join(info.schema.primary_key),
        "partitioned by": ", ".join(descriptor.partition_keys),
        "bucket key": ", ".join(descriptor.bucket_keys),
        "buckets": str(info.bucket_count),
        "auto-increment": info.schema.auto_increment_column or "",
        "created": _time(info.created_ms),
        "changed": _time(info.modified_ms),
        "rows": "?" if rows is None else f"{rows:,}",
        **{f"option {key}": value for key, value in sorted(descriptor.properties.items())},
        **{f"property {key}": value for key, value in sorted(descriptor.custom_properties.items())},
    }
    if descriptor.partition_keys:
        facts["partitions"] = ", ".join(partitions) or "(none yet)"
    width = max(len(name) for name in facts)
    print("\n".join(f"{name.ljust(width)}  {value}" for name, value in facts.items() if value))
    return 0


def _time(milliseconds: int) -> str:
    if milliseconds < 0:
        return ""
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _no_arguments(_parser: argparse.ArgumentParser) -> None:
    return


def _status(connection: Connection, options: argparse.Namespace) -> int:
    admin = connection.admin
    nodes = [(node.role.name.lower(), node.node_id, f"{node.host}:{node.port}") for node in admin.server_nodes()]
    try:
        health = admin.cluster_health()
        healthy = f"{health.status.name}, {health.active_leader_replicas} of {health.leader_replicas} buckets serve"
    except UnsupportedOperation:
        healthy = "not reported by this server"
    try:
        now = admin.describe_server()
        work: dict[str, Any] = {
            "version": now.version, "started": now.started.isoformat(timespec="seconds"),
            "connections": now.connections, "scans": now.scans, "table snapshots": now.table_snapshots,
            "transactions": now.open_transactions + now.decided_transactions, "memory bytes": now.resident_bytes,
            "disk bytes free": now.disk_free_bytes,
        }  # fmt: skip
        if now.standby_as_of is not None and now.staleness is not None:
            work["a standby, as of"] = now.standby_as_of.isoformat(timespec="milliseconds")
            work["seconds since it saw the end of the journal"] = now.staleness.total_seconds()
        work |= {f"damaged {each.path} {each.bucket}": each.message for each in now.damaged}
    except UnsupportedOperation:
        work = {}
    databases = [(d.name, d.table_count) for d in admin.database_summaries()]
    configs = [(entry.key, entry.value or "") for entry in admin.describe_configs()]
    if options.output == "json":
        print_object({
            "servers": [dict(zip(("server", "id", "address"), node, strict=True)) for node in nodes],
            "health": healthy, "now": work, "databases": dict(databases), "settings": dict(configs),
        })  # fmt: skip
        return 0
    if options.output == "csv":
        servers = [(f"server {kind} {node_id}", address) for kind, node_id, address in nodes]
        counts = [(f"database {name}", count) for name, count in databases]
        print_rows(["what", "value"], [*servers, ("health", healthy), *work.items(), *counts, *configs], "csv")
        return 0
    print_rows(["server", "id", "address"], nodes, "table", plain_numbers=["id"])
    print(f"\nhealth: {healthy}")
    if work:
        print("now: " + ", ".join(_shown(name, value) for name, value in work.items() if value is not None))
    print()
    print_rows(["database", "tables"], [(name, "?" if count is None else count) for name, count in databases], "table")
    if configs:
        print()
        print_rows(["setting", "value"], configs, "table")
    return 0


def _shown(name: str, value: Any) -> str:
    if "bytes" not in name.split():
        return f"{name} {value}"
    return f"{name.replace(' bytes', '')} {format_bytes(value)}"


def _transactions_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("application", nargs="?", help="only the transactions of this application")


def _transactions(connection: Connection, options: argparse.Namespace) -> int:
    transactions = connection.admin.transactions(options.application)
    for_people = options.output == "table"
    rows = [
        (t.application, t.version, t.state, f"{t.since:%Y-%m-%d %H:%M:%S UTC}", t.stages,
         format_bytes(t.staged_bytes) if for_people else t.staged_bytes)
        for t in transactions
    ]  # fmt: skip
    columns = ["application", "version", "state", "since", "attempts", "staged" if for_people else "staged bytes"]
    print_rows(columns, rows, options.output, empty="(no transactions)", plain_numbers=["version"])
    return 0


# ---- rows -----------------------------------------------------------------------------------------------------------


def _rows_arguments(parser: argparse.ArgumentParser) -> None:
    _table_argument(parser)
    parser.add_argument("-c", "--columns", metavar="A,B,...", help="only these columns")


def _scan_arguments(parser: argparse.ArgumentParser) -> None:
    _rows_arguments(parser)
    parser.add_argument("-n", "--limit", type=int, metavar="N", help="print at most N rows")
    where_argument(parser)


def _scan(connection: Connection, options: argparse.Namespace) -> int:
    table = connection.table(options.table)
    scan = table.scan(_columns(options), conjunction(table.arrow_schema, options.where), options.limit)
    with scan.reader() as reader, Progress(f"scanning {table.path}:") as progress:
        rows = print_batches(progress.counted(reader), options.output)
    if options.output == "table":
        print(f"({rows:,} row{'' if rows == 1 else 's'})")
    return 0


def _changes_arguments(parser: argparse.ArgumentParser) -> None:
    _rows_arguments(parser)
    parser.add_argument(
        "--from", dest="start", default="latest", metavar="WHERE",
        help="earliest, latest, full (the current rows first), or a time such as 2026-01-31T12:00, in UTC unless it "
        "has an offset (default: latest)",
    )  # fmt: skip
    parser.add_argument(
        "--no-follow", action="store_true", help="stop at the current end instead of waiting for new records"
    )
    parser.add_argument("-n", "--limit", type=int, metavar="N", help="stop after N rows")
    where_argument(parser)


def _changes(connection: Connection, options: argparse.Namespace) -> int:
    table = connection.table(options.table)
    reader = table.changes(
        _start(options.start),
        "latest" if options.no_follow else None,
        columns=_columns(options),
        filter=conjunction(table.arrow_schema, options.where),
    )
    with reader:
        print_batches(_limited(reader, options.limit), options.output)
    return 0


def _limited(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    if limit is not None and limit <= 0:
        return
    for batch in batches:
        yield batch if limit is None else batch.slice(0, limit)
        if limit is not None:
            limit -= batch.num_rows
            if limit <= 0:
                return


def _start(text: str) -> str | dt.datetime:
    if text in ("earliest", "latest", "full"):
        return text
    try:
        return moment_at(moment_ms(text, "--from"))
    except InvalidRequest as e:
        raise InvalidRequest(f"--from {text!r} is not earliest, latest, full or a time like 2026-01-31T12:00") from e


def _get_arguments(parser: argparse.ArgumentParser) -> None:
    _rows_arguments(parser)
    parser.add_argument(
        "keys", nargs="+", metavar="KEY",
        help="a key: its value, or column=value pairs with commas where the key has several columns",
    )  # fmt: skip


def _get(connection: Connection, options: argparse.Namespace) -> int:
    table = connection.table(options.table)
    if not table.has_primary_key:
        raise InvalidRequest(f"{table.path} is a log table and has no keys to look up; try `forebay scan` or `changes`")
    keys = keys_of(str(table.path), table.arrow_schema, table.schema.primary_key, options.keys)
    rows = table.lookup(keys, _columns(options), missing="drop")
    print_batches(rows.combine_chunks().to_batches(), options.output)
    if rows.num_rows < len(options.keys) and options.output == "table":
        print(f"({rows.num_rows} of {len(options.keys)} keys found)")
    return 0 if rows.num_rows == len(options.keys) else 1


def _columns(options: argparse.Namespace) -> list[str] | None:
    return column_names(options.columns)


class _Browse:
    """One of the commands: its arguments, its implementation, and examples."""

    def __init__(
        self,
        arguments: Callable[[argparse.ArgumentParser], None],
        run: Callable[[Connection, argparse.Namespace], int],
        epilog: str,
    ) -> None:
        self.arguments = arguments
        self.run = run
        self.epilog = epilog


_COMMANDS = {
    "tables": _Browse(_tables_arguments, _tables, "example:\n  forebay tables sales"),
    "describe": _Browse(_table_argument, _describe, "example:\n  forebay describe sales.orders"),
    "status": _Browse(_no_arguments, _status, "example:\n  forebay status -b 127.0.0.1:9123"),
    "transactions": _Browse(_transactions_arguments, _transactions, "example:\n  forebay transactions nightly-load"),
    "scan": _Browse(
        _scan_arguments,
        _scan,
        "examples:\n  forebay scan sales.orders --where 'amount >= 100' -c id,amount -n 20\n"
        "  forebay scan sales.orders -o csv > orders.csv",
    ),
    "explain": _Browse(
        explain.arguments,
        explain.run,
        "example:\n  forebay explain \"SELECT id FROM sales.orders WHERE amount >= 100 AND day = '2026-01-31'\"",
    ),
    "changes": _Browse(
        _changes_arguments,
        _changes,
        "examples:\n  forebay changes sales.orders               # wait for changes, until Ctrl-C\n"
        "  forebay changes sales.orders --from earliest --no-follow -o json",
    ),
    "get": _Browse(
        _get_arguments,
        _get,
        "examples:\n  forebay get sales.orders 17 18\n  forebay get sales.visits user=7,day=2026-01-31",
    ),
}
