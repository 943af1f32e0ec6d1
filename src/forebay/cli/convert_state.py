"""`forebay convert-state`: convert key-value states that earlier versions kept in RocksDB."""

from __future__ import annotations

import argparse

from forebay.cli.output import output_argument, print_rows
from forebay.cli.verify import StepLine
from forebay.verify import ConvertedState, convert_states

_EPILOG = """The server opens states of the engines hlog and lmdb. The command replaces the files of states that RocksDB
has written, at the same position of their changelogs. It needs the package rocksdict (pip install rocksdict) and, for a
while, the space of the largest state. An interrupted run can be repeated: converted states stay unchanged.

examples:
  forebay convert-state --data-dir data/                  # to the engine that a new table would get
  forebay convert-state --data-dir data/ --engine lmdb

Exit codes: 0 all states are converted, 1 refused or failed, 2 wrong usage, 130 interrupted."""


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay convert-state`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "--data-dir", required=True, metavar="DIR", help="convert this data directory, which no server may be using"
    )
    parser.add_argument(
        "--engine", choices=["auto", "hlog", "lmdb"], default="auto", help="engine of tables whose options name none"
    )
    output_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Convert all states of a data directory, and print each; return the exit code."""
    with StepLine() as steps:
        converted = convert_states(options.data_dir, engine=options.engine, on_step=steps)
    if options.output != "table":
        rows = [(str(state.table), str(state.bucket), state.engine, state.is_rebuilt) for state in converted]
        print_rows(["table", "bucket", "engine", "is_rebuilt"], rows, options.output)
        return 0
    for state in converted:
        print(f"table {state.table}, bucket {state.bucket}: {_outcome(state)}")
    print(f"{len(converted)} states were converted")
    return 0


def _outcome(state: ConvertedState) -> str:
    if state.is_rebuilt:
        return "its files were not trusted; the server rebuilds the state from a checkpoint and the changelog"
    return f"converted to '{state.engine}'"
