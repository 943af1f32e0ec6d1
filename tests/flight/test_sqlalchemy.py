"""The dialect `forebay://`: SQLAlchemy's reflection, statements, and pandas."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, registry

from forebay.flight.server import FlightSqlServer
from forebay.inprocess import EmbeddedConnection
from tests.query.values import TYPES

registry.register("forebay", "forebay.sqlalchemy", "ForebayDialect")  # as the package's entry point does


@pytest.fixture
def engine(endpoint: FlightSqlServer, live: EmbeddedConnection) -> Iterator[sa.Engine]:
    live.create_table(
        "fluss.notes",
        {"id": "BIGINT", "part": "INT", "amount": "DECIMAL(10, 2)", "at": "TIMESTAMP_LTZ(3)", "order": "STRING"},
        primary_key=["part", "id"],
        ignore_if_exists=True,
    )
    live.create_table("fluss.noteXs", {"id": "INT"}, ignore_if_exists=True)
    live.create_table("fluss.note_s", {"other": "INT"}, ignore_if_exists=True)
    engine = sa.create_engine(f"forebay://127.0.0.1:{endpoint.port}/")
    yield engine
    engine.dispose()


def test_schemas_tables_columns_and_keys_are_reflected(engine: sa.Engine, live: EmbeddedConnection) -> None:
    inspector = sa.inspect(engine)
    assert {"fluss", "lake.shop"} <= set(inspector.get_schema_names())
    assert "notes" in inspector.get_table_names("fluss")
    assert "items" in inspector.get_table_names("lake.shop")
    columns = {column["name"]: column for column in inspector.get_columns("notes", "fluss")}
    assert isinstance(columns["amount"]["type"], sa.Numeric)
    assert (columns["amount"]["type"].precision, columns["amount"]["type"].scale) == (10, 2)
    assert isinstance(columns["at"]["type"], sa.DateTime)
    assert columns["at"]["type"].timezone
    assert (columns["id"]["nullable"], columns["order"]["nullable"]) == (False, True)
    assert inspector.get_pk_constraint("notes", "fluss")["constrained_columns"] == ["part", "id"]
    assert [column["name"] for column in inspector.get_columns("note_s", "fluss")] == ["other"]
    assert inspector.has_table("note_s", "fluss")
    assert not inspector.has_table("note%", "fluss")
    with pytest.raises(sa.exc.NoSuchTableError, match=r"fluss\.nope"):
        inspector.get_columns("nope", "fluss")
    for ask in (
        inspector.get_pk_constraint,
        inspector.get_foreign_keys,
        inspector.get_indexes,
        inspector.get_unique_constraints,
        inspector.get_check_constraints,
        inspector.get_table_comment,
    ):
        with pytest.raises(sa.exc.NoSuchTableError):
            ask("nope", "fluss")
    live.create_table("fluss.all_types", TYPES, ignore_if_exists=True)
    types = {column["name"]: str(column["type"]) for column in inspector.get_columns("all_types", "fluss")}
    assert (types["list"], types["map"], types["bytes"]) == ("ARRAY<INT>", "MAP<STRING NOT NULL, INT>", "BLOB")


def test_a_reflected_table_is_read_and_inserted_into(engine: sa.Engine) -> None:
    notes = sa.Table("notes", sa.MetaData(), schema="fluss", autoload_with=engine)
    at = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    given = [
        {"id": 1, "part": 1, "amount": Decimal("2.50"), "at": at, "order": "100%"},
        {"id": 2, "part": 1, "amount": None, "at": None, "order": None},
        {"id": 3, "part": 2, "amount": Decimal("1.25"), "at": None, "order": "x"},
    ]
    with engine.begin() as connection:
        connection.execute(notes.insert(), given)
        connection.execute(notes.insert().values(id=4, part=2, order="single"))
        found = connection.execute(sa.select(notes).where(notes.c.id < 4).order_by(notes.c.id)).mappings().all()
        assert [dict(row) for row in found] == given
        ours = notes.c.part < 9  # other tests insert rows, too
        like = sa.select(notes.c.id).where(ours, notes.c.order.like("%\\%", escape="\\")).limit(1).offset(0)
        assert connection.execute(like).scalars().all() == [1]
        total = sa.func.sum(notes.c.amount).label("s")
        totals = sa.select(notes.c.part, total).where(ours).group_by(notes.c.part).order_by("s")
        assert connection.execute(totals).all() == [(2, Decimal("1.25")), (1, Decimal("2.50"))]
        late = sa.select(sa.func.date_trunc("day", notes.c.at)).where(ours, notes.c.at >= dt.datetime(2026, 1, 1))
        assert connection.execute(late).scalar_one().day == 31


@pytest.mark.slow  # the runs of each commit have to stay below 12 minutes
def test_pandas_reads_tables_and_appends_to_them(engine: sa.Engine) -> None:
    frame = pd.DataFrame({"id": [10, 11], "part": [9, 9], "order": ["a", None]})
    assert frame.to_sql("notes", engine, schema="fluss", if_exists="append", index=False) == 2
    found = pd.read_sql('SELECT id, "order" FROM fluss.notes WHERE part = 9 ORDER BY id', engine)
    assert found["order"].tolist() == ["a", None]
    assert len(pd.read_sql_table("items", engine, schema="lake.shop")) >= 2
    with pytest.raises(sa.exc.DBAPIError, match="CREATE is not supported"):
        frame.to_sql("brand_new", engine, schema="fluss", index=False)


def test_a_url_has_a_default_schema_a_user_and_no_unknown_options(engine: sa.Engine, endpoint: FlightSqlServer) -> None:
    other = sa.create_engine(f"forebay://ann:word@127.0.0.1:{endpoint.port}/lake.shop")
    try:
        inspector = sa.inspect(other)
        assert inspector.default_schema_name == "lake.shop"
        assert "items" in inspector.get_table_names()
        with other.connect() as connection:
            assert connection.execute(sa.text("SELECT name FROM items WHERE item = :i"), {"i": 1}).scalar_one() == "tea"
    finally:
        other.dispose()
    with pytest.raises(sa.exc.ArgumentError, match="'ssl' in the URL is unknown"):
        sa.create_engine("forebay://127.0.0.1/?ssl=1").connect()
    with pytest.raises(sa.exc.ArgumentError, match="neither 'true' nor 'false'"):
        sa.create_engine("forebay://127.0.0.1/?tls=1").connect()


@pytest.fixture
def values(engine: sa.Engine, live: EmbeddedConnection) -> sa.Table:
    live.create_table(
        "fluss.computed",
        {"id": "BIGINT", "raw": "BYTES", "at": "TIMESTAMP(3)", "name": "STRING"},
        primary_key="id",
        ignore_if_exists=True,
    )
    noon = dt.datetime(2026, 1, 1, 12)
    live.table("fluss.computed").upsert(
        [
            {"id": -7, "raw": b"\x00\xff'", "at": noon, "name": "a"},
            {"id": 6, "raw": b"x", "at": noon, "name": "b"},
            {"id": 7, "raw": None, "at": None, "name": None},
            {"id": 2**53 + 3, "raw": b"", "at": noon, "name": "c"},
        ]
    )
    return sa.Table("computed", sa.MetaData(), schema="fluss", autoload_with=engine)


def test_expressions_of_integers_times_and_bytes_mean_what_python_means(engine: sa.Engine, values: sa.Table) -> None:
    ids = [-7, 6, 7, 2**53 + 3]
    at, hour = values.c.at, dt.timedelta(hours=1, microseconds=5000)
    noon = dt.datetime(2026, 1, 1, 12)
    with engine.connect() as connection:

        def found(*what: Any, where: Any = True) -> list[Any]:
            rows = connection.execute(sa.select(*what).where(where).order_by(values.c.id)).all()
            return [row[0] if len(row) == 1 else tuple(row) for row in rows]

        for divisor in (2, -2, 7):
            assert found(values.c.id // divisor) == [value // divisor for value in ids]
        assert found(values.c.id, where=values.c.id // 2 == 3) == [6, 7]
        assert found(values.c.id / 2, where=values.c.id < 8) == [-3.5, 3.0, 3.5]
        assert found(values.c.raw) == [b"\x00\xff'", b"x", None, b""]
        for raw in (b"\x00\xff'", bytearray(b"\x00\xff'"), memoryview(b"\x00\xff'")):
            assert found(values.c.id, where=values.c.raw == raw) == [-7]
        assert found(at + hour, where=values.c.id == 6) == [noon + hour]
        assert found(values.c.id, where=at - dt.timedelta(days=1) < noon) == [-7, 6, 2**53 + 3]
        assert found(at - dt.datetime(2025, 12, 31), where=values.c.id == 6) == [dt.timedelta(days=1, hours=12)]
        assert found(sa.cast(hour, sa.Interval), where=values.c.id == 6) == [hour]
        connection.execute(values.insert(), [{"id": 100, "raw": b"\x00"}, {"id": 101, "raw": None}])
        assert found(values.c.raw, where=values.c.id.in_([100, 101])) == [b"\x00", None]


def test_comments_lengths_and_numbered_columns_are_reflected(engine: sa.Engine, live: EmbeddedConnection) -> None:
    columns = {"id": "BIGINT", "code": "CHAR(3)", "small": "FLOAT", "no": "BIGINT"}
    live.create_table("fluss.described", columns, primary_key="id", auto_increment="no", comment="what they are")
    inspector = sa.inspect(engine)
    assert inspector.get_table_comment("described", "fluss") == {"text": "what they are"}
    found = {column["name"]: column for column in inspector.get_columns("described", "fluss")}
    assert isinstance(found["code"]["type"], sa.CHAR)
    assert found["code"]["type"].length == 3
    assert isinstance(found["small"]["type"], sa.REAL)
    assert [name for name in found if found[name].get("autoincrement")] == ["no"]
    table = sa.Table("described", sa.MetaData(), schema="fluss", autoload_with=engine)
    with engine.connect() as connection:
        connection.execute(table.insert(), [{"id": 5, "code": "abc"}])
        assert connection.execute(sa.select(table.c.id, table.c.no)).all() == [(5, 1)]


def test_autocommit_is_the_only_isolation_level(endpoint: FlightSqlServer) -> None:
    url = f"forebay://127.0.0.1:{endpoint.port}/"
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            assert connection.get_isolation_level() == "AUTOCOMMIT"
            with pytest.raises(sa.exc.ArgumentError, match=r"Valid isolation levels .* are AUTOCOMMIT"):
                connection.execution_options(isolation_level="SERIALIZABLE")
    finally:
        engine.dispose()


def test_casts_keep_the_digits_and_zones_that_their_types_have(engine: sa.Engine) -> None:
    at = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    casts = (
        ("1.23456", sa.Numeric, Decimal("1.2345600000")),
        ("1.5", sa.Numeric(5), Decimal("2")),
        ("0.1", sa.Float, 0.1),
        ("0.1", sa.Float(24), 0.10000000149011612),
        ("2026-01-01 12:00+00", sa.DateTime(timezone=True), at),
        ("2026-01-01 12:00+00", sa.TIMESTAMP(timezone=True), at),
        ("2026-01-01 12:00", sa.DateTime, at.replace(tzinfo=None)),
        ("x", sa.CLOB, "x"),
        ("x", sa.BINARY(16), b"x"),
        ("x", sa.VARBINARY(16), b"x"),
        ("[1, 2]", sa.ARRAY(sa.Integer), [1, 2]),
        ("[[1], [2]]", sa.ARRAY(sa.Integer, dimensions=2), [[1], [2]]),
    )
    with engine.connect() as connection:
        found = connection.execute(sa.select(*(sa.cast(sa.literal(text, sa.String), t) for text, t, _ in casts))).one()
    assert list(found) == [value for _, _, value in casts]


@pytest.mark.skipif(not hasattr(postgresql, "distinct_on"), reason="SQLAlchemy 2.1 has it")
def test_distinct_on_keeps_one_row_of_each_value(engine: sa.Engine) -> None:
    ids = sa.values(sa.column("part", sa.Integer), sa.column("id", sa.Integer), name="v").data(
        [(1, 10), (1, 11), (2, 20)]
    )
    newest = sa.select(ids.c.part, ids.c.id).order_by(ids.c.part, ids.c.id.desc())
    with engine.connect() as connection:
        assert connection.execute(newest.ext(postgresql.distinct_on(ids.c.part))).all() == [(1, 11), (2, 20)]
        with pytest.warns(sa.exc.SADeprecationWarning):
            older = newest.distinct(ids.c.part)
        assert connection.execute(older).all() == [(1, 11), (2, 20)]


def test_operators_of_sqlalchemy_are_written_in_the_words_of_duckdb(engine: sa.Engine, values: sa.Table) -> None:
    name, number = sa.literal("Tea and tea", sa.String), sa.literal(5, sa.Integer)
    asked = (
        (name.regexp_match("^tea"), False),
        (name.regexp_match("^tea", flags="i"), True),
        (sa.not_(name.regexp_match("rum")), True),
        (name.regexp_replace("[Tt]ea", "rum"), "rum and tea"),
        (name.regexp_replace("tea", "rum", flags="gi"), "rum and rum"),
        (number.bitwise_xor(3), 6),
        (number.bitwise_xor(3).bitwise_and(4), 4),
    )
    with engine.connect() as connection:
        found = connection.execute(sa.select(*(expression for expression, _ in asked))).one()
        assert list(found) == [value for _, value in asked]
        ids = sa.select(values.c.id).where(values.c.id < 8).order_by(values.c.id)
        assert connection.execute(ids.offset(1)).scalars().all() == [6, 7]
        assert connection.execute(ids.offset(1).limit(1)).scalars().all() == [6]
        written = ids.where(values.c.raw == b"\x00\xff'").compile(engine, compile_kwargs={"literal_binds": True})
        assert connection.exec_driver_sql(str(written)).scalars().all() == [-7]
        given = [{"id": 300, "amount": 2}, {"id": 301, "amount": Decimal("2.25")}, {"id": 302, "amount": 2.5}]
        notes = sa.Table("notes", sa.MetaData(), schema="fluss", autoload_with=engine)
        connection.execute(notes.insert(), [{**row, "part": 30} for row in given])
        amounts = sa.select(notes.c.amount).where(notes.c.part == 30).order_by(notes.c.id)
        assert connection.execute(amounts).scalars().all() == [Decimal("2.00"), Decimal("2.25"), Decimal("2.50")]
        half = connection.execute(sa.select(sa.func.max(notes.c.amount) / 2).where(notes.c.part == 30)).scalar_one()
        assert half == Decimal("1.25")
        assert isinstance(half, Decimal)


def test_lists_without_elements_select_nothing_in_texts_too(engine: sa.Engine, values: sa.Table) -> None:
    with engine.connect() as connection:
        for column, some in (("id", [6, 7]), ("name", ["b", "x"]), ("raw", [b"x"])):
            text = sa.text(f"SELECT id FROM fluss.computed WHERE {column} IN :some")
            statement = text.bindparams(sa.bindparam("some", expanding=True))
            assert 6 in connection.execute(statement, {"some": some}).scalars().all()
            assert connection.execute(statement, {"some": []}).all() == []
            assert connection.execute(sa.select(values.c.id).where(values.c[column].in_([]))).all() == []
        pair = sa.tuple_(values.c.id, values.c.name)
        assert connection.execute(sa.select(values.c.id).where(pair.in_([(6, "b")]))).scalars().all() == [6]
        assert connection.execute(sa.select(values.c.id).where(pair.in_([]))).all() == []


def test_what_a_statement_cannot_return_is_said_before_it_is_sent(engine: sa.Engine, values: sa.Table) -> None:
    with engine.connect() as connection, pytest.raises(sa.exc.CompileError, match="no RETURNING: read the rows"):
        connection.execute(values.insert().returning(values.c.id), [{"id": 200}])
