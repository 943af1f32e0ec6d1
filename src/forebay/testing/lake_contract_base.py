"""The base of the lake contract: how to open a format, its capabilities, and tables to test it with."""

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
    """How to open the format under test, and its limitations; override what differs."""

    bucket_format: str | None = None
    """The table's `table.datalake.format`, which determines the bucket hash; None: not set."""

    sorts = True
    """Whether `create_sorted_reader` returns readers for tables with a primary key."""

    bucket_keys_max = 2
    """The maximum number of columns of a bucket key."""

    has_nanoseconds = True
    """Whether timestamps with nine digits are stored."""

    partition_values: Sequence[tuple[DataType, tuple[Any, Any]]] = (
        (types.string(), ("2024-01-15", "a_b")),
        (types.int_(), (-7, 8)),
        (types.bigint(), (-(1 << 40), 1 << 40)),
        (types.date(), (dt.date(1969, 12, 31), dt.date(2024, 2, 29))),
        (types.boolean(), (False, True)),
    )
    """The types that partition keys may have, with two values of each."""

    option_prefix: str | None = None
    """Table options with this prefix are passed to the format without it; others are stored with the prefix `fluss.`.
    """

    reserved_options: Sequence[str] = ()
    """Options of the format that follow from the table's definition and cannot be set."""

    many_splits: Mapping[str, str] = MappingProxyType({})
    """Table options that make splits minimal."""

    def open_storage(self, directory: Path) -> LakeStorage:
        """The lake in `directory`; opening it again returns the same lake."""
        raise NotImplementedError("a contract test provides the lake")

    def stored_options(self, storage: LakeStorage) -> Mapping[str, str] | None:
        """The options of lake table `PATH` as other software sees them; None if they are not visible."""
        return None

    def data_files(self, storage: LakeStorage) -> set[str] | None:
        """The data files of lake table `PATH`, committed or not; None if they are not visible."""
        return None

    def disturb(self, storage: LakeStorage) -> bool:
        """Commit a snapshot to `PATH` without row changes (a compaction), like another program; False if impossible."""
        return False

    def expire_old_snapshots(self, storage: LakeStorage) -> bool:
        """Expire all snapshots of `PATH` except the newest, and their files; False if impossible."""
        return False

    def undo(self, storage: LakeStorage, to: int) -> bool:
        """Roll `PATH` back to a snapshot, like another program; False if the format cannot be rolled back."""
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
        """A table descriptor like that of a server."""
        schema = Schema.of([Column(name, t) for name, t in columns.items()], primary_key)
        options = {"table.datalake.enabled": "true"}
        if self.bucket_format is not None:
            options["table.datalake.format"] = self.bucket_format
        hashed = tuple(bucket_keys) or tuple(k for k in primary_key if k not in partition_keys)
        return TableDescriptor(
            schema, tuple(partition_keys), hashed, buckets, None, {**options, **(properties or {})}, custom or {}
        )

    def create(
        self, storage: LakeStorage, descriptor: TableDescriptor, *, creating: bool = True, path: TablePath = PATH
    ) -> TieredTable:
        """The lake table of `descriptor`, created if necessary."""
        with storage.create_catalog() as catalog:
            catalog.create_table(path, descriptor, creating=creating)
        table = TieredTable(storage, TableInfo(path, 7, 1, descriptor))
        storage.create_tiering_factory().validate(table.info)
        return table

    def log_table(self, storage: LakeStorage, columns: Mapping[str, DataType] = ID_NAME, **more: Any) -> TieredTable:
        """A new table without a primary key."""
        return self.create(storage, self.descriptor(columns, **more))

    def keyed_table(self, storage: LakeStorage, columns: Mapping[str, DataType] = ID_NAME, **more: Any) -> TieredTable:
        """A new table with the primary key `id` by default."""
        return self.create(storage, self.descriptor(columns, **{"primary_key": ["id"], **more}))


def people(*numbers: int, name: str = "v") -> list[Row]:
    """Rows of `ID_NAME`."""
    return [{"id": i, "name": f"{name}{i}"} for i in numbers]
