"""`forebay paimon …`: inspect, read and maintain tables in Apache Paimon's format."""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.base.quantity import format_bytes, moment_at, moment_ms
from forebay.cli.conditions import column_names, conjunction, where_argument
from forebay.cli.output import FORMATS, Progress, print_batches, text_table
from forebay.cli.paimon_help import ACTIONS, EPILOG
from forebay.cli.paimon_history import HISTORY
from forebay.cli.paimon_tables import (
    Action,
    catalog_arguments,
    catalog_options,
    counted,
    json_argument,
    open_table,
    print_json,
    time_text,
)
from forebay.cli.paimon_upkeep import UPKEEP
from forebay.paimon import Catalog, Table
from forebay.paimon.format.snapshot import Snapshot

_SYSTEM_MARK = "$"


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay paimon`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, action in _ACTIONS.items():
        sub = actions.add_parser(
            name, help=action.help, description=action.help[0].upper() + action.help[1:] + ".",
            epilog=ACTIONS[name], formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        sub.add_argument(
            "table", nargs="?" if name == "describe" else None,
            help="the table: database.table, or its directory (/lake/sales.db/orders)",
        )  # fmt: skip
        catalog_arguments(sub)
        action.arguments(sub)


def run(options: argparse.Namespace) -> int:
    return _ACTIONS[options.action].run(options)


# ---- tables ---------------------------------------------------------------------------------------------------------


def _describe_arguments(parser: argparse.ArgumentParser) -> None:
    json_argument(parser)


def _list_tables(options: argparse.Namespace) -> int:
    catalog_settings = catalog_options(options)
    if not catalog_settings:
        raise InvalidRequest("which table, or whose tables? Name a table, or say -w WAREHOUSE to list all")
    catalog = Catalog.open(catalog_settings)
    names = [f"{database}.{name}" for database in catalog.list_databases() for name in catalog.list_tables(database)]
    if options.json:
        print_json({"tables": names})
    else:
        print("\n".join(names) or "(no tables)")
    return 0


def _describe(options: argparse.Namespace) -> int:
    if options.table is None:
        return _list_tables(options)
    table = open_table(options)
    if options.json:
        print_json(_description(table))
        return 0
    schema = table.schema
    print(f"{table.name}  ({'primary-key table' if schema.has_primary_key else 'append table'}, schema {schema.id})")
    if schema.comment:
        print(f"  {schema.comment}")
    print()
    roles = dict.fromkeys(schema.partition_keys, "partition") | dict.fromkeys(schema.primary_keys, "primary key")
    rows = [[f.name, str(f.type), roles.get(f.name, ""), f.description or ""] for f in schema.fields]
    print("\n".join(text_table(["column", "type", "", "comment"], rows)))
    print()
    facts = {
        "location": table.context.paths.root,
        "primary key": ", ".join(schema.primary_keys),
        "partitioned by": ", ".join(schema.partition_keys),
        **_state(table),
        **{f"option {key}": value for key, value in sorted(schema.options.items())},
    }
    width = max(len(name) for name in facts)
    print("\n".join(f"{name.ljust(width)}  {value}" for name, value in facts.items() if value))
    return 0


def _description(table: Table) -> dict[str, Any]:
    """The description of a table as JSON."""
    schema, snapshot = table.schema, table.context.snapshots.latest()
    entries = [] if snapshot is None else table.context.manifests.live_files(snapshot)
    return {
        "table": table.name,
        "location": table.context.paths.root,
        "comment": schema.comment,
        "schema": schema.id,
        "columns": [{"name": f.name, "type": str(f.type), "comment": f.description} for f in schema.fields],
        "primary_key": list(schema.primary_keys),
        "partitioned_by": list(schema.partition_keys),
        "options": dict(schema.options),
        "snapshot": None if snapshot is None else snapshot.id,
        "records": 0 if snapshot is None else snapshot.total_record_count,
        "files": len(entries),
        "bytes": sum(e.file.file_size for e in entries),
    }


def _state(table: Table) -> dict[str, str]:
    """The facts about the table in its latest snapshot."""
    snapshot = table.context.snapshots.latest()
    if snapshot is None:
        return {"snapshot": "(none: nothing was written yet)"}
    entries = table.context.manifests.live_files(snapshot)
    size = sum(e.file.file_size for e in entries)
    buckets = {(e.partition, e.bucket) for e in entries}
    records = "records, before merging" if table.schema.has_primary_key else "rows"
    partitions = len({partition for partition, _ in buckets})
    where = f" of {counted(partitions, 'partition')}" if table.schema.partition_keys else ""
    return {
        "snapshot": f"{snapshot.id}, {snapshot.commit_kind} at {time_text(snapshot.time_millis)}",
        "holds": f"{snapshot.total_record_count:,} {records}",
        "files": f"{counted(len(entries), 'file')} of {format_bytes(size)} in {counted(len(buckets), 'bucket')}"
        + where,
    }


# ---- reading --------------------------------------------------------------------------------------------------------


def _format_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f", "--format", choices=FORMATS, dest="output", default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--json", action="store_const", const="json", dest="output", default=argparse.SUPPRESS,
        help="the same as -o json: one object per line",
    )  # fmt: skip


def _scan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--columns", metavar="A,B,...", help="only these columns")
    parser.add_argument("-n", "--limit", type=int, metavar="N", help="print at most N rows")
    where_argument(parser)
    then = parser.add_mutually_exclusive_group()
    then.add_argument("--snapshot", type=int, metavar="ID", help="read this snapshot")
    then.add_argument("--tag", metavar="NAME", help="read this tag")
    then.add_argument("--at", metavar="TIME", help="read the state at this time, such as 2026-01-31T12:00 (UTC)")
    _format_argument(parser)


def _scan(options: argparse.Namespace) -> int:
    columns, system = column_names(options.columns), _system_table(options.table)
    if system is not None:
        if options.where:
            raise InvalidRequest("--where does not work on system tables")
        reader = open_table(options, options.table.rpartition(_SYSTEM_MARK)[0]).system(system).read(columns)
    else:
        table = open_table(options)
        where = conjunction(table.arrow_schema, options.where)
        reader = table.scan(columns, where, options.limit, as_of=_as_of(table, options))
    with Progress(f"reading {options.table}:") as progress:
        rows = print_batches(_limited(progress.counted(reader), options.limit), options.output)
    if options.output == "table":
        print(f"({counted(rows, 'row')})")
    return 0


def _as_of(table: Table, options: argparse.Namespace) -> int | str | dt.datetime | None:
    if options.tag is not None:
        table.context.tags.tag(options.tag)  # rejects a time, which is not a tag
        return str(options.tag)
    if options.at is not None:
        return moment_at(moment_ms(options.at, "--at"))
    snapshot_id: int | None = options.snapshot
    return snapshot_id


def _system_table(name: str) -> str | None:
    """`files` for `sales.orders$files`; None for a table or a branch."""
    last = name.rpartition(_SYSTEM_MARK)
    return last[2] if last[1] and not last[2].startswith("branch_") else None


def _limited(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterable[pa.RecordBatch]:
    for batch in batches:
        part = batch if limit is None else batch.slice(0, limit)
        if part.num_rows:
            yield part
        if limit is not None:
            limit -= part.num_rows
            if limit <= 0:
                return


def _snapshots_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--limit", type=int, default=20, metavar="N", help="the last N (default: %(default)s)")
    _format_argument(parser)


def _snapshots(options: argparse.Namespace) -> int:
    table = open_table(options)
    snapshots: list[Snapshot] = []
    for snapshot_id in reversed(table.context.snapshots.ids()):
        if len(snapshots) >= options.limit:
            break
        snapshot = table.context.snapshots.find(snapshot_id)
        snapshots += [] if snapshot is None else [snapshot]
    rows = [
        {
            "id": s.id,
            "kind": str(s.commit_kind),
            "time": time_text(s.time_millis),
            "records": s.total_record_count,
            "change": s.delta_record_count,
            "schema": s.schema_id,
            "user": s.commit_user,
        }
        for s in reversed(snapshots)
    ]
    if rows:
        print_batches(pa.Table.from_pylist(rows).to_batches(), options.output)
    elif options.output == "table":
        print("(no snapshots: nothing was written yet)")
    return 0


_ACTIONS = {
    "describe": Action(
        "show a table's columns, keys, options, size and latest snapshot", _describe_arguments, _describe
    ),
    "scan": Action("print a table's rows, current or historical", _scan_arguments, _scan),
    "snapshots": Action("list a table's snapshots", _snapshots_arguments, _snapshots),
    **UPKEEP,
    **HISTORY,
}
