"""The state shared by all proxies of one catalog: the JVM, the session, the cluster."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from forebay.client.admin.admin import Admin
from forebay.client.connection import Connection, shared_connection
from forebay.client.settings import Settings
from forebay.spark.jvm.gateway import JavaObject, Jvm
from forebay.spark.jvm.values import weak_reference
from forebay.spark.options import (
    LEASE_DURATION,
    LEASE_ID,
    OWN_SESSION_PREFIX,
    READ_OPTIMIZED,
    SERVER_SIDE,
    SESSION_PREFIX,
    SESSION_ZONE,
    STRATEGY,
)
from forebay.spark.read_modes import SWITCHES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from forebay.paimon import Catalog


@dataclass(frozen=True)
class SessionContext:
    """A catalog's name, and the session that it is attached to.

    It has a weak reference to the session, which references the catalog: a cycle through the JVM is never collected.
    """

    jvm: Jvm
    catalog: str
    weak_session: JavaObject

    @classmethod
    def of(cls, session: SparkSession, catalog: str, *of_side: object) -> Self:
        """The context for `session`; `of_side` are the additional fields of a side's context."""
        jvm = Jvm.of(session)
        return cls(jvm, catalog, weak_reference(jvm, session._jsparkSession), *of_side)

    def of_session(self, session: JavaObject) -> Self:
        """The same context for another session, a Java object."""
        return replace(self, weak_session=weak_reference(self.jvm, session))

    @property
    def session(self) -> JavaObject:
        """The session's Java object."""
        return self.weak_session.get()

    def session_settings(self) -> dict[str, str]:
        """The explicitly set entries of the session's configuration."""
        # One text for all entries, because each entry would be two calls. This is Scala's notation of pairs.
        text = str(self.session.conf().getAll().mkString("\0"))
        return {key: value for key, _, value in (pair.partition(" -> ") for pair in text.split("\0"))}

    @property
    def cores(self) -> int:
        """The number of tasks that the cluster runs concurrently."""
        return int(self.jvm.context.defaultParallelism)

    def full_name(self, path: object) -> str:
        """The table's full name in SQL."""
        return f"{self.catalog}.{path}"


@dataclass(frozen=True)
class LiveContext(SessionContext):
    """The state shared by the proxies of a catalog of stream tables: the session and its cluster."""

    settings: Settings

    @property
    def connection(self) -> Connection:
        """The driver's connection, which all catalogs of the same cluster share."""
        return shared_connection(self.settings)

    @property
    def admin(self) -> Admin:
        return self.connection.admin

    def session_options(self) -> dict[str, str]:
        """The scan options in the session's configuration, and its time zone."""
        names = [SESSION_PREFIX + name for name in (STRATEGY, SERVER_SIDE, LEASE_ID, LEASE_DURATION, READ_OPTIMIZED)]
        names += [OWN_SESSION_PREFIX + name for name in (READ_OPTIMIZED, *SWITCHES)]
        settings = self.session_settings()
        zone = settings.get(SESSION_ZONE) or str(self.session.sessionState().conf().sessionLocalTimeZone())
        return {**{name: settings[name] for name in names if name in settings}, SESSION_ZONE: zone}


CatalogOptions = tuple[tuple[str, str], ...]
"""Paimon's catalog options (warehouse, metastore, uri ...), sorted by name."""

_catalogs: dict[CatalogOptions, Catalog] = {}
_lock = threading.Lock()


def shared_catalog(options: CatalogOptions) -> Catalog:
    """The catalog with these options, opened once for a process."""
    with _lock:
        if options not in _catalogs:
            from forebay.paimon import Catalog  # a session of a cluster alone does not need the lake engine

            _catalogs[options] = Catalog.open(dict(options))
        return _catalogs[options]


@dataclass(frozen=True)
class LakeContext(SessionContext):
    """The state shared by the proxies of a catalog of Paimon tables: the session and the lake options."""

    options: CatalogOptions

    @property
    def lake(self) -> Catalog:
        return shared_catalog(self.options)
