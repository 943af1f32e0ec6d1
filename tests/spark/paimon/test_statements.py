"""Every statement of the matrix on every kind of table: it does what it says, or is refused and changes nothing."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.releases import SPARK
from tests.spark.statements import FILL, KINDS, STATEMENTS, Refused, Statement, content_after, create, gone, page

pytestmark = pytest.mark.spark

_numbers = itertools.count(1)
ALL = [statement for _, statements in STATEMENTS for statement in statements]
QUICK = 20
"""Every so manieth statement is run in every run of the tests; all of them by make nightly."""


def test_the_page_has_the_matrix() -> None:
    text = (Path(__file__).parents[3] / "docs" / "spark" / "statements.md").read_text()
    found = re.search(r"<!-- statements: begin -->\n(.*?)\n<!-- statements: end -->", text, re.DOTALL)
    assert found is not None
    assert found.group(1).strip() == page(), "put what python -m tests.spark.statements prints into the page"


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(n, id=f"{n} {ALL[n].sql[:40]}", marks=[] if n % QUICK == 0 else [pytest.mark.slow])
        for n in range(len(ALL))
    ],
)
@pytest.mark.skipif(SPARK < (4, 3), reason="older versions refuse some, in words of their own")
def test_a_statement_does_what_it_says_or_is_refused(
    spark: Any, database: str, lake: str, number: int, failures: list[str]
) -> None:
    statement = ALL[number]
    for kind in KINDS:
        home = f"lake.{lake}" if kind.startswith("lake") else f"forebay.{database}"
        names = {"t": f"{home}.t{next(_numbers)}", "s": f"{home}.s{next(_numbers)}", "db": home}
        check(lambda text: [tuple(row) for row in spark.sql(text).collect()], statement, kind, names, failures)
    assert not failures, "\n".join(failures)


@pytest.fixture
def failures() -> list[str]:
    return []


def check(
    run: Callable[[str], list[tuple[Any, ...]]],
    statement: Statement,
    kind: str,
    names: dict[str, str],
    failures: list[str],
) -> None:
    run(create(kind, statement.partitioned).replace("{t}", names["t"]))
    run(FILL.replace("{t}", names["t"]))
    if "{s}" in statement.sql:
        run(create(kind, statement.partitioned).replace("{t}", names["s"]))
        run(f"INSERT INTO {names['s']} VALUES (2, 'B', 200, 'd0', NULL), (9, 'n', 90, 'd1', NULL)")
    text = statement.sql.replace("{n}", str(next(_numbers)))
    for name, value in names.items():
        text = text.replace("{" + name + "}", value)
    expected = content_after(statement, kind)
    error, answer = None, None
    try:
        answer = run(text)
    except Exception as e:  # noqa: BLE001 - what it is is looked at
        error = str(e)
    where = f"{kind}: {text}"
    if isinstance(statement.expected(kind), Refused):
        if error is None:
            failures.append(f"{where}: was not refused")
        elif re.search(statement.expected(kind).says, error) is None:  # type: ignore[union-attr]
            failures.append(f"{where}: says {error[:300]!r}")
        elif "Traceback (most recent call last)" in error or "Py4J" in error:
            failures.append(f"{where}: shows a traceback: {error[:300]!r}")
        expected = content_after(Statement(""), kind)
    elif error is not None:
        failures.append(f"{where}: {error[:400]!r}")
        return
    elif statement.answer is not None and answer != statement.answer:
        failures.append(f"{where}: returned {answer}, and not {statement.answer}")
    if statement.expected(kind) is gone:
        with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
            run(f"SELECT * FROM {names['t']}")
        return
    amount = "total" if "TO total" in text and error is None else "amount"
    content = sorted(run(f"SELECT id, name, {amount} FROM {names['t']}"), key=repr)
    if kind in ("log", "lake_append") and statement.keeps_doubles:
        assert error is None
        expected = None if len(content) == 5 else []
    if expected is not None and content != expected:
        failures.append(f"{where}: left {content}, and not {expected}")
