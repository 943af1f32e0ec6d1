"""Reporting to users: damage immediately, long waits after two seconds, unknown outcomes as a separate error."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay.base.ambient import ManualClock
from forebay.base.errors import CorruptData, ErrorCode, OutcomeUnknown, Unavailable, error_from_wire, wire_code
from forebay.base.retrying import WaitNotice
from forebay.client.connection import connect
from forebay.protocol.api import ApiKey
from forebay.testing.server import EmbeddedServer
from tests.client.conftest import MakeTable
from tests.client.proxy import CLOSE, DROP, PASS, Proxy, only
from tests.patience import PATIENCE, until


def _damaged_log(data_dir: Path, bucket: int) -> Path:
    """Flip one bit in the middle of a bucket's oldest segment, while no server runs; returns the segment."""
    segment = min(data_dir.glob(f"**/log-{bucket}/*.log"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 4
    segment.write_bytes(data)
    return segment


def test_a_damaged_segment_is_an_error_at_once_that_names_file_and_position_and_other_buckets_continue(
    tmp_path: Path,
) -> None:
    settings = {"log.segment.file-size": "4kb"}
    with EmbeddedServer(tmp_path, settings=settings) as server, forebay.connect(server.bootstrap_servers) as conn:
        conn.create_table("fluss.t", pa.schema([("n", pa.int64())]), buckets=2, bucket_keys=["n"])
        for start in range(0, 10_000, 1000):
            conn.table("fluss.t").append(pa.table({"n": range(start, start + 1000)}))
        rows = {b.bucket: 0 for b in conn.table("fluss.t").changes("earliest", "latest").position}
        with conn.table("fluss.t").changes("earliest", "latest") as reader:
            for batch in reader:
                assert reader.last_bucket is not None
                rows[reader.last_bucket.bucket] += batch.num_rows
    segment = _damaged_log(tmp_path, 0)
    with EmbeddedServer(tmp_path) as server, forebay.connect(server.bootstrap_servers) as conn:
        found = 0
        with conn.table("fluss.t").changes("earliest", "latest") as reader:
            told = []
            while len(told) < 2:
                try:
                    batch = reader.poll(PATIENCE)
                    found += 0 if batch is None else batch.num_rows
                except CorruptData as e:
                    told.append(e.message)
            # once when it is found, and in the end again, so that the rows are not taken for all there are
            assert found == rows[1]
            assert all(segment.name in text and "byte" in text and "bucket 0" in text for text in told)
            assert not reader.finished


def test_damage_in_storage_does_not_cross_the_wire_as_a_passing_failure() -> None:
    error = CorruptData("the key-value state is damaged", ErrorCode.KV_STORAGE_EXCEPTION)
    assert isinstance(error_from_wire(wire_code(error), error.message), CorruptData)


def test_a_wait_is_told_after_two_seconds_and_then_ever_less_often(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    notice = WaitNotice(clock)
    for _ in range(100):
        notice.tell("an answer")
        clock.advance(1)
    assert [record.args[0] for record in caplog.records] == [2, 8, 32]  # type: ignore[index]
    notice.over()
    clock.advance(1)
    notice.tell("another answer")
    assert len(caplog.records) == 4  # and that it is over


def test_a_server_that_does_not_answer_is_named_while_the_client_waits(
    make_table: MakeTable, bootstrap: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = make_table({"a": pa.int64()}, primary_key=["a"])
    table.upsert([{"a": 1}])
    with Proxy(bootstrap) as proxy, connect(proxy.bootstrap_servers, request_timeout="2500 ms") as other:
        slow = other.table(table.path)
        proxy.on_response = only(ApiKey.LOOKUP, DROP)
        with caplog.at_level(logging.WARNING, logger="forebay"):
            assert slow.lookup([1]).num_rows == 1
        proxy.on_response = lambda _: PASS
    assert any("has not responded to LOOKUP" in record.getMessage() for record in caplog.records)


def test_rows_that_wait_for_a_server_that_is_gone_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.client.writing.sender.NOTICE_SECONDS", 0.0)
    with EmbeddedServer(tmp_path) as server:
        conn = forebay.connect(server.bootstrap_servers, writer_delivery_timeout="1 s", retry_timeout="1 s")
        table = conn.create_table("fluss.t", pa.schema([("n", pa.int64())]), buckets=1)

        def is_written() -> bool:  # a second is not much
            try:
                return table.append([{"n": 1}]).rows == 1
            except (Unavailable, OutcomeUnknown):
                return False

        until(is_written, "a row is written")
    with caplog.at_level(logging.WARNING, logger="forebay"), pytest.raises(Unavailable):
        table.append([{"n": 2}])
    conn.close()
    told = [record.getMessage() for record in caplog.records]
    assert any("waiting" in text or "have waited" in text for text in told), told


def test_a_batch_whose_answer_was_lost_for_good_has_an_unknown_outcome(make_table: MakeTable, bootstrap: str) -> None:
    table = make_table({"a": pa.int64()})
    with (
        Proxy(bootstrap) as proxy,
        connect(proxy.bootstrap_servers, writer_retries=0, writer_enable_idempotence=False) as other,
    ):
        proxy.on_response = only(ApiKey.PRODUCE_LOG, CLOSE)
        with pytest.raises(OutcomeUnknown, match="read the table before") as e:
            other.table(table.path).append([{"a": 1}, {"a": 2}])
        assert "2 rows may or may not be written; 0 were written" in e.value.message
        assert not e.value.retriable
        proxy.on_response = lambda _: PASS
    until(lambda: table.scan().to_arrow().num_rows == 2, "written they are, this time")


def test_a_batch_that_was_never_sent_is_not_of_unknown_outcome(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        conn = forebay.connect(server.bootstrap_servers, writer_delivery_timeout="300 ms", retry_timeout="300 ms")
        conn.create_table("fluss.t", pa.schema([("n", pa.int64())]), buckets=1)
        table = conn.table("fluss.t")
    with pytest.raises(Unavailable, match="1 rows were not written"):
        table.append([{"n": 1}])
    conn.close()
