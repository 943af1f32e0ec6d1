"""The client: synchronous, Arrow first. `forebay.connect` is the entry point; docs/client.md is the guide.

Names are loaded on first use, so that importing one part does not load the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay.client.connection import Connection as Connection
    from forebay.client.connection import connect as connect
    from forebay.client.connection import shared_connection as shared_connection
    from forebay.client.reading.sources import register_source as register_source
    from forebay.client.settings import Settings as Settings
    from forebay.client.settings import make_settings as make_settings
    from forebay.client.table import Table as Table

__all__ = ["Connection", "Settings", "Table", "connect", "make_settings", "register_source", "shared_connection"]

_MODULES = {
    "Connection": "connection",
    "Settings": "settings",
    "Table": "table",
    "connect": "connection",
    "make_settings": "settings",
    "register_source": "reading.sources",
    "shared_connection": "connection",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module 'forebay.client' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"forebay.client.{module}"), name)
