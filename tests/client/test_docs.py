"""The tables of docs/client/options.md and errors.md agree with the code. tests/docs runs the examples.

`python -m tests.client.test_docs` rewrites the tables.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forebay.base import errors
from forebay.client.settings import OPTIONS, Option

GUIDE = Path(__file__).parents[2] / "docs" / "client"


def _default(option: Option) -> str:
    value = option.default
    if value is None or value == "":
        return ""
    if option.name.endswith("acks"):
        return "all"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        if value == float("inf"):
            return "without limit"
        return f"{value * 1000:g} ms" if value < 1 else f"{value:g} s"
    if option.name.endswith(("-bytes", "-size", "-bucket")) and isinstance(value, int) and value >= 1 << 20:
        return f"{value >> 20}mb"
    return "without limit" if value == (1 << 31) - 1 else str(value)


def options_table() -> str:
    rows = [f"| `{o.name}` | {_default(o)} | {o.about} |" for o in OPTIONS.values() if o.parse is not None]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])


def ignored_options() -> str:
    return "\n".join(f"* `{option.name}`" for option in OPTIONS.values() if option.parse is None)


def errors_table() -> str:
    rows = []
    for kind in errors.ForebayError.__subclasses__():
        if kind.__module__ == errors.__name__:
            doc = " ".join((kind.__doc__ or "").split())
            rows.append(f"| `{kind.__name__}` | {doc} |")
    return "\n".join(["| class | what it means, and what to do |", "|---|---|", *rows])


TABLES = {
    "options": ("options.md", options_table),
    "ignored": ("options.md", ignored_options),
    "errors": ("errors.md", errors_table),
}
"""For each mark in a page: the page, and what stands between the mark and its end."""


def _part(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end -->)", re.DOTALL)


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_the_guide_are_those_of_the_code(name: str) -> None:
    page, make = TABLES[name]
    found = _part(name).search((GUIDE / page).read_text())
    assert found is not None
    assert found.group() == make() + "\n", "run `python -m tests.client.test_docs`"


if __name__ == "__main__":
    for part, (page, make) in TABLES.items():
        text = (GUIDE / page).read_text()
        (GUIDE / page).write_text(_part(part).sub(lambda _, make=make: make() + "\n", text, count=1))  # type: ignore[misc]
