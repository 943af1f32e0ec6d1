"""The union-read plan as values, which the console draws."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forebay.base.errors import InvalidRequest, NotFound
from forebay.console.explain import explain
from forebay.console.session import Console
from forebay.tiering.now import tier_table
from tests.console.lake_server import lake_console, rows, tiered_table


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with lake_console(tmp_path_factory.mktemp("explained")) as made:
        yield made


def test_a_table_with_a_primary_key_has_lake_files_that_its_log_overrides(console: Console) -> None:
    table = tiered_table(console.conn, "fluss.keyed", buckets=1)
    table.upsert(rows(*range(10)))
    before = explain(console, "fluss", "keyed")
    assert before["lake_snapshot"] is None
    assert [(item["kind"], item["log_start"]) for item in before["items"]] == [("server", 0)]
    tier_table(console.conn, "fluss.keyed")
    console._answers.clear()
    alone = explain(console, "fluss", "keyed")
    [item] = alone["items"]
    assert (item["kind"], item["bucket"], item["lake_splits"], item["lake_rows"]) == ("lake", 0, 1, 10)
    assert (item["lake_end"], item["stop"], item["start"]) == (10, 10, None)
    table.upsert(rows(3, 4, name="new"))
    console._answers.clear()
    found = explain(console, "fluss", "keyed", columns="name", rows=5)
    [item] = found["items"]
    assert (item["kind"], item["start"], item["stop"], item["lake_end"]) == ("overridden", 10, 14, 10)
    assert found["totals"] == {
        "lake_splits": 1, "lake_rows": 10, "log_records": 4, "log_buckets": 1, "keys": 0,
    }  # fmt: skip
    assert found["columns"] == ["name"]
    assert "lake overridden by the changelog behind it" in found["text"]
    filtered = explain(console, "fluss", "keyed", where="name = 'new'")
    assert filtered["filters"] == [{"text": "name = 'new'", "skips_lake_rows": True}]
    assert filtered["totals"]["lake_splits"] == 0  # by their statistics, no file has such a row
    looked_up = explain(console, "fluss", "keyed", where="id = 3")
    assert [(each["kind"], each["keys"]) for each in looked_up["items"]] == [("lookup", 1)]


def test_a_log_table_has_lake_files_and_the_log_behind_them_page_by_page(console: Console) -> None:
    table = tiered_table(console.conn, "fluss.logged", primary_key=(), buckets=3)
    table.append(rows(*range(300)))
    tier_table(console.conn, "fluss.logged")
    table.append(rows(*range(30)))
    found = explain(console, "fluss", "logged")
    assert found["kind"] == "log"
    logs = [item for item in found["items"] if item["kind"] == "log"]
    assert sum(item["stop"] - item["start"] for item in logs) == 30 == found["totals"]["log_records"]
    assert all(item["lake_end"] in (item["start"], None) for item in logs)
    assert found["totals"]["lake_rows"] == 300
    paged = list[object]()
    token = None
    while True:
        page = explain(console, "fluss", "logged", page_token=token, limit=1)
        paged += page["items"]
        token = page["next"]
        if token is None:
            break
    assert paged == found["items"]
    assert found["total"] == len(paged)


def test_wrong_requests_say_what_is_wrong(console: Console) -> None:
    tiered_table(console.conn, "fluss.wrong")
    with pytest.raises(InvalidRequest, match="nope"):
        explain(console, "fluss", "wrong", columns="nope")
    with pytest.raises(InvalidRequest):
        explain(console, "fluss", "wrong", where="id >")
    with pytest.raises(InvalidRequest, match="rows=-1"):
        explain(console, "fluss", "wrong", rows=-1)
    with pytest.raises(NotFound):
        explain(console, "fluss", "absent")
    assert explain(console, "fluss", "wrong", columns=" , ")["columns"] == ["id", "name"]
    many = " AND ".join(f"id > {i}" for i in range(2000))
    assert len(explain(console, "fluss", "wrong", where=many)["filters"]) == 2000
