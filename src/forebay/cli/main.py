"""The command `forebay`: finds the subcommand, runs it, and turns errors into user messages."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from forebay.base.allocator import give_back_when_idle
from forebay.base.errors import ForebayError
from forebay.cli.parsing import CommandParser
from forebay.cli.streams import check_words, escape_what_does_not_fit


class _Command(NamedTuple):
    """A subcommand: the module that implements it (`add_arguments`, `run`), and its line in the help."""

    module: str
    help: str


COMMANDS = {
    "quickstart": _Command(
        "forebay.cli.quickstart.job", "stream real data into a lake, query both, and verify the result"
    ),
    "server": _Command("forebay.cli.server", "run the server: live tables on the Apache Fluss protocol"),
    "console": _Command("forebay.cli.console", "show a server, its tables and lakes in the browser"),
    "tables": _Command("forebay.cli.browse", "list databases and tables"),
    "describe": _Command("forebay.cli.browse", "show a table's columns, keys, options and size"),
    "changes": _Command("forebay.cli.browse", "follow a table's log or changelog"),
    "get": _Command("forebay.cli.browse", "look rows up by primary key"),
    "scan": _Command("forebay.cli.browse", "read a whole table"),
    "sql": _Command("forebay.cli.sql", "run SQL over live tables and lakes, in DuckDB"),
    "flight": _Command("forebay.cli.flight", "serve SQL to ADBC, JDBC (DBeaver) and Superset by Arrow Flight SQL"),
    "create": _Command("forebay.cli.create", "create a table, from DDL or like a file"),
    "load": _Command("forebay.cli.load", "write the rows of files into a table"),
    "ingest": _Command("forebay.cli.ingest", "write the messages of a Kafka topic into a table, each once"),
    "export": _Command("forebay.cli.load", "write a table's rows to a file, as of one instant"),
    "history": _Command("forebay.cli.history", "show a key's changes in log and lake, and where its current row is"),
    "restore": _Command("forebay.cli.restore", "write a table's rows back as they were at a commit or time"),
    "explain": _Command("forebay.cli.browse", "show which lake files and log ranges a query reads, and why"),
    "status": _Command("forebay.cli.browse", "show a server's nodes, health and settings"),
    "transactions": _Command("forebay.cli.browse", "list open transactions and the last committed versions"),
    "tiering": _Command("forebay.cli.tiering", "move rows from streams into their lakes, on Spark"),
    "lag": _Command("forebay.cli.lag", "show how far lakes lag behind their streams, in records and seconds"),
    "spark-setup": _Command("forebay.cli.spark_setup", "write settings with which any Spark opens Forebay catalogs"),
    "move": _Command("forebay.cli.move", "move tables to another server or cluster, rows and lake history"),
    "kv-engine": _Command("forebay.cli.kv_engine", "move primary-key tables to another key-value engine"),
    "verify": _Command(
        "forebay.cli.verify", "verify stored data: logs, states and offsets, offline or while the server runs"
    ),
    "repair": _Command("forebay.cli.repair", "remove damaged parts of logs, and report what is lost"),
    "backup": _Command(
        "forebay.cli.backup", "back up a data directory, offline or while the server runs, and verify the copy"
    ),
    "convert-state": _Command("forebay.cli.convert_state", "convert states that earlier versions stored in RocksDB"),
    "restored": _Command("forebay.cli.restored", "record that a data directory was restored to an earlier state"),
    "takeover": _Command("forebay.cli.takeover", "have the server that writes to a store end, and a standby take over"),
    "bench": _Command("forebay.cli.bench", "measure this machine: append, upsert, lookup, scan"),
    "compact": _Command("forebay.cli.compact", "merge small files of Paimon tables, once or continuously"),
    "iceberg": _Command("forebay.cli.iceberg", "inspect, compact and clean Iceberg tables"),
    "paimon": _Command("forebay.cli.paimon", "read, compact and clean Apache Paimon tables"),
    "config": _Command("forebay.cli.config", "show the settings of this command line, and their origins"),
    "completion": _Command("forebay.cli.completion", "print the completion script of a shell"),
    "doctor": _Command("forebay.cli.doctor", "check this machine: Python, compiler, Java, Spark, disk"),
}

EXIT_USER_ERROR = 1
EXIT_INTERRUPTED = 130


def whole_parser() -> argparse.ArgumentParser:
    """The parser with all subcommands."""
    return _parser((), every=True)


def _parser(argv: Sequence[str], *, every: bool = False) -> CommandParser:
    """The parser. It only imports the requested subcommand, so that `forebay --help` is fast."""
    from forebay.base.version import __version__

    parser = CommandParser(
        prog="forebay",
        description="Forebay: live tables for Python and PySpark, on the Apache Fluss protocol.",
        epilog="Try `forebay quickstart`. `forebay COMMAND --help` explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"forebay {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    command_name = next((word for word in argv if not word.startswith("-")), None)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.help, description=command.help[0].upper() + command.help[1:] + ".")
        if every or name == command_name:
            module = importlib.import_module(command.module)
            module.add_arguments(sub, name)
            sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code (0 success, 1 error, 2 wrong usage, 130 interrupted)."""
    if sys.stdout is None:  # files that are opened would get its number, and what libraries print
        print("forebay: standard output is closed: redirect it, for instance to /dev/null", file=sys.stderr)
        return EXIT_USER_ERROR
    escape_what_does_not_fit(sys.stdout)
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()  # here, where a failure becomes a message
    except ForebayError as e:
        print(f"forebay: {e}", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed it
        sys.stderr.close()
        return 0
    except OSError as e:
        where = f"{e.filename}: " if e.filename is not None else ""
        print(f"forebay: {where}{e.strerror or e}", file=sys.stderr)
        _drop_output()
        return EXIT_USER_ERROR
    except UnicodeDecodeError as e:
        print(f"forebay: the input is not text in {e.encoding}: see byte {e.start + 1} of it", file=sys.stderr)
        return EXIT_USER_ERROR
    except UnicodeEncodeError as e:
        if "surrogates" in e.reason:
            print(f"forebay: {e.object!a} is not text in UTF-8", file=sys.stderr)
            return EXIT_USER_ERROR
        print(f"forebay: the output's encoding, {e.encoding}, has no {e.object[e.start]!a}", file=sys.stderr)
        return EXIT_USER_ERROR


def _run(arguments: Sequence[str]) -> int:
    check_words(arguments)
    parser = _parser(arguments)
    options = parser.parsed(arguments)
    run: Callable[[argparse.Namespace], int] | None = getattr(options, "run", None)
    if run is None:
        parser.print_help()
        return 0
    give_back_when_idle()
    return run(options)


def _drop_output() -> None:
    """Drop what standard output still holds if it cannot be written: Python would complain at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
