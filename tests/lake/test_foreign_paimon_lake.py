"""pypaimon and Java Paimon read the tables of our tiering: the rows of the stream."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from forebay.lakes.paimon import PaimonLakeStorage
from forebay.metadata import types
from forebay.metadata.types import DataType
from forebay.paimon.catalog.catalog import Catalog
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.testing.lake_contract_base import EVERY_TYPE, FULL_ROW
from forebay.testing.lake_rounds import PATH, Row, TieredTable
from tests.lake.paimon_tables import LAKE, create, describe
from tests.paimon.foreign.both_sides import agree
from tests.paimon.foreign.conftest import JavaTableOf, java, java_table
from tests.paimon.pypaimon_tables import read_by_pypaimon

__all__ = ["java", "java_table"]
pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

COLUMNS: dict[str, DataType] = {
    "id": types.bigint(),
    "day": types.date(),
    "name": types.string(),
    "price": types.decimal(38, 10),
    "at": types.timestamp_ltz(6),
    "tags": types.array(types.string()),
}
SHAPES: dict[str, dict[str, Any]] = {
    "log": {},
    "hashed log": {"bucket_keys": ("id",)},
    "partitioned log": {"partition_keys": ("day",)},
    "keyed": {"primary_key": ("id",)},
    "partitioned keyed": {"primary_key": ("id", "day"), "bucket_keys": ("id",), "partition_keys": ("day",)},
}


def row(i: int, name: str = "v") -> Row:
    return {
        "id": i,
        "day": dt.date(2024, 1, 1 + i % 3),
        "name": f"{name}{i}",
        "price": FULL_ROW["huge"] + i,
        "at": FULL_ROW["moment"] + dt.timedelta(seconds=i),
        "tags": [name] * (i % 3),
    }


def tiered(storage: PaimonLakeStorage, shape: str, auto: bool) -> tuple[TieredTable, list[Row]]:
    """A table of some rounds, and what is in it."""
    descriptor = describe(COLUMNS, **SHAPES[shape])
    options = {**LAKE, "table.datalake.auto-compaction": str(auto).lower()}
    table = create(storage, type(descriptor)(**{**vars(descriptor), "properties": options}))
    rows = [row(i) for i in range(30)]
    if not descriptor.has_primary_key:
        table.append(*rows[:20])
        table.append(*rows[20:])
        return table, rows
    for start in range(0, 30, 5):
        table.upsert(*rows[start : start + 5])
    table.upsert(*(row(i, "new") for i in range(10)))
    table.delete(*rows[8:12])
    return table, [*(row(i, "new") for i in range(8)), *rows[12:]]


@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_pypaimon_reads_what_was_tiered(tmp_path: Path, shape: str, auto: bool) -> None:
    storage = PaimonLakeStorage({"warehouse": str(tmp_path / "lake")})
    table, rows = tiered(storage, shape, auto)
    catalog = Catalog.open(storage.options)
    assert isinstance(catalog, FileSystemCatalog)
    found = read_by_pypaimon(catalog, str(PATH), tmp_path / "out.arrow", "python")
    assert [{name: each[name] for name in COLUMNS} for each in found] == rows
    assert all(set(each) - set(COLUMNS) == {"__bucket", "__offset", "__timestamp"} for each in found)
    assert len(table.read()) == len(rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_java_paimon_reads_what_was_tiered(tmp_path: Path, java_table: JavaTableOf, shape: str) -> None:
    storage = PaimonLakeStorage({"warehouse": str(tmp_path / "lake")})
    _, rows = tiered(storage, shape, True)
    catalog = Catalog.open(storage.options)
    assert isinstance(catalog, FileSystemCatalog)
    lake = catalog.table(str(PATH))
    assert len(agree(lake, java_table(catalog, str(PATH)))) == len(rows)


def test_java_paimon_reads_values_of_every_type(tmp_path: Path, java_table: JavaTableOf) -> None:
    storage = PaimonLakeStorage({"warehouse": str(tmp_path / "lake")})
    table = create(storage, describe(EVERY_TYPE, primary_key=("id",)))
    table.upsert(FULL_ROW, {**dict.fromkeys(EVERY_TYPE), "id": 2})
    catalog = Catalog.open(storage.options)
    assert isinstance(catalog, FileSystemCatalog)
    assert len(agree(catalog.table(str(PATH)), java_table(catalog, str(PATH)))) == 2
