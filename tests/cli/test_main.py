"""The command line itself: help, and output to a closed pipe."""

from __future__ import annotations

import io
import subprocess
import sys

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
