"""The parser of the command line: `argparse`, with suggestions for commands, options and choices that do not exist."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from forebay.base.arguments import did_you_mean


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors suggest what was probably meant. Parsers of subcommands are of this class, too."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as e:
            e.message += did_you_mean(str(value), map(str, action.choices or ()))
            raise

    def parsed(self, words: Sequence[str]) -> argparse.Namespace:
        """The options. Ends the process with code 2 for wrong ones, with suggestions."""
        options, unknown = self.parse_known_args(words)
        if unknown:
            self._refuse(unknown)
        return options

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        known = sorted({name for parser in self._parsers() for name in parser._option_string_actions})
        hints = (did_you_mean(word.partition("=")[0], known) for word in unknown if word.startswith("--"))
        self.error(f"unrecognized arguments: {' '.join(unknown)}{''.join(hints)}")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help, versions and errors. Raises `OSError`, which argparse drops as if all were printed."""
        (file or sys.stderr).write(message)

    def _parsers(self) -> Iterator[CommandParser]:
        yield self
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    yield from parser._parsers()
