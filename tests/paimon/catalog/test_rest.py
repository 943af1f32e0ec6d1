"""The REST catalog against a small server: names, schemas, commits by the server, and failures on the way."""

from __future__ import annotations

import json
import pickle
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from forebay.base.errors import (
    AccessDenied,
    AlreadyExists,
    CorruptData,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    StorageFailure,
    Unavailable,
    UnsupportedOperation,
)
from forebay.metadata import types
from forebay.metadata.table import Column
from forebay.paimon.catalog import rest_messages
from forebay.paimon.catalog.catalog import Catalog
from forebay.paimon.catalog.rest import RestCommits
from forebay.paimon.catalog.rest_api import RestApi
from forebay.paimon.store import schema_changes as changes
from forebay.paimon.store.branches import BranchManager
from tests.paimon.catalog.rest_server import RestServer
from tests.paimon.lake import put, rows_of
from tests.paimon.oracle import ask
from tests.patience import PATIENCE

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestServer]:
    made = RestServer(tmp_path)
    yield made
    made.close()


@pytest.fixture
def catalog(server: RestServer) -> Catalog:
    opened = Catalog.open(server.options)
    opened.create_database("db")
    return opened


def test_the_server_keeps_a_database_with_its_comment_and_options(server: RestServer, catalog: Catalog) -> None:
    catalog.create_database("a", comment="why", options={"owner": "me"})
    assert server.databases == {"db": {}, "a": {"owner": "me", "comment": "why"}}


class _Impatient:
    """A clock that does not sleep, and remembers for how long it should have."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_databases_and_tables_come_and_go(catalog: Catalog) -> None:
    for name in ("a", "b", "c b"):
        catalog.create_database(name)
    assert catalog.list_databases() == ["a", "b", "c b", "db"]
    assert (catalog.database_exists("c b"), catalog.database_exists("c")) == (True, False)
    with pytest.raises(AlreadyExists):
        catalog.create_database("a")
    catalog.create_database("a", ignore_if_exists=True)
    table = catalog.create_table(
        "db.t", COLUMNS, primary_key=["id"], options={"bucket": "2", "merge-engine": "partial-update"}, comment="why"
    )
    assert (table.schema.primary_keys, table.schema.comment, table.context.options.bucket) == (("id",), "why", 2)
    with pytest.raises(AlreadyExists, match=r"db\.t"):
        catalog.create_table("db.t", COLUMNS)
    assert catalog.create_table("db.t", COLUMNS, ignore_if_exists=True).schema == table.schema
    assert (catalog.list_tables("db"), catalog.table_exists("db.t")) == (["t"], True)
    catalog.rename_table("db.t", "a.u")
    assert (catalog.table_exists("db.t"), catalog.list_tables("a")) == (False, ["u"])
    with pytest.raises(InvalidRequest, match="has tables"):
        catalog.drop_database("a")
    catalog.drop_table("a.u")
    with pytest.raises(NotFound):
        catalog.drop_table("a.u")
    catalog.drop_table("a.u", ignore_if_not_exists=True)
    catalog.create_table("a.t", COLUMNS)
    catalog.drop_database("a", cascade=True)
    catalog.drop_database("a", ignore_if_not_exists=True)
    with pytest.raises(NotFound):
        catalog.drop_database("a")


def test_commits_are_made_by_the_server(catalog: Catalog, server: RestServer) -> None:
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options={"bucket": "1"})
    first = put(table, [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    table.upsert([{"id": 2, "v": "c"}])
    assert rows_of(catalog.table("db.t")) == [(1, "a"), (2, "c")]
    assert [c["snapshot"]["id"] for c in server.commits] == [1, 2]
    assert [c["tableId"] for c in server.commits] == ["id of t"] * 2
    assert first is not None
    assert [c["baseSnapshotUuid"] for c in server.commits] == [None, first.uuid]
    assert rows_of(server.lake.table("db.t")) == [(1, "a"), (2, "c")]


def test_of_two_commits_at_once_the_server_takes_one_and_the_other_follows(
    catalog: Catalog, server: RestServer
) -> None:
    table = catalog.create_table("db.t", COLUMNS, options={"commit.max-retries": "100"})
    failures: list[Exception] = []

    def write(writer: int) -> None:
        try:
            for i in range(5):
                put(catalog.table("db.t"), [{"id": writer * 100 + i, "v": ""}])
        except Exception as e:  # noqa: BLE001 - whatever it is, the test shows it
            failures.append(e)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert {row[0] for row in rows_of(table)} == {w * 100 + i for w in range(3) for i in range(5)}
    assert table.context.snapshots.latest_id() == 15


def test_a_commit_does_not_build_on_a_snapshot_that_is_rolled_back_meanwhile(
    catalog: Catalog, server: RestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = catalog.create_table("db.t", COLUMNS, options={"commit.min-retry-wait": "1 ms"})
    for i in (1, 2):
        put(table, [{"id": i, "v": "a"}])
    create, others = RestCommits.create, iter([True])

    def slowly(self: RestCommits, *given: Any) -> bool:
        if next(others, False):
            of_server = server.lake.table("db.t")
            of_server.rollback_to(1)
            put(of_server, [{"id": 3, "v": "a"}])  # snapshot 2 again
        return create(self, *given)

    monkeypatch.setattr(RestCommits, "create", slowly)
    put(catalog.table("db.t"), [{"id": 4, "v": "a"}])
    assert [row[0] for row in rows_of(catalog.table("db.t"))] == [1, 3, 4]


def test_a_commit_whose_answer_is_lost_is_not_made_twice(catalog: Catalog, server: RestServer) -> None:
    table = catalog.create_table("db.t", COLUMNS, options={"commit.min-retry-wait": "1 ms"})
    server.lose_answers = 1
    put(table, [{"id": 1, "v": "a"}])
    assert (rows_of(table), table.context.snapshots.latest_id(), len(server.commits)) == ([(1, "a")], 1, 2)


def test_a_branch_is_committed_under_its_name(catalog: Catalog, server: RestServer) -> None:
    table = catalog.create_table("db.t", COLUMNS)
    put(table, [{"id": 1, "v": "main"}])
    server.fail = lambda method, path: 503 if path.endswith("/tables/t%24branch_b/commit") else None
    BranchManager = pytest.importorskip("forebay.paimon.store.branches").BranchManager
    BranchManager(table.context.io, table.context.paths).create("b")
    server.fail = lambda method, path: 400 if path.endswith("/commit") else None
    with pytest.raises(InvalidRequest, match=r"t%24branch_b/commit"):
        put(catalog.table("db.t$branch_b"), [{"id": 2, "v": "branch"}])


def test_schemas_are_changed_by_the_server_alone(server: RestServer, catalog: Catalog) -> None:
    table = catalog.create_table("db.t", COLUMNS)
    put(table, [{"id": 1, "v": "a"}])
    new = table.alter(
        add_columns=[Column("n", types.int_(), "a number")],
        rename_columns={"v": "w"},
        set={"snapshot.num-retained.min": 2},
    )
    assert any(method == "POST" and path.endswith("/tables/t") for method, path in server.requests)
    assert (new.context.options.snapshot_num_retained_min, new.schema.field_named("n").description) == (2, "a number")
    assert new.scan().to_arrow().to_pylist() == [{"id": 1, "w": "a", "n": None}]
    BranchManager(new.context.io, new.context.paths).create("b")
    with pytest.raises(UnsupportedOperation, match="a branch's schema stays"):
        new.on_branch("b").alter(set={"snapshot.num-retained.min": 3})


def test_a_table_is_not_rolled_back_behind_the_servers_back(catalog: Catalog) -> None:
    table = catalog.create_table("db.t", COLUMNS)
    for i in range(2):
        put(table, [{"id": i, "v": "a"}])
    with pytest.raises(UnsupportedOperation, match="roll it back"):
        table.rollback_to(1)
    assert table.context.snapshots.ids() == [1, 2]


def test_the_servers_configuration_is_below_and_above_the_callers(tmp_path: Path) -> None:
    made = RestServer(tmp_path, {"header.x-tenant": "t1"})
    try:
        api = RestApi({**made.options, "prefix": "p x", "header.y": "1"})
        assert (api.options["prefix"], api.options["header.x-tenant"]) == ("p x", "t1")
    finally:
        made.close()
    tokens = RestServer(tmp_path, {"data-token.enabled": "true"})
    try:
        with pytest.raises(UnsupportedOperation, match="data-token"):
            Catalog.open(tokens.options)
    finally:
        tokens.close()


@pytest.mark.parametrize(
    ("code", "error"),
    [(400, InvalidRequest), (403, AccessDenied), (404, NotFound), (500, StorageFailure), (501, UnsupportedOperation)],
)
def test_the_servers_errors_are_ours(server: RestServer, code: int, error: type) -> None:
    api = RestApi(server.options)
    server.fail = lambda method, path: code
    with pytest.raises(error, match="as the test wants it"):
        api.get("databases")


@pytest.mark.parametrize(
    ("body", "says"),
    [("x" * 300, "says 500: " + "x" * 200 + "$"), ("[]", r"says 500: \[\]$"), ("", "says 500: Internal")],
)
def test_an_error_without_a_message_is_told_as_it_came(
    server: RestServer, monkeypatch: pytest.MonkeyPatch, body: str, says: str
) -> None:
    api = RestApi(server.options)
    server.fail = lambda method, path: 500
    monkeypatch.setattr("tests.paimon.catalog.rest_server.json.dumps", lambda answer: body)
    with pytest.raises(StorageFailure, match=says):
        api.get("databases")


def test_a_busy_server_is_asked_again_and_a_lost_post_is_not_repeated(server: RestServer) -> None:
    clock = _Impatient()
    api = RestApi(server.options, clock)
    answers = iter([503, 429, None])
    server.fail = lambda method, path: next(answers)
    assert api.get("databases") == {"databases": []}
    assert clock.slept == [0.1, 0.2]
    server.fail = lambda method, path: 503
    with pytest.raises(Unavailable):
        api.get("databases")
    server.fail = lambda method, path: None
    server.close()
    with pytest.raises(Unavailable):
        api.get("databases")
    with pytest.raises(Unavailable):  # it was refused, so the server knows nothing of it
        api.post("databases", body={})


def test_a_change_whose_answer_is_lost_has_an_unknown_outcome_and_so_has_an_internal_error(server: RestServer) -> None:
    api = RestApi(server.options, _Impatient())
    server.fail = lambda method, path: 500
    with pytest.raises(OutcomeUnknown, match=r"says 500.*may have done it or not"):
        api.post("databases", body={})
    server.fail = lambda method, path: 418  # not carried out, as all codes below 500 say
    with pytest.raises(StorageFailure, match="says 418"):
        api.post("databases", body={})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        api._uri = f"http://127.0.0.1:{listener.getsockname()[1]}"
        peer = threading.Thread(target=lambda: listener.accept()[0].close())
        peer.start()
        with pytest.raises(OutcomeUnknown, match=r"the connection failed.*may have done it or not"):
            api.post("databases", body={})
        peer.join(PATIENCE)


def test_connections_are_kept_and_those_that_the_server_closed_are_replaced(tmp_path: Path) -> None:
    made = RestServer(tmp_path, keep_alive=True)
    try:
        api = RestApi(made.options)
        for _ in range(5):
            assert api.get("databases") == {"databases": []}
        assert made.connections == 1
        made.close_idle()
        api.post("databases", body={"name": "d", "options": {}})  # on a closed connection its outcome were unknown
        assert made.connections == 2
        received = pickle.loads(pickle.dumps(api))
        assert received.get("databases") == {"databases": ["d"]}
        assert made.connections == 3
    finally:
        made.close()


def test_requests_go_through_the_proxy_that_the_environment_names(
    server: RestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://me:secret@{urlsplit(server.options['uri']).netloc}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(NotFound) as told:  # the server, which is no proxy, takes the whole address for a path
        RestApi({**server.options, "uri": "http://catalog.invalid", "warehouse": "other"})
    assert "secret" not in str(told.value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert RestApi(server.options).get("databases") == {"databases": []}


def test_a_missing_package_is_named(server: RestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "urllib3", None)
    with pytest.raises(UnsupportedOperation, match=r"pip install 'forebay\[paimon,rest\]'"):
        RestApi(server.options)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"uri": "host:8080"}, InvalidRequest, "http://host:8080"),
        ({"token.provider": "dlf"}, UnsupportedOperation, "supported: bear"),
        ({"token": ""}, InvalidRequest, "needs option 'token'"),
        ({"token": "wrong"}, AccessDenied, "who are you"),
        ({"warehouse": "other"}, NotFound, "no such warehouse"),
        ({"warehouse": ""}, NotFound, "no such warehouse"),
    ],
)
def test_a_catalog_that_cannot_be_opened_says_why(
    server: RestServer, given: dict[str, str], error: type, says: str
) -> None:
    with pytest.raises(error, match=says):
        Catalog.open({**server.options, **given})


def test_a_token_says_who_asks_whether_its_provider_is_named_or_not(server: RestServer) -> None:
    options = {key: value for key, value in server.options.items() if key != "token.provider"}
    assert Catalog.open(options).list_databases() == []
    del options["token"]
    with pytest.raises(AccessDenied, match="who are you"):
        Catalog.open(options)


def test_an_answer_that_is_no_json_is_corrupt(server: RestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    api = RestApi(server.options)
    monkeypatch.setattr("tests.paimon.catalog.rest_server.json.dumps", lambda answer: "<html>")
    with pytest.raises(CorruptData, match="<html>"):
        api.get("databases")


def test_changes_of_schemas_have_the_form_that_java_reads() -> None:
    first = changes.Position("first")
    behind = changes.Position("after", "a")
    assert [
        rest_messages.change_to_json(change)
        for change in (
            changes.AddColumn(("r", "c"), types.bigint(), None, first),
            changes.DropColumn(("c",)),
            changes.UpdateColumnType(("c",), types.string(), True),
            changes.UpdateColumnNullability(("c",), True),
            changes.UpdateColumnComment(("c",), "x"),
            changes.UpdateColumnDefault(("c",), "1"),
            changes.MoveColumn("c", behind),
            changes.RemoveOption("k"),
            changes.UpdateComment(None),
            changes.DropPrimaryKey(),
        )
    ] == [
        {
            "action": "addColumn",
            "fieldNames": ["r", "c"],
            "dataType": "BIGINT",
            "comment": None,
            "move": {"fieldName": "c", "referenceFieldName": None, "type": "FIRST"},
        },
        {"action": "dropColumn", "fieldNames": ["c"]},
        {"action": "updateColumnType", "fieldNames": ["c"], "newDataType": "STRING", "keepNullability": True},
        {"action": "updateColumnNullability", "fieldNames": ["c"], "newNullability": True},
        {"action": "updateColumnComment", "fieldNames": ["c"], "newComment": "x"},
        {"action": "updateColumnDefaultValue", "fieldNames": ["c"], "newDefaultValue": "1"},
        {
            "action": "updateColumnPosition",
            "move": {"fieldName": "c", "referenceFieldName": "a", "type": "AFTER"},
        },
        {"action": "removeOption", "key": "k"},
        {"action": "updateComment", "comment": None},
        {"action": "dropPrimaryKey"},
    ]


_PYPAIMON = """
import json, sys
import pyarrow as pa
from pypaimon import CatalogFactory
catalog = CatalogFactory.create(json.loads(sys.argv[1]))
table = catalog.get_table("db.t")
builder = table.new_read_builder()
rows = sorted(builder.new_read().to_arrow(builder.new_scan().plan().splits()).to_pylist(), key=str)
writing = table.new_batch_write_builder()
write, commit = writing.new_write(), writing.new_commit()
write.write_arrow(pa.table({"id": [2], "v": ["theirs"]}, schema=pa.schema([("id", pa.int64()), ("v", pa.string())])))
commit.commit(write.prepare_commit())
write.close(); commit.close()
print(json.dumps(rows))
"""


@pytest.mark.foreign
@pytest.mark.slow
def test_pypaimon_and_we_share_a_server(catalog: Catalog, server: RestServer) -> None:
    table = catalog.create_table("db.t", COLUMNS)
    put(table, [{"id": 1, "v": "ours"}])
    assert ask(_PYPAIMON, json.dumps(server.options)) == [{"id": 1, "v": "ours"}]
    assert rows_of(table) == [(1, "ours"), (2, "theirs")]
