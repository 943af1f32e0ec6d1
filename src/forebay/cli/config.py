"""`forebay config`: the settings of the command line, and where they come from."""

from __future__ import annotations

import argparse
from typing import Any

from forebay.cli.output import output_argument, print_rows
from forebay.cli.settings import SETTINGS, TABLES, files, settings


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay config`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    definitions = "\n".join(
        [f"  {name}: {definition.about} (${definition.variables[0]})" for name, definition in SETTINGS.items()]
        + [f"  [{name}]: {about}" for name, about in TABLES.items()]
    )
    places = "\n".join(f"  {path}" for path in files())
    parser.epilog = (
        f"settings:\n{definitions}\n\nread from, the later before the earlier:\n{places}\n  the environment\n  "
        "options of commands\n\nexample:\n  forebay config -o json"
    )
    output_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Print each setting, its value, and where that comes from. Values of tables, which may be secrets, are hidden."""
    rows = list[tuple[str, Any, str]]()
    for name, setting in settings().items():
        if name == "lake-options":
            rows += [(f"{name}.{key}", "...", setting.origin) for key in setting.value]
        elif name in TABLES:
            rows += [
                (f"{name}.{key}", value if isinstance(value, str) else "...", setting.origin)
                for key, value in setting.value.items()
            ]
        else:
            rows.append((name, setting.value, setting.origin))
    print_rows(["setting", "value", "from"], rows, options.output)
    return 0
