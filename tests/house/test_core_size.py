"""The count of the core's lines."""

from __future__ import annotations

from collections.abc import Iterator

from tools import core_size

MODULE = '''"""A module.

Two lines of it.
"""

import os  # code


def name() -> str:
    """A docstring."""
    # a comment
    return """text
of two lines"""
'''


def files() -> Iterator[tuple[str, str]]:
    """Two packages."""
    yield "api/scan.py", MODULE
    yield "api/_fast.pyx", "# a comment\n\ncdef int one\n"
    yield "dbt.py", "X = 1\n"


def test_docstrings_comments_and_blank_lines_are_not_code() -> None:
    assert core_size.lines_of_code("scan.py", MODULE) == 4


def test_lines_are_counted_by_package() -> None:
    lines, code = core_size.count(files())
    assert dict(lines) == {"api": 16, "dbt": 1}
    assert dict(code) == {"api": 5, "dbt": 1}


def test_satellites_are_those_of_the_import_contract() -> None:
    around = core_size.satellites()
    assert {"console", "dbt"} <= around
    assert "server" not in around


def test_generated_code_is_not_counted() -> None:
    assert not core_size.is_counted("fluss_pb2.py")
    assert core_size.is_counted("tablet.py")
    assert not core_size.is_counted("logo.svg")
