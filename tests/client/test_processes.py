"""One connection, many threads and processes: pickling, forking, sharing, closing."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import (
    WIRE_ERRORS,
    AccessDenied,
    ErrorCode,
    ForebayError,
    InvalidRequest,
    Unavailable,
    error_from_wire,
)
from forebay.client import make_settings, shared_connection
from forebay.client.connection import Connection, connect
from forebay.client.table import Table
from forebay.testing.server import EmbeddedServer
from tests.client.conftest import MakeTable, own_server
from tests.patience import PATIENCE, until


def forebay_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(("forebay-reader", "forebay-sender"))]


def test_importing_costs_next_to_nothing() -> None:
    code = (
        "import sys; import forebay; heavy = {'pyarrow', 'numpy', 'google.protobuf', 'socket', 'threading'}; "
        "print(sorted(heavy & set(sys.modules))); forebay.connect; "
        "print(sorted({'pyarrow', 'asyncio', 'pandas', 'polars', 'forebay.server'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    before, after = out.splitlines()
    assert before in ("[]", "['threading']")
    assert after == "[]"


def test_using_a_table_imports_nothing_that_is_not_needed(bootstrap: str, make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()})
    code = (
        f"import forebay, sys; c = forebay.connect({bootstrap!r}); t = c.table({str(table.path)!r}); "
        "import pyarrow as pa; t.append(pa.record_batch([pa.nulls(3, pa.int64())], ['a'])); t.scan().to_arrow(); "
        "t.changes(stop='latest').to_arrow(); c.close(); unwanted = "
        "{'asyncio', 'pandas', 'polars', 'forebay.server', 'forebay.log', 'forebay.kv'}; "
        "print(sorted(unwanted & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_writing_and_finding_rows_of_python_values_imports_no_pandas(bootstrap: str, make_table: MakeTable) -> None:
    """It takes seconds, and pyarrow does it for most Python values."""
    types = {
        "id": "BIGINT NOT NULL", "s": "STRING", "by": "BYTES", "bin": "BINARY(2)", "dec": "DECIMAL(5, 2)", "f": "FLOAT",
        "ok": "BOOLEAN", "day": "DATE", "tm": "TIME(3)", "ts": "TIMESTAMP_LTZ(3)", "a": "ARRAY<INT>",
        "m": "MAP<STRING, INT>", "r": "ROW<x INT>",
    }  # fmt: skip
    table = make_table(types, primary_key=["id"])
    code = (
        f"import datetime as dt, decimal, forebay, sys; c = forebay.connect({bootstrap!r}); "
        f"t = c.table({str(table.path)!r}); row = dict(id=1, s='x', by=b'x', bin=b'ab', dec=decimal.Decimal('1.5'), "
        "f=1.5, ok=True, day=dt.date(2020, 1, 1), tm=dt.time(1), ts=dt.datetime.now(dt.UTC), a=[1, None], "
        "m={'k': 1}, r={'x': 1}); t.upsert([row, {'id': 2}], missing='null'); t.delete(2); "
        "assert t.lookup([1, 2], missing='drop').num_rows == 1\n"
        "with t.writer() as w: w.delete({'id': 2})\n"
        "assert t.scan(filter='f > 1 AND id = 1').count() == 1; c.close(); print('pandas' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (out.stdout.strip(), out.stderr) == ("False", "")


def test_connections_and_tables_pickle(conn: Connection, make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()})
    table.append([{"a": 1}])
    again = pickle.loads(pickle.dumps(conn))
    assert again.settings == conn.settings
    assert not again.cluster.view.tablet_servers  # it connects when it is used
    assert again.table(table.path).scan().to_arrow().num_rows == 1
    again.close()
    copies: list[Table] = pickle.loads(pickle.dumps([table, table]))
    assert copies[0].info == table.info
    assert copies[0].connection is copies[1].connection
    assert copies[0].scan().to_arrow().num_rows == 1
    assert copies[1].append([{"a": 2}]).rows == 1
    copies[0].connection.close()


def test_every_error_survives_pickling_with_its_code() -> None:
    for code in WIRE_ERRORS:
        error = error_from_wire(code, "what happened")
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.message, again.code) == (type(error), error.message, error.code)


def test_errors_from_the_client_survive_pickling(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()})
    for call in (
        lambda: table.lookup([1]),
        lambda: table.changes({0: 99}, {0: 100}).to_arrow(),
        lambda: table.scan(limit=-1),
    ):
        with pytest.raises(ForebayError) as e:
            call()
        again = pickle.loads(pickle.dumps(e.value))
        assert str(again) == str(e.value)
        assert type(again) is type(e.value)


def _in_child(table: Table, results: Any) -> None:
    try:
        found = table.scan().to_arrow()["a"].to_pylist()
        table.append([{"a": os.getpid()}])
        results.put((os.getpid(), sorted(found)))
        table.connection.close()
    except BaseException as e:  # noqa: BLE001 - told to the parent
        results.put((os.getpid(), repr(e)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_processes_use_connections_of_their_own(conn: Connection, make_table: MakeTable, method: str) -> None:
    table = make_table({"a": pa.int64()})
    table.append([{"a": 1}])
    context = multiprocessing.get_context(method)
    results = context.Queue()
    children = [context.Process(target=_in_child, args=(table, results)) for _ in range(2)]
    for child in children:
        child.start()
    told = [results.get(timeout=PATIENCE) for _ in children]
    for child in children:
        child.join(PATIENCE)
    assert all(1 in found for _, found in told), told
    # The parent's connection goes on, and nothing of it was disturbed.
    assert table.append([{"a": 2}]).rows == 1
    seen = table.scan().to_arrow()["a"].to_pylist()
    assert sorted(seen) == sorted([1, 2, *(pid for pid, _ in told)])
    assert conn.table_exists(table.path)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_send_what_its_parent_has_buffered(make_table: MakeTable, bootstrap: str) -> None:
    table = make_table({"a": pa.int64()})
    with connect(bootstrap, writer_batch_timeout="1 h") as other:
        writer = other.table(table.path).writer()
        writer.append({"a": 1})
        child = os.fork()
        if child == 0:
            code = 1
            try:
                writer.flush()
            except InvalidRequest:
                other.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        writer.close()
    assert table.scan().to_arrow()["a"].to_pylist() == [1]


def test_a_process_shares_one_connection_for_the_same_settings(bootstrap: str) -> None:
    settings = make_settings(bootstrap)
    one = shared_connection(settings)
    assert shared_connection(make_settings(bootstrap)) is one
    assert shared_connection(make_settings(bootstrap, options={"client.id": "x"})) is not one
    one.admin.server_nodes()
    one.close()
    two = shared_connection(settings)
    assert two is not one
    two.close()
    shared_connection(make_settings(bootstrap, options={"client.id": "x"})).close()


def test_a_process_that_ends_sends_what_is_buffered(make_table: MakeTable, bootstrap: str) -> None:
    table = make_table({"a": pa.int64()})
    code = (
        f"import forebay; c = forebay.connect({bootstrap!r}, writer_batch_timeout='1 h'); "
        f"w = c.table({str(table.path)!r}).writer(); w.append({{'a': 7}})"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert table.scan().to_arrow()["a"].to_pylist() == [7]


def test_many_threads_use_one_connection(make_table: MakeTable) -> None:
    table = make_table({"id": pa.int64(), "v": pa.string()}, primary_key=["id"], buckets=3)

    def work(n: int) -> int:
        first = n * 20
        table.upsert([{"id": first + i, "v": str(n)} for i in range(20)])
        found = table.lookup(list(range(first, first + 20)))
        assert found["v"].to_pylist() == [str(n)] * 20
        assert table.connection.table_exists(table.path)
        return table.scan(filter=forebay.col("v") == str(n)).to_arrow().num_rows

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(24))) == [20] * 24


# ---- closing --------------------------------------------------------------------------------------------------------


def test_closing_leaves_no_thread(bootstrap: str, make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()})
    before = forebay_threads()
    other = connect(bootstrap)
    handle = other.table(table.path)
    handle.append([{"a": 1}])
    assert len(forebay_threads()) > len(before)
    other.close()
    other.close()
    assert forebay_threads() == before
    for call in (
        other.admin.server_nodes,
        lambda: handle.append([{"a": 1}]),
        lambda: handle.scan().to_arrow(),
        handle.writer,
    ):
        with pytest.raises(Unavailable, match="is closed"):
            call()
    assert "closed" in repr(other)


def test_closing_while_busy_ends_everything_that_waits(bootstrap: str, make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()}, buckets=2)
    other = connect(bootstrap)
    handle = other.table(table.path)
    outcomes: list[str] = []

    def until_it_ends(work: Any) -> None:
        try:
            while True:
                work()
        except ForebayError as e:
            outcomes.append(type(e).__name__)

    reader = handle.changes("latest")
    threads = [
        threading.Thread(target=until_it_ends, args=(work,))
        for work in (
            lambda: handle.append([{"a": 1}]),
            lambda: reader.poll(PATIENCE),
            lambda: handle.scan().to_arrow(),
            lambda: other.list_databases(),
        )
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    other.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert outcomes == ["Unavailable"] * 4


def test_an_unreferenced_connection_closes_itself(bootstrap: str, make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()})
    before = forebay_threads()
    other = connect(bootstrap)
    other.table(table.path).append([{"a": 1}])
    gone = weakref.ref(other)
    del other
    gc.collect()
    assert gone() is None
    until(lambda: forebay_threads() == before, "its threads have ended")


# ---- who answers ----------------------------------------------------------------------------------------------------


def test_something_that_does_not_speak_the_protocol_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def talk_nonsense() -> None:
            peer, _ = listener.accept()
            peer.recv(1000)
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            peer.close()

        thread = threading.Thread(target=talk_nonsense)
        thread.start()
        with pytest.raises(InvalidRequest, match=f"127.0.0.1:{port} is not a Fluss server: the peer speaks HTTP"):
            connect(f"127.0.0.1:{port}")
        thread.join(PATIENCE)


def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(Unavailable, match="timed out"):
            connect(f"127.0.0.1:{port}", connect_timeout="50 ms")


@own_server
def test_users_and_passwords(tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {"security.sasl.plain.credentials": "admin:admin-secret"}
    with EmbeddedServer(tmp_path_factory.mktemp("sasl") / "data", sasl=True, settings=settings) as server:
        address = server.addresses.sasl_bootstrap_servers
        assert address is not None
        with connect(address, "admin", "admin-secret") as conn:
            conn.create_table("fluss.t", {"a": pa.int64()})
            table = conn.table("fluss.t")
            table.append([{"a": 1}])
            assert table.scan().to_arrow().num_rows == 1
            assert pickle.loads(pickle.dumps(table)).scan().to_arrow().num_rows == 1
        with pytest.raises(AccessDenied) as wrong:
            connect(address, "admin", "nope")
        assert wrong.value.code == ErrorCode.AUTHENTICATE_EXCEPTION
        with pytest.raises(AccessDenied, match="authenticate first"):
            connect(address)
