"""A directory as an object store: the contract, and what a crash leaves."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.base.errors import InvalidRequest, StorageFailure, UnsupportedOperation
from forebay.fs.local import LocalFileSystem
from forebay.fs.names import temporary_name
from forebay.store.directory import DirectoryStore
from forebay.store.opening import open_store
from tests.fs.faulty_fs import FaultyFileSystem
from tests.store.object_store_contract import ObjectStoreContract, names


class TestDirectoryStore(ObjectStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> DirectoryStore:
        store = open_store(f"{tmp_path}/store")
        assert isinstance(store, DirectoryStore)
        return store


class TestDirectoryStoreOnASimulatedDisk(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> DirectoryStore:
        return DirectoryStore(FaultyFileSystem(random.Random(1)), "/store")


@pytest.mark.parametrize("seed", range(20))
def test_an_object_that_was_created_survives_a_power_loss_whole(seed: int) -> None:
    files = FaultyFileSystem(random.Random(seed), page_bytes=16)
    store = DirectoryStore(files, "/store")
    for number in range(5):
        assert store.create(f"journal/{number}", b"%d" % number * 100)
    files.inject("any", on_call=random.Random(seed).randrange(1, 8))
    try:
        store.create("journal/5", b"5" * 100)
        expected = 6
    except StorageFailure:
        expected = 5
    store = DirectoryStore(files.crash(), "/store")
    found = names(store, "journal/")
    assert found[:expected] == [f"journal/{number}" for number in range(expected)]
    for number in range(len(found)):
        assert store.read(f"journal/{number}") == b"%d" % number * 100


def test_a_folder_is_made_durable_once_and_again_if_it_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    make = LocalFileSystem.make_directories
    monkeypatch.setattr(LocalFileSystem, "make_directories", lambda fs, path: [made.append(path), make(fs, path)][1])
    store = open_store(str(tmp_path))
    for number in range(3):
        assert store.create(f"a/{number}", b"x")
        store.upload(f"a/{number} large", [b"x"])
    shutil.rmtree(tmp_path / "a")
    assert store.create("a/3", b"x")
    shutil.rmtree(tmp_path / "a")
    store.upload("a/4", [b"x"])
    assert made == [f"{tmp_path}/a"] * 3
    assert names(store, "a/") == ["a/4"]


def test_a_place_that_cannot_be_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperation, match=r"hdfs://.*no conditional creation"):
        open_store("hdfs://host/store")
    with pytest.raises(InvalidRequest, match=r"is a directory, and has no options: s3\.region"):
        open_store(str(tmp_path), {"s3.region": "x"})
    with pytest.raises(InvalidRequest, match=r"no option 's3\.regoin'"):
        open_store("s3://bucket/store", {"s3.regoin": "x"})


def test_what_killed_attempts_have_left_goes_with_the_object(tmp_path: Path) -> None:
    store = DirectoryStore(LocalFileSystem(), str(tmp_path))
    store.create("store.json", b"{}")
    store.read("store.json")
    folder = tmp_path / "log"
    for name in ("log/a.log", "log/b.log"):
        store.upload(name, [b"rows"])
    left = [folder / temporary_name(name, "0" * 32) for name in ("a.log", "b.log", "a.log.index")]
    for path in left:
        path.write_bytes(b"half")
    assert [entry.name for entry in store.list("log/")] == ["log/a.log", "log/b.log"]
    store.delete(["log/a.log", "log/missing"])
    assert sorted(folder.iterdir()) == sorted([folder / "b.log", *left[1:]])


def test_two_uploads_of_one_object_at_a_time_are_each_whole(tmp_path: Path) -> None:
    store, other = (DirectoryStore(LocalFileSystem(), str(tmp_path)) for _ in range(2))

    def parts() -> Iterator[bytes]:
        yield b"the same "
        other.upload("log/a", [b"the same ", b"rows"])
        yield b"rows"

    store.upload("log/a", parts())
    assert store.read("log/a") == b"the same rows"


def test_an_upload_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = DirectoryStore(LocalFileSystem(), str(tmp_path))

    def parts() -> Iterator[bytes]:
        yield b"rows"
        raise StorageFailure("the other store is away")

    with pytest.raises(StorageFailure, match="the other store is away"):
        store.upload("log/a", parts())
    assert list((tmp_path / "log").iterdir()) == []


def test_nothing_counts_as_deleted_in_a_directory_that_is_not_mounted(tmp_path: Path) -> None:
    store = DirectoryStore(LocalFileSystem(), str(tmp_path / "store"))
    store.create("store.json", b"{}")
    store.read("store.json")
    store.create("log/a", b"rows")
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").mkdir()
    with pytest.raises(StorageFailure, match="still mounted"):
        store.delete(["log/a"])
