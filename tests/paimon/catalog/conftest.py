"""The metastore that tests of the Hive catalog share, and catalogs on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.paimon.catalog.catalog import Catalog
from tests.paimon.catalog.metastore_server import ExamUnavailable, MetastoreServer


@pytest.fixture(scope="session")
def metastore() -> Iterator[MetastoreServer]:
    """A running Hive Metastore; skips with the reason where there can be none."""
    pytest.importorskip("thriftpy2", reason="needs the package thriftpy2")
    try:
        server = MetastoreServer()
    except ExamUnavailable as reason:
        pytest.skip(f"no Hive Metastore here: {reason}")
    yield server
    server.close()


@pytest.fixture
def hive_options(metastore: MetastoreServer, tmp_path: Path) -> dict[str, str]:
    return {"metastore": "hive", "uri": metastore.uri, "warehouse": str(tmp_path / "lake")}


@pytest.fixture
def hive_catalog(hive_options: dict[str, str]) -> Iterator[Catalog]:
    """A catalog on a metastore that has database `db` only; afterwards it is empty again."""
    opened = Catalog.open(hive_options)
    opened.create_database("db")
    yield opened
    drop_all(opened)


def drop_all(catalog: Catalog) -> None:
    """Drop all databases but the metastore's own."""
    for name in catalog.list_databases():
        if name != "default":
            catalog.drop_database(name, cascade=True)
