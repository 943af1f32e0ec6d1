"""`forebay iceberg …`: inspect and maintain tables of an Iceberg lake, by pyiceberg."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

from forebay.base.errors import InvalidRequest
from forebay.base.indirect import resolved
from forebay.base.quantity import format_bytes
from forebay.cli.output import Progress, output_argument, print_object, print_rows
from forebay.cli.paimon_tables import age, counted, older_argument, pairs, time_text
from forebay.lake.formats import create_lake_storage
from forebay.metadata.table import TablePath

_EPILOG = """The catalog is that of a cluster's lake with 'datalake.format' = 'iceberg': by default an SQL catalog in a
SQLite file of the warehouse; --option gives pyiceberg's options of another one.

  forebay iceberg tables -w /lake
  forebay iceberg describe -w /lake sales.orders
  forebay iceberg snapshots -w /lake sales.orders -o json
  forebay iceberg compact -w /lake sales.orders
  forebay iceberg expire -w /lake sales.orders --older-than '3 d' --keep 5
  forebay iceberg orphans -w /lake sales.orders --older-than '3 d' --delete
  forebay iceberg describe --option type=rest --option uri=http://catalog:8181 sales.orders

Rows are printed by forebay sql. Readers, writers and tiering continue meanwhile; of two that change the same files one
gives up. Exit codes: 0 done, 1 refused or failed (the message says why), 2 wrong usage, 130 interrupted."""

_ORPHANS_AGE = "1 d"


class _Action(NamedTuple):
    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay iceberg`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, action in _ACTIONS.items():
        sub = actions.add_parser(name, help=action.help, description=action.help[0].upper() + action.help[1:] + ".")
        if name != "tables":
            sub.add_argument("table", help="the table, as database.table")
        sub.add_argument("-w", "--warehouse", metavar="WHERE", help="the folder of the lake's tables")
        sub.add_argument(
            "--option", action="append", default=[], metavar="KEY=VALUE",
            help="an option of pyiceberg's catalog, such as type=rest or uri=...; may be repeated",
        )  # fmt: skip
        output_argument(sub)
        action.arguments(sub)


def run(options: argparse.Namespace) -> int:
    return _ACTIONS[options.action].run(options)


def _options(options: argparse.Namespace) -> dict[str, str]:
    properties = {key: resolved(key, value) for key, value in pairs(options.option, "--option").items()}
    if options.warehouse is not None:
        properties.setdefault("warehouse", options.warehouse)
    if not properties:
        raise InvalidRequest("which lake? Say -w WAREHOUSE, or --option type=... and --option uri=...")
    return properties


def _storage(options: argparse.Namespace) -> Any:
    return create_lake_storage("iceberg", _options(options))


def _table(options: argparse.Namespace) -> Any:
    """The table, as pyiceberg has it."""
    storage = _storage(options)
    from forebay.lakes.iceberg_tables import load_table, opened

    with opened(storage.options) as catalog:
        return load_table(catalog, TablePath.parse(options.table))


def _none(_parser: argparse.ArgumentParser) -> None:
    return


def _tables(options: argparse.Namespace) -> int:
    from forebay.lakes.iceberg_lake import IcebergLake

    lake = IcebergLake(_storage(options).options)
    rows = [[f"{database}.{table}"] for database in lake.list_databases() for table in lake.list_tables(database)]
    print_rows(["table"], rows, options.output, empty="(no tables)")
    return 0


def _describe(options: argparse.Namespace) -> int:
    table = _table(options)
    schema, snapshot = table.schema(), table.current_snapshot()
    keys = set(schema.identifier_field_names())
    columns = [
        (f.name, f"{f.field_type}{' NOT NULL' if f.required else ''}", "key" if f.name in keys else "", f.doc or "")
        for f in schema.fields
    ]
    if options.output == "csv":
        print_rows(["column", "type", "role", "comment"], columns, "csv")
        return 0
    summary = {} if snapshot is None else dict(snapshot.summary.additional_properties)
    facts = {
        "location": table.location(),
        "partitioned by": ", ".join(
            f"{f.transform}({schema.find_column_name(f.source_id)})" for f in table.spec().fields
        ),
        "snapshot": None if snapshot is None else snapshot.snapshot_id,
        "records": int(summary.get("total-records", 0)),
        "files": int(summary.get("total-data-files", 0)),
        "delete files": int(summary.get("total-delete-files", 0)),
        "bytes": int(summary.get("total-files-size", 0)),
    }
    if options.output == "json":
        column_objects = [dict(zip(("name", "type", "role", "comment"), column, strict=True)) for column in columns]
        print_object({"table": options.table, "columns": column_objects, **facts, "properties": dict(table.properties)})
        return 0
    print(f"{options.table}  (Iceberg, format version {table.metadata.format_version})\n")
    print_rows(["column", "type", "", "comment"], columns, "table")
    print()
    facts["bytes"] = format_bytes(int(summary.get("total-files-size", 0)))
    details = {**facts, **{f"property {key}": value for key, value in sorted(table.properties.items())}}
    width = max(map(len, details))
    print("\n".join(f"{name.ljust(width)}  {value}" for name, value in details.items() if value not in (None, "")))
    return 0


def _snapshots(options: argparse.Namespace) -> int:
    table = _table(options)
    rows = []
    for snapshot in sorted(table.metadata.snapshots, key=lambda s: s.sequence_number or 0):
        summary = snapshot.summary
        properties = {} if summary is None else summary.additional_properties
        operation = "" if summary is None else summary.operation.value
        records = int(properties.get("total-records", 0))
        rows.append(
            (snapshot.snapshot_id, operation, time_text(snapshot.timestamp_ms), records, snapshot.parent_snapshot_id)
        )
    names = ["id", "operation", "time", "records", "parent"]
    print_rows(names, rows, options.output, empty="(no snapshots)", plain_numbers=["id", "parent"])
    return 0


def _compact_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--files-min", type=int, default=5, metavar="N",
        help="compact buckets with at least this number of small files or delete files (default: %(default)s)",
    )  # fmt: skip


def _compact(options: argparse.Namespace) -> int:
    upkeep = _storage(options).upkeep(TablePath.parse(options.table))
    with upkeep as table, Progress("compacting:", unit="buckets") as progress:
        snapshot_id = table.compact(options.files_min, progress=progress.at)
    if options.output == "table":
        print(
            f"nothing to compact in {options.table}"
            if snapshot_id is None
            else f"compacted {options.table}: snapshot {snapshot_id}"
        )
    else:
        print_rows(["table", "snapshot"], [(options.table, snapshot_id)], options.output)
    return 0


def _expire_arguments(parser: argparse.ArgumentParser) -> None:
    older_argument(parser, "expire snapshots", " (default: by the table's properties)")
    parser.add_argument("--keep", type=int, metavar="N", help="keep at least the newest N")


def _expire(options: argparse.Namespace) -> int:
    with _storage(options).upkeep(TablePath.parse(options.table)) as upkeep:
        snapshot_ids = upkeep.expire(age(options.older_than), options.keep)
    if options.output == "table":
        print(f"expired {counted(len(snapshot_ids), 'snapshot')} of {options.table}")
    else:
        print_rows(["expired"], [[snapshot_id] for snapshot_id in snapshot_ids], options.output)
    return 0


def _orphans_arguments(parser: argparse.ArgumentParser) -> None:
    older_argument(parser, "files", f"; has to be longer than any write takes (default: {_ORPHANS_AGE})")
    parser.add_argument(
        "--delete", action="store_true", help="delete the files; without this option they are only listed"
    )


def _orphans(options: argparse.Namespace) -> int:
    with _storage(options).upkeep(TablePath.parse(options.table)) as upkeep:
        orphans = upkeep.remove_orphan_files(age(options.older_than or _ORPHANS_AGE), dry_run=not options.delete)
    print_rows(["orphan"], [[path] for path in orphans], options.output, empty="(no orphans)")
    if options.output == "table" and orphans:
        outcome = "deleted" if options.delete else "not deleted: say --delete"
        print(f"({counted(len(orphans), 'file')}, {outcome})")
    return 0


_ACTIONS = {
    "tables": _Action("list the tables of the catalog", _none, _tables),
    "describe": _Action("show a table's columns, partitions, size and properties", _none, _describe),
    "snapshots": _Action("list a table's snapshots", _none, _snapshots),
    "compact": _Action("rewrite small files, and files with deleted rows", _compact_arguments, _compact),
    "expire": _Action("expire old snapshots, and delete files that only they need", _expire_arguments, _expire),
    "orphans": _Action("list files that no snapshot needs, or delete them", _orphans_arguments, _orphans),
}
