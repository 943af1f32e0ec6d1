"""Segments that a Fluss cluster moved to remote storage, read from a local directory like from a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.base.errors import CorruptData, StorageFailure
from forebay.client.reading import remote_log
from forebay.client.reading.remote_log import RemoteLog, RemoteSegment, read_remote
from forebay.codec.log.header import iter_headers, stamp
from forebay.codec.log.log_batch import build_arrow_batch, decode_arrow_batch
from forebay.metadata import types
from forebay.metadata.table import Column, Schema
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from tests.client.conftest import MakeTable, Through, own_server
from tests.client.proxy import PASS, Action, Frame, Proxy, answered

SCHEMA = Schema.of([Column("a", types.bigint())])


def batches(first: int, sizes: list[int]) -> list[bytes]:
    """Log batches of so many rows each, with the offsets from `first` on, which are also their values."""
    made = []
    for size in sizes:
        batch = build_arrow_batch(pa.record_batch({"a": pa.array(range(first, first + size), pa.int64())}), schema_id=1)
        stamp(batch, 0, first, 0)
        made.append(bytes(batch))
        first += size
    return made


def stored(folder: Path, first: int, sizes: list[int], *, identifier: str = "s0") -> RemoteSegment:
    """A segment file in the place where a cluster has it."""
    path = folder / identifier / f"{first:020d}.log"
    path.parent.mkdir()
    path.write_bytes(b"".join(batches(first, sizes)))
    return RemoteSegment(str(path), first, first + sum(sizes), 0)


def values(remote: RemoteLog, first: int) -> list[int]:
    return [
        value
        for block in read_remote(remote, first)
        for position, header in iter_headers(block)
        for value in decode_arrow_batch(block, position, header, SCHEMA).column(0).to_pylist()
    ]


def test_what_a_server_answers_names_the_files_and_where_the_first_begins(tmp_path: Path) -> None:
    first, second = stored(tmp_path, 0, [2, 3]), stored(tmp_path, 5, [4], identifier="s1")
    begin = len(batches(0, [2])[0])
    info = pb.PbRemoteLogFetchInfo(remote_log_tablet_dir=f"{tmp_path}/", first_start_pos=begin)
    for name, segment in (("s0", first), ("s1", second)):
        info.remote_log_segments.add(
            remote_log_segment_id=name,
            remote_log_start_offset=segment.start_offset,
            remote_log_end_offset=segment.end_offset,
            segment_size_in_bytes=1,
        )
    remote = RemoteLog.from_pb(info)
    assert [(s.path, s.start_position) for s in remote.segments] == [(first.path, begin), (second.path, 0)]
    assert (remote.end_offset, RemoteLog(()).end_offset) == (9, 0)
    assert values(remote, 2) == [2, 3, 4, 5, 6, 7, 8]
    # A segment that ends at the offset that is wanted has nothing of it.
    Path(first.path).unlink()
    assert values(remote, 5) == [5, 6, 7, 8]
    with pytest.raises(StorageFailure, match=r"s0/0{20}\.log \(offsets 0 to 5\) cannot be read.* needs access to it"):
        values(remote, 4)


@pytest.mark.parametrize("written", ["{}", "file:{}", "file://{}", "file://localhost{}"])
def test_paths_of_segments_are_not_encoded(tmp_path: Path, written: str) -> None:
    folder = tmp_path / "50%25 of ü"
    folder.mkdir()
    segment = stored(folder, 0, [2])
    assert values(RemoteLog((replace(segment, path=written.format(segment.path)),)), 0) == [0, 1]


@pytest.mark.parametrize("path", ["file://host/x/s0/0.log", "s0/0.log", "/x/../s0/0.log", "s3://b/../s0/0.log"])
def test_a_segment_that_a_server_names_elsewhere_is_not_read(path: str) -> None:
    with pytest.raises(StorageFailure, match="cannot be read"):
        values(RemoteLog((RemoteSegment(path, 0, 1, 0),)), 0)


@pytest.mark.parametrize("block", [1, 12, 13, 200, 10_000])
def test_batches_larger_than_a_block_and_many_in_a_block_come_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(remote_log, "_BLOCK_BYTES", block)
    segment = stored(tmp_path, 7, [1, 500, 3, 1, 1])
    assert values(RemoteLog((segment,)), 7) == list(range(7, 513))


def test_a_block_that_ends_with_a_batch_is_handed_out_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = batches(0, [2, 2, 2])
    monkeypatch.setattr(remote_log, "_BLOCK_BYTES", len(parts[0]) + len(parts[1]))
    segment = stored(tmp_path, 0, [2, 2, 2])
    assert [bytes(block) for block in read_remote(RemoteLog((segment,)), 0)] == [parts[0] + parts[1], parts[2]]


@pytest.mark.parametrize("kept", [1, 11, 12, 47, -1])
def test_a_file_that_ends_in_a_batch_is_corrupt_and_named(tmp_path: Path, kept: int) -> None:
    segment = stored(tmp_path, 0, [2, 2])
    one, two = batches(0, [2, 2])
    Path(segment.path).write_bytes(one + two[:kept])
    read = read_remote(RemoteLog((segment,)), 0)
    assert bytes(next(read)) == one
    end = len(one + two[:kept])
    with pytest.raises(CorruptData, match=f"{segment.path} ends in the middle of a batch, at byte {end}"):
        next(read)


@pytest.mark.parametrize("length", [0, -5])
def test_a_batch_that_claims_no_bytes_is_corrupt(tmp_path: Path, length: int) -> None:
    segment = stored(tmp_path, 0, [2])
    data = bytearray(Path(segment.path).read_bytes())
    data[8:12] = length.to_bytes(4, "little", signed=True)
    Path(segment.path).write_bytes(data)
    with pytest.raises(CorruptData, match=f"claims {length} bytes"):
        values(RemoteLog((segment,)), 0)


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_local_paths_are_read_in_each_form_in_which_clusters_write_them(tmp_path: Path, form: str) -> None:
    segment = stored(tmp_path, 0, [3])
    elsewhere = RemoteSegment(form.format(segment.path), 0, 3, 0)
    assert values(RemoteLog((elsewhere,)), 0) == [0, 1, 2]


@pytest.mark.parametrize("path", ["relative/s0/0.log", "nothing-known://bucket/0.log", "/not/there/0.log"])
def test_files_that_cannot_be_read_are_a_failure_of_the_storage(path: str) -> None:
    with pytest.raises(StorageFailure, match=f"remote log segment {path} "):
        values(RemoteLog((RemoteSegment(path, 0, 1, 0),)), 0)


@own_server
def test_a_reader_takes_what_the_server_points_to_and_continues_after_it(
    tmp_path: Path, make_table: MakeTable, proxy: Proxy, through: Through
) -> None:
    table = make_table({"a": pa.int64()})
    table.append([{"a": 90}, {"a": 91}])
    table.append([{"a": v} for v in (2, 3, 4)])
    segment = stored(tmp_path, 0, [2])

    def rule(frame: Frame) -> Action:
        if frame.key is not ApiKey.FETCH_LOG or frame.number > 0:
            return PASS
        message = frame.message()
        (answer,) = message.tables_resp[0].buckets_resp
        answer.ClearField("records")
        answer.remote_log_fetch_info.remote_log_tablet_dir = str(tmp_path)
        answer.remote_log_fetch_info.first_start_pos = 0
        answer.remote_log_fetch_info.remote_log_segments.add(
            remote_log_segment_id="s0",
            remote_log_start_offset=0,
            remote_log_end_offset=segment.end_offset,
            segment_size_in_bytes=1,
        )
        return answered(message)

    proxy.on_response = rule
    reader = through(table).changes(stop="latest")
    assert reader.to_arrow()["a"].to_pylist() == [0, 1, 2, 3, 4]
    assert list(reader.position.values()) == [5]
