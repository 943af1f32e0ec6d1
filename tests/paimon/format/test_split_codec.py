"""Splits as bytes, in the serialization of Java Paimon."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import pytest

from forebay.base.errors import CorruptData, UnsupportedOperation
from forebay.metadata import types
from forebay.paimon.format.file_meta import FileSource, SimpleStats
from forebay.paimon.format.schema import DataField
from forebay.paimon.format.split import DataSplit, DeletionFile
from forebay.paimon.format.split_codec import DataSplitCodec
from forebay.paimon.format.stats import ColumnStats, pack_stats
from tests.paimon.commit.tables import data_file, partition

CODEC = DataSplitCodec(1, 1)
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
SPLIT = DataSplit(
    9, partition(), 1, 4, (FULL, OLD), True, False, deletion_files=(DeletionFile("index/i", 1, 22, 4), None)
)


def test_splits_come_back_as_they_were() -> None:
    for split in (SPLIT, replace(SPLIT, deletion_files=None, is_streaming=True, raw_convertible=False)):
        assert CODEC.decode(CODEC.encode(split, "/t/dt=a/bucket-1")) == (split, "/t/dt=a/bucket-1")
    with pytest.raises(UnsupportedOperation, match="before files"):
        CODEC.encode(replace(SPLIT, before_files=(OLD,)), "")


def test_the_bytes_of_a_split_stay_the_same() -> None:
    data = CODEC.encode(SPLIT, "/t/dt=a/bucket-1")
    assert (len(data), zlib.crc32(data)) == (1026, 4147914534)


def test_cut_or_lengthened_bytes_are_corrupt() -> None:
    whole = CODEC.encode(SPLIT, "/t/dt=a/bucket-1")
    for cut in (*range(0, len(whole), 11), len(whole) - 1):
        with pytest.raises(CorruptData):
            CODEC.decode(whole[:cut])
    with pytest.raises(CorruptData):
        CODEC.decode(whole + b"\0")


def test_bytes_that_are_no_split_of_this_version_are_refused() -> None:
    split = CODEC.encode(SPLIT, "/t/dt=a/bucket-1")
    other_magic, other_version = bytes(8) + split[8:], split[:8] + struct.pack(">i", 99) + split[12:]
    for wrong in (other_magic, other_version):
        with pytest.raises(CorruptData, match="not a split of version"):
            CODEC.decode(wrong)
