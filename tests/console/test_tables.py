"""Tables of a console: the list, and one table."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from forebay.console import statements, tables
from forebay.console.session import Console
from forebay.tiering.now import tier_now
from forebay.tiering.runner import ThreadRunner
from tests.console.lake_server import lake_console, rows, tiered_table


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


def test_words_of_a_statement_are_completed_by_columns_and_tables(console: Console) -> None:
    console.conn.create_database("sales")
    for name in ("orders", "order_items", "visits"):
        console.conn.create_table(f"sales.{name}", {"id": "BIGINT", f"of_{name}": "STRING"})

    def completed(word: str, statement: str = "") -> list[str]:
        return [item["text"] for item in tables.completions(console, word=word, statement=statement)["items"]]

    assert completed("ord") == ["sales.order_items", "sales.orders"]
    assert completed("sales.v") == ["sales.visits"]
    assert completed("of_", "SELECT of_ FROM sales.orders JOIN sales.visits USING (id)") == ["of_orders", "of_visits"]
    assert completed("of_", "SELECT of_ FROM sales.nothing") == []
    assert completed("") == []


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


def test_one_table_has_its_history_its_ddl_and_no_secrets(console: Console) -> None:
    conn = console.conn
    conn.create_database("sales")
    options = {"owner": "ann", "sink.password": "swordfish", "source": "jdbc:mysql://bob:swordfish@db/x"}
    table = conn.create_table(
        "sales.visits", {"user": "BIGINT", "day": "STRING", "n": "INT"}, primary_key=["user", "day"],
        partition_keys="day", buckets=2, comment="who came", options=options,
    )  # fmt: skip
    table.upsert([{"user": i, "day": f"d{i % 3}", "n": i} for i in range(9)])
    table = table.alter(add_columns={"page": "STRING"})
    found = tables.table(console, "sales", "visits")
    assert [column["name"] for column in found["columns"]] == ["user", "day", "n", "page"]
    assert (found["rows"], found["buckets"], found["all_buckets"], found["partitions"]) == (9, 2, 6, 3)
    assert (found["primary_key"], found["partition_keys"]) == (["user", "day"], ["day"])
    assert [(version["schema_id"], version["changes"]) for version in found["history"]] == [
        (2, ["added page STRING"]), (1, [])
    ]  # fmt: skip
    assert found["bytes"] > 0
    assert found["last_write"] > found["created"]
    assert "PARTITIONED BY (day)" in found["ddl"]
    shown = {each["key"]: each["value"] for each in found["settings"]}
    assert (shown["owner"], shown["sink.password"]) == ("ann", tables.HIDDEN)
    assert shown["source"] == "jdbc:mysql://db/x"
    assert "swordfish" not in str(found)
    assert found["missing"] == []


def test_buckets_and_partitions_have_pages(console: Console) -> None:
    console.conn.create_database("sales")
    table = console.conn.create_table(
        "sales.parts", {"n": "INT", "day": "STRING"}, partition_keys="day", buckets=2, bucket_keys="n"
    )
    table.append([{"n": n, "day": f"d{n % 3}"} for n in range(30)])
    page = tables.partitions(console, "sales", "parts", limit=2)
    assert [(item["partition"], item["rows"], item["buckets"]) for item in page["items"]] == [
        ("d0", 10, 2), ("d1", 10, 2)
    ]  # fmt: skip
    assert page["total"] == 3
    rest = tables.partitions(console, "sales", "parts", limit=2, page_token=page["next"])
    assert ([item["partition"] for item in rest["items"]], rest["next"]) == (["d2"], None)
    found = tables.buckets(console, "sales", "parts", limit=4)
    assert (len(found["items"]), found["total"]) == (4, 6)
    of_one = tables.buckets(console, "sales", "parts", partition="d2")["items"]
    assert sum(item["rows"] for item in of_one) == 10
    assert {item["partition"] for item in of_one} == {"d2"}
    assert all(item["end"] - item["start"] == item["rows"] and item["bytes"] > 0 for item in of_one)
    assert of_one[0]["leader"].startswith("127.0.0.1:")


def test_commits_come_newest_first_with_a_statement_that_reads_as_of_each(console: Console) -> None:
    conn = console.conn
    conn.create_database("sales")
    table = conn.create_table("sales.my-orders", {"id": "BIGINT", "v": "INT"}, primary_key="id")
    table.upsert([{"id": 0, "v": 0}])
    nothing = tables.commits(console, "sales", "my-orders")
    assert nothing == {"items": [], "next": None, "total": 0, "missing": []}
    console.forget(("commits", table.path))
    for version in range(1, 4):
        with conn.transaction("load", version + 2**60) as tx:
            tx.upsert(table, [{"id": i, "v": version} for i in range(version)])
    page = tables.commits(console, "sales", "my-orders", limit=2)
    assert [(c["number"], c["rows"], c["operation"], c["application"]) for c in page["items"]] == [
        (3, 3, "WRITE", "load"), (2, 2, "WRITE", "load"),
    ]  # fmt: skip
    assert page["items"][0]["version"] == str(3 + 2**60)  # JavaScript's numbers do not have it
    assert page["items"][0]["user"] == "ANONYMOUS"
    assert page["total"] == 3
    rest = tables.commits(console, "sales", "my-orders", limit=2, page_token=page["next"])
    assert ([commit["number"] for commit in rest["items"]], rest["next"]) == ([1], None)
    for commit in (*page["items"], *rest["items"]):
        found = statements.run(console, statements.new_execution(console), statement=commit["statement"])
        assert sorted(found["rows"]) == [[i, commit["number"]] for i in range(commit["number"])]
    json.dumps(page)


def test_a_commit_of_a_table_with_a_lake_is_read_as_of_its_time(tmp_path: Path) -> None:
    with lake_console(tmp_path) as console:
        table = tiered_table(console.conn, "fluss.committed")
        for i in range(2):
            with console.conn.transaction() as tx:
                tx.upsert(table, rows(i))
            time.sleep(0.003)  # the next commit has another time
        tier_now(console.conn, ["fluss.committed"], ThreadRunner(1))
        first = tables.commits(console, "fluss", "committed")["items"][-1]
        assert "AT (TIMESTAMP => '" in first["statement"]
        found = statements.run(console, statements.new_execution(console), statement=first["statement"])
        assert found["rows"] == [[0, "x"]]
