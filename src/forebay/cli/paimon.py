"""`forebay paimon …`: look at tables in Apache Paimon's format, read them, and keep them in order."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from forebay.base.clock import SYSTEM_CLOCK
from forebay.base.errors import InvalidRequest
from forebay.base.quantity import format_bytes, parse_duration_ms
from forebay.cli.conditions import column_names, conjunction, typed_values
from forebay.cli.output import FORMATS, Progress, print_batches, text_table
from forebay.cli.paimon_help import ACTIONS, EPILOG
from forebay.paimon.catalog.catalog import Catalog
from forebay.paimon.format.file_meta import FileKind
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.io.opening import open_file_io
from forebay.paimon.table import Table

_SYSTEM_MARK, _BRANCH_MARK = "$", "$branch_"


class _Action(NamedTuple):
    """One action: its line in the help, its arguments, what it does."""

    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
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
        sub.add_argument(
            "-w", "--warehouse", metavar="WHERE", default=os.environ.get("FOREBAY_PAIMON_WAREHOUSE"),
            help="directory or URI of the catalog's warehouse (default: $FOREBAY_PAIMON_WAREHOUSE)",
        )  # fmt: skip
        sub.add_argument(
            "-o", "--option", action="append", default=[], metavar="KEY=VALUE",
            help="an option of the catalog or its file system, such as metastore=jdbc or s3.endpoint=...; may be "
            "repeated",
        )  # fmt: skip
        sub.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
            help="replace an option of the table for this command, such as scan.mode=latest; may be repeated",
        )  # fmt: skip
        action.arguments(sub)


def run(options: argparse.Namespace) -> int:
    return _ACTIONS[options.action].run(options)


# ---- tables ---------------------------------------------------------------------------------------------------------


def _pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidRequest(f"{flag} {text!r} is not KEY=VALUE")
        found[key.strip()] = value.strip()
    return found


def _open(options: argparse.Namespace, name: str | None = None) -> Table:
    """The table that the command line names."""
    name = options.table if name is None else name
    given, settings = _catalog_options(options), _pairs(options.settings, "--set")
    if "/" in name:
        path, _, branch = name.partition(_BRANCH_MARK)
        path = path.rstrip("/")
        return Table(open_file_io(path, given), path, branch=branch or "main", options=settings)
    if not given:
        raise InvalidRequest(
            f"in which catalog is {name!r}? Say -w WAREHOUSE (or set FOREBAY_PAIMON_WAREHOUSE), or name the table by "
            "its directory"
        )
    return Catalog.open(given).get_table(name, options=settings)


def _describe_arguments(parser: argparse.ArgumentParser) -> None:
    _json_argument(parser)


def _catalog_options(options: argparse.Namespace) -> dict[str, str]:
    given = _pairs(options.option, "--option")
    if options.warehouse is not None:
        given.setdefault("warehouse", options.warehouse)
    return given


def _list_tables(options: argparse.Namespace) -> int:
    given = _catalog_options(options)
    if not given:
        raise InvalidRequest("which table, or whose tables? Name a table, or say -w WAREHOUSE to list all")
    catalog = Catalog.open(given)
    names = [f"{database}.{name}" for database in catalog.list_databases() for name in catalog.list_tables(database)]
    if options.json:
        _print_json({"tables": names})
    else:
        print("\n".join(names) or "(no tables)")
    return 0


def _describe(options: argparse.Namespace) -> int:
    if options.table is None:
        return _list_tables(options)
    table = _open(options)
    if options.json:
        _print_json(_description(table))
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
        "location": table.paths.root,
        "primary key": ", ".join(schema.primary_keys),
        "partitioned by": ", ".join(schema.partition_keys),
        **_state(table),
        **{f"option {key}": value for key, value in sorted(schema.options.items())},
    }
    width = max(len(name) for name in facts)
    print("\n".join(f"{name.ljust(width)}  {value}" for name, value in facts.items() if value))
    return 0


def _description(table: Table) -> dict[str, Any]:
    """The same for programs."""
    schema, snapshot = table.schema, table.snapshots.latest()
    entries = [] if snapshot is None else table.manifests.live_files(snapshot)
    return {
        "table": table.name,
        "location": table.paths.root,
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
    """What the latest snapshot says of the table."""
    snapshot = table.snapshots.latest()
    if snapshot is None:
        return {"snapshot": "(none: nothing was written yet)"}
    entries = table.manifests.live_files(snapshot)
    size = sum(e.file.file_size for e in entries)
    buckets = {(e.partition, e.bucket) for e in entries}
    records = "records, before merging" if table.schema.has_primary_key else "rows"
    partitions = len({partition for partition, _ in buckets})
    where = f" of {_counted(partitions, 'partition')}" if table.schema.partition_keys else ""
    return {
        "snapshot": f"{snapshot.id}, {snapshot.commit_kind} at {_time(snapshot.time_millis)}",
        "holds": f"{snapshot.total_record_count:,} {records}",
        "files": f"{_counted(len(entries), 'file')} of {format_bytes(size)} in {_counted(len(buckets), 'bucket')}"
        + where,
    }


def _json_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")


def _print_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False, default=str))


def _time(milliseconds: int) -> str:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


# ---- reading --------------------------------------------------------------------------------------------------------


def _format_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--format", choices=FORMATS, default="table", help="how to print (default: %(default)s)")
    parser.add_argument(
        "--json", action="store_const", const="json", dest="format", help="the same as -f json: an object in each line"
    )


def _read_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--columns", metavar="A,B,...", help="these columns only")
    parser.add_argument("-n", "--limit", type=int, metavar="N", help="at most so many rows")
    parser.add_argument(
        "--where", action="append", default=[], metavar="'COLUMN OP VALUE'",
        help="only rows for which this holds (OP is = != < <= > >=); may be repeated",
    )  # fmt: skip
    then = parser.add_mutually_exclusive_group()
    then.add_argument("--snapshot", type=int, metavar="ID", help="as it was at this snapshot")
    then.add_argument("--tag", metavar="NAME", help="as it was when it was tagged so")
    then.add_argument("--at", metavar="TIME", help="as it was at this time, such as 2026-01-31T12:00 (UTC)")
    _format_argument(parser)


def _read(options: argparse.Namespace) -> int:
    columns, system = column_names(options.columns), _system_table(options.table)
    if system is not None:
        if options.where:
            raise InvalidRequest("--where does not work on system tables")
        reader = _open(options, options.table.rpartition(_SYSTEM_MARK)[0]).system(system).read(columns)
    else:
        table = _open(options)
        reader = table.read(
            columns,
            conjunction(table.name, lambda column: _type_of(table, column), options.where),
            options.limit,
            snapshot=options.snapshot,
            tag=options.tag,
            timestamp_ms=None if options.at is None else _moment(options.at),
        )
    with Progress(f"reading {options.table}:") as progress:
        rows = print_batches(_limited(progress.counted(reader), options.limit), options.format)
    if options.format == "table":
        print(f"({_counted(rows, 'row')})")
    return 0


def _system_table(name: str) -> str | None:
    """`files` of `sales.orders$files`; None for a table itself, and for a branch of one."""
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


def _type_of(table: Table, column: str) -> pa.DataType:
    return table.arrow_schema.field(table.schema.field_named(column).name).type


def _moment(text: str) -> int:
    """A time as milliseconds since the epoch; UTC unless it says otherwise."""
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError as e:
        raise InvalidRequest(f"{text!r} is not a time like 2026-01-31T12:00") from e
    return round((time if time.tzinfo else time.replace(tzinfo=dt.UTC)).timestamp() * 1000)


def _snapshots_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--limit", type=int, default=20, metavar="N", help="the last N (default: %(default)s)")
    _format_argument(parser)


def _snapshots(options: argparse.Namespace) -> int:
    table = _open(options)
    found: list[Snapshot] = []
    for snapshot_id in reversed(table.snapshots.ids()):
        if len(found) >= options.limit:
            break
        snapshot = table.snapshots.find(snapshot_id)
        found += [] if snapshot is None else [snapshot]
    rows = [
        {
            "id": s.id,
            "kind": str(s.commit_kind),
            "time": _time(s.time_millis),
            "records": s.total_record_count,
            "change": s.delta_record_count,
            "schema": s.schema_id,
            "user": s.commit_user,
        }
        for s in reversed(found)
    ]
    if rows:
        print_batches(pa.Table.from_pylist(rows).to_batches(), options.format)
    elif options.format == "table":
        print("(no snapshots: nothing was written yet)")
    return 0


# ---- upkeep ---------------------------------------------------------------------------------------------------------


def _partition_argument(parser: argparse.ArgumentParser, several: bool) -> None:
    parser.add_argument(
        "-p", "--partition", action="append", default=[], metavar="A=X,B=Y",
        help="only this partition, or those with these values" + ("; may be repeated" if several else ""),
    )  # fmt: skip


def _partitions(table: Table, texts: Sequence[str]) -> list[dict[str, Any]] | None:
    """The partitions that the user typed; None for all."""
    found = []
    for text in texts:
        values = _pairs(text.split(","), "--partition")
        strange = [name for name in values if name not in table.schema.partition_keys]
        if strange:
            keys = ", ".join(table.schema.partition_keys) or "nothing"
            raise InvalidRequest(f"{table.name} is partitioned by {keys}, not by {strange[0]}")
        found.append({k: typed_values(table.name, k, _type_of(table, k), [v])[0].as_py() for k, v in values.items()})
    return found or None


def _compact_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help="everything, not only what the table's options say is due")
    parser.add_argument("--order-by", metavar="A,B,...", help="sort an append table by these columns, too")
    parser.add_argument(
        "--strategy", choices=("order", "zorder", "hilbert"), default="order",
        help="how --order-by combines columns (default: %(default)s)",
    )  # fmt: skip
    _partition_argument(parser, several=True)
    _json_argument(parser)


def _compact(options: argparse.Namespace) -> int:
    table = _open(options)
    with Progress(f"compacting {table.name}:") as progress:
        made = table.compact(
            options.full,
            _partitions(table, options.partition),
            order_by=column_names(options.order_by) or (),
            strategy=options.strategy,
            progress=progress.at,
        )
    changes = [] if made is None else list(table.manifests.entries(table.manifests.delta_manifests(made)))
    before = sum(1 for e in changes if e.kind is FileKind.DELETE)
    after = len(changes) - before
    if options.json:
        _print_json({"snapshot": None if made is None else made.id, "files_before": before, "files_after": after})
    elif made is None:
        print(f"nothing to compact in {table.name}" + ("" if options.full else "; --full compacts everything"))
    else:
        print(f"compacted {_counted(before, 'file')} of {table.name} into {after:,}: snapshot {made.id}")
    return 0


def _expire_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--retain-min", type=int, metavar="N", help="keep at least the last N snapshots")
    parser.add_argument("--retain-max", type=int, metavar="N", help="keep at most the last N snapshots")
    _older_argument(parser, "expire snapshots that are")
    parser.add_argument(
        "--partitions", nargs="?", const="", metavar="AGE",
        help="also drop partitions older than AGE, such as '30 d', or than option partition.expiration-time says",
    )  # fmt: skip
    _json_argument(parser)


def _older_argument(parser: argparse.ArgumentParser, what: str, more: str = "") -> None:
    parser.add_argument(
        "--older-than", metavar="DURATION", help=f"{what} older than this, such as '3 d' or '12 h'{more}"
    )


def _older_than(options: argparse.Namespace) -> int | None:
    """The moment so long ago, in milliseconds since the epoch."""
    if options.older_than is None:
        return None
    return SYSTEM_CLOCK.now_ms() - parse_duration_ms(options.older_than)


def _expire(options: argparse.Namespace) -> int:
    """Partitions first: dropping them makes the snapshot that lets go of their files. Then what the options say."""
    table = _open(options)
    maintenance = table.maintenance()
    partitions: list[dict[str, Any]] = []
    if options.partitions is not None:
        partitions = maintenance.expire_partitions(
            parse_duration_ms(options.partitions) if options.partitions else None
        )
    tags = maintenance.expire_tags() if table.options.tag_time_expire_enabled else []
    with Progress(f"expiring snapshots of {table.name}:", unit="snapshots") as progress:
        done = maintenance.expire_snapshots(
            options.retain_min, options.retain_max, _older_than(options), progress=progress.at
        )
    changelogs = maintenance.expire_changelogs().count if table.options.changelog_decoupled else 0
    left = table.snapshots.ids()
    if options.json:
        _print_json(
            {
                "snapshots": done.count,
                "data_files": done.files.data_files,
                "metadata_files": done.files.metadata_files,
                "left": [left[0], left[-1]] if left else [],
                "tags": tags,
                "changelogs": changelogs,
                "partitions": partitions,
            }
        )
        return 0
    kept = f"{left[0]} to {left[-1]} are left" if left else "none are left"
    print(f"expired {_counted(done.count, 'snapshot')} of {table.name}; {kept}")
    for count, what in ((len(partitions), "partition"), (len(tags), "tag"), (changelogs, "changelog")):
        if count:
            print(f"expired {_counted(count, what)}")
    return 0


def _rescale_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("buckets", type=int, help="how many buckets each partition shall have")
    _partition_argument(parser, several=True)
    _json_argument(parser)


def _rescale(options: argparse.Namespace) -> int:
    table = _open(options)
    before = _of_other_buckets(table, options.buckets)
    with Progress(f"rescaling {table.name}:") as progress:
        wanted: Sequence[dict[str, Any] | None] = [
            *(_partitions(table, options.partition) or ()),
            *([] if options.partition else [None]),
        ]
        for partition in wanted:
            table = table.rescale(options.buckets, partition, progress=progress.at)
    done = len(before - _of_other_buckets(table, options.buckets))
    if options.json:
        _print_json({"buckets": table.options.bucket, "rewritten": done})
        return 0
    parts = _counted(done, "partition" if table.schema.partition_keys else "table")
    print(f"{table.name} has {_counted(table.options.bucket, 'bucket')}; rewritten: {parts}")
    return 0


def _of_other_buckets(table: Table, buckets: int) -> set[bytes]:
    """The partitions that were written with another number of buckets."""
    snapshot = table.snapshots.latest()
    entries = [] if snapshot is None else table.manifests.live_files(snapshot)
    return {e.partition for e in entries if e.total_buckets != buckets}


def _orphans_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--delete", action="store_true", help="delete them; without it they are only listed")
    _older_argument(parser, "only files", " (default: 1 d); younger ones may belong to a running commit")
    _json_argument(parser)


def _orphans(options: argparse.Namespace) -> int:
    table = _open(options)
    with Progress(f"looking for orphans of {table.name}:", unit="snapshots and files") as progress:
        found = table.remove_orphan_files(
            older_than_ms=_older_than(options), dry_run=not options.delete, progress=progress.at
        )
    if options.json:
        _print_json({"files": found.files, "bytes": found.bytes, "deleted": options.delete})
        return 0
    for path in found.files:
        print(path)
    did = "deleted" if options.delete else "found"
    hint = "" if options.delete or not found.files else "; --delete deletes them"
    print(f"{did} {_counted(len(found.files), 'file')} of {format_bytes(found.bytes)} that nothing refers to{hint}")
    return 0


_ACTIONS = {
    "describe": _Action(
        "show a table's columns, keys, options, size and latest snapshot", _describe_arguments, _describe
    ),
    "read": _Action("print a table's rows, now or as they were", _read_arguments, _read),
    "snapshots": _Action("list a table's snapshots", _snapshots_arguments, _snapshots),
    "compact": _Action("merge a table's small files into larger ones", _compact_arguments, _compact),
    "expire": _Action("delete old snapshots, and the files that only they need", _expire_arguments, _expire),
    "rescale": _Action("give a table another number of buckets, and rewrite it", _rescale_arguments, _rescale),
    "orphans": _Action("find, or delete, files that nothing refers to", _orphans_arguments, _orphans),
}
