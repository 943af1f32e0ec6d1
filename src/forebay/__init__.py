"""Forebay: live tables for Python and PySpark, on the Apache Fluss protocol.

    import forebay

    conn = forebay.connect("127.0.0.1:9123")     # a Forebay server, or an Apache Fluss cluster
    conn = forebay.embedded("data/")             # the same server inside this process
    table = conn.table("sales.orders")
    table.scan(filter=forebay.col("amount") > 100).to_arrow()

Importing this package costs next to nothing: each name is loaded when it is first used. It sets up Arrow's allocator,
unless pyarrow was imported before (forebay.base.allocator).
"""

from __future__ import annotations

from forebay.base.allocator import settle as _settle_allocator
from forebay.base.version import __version__ as __version__

_settle_allocator()

TYPE_CHECKING = False  # not from typing, whose import would cost more than all of this module
if TYPE_CHECKING:
    from typing import Any

    from forebay.base import errors as errors
    from forebay.client import metrics
    from forebay.client.connection import Connection as Connection
    from forebay.client.connection import connect as connect
    from forebay.client.table import Table as Table
    from forebay.inprocess import embedded as embedded
    from forebay.metadata import types as types
    from forebay.metadata.predicate import col as col
    from forebay.query.run import sql as sql

__all__ = ["Connection", "Table", "__version__", "col", "connect", "embedded", "errors", "metrics", "sql", "types"]

_PLACES = {
    "Connection": ("forebay.client.connection", "Connection"),
    "Table": ("forebay.client.table", "Table"),
    "col": ("forebay.metadata.predicate", "col"),
    "connect": ("forebay.client.connection", "connect"),
    "embedded": ("forebay.inprocess", "embedded"),
    "errors": ("forebay.base.errors", None),
    "metrics": ("forebay.client.metrics", None),
    "sql": ("forebay.query.run", "sql"),
    "types": ("forebay.metadata.types", None),
}


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'forebay' has no attribute '{name}'")
    from importlib import import_module

    module = import_module(place[0])
    value = module if place[1] is None else getattr(module, place[1])
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
