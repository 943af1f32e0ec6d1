"""What the dialect can do, in the terms of SQLAlchemy's suite: `support.toml`, and the suite's own defaults."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

SUPPORT: dict[str, Any] = tomllib.loads(Path(__file__).with_name("support.toml").read_text(encoding="utf-8"))


class Requirements(SuiteRequirements):
    """What the dialect can do."""

    def get_order_by_collation(self, config: Any) -> str:
        """The name of a collation."""
        return "NOCASE"


def _set(name: str, requirement: Any) -> None:
    assert hasattr(SuiteRequirements, name), f"the suite has no requirement {name}"
    setattr(Requirements, name, property(lambda self: requirement))


for _name in SUPPORT["open"]:
    _set(_name, exclusions.open())
for _reason, _names in SUPPORT["closed"].items():
    for _name in _names:
        _set(_name, exclusions.skip_if(exclusions.BooleanPredicate(True, _reason)))
