"""The plugin of dbt-duckdb without dbt: what it opens before it can fail. `tests/foreign` has it with dbt."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest

from forebay.base.errors import InvalidRequest


def test_a_plugin_whose_lakes_are_wrong_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins: Any = ModuleType("dbt.adapters.duckdb.plugins")
    plugins.BasePlugin = object
    for name in ("dbt", "dbt.adapters", "dbt.adapters.duckdb", plugins.__name__, "forebay.dbt"):
        monkeypatch.setitem(sys.modules, name, plugins)
    del sys.modules["forebay.dbt"]
    plugin: Any = importlib.import_module("forebay.dbt")
    connected: list[object] = []
    monkeypatch.setattr(plugin, "connect", lambda *arguments, **named: connected.append(arguments))
    with pytest.raises(InvalidRequest):
        plugin.Plugin().initialize({"bootstrap_servers": "127.0.0.1:1", "lakes": {"lake": 7}})
    assert connected == []
