"""Transactions on clusters that have none: rows are written at once. An exam runs this against Apache Fluss."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from forebay.base.errors import UnsupportedOperation
from forebay.client.connection import Connection, connect
from forebay.protocol.api import ApiKey, NegotiatedVersions
from tests.client.conftest import MakeTable


@pytest.fixture
def plain(bootstrap: str, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """A connection to an Apache Fluss cluster, or to our server as if it were one: no addition is offered."""
    for node in conn.admin.server_nodes():  # the tests share this connection: it must learn of the additions before
        conn.cluster.channel(node)
    begin = NegotiatedVersions.__init__

    def without_additions(self: NegotiatedVersions, response: Any) -> None:
        begin(self, response)
        for key in [key for key in self.newest if key >= ApiKey.OPEN_TABLE_SNAPSHOT]:
            del self.newest[key]

    monkeypatch.setattr(NegotiatedVersions, "__init__", without_additions)
    with connect(bootstrap) as connection:
        yield connection


def test_without_transactions_rows_are_written_at_once_and_a_warning_says_so_once(
    plain: Connection, make_table: MakeTable, caplog: pytest.LogCaptureFixture
) -> None:
    log = make_table({"n": "BIGINT"})
    kv = make_table({"id": "BIGINT", "v": "STRING"}, primary_key="id")
    with caplog.at_level(logging.WARNING, "forebay"):
        for _ in range(2):
            with plain.transaction("elsewhere", 7) as tx:
                assert tx.append(log, [{"n": 1}]).rows == 1
                tx.upsert(kv, [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
                tx.delete(kv, 2)
                writer = pickle.loads(pickle.dumps(tx)).staged_writer("task")
                writer.upsert(kv, [{"id": 3, "v": "c"}])
                assert writer.finish() == 0
            assert tx.committed is None
    assert [record.getMessage() for record in caplog.records if "no transactions" in record.getMessage()] == [
        "forebay: this cluster has no transactions: rows of version 7 of application 'elsewhere' are written at once, "
        "and rows appended to log tables are there again if the job is repeated"
    ]
    assert log.scan().to_arrow()["n"].to_pylist() == [1, 1]
    assert kv.lookup([1, 2, 3])["v"].to_pylist() == ["a", None, "c"]
    with pytest.raises(UnsupportedOperation, match="LIST_TRANSACTIONS"):
        plain.admin.transactions()


def test_an_abort_elsewhere_keeps_what_was_written(plain: Connection, make_table: MakeTable) -> None:
    log = make_table({"n": "BIGINT"})
    tx = plain.transaction("elsewhere", 8).begin()
    tx.append(log, [{"n": 1}])
    tx.abort()
    assert log.scan().to_arrow()["n"].to_pylist() == [1]
