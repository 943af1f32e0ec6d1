"""Scans of Parquet files by Spark's own reader, without Python workers.

There are two kinds, both without a jar. If all rows of a scan are in plain files, the scan is Spark's `ParquetScan` of
these files. If only a part of them is, the scan has tasks of both kinds (`ForebayMixedScan` of executor_java): Spark's
Parquet reader reads files, and Python workers or the JVM's log reader read all other rows. Rows of files that newer
changes override are skipped by their row numbers, with a bitmap for each file. Other tasks of the query compute the
bitmaps when it runs (`forebay.spark.reading.live_read.MarkFunction`).

A mixed scan cannot be filtered by the values of a join with a small side, which are known only when the query runs:
files and bitmaps are selected before. So a scan is planned with Python tasks, which such values can filter. A rule of
the session's optimizer replaces it with the mixed scan if no join is going to filter it (`choose_scans`). The scan
keeps its Python tasks if the rule does not apply (a session without an attached catalog, a subquery that Spark creates
later), or if Spark does not read the files by columns. A scan of plain files alone can be filtered by values of a join,
except for a join on the key of a table whose rows the servers look up.

Sessions can make Spark ignore missing or damaged files, or convert old dates to another calendar. `_OPTIONS` disables
all of that for these scans.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from forebay.base.errors import StorageFailure
from forebay.spark.context import SessionContext
from forebay.spark.jvm.driver_classes import driver_class
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject, Jvm, once_per_jvm
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.python_tasks import input_partitions
from forebay.spark.jvm.scan_metrics import scan_metrics
from forebay.spark.jvm.spark_values import quoted, struct_type
from forebay.spark.jvm.values import scala_none, scala_seq
from forebay.spark.read_modes import ReadMode
from forebay.spark.reading.live_read import MARKS_SCHEMA, MarkFunction, MarkPartition
from forebay.spark.reading.plan import NativeFiles, OverrideFinder, ReadTasks
from forebay.spark.reading.task_readers import task_readers
from forebay.unionread.overridden import gone, local_path

_READ = CONNECTOR + "read."
_SQL = "org.apache.spark.sql."
_SOURCES = _SQL + "execution.datasources."

_OPTIONS = {
    "recursiveFileLookup": "true",  # directories such as day=1 add no columns
    "__globPaths__": "false",  # paths are taken literally, also those that contain a star
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}

_S3A = "s3a://"
_S3_SETTINGS = {
    "s3.endpoint": "endpoint",
    "s3.region": "endpoint.region",
    "s3.access-key": "access.key",
    "s3.secret-key": "secret.key",
    "s3.session-token": "session.token",
}

_ROW_NUMBER = "_tmp_metadata_row_index"
"""Spark's reader fills a column of this name with the row number in the file."""

_GROUP, _FILE_NUMBER = "_forebay_group", "_forebay_file"
"""Columns: the number of the task that marks a row's file, and the index of the file in that task."""

_NEEDED = (
    _SOURCES + "v2.DataSourceV2Relation",
    _SOURCES + "v2.V2ScanRelationPushDown",
    _SQL + "classic.Dataset",
)
_CLASSES = _PLANNED_TABLE, _TASKS, _PARQUET = (
    "ForebayPlannedTable",  # a table with one existing scan, into which nothing can be pushed
    "ForebayTasks",  # a scan that consists of its tasks
    "ForebayParquet",  # creates scans of files, also of files that values of a join select
)
"""Java classes for the driver (driver_java), compiled by Janino. They save calls between JVM and Python when planning.
A call takes about 0.1 ms, and releasing its result as much again."""

_LOGGER = logging.getLogger(__name__)


def parquet_scan(context: SessionContext, native: NativeFiles, schema: StructType, filters: JavaObject) -> JavaObject:
    """Spark's scan of the columns `schema` of the files in `native` without overridden rows.

    `filters` (an array of V2 predicates) let it skip row groups and pages; its rows must be filtered again. Raises
    `NotFound` for a missing file, `StorageFailure` if Spark's file system cannot access the files (`forebay.paimon`
    may), and `UnsupportedOperation` for a Spark whose classes differ from the known releases.
    """
    settings = hadoop_settings(native.files, dict(native.options))
    return _parquet_scan(context, [native.files], schema, StructType([]), filters, settings)


def _parquet_scan(
    context: SessionContext,
    groups: Sequence[Sequence[str]],
    schema: StructType,
    numbers: StructType,
    filters: JavaObject,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> JavaObject:
    """The scan of all files of `groups`, with the columns `numbers` at the end. No directory is listed.

    `numbers`: empty, or two INT columns: the number of each row's group, and the index of its file in the group.
    `settings` of Hadoop's file systems are sent to executors with the scan and affect no other query.
    """
    jvm = context.jvm
    # One string for all values, because each value would be a call.
    names = "\0\0".join("\0".join(local_path(file) or file for file in group) for group in groups)
    struct, last = struct_type(jvm, schema), struct_type(jvm, numbers)
    packed = _in_turns(_OPTIONS), _in_turns(settings)
    with jvm.known_layout("scan of Parquet files"):
        try:
            return _scans(jvm).scan(context.session, *packed, struct, last, names, filters)
        except Py4JJavaError as e:
            thrown = e.java_exception
            if str(thrown.getClass().getSimpleName()) == "FileNotFoundException":
                raise gone(str(thrown.getMessage())) from e
            if is_instance_of(jvm.gateway, thrown, "java.io.IOException"):
                raise StorageFailure(f"Spark cannot read {groups[0][0]}: {thrown.getMessage()}") from e
            raise


def _in_turns(pairs: Mapping[str, str]) -> str:
    """Names and values in one string."""
    return "\0".join(part for pair in pairs.items() for part in pair)


@once_per_jvm
def _scans(jvm: Jvm) -> JavaObject:
    """The JVM's object that creates scans of files."""
    return driver_class(jvm, _PARQUET)()


def hadoop_settings(files: Sequence[str], options: Mapping[str, str]) -> dict[str, str]:
    """The options of a lake's store as Hadoop settings for each S3 bucket of `files`."""
    buckets = {file.removeprefix(_S3A).partition("/")[0] for file in files if file.startswith(_S3A)}
    endpoint = options.get("s3.endpoint")
    settings = {setting: options[name] for name, setting in _S3_SETTINGS.items() if name in options}
    if endpoint is not None:
        is_secure = str(not endpoint.startswith("http:")).lower()
        settings |= {"path.style.access": "true", "connection.ssl.enabled": is_secure}
    if "s3.access-key" in options:
        kind = "TemporaryAWSCredentialsProvider" if "s3.session-token" in options else "SimpleAWSCredentialsProvider"
        settings["aws.credentials.provider"] = f"org.apache.hadoop.fs.s3a.{kind}"
    return {f"fs.s3a.bucket.{bucket}.{setting}": value for bucket in buckets for setting, value in settings.items()}


def file_scan(
    context: SessionContext,
    files: JavaObject,
    tasks: JavaProxy,
    filtered: Sequence[str],
    size: tuple[int, int] | None,
    key: Sequence[str],
) -> JavaObject:
    """The scan `files` of Parquet files, pruned at run time by the values of a join.

    `tasks` is the same scan by Python tasks, which determines the remaining files. The values are of the columns
    `filtered`. If the join has values for all columns of `key`, `tasks` replaces the scan. `size` is the estimated
    number of rows and of bytes, if known.
    """
    rows, estimated = size or (-1, -1)
    columns, metrics = "\0".join(map(quoted, filtered)), scan_metrics(context.jvm)[0]
    return _scans(context.jvm).chosen(files, tasks, rows, estimated, "\0".join(key), columns, metrics)


def empty_scan(context: SessionContext, schema: StructType, statistics: JavaProxy) -> JavaObject:
    """A scan without partitions, which needs no reader."""
    jvm = context.jvm
    return driver_class(jvm, _TASKS)(
        struct_type(jvm, schema), "no rows", input_partitions(jvm, []), None, statistics, *scan_metrics(jvm)
    )


def mixed_scan(
    context: SessionContext,
    text: str,
    schema: StructType,
    native: NativeFiles,
    read: ReadTasks,
    partitions: JavaObject,
    filters: JavaObject,
    statistics: JavaProxy,
) -> JavaObject | None:
    """A scan of the files of `native` by Spark's reader, and of `partitions` by `read`; `text` describes it.

    None where Spark does not read these files by columns. Raises as `parquet_scan`.
    """
    jvm, marking = context.jvm, native.marking
    scans, marks = [], None
    if native.files:
        scans.append(parquet_scan(context, native, schema, filters))
    if marking:
        count = min(len(marking), context.cores)
        groups = [marking[number::count] for number in range(count)]
        scans.append(
            _numbered_scan(context, [[f for one in group for f in one.files] for group in groups], schema, filters)
        )
        marks = _marks(context, text, groups, statistics)
    count = len(native.files) + sum(len(one.files) for one in marking)
    described = f"{text}, {count} files by Spark's ParquetScan" + (", but for changed rows" if marking else "")
    with jvm.known_layout("scan of Parquet files beside tasks"):
        scan = task_readers(jvm, read, schema, ReadMode.COLUMNS).beside(
            struct_type(jvm, schema), described, jvm.array(_READ + "Scan", scans), marks, partitions, statistics,
            *scan_metrics(jvm, count),
        )  # fmt: skip
        return scan if scan.hasColumns() else None


def _numbered_scan(
    context: SessionContext, groups: Sequence[Sequence[str]], schema: StructType, filters: JavaObject
) -> JavaObject:
    """The rows of all groups, each with its number in the file, its group, and the index of the file in the group."""
    read = StructType([*schema.fields, StructField(_ROW_NUMBER, LongType())])
    numbers = StructType([StructField(name, IntegerType(), False) for name in (_GROUP, _FILE_NUMBER)])
    return _parquet_scan(context, groups, read, numbers, filters)


def _marks(
    context: SessionContext, text: str, groups: Sequence[Sequence[OverrideFinder]], statistics: JavaProxy
) -> JavaObject:
    """A query (a Java Dataset) with a task for each group, which returns a row of `MARKS_SCHEMA`."""
    jvm, struct = context.jvm, struct_type(context.jvm, MARKS_SCHEMA)
    factory = task_readers(jvm, MarkFunction(text), MARKS_SCHEMA, ReadMode.ROWS)
    partitions = input_partitions(jvm, [MarkPartition(tuple(group)) for group in groups])
    tasks = driver_class(jvm, _TASKS)(
        struct, f"changed rows of {text}", partitions, factory, statistics, *scan_metrics(jvm)
    )
    relation = jvm.class_(_SOURCES + "v2.DataSourceV2Relation").create(
        driver_class(jvm, _PLANNED_TABLE)(struct, tasks), scala_none(jvm), scala_none(jvm)
    )
    scanned = jvm.scala_object(_SOURCES + "v2.V2ScanRelationPushDown").apply(relation)
    return jvm.class_(_SQL + "classic.Dataset").ofRows(context.session, scanned)


@once_per_jvm
def reads_files(jvm: Jvm) -> bool:
    """Whether this Spark has the required classes. If not, Python tasks read all rows, and a warning is logged.

    Checked once per JVM.
    """
    try:
        for name in _CLASSES:
            driver_class(jvm, name)
        for name in _NEEDED:
            jvm.class_("java.lang.Class").forName(name)
    except Exception as e:  # noqa: BLE001 - whatever it is, all of it can be read another way
        _LOGGER.warning("lake files are read by Python alone: %s", jvm.unknown_layout("Parquet reader", e))
        return False
    return True


_RULE = "ForebayScans"


def choose_scans(jvm: Jvm, session: JavaObject) -> None:
    """Add the rule that replaces scans by mixed scans to the optimizer of `session`, unless it has it.

    If Spark does not accept the rule, the same rows are read more slowly.
    """
    try:
        methods = session.experimental()
        rules = methods.extraOptimizations()
        existing = [rules.apply(index) for index in range(rules.size())]
        if all(str(rule.getClass().getName()) != _RULE for rule in existing):
            scan_rule = driver_class(jvm, _RULE)()
            getattr(methods, "extraOptimizations_$eq")(scala_seq(jvm, [*existing, scan_rule]))
    except Exception as e:  # noqa: BLE001 - whatever it is, scans are V1 scans then
        _LOGGER.warning("lake files beside Python tasks are read more slowly: %s", jvm.unknown_layout("optimizer", e))
