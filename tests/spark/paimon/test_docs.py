"""The SQL of docs/spark-lake.md, its part about tables, runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from forebay.paimon import Catalog

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PAGE = (Path(__file__).parents[3] / "docs" / "spark-lake.md").read_text(encoding="utf-8")
SECTIONS = ("Create tables", "Inspect tables", "Alter tables", "Old versions, tags, branches", "System tables")


def statements(section: str) -> list[str]:
    """The SQL statements of a section."""
    text = re.split(r"^## ", PAGE.partition(f"\n## {section}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    blocks = re.findall(r"^```sql\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [statement.strip() for block in blocks for statement in block.split(";\n") if statement.strip()]


def test_the_sql_of_the_page_runs_as_it_stands(lake_session: Any, lake_catalog: Catalog) -> None:
    lake_catalog.create_database("sales")
    answers = {}
    try:
        for section in SECTIONS:
            assert statements(section), section
            for statement in statements(section):
                answers[statement] = [tuple(row) for row in lake_session.sql(statement).collect()]
        for statement in [*statements("Read"), *statements("Maintenance")]:
            lake_session.sql(statement).collect()
    finally:
        lake_catalog.drop_database("sales", cascade=True)
    (ordered,) = [rows for statement, rows in answers.items() if statement.endswith("ORDER BY id")]
    assert [(row[0], row[1], str(row[2])) for row in ordered] == [(1, "eve", "0.00"), (2, "bob", "3.20")]
    assert list(answers.values())[-1] == [("-U", 1, "ada"), ("+U", 1, "eve")]
