"""The buffered writer: linger, flush, order, errors, back-pressure."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest
from forebay.client.connection import Connection, connect
from forebay.client.writing.sender import Sender
from tests.client.conftest import MakeTable, own_server
from tests.client.data import by_id
from tests.patience import PATIENCE, until


def test_rows_are_written_by_flush_and_by_the_end_of_the_block(conn: Connection, make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64(), "b": pa.string()}, buckets=2)
    with table.writer() as writer:
        writer.append({"a": 1, "b": "x"})
        writer.append([{"a": 2}, {"a": 3}])
        assert writer.buffered_rows == 3
        assert repr(writer) == f"<TableWriter of {table.path}, 3 rows buffered>"
        assert writer.flush().rows == 3
        assert table.scan().to_arrow().num_rows == 3
        writer.append(pa.table({"a": [4, 5]}))
    assert writer.closed
    assert repr(writer) == f"<TableWriter of {table.path}, closed>"
    assert writer.close().rows == 5
    assert sorted(table.scan().to_arrow()["a"].to_pylist()) == [1, 2, 3, 4, 5]
    with pytest.raises(InvalidRequest, match="is closed"):
        writer.append({"a": 6})


def test_a_buffered_row_is_sent_automatically_after_the_linger(make_table: MakeTable, bootstrap: str) -> None:
    table = make_table({"a": pa.int64()})
    with connect(bootstrap, writer_batch_timeout="30 ms") as other, other.table(table.path).writer() as writer:
        writer.append({"a": 1})
        batch = table.changes("earliest").poll(PATIENCE)
        assert batch is not None
        assert writer.buffered_rows == 0
        writer.append({"a": 2})
        assert table.changes({0: 1}).poll(PATIENCE) is not None


@pytest.mark.parametrize("kind", ["dicts", "arrow"])
def test_a_full_buffer_does_not_wait_for_the_linger(make_table: MakeTable, bootstrap: str, kind: str) -> None:
    table = make_table({"a": pa.int64()})
    options = {"writer_batch_timeout": "1 h", "writer_batch_size": "4kb"}
    with connect(bootstrap, **options) as other, other.table(table.path).writer() as writer:
        for first in range(0, 6000, 100):
            rows = pa.table({"a": np.arange(first, first + 100)})
            for part in rows.to_pylist() if kind == "dicts" else [rows]:
                writer.append(part)
        assert writer.buffered_rows < 600
        with table.changes("earliest") as log:
            batch = log.poll(PATIENCE)
        assert batch is not None
        assert batch["a"][0].as_py() == 0


def test_dicts_and_arrow_data_are_written_in_the_order_of_the_calls(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()})
    with table.writer() as writer:
        writer.append({"a": 1})
        writer.append(pa.table({"a": [2, 3]}))
        writer.append({"a": 4})
        writer.append([{"a": 5}])
        result = writer.flush()
    assert (result.rows, result.batches) == (5, 1)
    assert table.changes(stop="latest").to_arrow()["a"].to_pylist() == [1, 2, 3, 4, 5]
    with table.writer() as two:
        two.append([{"a": 6}])
        two.append([{"a": 7}])
    assert two.close().batches == 1


def test_upserts_and_deletes_keep_their_order(make_table: MakeTable) -> None:
    table = make_table({"id": pa.int32(), "v": pa.int64()}, primary_key=["id"], buckets=3)
    model: dict[int, int] = {}
    rng = random.Random(5)
    with table.writer() as writer:
        for step in range(3000):
            key = rng.randrange(40)
            if rng.random() < 0.3:
                writer.delete({"id": key})
                model.pop(key, None)
            elif rng.random() < 0.1:
                keys = rng.sample(range(40), 5)
                writer.upsert(pa.table({"id": pa.array(keys, pa.int32()), "v": np.full(5, step)}))
                model.update(dict.fromkeys(keys, step))
            else:
                writer.upsert({"id": key, "v": step})
                model[key] = step
            if rng.random() < 0.01:
                writer.flush()
    assert {row["id"]: row["v"] for row in table.scan().to_arrow().to_pylist()} == model


def test_a_partial_writer_writes_its_columns_only(make_table: MakeTable) -> None:
    table = make_table({"id": pa.int32(), "a": pa.string(), "b": pa.string()}, primary_key=["id"])
    table.upsert([{"id": 1, "a": "a", "b": "b"}])
    with table.writer(columns=["id", "b"]) as writer:
        writer.upsert({"id": 1, "b": "new"})
        writer.upsert({"id": 2, "b": "two"})
        with pytest.raises(InvalidRequest, match="column 'a', and only id, b are written"):
            writer.upsert({"id": 2, "a": "x"})
    assert by_id(table.scan().to_arrow()) == [{"id": 1, "a": "a", "b": "new"}, {"id": 2, "a": None, "b": "two"}]
    with pytest.raises(InvalidRequest, match="primary key"):
        table.writer(columns=["b"])


def test_a_bad_dict_is_reported_at_the_latest_when_it_leaves_the_buffer(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int8()})
    writer = table.writer()
    writer.append({"a": 1})
    writer.append({"a": 1000})
    with pytest.raises(InvalidRequest, match=r"column 'a', row 1.*of 2 buffered ones"):
        writer.flush()
    with pytest.raises(InvalidRequest, match="2 rows were not written"):
        writer.append({"a": 2})
    with pytest.raises(InvalidRequest):
        writer.close()
    assert table.scan().to_arrow().num_rows == 0


def test_a_bad_dict_is_reported_by_the_call_that_makes_the_dicts_many(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int8()})
    writer = table.writer()
    writer.append({"a": 1000})
    for _ in range(1022):
        writer.append({"a": 1})
    assert writer.buffered_rows == 1023
    with pytest.raises(InvalidRequest, match=r"column 'a', row 0.*of 1024 buffered ones"):
        writer.append({"a": 1})
    with pytest.raises(InvalidRequest, match="1024 rows were not written"):
        writer.close()
    with table.writer() as good:
        for _ in range(1500):
            good.append({"a": 1})
        assert good.buffered_rows == 1500
        assert good.flush().rows == 1500


def test_a_bad_dict_that_lingers_is_reported_by_the_next_call(make_table: MakeTable, bootstrap: str) -> None:
    table = make_table({"a": pa.int8()})
    with connect(bootstrap, writer_batch_timeout="10 ms") as other:
        writer = other.table(table.path).writer()
        writer.append({"a": 1000})
        until(lambda: not writer.buffered_rows, "the row has lingered")
        with pytest.raises(InvalidRequest, match="column 'a'"):
            writer.append({"a": 1})
        with pytest.raises(InvalidRequest):
            writer.close()


def test_arrow_rows_that_do_not_fit_are_refused_at_once_and_affect_no_other_client(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int8()})
    with table.writer() as writer:
        writer.append({"a": 1})
        with pytest.raises(InvalidRequest, match="row 1"):
            writer.append(pa.table({"a": [1, 1000]}))
        writer.append({"a": 2})
    assert sorted(table.scan().to_arrow()["a"].to_pylist()) == [1, 2]


@own_server
def test_a_batch_that_the_server_refuses_fails_flush_and_everything_after(
    conn: Connection, make_table: MakeTable
) -> None:
    """failure-scenarios 1b: writer errors must surface."""
    table = make_table({"id": pa.int32()}, primary_key=["id"], options={"table.delete.behavior": "DISABLE"})
    writer = table.writer()
    writer.upsert({"id": 1})
    writer.flush()
    writer.delete({"id": 1})
    for call in (writer.flush, lambda: writer.upsert({"id": 2}), writer.close, writer.close):
        with pytest.raises(ForebayError, match=r"delete\.behavior.*1 rows were not written; 1 were written") as e:
            call()
        assert e.value.code == ErrorCode.DELETION_DISABLED_EXCEPTION
    with pytest.raises(ForebayError) as at_once:
        table.delete([{"id": 1}])
    assert at_once.value.code == ErrorCode.DELETION_DISABLED_EXCEPTION


@pytest.mark.parametrize(
    ("options", "overwrites"),
    [
        ({"table.delete.behavior": "ignore"}, False), ({"table.merge-engine": "first_row"}, True),
        ({"table.merge-engine": "aggregation"}, True),
        ({"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "v"}, True),
    ],
)  # fmt: skip
def test_deletes_that_a_table_ignores_are_told_once(
    conn: Connection, make_table: MakeTable, options: dict[str, str], overwrites: bool, caplog: pytest.LogCaptureFixture
) -> None:
    table = make_table({"id": pa.int32(), "v": pa.int64()}, primary_key=["id"], options=options)
    table.upsert([{"id": 1, "v": 1}])
    if overwrites:
        table.delete([{"id": 9}], merge_mode="overwrite")
    table.write_changes([{"_change_type": "insert", "id": 1, "v": 1}])
    assert caplog.text == ""
    table.write_changes([{"_change_type": "delete", "id": 1, "v": None}])
    with conn.transaction() as tx:
        tx.delete(table, [{"id": 1}])
    with table.writer() as writer:
        writer.delete({"id": 1})
    table.delete([{"id": 1}])
    told = [r.getMessage() for r in caplog.records if "ignores deletes" in r.getMessage()]
    assert len(told) == 1
    assert str(table.path) in told[0]
    assert table.scan().to_arrow().num_rows == 1


@own_server
def test_unreported_errors_surface_when_the_connection_closes(make_table: MakeTable, bootstrap: str) -> None:
    table = make_table({"id": pa.int32()}, primary_key=["id"], options={"table.delete.behavior": "DISABLE"})
    other = connect(bootstrap)
    writer = other.table(table.path).writer()
    writer.delete({"id": 1})
    with pytest.raises(ForebayError) as e:
        other.close()
    assert e.value.code == ErrorCode.DELETION_DISABLED_EXCEPTION
    other.close()
    with pytest.raises(ForebayError):
        writer.upsert({"id": 1})


def test_closing_the_connection_sends_what_is_buffered_and_ends_the_sender(
    make_table: MakeTable, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = Sender._turn

    def slow(sender: Sender) -> None:
        turn(sender)
        time.sleep(0.05)

    monkeypatch.setattr(Sender, "_turn", slow)
    table = make_table({"a": pa.int64()})
    other = connect(bootstrap, writer_batch_timeout="1 h")
    writer = other.table(table.path).writer()
    writer.append({"a": 1})
    thread = other.sender.thread
    other.close()
    assert thread is not None
    assert not thread.is_alive()
    assert table.scan().to_arrow().num_rows == 1
    assert writer.closed


def test_an_exception_in_the_block_drops_what_is_buffered(make_table: MakeTable, bootstrap: str) -> None:
    table = make_table({"a": pa.int64()})
    with connect(bootstrap, writer_batch_timeout="1 h") as other:
        writer = other.table(table.path).writer()

        def write() -> None:
            with writer:
                writer.append({"a": 1})
                writer.flush()
                writer.append({"a": 2})
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            write()
        assert writer.closed
    assert table.scan().to_arrow()["a"].to_pylist() == [1]


def test_aborting_waits_for_what_was_sent(
    make_table: MakeTable, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = Sender._turn

    def slow(sender: Sender) -> None:
        time.sleep(0.05)
        turn(sender)

    monkeypatch.setattr(Sender, "_turn", slow)
    table = make_table({"a": pa.int64()})
    with connect(bootstrap, writer_batch_timeout="1 h", writer_batch_size="1kb") as other:
        writer = other.table(table.path).writer()
        writer.append(pa.table({"a": range(5000)}))
        writer.abort()
        writer.abort()
        assert other.sender.accumulator.unfinished == 0


def test_back_pressure_bounds_the_memory(make_table: MakeTable, bootstrap: str) -> None:
    table = make_table({"s": pa.string()}, buckets=2, options={"table.log.arrow.compression.type": "NONE"})
    batch = pa.table({"s": ["x" * 1000] * 500})
    most = 0
    with connect(bootstrap, writer_buffer_memory_size="2mb", writer_batch_size="100kb") as other:
        writer = other.table(table.path).writer()
        for _ in range(40):
            writer.append(batch)
            most = max(most, other.sender.accumulator.used_bytes)
        writer.close()
        assert other.sender.accumulator.used_bytes == 0
    assert 0 < most <= 2 << 20
    assert table.scan(columns=[]).to_arrow().num_rows == 20_000


def test_many_threads_write_through_one_connection(make_table: MakeTable) -> None:
    table = make_table({"thread": pa.int32(), "n": pa.int32()}, bucket_keys=["thread"], buckets=3)
    errors: list[BaseException] = []

    def write(thread: int) -> None:
        try:
            with table.writer() as writer:
                for n in range(500):
                    writer.append({"thread": thread, "n": n})
                    if n % 100 == thread:
                        writer.flush()
        except BaseException as e:  # noqa: BLE001 - told below
            errors.append(e)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert errors == []
    seen: dict[int, list[int]] = {}
    for row in table.scan().to_arrow().to_pylist():
        seen.setdefault(row["thread"], []).append(row["n"])
    assert seen == {i: list(range(500)) for i in range(8)}


def test_many_threads_share_one_writer(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()}, buckets=2)
    with table.writer() as writer:
        threads = [
            threading.Thread(target=lambda t=t: [writer.append({"a": t * 1000 + n}) for n in range(300)])
            for t in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    expected = sorted(t * 1000 + n for t in range(6) for n in range(300))
    assert sorted(table.scan().to_arrow()["a"].to_pylist()) == expected


def test_flush_gives_up_waiting_but_not_writing(make_table: MakeTable, bootstrap: str) -> None:
    table = make_table({"a": pa.int64()})
    with connect(bootstrap) as other:
        writer = other.table(table.path).writer()
        sender = other.sender
        with sender.accumulator.lock:  # the sender cannot send while we hold this
            writer.append({"a": 1})
            with pytest.raises(ForebayError, match="still being sent") as e:
                writer.flush(timeout=0.05)
            assert e.value.code == ErrorCode.REQUEST_TIME_OUT
        assert writer.flush().rows == 1
        writer.close()


def test_two_writers_of_one_table_do_not_disturb_each_other(make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64()})
    with table.writer() as one, table.writer() as two:
        for i in range(100):
            (one if i % 2 else two).append({"a": i})
        assert one.flush().rows == 50
    assert sorted(table.scan().to_arrow()["a"].to_pylist()) == list(range(100))
