"""Paimon tables of streams: described, created, and as the lake engine opens them."""

from __future__ import annotations

from typing import Any

from forebay.lakes.paimon import PaimonLakeStorage
from forebay.lakes.paimon_tables import open_catalog
from forebay.metadata.table import Column, Schema, TableDescriptor, TableInfo
from forebay.metadata.types import DataType
from forebay.paimon.table import Table
from forebay.testing.lake_rounds import PATH, TieredTable

LAKE = {"table.datalake.enabled": "true", "table.datalake.format": "paimon"}


def describe(columns: dict[str, DataType], **more: Any) -> TableDescriptor:
    keys = more.pop("primary_key", ())
    schema = Schema.of([Column(n, t, f"about {n}") for n, t in columns.items()], keys)
    return TableDescriptor(schema, properties=LAKE, **{"bucket_count": 4, "bucket_keys": keys, **more})


def create(storage: PaimonLakeStorage, descriptor: TableDescriptor, creating: bool = True) -> TieredTable:
    with storage.create_catalog() as catalog:
        catalog.create_table(PATH, descriptor, creating=creating)
    return TieredTable(storage, TableInfo(PATH, 7, 1, descriptor))


def engine_table(storage: PaimonLakeStorage) -> Table:
    return open_catalog(storage.options).table(str(PATH))
