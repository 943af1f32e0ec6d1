"""Names of tables, databases and options that do not exist, and resemble one that does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from forebay.base.errors import InvalidRequest, NotFound
from forebay.client.connection import Connection
from tests.client.conftest import DATABASE, MakeTable, own_server

pytestmark = own_server  # whose messages are shown


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (
            lambda conn, path: conn.table(path.upper().replace(DATABASE.upper(), DATABASE)),
            "there is no table .*'{path}'",
        ),
        (
            lambda conn, path: conn.table(path.replace("client", "cleint")),
            f"no database 'cleint_tests'; .*'{DATABASE}'",
        ),
        (lambda conn, path: conn.drop_table(path.upper().replace(DATABASE.upper(), DATABASE)), ".*'{path}'"),
        (lambda conn, _: conn.list_tables("client_test"), f"no database 'client_test'; did you mean '{DATABASE}'"),
        (lambda conn, _: conn.drop_database("client_test"), f"no database 'client_test'; did you mean '{DATABASE}'"),
        (
            lambda conn, _: conn.create_table("client_test.t", {"a": "INT"}),
            f"no database 'client_test'; did you mean '{DATABASE}'",
        ),
    ],
    ids=["table", "its database", "drop", "list", "drop database", "create"],
)
def test_what_is_not_found_is_named_with_what_was_probably_meant(
    conn: Connection, make_table: MakeTable, call: Callable[[Connection, str], object], meant: str
) -> None:
    path = str(make_table({"a": "INT"}).path)
    with pytest.raises(NotFound, match=meant.format(path=path)):
        call(conn, path)


def test_a_name_that_resembles_none_is_not_found_without_a_suggestion(conn: Connection) -> None:
    with pytest.raises(NotFound) as refused:
        conn.table(f"{DATABASE}.nothing_like_it_at_all")
    assert "did you mean" not in refused.value.message


def test_a_misspelt_option_of_a_table_is_refused_with_the_one_that_was_meant(
    conn: Connection, make_table: MakeTable
) -> None:
    with pytest.raises(InvalidRequest, match=r"did you mean 'table.log.ttl'\?"):
        conn.create_table(f"{DATABASE}.misspelt", {"a": "INT"}, options={"table.log.tll": "1 d"})
    table = make_table({"a": "INT"})
    with pytest.raises(InvalidRequest, match=r"did you mean 'table.log.ttl'\?"):
        table.alter(set={"table.log.tll": "1 d"})
