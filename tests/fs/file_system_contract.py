"""The contract of `forebay.fs.interface.FileSystem`, as a test class to subclass.

A subclass provides two pytest fixtures, `fs` (a fresh file system) and `root` (the path of an existing, empty folder in
it), and inherits the tests. Durability across power loss is not tested here: only a simulated disk can lose power.
Prior art: `zarr.testing.store.StoreTests`.
"""

from __future__ import annotations

import sys
import threading

import pytest

from forebay.base.errors import InvalidRequest, StorageFailure
from forebay.fs import names
from forebay.fs.interface import FileMissing, FileSystem


class FileSystemContract:
    """The tests. See the module's docstring for what a subclass must provide."""

    def test_appended_bytes_are_read_back_at_the_position_that_append_returned(self, fs: FileSystem, root: str) -> None:
        file = fs.open_append(f"{root}/a")
        assert file.append([b"one", bytearray(b"two"), memoryview(b"-three")[1:]]) == 0
        assert file.append([b"four"]) == 11
        assert file.size == 15
        reader = fs.open_reader(f"{root}/a")
        assert reader.pread(0, 100) == b"onetwothreefour"
        assert reader.pread(11, 4) == b"four"
        assert reader.size() == 15

    def test_an_append_of_nothing_changes_nothing(self, fs: FileSystem, root: str) -> None:
        file = fs.open_append(f"{root}/a")
        assert file.append([]) == 0
        assert file.append([b""]) == 0
        assert file.size == 0

    def test_an_append_takes_thousands_of_buffers(self, fs: FileSystem, root: str) -> None:
        file = fs.open_append(f"{root}/a")
        parts = [bytes([number % 251]) * (number % 5) for number in range(3000)]
        file.append(parts)
        assert fs.read_bytes(f"{root}/a") == b"".join(parts)

    def test_reading_ends_where_the_file_ends(self, fs: FileSystem, root: str) -> None:
        fs.open_append(f"{root}/a").append([b"12345"])
        reader = fs.open_reader(f"{root}/a")
        assert reader.pread(3, 10) == b"45"
        assert reader.pread(5, 10) == b""
        assert reader.pread(500, 10) == b""

    def test_a_reader_sees_what_is_appended_after_it_was_opened(self, fs: FileSystem, root: str) -> None:
        file = fs.open_append(f"{root}/a")
        reader, shared = fs.open_reader(f"{root}/a"), file.reader()
        file.append([b"later"])
        assert reader.pread(0, 5) == shared.pread(0, 5) == b"later"

    def test_reopening_appends_at_the_end(self, fs: FileSystem, root: str) -> None:
        first = fs.open_append(f"{root}/a")
        first.append([b"one"])
        first.close()
        second = fs.open_append(f"{root}/a")
        assert second.size == 3
        assert second.append([b"two"]) == 3
        assert fs.read_bytes(f"{root}/a") == b"onetwo"

    def test_truncation_cuts_the_end_and_appends_continue_from_there(self, fs: FileSystem, root: str) -> None:
        file = fs.open_append(f"{root}/a")
        file.append([b"123456"])
        file.truncate(2)
        assert file.size == 2
        assert file.append([b"x"]) == 2
        file.sync()
        assert fs.read_bytes(f"{root}/a") == b"12x"

    def test_shared_words_are_what_was_written_and_then_what_was_stored(self, fs: FileSystem, root: str) -> None:
        path = f"{root}/words"
        fs.write_atomic(path, b"".join(n.to_bytes(8, sys.byteorder) for n in range(5)))
        shared = fs.share_words(path)
        words = shared.words
        assert [words[n] for n in range(len(words))] == [0, 1, 2, 3, 4]
        words[1], words[4] = -(2**63), 2**63 - 1
        shared.sync()
        again = fs.share_words(path).words
        assert [again[n] for n in range(5)] == [0, -(2**63), 2, 3, 2**63 - 1]
        assert fs.read_bytes(path)[8:16] == (-(2**63)).to_bytes(8, sys.byteorder, signed=True)

    def test_shared_words_of_a_missing_file_are_an_error(self, fs: FileSystem, root: str) -> None:
        with pytest.raises(FileMissing):
            fs.share_words(f"{root}/words")

    def test_a_closed_file_refuses_work_and_its_reader_continues(self, fs: FileSystem, root: str) -> None:
        file = fs.open_append(f"{root}/a")
        file.append([b"kept"])
        reader = file.reader()
        file.close()
        file.close()
        for work in (lambda: file.append([b"x"]), file.sync, lambda: file.truncate(0)):
            with pytest.raises(StorageFailure, match="closed"):
                work()
        assert reader.pread(0, 4) == b"kept"
        reader.close()
        with pytest.raises(StorageFailure, match="closed"):
            reader.pread(0, 4)

    def test_a_removed_file_is_still_readable_by_who_has_it_open(self, fs: FileSystem, root: str) -> None:
        fs.write_atomic(f"{root}/a", b"kept")
        reader = fs.open_reader(f"{root}/a")
        fs.remove(f"{root}/a")
        assert not fs.exists(f"{root}/a")
        assert reader.pread(0, 4) == b"kept"

    def test_what_is_missing_is_reported_with_its_path(self, fs: FileSystem, root: str) -> None:
        path = f"{root}/missing"
        for work in (
            lambda: fs.open_reader(path),
            lambda: fs.read_bytes(path),
            lambda: fs.remove(path),
            lambda: fs.list_directory(path),
            lambda: fs.rename(path, f"{root}/b"),
            lambda: fs.open_append(f"{path}/a"),
            lambda: fs.write_atomic(f"{path}/a", b""),
            lambda: fs.sync_directory(path),
        ):
            with pytest.raises(FileMissing, match="missing"):
                work()
        assert not fs.exists(path)
        fs.remove_tree(path)

    def test_write_atomic_replaces_and_leaves_no_other_name(self, fs: FileSystem, root: str) -> None:
        fs.write_atomic(f"{root}/a", b"long content")
        fs.write_atomic(f"{root}/a", bytearray(b"new"))
        assert fs.read_bytes(f"{root}/a") == b"new"
        assert [entry.name for entry in fs.list_directory(root)] == ["a"]

    def test_publishing_succeeds_once(self, fs: FileSystem, root: str) -> None:
        assert fs.publish_if_absent(f"{root}/a", b"first")
        assert not fs.publish_if_absent(f"{root}/a", b"second")
        assert fs.read_bytes(f"{root}/a") == b"first"
        assert [entry.name for entry in fs.list_directory(root)] == ["a"]

    def test_of_many_publishers_exactly_one_wins(self, fs: FileSystem, root: str) -> None:
        won: list[bytes] = []

        def publish(content: bytes) -> None:
            if fs.publish_if_absent(f"{root}/a", content):
                won.append(content)

        threads = [threading.Thread(target=publish, args=(bytes([number]) * 100,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won == [fs.read_bytes(f"{root}/a")]

    def test_directories_are_made_with_all_above_them_and_again(self, fs: FileSystem, root: str) -> None:
        fs.make_directories(f"{root}/x/y/z")
        fs.make_directories(f"{root}/x/y/z")
        fs.write_atomic(f"{root}/x/y/z/a", b"1")
        assert fs.read_bytes(f"{root}/x/y/z/a") == b"1"

    def test_no_directory_is_made_where_a_file_is(self, fs: FileSystem, root: str) -> None:
        fs.write_atomic(f"{root}/x", b"")
        with pytest.raises(StorageFailure, match="x"):
            fs.make_directories(f"{root}/x/y")
        with pytest.raises(StorageFailure, match="x"):
            fs.make_directories(f"{root}/x")

    def test_a_listing_is_sorted_and_tells_kind_and_size(self, fs: FileSystem, root: str) -> None:
        fs.make_directories(f"{root}/folder")
        fs.write_atomic(f"{root}/b", b"123")
        fs.open_append(f"{root}/a").append([b"1"])
        listed = fs.list_directory(root)
        assert [entry.name for entry in listed] == ["a", "b", "folder"]
        assert [entry.is_directory for entry in listed] == [False, False, True]
        assert [entry.size_bytes for entry in listed] == [1, 3, 0]

    def test_rename_replaces_a_file_and_moves_a_folder(self, fs: FileSystem, root: str) -> None:
        fs.write_atomic(f"{root}/a", b"new")
        fs.write_atomic(f"{root}/b", b"old")
        fs.rename(f"{root}/a", f"{root}/b")
        assert fs.read_bytes(f"{root}/b") == b"new"
        assert not fs.exists(f"{root}/a")
        fs.make_directories(f"{root}/x/y")
        fs.rename(f"{root}/x", f"{root}/z")
        assert fs.exists(f"{root}/z/y")
        assert not fs.exists(f"{root}/x")
        fs.sync_directory(root)

    def test_a_tree_is_removed_whole(self, fs: FileSystem, root: str) -> None:
        fs.make_directories(f"{root}/x/y")
        fs.write_atomic(f"{root}/x/a", b"1")
        fs.write_atomic(f"{root}/x/y/b", b"1")
        fs.remove_tree(f"{root}/x")
        assert fs.list_directory(root) == []

    @pytest.mark.parametrize("way_out", ["..", ".", "a/../../b", "a//b", "./b", "a/.", "b\0"])
    def test_no_path_leads_out_of_its_folder(self, fs: FileSystem, root: str, way_out: str) -> None:
        fs.make_directories(f"{root}/a")
        before, path = fs.list_directory(root), f"{root}/{way_out}"
        for act in (
            lambda: fs.open_append(path), lambda: fs.open_reader(path), lambda: fs.read_bytes(path),
            lambda: fs.write_atomic(path, b"x"), lambda: fs.publish_if_absent(path, b"x"),
            lambda: fs.make_directories(path), lambda: fs.list_directory(path), lambda: fs.exists(path),
            lambda: fs.remove(path), lambda: fs.remove_tree(path), lambda: fs.rename(path, f"{root}/c"),
            lambda: fs.rename(f"{root}/a", path), lambda: fs.sync_directory(path), lambda: fs.lock(path),
        ):  # fmt: skip
            with pytest.raises(InvalidRequest, match="is not opened"):
                act()
        assert fs.list_directory(root) == before

    def test_a_lock_has_one_holder_at_a_time(self, fs: FileSystem, root: str) -> None:
        held = fs.lock(f"{root}/lock")
        assert held is not None
        assert fs.lock(f"{root}/lock") is None
        held.release()
        held.release()
        again = fs.lock(f"{root}/lock")
        assert again is not None
        again.release()

    def test_free_space_is_a_number_of_bytes(self, fs: FileSystem, root: str) -> None:
        assert 0 < fs.free_bytes(root) <= fs.total_bytes(root)

    def test_forgetting_the_cache_changes_nothing_that_is_read(self, fs: FileSystem, root: str) -> None:
        file = fs.open_append(f"{root}/a")
        file.append([b"synced"])
        file.sync()
        file.append([b"not"])
        fs.forget_cached(f"{root}/a")
        assert fs.read_bytes(f"{root}/a") == b"syncednot"

    def test_syncs_run_beside_appends(self, fs: FileSystem, root: str) -> None:
        file = fs.open_append(f"{root}/a")
        stop = threading.Event()

        def sync() -> None:
            while not stop.is_set():
                file.sync()

        thread = threading.Thread(target=sync)
        thread.start()
        try:
            for number in range(200):
                file.append([bytes([number])])
        finally:
            stop.set()
            thread.join()
        assert fs.read_bytes(f"{root}/a") == bytes(range(200))

    def test_temporary_names_are_recognised(self) -> None:
        assert names.is_temporary(names.temporary_name("a.log", "0123"))
        assert not names.is_temporary("a.log")
