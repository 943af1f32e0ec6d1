"""Tables of a console: the list, and one table."""

from __future__ import annotations

from typing import Any

from forebay.console import tables
from forebay.console.session import Console


def test_tables_are_listed_by_page_and_found_by_parts_of_their_names(console: Console) -> None:
    conn = console.conn
    for database in ("sales", "web"):
        conn.create_database(database)
        for i in range(3):
            conn.create_table(f"{database}.t{i}", {"id": "BIGINT"}, primary_key="id", buckets=1)
    conn.table("sales.t1").upsert([{"id": i} for i in range(7)])
    conn.create_table("web.parts", {"id": "BIGINT", "d": "STRING"}, partition_keys="d", buckets=2, comment="by day")
    names = list[str]()
    token: str | None = None
    while True:
        page = tables.tables(console, page_token=token, limit=2)
        names += [f"{item['database']}.{item['table']}" for item in page["items"]]
        assert page["total"] == 7
        token = page["next"]
        if token is None:
            break
    assert names == ["sales.t0", "sales.t1", "sales.t2", "web.parts", "web.t0", "web.t1", "web.t2"]
    found = tables.tables(console, search="SALES 1")["items"]
    assert [(item["table"], item["rows"], item["kind"]) for item in found] == [("t1", 7, "primary key")]
    parts = _of(tables.tables(console, database="web"), "parts")
    assert (parts["kind"], parts["partitioned"], parts["buckets"], parts["all_buckets"]) == ("log", True, 2, 0)
    assert (parts["comment"], parts["lake"], parts["lag_records"]) == ("by day", None, None)


def test_a_table_that_was_dropped_meanwhile_says_so(console: Console) -> None:
    console.conn.create_database("sales")
    console.conn.create_table("sales.gone", {"id": "BIGINT"})
    assert _of(tables.tables(console, search="gone"), "gone")["rows"] == 0
    console.conn.drop_table("sales.gone")
    console.forget(("summary", tables.TablePath("sales", "gone")))
    assert "error" in _of(tables.tables(console, search="gone"), "gone")


def _of(page: dict[str, Any], table: str) -> dict[str, Any]:
    (found,) = (item for item in page["items"] if item["table"] == table)
    return dict(found)
