"""The SQL box: what statements read, and what they may not."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from forebay.base.errors import ForebayError, InvalidRequest, LimitExceeded, UnsupportedOperation
from forebay.console import statements
from forebay.console.session import Console
from forebay.query.isolated import StatementLimits
from tests.console.asking import ask
from tests.patience import PATIENCE

pytest.importorskip("duckdb")


@pytest.fixture
def shop(console: Console) -> Console:
    console.conn.create_database("sales")
    table = console.conn.create_table("sales.orders", {"id": "BIGINT", "item": "STRING"}, primary_key="id")
    table.upsert([{"id": i, "item": f"i{i % 3}"} for i in range(50)])
    items = console.conn.create_table("sales.items", {"item": "STRING", "price": "INT"})
    items.append([{"item": f"i{i}", "price": i} for i in range(3)])
    return console


def run(console: Console, text: str, **more: Any) -> dict[str, Any]:
    return statements.run(console, statements.new_execution(console), statement=text, **more)


def test_a_statement_joins_tables_and_has_the_first_rows(shop: Console) -> None:
    found = run(
        shop, "SELECT price, count(*) AS n FROM sales.orders JOIN sales.items USING (item) GROUP BY 1 ORDER BY 1"
    )
    assert found["rows"] == [[0, 17], [1, 17], [2, 16]]
    assert [column["name"] for column in found["columns"]] == ["price", "n"]
    assert (found["truncated"], found["is_one_instant"]) == (False, True)
    few = run(shop, "SELECT * FROM sales.orders", limit=7)
    assert (len(few["rows"]), few["truncated"]) == (7, True)
    assert len(run(shop, "SHOW TABLES")["rows"]) == 2
    assert run(shop, "EXPLAIN SELECT * FROM sales.orders")["rows"]


REFUSED = {
    "rows of a read-only console": "INSERT INTO sales.orders VALUES (100, 'x')",
    "tables": "CREATE TABLE x (a INT)",
    "settings": "SET threads = 8",
    "extensions": "INSTALL httpfs",
    "files by name": "SELECT * FROM '{secret}'",
    "files by function": "SELECT * FROM read_text('{secret}')",
    "files by pattern": "SELECT * FROM glob('{folder}/*')",
    "files in a file": "ATTACH '{folder}/x.db'",
    "writing files": "COPY (SELECT 1) TO '{folder}/y.csv'",
    "several statements": "SELECT 1; SELECT 2",
}


def test_a_statement_reads_tables_and_nothing_else(shop: Console, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "secret.csv").write_text("swordfish")
    for what, text in REFUSED.items():
        with pytest.raises(ForebayError) as raised:
            run(shop, text.format(folder=folder, secret=folder / "secret.csv"))
        assert "swordfish" not in str(raised.value), what
    assert sorted(path.name for path in folder.iterdir()) == ["secret.csv"]
    assert shop.conn.admin.table_stats("sales.orders").row_count == 50


def test_a_console_that_allows_changes_inserts(shop: Console) -> None:
    with pytest.raises(UnsupportedOperation, match="only reading is allowed"):
        run(shop, REFUSED["rows of a read-only console"])
    shop.allow_changes = True
    assert run(shop, REFUSED["rows of a read-only console"])["rows"] == [[1]]
    assert shop.conn.admin.table_stats("sales.orders").row_count == 51


def test_a_statement_is_stopped(shop: Console) -> None:
    execution = statements.new_execution(shop)
    text = "SELECT count(*) FROM range(100000000) a, range(100000000) b WHERE a.range * b.range % 7 = 3"
    future = shop.submit(statements.run, shop, execution, statement=text)
    with pytest.raises(TimeoutError):
        future.result(0.1)
    execution.cancel()
    with pytest.raises(InvalidRequest):
        future.result(PATIENCE)


def test_a_statement_that_runs_for_too_long_is_stopped(shop: Console, app: Any) -> None:
    shop.processes.limits = StatementLimits(4, seconds=0.3)
    text = "SELECT count(*) FROM range(100000000) a, range(100000000) b WHERE a.range * b.range % 7 = 3"
    status, kind, message = ask(app, "POST", "/api/sql", {"statement": text}).error
    assert (status, kind) == (429, "limit")
    assert "more than 0.3 seconds (--query-timeout) and was ended" in message
    shop.processes.limits = StatementLimits(4)
    assert ask(app, "POST", "/api/sql", {"statement": "SELECT 1 AS n"}).json["rows"] == [[1]]


def test_a_statement_that_needs_too_much_memory_is_ended_and_the_console_goes_on(shop: Console, app: Any) -> None:
    for text in ("SELECT repeat('x', 2000000000)", "SELECT list(range) FROM range(400000000)"):
        status, kind, message = ask(app, "POST", "/api/sql", {"statement": text}).error
        assert (status, kind) == (429, "limit")
        assert "more than its memory of 1.0 GiB (--query-memory)" in message
    assert run(shop, "SELECT 1 AS n")["rows"] == [[1]]


def test_a_page_has_as_many_rows_as_fit_into_its_memory(shop: Console) -> None:
    answer = run(shop, "SELECT repeat('x', 20000000) AS x FROM range(20)")
    assert answer["truncated"]
    assert 3 <= len(answer["rows"]) < 20
    assert all(len(text) < 3000 for (text,) in answer["rows"])


def test_there_are_not_too_many_statements_at_a_time(shop: Console) -> None:
    with ExitStack() as rooms:
        for _ in range(4):
            rooms.enter_context(shop.room("sql", 4))
        with pytest.raises(LimitExceeded):
            run(shop, "SELECT 1")
    assert run(shop, "SELECT 1 AS n")["rows"] == [[1]]
