"""The command line itself: help, and output to a closed pipe."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

from forebay.cli.main import COMMANDS, main
from forebay.cli.output import print_batches


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert "usage: forebay" in printed
    assert all(command in printed for command in COMMANDS)


def test_a_reader_that_has_seen_enough_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_options: object) -> int:
        raise BrokenPipeError

    errors = io.StringIO()
    monkeypatch.setattr("forebay.cli.doctor.run", full)
    monkeypatch.setattr("sys.stderr", errors)
    assert main(["doctor"]) == 0
    assert errors.closed, "Python would complain there of what it cannot flush"


def test_an_interrupted_command_tells_so_by_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("forebay.cli.doctor.run", interrupted)
    assert main(["doctor"]) == 130


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["tabels"], "tables"),
        (["tables", "--boostrap-servers", "x"], "--bootstrap-servers"),
        (["scan", "d.t", "--limti=3"], "--limit"),
        (["paimon", "scna"], "scan"),
        (["tables", "-o", "jsno"], "json"),
    ],
)
def test_a_misspelt_word_is_refused_with_what_was_meant(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert f"did you mean '{meant}'?" in capsys.readouterr().err


def ascii_output(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """Standard output that holds ASCII only."""
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    return written


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_fits_any_output(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = ascii_output(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: forebay {command}".encode() in written.getvalue()


@pytest.mark.parametrize(
    ("form", "code", "shown"),
    [("json", 0, rb'{"t": "\u4e2d\ud83d\ude00"}'), ("table", 0, rb"\u4e2d\ud83d\ude00"), ("csv", 1, b"t\n")],
)
def test_text_that_the_output_cannot_hold_is_escaped_or_refused(
    form: str, code: int, shown: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_options: object) -> int:
        print_batches([pa.record_batch({"t": ["中😀"]})], form)
        return 0

    written = ascii_output(monkeypatch)
    monkeypatch.setattr("forebay.cli.doctor.run", run)
    assert main(["doctor"]) == code
    assert shown in written.getvalue()
    if code:
        assert r"the encoding of the output, ascii, has no '\u4e2d'" in capsys.readouterr().err


def test_a_full_output_is_a_message_and_no_traceback() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "forebay", "config"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ended.returncode, ended.stderr) == (1, "forebay: No space left on device\n")


def test_input_that_is_no_text_is_a_message_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"SELECT '\xff'"), encoding="utf-8"))
    monkeypatch.setenv("FOREBAY_WAREHOUSE", "/nowhere")
    assert main(["sql"]) == 1
    assert "the input is not text in utf-8: see byte 9 of it" in capsys.readouterr().err


# ---- bytes that are no text, and streams that are closed or full ----------------------------------------------------

_SQL = ["sql", "--lake", "none=/nonexistent"]
_NOT_TEXT = b"x\xff"
_C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def _ended(
    words: list[Any], *, stdin: bytes = b"", environment: dict[str, str] | None = None, redirected: str = ""
) -> tuple[int, str, str]:
    """The exit code, output and errors of a command, whose streams the shell redirects."""
    command = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", "forebay", *words]
    ended = subprocess.run(
        command, input=stdin, capture_output=True, check=False, env={**os.environ, **(environment or {})}
    )
    return ended.returncode, ended.stdout.decode(), ended.stderr.decode()


@pytest.mark.parametrize(
    "words",
    [
        [*_SQL, b"SELECT '\xff'"],
        ["tables", "-b", _NOT_TEXT],
        ["describe", _NOT_TEXT],
        ["scan", "a.b", "--filter", b"a = '\xff'"],
        ["get", "a.b", b"id=\xff"],
        ["create", "a.b", b"id INT, \xff INT"],
        ["load", "a.b", b"/nonexistent/\xff.csv"],
        ["paimon", "describe", _NOT_TEXT],
        ["sql", "--lake", b"\xff=/nonexistent", "SELECT 1"],
        [_NOT_TEXT],
    ],
)
@pytest.mark.parametrize("environment", [{}, _C_LOCALE])
def test_arguments_that_are_not_utf_8_are_refused(words: list[Any], environment: dict[str, str]) -> None:
    code, _, errors = _ended(words, environment=environment)
    assert (code, errors.count("\n")) == (1, 1)
    assert errors.startswith("forebay: the argument ")
    assert "is not text in UTF-8" in errors


@pytest.mark.parametrize("environment", [{}, _C_LOCALE, {"PYTHONIOENCODING": "ascii:surrogateescape"}])
def test_statements_are_utf_8_in_any_locale(environment: dict[str, str]) -> None:
    for words, stdin in (
        ([*_SQL, "SELECT 'é' AS e", "-o", "json"], b""),
        ([*_SQL, "-o", "json"], "SELECT 'é' AS e;".encode()),
    ):
        code, output, errors = _ended(words, stdin=stdin, environment=environment)
        assert (code, json.loads(output), errors) == (0, {"e": "é"}, "")
    code, _, errors = _ended(_SQL, stdin=b"SELECT '\xff';", environment=environment)
    assert (code, errors) == (1, "forebay: the input is not text in utf-8: see byte 9 of it\n")


@pytest.mark.parametrize("words", [["--help"], ["--version"], [], ["sql", "--help"], ["config"], [*_SQL, "SELECT 1"]])
@pytest.mark.parametrize("environment", [{"PYTHONUNBUFFERED": "1"}, {"PYTHONUNBUFFERED": ""}])
def test_output_that_cannot_be_written_is_an_error(words: list[str], environment: dict[str, str]) -> None:
    for redirected, message in (
        (">/dev/full", "No space left on device"),
        (">&-", "standard output is closed: redirect it, for instance to /dev/null"),
    ):
        code, _, errors = _ended(words, environment=environment, redirected=redirected)
        assert (code, errors) == (1, f"forebay: {message}\n")


def test_a_closed_standard_input_has_no_statement() -> None:
    code, _, errors = _ended(_SQL, redirected="<&-")
    assert (code, errors.count("\n")) == (1, 1)
    assert "no statement was given, and standard input is closed" in errors
