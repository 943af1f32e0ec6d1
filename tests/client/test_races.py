"""Races between threads and processes: each of these was a bug once."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base.ambient import SystemClock
from forebay.base.errors import (
    ErrorCode,
    ForebayError,
    InternalError,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from forebay.client.connection import Connection, connect
from forebay.client.reading import table_snapshot
from forebay.client.reading.log_reader import LogReader
from forebay.client.settings import make_settings
from forebay.client.writing.accumulator import Batch, WriteTarget, WriteTracker
from forebay.client.writing.encode import WriteEncoder
from forebay.client.writing.sender import Sender
from forebay.metadata.table import TableBucket, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from tests.client.conftest import MakeTable, own_server, time_begins_with_rows
from tests.client.proxy import PASS, Action, Frame, Proxy, answered
from tests.patience import PATIENCE

BUCKET = TableBucket(1, 0)


def rows_of(conn: Connection, path: object) -> list[int]:
    return sorted(conn.table(str(path)).scan().to_arrow()["a"].to_pylist())


# ---- writers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "finish"])
def test_a_row_that_comes_while_a_writer_closes_is_refused_and_not_lost(
    make_table: MakeTable, bootstrap: str, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    table = make_table({"a": pa.int64()})
    with connect(bootstrap, writer_batch_timeout="1 h") as other:
        writer = other.table(table.path).writer()
        writer.append({"a": 1})
        wait = writer._tracker.wait
        told: list[str] = []

        def waiting(timeout: float | None = None) -> bool:  # what another thread does meanwhile
            with pytest.raises(InvalidRequest) as refused:
                writer.append({"a": 2})
            told.append(refused.value.message)
            return wait(timeout)

        monkeypatch.setattr(writer._tracker, "wait", waiting)
        assert writer.close().rows == 1 if end == "close" else writer.finish(None) is None
    assert len(told) == 1
    assert "is closed" in told[0]


def test_two_threads_that_close_a_writer_both_wait_for_its_rows(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_table({"a": pa.int64()}).writer() as writer:
        writer.append({"a": 1})
        wait, waits = writer._tracker.wait, [0]

        def waiting(timeout: float | None = None) -> bool:
            waits[0] += 1
            if waits[0] == 1:
                assert writer.close().rows == 1  # of the second thread
            return wait(timeout)

        monkeypatch.setattr(writer._tracker, "wait", waiting)
        assert writer.close().rows == 1
        assert waits == [2]


def test_a_flush_does_not_wait_for_rows_that_others_write_meanwhile() -> None:
    tracker = WriteTracker()
    target = WriteTarget(TablePath("d", "t"), 1, is_kv=False)
    first, later = (Batch(target, BUCKET, bytearray(b"x"), 1, tracker) for _ in range(2))
    tracker.begun(first)
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(tracker.wait(PATIENCE)))
    with tracker._condition:
        thread.start()
    while not tracker._condition._waiters:  # type: ignore[attr-defined]
        pass
    tracker.begun(later)
    tracker.written(first, 1)
    thread.join(PATIENCE)
    assert waited == [True]
    assert not tracker.wait(0)
    tracker.written(later, 2)
    assert tracker.wait(0)


class Broken:
    """An encoder that fails once, with an error that is none of ours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
        self.called = threading.Event()
        original = WriteEncoder.log_pieces

        def fail_once(encoder: WriteEncoder, batch: pa.RecordBatch) -> object:
            if self.called.is_set():
                return original(encoder, batch)
            self.called.set()
            raise error

        monkeypatch.setattr(WriteEncoder, "log_pieces", fail_once)


def test_buffered_rows_that_a_bug_keeps_from_being_encoded_are_not_lost_silently(
    make_table: MakeTable, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table({"a": pa.int64()})
    broken = Broken(monkeypatch, ZeroDivisionError("a bug"))
    with connect(bootstrap, writer_batch_timeout="1 ms") as other:
        writer = other.table(table.path).writer()
        writer.append({"a": 1})
        assert broken.called.wait(PATIENCE)  # by the sender, when the row has lingered
        for call in (writer.flush, lambda: writer.append({"a": 2}), writer.close):
            with pytest.raises(InternalError, match=r"ZeroDivisionError: a bug.*1 rows were not written"):
                call()
        assert other.table(table.path).append([{"a": 3}]).rows == 1  # the sender goes on
    assert rows_of(table.connection, table.path) == [3]


def test_an_interrupted_flush_does_not_forget_its_rows(
    make_table: MakeTable, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table({"a": pa.int64()})
    Broken(monkeypatch, KeyboardInterrupt())
    with connect(bootstrap, writer_batch_timeout="1 h") as other:
        writer = other.table(table.path).writer()
        writer.append({"a": 1})
        with pytest.raises(KeyboardInterrupt):
            writer.flush()
        with pytest.raises(InternalError, match=r"interrupted.*1 rows were not written"):
            writer.close()


@own_server
def test_a_write_that_failed_in_the_dark_does_not_swallow_the_next_one(make_table: MakeTable, bootstrap: str) -> None:
    """The server writes the batch, but its answer does not tell: the sequence must not be used again."""
    table = make_table({"a": pa.int64()})

    def rule(frame: Frame) -> Action:
        if frame.key is not ApiKey.PRODUCE_LOG or frame.number:
            return PASS
        failed = pb.PbProduceLogRespForBucket(
            bucket_id=0, error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message="a bug"
        )
        return answered(pb.ProduceLogResponse(buckets_resp=[failed]))

    with Proxy(bootstrap) as proxy, connect(proxy.bootstrap_servers) as other:
        proxy.on_response = rule
        handle = other.table(table.path)
        with pytest.raises(OutcomeUnknown, match="a bug"):
            handle.append([{"a": 1}])
        handle.append([{"a": 2}])
    assert rows_of(table.connection, table.path) == [1, 2]


class NoSleepClock(SystemClock):
    """Notes who sleeps."""

    def __init__(self) -> None:
        self.sleepers: list[str] = []

    def sleep(self, seconds: float) -> None:
        self.sleepers.append(threading.current_thread().name)
        super().sleep(seconds)


def test_a_bucket_without_a_leader_does_not_hold_up_the_others(
    make_table: MakeTable, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan, table = make_table({"a": pa.int64()}), make_table({"a": pa.int64()})
    clock = NoSleepClock()
    asked = threading.Event()
    find_leaders_of = Sender._find_leaders_of

    def nobody_leads_it(sender: Sender, path: TablePath, batches: list[Batch]) -> bool:
        if path != orphan.path or released.is_set():
            return find_leaders_of(sender, path, batches)
        asked.set()
        return False

    released = threading.Event()
    monkeypatch.setattr(Sender, "_find_leaders_of", nobody_leads_it)
    other = Connection(make_settings(bootstrap), clock=clock)
    other.cluster.bootstrap()
    waiting = other.table(orphan.path)
    other.cluster.forget_leader([orphan.bucket(0)])
    thread = threading.Thread(target=lambda: waiting.append([{"a": 1}]))
    thread.start()
    assert asked.wait(PATIENCE)
    for i in range(20):
        other.table(table.path).append([{"a": i}])
    assert clock.sleepers == []
    assert thread.is_alive()
    released.set()
    thread.join(PATIENCE)
    other.close()
    assert rows_of(table.connection, orphan.path) == [1]


# ---- closing --------------------------------------------------------------------------------------------------------


def test_nothing_can_be_written_while_a_connection_closes(
    make_table: MakeTable, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that came between the last flush and the end would wait for a result that is never collected."""
    table = make_table({"a": pa.int64()})
    other = connect(bootstrap)
    handle = other.table(table.path)
    handle.append([{"a": 1}])
    refused: list[str] = []
    close = Sender.close

    def closing(sender: Sender, timeout: float | None) -> ForebayError | None:
        error = close(sender, timeout)
        try:
            handle.append([{"a": 2}])
        except Unavailable as e:
            refused.append(e.message)
        return error

    monkeypatch.setattr(Sender, "close", closing)
    other.close()
    assert len(refused) == 1
    assert "is closed" in refused[0]


def test_a_second_close_waits_for_the_first(
    make_table: MakeTable, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table({"a": pa.int64()})
    other = connect(bootstrap, writer_batch_timeout="1 h")
    writer = other.table(table.path).writer()
    writer.append({"a": 1})
    second = threading.Thread(target=other.close)
    close = Sender.close

    def closing(sender: Sender, timeout: float | None) -> ForebayError | None:
        second.start()
        second.join(0.2)  # it would have closed the sockets by then
        return close(sender, timeout)

    monkeypatch.setattr(Sender, "close", closing)
    other.close()
    second.join(PATIENCE)
    assert rows_of(table.connection, table.path) == [1]


@own_server
def test_a_process_that_ends_closes_every_connection_though_one_of_them_fails(
    make_table: MakeTable, bootstrap: str
) -> None:
    bad = make_table({"a": pa.int64()}, primary_key=["a"], options={"table.delete.behavior": "DISABLE"})
    good = make_table({"a": pa.int64()})
    code = (
        "import forebay; held = []\n"
        "for n in range(4):\n"
        f"    c = forebay.connect({bootstrap!r}, writer_batch_timeout='1 h'); held.append(c)\n"
        f"    w = c.table({str(bad.path)!r}).writer(); w.delete({{'a': 1}}); held.append(w)\n"
        f"    w = c.table({str(good.path)!r}).writer(); w.append({{'a': n}}); held.append(w)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert "DELETION_DISABLED" in done.stderr
    assert rows_of(good.connection, good.path) == [0, 1, 2, 3]


@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 2), reason="at its end this Python starts no threads: python/cpython#113964"
)
@own_server
def test_an_unclosed_embedded_server_shuts_down_gracefully_with_the_process(tmp_path: Path) -> None:
    code = (
        f"import forebay; c = forebay.embedded({str(tmp_path / 'data')!r}, writer_batch_timeout='1 h')\n"
        "c.create_table('fluss.t', {'a': forebay.types.bigint()}, buckets=1)\n"
        "w = c.table('fluss.t').writer(); w.append({'a': 7})\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    with forebay.embedded(tmp_path / "data") as conn:
        assert rows_of(conn, "fluss.t") == [7]


# ---- forks ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_child() -> Callable[[Callable[[], None]], None]:
    """Runs a function in a forked child, and fails if it raises, or has not ended after 30 seconds."""

    def run(work: Callable[[], None]) -> None:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(30)
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    return run


InChild = Callable[[Callable[[], None]], None]

fork = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@fork
def test_a_log_reader_continues_in_a_forked_child(make_table: MakeTable, in_child: InChild) -> None:
    table = make_table({"a": pa.int64()})
    reader = table.changes("earliest")
    assert reader.poll(0.1) is None  # a fetch is under way now, whose answer the parent will take

    def work() -> None:
        table.append([{"a": 1}])
        batch = reader.poll(PATIENCE)
        assert batch is not None
        assert batch["a"].to_pylist() == [1]

    in_child(work)
    batch = reader.poll(PATIENCE)
    assert batch is not None
    assert batch["a"].to_pylist() == [1]
    reader.close()


@fork
@own_server
def test_a_scan_under_way_belongs_to_the_process_that_began_it(make_table: MakeTable, in_child: InChild) -> None:
    table = make_table({"a": pa.int64()}, primary_key=["a"])
    table.upsert(pa.table({"a": range(5000)}))
    small = connect(str(table.connection.settings.bootstrap_servers[0]), scanner_kv_fetch_max_bytes="4kb")
    reader = small.table(table.path).scan().reader()
    batches = iter(reader)
    seen = next(batches).num_rows

    def work() -> None:
        with pytest.raises(InvalidRequest, match="belongs to the process that began it"):
            list(batches)
        reader.close()

    in_child(work)
    assert seen + sum(batch.num_rows for batch in batches) == 5000  # the child has not ended our session
    small.close()


@fork
def test_a_forked_child_is_not_stopped_by_locks_that_its_parent_held(
    make_table: MakeTable, bootstrap: str, in_child: InChild
) -> None:
    table = make_table({"a": pa.int64()})
    held = connect(bootstrap, writer_batch_timeout="1 h")
    handle = held.table(table.path)
    writer = handle.writer()
    writer.append({"a": 1})
    begin, end = threading.Event(), threading.Event()
    channels = list(held.cluster._channels.values())

    def hold_all() -> None:
        with held.sender.accumulator.lock, held._lock, writer._lock, channels[0]._state_lock, channels[0]._send_lock:
            begin.set()
            end.wait(PATIENCE)

    holder = threading.Thread(target=hold_all)
    holder.start()
    assert begin.wait(PATIENCE)

    def work() -> None:
        nonlocal held, handle
        for call in (writer.flush, writer.close, lambda: writer.append({"a": 5})):
            with pytest.raises(InvalidRequest, match="after a fork"):
                call()
        writer.abort()
        handle.append([{"a": 2}])
        held.close()
        del held, handle
        gc.collect()

    in_child(work)
    end.set()
    holder.join(PATIENCE)
    held.close()
    assert rows_of(table.connection, table.path) == [1, 2]


# ---- partitions that come and go ------------------------------------------------------------------------------------


def test_a_reader_of_a_whole_table_lets_go_of_partitions_that_are_dropped(
    make_table: MakeTable, conn: Connection
) -> None:
    table = make_table({"a": pa.int64(), "p": pa.string()}, partition_keys=["p"])
    table.append([{"a": 1, "p": "old"}, {"a": 2, "p": "kept"}])
    reader, chosen = table.changes(), table.changes(partitions="old")
    seen: list[int] = []
    while len(seen) < 2:
        batch = reader.poll(PATIENCE)
        assert batch is not None
        seen += batch["a"].to_pylist()
    assert chosen.poll(PATIENCE) is not None
    table.drop_partition({"p": "old"})
    table.append([{"a": 3, "p": "kept"}])
    while len(reader.position) > 1 or 3 not in seen:
        batch = reader.poll(0.1)
        seen += [] if batch is None else batch["a"].to_pylist()
    assert sorted(seen) == [1, 2, 3]
    with pytest.raises(NotFound, match="partition"):
        list(chosen)  # who asked for it by name is told
    reader.close()


def test_reading_continues_from_positions_with_partitions_that_are_new_since(
    make_table: MakeTable, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.client.reading.log_reader._DISCOVERY_SECONDS", 0.0)
    table = make_table({"a": pa.int64(), "p": pa.string()}, partition_keys=["p"])
    table.append([{"a": 1, "p": "x"}])
    reader = table.changes()
    assert reader.poll(PATIENCE) is not None
    positions = reader.position
    reader.close()
    table.append([{"a": 2, "p": "x"}, {"a": 3, "p": "y"}])
    seen: set[int] = set()
    with table.changes(positions, new_partitions=True) as again:
        while len(seen) < 2:
            batch = again.poll(PATIENCE)
            assert batch is not None
            seen.update(batch["a"].to_pylist())
    assert seen == {2, 3}
    with time_begins_with_rows(conn):
        assert table.changes(positions, timeout=0.2).to_arrow()["a"].to_pylist() == [2]
    with pytest.raises(InvalidRequest, match="with an end"):
        table.changes(stop="latest", new_partitions=True)


@own_server
def test_a_fetch_leaves_no_bucket_out_that_still_has_records(make_table: MakeTable, bootstrap: str) -> None:
    """Left out, it would wait until the server has news of the other buckets, half a second each time."""
    table = make_table({"k": pa.string(), "a": pa.int64()}, bucket_keys=["k"], buckets=2)
    rows = 100_000
    with connect(bootstrap, writer_batch_size="32kb") as other:
        other.table(table.path).append(pa.table({"k": ["same"] * rows, "a": range(rows)}))
    busy = max(table.connection.admin.list_offsets(table.path).items(), key=lambda item: item[1])[0]
    asked: list[set[int]] = []

    def rule(frame: Frame) -> Action:
        if frame.key is ApiKey.FETCH_LOG:
            asked.append({b.bucket_id for t in frame.message().tables_req for b in t.buckets_req})
        return PASS

    small = {"scanner_log_fetch_max_bytes_for_bucket": "64kb"}
    with Proxy(bootstrap) as proxy, connect(proxy.bootstrap_servers, **small) as other:
        proxy.on_request = rule
        reader = other.table(table.path).changes()
        seen = 0
        while seen < rows:
            batch = reader.poll(PATIENCE)
            assert batch is not None
            seen += batch.num_rows
        reader.close()
    assert len(asked) > 3
    assert all(busy.bucket in buckets for buckets in asked)


class Watched(threading.Event):
    """Fails a waiter when nothing is under way that could wake it."""

    def __init__(self, reader: LogReader) -> None:
        super().__init__()
        self._reader = reader

    def wait(self, timeout: float | None = None) -> bool:
        assert self._reader._fetches, "the reader waits for an answer to nothing"
        return super().wait(timeout)


def test_a_reader_asks_for_more_before_it_waits(make_table: MakeTable, bootstrap: str) -> None:
    """Once the last chunk was decoded it slept for a second, because no fetch had been sent while it was full."""
    table = make_table({"a": pa.int64()})
    for n in range(8):
        table.append(pa.table({"a": range(n * 20, n * 20 + 20)}))
    with connect(bootstrap, scanner_log_fetch_max_bytes_for_bucket="1b") as other:
        reader = other.table(table.path).changes(stop="latest")
        reader._changed = Watched(reader)
        assert reader.to_arrow()["a"].to_pylist() == list(range(160))


# ---- names that another table has meanwhile -------------------------------------------------------------------------


def test_an_earlier_schema_of_a_table_is_not_taken_from_the_one_that_has_its_name_now(
    conn: Connection, make_table: MakeTable
) -> None:
    table = make_table({"a": pa.int64()})
    table.alter(add_columns={"b": pa.string()})
    info = conn.admin.table_info(table.path)
    assert list(conn.cluster.schema(info, 1).names) == ["a"]
    conn.cluster._schemas.clear()
    conn.drop_table(table.path)
    conn.create_table(table.path, {"s": pa.string()})
    with pytest.raises(NotFound, match="dropped and created again"):
        conn.cluster.schema(info, 1)
    assert conn.cluster._schemas == {}


@own_server
def test_a_snapshot_has_a_partition_that_was_created_after_they_were_listed(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table({"a": pa.int64(), "p": pa.string()}, primary_key=["a", "p"], partition_keys=["p"])
    table.upsert([{"a": 1, "p": "x"}])
    plan = table_snapshot.plan_buckets

    def then_created(*arguments: Any) -> Any:
        listed = plan(*arguments)
        table.upsert([{"a": 2, "p": "y"}])
        table.upsert([{"a": 3, "p": "x"}])  # begun after the row in `y` was acknowledged
        return listed

    monkeypatch.setattr(table_snapshot, "plan_buckets", then_created)
    with table.snapshot() as snapshot:
        assert sorted(snapshot.scan().to_arrow()["a"].to_pylist()) == [1, 2, 3]


@own_server
def test_a_snapshot_of_chosen_partitions_has_those_that_were_created_after_they_were_listed(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"a": pa.int64(), "p": pa.string(), "q": pa.string()}
    table = make_table(columns, primary_key=["a", "p", "q"], partition_keys=["p", "q"])
    table.upsert([{"a": 1, "p": "x", "q": "1"}])
    plan, listed = table_snapshot.plan_buckets, list[object]()

    def then_created(*arguments: Any) -> Any:
        found = plan(*arguments)
        if not listed:
            table.upsert([{"a": 2, "p": "x", "q": "2"}, {"a": 9, "p": "y", "q": "2"}])
            table.upsert([{"a": 3, "p": "x", "q": "1"}])  # begun after the row in `x$2` was acknowledged
        listed.append(found)
        return found

    monkeypatch.setattr(table_snapshot, "plan_buckets", then_created)
    with table.snapshot(partitions={"p": "x"}) as snapshot:
        assert sorted(snapshot.scan().to_arrow()["a"].to_pylist()) == [1, 2, 3]
    assert table.connection.admin.list_table_snapshots(table.path) == []


def test_a_snapshot_has_a_chosen_partition_that_is_dropped_right_after(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table({"a": pa.int64(), "p": pa.string()}, primary_key=["a", "p"], partition_keys=["p"])
    table.upsert([{"a": 1, "p": "x"}])
    opened = table_snapshot.open_snapshot_of

    def then_dropped(*given: Any, **named: Any) -> Any:
        snapshot = opened(*given, **named)
        table.drop_partition({"p": "x"})
        return snapshot

    monkeypatch.setattr(table_snapshot, "open_snapshot_of", then_dropped)
    with table.snapshot(partitions="x") as snapshot:
        assert len(snapshot.buckets) > 0
