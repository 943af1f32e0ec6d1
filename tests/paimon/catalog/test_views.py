"""Views of REST and Hive catalogs: they come and go, beside tables; other catalogs refuse them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.base.errors import AlreadyExists, CorruptData, InvalidRequest, NotFound, UnsupportedOperation
from forebay.hive.views import from_hive_type
from forebay.metadata import types
from forebay.paimon.catalog.catalog import Catalog
from tests.paimon.catalog.conftest import drop_all
from tests.paimon.catalog.rest_server import RestServer

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestServer]:
    made = RestServer(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["rest", pytest.param("hive", marks=pytest.mark.slow)])
def catalog(request: pytest.FixtureRequest, server: RestServer) -> Iterator[Catalog]:
    """A catalog with database `db`, which has table `t`."""
    options = server.options if request.param == "rest" else request.getfixturevalue("hive_options")
    opened = Catalog.open(options)
    opened.create_database("db")
    opened.create_table("db.t", COLUMNS)
    yield opened
    drop_all(opened)


def test_a_view_is_kept_with_all_that_it_was_created_with(catalog: Catalog) -> None:
    schema = [("id", "INT NOT NULL"), ("at", "TIMESTAMP_LTZ(6)"), ("tags", "MAP<STRING NOT NULL, ARRAY<INT NOT NULL>>")]
    made = catalog.create_view("db.v", schema, "SELECT 1", comment="one", options={"n": 4, "on": True})
    assert catalog.view("db.v") == made
    assert (made.query, made.comment, made.options) == ("SELECT 1", "one", {"n": "4", "on": "true"})
    assert [str(f.type) for f in made.fields] == [text for _, text in schema]
    assert made.arrow_schema.names == ["id", "at", "tags"]
    assert made.query_for("spark") == "SELECT 1"
    assert catalog.list_views("db") == ["v"]
    assert catalog.list_tables("db") == ["t"]


def test_views_come_and_go(catalog: Catalog) -> None:
    for name in "cab":
        catalog.create_view(f"db.{name}", COLUMNS, f"SELECT '{name}'")
    assert catalog.list_views("db") == ["a", "b", "c"]
    catalog.create_database("other")
    catalog.rename_view("db.a", "other.d")
    catalog.drop_view("db.b")
    catalog.drop_view("db.b", ignore_if_not_exists=True)
    assert (catalog.list_views("db"), catalog.list_views("other")) == (["c"], ["d"])
    assert catalog.view("other.d").query == "SELECT 'a'"


def test_an_existing_view_is_refused_kept_or_replaced(catalog: Catalog) -> None:
    old = catalog.create_view("db.v", COLUMNS, "SELECT 1", comment="old", options={"a": "1"})
    with pytest.raises(AlreadyExists, match=r"view 'db\.v' exists already"):
        catalog.create_view("db.v", COLUMNS, "SELECT 2")
    assert catalog.create_view("db.v", COLUMNS, "SELECT 2", ignore_if_exists=True) == old
    other = catalog.create_view("db.v", COLUMNS, "SELECT 1", comment="new", options={"b": "2"}, replace=True)
    assert catalog.view("db.v") == other
    new = catalog.create_view("db.v", [("n", "INT")], "SELECT 3", replace=True)
    assert catalog.view("db.v") == new
    assert catalog.create_view("db.w", COLUMNS, "SELECT 4", replace=True) == catalog.view("db.w")
    with pytest.raises(InvalidRequest, match="not with both"):
        catalog.create_view("db.v", COLUMNS, "SELECT 2", ignore_if_exists=True, replace=True)


def test_a_name_is_that_of_a_table_or_of_a_view(catalog: Catalog) -> None:
    catalog.create_view("db.v", COLUMNS, "SELECT 1")
    with pytest.raises(AlreadyExists, match="there is a view"):
        catalog.create_table("db.v", COLUMNS)
    with pytest.raises(AlreadyExists, match="view"):
        catalog.rename_table("db.t", "db.v")
    for replace in (False, True):
        with pytest.raises(AlreadyExists, match="there is a table"):
            catalog.create_view("db.t", COLUMNS, "SELECT 1", replace=replace)
    with pytest.raises(AlreadyExists, match="there is a table"):
        catalog.create_view("db.t", COLUMNS, "SELECT 1", ignore_if_exists=True)
    with pytest.raises(AlreadyExists, match="table"):
        catalog.rename_view("db.v", "db.t")
    with pytest.raises(NotFound):
        catalog.drop_view("db.t")
    with pytest.raises(NotFound):
        catalog.drop_table("db.v")
    with pytest.raises(NotFound):
        catalog.table("db.v")
    with pytest.raises(NotFound):
        catalog.view("db.t")
    assert (catalog.list_tables("db"), catalog.list_views("db")) == (["t"], ["v"])
    assert not catalog.table_exists("db.v")


def test_what_is_not_there_is_named(catalog: Catalog) -> None:
    for missing in (
        lambda: catalog.view("db.nope"),
        lambda: catalog.drop_view("db.nope"),
        lambda: catalog.rename_view("db.nope", "db.other"),
        lambda: catalog.create_view("nope.v", COLUMNS, "SELECT 1"),
        lambda: catalog.list_views("nope"),
    ):
        with pytest.raises(NotFound, match="nope"):
            missing()
    with pytest.raises(InvalidRequest, match=r"db\.v needs a query"):
        catalog.create_view("db.v", COLUMNS, " ")
    with pytest.raises(InvalidRequest, match="system tables"):
        catalog.create_view("db.t$files", COLUMNS, "SELECT 1")


def test_a_database_with_views_is_dropped_with_them_only(catalog: Catalog) -> None:
    catalog.create_view("db.v", COLUMNS, "SELECT 1")
    catalog.drop_table("db.t")
    with pytest.raises(InvalidRequest, match=r"has views \(v\)"):
        catalog.drop_database("db")
    catalog.drop_database("db", cascade=True)
    assert "db" not in catalog.list_databases()
    catalog.create_database("db")
    assert catalog.list_views("db") == []


def test_other_catalogs_refuse_views_by_name(tmp_path: Path) -> None:
    jdbc = {"metastore": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/catalog.db", "warehouse": str(tmp_path / "lake")}
    for options in (str(tmp_path / "lake"), jdbc):
        catalog = Catalog.open(options)
        for ask in (
            lambda c=catalog: c.list_views("db"),
            lambda c=catalog: c.view("db.v"),
            lambda c=catalog: c.create_view("db.v", COLUMNS, "SELECT 1"),
            lambda c=catalog: c.drop_view("db.v"),
            lambda c=catalog: c.rename_view("db.v", "db.w"),
        ):
            with pytest.raises(UnsupportedOperation, match="no place for views; REST and Hive"):
                ask()


# ---- REST ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def by_rest(server: RestServer) -> Catalog:
    opened = Catalog.open(server.options)
    opened.create_database("db")
    return opened


def test_a_server_gets_and_gives_the_json_of_java_paimon(server: RestServer, by_rest: Catalog) -> None:
    by_rest.create_view("db.v", COLUMNS, "SELECT 1", dialects={"flink": "SELECT 2"}, options={"a": "b"})
    fields = [{"id": 0, "name": "id", "type": "BIGINT"}, {"id": 1, "name": "v", "type": "STRING"}]
    definition = {"fields": fields, "query": "SELECT 1", "dialects": {"flink": "SELECT 2"}, "options": {"a": "b"}}
    assert server.views == {"db.v": definition}
    assert by_rest.view("db.v").query_for("flink") == "SELECT 2"
    server.views["db.v"] = {"fields": fields, "query": "SELECT 3"}
    found = by_rest.view("db.v")
    assert (found.query, found.dialects, found.comment, found.options) == ("SELECT 3", {}, None, {})
    server.views["db.v"] = {"fields": fields}
    with pytest.raises(CorruptData, match=r"view 'db\.v' has no valid definition: KeyError 'query'"):
        by_rest.view("db.v")


def test_a_view_is_changed_in_one_request_if_its_query_stays(server: RestServer, by_rest: Catalog) -> None:
    by_rest.create_view(
        "db.v", COLUMNS, "SELECT 1", dialects={"flink": "SELECT 2", "spark": "SELECT 1"}, options={"a": "1", "b": "2"}
    )
    by_rest.create_view(
        "db.v", COLUMNS, "SELECT 1", dialects={"flink": "SELECT 3", "trino": "SELECT 4"}, comment="new",
        options={"b": "3", "c": "4"}, replace=True,
    )  # fmt: skip
    path = "/v1/p+x/databases/db/views"
    changing = [request for request in server.requests if request[0] != "GET"]
    assert changing[-2:] == [("POST", path), ("POST", f"{path}/v")]
    view = by_rest.view("db.v")
    assert (view.dialects, view.comment) == ({"flink": "SELECT 3", "trino": "SELECT 4"}, "new")
    assert view.options == {"b": "3", "c": "4"}


def test_a_view_that_cannot_be_replaced_is_there_as_it_was(server: RestServer, by_rest: Catalog) -> None:
    old = by_rest.create_view("db.v", COLUMNS, "SELECT 1")
    answers = iter([403])
    server.fail = lambda method, path: next(answers, None) if (method, path[-6:]) == ("POST", "/views") else None
    with pytest.raises(Exception, match="403"):
        by_rest.create_view("db.v", COLUMNS, "SELECT 2", replace=True)
    assert by_rest.view("db.v") == old


@pytest.mark.parametrize("code", [404, 501])
def test_a_server_without_views_serves_tables(server: RestServer, by_rest: Catalog, code: int) -> None:
    server.fail = lambda method, path: code if "views" in path else None
    by_rest.create_table("db.t", COLUMNS)
    by_rest.rename_table("db.t", "db.u")
    with pytest.raises(NotFound):
        by_rest.view("db.u")
    with pytest.raises((NotFound, UnsupportedOperation), match=str(code)):
        by_rest.list_views("db")
    by_rest.drop_database("db", cascade=True)


# ---- Hive ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_metastore_keeps_one_query(hive_catalog: Catalog) -> None:
    with pytest.raises(UnsupportedOperation, match="another query for flink"):
        hive_catalog.create_view("db.v", COLUMNS, "SELECT 1", dialects={"flink": "SELECT 2"})
    hive_catalog.create_view("db.v", COLUMNS, "SELECT 1", dialects={"spark": "SELECT 1"})
    assert hive_catalog.view("db.v").dialects == {}
    with pytest.raises(InvalidRequest, match="lower case"):
        hive_catalog.create_view("db.V", COLUMNS, "SELECT 1")


def test_types_of_hive_are_read() -> None:
    read = {
        "bigint": types.bigint(),
        "decimal": types.decimal(10, 0),
        "decimal(12,3)": types.decimal(12, 3),
        "char(4)": types.char(4),
        "timestamp with local time zone": types.timestamp_ltz(),
        "map<string,array<decimal(5,1)>>": types.map_(types.string(), types.array(types.decimal(5, 1))),
        "struct<a:int,b:struct<c:date>>": types.row(
            types.field("a", types.int_()), types.field("b", types.row(types.field("c", types.date())))
        ),
    }
    assert {text: from_hive_type(text) for text in read} == read
    assert from_hive_type("VARCHAR(9)").length == 9
    others = ("uniontype<int,string>", "interval_day_time", "array<nope>", "map<int>", "decimal(x)", "array<int", "")
    for other in others:
        with pytest.raises(UnsupportedOperation, match=r"Hive's type"):
            from_hive_type(other)
