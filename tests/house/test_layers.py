"""The documents name the packages that there are, in the order of the import contract."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "forebay"
PACKAGES = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
MODULES = {path.stem for path in SOURCE.glob("*.py") if path.stem not in ("__init__", "__main__")}


def layers() -> list[set[str]]:
    """The layers of the contract in pyproject.toml, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (down,) = (contract for contract in contracts if contract["type"] == "layers" and "containers" not in contract)
    return [{name.strip().removeprefix("forebay.") for name in layer.split("|")} for layer in down["layers"]]


def test_each_package_and_module_has_a_layer() -> None:
    assert set().union(*layers()) == PACKAGES | MODULES


def test_contributing_has_the_layers_of_the_contract() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things are")[2]
    shown = section.split("```")[1].strip().splitlines()
    assert [{name.strip() for name in line.split("|")} for line in shown] == layers()


def test_the_architecture_has_a_row_for_each_package_and_module() -> None:
    section = (ROOT / "docs" / "architecture.md").read_text().partition("\n## Packages\n")[2].partition("\n## ")[0]
    firsts = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = [name for first in firsts for name in re.findall(r"`forebay[./](\w+)(?:\.py)?`", first)]
    assert sorted(named) == sorted(PACKAGES | MODULES)


def test_the_architecture_has_a_row_for_each_room_of_the_largest_packages() -> None:
    section = (ROOT / "docs" / "architecture.md").read_text().partition("\n## Rooms\n")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `([\w/]+)`", section, re.MULTILINE)
    packages = ("client", "codec", "kv", "paimon", "server", "spark")
    rooms = [path.parent for package in packages for path in (SOURCE / package).glob("*/__init__.py")]
    assert sorted(named) == sorted(str(room.relative_to(SOURCE)) for room in rooms)
