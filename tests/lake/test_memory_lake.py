"""The in-memory lake fulfils the lake contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from forebay.lake.storage import LakeStorage
from forebay.testing.lake_contract import LakeContract
from forebay.testing.lake_rounds import PATH
from forebay.testing.memory_lake import (
    OPTION_PREFIX,
    MemoryLakeStorage,
    commit_as_somebody_else,
    expire_all_but_the_newest,
    forget_lake,
)
from tests.lake import rolling_back


def memory(storage: LakeStorage) -> MemoryLakeStorage:
    assert isinstance(storage, MemoryLakeStorage)
    return storage


class TestMemoryLake(LakeContract):
    """The contract, on a lake named after the test's folder."""

    option_prefix = OPTION_PREFIX

    @pytest.fixture(autouse=True)
    def forgotten(self) -> Iterator[None]:
        self.names: set[str] = set()
        yield
        for name in self.names:
            forget_lake(name)

    def open_storage(self, directory: Path) -> LakeStorage:
        self.names.add(str(directory))
        return MemoryLakeStorage({"name": str(directory)})

    def stored_options(self, storage: LakeStorage) -> Mapping[str, str]:
        return memory(storage).table(PATH).options

    def data_files(self, storage: LakeStorage) -> set[str]:
        return set(memory(storage).table(PATH).files)

    def disturb(self, storage: LakeStorage) -> bool:
        commit_as_somebody_else(memory(storage), PATH)
        return True

    def expire_old_snapshots(self, storage: LakeStorage) -> bool:
        expire_all_but_the_newest(memory(storage), PATH)
        return True

    def undo(self, storage: LakeStorage, to: int) -> bool:
        rolling_back.undo(storage, PATH, to)
        return True
