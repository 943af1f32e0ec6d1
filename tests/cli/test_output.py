"""Rows and progress as a terminal shows them."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest

from forebay.base.ambient import ManualClock
from forebay.cli.output import Progress, print_batches

BATCH = pa.record_batch({"n": [1, None], "text": ["a,b", "x\ny"], "raw": [b"\x01", None]})


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ("csv", ["n,text,raw", '1,"a,b",01', ',"x', 'y",']),
        ("json", ['{"n": 1, "text": "a,b", "raw": "01"}', '{"n": null, "text": "x\\ny", "raw": null}']),
        ("table", ["n  text  raw", "-  ----  ---", "1  a,b   01", "   x\\ny"]),
    ],
)
def test_formats(form, lines):
    out = io.StringIO()
    assert print_batches([BATCH], form, out) == 2
    assert out.getvalue().splitlines() == lines


def test_the_header_comes_once():
    out = io.StringIO()
    print_batches([BATCH, BATCH], "table", out)
    assert out.getvalue().count("----") == out.getvalue().splitlines()[1].count("----")


def test_long_cells_are_cut():
    out = io.StringIO()
    print_batches([pa.record_batch({"text": ["y" * 500]})], "table", out)
    assert max(map(len, out.getvalue().splitlines())) < 60


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_silent_at_first_then_shows_how_far_and_how_fast():
    clock, out = ManualClock(), Terminal()
    with Progress("scanning t:", total=100_000, out=out, clock=clock) as progress:
        clock.advance(1.0)
        progress.advance(10_000)
        assert out.getvalue() == ""
        clock.advance(3.0)
        progress.advance(10_000)
    assert "scanning t: 20,000 of 100,000 rows (20 %), 5,000 rows/s" in out.getvalue()
    assert out.getvalue().endswith("\r\033[K")


def test_progress_in_a_log_file_is_a_line_now_and_then():
    clock, out = ManualClock(), io.StringIO()
    with Progress("scanning t:", out=out, clock=clock) as progress:
        for _ in range(30):
            clock.advance(1.0)
            progress.advance(10)
    assert 2 <= len(out.getvalue().splitlines()) <= 3


def test_work_that_has_done_nothing_yet_says_for_how_long() -> None:
    out, clock = Terminal(), ManualClock()
    with Progress("compacting t:", out=out, clock=clock, unit="files") as progress:
        progress.at(0, 0)
        clock.advance(3)
        progress.at(0, 50)
        assert "compacting t: 0 of 50 files (0 %), 3 s so far" in out.getvalue()
        clock.advance(1)
        progress.at(20, 50)
        assert "compacting t: 20 of 50 files (40 %), 5 files/s" in out.getvalue()


@pytest.mark.parametrize(
    ("form", "printed"),
    [
        ("table", "<value out of range: 2147483647>  1970-01-01 00:00:00.000000001  1 months"),
        ("csv", "<value out of range: 2147483647>,1970-01-01 00:00:00.000000001,1 months"),
        ("json", '{"d": "<value out of range: 2147483647>", "n": "1970-01-01 00:00:00.000000001", "i": [1, 0, 0]}'),
    ],
)
def test_values_that_python_has_no_type_for_are_text(form: str, printed: str) -> None:
    batch = pa.record_batch(
        {
            "d": pa.array([2**31 - 1], pa.date32()),
            "n": pa.array([1], pa.timestamp("ns")),
            "i": pa.array([pa.MonthDayNano([1, 0, 0])]),
        }
    )
    out = io.StringIO()
    print_batches([batch], form, out)
    assert out.getvalue().splitlines()[-1] == printed
