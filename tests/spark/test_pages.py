"""Every block of README.md and docs runs verbatim, in order, and a second time; here the pages with Spark.

`make test` types the first of them once, `make nightly` all of them twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import typed
from tests.docs.spark_pages import WITH_SPARK
from tests.every_run import every_run
from tests.spark.releases import needs

pytestmark = [pytest.mark.spark, needs(4, 3, "all that the pages show")]

PRINTED = {
    "README.md": [
        "[{'id': 2, 'item': 'tin', 'amount': 2.5}]\n",
        "'_change_type': 'delete'",
        "| cup|        7.0|\n",
        "[{'item': 'tea', 'count': 4}]\n",
        "\nForebay can run here.\n",
    ],
    "docs/spark.md": ["('new', Decimal('3.20'))\n", "('insert', 1, 'new')\n", "('update_after', 1, 'paid')\n"],
    "docs/spark-lake.md": ["(1, 'eve', Decimal('0.00'), ", "(2, 'bob', Decimal('3.20'), "],
    "docs/spark-lake/system-tables.md": ["('-U', 1, 'ada')\n('+U', 1, 'eve')\n"],
}
"""Some of what a page prints, the first time."""


@pytest.fixture
def only_session(derived_session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that ask for the Spark session get one without catalogs, in the JVM that other tests use, too."""
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "_instantiatedSession", derived_session)


@pytest.mark.parametrize(
    ("page", "times"),
    every_run(
        [(page, times) for page in WITH_SPARK for times in (1, 2)],
        lambda case: case[1] == 1 and case[0] == "README.md",
    ),
)
def test_the_blocks_of_a_page_run_in_order_and_again_on_the_next_day(
    page: str, times: int, tmp_path: Path, only_session: None
) -> None:
    printed, *_ = typed(page, tmp_path, times)
    for wanted in PRINTED.get(page, []):
        assert wanted in printed
