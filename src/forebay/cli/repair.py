"""`forebay repair`: go on without what is damaged in the logs of a stopped server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from forebay.base.errors import ForebayError
from forebay.cli.output import output_argument, print_rows
from forebay.cli.verify import StepLine
from forebay.verify import BucketRepair, repair_directory

_EPILOG = """examples:
  forebay repair --data-dir data/                                  # says what would be lost; nothing is changed
  forebay repair --data-dir data/ --accept-loss                    # goes on without it
  forebay repair --data-dir data/ --accept-loss --table sales.orders

A backup is better: restore it if you have one. Exit code: 0 nothing is damaged, or all is repaired; 1 something would
be lost, and nothing was changed; 2 nothing could be repaired."""

_LOSS, _NOT_REPAIRED = 1, 2


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay repair`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "--data-dir", required=True, metavar="DIR", help="repair this data directory, which no server may be using"
    )
    parser.add_argument(
        "--accept-loss", action="store_true", help="repair; without this option, only report what would be lost"
    )
    parser.add_argument(
        "--table", action="append", default=[], metavar="DATABASE.TABLE", help="only the logs of this table"
    )
    parser.add_argument(
        "--scratch", metavar="DIR", help="folder for copies and folds, as large as the largest state (default: $TMPDIR)"
    )
    output_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Print what is lost in each bucket; return the exit code."""
    try:
        with StepLine() as steps:
            repairs = repair_directory(
                options.data_dir,
                accept_loss=options.accept_loss,
                tables=options.table,
                scratch=options.scratch,
                on_step=steps,
            )
    except (OSError, ForebayError) as e:
        print(f"forebay: not repaired: {e}", file=sys.stderr)
        return _NOT_REPAIRED
    if options.output != "table":
        print_rows(
            ["table", "bucket", "first_offset", "end_offset", "outcome", "reason"], _rows(repairs), options.output
        )
    else:
        for line in _lines(repairs):
            print(line)
    return _LOSS if repairs and not options.accept_loss else 0


def _outcome(repair: BucketRepair, start: int, is_mended: bool) -> str:
    if is_mended:
        return "mended"
    return "history lost" if start < repair.restored_up_to else "lost"


def _rows(repairs: list[BucketRepair]) -> list[tuple[object, ...]]:
    return [
        (
            str(repair.table), str(repair.bucket), loss.offsets.start, loss.offsets.stop,
            _outcome(repair, loss.offsets.start, loss.is_mended), loss.reason,
        )
        for repair in repairs
        for loss in repair.losses
    ]  # fmt: skip


def _lines(repairs: list[BucketRepair]) -> Iterator[str]:
    if not repairs:
        yield "no log is damaged in what was acknowledged: nothing to repair"
    for repair in repairs:
        yield f"table {repair.table}, bucket {repair.bucket}:"
        for loss in repair.losses:
            yield f"  {loss.reason}"
            yield f"    {_loss_text(repair, loss.offsets, loss.is_mended)}"
        if repair.restored_rows:
            yield f"  {repair.restored_rows:,} rows are restored from the key-value state:"
            yield from (f"    {key}" for key in repair.restored_keys)
            if repair.restored_rows > len(repair.restored_keys):
                yield f"    and {repair.restored_rows - len(repair.restored_keys):,} more"
    if repairs and all(repair.is_done for repair in repairs):
        yield "repaired; the damaged bytes are kept in files *.damaged beside the logs"
    elif repairs:
        yield "nothing was changed. Restore a backup, or repeat this with --accept-loss"


def _loss_text(repair: BucketRepair, offsets: range, is_mended: bool) -> str:
    if is_mended:
        return f"offsets {offsets.start} to {offsets.stop - 1}: nothing is lost, a field of the header is corrected"
    if not offsets:
        return f"what follows offset {offsets.start} is lost; the amount is unknown"
    noun = "offset" if len(offsets) == 1 else "offsets"
    place = f"{noun} {offsets.start}" + (f" to {offsets.stop - 1}" if len(offsets) > 1 else "")
    if offsets.stop <= repair.restored_up_to:
        return f"{place}: the history of these changes is lost, their rows are not"
    return f"{place}: lost"
