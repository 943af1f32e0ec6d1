"""Tables with merge engines through the client: rows, changelog, restarts, and writes that pass the engine by."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.base.errors import ForebayError, InvalidRequest, UnsupportedOperation
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.metadata import types
from forebay.metadata.merge_engines import INTEGER_OVERFLOW
from forebay.metadata.table import AggregateFunction, Column
from tests.server.running import running

COLUMNS = {"k": "INT", "v": "BIGINT", "s": "STRING"}
FIRST_ROW = {"table.merge-engine": "first_row"}
VERSIONED = {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "v"}


def made(connection: Connection, options: dict[str, Any], columns: dict[str, str] = COLUMNS) -> Table:
    return connection.create_table("fluss.t", columns, primary_key="k", buckets=2, options=options)


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())


def changes_of(table: Table) -> list[tuple[Any, ...]]:
    found = [row for batch in table.changes(stop="latest") for row in batch.to_pylist()]
    return [(row["_change_type"], row["k"], row["v"], row["s"]) for row in sorted(found, key=lambda row: row["k"])]


def test_first_row_keeps_first_rows_and_their_changelog_through_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as bench, forebay.connect(bench.server.bootstrap_servers) as connection:
        table = made(connection, FIRST_ROW)
        table.upsert([{"k": 1, "v": 1, "s": "a"}, {"k": 1, "v": 2, "s": "b"}, {"k": 2, "v": 3, "s": "c"}])
        table.upsert([{"k": 2, "v": 4, "s": "d"}, {"k": 3, "v": None, "s": None}])
        table.delete([{"k": 1}])
    with running(tmp_path) as bench, forebay.connect(bench.server.bootstrap_servers) as connection:
        table = connection.table("fluss.t")
        table.upsert([{"k": 3, "v": 9, "s": "z"}])
        assert rows_of(table) == [(1, 1, "a"), (2, 3, "c"), (3, None, None)]
        assert changes_of(table) == [("insert", 1, 1, "a"), ("insert", 2, 3, "c"), ("insert", 3, None, None)]
        assert connection.admin.table_stats(table.path).row_count == 3


@pytest.mark.parametrize("image", ["full", "wal"])
def test_versioned_keeps_the_greatest_version_through_a_restart(tmp_path: Path, image: str) -> None:
    with running(tmp_path) as bench, forebay.connect(bench.server.bootstrap_servers) as connection:
        table = made(connection, {**VERSIONED, "table.changelog.image": image})
        table.upsert([{"k": 1, "v": 5, "s": "a"}, {"k": 1, "v": 4, "s": "b"}, {"k": 2, "v": None, "s": "c"}])
        table.upsert([{"k": 2, "v": 1, "s": "d"}])
    with running(tmp_path) as bench, forebay.connect(bench.server.bootstrap_servers) as connection:
        table = connection.table("fluss.t")
        table.upsert([{"k": 1, "v": 5, "s": "e"}, {"k": 2, "v": 0, "s": "f"}])
        assert rows_of(table) == [(1, 5, "e"), (2, 1, "d")]
        whole = [
            ("insert", 1, 5, "a"),
            ("update_before", 1, 5, "a"),
            ("update_after", 1, 5, "e"),
            ("insert", 2, None, "c"),
            ("update_before", 2, None, "c"),
            ("update_after", 2, 1, "d"),
        ]
        assert changes_of(table) == [change for change in whole if image == "full" or change[0] != "update_before"]


def test_writes_may_pass_the_engine_by(tmp_path: Path) -> None:
    with running(tmp_path) as bench, forebay.connect(bench.server.bootstrap_servers) as connection:
        table = made(connection, FIRST_ROW)
        table.upsert([{"k": 1, "v": 1, "s": "a"}, {"k": 2, "v": 2, "s": "b"}])
        table.upsert([{"k": 1, "v": 7, "s": "z"}], merge_mode="overwrite")
        table.upsert([{"k": 2, "s": "y"}], columns=["k", "s"], merge_mode="overwrite")
        assert rows_of(table) == [(1, 7, "z"), (2, 2, "y")]
        with table.writer(merge_mode="overwrite") as writer:
            writer.upsert({"k": 3, "v": 0, "s": "w"})
            writer.delete({"k": 1})
        table.delete([{"k": 2}], merge_mode="overwrite")
        table.upsert([{"k": 3, "v": 1, "s": "late"}])
        assert rows_of(table) == [(3, 0, "w")]


def test_what_an_engine_does_not_take_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with running(tmp_path) as bench, forebay.connect(bench.server.bootstrap_servers) as connection:
        table = made(connection, VERSIONED)
        with pytest.raises(UnsupportedOperation, match="cannot be written in part: its merge engine 'versioned'"):
            table.upsert([{"k": 1, "s": "y"}], columns=["k", "s"])
        with pytest.raises(InvalidRequest, match="merge_mode is 'sum'"):
            table.upsert([{"k": 1}], merge_mode="sum")  # type: ignore[arg-type]
        plain = connection.create_table("fluss.plain", COLUMNS, primary_key="k")
        with pytest.raises(InvalidRequest, match="has no merge engine: its rows are always overwritten"):
            plain.writer(merge_mode="overwrite")


SUMS = {
    "table.merge-engine": "aggregation",
    "fields.v.agg": "sum",
    "fields.s.agg": "listagg",
    "fields.s.listagg.delimiter": "-",
}


def test_aggregation_combines_rows_through_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as bench, forebay.connect(bench.server.bootstrap_servers) as connection:
        table = made(connection, SUMS)
        assert table.info.schema.column("s").aggregate == AggregateFunction("listagg", (("delimiter", "-"),))
        table.upsert([{"k": 1, "v": 1, "s": "a"}, {"k": 1, "v": 2, "s": "b"}, {"k": 2, "v": None, "s": None}])
        table.upsert([{"k": 1, "v": 10}], columns=["k", "v"])
        table.delete([{"k": 1}])
    with running(tmp_path) as bench, forebay.connect(bench.server.bootstrap_servers) as connection:
        table = connection.table("fluss.t")
        table.upsert([{"k": 2, "v": 5, "s": "c"}])
        assert rows_of(table) == [(1, 13, "a-b"), (2, 5, "c")]
        table.upsert([{"k": 1, "v": 2}], columns=["k", "v"], merge_mode="overwrite")
        assert rows_of(table) == [(1, 2, "a-b"), (2, 5, "c")]
        assert changes_of(table)[:3] == [
            ("insert", 1, 1, "a"),
            ("update_before", 1, 1, "a"),
            ("update_after", 1, 3, "a-b"),
        ]
        assert connection.admin.table_stats(table.path).row_count == 2


def test_columns_are_added_with_functions(tmp_path: Path) -> None:
    best = Column("best", types.int_(), aggregate=AggregateFunction("max"))
    with running(tmp_path) as bench, forebay.connect(bench.server.bootstrap_servers) as connection:
        table = made(connection, SUMS)
        table.upsert([{"k": 1, "v": 1}], missing="null")
        table = table.alter(add_columns=[best])
        table.upsert([{"k": 1, "v": 1, "best": 7}, {"k": 1, "v": 1, "best": 3}], missing="null")
        assert rows_of(table) == [(1, 3, None, 7)]
        with pytest.raises(InvalidRequest, match="'sum' takes"):
            table.alter(add_columns=[Column("text", types.string(), aggregate=AggregateFunction("sum"))])
        with pytest.raises(InvalidRequest, match=r"'fields\.best\.agg' = 'min' cannot be set|column 'best' has .* max"):
            table.alter(set={"fields.best.agg": "min"})
        plain = connection.create_table("fluss.plain", COLUMNS, primary_key="k")
        with pytest.raises(InvalidRequest, match="which only the aggregation merge engine uses"):
            plain.alter(add_columns=[best])


def test_a_value_that_does_not_fit_is_refused_with_the_columns_name(tmp_path: Path) -> None:
    with running(tmp_path) as bench, forebay.connect(bench.server.bootstrap_servers) as connection:
        columns = {"k": "INT", "d": "DECIMAL(3, 1)"}
        options = {"table.merge-engine": "aggregation", "fields.d.agg": "sum"}
        table = connection.create_table("fluss.t", columns, primary_key="k", options=options)
        table.upsert([{"k": 1, "d": Decimal("60.0")}])
        with pytest.raises(
            ForebayError, match=r"table fluss\.t, key k = 1, column 'd': a sum does not fit into DECIMAL\(3, 1\)"
        ):
            table.upsert([{"k": 1, "d": Decimal("60.0")}])
        assert table.scan().to_arrow().to_pylist() == [{"k": 1, "d": Decimal("60.0")}]


def test_integers_wrap_around_where_the_table_says_so(tmp_path: Path) -> None:
    with running(tmp_path) as bench, forebay.connect(bench.server.bootstrap_servers) as connection:
        columns = {"k": "INT", "v": "SMALLINT", "s": "STRING"}
        table = made(connection, {**SUMS, INTEGER_OVERFLOW: "wrap"}, columns)
        for _ in range(2):
            table.upsert([{"k": 1, "v": 32767, "s": None}])
        with connection.transaction() as tx:
            tx.upsert(table, [{"k": 1, "v": -32767, "s": None}])
        assert rows_of(table) == [(1, -32769 + 65536, None)]
        table = table.alter(reset=[INTEGER_OVERFLOW])
        with pytest.raises(
            ForebayError, match=r"table fluss\.t, key k = 1, column 'v': a sum does not fit into SMALLINT"
        ):
            table.upsert([{"k": 1, "v": 1, "s": None}])
        with pytest.raises(InvalidRequest, match=rf"option '{INTEGER_OVERFLOW}' is 'error' or 'wrap', not 'wrong'"):
            table.alter(set={INTEGER_OVERFLOW: "wrong"})
        with pytest.raises(InvalidRequest, match=rf"'{INTEGER_OVERFLOW}' is for sums and products"):
            connection.create_table("fluss.u", columns, primary_key="k", options={INTEGER_OVERFLOW: "wrap"})
