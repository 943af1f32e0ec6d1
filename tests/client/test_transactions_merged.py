"""Transactions into tables that merge rows: what a put is refused, a transaction is refused before it is decided."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest

from forebay.base.errors import ForebayError, InvalidRequest
from forebay.client.connection import Connection
from forebay.client.table import Table
from tests.client.conftest import MakeTable, own_server

pytestmark = own_server

AMOUNT = Decimal("900.00")


def sums(make_table: MakeTable, data_type: str = "DECIMAL(5, 2)") -> Table:
    options = {"table.merge-engine": "aggregation", "fields.v.agg": "sum"}
    return make_table({"id": "INT", "v": data_type}, primary_key="id", buckets=2, options=options)


def rows(table: Table) -> dict[int, Any]:
    return {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()}


@pytest.mark.parametrize("data_type", ["DECIMAL(5, 2)", "DECIMAL(5, 2) NOT NULL", "DECIMAL(22, 19) NOT NULL"])
def test_a_sum_that_does_not_fit_is_refused_before_the_decision(
    conn: Connection, make_table: MakeTable, data_type: str
) -> None:
    table, log = sums(make_table, data_type), make_table({"n": "BIGINT"})
    value = {"id": 1, "v": AMOUNT}
    table.upsert([value, {"id": 2, "v": Decimal(1)}])
    with pytest.raises(InvalidRequest, match="does not fit into DECIMAL"):
        table.upsert([value])
    tx = conn.transaction().begin()
    tx.append(log, [{"n": 1}])
    tx.upsert(table, [value, {"id": 2, "v": Decimal(1)}])
    with pytest.raises(ForebayError, match=r"nothing of this transaction was written: .* 'v': a sum does not fit"):
        tx.commit()
    with pytest.raises(ForebayError, match="nothing of this transaction was written"):
        tx.commit()
    assert rows(table) == {1: AMOUNT, 2: Decimal(1)}
    assert log.scan().count() == 0
    with conn.transaction() as other:
        other.upsert(table, [{"id": 1, "v": Decimal("99.99")}])
    assert rows(table) == {1: Decimal("999.99"), 2: Decimal(1)}


@pytest.mark.parametrize(
    ("data_type", "greatest"),
    [("TINYINT", 2**7 - 1), ("SMALLINT", 2**15 - 1), ("INT", 2**31 - 1), ("BIGINT", 2**63 - 1)],
)
def test_a_sum_of_whole_numbers_that_does_not_fit_is_refused_before_the_decision(
    conn: Connection, make_table: MakeTable, data_type: str, greatest: int
) -> None:
    table, log = sums(make_table, data_type), make_table({"n": "BIGINT"})
    table.upsert([{"id": 7, "v": greatest - 1}])
    tx = conn.transaction().begin()
    tx.append(log, [{"n": 1}])
    tx.upsert(table, [{"id": 7, "v": 2}])
    with pytest.raises(ForebayError) as refused:
        tx.commit()
    where = f"table {table.path}, key id = 7, column 'v': a sum does not fit into {data_type}"
    assert refused.value.message.startswith("nothing of this transaction was written: ")
    assert where in refused.value.message
    assert (rows(table), log.scan().count()) == ({7: greatest - 1}, 0)


def test_rows_of_one_batch_that_fit_with_the_row_that_is_there_are_no_overflow(
    conn: Connection, make_table: MakeTable
) -> None:
    table = sums(make_table, "BIGINT")
    table.upsert([{"id": 1, "v": -10}])
    with conn.transaction() as tx:
        tx.upsert(table, [{"id": 1, "v": 2**63 - 1}, {"id": 1, "v": 5}])
    assert rows(table) == {1: 2**63 - 6}


def test_the_rows_of_a_transaction_are_summed_up_before_it_is_decided(conn: Connection, make_table: MakeTable) -> None:
    table = sums(make_table)
    tx = conn.transaction().begin()
    for _ in range(2):
        tx.upsert(table, [{"id": 1, "v": AMOUNT}])
    with pytest.raises(ForebayError, match="a sum does not fit"):
        tx.commit()
    assert rows(table) == {}


def test_of_transactions_that_fit_only_one_by_one_the_rest_is_refused(conn: Connection, make_table: MakeTable) -> None:
    table = sums(make_table)

    def add(_: int) -> bool:
        try:
            with conn.transaction() as tx:
                tx.upsert(table, [{"id": n, "v": Decimal("300.00")} for n in range(4)])
        except ForebayError as e:
            return "a sum does not fit" not in e.message
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(add, range(8))) == 3
    assert rows(table) == dict.fromkeys(range(4), AMOUNT)
