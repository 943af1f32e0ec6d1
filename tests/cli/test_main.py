"""The command line itself: help, and output to a closed pipe."""

from __future__ import annotations

import io

import pytest

from forebay.cli.main import COMMANDS, main


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
