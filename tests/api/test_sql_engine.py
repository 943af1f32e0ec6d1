from __future__ import annotations

import importlib.metadata

import pytest

from forebay.api.sql_engine import sql_engine
from forebay.base.errors import UnsupportedOperation
from forebay.query.run import sql


def test_duckdb_is_the_engine_of_connections() -> None:
    assert sql_engine() is sql


def test_an_engine_that_no_package_registers_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    with pytest.raises(UnsupportedOperation, match="no SQL engine 'other' is registered"):
        sql_engine("other")
