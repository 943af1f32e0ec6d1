"""`forebay sql`: statements over live tables and lakes, from the command line, a file, or a prompt."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from forebay.base.errors import ForebayError, InvalidRequest
from forebay.cli.connecting import add_place_arguments, place_of
from forebay.cli.output import Progress, output_argument, print_batches
from forebay.cli.streams import in_utf8
from forebay.client.connection import Connection

_EPILOG = """Tables are database.table of the server, and lake.database.table of the warehouse (docs/sql.md).

examples:
  forebay sql "SELECT item, sum(amount) FROM sales.orders GROUP BY item"
  forebay sql -w /lake "SELECT * FROM sales.orders JOIN lake.sales.items USING (item)" -o csv
  forebay sql -w /lake "SHOW TABLES"
  cat report.sql | forebay sql                # statements that end with a semicolon
  forebay sql                                 # a prompt; \\? lists its commands

Exit codes: 0 done, 1 a statement failed (the message says why), 2 wrong usage, 130 interrupted."""

_HELP = """a statement ends with a semicolon, and may have several lines
\\d           list the tables
\\d TABLE     columns of a table
\\o FORMAT    print results as table, json or csv
\\q           leave, as Ctrl-D does"""


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay sql`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("statement", nargs="?", help="one statement; without it they are read from standard input")
    parser.add_argument("-n", "--limit", type=int, metavar="N", help="print at most N rows of each result")
    add_place_arguments(parser)
    output_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Run one statement, those of standard input, or a prompt on a terminal; return the exit code."""
    from forebay.query.run import imported_duckdb

    duckdb = imported_duckdb()
    with place_of(options) as (connection, lakes):
        session = _Session(connection, lakes, options.output, options.limit)
        if options.statement is not None:
            session.run(in_utf8(options.statement, sys.getfilesystemencoding()))
            return 0
        if sys.stdin is None:
            raise InvalidRequest("no statement was given, and standard input is closed: write forebay sql 'SELECT ...'")
        if sys.stdin.isatty():
            return _prompt(session)
        text = in_utf8(sys.stdin.read(), sys.stdin.encoding)
        text = text.removeprefix("\ufeff")  # as editors of Windows begin a file
        try:
            statements = [each.query for each in duckdb.connect().extract_statements(text)]
        except duckdb.Error as e:
            raise InvalidRequest(f"not SQL: {e}") from e
        for statement in statements:
            session.run(statement)
        return 0


class _Session:
    """Where statements run, and how their results are printed."""

    def __init__(self, connection: Connection | None, lakes: dict[str, Any], output: str, limit: int | None) -> None:
        self._connection, self._lakes, self._limit = connection, lakes, limit
        self.output = output

    def run(self, statement: str) -> None:
        """Run a statement and print its rows as they come."""
        import forebay

        with (
            forebay.sql(statement, self._connection, lakes=self._lakes) as result,
            Progress("reading:") as progress,
        ):
            batches = progress.counted(_limited(result, self._limit))
            if self.output == "table" and result.columns == ["explain_key", "explain_value"]:
                for batch in batches:
                    print("\n".join(batch.column(1).to_pylist()))
                return
            rows = print_batches(batches, self.output, schema=result.schema)
        if self.output == "table":
            print(f"({rows:,} row{'' if rows == 1 else 's'})")


def _limited(batches: Any, limit: int | None) -> Iterator[Any]:
    remaining = limit
    for batch in batches if remaining != 0 else ():
        yield batch if remaining is None else batch.slice(0, remaining)
        if remaining is not None:
            remaining -= batch.num_rows
            if remaining <= 0:
                return


def _prompt(session: _Session, out: TextIO | None = None) -> int:
    """Read statements from a terminal until its end. A statement that fails does not end it."""
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives `input` a history and editing keys
    print(r"forebay sql: end statements with a semicolon; \? for help, \q to leave", file=out)
    lines: list[str] = []
    while True:
        try:
            line = input("     ... " if lines else "forebay> ")
        except EOFError:
            print(file=out)
            return 0
        except KeyboardInterrupt:
            lines.clear()
            print(file=out)
            continue
        if not lines and line.strip().startswith("\\"):
            if line.strip() in (r"\q", r"\quit"):
                return 0
            _try(session, _command(session, line.strip()))
            continue
        if not lines and not line.strip():
            continue
        lines.append(line)
        if line.rstrip().endswith(";"):
            statement = "\n".join(lines)
            lines.clear()
            _try(session, statement)


def _command(session: _Session, line: str) -> str | None:
    """The statement that a command means; None for one that is done."""
    command, _, argument = line.partition(" ")
    argument = argument.strip().removesuffix(";")
    if command == r"\d":
        return f"DESCRIBE {argument}" if argument else "SHOW TABLES"
    if command == r"\o" and argument in ("table", "json", "csv"):
        session.output = argument
    else:
        print(_HELP)
    return None


def _try(session: _Session, statement: str | None) -> None:
    if statement is None:
        return
    try:
        session.run(statement)
    except ForebayError as e:
        print(f"forebay: {e}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
