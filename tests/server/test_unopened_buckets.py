"""A bucket that nobody opens between an unclean end and an orderly stop."""

from __future__ import annotations

import shutil

import pyarrow as pa

import forebay
from forebay.log.checkpoints import DataDirectory
from forebay.metadata.table import TableBucket
from forebay.server.embedded import EmbeddedServer
from forebay.testing.faulty_fs import FaultyFileSystem


def test_a_bucket_that_was_not_opened_after_an_unclean_end_is_checked_when_it_is(tmp_path):
    with EmbeddedServer(tmp_path / "first") as server, forebay.connect(server.bootstrap_servers) as connection:
        connection.admin.create_database("db")
        connection.admin.create_table("db.t", pa.schema([("n", pa.int64())]), buckets=1)
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
