"""The programs of docs/tiering.md run as they stand, and print what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from forebay.cli.tiering import _EPILOG
from tests.tiering.running import LakeCluster

PAGE = (Path(__file__).parents[2] / "docs" / "tiering.md").read_text(encoding="utf-8")


def test_the_programs_print_what_the_page_says(paimon_lake: LakeCluster) -> None:
    programs = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        for program in programs:
            here = program.replace("127.0.0.1:9123", paimon_lake.server.bootstrap_servers)
            exec(compile(here, "docs/tiering.md", "exec"), names)
    names["conn"].close()
    said = re.search(r"The program prints `(.*?)` and `(.*?)`\.", PAGE)
    assert said is not None
    assert out.getvalue().splitlines() == [said[1], said[2]]


def test_the_options_that_the_page_names_are_those_of_the_command() -> None:
    from forebay.cli.main import _parser

    parser = _parser(["tiering"])
    commands = next(action for action in parser._actions if action.choices)
    known = commands.choices["tiering"].format_help()  # type: ignore[index, call-overload, union-attr]
    named = set(re.findall(r"(--[a-z][a-z-]+)", PAGE + _EPILOG)) - {"--data-dir"}
    assert named
    assert {option for option in named if option not in known} == set()
