"""Forebay's Java classes on the driver: the sources of `driver_java`, compiled at first use.

Their jars are cached for later sessions (forebay.spark.jvm.jar_cache). Executors do not have these classes;
forebay.spark.jvm.executor_classes has those of executors.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

from forebay.spark.jvm.compiler import (
    Constructor,
    bytecodes,
    class_of_jar,
    jar_url,
    joined_source,
    reflective_constructor,
)
from forebay.spark.jvm.gateway import JavaObject, Jvm, once_per_jvm
from forebay.spark.jvm.jar_cache import cached_jar

_PARTS = {"ForebayParquet": ("ForebayFiles", "ForebayFileScan")}
"""The classes that each class needs; they are compiled together with it."""

_LOGGER = logging.getLogger(__name__)


@once_per_jvm
def driver_class(jvm: Jvm, name: str) -> Constructor:
    """The constructor of the class `driver_java/<name>.java`.

    Raises `UnsupportedOperation` if the compiler of this Spark is not supported.
    """
    with jvm.known_layout("compiler"):
        return reflective_constructor(jvm, class_of_jar(jvm, _jar(jvm, name), name).getConstructors()[0])


@once_per_jvm
def named_driver_class(jvm: Jvm, name: str) -> Constructor | None:
    """The constructor of the class `driver_java/<name>.java`, which Spark also instantiates by its name.

    The class is added to the application's class loader. Returns None, and logs the reason, if that loader accepts no
    jars.
    """
    try:
        with jvm.known_layout("compiler"):
            jar = _jar(jvm, name)
        loader = _application_class_loader(jvm)
        loader.addURL(jar_url(jvm, jar))
        constructors = jvm.class_("java.lang.Class").forName(name, True, loader).getConstructors()
        # Spark calls the constructor without parameters.
        [constructor] = [c for c in constructors if c.getParameterCount()]
    except Exception as e:  # noqa: BLE001 - queries run without these classes, whatever the error is
        _LOGGER.info("some metrics of scans are not shown in Spark's UI: %s", e)
        return None
    return reflective_constructor(jvm, constructor)


def _application_class_loader(jvm: Jvm) -> JavaObject:
    """The class loader of the whole application, below which Spark Connect gives each of its sessions another one.

    The thread that adds up metrics has this loader, whatever the session of a query is.
    """
    loader = jvm.class_("java.lang.Thread").currentThread().getContextClassLoader()
    kind = jvm.class_("java.lang.Class").forName("org.apache.spark.util.MutableURLClassLoader")
    while kind.isInstance(loader.getParent()):
        loader = loader.getParent()
    return loader


def driver_source(name: str) -> str:
    """The source of the class `name` of the driver and of the classes that it needs."""
    return joined_source("driver_java", name, *_PARTS.get(name, ()))


def _jar(jvm: Jvm, name: str) -> Path:
    return cached_jar(name, driver_source(name), jvm.spark_version, partial(bytecodes, jvm))
