"""The Iceberg table of a lake storage, and its upkeep by pyiceberg."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from forebay.lake.storage import LakeStorage
from forebay.lakes.iceberg import IcebergLakeStorage
from forebay.lakes.iceberg_tables import load_table, opened
from forebay.testing.lake_rounds import PATH

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
