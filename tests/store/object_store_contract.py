"""What every `ObjectStore` does. A test class inherits it and gives the fixture `store`, an empty one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from forebay.base.errors import InvalidRequest, StorageFailure
from forebay.store.objects import ObjectMissing, ObjectStore, create_once


def names(store: ObjectStore, prefix: str, after: str = "") -> Sequence[str]:
    return [entry.name for entry in store.list(prefix, after)]


class ObjectStoreContract:
    def test_an_object_is_created_once_and_keeps_its_content(self, store: ObjectStore) -> None:
        assert store.create("a/b", b"first")
        assert not store.create("a/b", b"second")
        assert store.read("a/b") == b"first"

    def test_of_many_creators_at_once_one_wins(self, store: ObjectStore) -> None:
        won: list[int] = []
        start = threading.Barrier(8)

        def run(number: int) -> None:
            start.wait()
            if store.create("race", b"%d" % number):
                won.append(number)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert store.read("race") == b"%d" % won[0]

    def test_an_attempt_that_has_happened_counts_as_done(self, store: ObjectStore) -> None:
        assert create_once(store, "a", b"mine")
        assert create_once(store, "a", b"mine")
        assert not create_once(store, "a", b"another's")

    def test_parts_of_an_object_are_read(self, store: ObjectStore) -> None:
        store.create("a", b"0123456789")
        assert store.read("a", 3) == b"3456789"
        assert store.read("a", 3, 5) == b"34"
        assert store.read("a", -4) == b"6789"
        assert store.read("a", -40) == b"0123456789"

    def test_an_object_may_be_empty(self, store: ObjectStore) -> None:
        store.create("a", b"")
        assert store.read("a") == b""

    @pytest.mark.parametrize("range_", [(0, None), (3, 5), (-4, None)])
    def test_a_missing_object_is_told_apart_from_other_failures(
        self, store: ObjectStore, range_: tuple[int, int | None]
    ) -> None:
        with pytest.raises(ObjectMissing, match="no object a/nope in"):
            store.read("a/nope", *range_)
        assert issubclass(ObjectMissing, StorageFailure)

    def test_an_object_of_many_parts_is_whole_and_replaces_another(self, store: ObjectStore) -> None:
        store.upload("a/large", iter([b"first"]))
        parts = [bytes([number]) * 1_000_000 for number in range(12)]
        store.upload("a/large", iter(parts))
        assert store.read("a/large") == b"".join(parts)
        assert names(store, "a/") == ["a/large"]

    def test_an_upload_whose_parts_fail_leaves_no_object(self, store: ObjectStore) -> None:
        def parts() -> Iterator[bytes]:
            yield b"first"
            raise StorageFailure("the disk failed")

        with pytest.raises(StorageFailure):
            store.upload("a/b", parts())
        with pytest.raises(ObjectMissing):
            store.read("a/b")
        store.upload("a/b", [b"again"])
        assert store.read("a/b") == b"again"

    def test_objects_are_listed_in_order_of_their_names(self, store: ObjectStore) -> None:
        assert names(store, "a/") == []
        for name in ("a/3", "a/1", "b/1", "a/10", "a/2", "a/deep/1"):
            store.create(name, b"12")
        assert names(store, "a/") == ["a/1", "a/10", "a/2", "a/3", "a/deep/1"]
        assert names(store, "a/1") == ["a/1", "a/10"]
        assert names(store, "a/", after="a/10") == ["a/2", "a/3", "a/deep/1"]
        assert next(iter(store.list("b/"))).size_bytes == 2

    def test_deleted_objects_are_gone_and_missing_ones_are_ignored(self, store: ObjectStore) -> None:
        store.create("a/1", b"")
        store.create("a/2", b"")
        store.delete(["a/1", "a/nope"])
        assert names(store, "a/") == ["a/2"]
        assert store.create("a/1", b"again")

    def test_a_name_does_not_leave_the_store(self, store: ObjectStore) -> None:
        for name in ("../out", "a/../../out", "/out"):
            with pytest.raises(InvalidRequest):
                store.create(name, b"")
