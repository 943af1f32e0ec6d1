"""The listing of an engine's files: its content, and that every difference is named."""

from __future__ import annotations

import pytest

from forebay.kv.file_checksums import first_difference, list_files, sync_files
from tests.fs.faulty_fs import FaultyFileSystem
from tests.log.log_batches import faulty_fs


@pytest.fixture
def fs() -> FaultyFileSystem:
    fs = faulty_fs()
    fs.make_directories("/kv/db/folder")
    for name, content in {"data.mdb": b"rows", "000012.sst": b"123456789", "lock.mdb": b"l", "LOG.old": b"x"}.items():
        fs.set_content(f"/kv/db/{name}", content)
    return fs


def test_files_that_hold_rows_are_listed_with_checksum_and_size(fs: FaultyFileSystem) -> None:
    lines = list_files(fs, "/kv/db").splitlines()
    assert lines[0] == "e3069283 9 000012.sst"  # the check value of CRC-32C
    assert [line.split(" ")[1:] for line in lines] == [["9", "000012.sst"], ["4", "data.mdb"], ["listing"]]


def test_locks_diaries_folders_and_new_files_make_no_difference(fs: FaultyFileSystem) -> None:
    listing = list_files(fs, "/kv/db")
    fs.set_content("/kv/db/lock.mdb", b"other")
    fs.set_content("/kv/db/LOCK", b"")
    fs.set_content("/kv/db/checksums", listing.encode())
    fs.set_content("/kv/db/000013.sst", b"new")
    assert first_difference(fs, "/kv/db", listing) is None


def test_every_other_difference_is_named(fs: FaultyFileSystem) -> None:
    listing = list_files(fs, "/kv/db")
    fs.set_content("/kv/db/data.mdb", b"rowz")
    assert str(first_difference(fs, "/kv/db", listing)).startswith("/kv/db/data.mdb has 4 bytes with checksum ")
    fs.set_content("/kv/db/data.mdb", b"rows+")
    assert "has 5 bytes" in str(first_difference(fs, "/kv/db", listing))
    fs.remove("/kv/db/data.mdb")
    assert first_difference(fs, "/kv/db", listing) == "/kv/db/data.mdb is missing"
    for damaged in ("", listing[:-1], listing.replace("data", "dada"), listing.splitlines(keepends=True)[0]):
        assert first_difference(fs, "/kv/db", damaged) == "the listing of the files in /kv/db is damaged"


def test_listed_files_survive_a_power_loss_once_synced(fs: FaultyFileSystem) -> None:
    fs.sync_directory("/kv")
    sync_files(fs, "/kv/db")
    listing = list_files(fs, "/kv/db")
    assert first_difference(fs.crash(), "/kv/db", listing) is None
