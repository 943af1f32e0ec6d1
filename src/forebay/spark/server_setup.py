"""Writes the files with which a Spark opens catalogs by configuration: a jar with two classes, and the settings.

The classes are compiled for the installed release of Spark (`forebay.spark.derived_sessions.class_files`).
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay.base.errors import InvalidRequest
from forebay.base.locations import location
from forebay.spark.derived_sessions import CATALOG_CLASS, VIEW_CATALOG_CLASS, class_files
from forebay.spark.jvm.gateway import Jvm
from forebay.spark.sessions import configured
from forebay.spark.sql.catalog import RELATION_CATALOG

_METASTORES_WITH_VIEWS = ("rest", "hive")
JAR, PROPERTIES = "forebay-catalog.jar", "spark-defaults.conf"


def write_setup(spark: Any, folder: Path, catalog: str, settings: Mapping[str, str]) -> Path:
    """Write the jar and a properties file for the release of the session `spark` into `folder`; returns the path of the
    latter.

    `settings` are those of the catalog, such as `bootstrap.servers`. Raises `InvalidRequest` for unknown ones, and for
    values that a properties file cannot have.
    """
    jvm = Jvm.of(spark)
    configured(jvm, catalog, settings)
    settings = _located(settings)
    if not catalog.isidentifier():
        raise InvalidRequest(f"'{catalog}' cannot be the name of a catalog: use letters, digits and '_'")
    prefix = f"spark.sql.catalog.{catalog}"
    jar = folder.absolute() / JAR
    lines = {
        "spark.driver.extraClassPath": str(jar),
        "spark.python.daemon.module": "forebay.spark.daemon",
        "spark.pyspark.python": sys.executable,
        prefix: VIEW_CATALOG_CLASS if _has_views(jvm, settings) else CATALOG_CLASS,
        f"{prefix}.python": sys.executable,
        **{f"{prefix}.{name}": value for name, value in settings.items()},
    }
    for name, value in lines.items():
        if value != value.strip() or "\n" in value or "\\" in value:
            raise InvalidRequest(f"{name}={value!r} cannot be written to {PROPERTIES}: it has a backslash or blanks")
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(jar, "w") as archive:
        for path, code in class_files(jvm).items():
            archive.writestr(path, code)
    properties = folder / PROPERTIES
    properties.touch(mode=0o600)
    properties.chmod(0o600)  # also if the file exists: it may have a password
    properties.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
    return properties


def _located(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with an absolute warehouse: Spark starts in another directory."""
    if "warehouse" not in settings or settings.get("metastore", settings.get("paimon.metastore")) == "rest":
        return dict(settings)
    return {**settings, "warehouse": location(settings["warehouse"], "setting 'warehouse'")}


def _has_views(jvm: Jvm, settings: Mapping[str, str]) -> bool:
    """Whether the catalog will have views; the lake's server need not run yet."""
    metastore = settings.get("metastore", settings.get("paimon.metastore", ""))
    return metastore in _METASTORES_WITH_VIEWS and jvm.has_class(RELATION_CATALOG)
