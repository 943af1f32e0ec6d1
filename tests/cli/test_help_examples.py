"""The command line accepts the commands that the help and the quickstart show."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from forebay.cli.main import COMMANDS, _parser
from forebay.cli.quickstart.job import _say_how_to_go_on

_WORD = r"""(?![#>])(?:"[^"]*"|'[^']*'|[^\s"'])+"""
_COMMAND = re.compile(
    rf"^(?:[ ]*|\$ |[ ]*Terminal[ ]+)forebay ({_WORD}(?:(?: | ?\\?\n[ ]+(?=-)){_WORD})*)", re.MULTILINE
)


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each command `forebay ...` in a text. What it does is said behind two spaces or a '#'."""
    for found in _COMMAND.finditer(text):
        yield shlex.split(found[1])


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for inner in action.choices.values():
                yield from _parsers(inner)


def _assert_accepted(words: list[str]) -> None:
    try:
        _parser(words).parse_args(words)
    except SystemExit:
        pytest.fail(f"refused: forebay {shlex.join(words)}")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_in_the_help_of_a_command_are_accepted(name: str) -> None:
    command = _parser([name])._subparsers._group_actions[0].choices[name]  # type: ignore[union-attr,index,call-overload]
    for parser in _parsers(command):
        for words in _commands(parser.epilog or ""):
            _assert_accepted(words)


def test_the_commands_that_the_quickstart_ends_with_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    lake = SimpleNamespace(settings={"datalake.format": "iceberg"})
    options = argparse.Namespace(serve=False, bootstrap_servers=None, data_dir="quickstart-data")
    _say_how_to_go_on("127.0.0.1:9123", lake, options)  # type: ignore[arg-type]
    printed = capsys.readouterr().out
    commands = list(_commands(printed))
    assert [words[0] for words in commands] == ["server", "scan", "tiering"]
    for words in commands:
        _assert_accepted(words)
