"""Catalogs of sessions that Spark derives: by `spark.newSession()`, for `foreachBatch`, for users of a Thrift server.

Spark copies settings to a derived session, but not catalogs that are objects. So `attach` also sets
`spark.sql.catalog.<name>` to a class, of which Spark creates an object when a session first uses the name. The class is
compiled at run time (`driver_java/ForebayCatalogSource.java` generates its source from the interfaces of the running
Spark), and delegates all calls to a catalog in Python, which its `opener` opens for that session.

If no Python program attached a catalog (spark-sql, Thrift and Spark Connect servers), the class starts a Python process
(forebay.spark.catalog_process, `driver_java/ForebayPython.java`), which opens the catalog of the settings
`spark.sql.catalog.<name>.<argument>`.

Each attachment has a number in the setting `spark.sql.catalog.<name>.attachment`: a clone of a session has the catalog
of that session, and a new session has the catalog that was attached last under that name.
"""

from __future__ import annotations

import itertools
import logging
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.spark.jvm.compiler import bytecodes
from forebay.spark.jvm.driver_classes import driver_class, driver_source
from forebay.spark.jvm.gateway import JavaObject, Jvm
from forebay.spark.jvm.jar_cache import CLASS_FILE, cached_jar, classes_of
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.session_state import active_session
from forebay.spark.jvm.spark_values import python_options
from forebay.spark.jvm.values import java_list

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from forebay.spark.sql.catalog import SqlCatalog

CATALOG_CLASS = "org.forebay.SparkCatalog"
VIEW_CATALOG_CLASS = "org.forebay.SparkViewCatalog"
"""The class of catalogs with views, which Spark before 4.2 does not have."""

_SETTING = "spark.sql.catalog."
_ATTACHMENT = "attachment"

Open = Callable[[JavaObject], "SqlCatalog"]
"""Opens a catalog for a Java session."""

Configured = Callable[[Jvm, str, dict[str, str]], Open]
"""Returns the function that opens a catalog, from its name and settings. Raises `InvalidRequest`."""

_numbers = itertools.count(1)
_lock = threading.Lock()
"""Held while the opener of a JVM is created: a second one would lose the attachments of the first."""

_LOGGER = logging.getLogger(__name__)


class CatalogOpener(JavaProxy):
    """Opens the catalog in Python for an object of the Java class: a `java.util.function.Function`.

    `attachments` are catalogs that a program has attached; others are opened by `configured` from their settings.
    """

    interfaces = ("java.util.function.Function",)

    def __init__(self, jvm: Jvm, configured: Configured) -> None:
        super().__init__(jvm)
        self.attachments: dict[str, Open] = {}
        self._configured = configured

    def apply(self, request: JavaObject) -> JavaProxy:
        """Return the catalog for `request`, a name and its options, in the active session."""
        name, options = str(request[0]), python_options(request[1])
        number = options.pop(_ATTACHMENT, None)
        if number is None:
            return self._configured(self.jvm, name, options)(active_session(self.jvm))
        if number not in self.attachments:
            raise InvalidRequest(f"catalog {name} was attached by a Python program that has ended")
        return self.attachments[number](active_session(self.jvm))


def share(
    jvm: Jvm, session: SparkSession, name: str, open_catalog: Open, configured: Configured, *, has_views: bool
) -> None:
    """Give the catalog `name` to sessions that Spark derives from `session` from now on.

    If Spark cannot compile or load the class, a warning is logged: then each derived session must be attached
    separately.
    """
    try:
        opener = offer(jvm, configured)
    except UnsupportedOperation as e:
        _LOGGER.warning("sessions that Spark derives have no catalog %s until it is attached to them: %s", name, e)
        return
    number = str(next(_numbers))
    opener.attachments[number] = open_catalog
    class_name = VIEW_CATALOG_CLASS if has_views else CATALOG_CLASS
    settings = {_SETTING + name: class_name, f"{_SETTING}{name}.{_ATTACHMENT}": number}
    with jvm.known_layout("shared state of sessions"):
        shared = session._jsparkSession.sharedState().conf()
        for key, value in settings.items():
            shared.set(key, value)
            session.conf.set(key, value)


def offer(jvm: Jvm, configured: Configured) -> CatalogOpener:
    """The opener of catalogs for objects of the Java class; a JVM has one. Raises `UnsupportedOperation`."""
    with _lock:
        return jvm.cached("catalog opener", lambda: _new_opener(jvm, configured))


def _new_opener(jvm: Jvm, configured: Configured) -> CatalogOpener:
    opener = CatalogOpener(jvm, configured)
    loaded_class(jvm).getField("opener").set(None, opener)
    return opener


def loaded_class(jvm: Jvm) -> Any:
    """Load the Java class of catalogs into Spark's own class loader, and return it."""
    with jvm.known_layout("class loader of catalogs"):
        kind, loader = jvm.class_("java.lang.Class"), _shared_loader(jvm)
        try:
            return kind.forName(CATALOG_CLASS, True, loader)  # it is on the class path, or was loaded before
        except Py4JJavaError as e:
            if str(e.java_exception.getClass().getSimpleName()) != "ClassNotFoundException":
                raise
        with tempfile.TemporaryDirectory() as folder:
            files = class_files(jvm)
            for path, code in files.items():
                file = Path(folder, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(code)
            loader.addURL(jvm.class_("java.io.File")(folder).toURI().toURL())
            for path in files:  # all of them, while the files are there
                kind.forName(path.removesuffix(CLASS_FILE).replace("/", "."), True, loader)
            return kind.forName(CATALOG_CLASS, True, loader)


def class_files(jvm: Jvm) -> dict[str, bytes]:
    """The compiled classes for the running Spark, by the paths that their files have in a folder or jar."""
    from forebay.spark.sql.catalog import RELATION_CATALOG, SqlCatalog

    of_views = [RELATION_CATALOG] if jvm.has_class(RELATION_CATALOG) else []
    python = driver_source("ForebayPython")

    def compiled(_: str) -> dict[str, bytes]:
        arguments = java_list(jvm, SqlCatalog.interfaces), java_list(jvm, of_views)
        return bytecodes(jvm, str(driver_class(jvm, "ForebayCatalogSource")(*arguments).toString()) + python)

    # The inputs of the generated source, because the order of its methods differs between JVMs.
    sources = "\0".join([driver_source("ForebayCatalogSource"), python, *SqlCatalog.interfaces, *of_views])
    with jvm.known_layout("compiler of catalogs"):
        return classes_of(cached_jar("ForebayCatalog", sources, jvm.spark_version, compiled))


def _shared_loader(jvm: Jvm) -> JavaObject:
    """The class loader of jars that users add to the driver; the loaders of all sessions descend from it."""
    loader = jvm.class_("org.apache.spark.util.Utils").getContextOrSparkClassLoader()
    shared = None
    while loader is not None:
        if str(loader.getClass().getName()) == "org.apache.spark.util.MutableURLClassLoader":
            shared = loader
        loader = loader.getParent()
    if shared is None:
        raise LookupError("Spark has no class loader to which classes can be added")
    return shared
