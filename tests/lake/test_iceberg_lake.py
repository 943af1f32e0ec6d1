"""Iceberg fulfils the lake contract."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from forebay.lake.formats import create_lake_storage
from forebay.lake.storage import LakeStorage
from forebay.lakes.iceberg import IcebergLakeStorage
from forebay.lakes.iceberg_tables import load_table, opened
from forebay.testing.lake_contract import LakeContract
from forebay.testing.lake_rounds import PATH
from tests.lake import rolling_back

CATALOGS_IN_USE: list[Catalog] = []
"""Catalogs that tables of tests connect to again: tests/lake/conftest.py closes them."""


def lake_table(storage: LakeStorage) -> Table:
    """The Iceberg table of the contract, opened by pyiceberg. Its catalog is closed at the end of the test."""
    assert isinstance(storage, IcebergLakeStorage)
    with opened(storage.options) as catalog:
        CATALOGS_IN_USE.append(catalog)
        return load_table(catalog, PATH)


END_OF_TIME = "9999-01-01T00:00:00Z"


def compact(storage: LakeStorage) -> int | None:
    """Compact all that can be compacted."""
    assert isinstance(storage, IcebergLakeStorage)
    with storage.upkeep(PATH) as upkeep:
        return upkeep.compact(files_min=1)


def expire(storage: LakeStorage, **limits: Any) -> list[int]:
    """Expire all snapshots that have no name, unless told otherwise."""
    assert isinstance(storage, IcebergLakeStorage)
    with storage.upkeep(PATH) as upkeep:
        return upkeep.expire(**(limits or {"older_than": END_OF_TIME, "keep": 1}))


class TestIcebergLake(LakeContract):
    """The contract, on an SQL catalog in a warehouse on the local disk."""

    bucket_format = "iceberg"
    sorts = False
    bucket_keys_max = 1
    has_nanoseconds = False
    option_prefix = "iceberg."
    reserved_options = ("iceberg.write.delete.mode", "iceberg.write.update.mode", "iceberg.write.merge.mode")
    many_splits = MappingProxyType({"iceberg.read.split.target-size": "1", "iceberg.read.split.open-file-cost": "1"})

    def open_storage(self, directory: Path) -> LakeStorage:
        return create_lake_storage("iceberg", {"warehouse": str(directory / "lake")})

    def stored_options(self, storage: LakeStorage) -> Mapping[str, str]:
        return lake_table(storage).properties

    def data_files(self, storage: LakeStorage) -> set[str]:
        assert isinstance(storage, IcebergLakeStorage)
        data = Path(storage.options["warehouse"]) / PATH.database / PATH.table / "data"
        return {str(p) for p in data.rglob("*.parquet")}

    def disturb(self, storage: LakeStorage) -> bool:
        return compact(storage) is not None

    def expire_old_snapshots(self, storage: LakeStorage) -> bool:
        return bool(expire(storage))

    def undo(self, storage: LakeStorage, to: int) -> bool:
        rolling_back.undo(storage, PATH, to)
        return True
