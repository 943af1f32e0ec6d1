"""An ADBC client, which others wrote, against the endpoint."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as flightsql
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from adbc_driver_flightsql import ConnectionOptions, DatabaseOptions
from adbc_driver_manager import Error

import forebay
from forebay.base import threads
from forebay.flight.server import FlightSqlServer
from forebay.flight.statements import Limits
from forebay.inprocess import EmbeddedConnection
from forebay.server.embedded import EmbeddedServer
from tests.flight.conftest import EVENTS
from tests.patience import PATIENCE, until
from tests.query.values import TYPES, VALUES


@pytest.fixture
def client(endpoint: FlightSqlServer) -> Iterator[Any]:
    with closing(flightsql.connect(endpoint.location, autocommit=True)) as connection:
        yield connection


def rows(client: Any, statement: str, parameters: Any = None) -> list[dict[str, Any]]:
    with client.cursor() as cursor:
        cursor.execute(statement, parameters)
        found: list[dict[str, Any]] = cursor.fetch_arrow_table().to_pylist()
        return found


def test_a_query_joins_a_live_table_with_a_lake(client: Any) -> None:
    found = rows(
        client,
        """SELECT name, sum(amount) AS amount FROM fluss.orders JOIN lake.shop.items USING (item)
           WHERE id <= ? GROUP BY ALL ORDER BY name""",
        [3],
    )
    assert found == [{"name": "rum", "amount": Decimal("19.90")}, {"name": "tea", "amount": Decimal("10.50")}]


def test_values_of_all_types_arrive_as_forebay_returns_them(client: Any, live: EmbeddedConnection) -> None:
    live.create_table("fluss.types", TYPES).append([VALUES])
    with client.cursor() as cursor:
        cursor.execute("SELECT * FROM fluss.types")
        assert cursor.fetch_arrow_table() == live.sql("SELECT * FROM fluss.types").to_arrow()


def test_pandas_and_polars_read_through_it(client: Any) -> None:
    frame = pd.read_sql("SELECT id, note FROM fluss.orders WHERE id < 3 ORDER BY id", client)
    assert frame["id"].tolist() == [1, 2]
    assert pl.read_database("SELECT id FROM fluss.orders WHERE id = 2", client).to_dicts() == [{"id": 2}]


@pytest.mark.slow  # the runs of each commit have to stay below 12 minutes
def test_names_and_other_statements_that_read(client: Any) -> None:
    assert {"catalog": "lake", "database": "shop", "table": "items"} in rows(client, "SHOW TABLES")
    assert rows(client, "DESCRIBE lake.shop.items")[0]["column_name"] == "item"
    assert "ARROW_SCAN" in rows(client, "EXPLAIN SELECT * FROM fluss.orders")[0]["explain_value"]
    with client.cursor() as cursor:
        cursor.execute("SELECT 1 AS a, 2 AS a")
        assert [each[0] for each in cursor.description] == ["a", "a"]


@pytest.mark.slow  # the runs of each commit have to stay below 12 minutes
def test_parameters_of_each_kind(client: Any) -> None:
    given = [1, "x", Decimal("2.50"), dt.date(2026, 1, 31), True, None, b"\x00"]
    found = rows(client, "SELECT ? AS a, ? AS b, ? AS c, ? AS d, ? AS e, ? AS f, ? AS g", given)
    assert list(found[0].values()) == given
    assert rows(client, "SELECT id FROM fluss.orders WHERE note = ? OR id IN (?, ?) ORDER BY id", ["c", 1, 99]) == [
        {"id": 1},
        {"id": 3},
    ]
    with pytest.raises(Error, match="has 1 parameters, and 0 were given"):
        rows(client, "SELECT id FROM fluss.orders WHERE id = ?")
    with client.cursor() as cursor, pytest.raises(Error, match="a query takes one row of parameters"):
        cursor.execute("SELECT id FROM fluss.orders WHERE id = ?", pa.record_batch({"0": [1, 2]}))


def test_a_parameter_may_stand_where_null_may_not(client: Any) -> None:
    """A statement is described before its parameters are known. Found by SQLAlchemy's suite."""
    window = "ORDER BY id RANGE BETWEEN ? PRECEDING AND CURRENT ROW"
    statement = f"SELECT id, sum(id) OVER ({window}) AS s FROM fluss.orders WHERE id <= 3 ORDER BY id"
    assert [row["s"] for row in rows(client, statement, [1])] == [1, 3, 5]
    with pytest.raises(Error, match="Window RANGE expressions cannot be NULL"):
        rows(client, statement, [None])


def test_a_prepared_statement_says_what_it_takes_and_follows_changes_of_the_table(
    client: Any, live: EmbeddedConnection
) -> None:
    with client.cursor() as cursor:
        schema = cursor.adbc_prepare(
            """WITH few AS (SELECT * FROM fluss.orders WHERE amount > ?)
               SELECT * FROM few WHERE id BETWEEN ? AND ? AND lower(note) = ? LIMIT ?"""
        )
        assert schema.types == [pa.decimal128(10, 2), pa.int64(), pa.int64(), pa.string(), pa.int64()]
        schema = cursor.adbc_prepare("INSERT INTO fluss.orders (note, item) VALUES (?, ?), (?, 1)")
        assert schema.types == [pa.string(), pa.int32(), pa.string()]
    table = live.create_table("fluss.growing", {"id": "INT"})
    table.append([{"id": 1}])
    assert rows(client, "SELECT * FROM fluss.growing") == [{"id": 1}]
    table.alter(add_columns={"more": "STRING"})
    assert rows(client, "SELECT * FROM fluss.growing") == [{"id": 1, "more": None}]


@pytest.mark.slow  # the runs of each commit have to stay below 12 minutes
def test_an_insert_reports_its_rows_and_is_one_change(client: Any, live: EmbeddedConnection) -> None:
    with client.cursor() as cursor:
        cursor.execute("INSERT INTO fluss.orders (id, note) VALUES (?, ?)", [100, "p"])
        assert cursor.rowcount == 1
        cursor.execute("INSERT INTO fluss.orders (id, note) SELECT id + 100, note FROM fluss.orders WHERE id <= 3")
        assert cursor.rowcount == 3
        cursor.executemany("INSERT INTO fluss.orders (id, item) VALUES (?, ?)", [(200 + i, i) for i in range(50)])
        assert cursor.rowcount == 50
        cursor.executemany("INSERT INTO fluss.orders (id, item) SELECT ? + 1, ?", [(300, 1), (301, 2)])
        assert cursor.rowcount == 2
        cursor.executemany("INSERT INTO lake.shop.items VALUES (?, ?)", [(7, "gin"), (8, None)])
    found = rows(client, "SELECT count(*) AS n, sum(item) AS s FROM fluss.orders WHERE id BETWEEN 200 AND 302")
    assert found == [{"n": 52, "s": sum(range(50)) + 3}]
    assert rows(client, "SELECT name FROM lake.shop.items WHERE item > 6 ORDER BY item") == [
        {"name": "gin"},
        {"name": None},
    ]
    with client.cursor() as cursor, pytest.raises(Error, match="Could not convert"):
        cursor.executemany("INSERT INTO fluss.orders (id, item) VALUES (?, ?)", [(900, "1"), (901, "x")])
    assert rows(client, "SELECT * FROM fluss.orders WHERE id >= 900") == []


def test_an_insert_that_runs_as_a_query_runs_once(endpoint: FlightSqlServer, live: EmbeddedConnection) -> None:
    """pyarrow's own client asks for a ticket, and fetches it twice."""
    from forebay.flight import flight_sql_pb2 as pb
    from forebay.flight.commands import command_bytes

    live.create_table("fluss.once", {"id": "INT"})
    with fl.connect(endpoint.location) as plain:
        command = command_bytes(pb.CommandStatementQuery(query="INSERT INTO fluss.once VALUES (1), (2)"))
        info = plain.get_flight_info(fl.FlightDescriptor.for_command(command))
        assert live.table("fluss.once").scan().count() == 0
        ticket = info.endpoints[0].ticket
        assert plain.do_get(ticket).read_all().to_pylist() == [{"rows": 2}]
        with pytest.raises(fl.FlightServerError, match="it was closed, was run"):
            plain.do_get(ticket).read_all()
        with pytest.raises(fl.FlightServerError, match="connect with a Flight SQL client"):
            plain.get_flight_info(fl.FlightDescriptor.for_path("x"))
        with pytest.raises(fl.FlightServerError, match="not a command of Arrow Flight SQL"):
            plain.do_get(fl.Ticket(b"\xff"))
    assert live.table("fluss.once").scan().count() == 2


def test_ingestion_appends_replaces_by_key_and_creates(client: Any, live: EmbeddedConnection) -> None:
    data = pa.table({"item": pa.array([1, 2], pa.int64()), "id": [500, 501]})
    with client.cursor() as cursor:
        assert cursor.adbc_ingest("orders", data, mode="append", db_schema_name="fluss") == 2
        assert cursor.adbc_ingest("orders", data, mode="append", db_schema_name="fluss", catalog_name="live") == 2
        assert cursor.adbc_ingest("born", data, mode="create", db_schema_name="fluss") == 2
        with pytest.raises(Error, match=r"fluss\.born exists already"):
            cursor.adbc_ingest("born", data, mode="create", db_schema_name="fluss")
        with pytest.raises(Error, match="cannot be replaced: drop it first"):
            cursor.adbc_ingest("born", data, mode="replace", db_schema_name="fluss")
        assert cursor.adbc_ingest("born", data, mode="create_append", db_schema_name="fluss") == 2
        assert cursor.adbc_ingest("born", data, mode="create", db_schema_name="shop", catalog_name="lake") == 2
    for table, more, error in (("missing", {}, r"no table fluss\.missing"), ("orders", {"other": [1, 2]}, "other")):
        wider = pa.table({**{name: data[name] for name in data.column_names}, **more})
        with client.cursor() as cursor, pytest.raises(Error, match=error):
            cursor.adbc_ingest(table, wider, mode="append", db_schema_name="fluss")
    assert rows(client, "SELECT id, item, note FROM fluss.orders WHERE id = 501") == [
        {"id": 501, "item": 2, "note": None}
    ]
    assert live.table("fluss.born").scan().count() == 4


def test_ingesting_a_batch_without_rows_makes_the_table(client: Any, live: EmbeddedConnection) -> None:
    batch = pa.RecordBatch.from_pydict({"id": pa.array([], pa.int64()), "item": pa.array([], pa.string())})
    for mode in ("create", "append", "create_append"):
        with client.cursor() as cursor:
            assert cursor.adbc_ingest("nothing", batch, mode=mode, db_schema_name="fluss") == 0
        assert live.table("fluss.nothing").scan().to_arrow().schema.names == ["id", "item"]
        with client.cursor() as cursor, pytest.raises(Error, match="Stream finished before first message"):
            cursor.adbc_ingest("nothing", batch.schema.empty_table(), mode="append", db_schema_name="fluss")


def test_parameters_and_rows_of_half_floats_and_wide_decimals_are_taken(client: Any, live: EmbeddedConnection) -> None:
    """Found by ADBC's validation suite."""
    live.create_table("fluss.widened", {"half": "FLOAT", "wide": "DECIMAL(38, 2)"})
    given = pa.table({"half": pa.array([1.5], pa.float16()), "wide": pa.array([Decimal("2.50")], pa.decimal256(38, 2))})
    with client.cursor() as cursor:
        cursor.adbc_ingest("widened", given, mode="append", db_schema_name="fluss")
        cursor.executemany("INSERT INTO fluss.widened VALUES (?, ?)", given)
    assert rows(client, "SELECT * FROM fluss.widened") == [{"half": 1.5, "wide": Decimal("2.50")}] * 2


def test_rows_are_ingested_without_the_column_that_the_server_numbers(client: Any, live: EmbeddedConnection) -> None:
    live.create_table("fluss.numbered", {"id": "INT", "no": "BIGINT"}, primary_key="id", auto_increment="no")
    with client.cursor() as cursor:
        assert cursor.adbc_ingest("numbered", pa.table({"id": [7]}), mode="append", db_schema_name="fluss") == 1
        given = pa.table({"id": [8], "no": [1]})
        with pytest.raises(Error, match="the server numbers column 'no', so leave it out"):
            cursor.adbc_ingest("numbered", given, mode="append", db_schema_name="fluss")
    assert rows(client, "SELECT * FROM fluss.numbered") == [{"id": 7, "no": 1}]
    is_numbered = b"ARROW:FLIGHT:SQL:IS_AUTO_INCREMENT"
    schema = client.adbc_get_table_schema("numbered", db_schema_filter="fluss")
    assert [field.metadata[is_numbered] for field in schema] == [b"0", b"1"]


def test_what_the_catalog_has(client: Any) -> None:
    found = {each["catalog_name"]: each for each in client.adbc_get_objects().read_all().to_pylist()}
    assert sorted(found) == ["lake", "live"]
    narrow = client.adbc_get_objects(
        catalog_filter="live", db_schema_filter="fl%", table_name_filter="ord_rs"
    ).read_all()
    (schema,) = narrow.to_pylist()[0]["catalog_db_schemas"]
    (table,) = schema["db_schema_tables"]
    assert (schema["db_schema_name"], table["table_name"], table["table_type"]) == ("fluss", "orders", "TABLE")
    assert [column["xdbc_type_name"] for column in table["table_columns"]] == [
        "BIGINT",
        "INT",
        "DECIMAL(10, 2)",
        "TIMESTAMP_LTZ(3)",
        "STRING",
    ]
    schema = client.adbc_get_table_schema("orders", db_schema_filter="fluss")
    assert (schema.field("id").nullable, schema.field("note").nullable) == (False, True)
    info = client.adbc_get_info()
    assert (info["vendor_name"], info["vendor_version"]) == ("Forebay", forebay.__version__)


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("SELEC 1", "not SQL: Parser Error"),
        ("SELECT * FROM fluss.nope", "there is no table fluss.nope"),
        ("SELECT nope FROM fluss.orders", 'column "nope" not found'),
        ("DELETE FROM fluss.orders", "DELETE is not supported"),
        ("SELECT CAST(note AS INT) FROM fluss.orders", "Could not convert string 'a'"),
        ("SELECT * FROM read_text('/etc/passwd')", "cannot be called here"),
        (
            "SELECT * FROM fluss.orders AT (VERSION => (SELECT content FROM read_text('/etc/passwd')))",
            "cannot be called here",
        ),
        ("INSERT INTO fluss.events SELECT 1, content FROM read_text('/etc/passwd')", "cannot be called here"),
        ("SELECT " + "1 + " * (1 << 18) + "1", "at most 1,048,576 characters"),
    ],
)
def test_errors_say_what_is_wrong_without_a_traceback(client: Any, statement: str, error: str) -> None:
    with pytest.raises(Error, match=error) as caught:
        rows(client, statement)
    assert "Traceback" not in str(caught.value)


def test_rows_are_streamed_and_a_reader_that_leaves_frees_its_place(client: Any, endpoint: FlightSqlServer) -> None:
    """At most three statements run here, and each of these would take minutes."""
    endless = "SELECT a.id FROM fluss.events a, fluss.events b"
    for _ in range(5):
        with client.cursor() as cursor:
            cursor.execute(endless)
            assert cursor.fetchone() is not None
    until(lambda: endpoint.statements.running == 0)
    with client.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM fluss.events")
        assert cursor.fetchone() == (EVENTS,)


@pytest.fixture
def impatient(live: EmbeddedConnection, flight_lake: str) -> Iterator[FlightSqlServer]:
    server = FlightSqlServer(live, {"lake": flight_lake}, limits=Limits(queries_max=3, wait_seconds=0.05))
    yield server
    server.stop()


def test_statements_wait_for_their_turn_and_can_be_cancelled(impatient: FlightSqlServer) -> None:
    with fl.connect(impatient.location) as plain:
        infos, readers = [], []
        for _ in range(3):
            info = plain.get_flight_info(described("SELECT a.id FROM fluss.events a, fluss.events b"))
            infos.append(info)
            readers.append(plain.do_get(info.endpoints[0].ticket))
            assert readers[-1].read_chunk().data.num_rows
        late = plain.get_flight_info(described("SELECT 1 AS one")).endpoints[0].ticket
        with pytest.raises(fl.FlightUnavailableError, match=r"3 statements are running.*--queries-max"):
            plain.do_get(late).read_all()
        for info in infos:
            assert cancel(plain, info) == 1
        for reader in readers:
            with pytest.raises(fl.FlightError, match="the statement was cancelled"):
                reader.read_all()
        until(lambda: impatient.statements.running == 0)
        assert plain.do_get(late).read_all().to_pylist() == [{"one": 1}]
        assert cancel(plain, infos[0]) == 3  # nothing to cancel any longer
        unread = plain.get_flight_info(described("SELECT 1 AS one"))
        assert cancel(plain, unread) == 1
        with pytest.raises(fl.FlightServerError, match="is unknown"):
            plain.do_get(unread.endpoints[0].ticket)


def described(statement: str) -> fl.FlightDescriptor:
    from forebay.flight import flight_sql_pb2 as pb
    from forebay.flight.commands import command_bytes

    return fl.FlightDescriptor.for_command(command_bytes(pb.CommandStatementQuery(query=statement)))


def cancel(plain: fl.FlightClient, info: fl.FlightInfo) -> int:
    from forebay.flight import flight_sql_pb2 as pb

    body = pb.CancelFlightInfoRequest(info=info.serialize()).SerializeToString()
    (answer,) = plain.do_action(fl.Action("CancelFlightInfo", body))
    return pb.CancelFlightInfoResult.FromString(answer.body.to_pybytes()).status  # type: ignore[attr-defined,no-any-return]


def test_limits_of_time_and_number(live: EmbeddedConnection, flight_lake: str) -> None:
    limits = Limits(handles_max=2, sessions_max=1, query_seconds=0.1)
    server = FlightSqlServer(live, {"lake": flight_lake}, limits=limits)
    try:
        with fl.connect(server.location) as plain:
            ticket = plain.get_flight_info(described("SELECT count(*) FROM fluss.events a, fluss.events b"))
            with pytest.raises(fl.FlightServerError, match=r"more than 0\.1 seconds \(--query-timeout\)"):
                plain.do_get(ticket.endpoints[0].ticket).read_all()
            plain.get_flight_info(described("SELECT 2"))
            with pytest.raises(fl.FlightUnavailableError, match=r"2 statements that wait to be read.*--handles-max"):
                plain.get_flight_info(described("SELECT 3"))
            plain.authenticate_basic_token("any", "word")
            with pytest.raises(fl.FlightUnavailableError, match=r"1 sessions, the maximum.*--sessions-max"):
                plain.authenticate_basic_token("any", "word")
    finally:
        server.stop()


def test_a_statement_that_needs_too_much_memory_is_ended_alone(live: EmbeddedConnection) -> None:
    server = FlightSqlServer(live, {}, limits=Limits(query_memory_bytes=200 << 20))
    try:
        with fl.connect(server.location) as plain:
            ticket = plain.get_flight_info(described("SELECT repeat('x', 2000000000)"))
            with pytest.raises(fl.FlightUnavailableError, match=r"its memory of 200\.0 MiB \(--query-memory\)"):
                plain.do_get(ticket.endpoints[0].ticket).read_all()
            ticket = plain.get_flight_info(described("SELECT count(*) FROM fluss.events"))
            assert plain.do_get(ticket.endpoints[0].ticket).read_all()[0][0].as_py() == EVENTS
    finally:
        server.stop()


@pytest.mark.parametrize(
    "statement", ["SELECT count(*) FROM range(10000000) a, range(10000000) b", "FROM range(1000000000000)"]
)
def test_stopping_ends_statements_that_compute_and_those_whose_client_does_not_read(statement: str) -> None:
    server = FlightSqlServer(None, {})
    with fl.connect(server.location) as plain:
        ticket = plain.get_flight_info(described(statement)).endpoints[0].ticket
        seen = list[Exception]()

        def read() -> None:
            try:
                reader = plain.do_get(ticket)
                reader.read_chunk()
                stopped.wait(PATIENCE)
                reader.read_all()
            except fl.FlightError as e:
                seen.append(e)

        stopped = threads.event()
        reading, stopping = threads.thread(read, name="read"), threads.thread(server.stop, name="stop")
        reading.start()
        until(lambda: server.statements.running == 1)
        stopping.start()
        stopping.join(PATIENCE)
        assert not stopping.is_alive()
        stopped.set()
        reading.join(PATIENCE)
        assert len(seen) == 1


def test_without_allow_changes_it_only_reads(live: EmbeddedConnection, flight_lake: str) -> None:
    server = FlightSqlServer(live, {"lake": flight_lake})
    try:
        with closing(flightsql.connect(server.location, autocommit=True)) as client:
            assert rows(client, "SELECT id FROM fluss.orders WHERE id = 1") == [{"id": 1}]
            with pytest.raises(
                Error, match="INSERT is refused: this endpoint is read-only; start it with --allow-changes"
            ):
                rows(client, "INSERT INTO fluss.orders (id) VALUES (1000)")
            with pytest.raises(Error, match="ingestion is refused"), client.cursor() as cursor:
                cursor.adbc_ingest("orders", pa.table({"id": [1000]}), mode="append", db_schema_name="fluss")
    finally:
        server.stop()
    assert live.table("fluss.orders").lookup([1000])["id"].to_pylist() in ([None], [])


@pytest.mark.slow  # the runs of each commit have to stay below 12 minutes
def test_a_session_has_a_catalog_and_a_schema_for_names_without(endpoint: FlightSqlServer) -> None:
    options = {DatabaseOptions.WITH_COOKIE_MIDDLEWARE.value: "true"}
    with closing(flightsql.connect(endpoint.location, db_kwargs=options, autocommit=True)) as client:
        client.adbc_connection.set_options(**{ConnectionOptions.OPTION_SESSION_OPTION_PREFIX.value + "schema": "shop"})
        client.adbc_connection.set_options(**{ConnectionOptions.OPTION_SESSION_OPTION_PREFIX.value + "catalog": "lake"})
        assert rows(client, "SELECT name FROM items WHERE item = 1") == [{"name": "tea"}]
        assert rows(client, "WITH items AS (SELECT 5 AS item) SELECT * FROM items") == [{"item": 5}]
        assert rows(client, "SELECT name FROM shop.items WHERE item = 2") == [{"name": "rum"}]
        with pytest.raises(Error, match=r"no table .*nope"):
            rows(client, "SELECT name FROM nope")
        with pytest.raises(Error):
            client.adbc_connection.set_options(
                **{ConnectionOptions.OPTION_SESSION_OPTION_PREFIX.value + "catalog": "nowhere"}
            )
    with closing(flightsql.connect(endpoint.location, autocommit=True)) as other, pytest.raises(Error, match="items"):
        rows(other, "SELECT name FROM items")


def test_a_session_has_a_catalog_before_one_is_set(endpoint: FlightSqlServer, flight_lake: str) -> None:
    options = {DatabaseOptions.WITH_COOKIE_MIDDLEWARE.value: "true"}
    with flightsql.connect(endpoint.location, db_kwargs=options, autocommit=True) as connection:
        assert connection.adbc_current_catalog == "live"
        connection.adbc_current_catalog = "lake"
        assert connection.adbc_current_catalog == "lake"
    only = FlightSqlServer(None, {"shelf": flight_lake})
    try:
        with flightsql.connect(only.location, db_kwargs=options, autocommit=True) as connection:
            assert connection.adbc_current_catalog == "shelf"
    finally:
        only.stop()


def test_users_log_in_at_the_server_and_query_as_themselves(tmp_path: Path) -> None:
    settings = {"security.sasl.plain.credentials": "admin:secret,ann:word"}
    with EmbeddedServer(tmp_path / "data", sasl=True, settings=settings) as fluss:
        where = fluss.addresses.bootstrap_servers
        users = list[str]()

        def connect(user: str, password: str) -> forebay.Connection:
            connection = forebay.connect(where, user, password)
            users.append(user)
            return connection

        endpoint = FlightSqlServer(None, {}, connect=connect, allow_changes=True)
        try:
            with closing(logged_in(endpoint, "admin", "secret")) as client:
                assert rows(client, "SELECT 1 AS one") == [{"one": 1}]
                with closing(logged_in(endpoint, "ann", "word")) as ann:
                    assert rows(ann, "SHOW TABLES") == []
                    assert len(endpoint.sessions) == 2
            assert users == ["admin", "ann"]
            with pytest.raises(Error, match=r"(?i)password"):
                logged_in(endpoint, "ann", "wrong")
            with (
                closing(flightsql.connect(endpoint.location, autocommit=True)) as unknown,
                pytest.raises(Error, match="user and password are missing"),
            ):
                rows(unknown, "SELECT 1")
        finally:
            endpoint.stop()


def logged_in(endpoint: FlightSqlServer, user: str, password: str) -> Any:
    return flightsql.connect(endpoint.location, db_kwargs={"username": user, "password": password}, autocommit=True)
