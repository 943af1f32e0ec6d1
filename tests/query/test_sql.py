"""`forebay.sql`: DuckDB over live tables and lakes."""

from __future__ import annotations

import datetime as dt
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import forebay
import forebay.paimon
import forebay.polars
from forebay.base.errors import InvalidRequest, NotFound, UnsupportedOperation
from forebay.client.reading.bucket_reader import TableReader
from forebay.inprocess import EmbeddedConnection
from forebay.query import run
from forebay.query.run import CLOSED_IN, SqlDatabase
from forebay.query.tables import Tables
from tests.query.values import TYPES, VALUES


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    warehouse = str(tmp_path_factory.mktemp("lake"))
    catalog = forebay.paimon.Catalog.open(warehouse)
    catalog.create_database("sales")
    items = catalog.create_table("sales.items", {"id": "BIGINT", "name": "STRING"}, primary_key="id")
    items.upsert([{"id": 1, "name": "tea"}])
    items.upsert([{"id": 2, "name": "rum"}])
    return warehouse


@pytest.fixture(scope="module")
def conn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedConnection]:
    with forebay.embedded(tmp_path_factory.mktemp("sql")) as opened:
        orders = opened.create_table(
            "fluss.orders", {"id": "BIGINT", "item": "BIGINT", "amount": "DOUBLE"}, primary_key="id", buckets=2
        )
        orders.upsert([{"id": i, "item": i % 3, "amount": i * 0.5} for i in range(10)])
        opened.create_table("fluss.visits", {"id": "BIGINT", "who": "STRING"})
        opened.create_table("fluss.kinds", TYPES, primary_key="id", buckets=1)
        yield opened


def test_live_tables_and_lakes_are_joined_by_name(conn: EmbeddedConnection, lake: str) -> None:
    found = conn.sql(
        "SELECT name, count(*) AS orders, sum(amount) AS amount FROM fluss.orders o "
        "JOIN lake.sales.items i ON o.item = i.id WHERE o.id > ? GROUP BY ALL ORDER BY name",
        [1],
        warehouse=lake,
    )
    assert found.columns == ["name", "orders", "amount"]
    assert found.to_pylist() == [
        {"name": "rum", "orders": 3, "amount": 7.5},
        {"name": "tea", "orders": 2, "amount": 5.5},
    ]
    other = forebay.sql(
        "SELECT count(*) AS n FROM live.fluss.orders, old.sales.items, mine",
        conn.bootstrap_servers,
        lakes={"old": forebay.paimon.Catalog.open(lake)},
        data={"mine": pa.table({"x": [1, 2]})},
    )
    assert other.to_pylist() == [{"n": 40}]
    assert forebay.sql("FROM sales.items SELECT name WHERE id = 2", warehouse=lake).to_pylist() == [{"name": "rum"}]


def test_each_type_comes_back_by_value_and_is_filtered_by_value(conn: EmbeddedConnection) -> None:
    table = conn.table("fluss.kinds")
    table.upsert([VALUES, {**dict.fromkeys(TYPES), "id": 2}])
    found = conn.sql("SELECT * FROM fluss.kinds ORDER BY id").to_arrow()
    assert found.schema.field("instant").type == pa.timestamp("us", "UTC")
    assert found.schema.field("exact").type == pa.timestamp("ns" if "(9)" in TYPES["exact"] else "us", "UTC")
    assert found.to_pylist() == [VALUES, {**dict.fromkeys(TYPES), "id": 2}]
    with duckdb.connect() as own:
        own.execute("SET TimeZone = 'UTC'")
        relation = table.to_duckdb(own)
        for column, value in VALUES.items():
            if column not in ("list", "map", "row"):
                same = duckdb.ColumnExpression(column) == duckdb.ConstantExpression(value)
                assert relation.filter(same).select("id").fetchall() == [(1,)], column
    assert conn.sql('SELECT id FROM fluss.kinds WHERE "row".a = 1 AND "list"[3] = 3').to_pylist() == [{"id": 1}]


def test_a_query_sees_one_state_of_a_table_however_often_it_names_it(
    conn: EmbeddedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = conn.create_table("fluss.moving", {"id": "BIGINT", "v": "BIGINT"}, primary_key="id")
    table.upsert([{"id": i, "v": 0} for i in range(100)])
    with conn.sql(
        "SELECT a.v, b.v AS w FROM fluss.moving a, fluss.moving b WHERE a.id + 1 = b.id AND a.v >= 0"
    ) as rows:
        table.upsert([{"id": i, "v": 1} for i in range(100)])
        assert {(row["v"], row["w"]) for row in rows.to_pylist()} == {(0, 0)}
    assert conn.admin.list_table_snapshots(table.path) == []
    assert conn.sql("SELECT min(v) AS v FROM fluss.moving").to_pylist() == [{"v": 1}]


def test_several_tables_are_pinned_again_until_none_was_written_to_meanwhile(
    conn: EmbeddedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = conn.create_table("fluss.left", {"id": "BIGINT"}, primary_key="id")
    right = conn.create_table("fluss.right", {"id": "BIGINT"}, primary_key="id")
    original, written = Tables.scan, [1, 2, 3, 4, 5, 6, 7]

    def between(self: Tables, name: Any, as_of: Any) -> Any:
        if str(name) == "fluss.left" and written:  # which is pinned second
            with conn.transaction() as both:
                for table in (left, right):
                    both.upsert(table, [{"id": written[0]}])
            written.pop(0)
        return original(self, name, as_of)

    monkeypatch.setattr(Tables, "scan", between)
    counts = "SELECT (SELECT count(*) FROM fluss.left) AS l, (SELECT count(*) FROM fluss.right) AS r"
    busy = conn.sql(counts)
    assert not busy.is_one_instant
    assert busy.to_pylist() == [{"l": 5, "r": 4}]
    quiet = conn.sql(counts)
    assert quiet.is_one_instant
    assert quiet.to_pylist() == [{"l": 7, "r": 7}]
    assert conn.admin.list_table_snapshots(left.path) == []


def test_earlier_states_are_named_by_version_and_time(conn: EmbeddedConnection, lake: str) -> None:
    table = conn.create_table("fluss.past", {"id": "BIGINT"})
    table.append([{"id": 1}])
    time.sleep(0.003)
    then = dt.datetime.now(dt.UTC).isoformat()
    time.sleep(0.003)
    table.append([{"id": 2}])
    found = conn.sql(
        f"SELECT past.id, name FROM fluss.past AT (TIMESTAMP => '{then}') "
        "JOIN lake.sales.items i AT (VERSION => 1) USING (id)",
        warehouse=lake,
    )
    assert found.to_pylist() == [{"id": 1, "name": "tea"}]
    assert conn.sql("SELECT count(*) AS n FROM fluss.past AT (TIMESTAMP => now())").to_pylist() == [{"n": 2}]
    with pytest.raises(NotFound, match="7"):
        conn.sql("FROM lake.sales.items AT (VERSION => 7)", warehouse=lake)


def test_changelogs_and_system_tables_are_tables(conn: EmbeddedConnection, lake: str) -> None:
    found = conn.sql('SELECT _change_type, id FROM fluss."orders$changelog" WHERE amount > 4').to_pylist()
    assert found == [{"_change_type": "insert", "id": 9}]
    places = conn.sql('SELECT DISTINCT __bucket, _log_offset FROM fluss."orders$changelog"')
    assert len(places.to_pylist()) == conn.table("fluss.orders").changes("earliest", "latest").to_arrow().num_rows
    snapshots = forebay.sql('SELECT count(*) AS n FROM sales."items$snapshots"', warehouse=lake)
    assert snapshots.to_pylist() == [{"n": 2}]
    with pytest.raises(InvalidRequest, match="has no lake"):
        conn.sql('FROM fluss."orders$lake"')
    with pytest.raises(NotFound, match=r"\$changelog"):
        conn.sql('FROM fluss."orders$files"')


def test_rows_are_inserted_as_one_transaction(conn: EmbeddedConnection, lake: str) -> None:
    visits = conn.table("fluss.visits")
    assert conn.sql("INSERT INTO fluss.visits VALUES (1, 'ann'), (2, NULL);").to_pylist() == [{"rows": 2}]
    conn.sql("INSERT INTO fluss.visits BY NAME SELECT 'bob' AS who, 3 AS id")
    conn.sql("INSERT INTO fluss.visits (who) WITH q AS (SELECT ? AS who) FROM q", ["eve"])
    assert sorted(visits.scan().to_pandas()["who"].dropna()) == ["ann", "bob", "eve"]
    doubled = conn.create_table("fluss.doubled", {"id": "BIGINT", "amount": "DOUBLE"}, primary_key="id")
    doubled.upsert([{"id": 4, "amount": 2.0}])
    conn.sql("INSERT INTO fluss.doubled SELECT id, amount * 2 FROM fluss.doubled WHERE id = 4")
    assert doubled.lookup([4])["amount"].to_pylist() == [4.0]
    drinks = forebay.paimon.Catalog.open(lake).create_table("sales.drinks", {"id": "BIGINT", "name": "STRING"})
    conn.sql("INSERT INTO lake.sales.drinks SELECT 3, 'gin' WHERE 1 = 1", warehouse=lake)
    assert drinks.scan().count() == 1
    with pytest.raises(InvalidRequest, match="Could not convert string 'x' to BIGINT") as caught:
        conn.sql("INSERT INTO fluss.visits VALUES ('x', 'y')")
    *_, shown, mark = str(caught.value).splitlines()
    assert shown == "LINE 1: INSERT INTO fluss.visits VALUES ('x', 'y')"
    assert mark == " " * shown.index("'x'") + "^^^"


def test_an_insert_leaves_out_the_column_that_the_server_numbers(conn: EmbeddedConnection) -> None:
    conn.create_table(
        "fluss.tickets", {"id": "BIGINT", "no": "BIGINT", "who": "STRING"}, primary_key="id", auto_increment="no"
    )
    conn.sql("INSERT INTO fluss.tickets (id, who) VALUES (1, 'ann')")
    conn.sql("INSERT INTO fluss.tickets VALUES (2, 'bob')")
    conn.sql("INSERT INTO fluss.tickets BY NAME SELECT 'eve' AS who, 3 AS id")
    conn.sql("INSERT INTO fluss.tickets VALUES (?, ?)", [1, "amy"])
    found = conn.sql("SELECT * FROM fluss.tickets ORDER BY id").to_pylist()
    assert [row["who"] for row in found] == ["amy", "bob", "eve"]
    assert [row["no"] for row in found] == [1, 2, 3]
    for statement in (
        "INSERT INTO fluss.tickets VALUES (4, 9, 'x')",
        "INSERT INTO fluss.tickets (id, no) VALUES (4, 9)",
        "INSERT INTO fluss.tickets BY NAME SELECT 4 AS id, 9 AS no",
    ):
        with pytest.raises(InvalidRequest, match="the server numbers column 'no', so leave it out"):
            conn.sql(statement)
    assert conn.sql("SELECT count(*) AS n FROM fluss.tickets").to_pylist() == [{"n": 3}]


def test_rows_of_arrow_types_that_duckdb_does_not_read_are_widened_or_refused(conn: EmbeddedConnection) -> None:
    half, wide = pa.array([1.5, None], pa.float16()), pa.array([Decimal("2.50"), None], pa.decimal256(38, 2))
    batch = pa.record_batch({"half": half, "wide": wide})
    for rows in (pa.Table.from_batches([batch]), pa.RecordBatchReader.from_batches(batch.schema, [batch])):
        found = conn.sql("SELECT * FROM given", data={"given": rows}).to_pylist()
        assert found == [{"half": 1.5, "wide": Decimal("2.50")}, {"half": None, "wide": None}]
    for refused in (pa.decimal256(39, 0), pa.list_(pa.float16()), pa.struct({"y": pa.decimal256(9, 0)})):
        with pytest.raises(UnsupportedOperation, match=r"column 'x' is .*, which SQL does not read"):
            conn.sql("SELECT * FROM given", data={"given": pa.table({"x": pa.array([], refused)})})


def test_tables_are_listed_and_described(conn: EmbeddedConnection, lake: str) -> None:
    listed = conn.sql("SHOW TABLES", warehouse=lake).to_pylist()
    assert {"catalog": "live", "database": "fluss", "table": "orders"} in listed
    assert {"catalog": "lake", "database": "sales", "table": "items"} in listed
    described = conn.sql("DESCRIBE fluss.orders").to_pylist()
    assert [(row["column_name"], row["column_type"]) for row in described] == [
        ("id", "BIGINT"), ("item", "BIGINT"), ("amount", "DOUBLE")
    ]  # fmt: skip
    assert "ARROW_SCAN" in conn.sql("EXPLAIN SELECT id FROM fluss.orders").to_pylist()[0]["explain_value"]


@pytest.mark.parametrize(
    ("statement", "error", "said"),
    [
        ("DELETE FROM fluss.orders", UnsupportedOperation, "DELETE is not supported"),
        ("CREATE TABLE fluss.x AS SELECT 1", UnsupportedOperation, "CREATE is not supported"),
        ("COPY (SELECT 1) TO 'x.csv'", UnsupportedOperation, "COPY is not supported"),
        ("INSERT OR REPLACE INTO fluss.visits SELECT 1, 'x'", UnsupportedOperation, "write INSERT INTO"),
        ("INSERT INTO fluss.visits VALUES (1, 'x') RETURNING id", InvalidRequest, "not a query"),
        ('INSERT INTO fluss."visits$changelog" VALUES (1)', UnsupportedOperation, "cannot be written to"),
        ("PIVOT fluss.orders ON item USING sum(amount)", UnsupportedOperation, r"list them, ON x IN"),
        ("SELECT 1; SELECT 2", InvalidRequest, "one statement at a time, not 2"),
        ("SELEC 1", InvalidRequest, "not SQL"),
        ("SELECT nothing FROM fluss.orders", InvalidRequest, r"\n\nLINE 1: SELECT nothing FROM fluss.orders\n {15}\^"),
        ("SELECT 1,\n nothing(2)", InvalidRequest, r"\n\nLINE 2:  nothing\(2\)\n {9}\^"),
        ("SELECT * FROM orders", NotFound, r"no table orders: tables are called database\.table"),
        ("SELECT * FROM fluss.nothing", NotFound, r"no table fluss\.nothing"),
        ("SELECT * FROM elsewhere.fluss.orders", NotFound, "no catalog 'elsewhere' here; there are live"),
        ("INSERT INTO fluss.visits VALUES (1)", InvalidRequest, r"table fluss\.visits has 2 columns but 1 values"),
        ("INSERT INTO fluss.visits (id, x) VALUES (1, 2)", InvalidRequest, r"Table fluss\.visits does not have a"),
        ("SELECT CAST(who AS INT) FROM (SELECT 'x' AS who)", InvalidRequest, "Could not convert"),
        ("EXPLAIN SELECT * FROM fluss.orders AT (TIMESTAMP => now())", UnsupportedOperation, "leave AT"),
    ],
)
def test_what_is_not_possible_is_said(conn: EmbeddedConnection, statement: str, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        conn.sql(statement).to_arrow()


def test_an_error_of_a_scan_keeps_its_kind(conn: EmbeddedConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(self: Any) -> Iterator[Any]:
        raise NotFound("the snapshot is gone")
        yield

    monkeypatch.setattr(TableReader, "_read", gone)
    with pytest.raises(NotFound, match="the snapshot is gone"):
        conn.sql("SELECT a.id FROM fluss.orders a").to_arrow()


def test_a_result_is_shown_kept_and_streamed(conn: EmbeddedConnection, capsys: pytest.CaptureFixture[str]) -> None:
    result = conn.sql("SELECT id, amount FROM fluss.orders WHERE id < 3 ORDER BY id")
    assert repr(result) == "<forebay.Result, columns id, amount, not read>"
    result.show(2)
    assert capsys.readouterr().out == "id  amount\n--  ------\n 0     0.0\n 1     0.5\n(3 rows, 2 shown)\n"
    assert "<th" in result._repr_html_()
    assert repr(result).endswith("3 rows>")
    assert result.to_pandas()["id"].tolist() == result.to_polars()["id"].to_list() == [0, 1, 2]
    assert pa.table(result).num_rows == sum(batch.num_rows for batch in result) == 3
    streamed = conn.sql("SELECT id FROM fluss.orders")
    assert sum(batch.num_rows for batch in streamed) == 10
    with pytest.raises(InvalidRequest, match="the rows of this result are read"):
        streamed.to_arrow()


def test_a_missing_duckdb_is_named(conn: EmbeddedConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(run, "import_module", missing)
    with pytest.raises(UnsupportedOperation, match=r"pip install 'forebay\[sql\]'"):
        conn.sql("SELECT 1")


@pytest.mark.parametrize("name", ["live", "temp", "a b"])
def test_a_lake_has_a_name_of_its_own(conn: EmbeddedConnection, name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be called"):
        forebay.sql("SELECT 1", conn, lakes={name: str(tmp_path)})
    with pytest.raises(InvalidRequest, match="format 'delta' is not known"):
        forebay.sql("SELECT 1", conn, lakes={"x": {"format": "delta"}})
    with pytest.raises(InvalidRequest, match="5 is not a lake"):
        forebay.sql("SELECT 1", conn, lakes={"x": 5})  # type: ignore[dict-item]


def test_iceberg_tables_are_read_by_their_catalog(tmp_path: Path) -> None:
    options = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": tmp_path.as_uri(),
        "name": "other",
    }
    with closing(SqlCatalog(**options)) as catalog:
        catalog.create_namespace("db")
        rows = pa.table(
            {"id": [1, 2, 3], "x": [1.0, math.nan, None], "t": pa.array([0, 1, 2], pa.timestamp("us", "UTC"))}
        )
        table = catalog.create_table("db.t", rows.schema)
        table.append(rows)
        first = table.current_snapshot().snapshot_id
        table.append(rows.slice(0, 1))
    lakes = {"ice": {"format": "iceberg", **options}}
    assert forebay.sql("SELECT id FROM ice.db.t WHERE x > 1 AND t IS NOT NULL", lakes=lakes).to_pylist() == [{"id": 2}]
    earlier = forebay.sql(f"SELECT count(*) AS n FROM ice.db.t AT (VERSION => {first})", lakes=lakes)
    assert earlier.to_pylist() == [{"n": 3}]
    assert forebay.sql("SHOW TABLES", lakes=lakes).to_pylist() == [{"catalog": "ice", "database": "db", "table": "t"}]
    assert forebay.polars.scan("db.t", warehouse=lakes["ice"]).head(3).collect().height == 3
    with pytest.raises(NotFound, match=r"db\.other"):
        forebay.sql("FROM ice.db.other", lakes=lakes)
    with pytest.raises(UnsupportedOperation, match="is an Iceberg table, which tiering and other engines write"):
        forebay.sql("INSERT INTO ice.db.t VALUES (1)", lakes=lakes)


def test_a_query_that_is_cancelled_while_its_tables_are_pinned_does_not_run(
    lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution = run.SqlDatabase(None, {"lake": lake}).execution()
    scan = Tables.scan

    def scanned(self: Tables, *given: Any, **named: Any) -> Any:
        execution.cancel()  # DuckDB does nothing now that it could interrupt
        return scan(self, *given, **named)

    monkeypatch.setattr(Tables, "scan", scanned)
    with pytest.raises(InvalidRequest, match="the statement was cancelled"):
        execution.run("SELECT count(*) FROM sales.items")


def test_statements_are_described_without_being_run(conn: Any) -> None:
    conn.create_table("fluss.described", [("id", "BIGINT"), ("name", "STRING")])
    database = run.SqlDatabase(conn, {})
    shown = database.execution().describe("SHOW TABLES")
    assert (shown.schema.names, shown.parameters.names, shown.is_insert) == (
        ["catalog", "database", "table"],
        [],
        False,
    )
    read = database.execution().describe("SELECT name FROM fluss.described WHERE id = ?")
    assert (read.schema.names, read.parameters.types, read.is_insert) == (["name"], [pa.int64()], False)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT current_setting('secret_directory')",
        "SELECT 'Secret_Directory'.current_setting()",
        "SELECT current_setting('secret' || '_directory')",
        "SELECT * FROM (SELECT system.main.current_setting('temp_directory')) t",
        "SELECT value FROM duckdb_settings()",
        "FROM query('SELECT current_setting(''secret_directory'')')",
        "FROM sql_auto_complete('SEL')",
        "WITH t AS (FROM duckdb_extensions()) SELECT * FROM t",
        "FROM duckdb_secrets()",
        "FROM glob('/*')",
        "FROM read_text('/etc/hostname')",
        "EXPLAIN FROM pragma_version()",
    ],
)
def test_statements_of_others_read_no_settings_and_call_no_functions_of_the_machine(statement: str) -> None:
    with pytest.raises(UnsupportedOperation, match=r"cannot be (read|called) here, only"):
        SqlDatabase(None, {}).execution(settings=CLOSED_IN).run(statement)


def _built_in_views() -> list[tuple[str, str]]:
    rows = duckdb.connect().execute("SELECT schema_name, view_name FROM duckdb_views() WHERE internal").fetchall()
    return [(schema, view) for schema, view in rows if schema != "information_schema"]


@pytest.mark.parametrize(
    "statement",
    [
        "FROM {}",
        "TABLE {}",
        "SUMMARIZE {}",
        "DESCRIBE {}",
        "SUMMARIZE SELECT * FROM {}",
        "SELECT * FROM (DESCRIBE {})",
        "EXPLAIN ANALYZE SELECT * FROM {}",
        "SELECT * FROM range(2) r JOIN {} t ON true",
        "SELECT (SELECT count(*) FROM {})",
        "WITH t AS (FROM {}) FROM t",
        "PIVOT {} ON name IN (1) USING count(*)",
        "INSERT INTO sales.items SELECT * FROM {}",
    ],
)
def test_statements_of_others_read_no_view_of_duckdb(statement: str) -> None:
    database = SqlDatabase(None, {})
    views = _built_in_views()
    assert ("pg_catalog", "pg_settings") in views
    for schema, view in views:
        names = [view, f'"{view.upper()}"', f"{schema}.{view}", f"system.{schema}.{view}", f"system.{view}"]
        for name in names if statement == "FROM {}" else names[:1]:
            with pytest.raises(UnsupportedOperation, match="a view of DuckDB, cannot be read here, only"):
                database.execution(settings=CLOSED_IN).run(statement.format(name))


@pytest.mark.parametrize(
    "statement",
    [
        "SHOW secret_directory",
        "SHOW 'secret_directory'",
        "SELECT * FROM (SHOW Temp_Directory)",
        "WITH t AS (FROM (SHOW secret_directory)) FROM t",
        "SELECT json_serialize_plan('SELECT current_setting(''secret_directory'')', optimize := true)",
    ],
)
def test_statements_of_others_read_no_settings_by_other_ways(statement: str) -> None:
    with pytest.raises((UnsupportedOperation, InvalidRequest), match=r"cannot be (read|called) here, only|not SQL"):
        SqlDatabase(None, {}).execution(settings=CLOSED_IN).run(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT (WITH pg_settings AS (SELECT 1 AS name) SELECT name FROM pg_settings), (SELECT 1 FROM pg_settings)",
        "WITH pg_settings AS (FROM pg_settings) FROM pg_settings",
        "WITH a AS (FROM pg_settings), pg_settings AS (SELECT 1) FROM a",
        "WITH RECURSIVE pg_settings AS (SELECT name FROM pg_settings UNION ALL SELECT name FROM pg_settings) "
        "FROM pg_settings",
    ],
)
@pytest.mark.parametrize("namespace", [(None, None), ("lake", "sales")])
def test_a_common_table_opens_the_view_of_its_name_nowhere_else(statement: str, namespace: Any) -> None:
    with pytest.raises(UnsupportedOperation, match="a view of DuckDB, cannot be read here, only"):
        SqlDatabase(None, {}).execution(settings=CLOSED_IN, namespace=namespace).run(statement)


def test_tables_of_the_user_may_be_called_as_a_view_of_duckdb(tmp_path: Path) -> None:
    lake = forebay.paimon.Catalog.open(tmp_path)
    lake.create_database("sales")
    rows = pa.table({"name": ["mine"]})
    lake.create_table("sales.pg_settings", rows.schema).append(rows)
    database = SqlDatabase(None, {"lake": lake})
    for name in ("sales.pg_settings", 'sales."pg_settings"', "lake.sales.pg_settings", "pg_settings"):
        namespace = (None, None) if "." in name else ("lake", "sales")
        for statement in (
            f"SELECT name FROM {name}",
            f"WITH t AS (SELECT name FROM {name}) FROM t",
            f"WITH pg_tables AS (SELECT name FROM {name}) SELECT name FROM (SELECT * FROM PG_tables)",
            f"SELECT a.name FROM {name} a JOIN {name} b USING (name)",
        ):
            with database.execution(settings=CLOSED_IN, namespace=namespace).run(statement) as result:
                assert result.to_arrow().to_pylist() == [{"name": "mine"}]
        for statement in (f"DESCRIBE {name}", f"SUMMARIZE {name}", "FROM information_schema.tables", "SHOW timezone"):
            with database.execution(settings=CLOSED_IN, namespace=namespace).run(statement) as result:
                assert result.schema.names
    statement = "WITH RECURSIVE pg_am AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM pg_am WHERE n < 3) FROM pg_am"
    with database.execution(settings=CLOSED_IN).run(statement) as result:
        assert result.to_arrow().num_rows == 3


@pytest.mark.parametrize(
    "nested",
    [
        lambda n: "SELECT " + "+".join(["1"] * n),
        lambda n: "SELECT " + "||".join(["'a'"] * n),
        lambda n: "SELECT " + "abs(" * n + "1" + ")" * n,
        lambda n: "SELECT " + "[" * n + "1" + "]" * n,
        lambda n: "SELECT " + "{'a':" * n + "1" + "}" * n,
        lambda n: "SELECT " + "CASE WHEN false THEN 1 ELSE " * n + "1" + " END" * n,
        lambda n: "FROM " + "(FROM " * n + "(SELECT 1)" + ")" * n,
        lambda n: " UNION ALL ".join(["SELECT 1"] * n),
        lambda n: "SELECT 1 WHERE " + " OR ".join(f"1={i}" for i in range(n)),
        lambda n: "EXPLAIN SELECT " + "+".join(["1"] * n),
        lambda n: "SELECT 1 FROM sales.items AT (VERSION => " + "+".join(["1"] * n) + ")",
    ],
)
def test_statements_of_any_depth_run_or_are_refused(nested: Callable[[int], str], tmp_path: Path) -> None:
    database = SqlDatabase(None, {"lake": forebay.paimon.Catalog.open(tmp_path)})
    for depth in (20, 60, 70, 100, 250, 400, 900, 2000):
        with suppress(NotFound):  # sales.items, of a statement that is not too deep
            fault = ""
            try:
                database.execution().describe(nested(depth))
                database.execution().run(nested(depth)).to_arrow()
            except InvalidRequest as e:
                fault = str(e)
            assert fault == "" or re.search("nested too deeply|depth", fault)
            assert depth > 20 or fault == ""


@pytest.mark.parametrize("text", ["SELECT '\udcff'", "\ud800", "EXPLAIN SELECT 1 AS \udfff", "SHOW TABLES \udcff"])
def test_a_statement_that_is_no_unicode_text_is_refused(text: str) -> None:
    for call in ("run", "describe"):
        with pytest.raises(InvalidRequest, match=r"not Unicode text: see character \d+, '\\ud"):
            getattr(SqlDatabase(None, {}).execution(), call)(text)


def test_statements_of_others_may_compute() -> None:
    for statement, rows in (
        ("SELECT current_setting('TimeZone')", [("UTC",)]),
        ("SELECT sum(range) FROM range(4)", [(6,)]),
        ("SELECT * FROM unnest([1, 2])", [(1,), (2,)]),
    ):
        with SqlDatabase(None, {}).execution(settings=CLOSED_IN).run(statement) as result:
            found = result.to_arrow().to_pylist()
        assert [tuple(row.values()) for row in found] == rows
