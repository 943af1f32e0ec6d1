"""What the lake contract knows of a format: how to open it, what it can do, and tables to try it with."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from forebay.lake.storage import LakeStorage
from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableDescriptor, TableInfo, TablePath
from forebay.metadata.types import DataType
from forebay.testing.lake_rounds import PATH, Row, TieredTable

ID_NAME: dict[str, DataType] = {"id": types.int_(), "name": types.string()}
"""The columns of most tables here."""

EVERY_TYPE: dict[str, DataType] = {
    "id": types.bigint(),
    "flag": types.boolean(),
    "tiny": types.tinyint(),
    "small": types.smallint(),
    "number": types.int_(),
    "real": types.float_(),
    "double": types.double(),
    "letters": types.char(3),
    "text": types.string(),
    "octets": types.binary(2),
    "blob": types.bytes_(),
    "price": types.decimal(10, 2),
    "huge": types.decimal(38, 10),
    "day": types.date(),
    "clock": types.time(3),
    "seconds": types.timestamp(0),
    "millis": types.timestamp(3),
    "micros": types.timestamp(6),
    "instant": types.timestamp_ltz(3),
    "moment": types.timestamp_ltz(6),
    "list": types.array(types.string()),
    "map": types.map_(types.string(), types.bigint()),
    "row": types.row(types.field("x", types.int_()), types.field("y", types.array(types.timestamp_ltz(6)))),
}
NANOSECONDS: dict[str, DataType] = {"nanos": types.timestamp(9), "exact": types.timestamp_ltz(9)}

_DAY, _NOON = dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 12, 30, 15, 123456)
FULL_ROW: Row = {
    "id": 1,
    "flag": True,
    "tiny": -128,
    "small": -32768,
    "number": -(1 << 31),
    "real": 0.5,
    "double": -1e300,
    "letters": "äöü",
    "text": "snow ☃ and 😀",
    "octets": b"\x00\xff",
    "blob": b"",
    "price": Decimal("-99999999.99"),
    "huge": Decimal("1234567890123456789012345678.0123456789"),
    "day": _DAY,
    "clock": dt.time(23, 59, 59, 999000),
    "seconds": _NOON.replace(microsecond=0),
    "millis": _NOON.replace(microsecond=123000),
    "micros": _NOON,
    "instant": _NOON.replace(microsecond=123000, tzinfo=dt.UTC),
    "moment": dt.datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=dt.UTC),
    "list": ["a", None, ""],
    "map": [("k", 1), ("l", None)],
    "row": {"x": 1, "y": [_NOON.replace(tzinfo=dt.UTC), None]},
}
"""A value of each type of `EVERY_TYPE`."""


class LakeContractBase:
    """How to open the format under test, and what it cannot do; override what differs."""

    bucket_format: str | None = None
    """The table's `table.datalake.format`, by which rows find their buckets; None: none is recorded."""

    sorts = True
    """Whether `create_sorted_reader` gives readers for tables with a primary key."""

    bucket_keys_max = 2
    """The most columns of a bucket key."""

    has_nanoseconds = True
    """Whether timestamps of nine digits are kept."""

    partition_values: Sequence[tuple[DataType, tuple[Any, Any]]] = (
        (types.string(), ("2024-01-15", "a_b")),
        (types.int_(), (-7, 8)),
        (types.bigint(), (-(1 << 40), 1 << 40)),
        (types.date(), (dt.date(1969, 12, 31), dt.date(2024, 2, 29))),
        (types.boolean(), (False, True)),
    )
    """Types that partition keys may have here, with two values of each."""

    option_prefix: str | None = None
    """Table options with this prefix go to the format without it; others are kept with the prefix `fluss.`."""

    reserved_options: Sequence[str] = ()
    """Options of the format that follow from the table's shape and cannot be set."""

    many_splits: Mapping[str, str] = MappingProxyType({})
    """Table options that make splits as small as can be."""

    def open_storage(self, directory: Path) -> LakeStorage:
        """The lake in `directory`; opened again, it is the same lake."""
        raise NotImplementedError("a contract test provides the lake")

    def stored_options(self, storage: LakeStorage) -> Mapping[str, str] | None:
        """The options of lake table `PATH` as others see them; None where they cannot be seen."""
        return None

    def data_files(self, storage: LakeStorage) -> set[str] | None:
        """The files of rows of lake table `PATH`, committed or not; None where they cannot be seen."""
        return None

    def disturb(self, storage: LakeStorage) -> bool:
        """Commit a snapshot to `PATH` that changes no rows (a compaction), as another program; return False if
        impossible."""
        return False

    def expire_old_snapshots(self, storage: LakeStorage) -> bool:
        """Expire all snapshots of `PATH` but the newest, and their files; False where that cannot be done."""
        return False

    # -- tables -------------------------------------------------------------------------------------------------------

    @pytest.fixture
    def storage(self, tmp_path: Path) -> LakeStorage:
        return self.open_storage(tmp_path)

    def descriptor(
        self,
        columns: Mapping[str, DataType],
        *,
        primary_key: Sequence[str] = (),
        partition_keys: Sequence[str] = (),
        bucket_keys: Sequence[str] = (),
        buckets: int = 2,
        properties: Mapping[str, str] | None = None,
        custom: Mapping[str, str] | None = None,
    ) -> TableDescriptor:
        """A table as a server would describe it."""
        schema = Schema.of([Column(name, t) for name, t in columns.items()], primary_key)
        known = {"table.datalake.enabled": "true"}
        if self.bucket_format is not None:
            known["table.datalake.format"] = self.bucket_format
        hashed = tuple(bucket_keys) or tuple(k for k in primary_key if k not in partition_keys)
        return TableDescriptor(
            schema, tuple(partition_keys), hashed, buckets, None, {**known, **(properties or {})}, custom or {}
        )

    def create(
        self, storage: LakeStorage, descriptor: TableDescriptor, *, creating: bool = True, path: TablePath = PATH
    ) -> TieredTable:
        """The lake table of `descriptor`, made unless it is there."""
        with storage.create_catalog() as catalog:
            catalog.create_table(path, descriptor, creating=creating)
        table = TieredTable(storage, TableInfo(path, 7, 1, descriptor))
        storage.create_tiering_factory().validate(table.info)
        return table

    def log_table(self, storage: LakeStorage, columns: Mapping[str, DataType] = ID_NAME, **more: Any) -> TieredTable:
        """A new table without a primary key."""
        return self.create(storage, self.descriptor(columns, **more))

    def keyed_table(self, storage: LakeStorage, columns: Mapping[str, DataType] = ID_NAME, **more: Any) -> TieredTable:
        """A new table with the primary key `id` unless said otherwise."""
        return self.create(storage, self.descriptor(columns, **{"primary_key": ["id"], **more}))


def people(*numbers: int, name: str = "v") -> list[Row]:
    """Rows of `ID_NAME`."""
    return [{"id": i, "name": f"{name}{i}"} for i in numbers]
