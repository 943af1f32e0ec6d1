"""Rows and progress on a terminal."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TextIO

import pyarrow as pa

from forebay.api.text_table import as_text, plain, row_lines, text_table, values_of
from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.quantity import format_bytes
from forebay.cli.settings import setting
from forebay.cli.streams import exact

__all__ = ["FORMATS", "Progress", "output_argument", "print_batches", "print_object", "print_rows", "text_table"]

FORMATS = ("table", "csv", "json")


def output_argument(parser: argparse.ArgumentParser) -> None:
    """Add `-o table|json|csv`, and `-f` and `--format`, which said the same before."""
    parser.add_argument(
        "-o", "--output", choices=FORMATS, default=setting("output"),
        help="how to print the result; json: one object per line (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-f", "--format", dest="output", choices=FORMATS, default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )


def print_rows(
    names: Sequence[str],
    rows: Iterable[Sequence[Any]],
    form: str,
    *,
    empty: str = "",
    plain_numbers: Sequence[str] = (),
) -> None:
    """Print rows of Python values in one of `FORMATS`; `empty` in place of a table without rows.

    In a table numbers are grouped by thousands, except in the columns `plain_numbers`.
    """
    rows = list(rows)
    if form == "json":
        for row in rows:
            print(json.dumps(dict(zip(names, row, strict=True)), default=plain, ensure_ascii=False), flush=True)
    elif form == "csv":
        for row in [names, *rows]:
            print(exact(",".join(map(_csv_field, row)), sys.stdout), flush=True)
    elif not rows and empty:
        print(empty)
    else:
        right = {i for i, name in enumerate(names) if any(_is_number(row[i]) for row in rows)}
        grouped = [[_in_table(value, names[i] in plain_numbers) for i, value in enumerate(row)] for row in rows]
        print("\n".join(text_table(names, grouped, right)))


def print_object(value: Mapping[str, Any]) -> None:
    """Print one JSON object in a line."""
    print(json.dumps(value, default=plain, ensure_ascii=False), flush=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _in_table(value: Any, is_plain: bool) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    if _is_number(value) and not is_plain:
        return f"{value:,}"
    return str(as_text(value))


def print_batches(
    batches: Iterable[pa.RecordBatch], form: str, out: TextIO | None = None, *, schema: pa.Schema | None = None
) -> int:
    """Print rows as they arrive, in one of `FORMATS` ("json" is one object per line); return their number.

    `schema` is that of the rows, for the header of a result without rows.
    """
    printer = _PRINTERS[form](out or sys.stdout)
    rows, begun = 0, False
    for batch in batches:
        printer(batch)
        rows, begun = rows + batch.num_rows, True
    if not begun and schema is not None:
        printer(pa.RecordBatch.from_pylist([], schema))
    return rows


def _table_printer(out: TextIO) -> Callable[[pa.RecordBatch], None]:
    """A printer of tables whose columns are as wide as the first rows need; the header is printed once."""
    first = True

    def show(batch: pa.RecordBatch) -> None:
        nonlocal first
        lines = row_lines(batch)
        out.write("\n".join(lines if first else lines[2:]) + "\n")
        out.flush()
        first = False

    return show


def _csv_printer(out: TextIO) -> Callable[[pa.RecordBatch], None]:
    begun = False

    def show(batch: pa.RecordBatch) -> None:
        nonlocal begun
        if not begun:
            out.write(exact(",".join(map(_csv_field, batch.schema.names)) + "\n", out))
        begun = True
        columns = [values_of(column) for column in batch.columns]
        out.writelines(exact(",".join(map(_csv_field, row)) + "\n", out) for row in zip(*columns))
        out.flush()

    return show


def _csv_field(value: Any) -> str:
    """A value in CSV. An empty text is quoted, which tells it from a null."""
    if value is None:
        return ""
    text = str(as_text(value))
    return '"' + text.replace('"', '""') + '"' if not text or any(mark in text for mark in ',"\r\n') else text


def _json_printer(out: TextIO) -> Callable[[pa.RecordBatch], None]:
    def show(batch: pa.RecordBatch) -> None:
        names, columns = batch.schema.names, [values_of(column) for column in batch.columns]
        for values in zip(*columns) if columns else [()] * batch.num_rows:
            row = dict(zip(names, values, strict=True))
            out.write(json.dumps(row, default=plain, ensure_ascii=False) + "\n")
        out.flush()

    return show


_PRINTERS = {"table": _table_printer, "csv": _csv_printer, "json": _json_printer}


class Progress:
    """A progress line on standard error for long operations: amount and speed. Silent for the first two seconds.

    On a terminal the line is rewritten in place; elsewhere (a log file) a line is added every ten seconds. `unit` is
    the unit of the count.
    """

    def __init__(
        self,
        what: str,
        total: int | None = None,
        out: TextIO | None = None,
        clock: Clock = SYSTEM_CLOCK,
        unit: str = "rows",
    ):
        self._what, self._unit = what, unit
        self._total = total
        self._out = out or sys.stderr
        self._clock = clock
        self._began = self._drawn_at = clock.monotonic()
        self._done = 0
        self._visible = False

    def advance(self, count: int) -> None:
        """Add `count` to the amount done."""
        self.at(self._done + count, self._total or 0)

    def at(self, done: int, total: int) -> None:
        """Set the amount done, of `total` (0: unknown); a `forebay.base.progress.OnProgress`."""
        self._done, self._total = done, total or None
        now = self._clock.monotonic()
        terminal = self._out.isatty()
        if now - self._began > _SILENT_SECONDS and now - self._drawn_at > (_REDRAW_SECONDS if terminal else 10.0):
            self._drawn_at = now
            self._visible = True
            self._out.write(f"\r{self.line(now)}\033[K" if terminal else self.line(now) + "\n")
            self._out.flush()

    def line(self, now: float) -> str:
        """The progress line: `scanning 1,200,000 of 2,000,000 rows (60 %), 850,000 rows/s`."""
        rate = self._done / max(now - self._began, 1e-9)
        done = self._amount(self._done)
        if self._total:
            done = f"{done.removesuffix(' ' + self._unit)} of {self._amount(self._total)} "
            done += f"({100 * self._done // self._total} %)"
        if not self._done:
            return f"{self._what} {done}, {now - self._began:.0f} s so far"
        return f"{self._what} {done}, {self._amount(round(rate))}/s"

    def _amount(self, count: int) -> str:
        return format_bytes(count) if self._unit == "bytes" else f"{count:,} {self._unit}"

    def counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches, counted as they pass."""
        for batch in batches:
            yield batch
            self.advance(batch.num_rows)

    def close(self) -> None:
        if self._visible and self._out.isatty():
            self._out.write("\r\033[K")
            self._out.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_SILENT_SECONDS = 2.0
_REDRAW_SECONDS = 0.1
