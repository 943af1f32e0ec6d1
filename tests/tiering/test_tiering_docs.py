"""docs/tiering.md names the options of the command. tests/docs runs its programs."""

from __future__ import annotations

import re
from pathlib import Path

from forebay.cli.tiering import _EPILOG

PAGE = (Path(__file__).parents[2] / "docs" / "tiering.md").read_text(encoding="utf-8")


def test_the_options_that_the_page_names_are_those_of_the_command() -> None:
    from forebay.cli.main import _parser

    parser = _parser(["tiering"])
    commands = next(action for action in parser._actions if action.choices)
    known = commands.choices["tiering"].format_help()  # type: ignore[index, call-overload, union-attr]
    named = set(re.findall(r"(--[a-z][a-z-]+)", PAGE + _EPILOG)) - {"--data-dir"}
    assert named
    assert {option for option in named if option not in known} == set()
