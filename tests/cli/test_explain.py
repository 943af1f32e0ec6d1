"""`forebay explain`: the SQL that it supports, and its output."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from forebay.base.errors import InvalidRequest
from forebay.cli.explain import Query, parse_select
from forebay.cli.main import main
from forebay.server.embedded import EmbeddedServer
from tests.unionread.world import PAIMON, World, world


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("SELECT * FROM a.b", Query("a.b", None)),
        ("select count(*) from `a`.`b-c`;", Query("a.b-c", [])),
        ("SELECT x, `y` FROM a.b LIMIT 3", Query("a.b", ["x", "y"], None, 3)),
        (
            "SELECT x FROM a.b WHERE x >= 1 and y = 'a AND b' LIMIT 9",
            Query("a.b", ["x"], "x >= 1 AND y = 'a AND b'", 9),
        ),
        ("SELECT x\nFROM a.b\nWHERE x IS NOT NULL", Query("a.b", ["x"], "NOT x IS NULL")),
    ],
)
def test_a_select_is_taken_apart(text: str, query: Query) -> None:
    assert parse_select(text) == query


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SELECT",
        "DELETE FROM a.b",
        "SELECT * FROM a.b JOIN c.d",
        "SELECT * FROM a.b LIMIT x",
        "SELECT 1",
        "SELECT x + 1 FROM a.b",
        "SELECT DISTINCT x FROM a.b",
        "SELECT x FROM a.b ORDER BY x",
        "SELECT x FROM a.b, c.d",
        "SELECT x FROM a.b; SELECT y FROM a.b",
        "SELECT x FROM (SELECT 1)",
        "SELECT x FROM a.b GROUP BY x",
    ],
)
def test_what_is_no_select_is_refused_with_what_is_understood(text: str) -> None:
    with pytest.raises(InvalidRequest, match="which is all that"):
        parse_select(text)


@pytest.fixture
def paimon(tmp_path: Path) -> World:
    with world(tmp_path, PAIMON) as running:
        yield running  # type: ignore[misc]


def test_explain_prints_the_plan_of_a_query(paimon: World, capsys: pytest.CaptureFixture[str]) -> None:
    table = paimon.create(
        pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())]), primary_key=["id"]
    )
    table.upsert([{"id": i, "v": f"v{i}"} for i in range(5)])
    paimon.tier(table)
    table.upsert([{"id": 3, "v": "new"}])
    server = (
        f"{paimon.connection.settings.bootstrap_servers[0].host}:{paimon.connection.settings.bootstrap_servers[0].port}"
    )
    query = f"SELECT v FROM {table.path} WHERE id >= 2 AND v IS NOT NULL LIMIT 7"
    assert main(["explain", query, "-b", server]) == 0
    printed = capsys.readouterr().out
    assert "lake: paimon, snapshot 1" in printed
    assert "filter: id >= 2 AND v IS NOT NULL" in printed
    assert "log 5 to 7 (2 records), because the snapshot holds the log up to 5" in printed


def test_explain_of_a_table_that_is_not_there_is_an_error(forebay_server: EmbeddedServer) -> None:
    assert main(["explain", "SELECT * FROM fluss.none", "-b", forebay_server.bootstrap_servers]) == 1
