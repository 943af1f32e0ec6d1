"""Iceberg fulfils the lake contract."""

from __future__ import annotations

from tests.lake.iceberg_contract import IcebergContract


class TestIcebergLake(IcebergContract):
    """The contract, on an SQL catalog in a warehouse on the local disk."""
