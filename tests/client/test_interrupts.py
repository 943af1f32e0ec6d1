"""Ctrl-C in the middle of a call, and calls of a closed connection: what comes after them ends."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import Unavailable
from forebay.base.retrying import BackOff
from forebay.client.cluster import rpc
from forebay.client.connection import Connection, connect
from forebay.client.settings import make_settings
from forebay.client.table import Table
from forebay.client.writing.accumulator import Accumulator, Batch, WriteTarget, WriteTracker
from forebay.metadata.table import TableBucket, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from tests.client.conftest import MakeTable
from tests.patience import PATIENCE

BUCKET = TableBucket(1, 0)


def interrupted_at(step: int, function: Callable[[], Any], files: tuple[str, ...]) -> bool:
    """Call `function`, with Ctrl-C before line `step` that it runs in one of `files`; False if it has fewer lines."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.endswith(files):
            return None
        if event == "line":
            lines += 1
            if lines == step:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_batch_that_is_interrupted_while_it_is_queued_is_either_sent_or_not_there() -> None:
    step, outcomes = 0, set()
    while True:
        step += 1
        accumulator = Accumulator(
            ManualClock(),
            None,
            memory_bytes=100,
            wait_seconds=0.0,
            in_flight_max=2,
            delivery_seconds=60.0,
            throttle_seconds_max=1.0,
        )
        tracker = WriteTracker()
        batch = Batch(WriteTarget(TablePath("d", "t"), 1, False), BUCKET, bytearray(10), 5, tracker, "p")

        def add(accumulator: Accumulator = accumulator, batch: Batch = batch) -> None:
            accumulator.add(batch)

        if not interrupted_at(step, add, ("accumulator.py",)):
            break
        with accumulator.lock:
            ready, _, _ = accumulator.take_ready(lambda _: 0, 1 << 20)
            sent = [each for batches in ready.values() for each in batches]
            for each in sent:
                accumulator.complete(each, None)
        outcomes.add(len(sent))
        assert (accumulator.unfinished, accumulator.used_bytes, accumulator.is_empty) == (0, 0, True), f"step {step}"
        assert tracker.wait(0), f"step {step}"
    assert outcomes == {0, 1}


@pytest.mark.parametrize("name", ["begun", "wait"])
def test_a_connection_closes_after_an_interrupted_upsert(
    make_table: MakeTable, bootstrap: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    table = make_table({"a": pa.int64()}, primary_key="a")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    connection = connect(bootstrap)
    with monkeypatch.context() as patch:
        patch.setattr(WriteTracker, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            connection.table(table.path).upsert([{"a": 1}])
    closing = threading.Thread(target=connection.close, daemon=True)
    closing.start()
    closing.join(PATIENCE / 10)
    assert not closing.is_alive()
    assert connection.closed
    assert table.scan().to_arrow()["a"].to_pylist() in ([1], [])


def test_a_sender_whose_start_was_interrupted_is_started_by_the_next_write(
    make_table: MakeTable, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table({"a": pa.int64()})
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "forebay-sender":
            raise KeyboardInterrupt

    with connect(bootstrap) as connection:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                connection.table(table.path).append([{"a": 1}])
        assert connection.table(table.path).append([{"a": 2}]).rows == 1
        (sender,) = [thread for thread in threading.enumerate() if thread is connection.sender.thread]
        assert sender.is_alive()
    assert table.scan().to_arrow()["a"].to_pylist() == [2]


def test_a_request_that_is_interrupted_in_the_middle_of_its_frame_ends_its_channel(
    make_table: MakeTable, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table({"a": pa.int64()})
    with connect(bootstrap) as connection:
        node = connection.admin.server_nodes()[0]
        channel = connection.cluster.channel(node)

        def half(sock: socket.socket, buffers: Any) -> None:
            sock.sendall(bytes(buffers[0])[:5])
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(rpc, "_send_all", half)
            with pytest.raises(KeyboardInterrupt):
                channel.send(ApiKey.LIST_DATABASES, pb.ListDatabasesRequest())
        assert channel.closed
        assert channel.in_flight == 0
        assert table.path.database in connection.list_databases()


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.scan().to_arrow(),
        lambda table: table.scan(limit=1).to_arrow(),
        lambda table: table.scan().count(),
        lambda table: table.lookup([{"a": 1}]),
        lambda table: table.snapshot(),
        lambda table: table.upsert([{"a": 1}]),
        lambda table: table.changes("earliest", stop="latest").to_arrow(),
        lambda table: table.connection.list_databases(),
        lambda table: table.connection.table("d.t"),
        lambda table: table.connection.admin.list_offsets(table.path),
    ],
    ids=["scan", "limit", "count", "lookup", "snapshot", "upsert", "changes", "databases", "table", "offsets"],
)
def test_a_call_of_a_closed_connection_says_so_without_waiting(
    make_table: MakeTable, bootstrap: str, monkeypatch: pytest.MonkeyPatch, call: Callable[[Table], object]
) -> None:
    pauses = 0

    def next_seconds(_: BackOff) -> float:
        nonlocal pauses
        pauses += 1
        assert pauses <= 2, "the call is tried again"
        return 0.0

    path = make_table({"a": pa.int64()}, primary_key="a", buckets=2).path
    connection = Connection(make_settings(bootstrap))
    table = connection.table(path)
    table.upsert([{"a": 1}])
    assert table.scan().count() == 1
    connection.close()
    monkeypatch.setattr(BackOff, "next_seconds", next_seconds)
    with pytest.raises(Unavailable, match="this connection is closed"):
        call(table)
