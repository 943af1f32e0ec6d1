"""Connections to the database of an SQL catalog: none is left open, whatever fails and whoever shares the catalog."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.utils.config import Config
from sqlalchemy import event
from sqlalchemy.engine import Engine

from forebay.base.errors import Unavailable
from forebay.lakes import iceberg_sql
from forebay.lakes.iceberg_cache import TableCache
from forebay.lakes.iceberg_tables import IcebergLakeCatalog, opened
from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableDescriptor, TablePath
from tests.noted_databases import noted_connections

PATH = TablePath("db", "t")


def lake(folder: Path) -> dict[str, str]:
    """The options of a lake with one table."""
    options = {"warehouse": str(folder)}
    descriptor = TableDescriptor(Schema.of([Column("id", types.int_())]), bucket_count=1)
    IcebergLakeCatalog(options).create_table(PATH, descriptor, creating=True)
    return options


def test_a_catalog_that_cannot_be_opened_leaves_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "catalog.db").write_bytes(b"no database at all")
    noted = noted_connections(monkeypatch)
    options = {"warehouse": str(tmp_path)}
    with pytest.raises(Unavailable, match="file is not a database"), opened(options):
        pass
    with pytest.raises(Unavailable, match="file is not a database"):
        TableCache(options).table(PATH)
    assert (len(noted.all), noted.left_open()) == (2, 0)


def test_uses_of_a_kept_catalog_at_the_same_time_leave_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = TableCache(lake(tmp_path))
    table = kept.table(PATH)
    noted = noted_connections(monkeypatch)
    meanwhile: list[object] = []

    def ask_again(*_: object) -> None:
        if len(meanwhile) < 3:
            meanwhile.append(None)
            meanwhile[-1] = kept.table(PATH)

    event.listen(Engine, "before_cursor_execute", ask_again)
    try:
        assert kept.table(PATH) is table
    finally:
        event.remove(Engine, "before_cursor_execute", ask_again)
    assert len(meanwhile) == 3
    assert (len(noted.all), noted.left_open()) == (4, 0)


def test_properties_of_pyiceberg_s_own_configuration_count_for_a_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__MINE__ECHO", "false")
    monkeypatch.setenv("PYICEBERG_CATALOG__MINE__URI", "sqlite:////other.db")
    monkeypatch.setattr(iceberg_sql, "_CONFIG", Config())
    with opened({"warehouse": str(tmp_path), "name": "mine"}) as catalog:
        assert catalog.name == "mine"
        assert catalog.properties["echo"] == "false"
        assert catalog.properties["uri"] == f"sqlite:///{tmp_path}/catalog.db"
