"""A bucket that is not opened between an unclean end and a graceful shutdown."""

from __future__ import annotations

import shutil
from typing import Any

import pyarrow as pa

import forebay
from forebay.base.errors import ErrorCode
from forebay.log.checkpoints import DataDirectory
from forebay.metadata.table import TableBucket
from forebay.server.embedded import EmbeddedServer
from forebay.server.storage.replica import ParkedBucket
from tests.fs.faulty_fs import FaultyFileSystem
from tests.server.raw_client import ApiKey, RawClient, pb
from tests.server.running import LOG_COLUMNS, log_records, running


def test_a_bucket_that_was_not_opened_after_an_unclean_end_is_checked_when_it_is(tmp_path):
    with EmbeddedServer(tmp_path / "first") as server, forebay.connect(server.bootstrap_servers) as connection:
        connection.create_database("db")
        connection.create_table("db.t", pa.schema([("n", pa.int64())]), buckets=1)
        table = connection.table("db.t")
        table.append([{"n": 1}])
        server.server.context.replicas.save_offsets()
        table.append([{"n": 2}])
        shutil.copytree(tmp_path / "first", tmp_path / "killed")  # as a kill leaves it
    with EmbeddedServer(tmp_path / "killed"):
        pass  # stops in order, and has not looked at the bucket
    with EmbeddedServer(tmp_path / "killed") as server, forebay.connect(server.bootstrap_servers) as connection:
        assert [row["n"] for row in connection.table("db.t").scan().to_arrow().to_pylist()] == [1, 2]
    with EmbeddedServer(tmp_path / "killed") as server, forebay.connect(server.bootstrap_servers) as connection:
        assert [row["n"] for row in connection.table("db.t").scan().to_arrow().to_pylist()] == [1, 2]


def test_the_marker_names_the_buckets_of_which_it_says_nothing():
    fs = FaultyFileSystem(None)  # type: ignore[arg-type]
    directory = DataDirectory.open(fs, "/data")
    buckets = {TableBucket(7, 0), TableBucket(7, 1, 12)}
    directory.mark_clean_shutdown(buckets)
    content = fs.content("/data/clean-shutdown")
    assert directory.take_clean_shutdown()
    assert directory.not_closed == buckets
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1
        fs.set_content("/data/clean-shutdown", bytes(damaged))
        assert not directory.take_clean_shutdown()
    fs.set_content("/data/clean-shutdown", b"forebay clean shutdown 1\n")
    assert directory.take_clean_shutdown()
    assert directory.not_closed == frozenset()


def test_buckets_that_were_never_written_are_read_without_opening_them(tmp_path):
    with running(tmp_path / "data") as bench:
        table = bench.create("wide", LOG_COLUMNS, buckets=400)
        replicas = bench.server.server.context.replicas

        def fetch(wait_ms: int) -> Any:
            request = bench.fetch_request(table, 0, wait_ms=wait_ms)
            for bucket in range(1, 400):
                request.tables_req[0].buckets_req.add(bucket_id=bucket, fetch_offset=0, max_fetch_bytes=1 << 20)
            return request

        answers = bench.tablet.call(ApiKey.FETCH_LOG, fetch(0)).tables_resp[0].buckets_resp
        assert {(each.error_code, each.high_watermark, each.log_start_offset) for each in answers} == {(0, 0, 0)}
        assert len(answers) == 400
        assert not replicas.replicas()
        assert not list((tmp_path / "data").rglob("log-*"))
        with RawClient(bench.server.addresses.tablet_servers) as waiting:
            request_id = waiting.send(ApiKey.FETCH_LOG, fetch(60_000))
            assert not bench.append(table, log_records([1]), bucket=77).error_code
            while not any(each.records for each in waiting.receive(request_id).tables_resp[0].buckets_resp):
                request_id = waiting.send(ApiKey.FETCH_LOG, fetch(60_000))
        assert [each.bucket.bucket for each in replicas.replicas()] == [77]
        answer = bench.fetch(table, 1, bucket=78)
        assert answer.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION


def test_a_log_that_is_gone_is_not_taken_for_one_that_never_was(tmp_path):
    with running(tmp_path / "data") as bench:
        table = bench.create("t", LOG_COLUMNS)
        assert not bench.append(table, log_records([1])).error_code
        shutil.copytree(tmp_path / "data", tmp_path / "killed")  # before there is a recovery point
    for directory in (tmp_path / "data", tmp_path / "killed"):
        [folder] = directory.rglob("log-0")
        shutil.rmtree(folder)
        with running(directory) as bench:
            assert not bench.server.server.context.replicas.is_unwritten(TableBucket(table, 0))
            assert bench.fetch(table, 0).error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION


def test_ends_of_logs_are_those_of_one_moment_although_a_closed_bucket_is_opened_meanwhile(tmp_path, monkeypatch):
    """A transaction opens it, writes to it and to others, and shows its rows in all of them."""
    with running(tmp_path / "data") as bench:
        table = bench.create("t", LOG_COLUMNS, buckets=2)
        for bucket in range(2):
            bench.append(table, log_records([1, 2, 3]), bucket=bucket)
        replicas = bench.server.server.context.replicas
        looks: list[TableBucket] = []

        def parked(bucket: TableBucket) -> ParkedBucket | None:
            looks.append(bucket)
            return ParkedBucket(None, 0, None, 0, None) if bucket.bucket == 0 and looks.count(bucket) == 1 else None

        monkeypatch.setattr(replicas, "parked", parked)
        request = pb.ListOffsetsRequest(follower_server_id=-1, offset_type=1, table_id=table, bucket_id=[0, 1])
        answer = bench.tablet.call(ApiKey.LIST_OFFSETS, request)
        assert [each.offset for each in answer.buckets_resp] == [3, 3]
