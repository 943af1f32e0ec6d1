"""Rows and progress on a terminal."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, TextIO

import pyarrow as pa

from forebay.base.ambient import SYSTEM_CLOCK, Clock

FORMATS = ("table", "csv", "json")
_CELL_CHARACTERS_MAX = 48
_NUMBERS_ALIGN_RIGHT = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


def print_batches(batches: Iterable[pa.RecordBatch], form: str, out: TextIO | None = None) -> int:
    """Print rows as they arrive, in one of `FORMATS` ("json" is one object per line); return their number."""
    printer = _PRINTERS[form](out or sys.stdout)
    rows = 0
    for batch in batches:
        printer(batch)
        rows += batch.num_rows
    return rows


def text_table(header: list[str], rows: list[list[str]], right: set[int] = frozenset()) -> Iterator[str]:  # type: ignore[assignment]
    """The lines of a table; columns whose index is in `right` are right-aligned."""
    widths = [max([len(header[i]), *(len(row[i]) for row in rows)]) for i in range(len(header))]

    def line(cells: list[str]) -> str:
        return "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()

    yield line(header)
    yield "  ".join("-" * width for width in widths)
    for row in rows:
        yield line(row)


def _table_printer(out: TextIO) -> Callable[[pa.RecordBatch], None]:
    """A printer of tables whose columns are as wide as the first rows need; the header is printed once."""
    first = True

    def show(batch: pa.RecordBatch) -> None:
        nonlocal first
        names = batch.schema.names
        rows = [[_cell(row[name]) for name in names] for row in batch.to_pylist()]
        right = {i for i, f in enumerate(batch.schema) if any(test(f.type) for test in _NUMBERS_ALIGN_RIGHT)}
        lines = list(text_table(names, rows, right))
        out.write("\n".join(lines if first else lines[2:]) + "\n")
        out.flush()
        first = False

    return show


def _cell(value: Any) -> str:
    text = str(_text(value)).replace("\n", "\\n")
    return text if len(text) <= _CELL_CHARACTERS_MAX else text[: _CELL_CHARACTERS_MAX - 1] + "…"


def _csv_printer(out: TextIO) -> Callable[[pa.RecordBatch], None]:
    writer: Any = None

    def show(batch: pa.RecordBatch) -> None:
        nonlocal writer
        if writer is None:
            writer = csv.DictWriter(out, batch.schema.names, lineterminator="\n")
            writer.writeheader()
        writer.writerows({name: _text(value) for name, value in row.items()} for row in batch.to_pylist())
        out.flush()

    return show


def _json_printer(out: TextIO) -> Callable[[pa.RecordBatch], None]:
    def show(batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            out.write(json.dumps(row, default=_plain, ensure_ascii=False) + "\n")
        out.flush()

    return show


def _text(value: Any) -> Any:
    """A value for a cell: bytes as hexadecimal, nested values as JSON, nulls as empty text."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.hex()
    return json.dumps(value, default=_plain, ensure_ascii=False) if isinstance(value, list | dict) else value


def _plain(value: Any) -> str:
    """A value that JSON does not support: bytes as hexadecimal, times and decimals as text."""
    return value.hex() if isinstance(value, bytes) else str(value)


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
        self._began = self._shown = clock.monotonic()
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
        if now - self._began > _SILENT_SECONDS and now - self._shown > (_REDRAW_SECONDS if terminal else 10.0):
            self._shown = now
            self._visible = True
            self._out.write(f"\r{self.line(now)}\033[K" if terminal else self.line(now) + "\n")
            self._out.flush()

    def line(self, now: float) -> str:
        """The progress line: `scanning 1,200,000 of 2,000,000 rows (60 %), 850,000 rows/s`."""
        rate = self._done / max(now - self._began, 1e-9)
        of = (
            f" of {self._total:,} {self._unit} ({100 * self._done // self._total} %)"
            if self._total
            else f" {self._unit}"
        )
        if not self._done:
            return f"{self._what} 0{of}, {now - self._began:.0f} s so far"
        return f"{self._what} {self._done:,}{of}, {rate:,.0f} {self._unit}/s"

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
