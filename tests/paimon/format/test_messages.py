"""Commit messages and splits as bytes; pypaimon reads them and writes the same bytes."""

from __future__ import annotations

import base64
import struct
from dataclasses import replace

import pytest

from forebay.base.errors import CorruptData, UnsupportedOperation
from forebay.metadata import types
from forebay.paimon.format.commit_message import CommitMessage, CompactIncrement, DataIncrement
from forebay.paimon.format.file_meta import DeletionVectorMeta, FileSource, GlobalIndexMeta, IndexFileMeta, SimpleStats
from forebay.paimon.format.messages import MESSAGE_VERSION, CommitMessageCodec
from forebay.paimon.format.schema import DataField
from forebay.paimon.format.split import DataSplit, DeletionFile
from forebay.paimon.format.stats import ColumnStats, pack_stats
from tests.paimon.commit.tables import data_file, partition
from tests.paimon.oracle import ask

CODEC = CommitMessageCodec(1, 1)
STATS: SimpleStats = pack_stats([DataField(0, "v", types.string())], [ColumnStats("a", "longer than seven", 2)])
FULL = replace(
    data_file("f1", 0, 300, level=3),
    value_stats=STATS,
    value_stats_cols=("v",),
    extra_files=("f1.index",),
    delete_row_count=2,
    embedded_index=b"idx",
    file_source=FileSource.COMPACT,
    external_path="s3://b/f1",
    first_row_id=77,
    write_cols=("dt", "v"),
    write_cols_sequences=(1, 2),
)
OLD = replace(data_file("f2"), delete_row_count=None, file_source=None, creation_time=None)
HASHES = IndexFileMeta("HASH", "i1", 8, 2)
VECTORS = IndexFileMeta("DELETION_VECTORS", "i2", 9, 1, (DeletionVectorMeta("f1", 1, 22, None),), "ext")
GLOBAL = IndexFileMeta("btree", "i3", 9, 1, global_index=GlobalIndexMeta(0, 9, 3, (1, 2), b"m", None))
MESSAGE = CommitMessage(
    partition(),
    1,
    4,
    DataIncrement((FULL, OLD), (OLD,), (), (HASHES,), (VECTORS,)),
    CompactIncrement((OLD,), (FULL,), (FULL,), (VECTORS, GLOBAL)),
)
SPLIT = DataSplit(
    9, partition(), 1, 4, (FULL, OLD), True, False, deletion_files=(DeletionFile("index/i", 1, 22, 4), None)
)


@pytest.mark.parametrize("version", [13, 14])
def test_messages_come_back_as_they_were(version: int) -> None:
    for message in (MESSAGE, CommitMessage(partition(), 0, -1)):
        assert CODEC.decode_message(CODEC.encode_message(message, version), version) == message
    with pytest.raises(UnsupportedOperation):
        CODEC.encode_message(MESSAGE, 12)


def test_a_number_that_newer_writers_put_behind_a_message_is_passed_over() -> None:
    data = CODEC.encode_message(MESSAGE, MESSAGE_VERSION + 1)
    assert data.endswith(b"\0")
    assert CODEC.decode_message(data[:-1] + b"\1" + bytes(8), MESSAGE_VERSION + 1) == MESSAGE
    with pytest.raises(CorruptData):
        CODEC.decode_message(data[:-1] + b"\1" + bytes(7), MESSAGE_VERSION + 1)


def test_splits_come_back_as_they_were() -> None:
    for split in (SPLIT, replace(SPLIT, deletion_files=None, is_streaming=True, raw_convertible=False)):
        assert CODEC.decode_split(CODEC.encode_split(split, "/t/dt=a/bucket-1")) == (split, "/t/dt=a/bucket-1")
    with pytest.raises(UnsupportedOperation, match="before files"):
        CODEC.encode_split(replace(SPLIT, before_files=(OLD,)), "")


def test_cut_or_lengthened_bytes_are_corrupt() -> None:
    whole = CODEC.encode_message(MESSAGE)
    for cut in (*range(0, len(whole), 11), len(whole) - 1):
        with pytest.raises(CorruptData):
            CODEC.decode_message(whole[:cut])
    with pytest.raises(CorruptData):
        CODEC.decode_message(whole + b"\0")
    with pytest.raises(CorruptData):
        CODEC.decode_split(whole)


def test_bytes_of_unknown_versions_are_refused_and_so_is_what_stands_behind_a_split() -> None:
    data = CODEC.encode_message(MESSAGE)
    for version in (12, 15):
        with pytest.raises(UnsupportedOperation, match=f"version {version} are not known"):
            CODEC.decode_message(data, version)
    split = CODEC.encode_split(SPLIT, "/t/dt=a/bucket-1")
    other_magic, other_version = bytes(8) + split[8:], split[:8] + struct.pack(">i", 99) + split[12:]
    for wrong in (other_magic, other_version):
        with pytest.raises(CorruptData, match="not a split of version"):
            CODEC.decode_split(wrong)
    with pytest.raises(CorruptData):
        CODEC.decode_split(split + b"\0")


THEIRS = """
import base64, json, sys
from pypaimon.schema.data_types import AtomicType, DataField
from pypaimon.write.commit_message_serializer import deserialize_commit_message, serialize_commit_message
fields = lambda *types: [DataField(i, "c%d" % i, AtomicType(t)) for i, t in enumerate(types)]
partition, keys = fields("STRING"), fields("BIGINT")
data = base64.b64decode(sys.argv[1])
message = deserialize_commit_message(data, partition, keys)
again = serialize_commit_message(message, partition)
print(json.dumps([message.bucket, message.total_buckets, [f.file_name for f in message.new_files],
                  base64.b64encode(again).decode()]))
"""


@pytest.mark.foreign
@pytest.mark.slow
def test_pypaimon_reads_our_messages_and_writes_the_same_bytes() -> None:
    message = CommitMessage(partition(), 1, 4, DataIncrement((replace(FULL, write_cols_sequences=None), OLD)))
    data = CODEC.encode_message(message, 14)
    bucket, total_buckets, names, again = ask(THEIRS, base64.b64encode(data).decode())
    assert (bucket, total_buckets, names) == (1, 4, ["f1", "f2"])
    assert CODEC.decode_message(base64.b64decode(again), 14) == message
