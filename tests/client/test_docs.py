"""The tables of docs/client.md agree with the code. tests/docs runs its examples.

`python -m tests.client.test_docs` rewrites the tables.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forebay.base import errors
from forebay.client.settings import OPTIONS, Option

DOCUMENT = Path(__file__).parents[2] / "docs" / "client.md"


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


TABLES = {"options": options_table, "ignored": ignored_options, "errors": errors_table}


def _part(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end -->)", re.DOTALL)


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_the_guide_are_those_of_the_code(name: str) -> None:
    found = _part(name).search(DOCUMENT.read_text())
    assert found is not None
    assert found.group() == TABLES[name]() + "\n", "run `python -m tests.client.test_docs`"


if __name__ == "__main__":
    page = DOCUMENT.read_text()
    for part, make in TABLES.items():
        page = _part(part).sub(lambda _, make=make: make() + "\n", page, count=1)  # type: ignore[misc]
    DOCUMENT.write_text(page)
