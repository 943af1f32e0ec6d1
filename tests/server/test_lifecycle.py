"""Starting, stopping, killing and restarting servers; the remaining files; sharing of the disk."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from forebay.base.errors import (
    AlreadyExists,
    Conflict,
    ErrorCode,
    ForebayError,
    InvalidRequest,
    StorageFailure,
    UnsupportedOperation,
)
from forebay.kv.checkpoint import KvFolder
from forebay.metadata.table import TableBucket
from forebay.protocol.listeners import Listener
from forebay.server.config import parse_definition, read_settings_file, server_config
from forebay.server.embedded import EmbeddedServer
from forebay.server.server import Injected, bind_tcp
from forebay.testing.server import ServerProcess
from tests.kv.tables import FakeTable
from tests.patience import PATIENCE, until
from tests.server.raw_client import ApiKey, RawClient, pb
from tests.server.running import KV_COLUMNS, LOG_COLUMNS, Bench, kv_key, kv_records, log_records, running


def found(bench: Bench, table_id: int, *ids: int) -> list[dict[str, object]]:
    values = [v.values for v in bench.lookup(table_id, [kv_key(i) for i in ids]).values if v.HasField("values")]
    return FakeTable().rows_of_values(values)


def test_tables_rows_and_logs_are_there_after_a_graceful_restart(tmp_path):
    with running(tmp_path / "data") as bench:
        kv, log = bench.create("kv", KV_COLUMNS, ["id"]), bench.create("log", LOG_COLUMNS, buckets=3)
        bench.put(kv, kv_records([{"id": 1, "name": "a"}], writer_id=5, sequence=0))
        bench.append(log, log_records([1, 2]), bucket=2)
    assert (tmp_path / "data" / "clean-shutdown").exists()
    with running(tmp_path / "data") as bench:
        assert bench.info("kv").table_id == kv
        assert found(bench, kv, 1, 2) == [{"id": 1, "name": "a", "score": None}]
        assert (bench.log_end(log, 2), bench.log_end(log, 0)) == (2, 0)
        assert bench.put(kv, kv_records([{"id": 1, "name": "a"}], writer_id=5, sequence=0)).log_end_offset == 1
        assert bench.put(kv, kv_records([{"id": 1, "name": "b"}], writer_id=5, sequence=1)).log_end_offset == 3


def test_writer_ids_and_table_ids_are_never_given_twice(tmp_path):
    seen = set()
    for name in ("one", "two"):
        with running(tmp_path / "data") as bench:
            seen.add(("writer", bench.tablet.call(ApiKey.INIT_WRITER, pb.InitWriterRequest()).writer_id))
            seen.add(("table", bench.create(name, LOG_COLUMNS)))
            bench.coordinator.call(
                ApiKey.DROP_TABLE, pb.DropTableRequest(table_path=bench.path(name), ignore_if_not_exists=False)
            )
    assert len(seen) == 4


def test_dropped_tables_leave_no_files_behind(tmp_path):
    with running(tmp_path / "data") as bench:
        created = bench.create("gone", KV_COLUMNS, ["id"])
        bench.put(created, kv_records([{"id": 1}]))
        folder = tmp_path / "data" / "fluss" / f"gone-{created}"
        assert folder.exists()
        bench.coordinator.call(
            ApiKey.DROP_TABLE, pb.DropTableRequest(table_path=bench.path("gone"), ignore_if_not_exists=False)
        )
        recreated = bench.create("gone", KV_COLUMNS, ["id"])
        assert found(bench, recreated, 1) == []
        assert recreated != created
        assert bench.put(created, kv_records([{"id": 1}])).error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
    assert not folder.exists()


def test_a_database_with_many_busy_tables_is_dropped_without_error(tmp_path, caplog):
    with running(tmp_path / "data") as bench:
        bench.coordinator.call(
            ApiKey.CREATE_DATABASE, pb.CreateDatabaseRequest(database_name="d", ignore_if_exists=False)
        )
        for round_ in range(5):
            tables = [bench.create(f"t{i}", KV_COLUMNS, ["id"], buckets=2) for i in range(8)]
            for table in tables:
                for bucket in (0, 1):
                    bench.put(table, kv_records([{"id": round_}]), bucket=bucket, acks=1)
            bench.coordinator.call(
                ApiKey.DROP_DATABASE,
                pb.DropDatabaseRequest(database_name="fluss", ignore_if_not_exists=False, cascade=True),
            )
            bench.coordinator.call(
                ApiKey.CREATE_DATABASE, pb.CreateDatabaseRequest(database_name="fluss", ignore_if_exists=False)
            )
    assert list((tmp_path / "data" / "fluss").iterdir()) == []
    assert "cannot remove" not in caplog.text


def test_a_bucket_that_opens_while_its_table_is_dropped_leaves_nothing_behind(tmp_path):
    with running(tmp_path / "data") as bench:
        replicas = bench.server.server.context.replicas
        for _ in range(30):
            bucket = TableBucket(bench.create("racing", KV_COLUMNS, ["id"]), 0)
            opening = threading.Thread(target=lambda b=bucket: _open_or_refuse(replicas, b))
            opening.start()
            bench.coordinator.call(
                ApiKey.DROP_TABLE, pb.DropTableRequest(table_path=bench.path("racing"), ignore_if_not_exists=False)
            )
            opening.join()
            assert replicas.opened(bucket) is None
    assert list((tmp_path / "data" / "fluss").iterdir()) == []


def _open_or_refuse(replicas, bucket):
    try:
        replicas.begin(bucket)
    except ForebayError as e:
        if e.code != ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION:
            raise


def test_two_servers_cannot_share_a_data_directory(tmp_path):
    with running(tmp_path / "data"), pytest.raises(Conflict, match="in use by another server"):
        EmbeddedServer(tmp_path / "data").start()
    with running(tmp_path / "data"):
        pass


def test_no_port_stays_bound_when_another_cannot_be_had(tmp_path):
    bound: list[socket.socket] = []

    def bind(listener: Listener) -> socket.socket:
        if bound:
            raise InvalidRequest("this port cannot be had")
        bound.append(bind_tcp(listener))
        return bound[-1]

    with pytest.raises(InvalidRequest, match="this port cannot be had"):
        EmbeddedServer(tmp_path / "data", injected=Injected(bind=bind)).start()
    assert [each.fileno() for each in bound] == [-1]


def test_a_port_in_use_is_named(tmp_path):
    with running(tmp_path / "data") as bench:
        port = int(bench.server.bootstrap_servers.rpartition(":")[2])
        with pytest.raises(InvalidRequest, match=f"cannot listen on 127.0.0.1:{port}"):
            EmbeddedServer(tmp_path / "other", coordinator_port=port).start()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"kv.scaner.ttl": "1 s"}, InvalidRequest, "did you mean 'kv.scanner.ttl'"),
        ({"kv.scanner.ttl": "soon"}, InvalidRequest, "'kv.scanner.ttl': 'soon' is not a duration"),
        ({"max.bucket.num": "-1"}, InvalidRequest, "not a positive whole number"),
        ({"kv.engine": "oracle"}, InvalidRequest, "'hlog' or 'lmdb'"),
        ({"datalake.format": "banana"}, InvalidRequest, "'datalake.format': 'banana' is not one of paimon"),
        ({"datalake.enabled": "true"}, InvalidRequest, "'datalake.format' must be set"),
        ({"datalake.format": "paimon", "datalake.iceberg.x": "1"}, InvalidRequest, "not one of lake format 'paimon'"),
        ({"datalake.frmat": "paimon"}, InvalidRequest, "did you mean 'datalake.format'"),
        ({"authorizer.enabled": "true"}, UnsupportedOperation, "access control"),
        ({"remote.data.dir": "s3://x"}, UnsupportedOperation, "remote log storage"),
    ],
)
def test_settings_are_checked_by_name_and_value(tmp_path, settings, error, message):
    with pytest.raises(error, match=message):
        server_config(tmp_path, settings=settings)


def test_settings_of_a_real_cluster_that_mean_nothing_here_are_accepted(tmp_path):
    config = server_config(
        tmp_path,
        settings={"zookeeper.address": "zk:2181", "kv.rocksdb.block.cache-size": "8mb", "authorizer.enabled": "false"},
    )
    assert config.value("kv.engine") == "auto"


def test_settings_files_are_read_line_by_line(tmp_path):
    path = tmp_path / "server.yaml"
    path.write_text("# a comment\nkv.scanner.ttl: 5 min   # five\n\nmax.bucket.num = 7\nname: 'quoted: value'\n")
    assert read_settings_file(path) == {"kv.scanner.ttl": "5 min", "max.bucket.num": "7", "name": "quoted: value"}
    path.write_text("kv.scanner.ttl\n")
    with pytest.raises(InvalidRequest, match=r"line 1 of .* is not 'key: value'"):
        read_settings_file(path)
    with pytest.raises(InvalidRequest, match="cannot read"):
        read_settings_file(tmp_path / "missing")
    assert parse_definition("a.b=c=d") == ("a.b", "c=d")
    with pytest.raises(InvalidRequest, match="key=value"):
        parse_definition("nonsense")


def test_a_snapshot_timer_continues_after_an_error(tmp_path, monkeypatch):
    failures = iter([StorageFailure("disk full"), RuntimeError("a bug")])
    with running(tmp_path / "data", kv_snapshot_interval="20 ms", kv_checkpoint_records="1") as bench:
        write = KvFolder.write_checkpoint

        def fail_twice(*arguments):
            for failure in failures:
                raise failure
            return write(*arguments)

        monkeypatch.setattr(KvFolder, "write_checkpoint", fail_twice)
        created = bench.create("kv", KV_COLUMNS, ["id"])
        bench.put(created, kv_records([{"id": 1}, {"id": 2}]))
        folder = tmp_path / "data" / "fluss" / f"kv-{created}" / "kv-0"
        until(lambda: list(folder.glob("checkpoint-*[0-9]")), "the checkpoint is there")
        assert [path.name for path in folder.glob("checkpoint-*[0-9]")] == ["checkpoint-00000000000000000002"]


# ---- a process of its own -------------------------------------------------------------------------------------------


def test_forebay_server_serves_says_so_and_ends_on_sigterm(tmp_path):
    settings = {"security.sasl.plain.credentials": "a:b"}
    with ServerProcess(tmp_path / "data", sasl=True, settings=settings, arguments=["--plain"]) as server:
        assert set(server.ready) == {
            "bootstrap.servers",
            "sasl.bootstrap.servers",
            "tablet.servers",
            "monitoring",
            "pid",
        }
        assert int(server.ready["pid"]) == server.pid
        with RawClient(server.bootstrap_servers) as client:
            assert client.call(ApiKey.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss")).exists
            assert server.stop() == 0
    assert "Forebay serves" in server.log_path.read_text()
    assert (tmp_path / "data" / "clean-shutdown").exists()


def test_a_killed_server_comes_back_with_everything_that_was_acknowledged(tmp_path):
    server = ServerProcess(tmp_path / "data").start()
    bench = Bench(server.bootstrap_servers, server.ready["tablet.servers"])
    created = bench.create("kv", KV_COLUMNS, ["id"])
    bench.put(created, kv_records([{"id": i, "name": "x"} for i in range(20)]))
    bench.put(created, kv_records([{"id": 100, "name": "y"}]), acks=1)
    bench.close()
    server.kill()
    with server:
        again = Bench(server.bootstrap_servers, server.ready["tablet.servers"])
        assert len(found(again, created, *range(20), 100)) == 21
        assert again.log_end(created) == 21
        again.close()


def test_errors_of_the_command_line_are_messages_not_traces(tmp_path):
    command = [sys.executable, "-m", "forebay", "server", "--data-dir", str(tmp_path / "d"), "-D", "no.such=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("forebay: there is no setting 'no.such'")
    assert "Traceback" not in done.stderr


def test_the_ready_file_appears_whole(tmp_path):
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "forebay", "server", "--data-dir", str(tmp_path / "d"), "--ready-file", str(ready)]
    process = subprocess.Popen([*command, "--coordinator-port", "0", "--tablet-port", "0"], stdout=subprocess.DEVNULL)
    try:
        while not ready.exists():
            assert process.poll() is None
            time.sleep(0.005)
        assert json.loads(ready.read_text())["pid"] == process.pid
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_signal_that_comes_while_many_threads_wake_the_loop_is_not_lost(number):
    program = f"""
import asyncio, os, signal
from forebay.cli.server import when_told_to_stop

async def main():
    stopping = asyncio.Event()
    when_told_to_stop(stopping.set)
    for _ in range(20_000):  # more wakes than the loop's pipe has room for
        asyncio.get_running_loop().call_soon_threadsafe(int)
    os.kill(os.getpid(), signal.{number})
    await asyncio.wait_for(stopping.wait(), {PATIENCE})

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr


# ---- data definition ------------------------------------------------------------------------------------------------


def test_altering_a_table_keeps_its_rows_and_is_durable(tmp_path):
    with running(tmp_path / "data") as bench:
        created = bench.create("kv", KV_COLUMNS, ["id"])
        bench.put(created, kv_records([{"id": 1, "name": "a"}]))
        change = pb.AlterTableRequest(table_path=bench.path("kv"), ignore_if_not_exists=False)
        change.add_columns.add(column_name="extra", data_type_json=b'{"type":"STRING"}', column_position_type=0)
        bench.coordinator.call(ApiKey.ALTER_TABLE, change)
        properties = pb.AlterTableRequest(table_path=bench.path("kv"), ignore_if_not_exists=False)
        properties.config_changes.add(config_key="my.key", config_value="v", op_type=0)
        bench.coordinator.call(ApiKey.ALTER_TABLE, properties)
        with pytest.raises(ForebayError) as refused:
            bench.coordinator.call(ApiKey.ALTER_TABLE, change)
        assert refused.value.code == ErrorCode.INVALID_ALTER_TABLE_EXCEPTION
    with running(tmp_path / "data") as bench:
        info = bench.info("kv")
        document = json.loads(info.table_json)
        assert info.schema_id == 2
        assert document["custom_properties"] == {"my.key": "v"}
        assert [c["name"] for c in document["schema"]["columns"]] == ["id", "name", "score", "extra"]
        assert [c["id"] for c in document["schema"]["columns"]] == [0, 1, 2, 3]
        request = pb.GetTableSchemaRequest(table_path=bench.path("kv"), schema_id=1)
        assert len(json.loads(bench.tablet.call(ApiKey.GET_TABLE_SCHEMA, request).schema_json)["columns"]) == 3


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"table.no.such": "1"}, ErrorCode.INVALID_CONFIG_EXCEPTION),
        ({"no.such": "1"}, ErrorCode.INVALID_CONFIG_EXCEPTION),
        ({"table.log.format": "PARQUET"}, ErrorCode.INVALID_CONFIG_EXCEPTION),
        ({"table.log.format": "INDEXED"}, ErrorCode.INVALID_CONFIG_EXCEPTION),
        ({"table.replication.factor": "3"}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"table.replication.factor": "0"}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"table.merge-engine": "versioned"}, ErrorCode.INVALID_CONFIG_EXCEPTION),
        ({"table.datalake.historical-partition.enabled": "true"}, ErrorCode.INVALID_CONFIG_EXCEPTION),
        ({"table.auto-partition.enabled": "true"}, ErrorCode.INVALID_CONFIG_EXCEPTION),
        ({"table.log.ttl": "soon"}, ErrorCode.INVALID_CONFIG_EXCEPTION),
        ({"table.log.arrow.compression.zstd.level": "23"}, ErrorCode.INVALID_CONFIG_EXCEPTION),
        ({"table.statistics.columns": "*"}, ErrorCode.INVALID_CONFIG_EXCEPTION),
    ],
)
def test_options_that_cannot_be_served_are_refused_with_their_code(bench, properties, code):
    with pytest.raises(ForebayError) as refused:
        bench.create("refused", KV_COLUMNS, ["id"], properties=properties)
    assert refused.value.code == code
    assert next(iter(properties)) in refused.value.message or code == ErrorCode.INVALID_CONFIG_EXCEPTION


def test_creating_what_exists_is_an_error_unless_it_may_be_ignored(bench):
    bench.create("twice", LOG_COLUMNS)
    with pytest.raises(AlreadyExists):
        bench.create("twice", LOG_COLUMNS)
