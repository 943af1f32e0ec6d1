"""What all proxies of one catalog of Paimon tables share: the JVM, the session, the warehouse."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.paimon import Catalog
from forebay.spark.context import SessionContext
from forebay.spark.jvm.gateway import Jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CatalogOptions = tuple[tuple[str, str], ...]
"""Paimon's catalog options (warehouse, metastore, uri ...), sorted by name."""

_catalogs: dict[CatalogOptions, Catalog] = {}
_lock = threading.Lock()


def shared_catalog(options: CatalogOptions) -> Catalog:
    """The catalog with these options, opened once for a process."""
    with _lock:
        if options not in _catalogs:
            _catalogs[options] = Catalog.open(dict(options))
        return _catalogs[options]


@dataclass(frozen=True)
class PaimonContext(SessionContext):
    """What the proxies of a catalog of Paimon tables share: its options, beside the session."""

    options: CatalogOptions

    @classmethod
    def of(cls, session: SparkSession, catalog: str, options: Mapping[str, str]) -> PaimonContext:
        jvm = Jvm.of(session)
        return cls(jvm, catalog, jvm.weak(session._jsparkSession), tuple(sorted(options.items())))

    @property
    def lake(self) -> Catalog:
        return shared_catalog(self.options)
