"""Directories and files of a data directory: names that fit, and modes that keep other users out."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.fs import names
from forebay.server.embedded import EmbeddedServer

DAY = {"id": pa.int32(), "a": pa.string(), "b": pa.string()}


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_files_are_for_the_server_s_user_alone_whatever_the_umask(tmp_path: Path, no_umask: None) -> None:
    data = tmp_path / "new" / "data"
    settings = {"kv.checkpoint.records": "1", "kv.snapshot.interval": "50 ms", "log.segment.file-size": "1kb"}
    for _ in range(2):
        with EmbeddedServer(data, settings=settings) as server, forebay.connect(server.bootstrap_servers) as connection:
            if not connection.table_exists("fluss.kv"):
                connection.create_table("fluss.kv", DAY, primary_key=["id"])
                connection.create_table("fluss.log", DAY, partition_keys=["a"])
                connection.table("fluss.log").create_partition({"a": "x"})
            connection.table("fluss.kv").upsert([{"id": n, "a": "x" * 100} for n in range(50)], missing="null")
            connection.table("fluss.log").append([{"id": n, "a": "x", "b": "y" * 100} for n in range(50)])
    found = [data, *data.rglob("*")]
    wrong = {
        str(path.relative_to(tmp_path)): oct(mode)
        for path in found
        if (mode := stat.S_IMODE(path.stat().st_mode)) != (0o700 if path.is_dir() else 0o600)
    }
    assert wrong == {}
    kinds = {path.name for path in found if path.is_file()} | {path.suffix for path in found}
    assert {"metadata.sqlite", "lock", "head", ".64k", ".log"} <= kinds


def test_partitions_whose_folder_would_have_too_long_a_name_are_refused_by_name(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server, forebay.connect(server.bootstrap_servers) as connection:
        connection.create_table("fluss.t", DAY, partition_keys=["a", "b"])
        longest = names.PARTITION_NAME_BYTES_MAX - len("$") - 100
        with pytest.raises(InvalidRequest, match=r"cannot have the partition 'aaa.*longer than") as refused:
            connection.table("fluss.t").create_partition({"a": "a" * 100, "b": "b" * (longest + 1)})
        assert refused.value.code == ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION
        with pytest.raises(InvalidRequest, match="longer than"):
            connection.table("fluss.t").append([{"id": 1, "a": "a" * 200, "b": "b" * 200}])
        assert connection.table("fluss.t").partitions() == []
        fitting = {"a": "a" * 100, "b": "b" * longest}
        connection.table("fluss.t").create_partition(fitting)
        connection.table("fluss.t").append([{"id": 1, **fitting}])
        assert connection.table("fluss.t").scan().to_arrow().to_pylist() == [{"id": 1, **fitting}]
        connection.table("fluss.t").drop_partition(fitting)
    assert not list(tmp_path.rglob("aaa*"))


def test_partitions_of_lake_tables_need_a_folder_with_the_key_in_the_lake_too(tmp_path: Path) -> None:
    settings = {"datalake.format": "paimon", "datalake.paimon.warehouse": str(tmp_path / "lake")}
    with (
        EmbeddedServer(tmp_path / "data", settings=settings) as server,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        key = "größe" * 6
        connection.create_table("fluss.t", {"id": pa.int32(), key: pa.string()}, partition_keys=[key])
        with pytest.raises(
            InvalidRequest, match=r"a folder 'größe.*=\.\.\.' in the lake of .* bytes is longer than 255"
        ):
            connection.table("fluss.t").create_partition({key: "x" * 200})
        connection.table("fluss.t").create_partition({key: "x" * 100})


def test_the_longest_names_of_databases_and_tables_have_folders(tmp_path: Path) -> None:
    database, table = "d" * 200, "t" * 200
    with EmbeddedServer(tmp_path) as server, forebay.connect(server.bootstrap_servers) as connection:
        connection.create_database(database)
        connection.create_table(f"{database}.{table}", DAY)
        connection.table(f"{database}.{table}").append([{"id": 1}])
        connection.drop_table(f"{database}.{table}")
    assert not list(tmp_path.rglob("ttt*"))
