"""File and directory names: generated names are parsed back, and no others are accepted."""

from __future__ import annotations

import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.base.errors import InvalidRequest
from forebay.fs import names
from forebay.metadata.table import PhysicalTablePath, TableBucket, TablePath

name = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0"), min_size=1, max_size=12).filter(
    lambda text: text not in (".", "..")
)
identifier = st.integers(0, 2**63 - 1)


@given(st.sampled_from(["log", "kv"]), name, name, st.none() | name, identifier, identifier, st.integers(0, 2**31 - 1))
def test_a_tablet_folder_is_parsed_back(
    kind: names.TabletKind, database: str, table: str, partition: str | None, table_id: int, pid: int, bucket: int
) -> None:
    path = PhysicalTablePath(TablePath(database, table), partition)
    table_bucket = TableBucket(table_id, bucket, None if partition is None else pid)
    relative = names.tablet_folder(kind, path, table_bucket)
    assert names.parse_tablet_folder(relative) == (kind, path, table_bucket)


def test_tablet_folders_look_like_those_of_fluss() -> None:
    orders = TablePath("sales", "orders")
    plain = names.tablet_folder("log", PhysicalTablePath(orders), TableBucket(7, 3))
    assert plain == "sales/orders-7/log-3"
    partitioned = names.tablet_folder("kv", PhysicalTablePath(orders, "2024-01-15$EMEA"), TableBucket(7, 3, 12))
    assert partitioned == "sales/orders-7/2024-01-15$EMEA-p12/kv-3"


@pytest.mark.parametrize(
    "relative",
    [
        "",
        "lock",
        "db/t-1",
        "db/t-1/log-0.deleted",
        "db/t/log-0",
        "db/t-1/x-0",
        "db/t-1/p-1/log-0",
        "a/b-1/c-p1/d/log-0",
        "/t-1/log-0",
        "t-1/log-0",
        "db/t-1/log-x",
    ],
)
def test_other_paths_are_not_tablet_folders(relative: str) -> None:
    assert names.parse_tablet_folder(relative) is None


@given(identifier)
def test_offset_files_are_parsed_back_and_sort_as_their_offsets(offset: int) -> None:
    for make, suffix in (
        (names.log_file, ".log"),
        (names.offset_index_file, ".index"),
        (names.time_index_file, ".timeindex"),
        (names.writer_snapshot_file, ".writer_snapshot"),
    ):
        path = make("/d", offset)
        assert len(path) == len("/d/") + 20 + len(suffix)
        assert names.parse_offset_file(path.removeprefix("/d/")) == (offset, suffix)
    assert offset == 2**63 - 1 or names.log_file("/d", offset) < names.log_file("/d", offset + 1)


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_impossible_offsets_name_no_file(offset: int) -> None:
    with pytest.raises(InvalidRequest, match=str(offset)):
        names.log_file("/d", offset)


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "a\0b", "a\\b"])
def test_names_that_would_leave_their_folder_are_refused(bad: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot name a folder"):
        names.table_folder(TablePath("db", bad), 1)
    with pytest.raises(InvalidRequest, match="cannot name a folder"):
        names.table_folder(TablePath(bad, "t"), 1)
    with pytest.raises(InvalidRequest, match="cannot name a folder"):
        names.tablet_folder("log", PhysicalTablePath(TablePath("db", "t"), bad), TableBucket(1, 0, 2))


STEPS = st.lists(st.sampled_from(["", ".", "..", "a", "a-1", "a\\b", "\0", "é", " "]), max_size=5).map("/".join)


@given(STEPS | st.text(max_size=8))
@example("../../outside")
@example("/etc")
def test_joined_parts_stay_below_their_folder_or_are_refused(part: str) -> None:
    try:
        path = names.join("/data", part)
    except InvalidRequest:
        return
    assert os.path.normpath(path) == path
    assert path == "/data" or path.startswith("/data/")


def test_path_and_bucket_must_agree_about_a_partition() -> None:
    with pytest.raises(InvalidRequest, match="do not agree"):
        names.tablet_folder("log", PhysicalTablePath(TablePath("db", "t")), TableBucket(1, 0, 2))


def test_temporary_dying_and_lake_files_are_distinguished_from_others() -> None:
    assert names.is_temporary(names.temporary_name("marker", "1"))
    for other in ("marker.tmp", ".marker", "marker"):
        assert not names.is_temporary(other)
    assert names.is_deleted(names.deleted_folder("log-0"))
    assert not names.is_deleted("log-0")
    folder = names.lake_offsets_folder(TablePath("db", "t"), 7)
    assert folder == "db/t-7/lake"
    file = names.lake_offsets_file(folder, "0123456789abcdef" * 2)
    assert names.is_lake_offsets_file(file.removeprefix(f"{folder}/"))
    for other in (file, "0123" + names.LAKE_OFFSETS_SUFFIX, "0123456789abcdef" * 2):
        assert not names.is_lake_offsets_file(other)


def test_tablets_of_one_partition_lie_in_one_folder() -> None:
    table = TablePath("db", "t")
    assert names.bucket_parent_folder(PhysicalTablePath(table), TableBucket(1, 5)) == "db/t-1"
    assert names.bucket_parent_folder(PhysicalTablePath(table, "p"), TableBucket(1, 5, 2)) == "db/t-1/p-p2"
    with pytest.raises(InvalidRequest, match="do not agree"):
        names.bucket_parent_folder(PhysicalTablePath(table, "p"), TableBucket(1, 5))
