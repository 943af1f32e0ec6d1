"""`forebay load` and `forebay export`: rows of files into tables, and rows of tables into files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from forebay.base.errors import InvalidRequest, NotFound
from forebay.base.quantity import moment_at, moment_ms
from forebay.cli.conditions import column_names, conjunction, where_argument
from forebay.cli.connecting import add_place_arguments, place_of
from forebay.cli.create import CreatedTable, complete, create, definition_arguments
from forebay.cli.files import KINDS, kind_of, opened, schema_of, write
from forebay.cli.output import Progress
from forebay.codec.arrow.arrow_types import arrow_name, sql_fault, sql_name

_LOAD = """Rows are appended to a log table; in a table with a primary key they replace those with the same keys. All
files are one transaction (a live table) or one commit (a lake table): if one row does not fit, nothing is written.
Columns are matched by name; those that a file lacks become NULL. In CSV and JSON, bytes are hexadecimal, and an empty
unquoted CSV field is NULL.

examples:
  forebay load sales.orders orders.parquet
  forebay load sales.orders 2026-01.csv 2026-02.csv --create --primary-key id
  forebay load -w /lake lake.sales.items items.jsonl"""

_EXPORT = """The rows are those of one instant: of a live table, lake and stream as one. The file is there once it is
complete.

examples:
  forebay export sales.orders orders.parquet
  forebay export sales.orders - --where 'amount >= 100' -c id,amount
  forebay export sales.orders january.arrow --at 2026-01-31T23:59
  forebay export -w /lake lake.sales.items items.csv"""


_FILES_SHOWN = 3


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare the options of the command `name`: load, export."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(run_transfer=_load if name == "load" else _export)
    parser.add_argument("table", help="the table, as database.table; of a lake lake.database.table")
    formats = {"choices": [*KINDS], "help": "the format of the file (default: by its ending)"}
    if name == "load":
        parser.epilog = _LOAD
        parser.add_argument("file", nargs="+", help="a CSV, Parquet, JSON lines or Arrow file")
        parser.add_argument("--file-format", **formats)  # type: ignore[arg-type]
        parser.add_argument(
            "--no-transaction", action="store_true",
            help="write batch by batch: less work for the server, but rows before one that does not fit stay",
        )  # fmt: skip
        parser.add_argument(
            "--create",
            action="store_true",
            help="create the table with the columns of the first file, if there is none",
        )
        definition_arguments(parser)
    else:
        parser.epilog = _EXPORT
        parser.add_argument("file", help="the file to write; - is standard output, as CSV or JSON")
        parser.add_argument(
            "--file-format", choices=[*KINDS], help="the format of the file (default: by its ending, and csv for -)"
        )
        parser.add_argument("-c", "--columns", metavar="A,B,...", help="only these columns")
        parser.add_argument("-n", "--limit", type=int, metavar="N", help="at most N rows")
        where_argument(parser)
        parser.add_argument("--at", metavar="TIME", help="the rows of this time, such as 2026-01-31T12:00 (UTC)")
    add_place_arguments(parser)


def run(options: argparse.Namespace) -> int:
    result: int = options.run_transfer(options)
    return result


# ---- load -----------------------------------------------------------------------------------------------------------


def _load(options: argparse.Namespace) -> int:
    from forebay.query.statement import TableName
    from forebay.query.tables import Tables, opened_lake

    kinds = [kind_of(file, options.file_format) for file in options.file]
    with place_of(options) as (connection, lake_locations):
        lakes = {name: opened_lake(lake) for name, lake in lake_locations.items()}
        name = TableName(tuple(options.table.split(".")))
        tables = Tables(connection, lakes)
        try:
            table = tables.target(name)
        except NotFound:
            if not options.create:
                raise
            definition = CreatedTable(options.table, schema_of(options.file[0], options.file_format))
            complete(definition, options)
            create(definition, connection, lake_locations)
            print(f"created {name}", flush=True)
            table = tables.target(name)
        with Progress(f"loading {name}:") as progress:
            rows = _Rows(options.file, kinds, table.arrow_schema, progress)
            _write(table, rows, transaction=not options.no_transaction)
    files = " ".join(options.file) if len(options.file) <= _FILES_SHOWN else f"{len(options.file)} files"
    count_text = "1 row" if rows.count == 1 else f"{rows.count:,} rows"
    print(f"loaded {count_text} of {files} into {name}")
    return 0


def _write(table: Any, rows: _Rows, *, transaction: bool) -> None:
    keyed = table.has_primary_key
    if not hasattr(table, "connection"):
        reader = pa.RecordBatchReader.from_batches(rows.schema, iter(rows))
        if keyed:
            table.upsert(reader, missing="null")
        else:
            table.append(reader)
        return
    if not transaction:
        for batch in rows:
            if keyed:
                table.upsert(batch, missing="null")
            else:
                table.append(batch)
        return
    with table.connection.transaction() as running:
        for batch in rows:
            if keyed:
                running.upsert(table, batch, missing="null")
            else:
                running.append(table, batch)


class _Rows:
    """The rows of several files, with the columns of the first one."""

    def __init__(self, files: list[str], kinds: list[str], table_schema: pa.Schema, progress: Progress) -> None:
        self._files, self._kinds, self._table_schema, self._progress = files, kinds, table_schema, progress
        self.count = 0
        with opened(files[0], kinds[0], table_schema) as (schema, _):
            names = schema.names
        strange = [name for name in names if name not in table_schema.names]
        if strange:
            raise InvalidRequest(
                f"{files[0]}: the table has no column '{strange[0]}'; its columns are {', '.join(table_schema.names)}"
            )
        self.schema = pa.schema([table_schema.field(name) for name in names])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for file, kind in zip(self._files, self._kinds, strict=True):
            with opened(file, kind, self._table_schema) as (schema, batches):
                if set(schema.names) != set(self.schema.names):
                    raise InvalidRequest(f"{file}: its columns are not those of {self._files[0]}: {schema.names}")
                for batch in batches:
                    try:
                        rows = batch.select(self.schema.names).cast(self.schema)
                    except pa.ArrowException as e:
                        raise InvalidRequest(f"{file}: {_unfit(batch, self.schema) or e}") from e
                    yield rows
                    self.count += rows.num_rows
                    self._progress.advance(rows.num_rows)


def _unfit(batch: pa.RecordBatch, schema: pa.Schema) -> str:
    """Which column does not fit the table, and why."""
    for field in schema:
        column = batch.column(field.name)
        try:
            column.cast(field.type)
        except pa.ArrowException as e:
            kind, file_type = sql_name(field.type), arrow_name(column.type)
            return f"column '{field.name}' is {kind}, but the file has {file_type}: {sql_fault(e, field.type)}"
    return ""


# ---- export ---------------------------------------------------------------------------------------------------------


def _export(options: argparse.Namespace) -> int:
    from forebay.query.statement import TableName
    from forebay.query.tables import Tables, opened_lake

    # CSV on a terminal, too: what is seen there is what a pipe gets.
    kind = "csv" if options.file == "-" and not options.file_format else kind_of(options.file, options.file_format)
    as_of = None if options.at is None else moment_at(moment_ms(options.at, "--at"))
    with place_of(options) as (connection, lake_locations):
        lakes = {name: opened_lake(lake) for name, lake in lake_locations.items()}
        scan: Any = Tables(connection, lakes).scan(TableName(tuple(options.table.split("."))), as_of)
        if isinstance(scan, pa.Table):
            raise InvalidRequest(f"{options.table} is a system table: forebay sql prints it")
        scan = scan.narrowed(column_names(options.columns), conjunction(scan.schema, options.where))
        scan = scan if options.limit is None else scan.limited(options.limit)
        with scan.reader() as reader, Progress(f"exporting {options.table}:") as progress:
            rows = write(options.file, kind, scan.schema, progress.counted(reader))
    if options.file != "-":
        print(f"exported {rows:,} row{'' if rows == 1 else 's'} of {options.table} to {options.file}")
    return 0
