"""Parquet files in Spark's own hands: a scan, or a part of one, without Python workers.

Two ways, both without a jar. Where all rows of a scan are in plain files, the scan is Spark's own `ParquetScan` of
exactly these. Where only a part is, the scan is a union of the files' part and the part of Python tasks. Rows of files
that do not count are left out there by their numbers in the file, of which a bitmap tells whether they count; tasks
find it out when the query runs (`forebay.spark.reading.live_read.MarkFunction`).

A scan cannot be a union, so a rule of the session's optimizer puts the union in its place (`unite_scans`). Until then,
and where the rule does not apply (a session without an attached catalog, a subquery that Spark creates later), it is a
scan by Python tasks. It stays one, too, where a join with a small side gives the scan values when the query runs: they
leave few rows to read, and only Spark's scans take them, no union. Plain files stay files then, but for a join on the
key of a table whose rows the servers look up.

Exactness comes first: a session may ask Spark to pass over files that are missing or damaged, or to move old dates to
another calendar; none of that holds here (`_OPTIONS`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from weakref import WeakKeyDictionary

from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from forebay.base.errors import StorageFailure
from forebay.spark.context import SessionContext
from forebay.spark.jvm.gateway import CATALYST, CONNECTOR, JavaObject, Jvm, quoted
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.reading.live_read import MARKS_SCHEMA, MarkFunction, MarkPartition
from forebay.spark.reading.plan import Marking, NativeFiles, OpenedScan, ReadTasks, task_readers
from forebay.unionread.overridden import gone, local_path

_READ = CONNECTOR + "read."
_SQL = "org.apache.spark.sql."
_SOURCES = _SQL + "execution.datasources."

_OPTIONS = {
    "recursiveFileLookup": "true",  # directories like day=1 make no columns of their own
    "__globPaths__": "false",  # names are names, also those with a star in them
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

_COLUMN = _SQL + "Column"
_ROW_NUMBER = "_tmp_metadata_row_index"
"""A column of this name is filled by Spark's reader with the number of each row in its file."""

_GROUP, _FILE_NUMBER, _MARKS = "_forebay_group", "_forebay_file", "_forebay_marks"
"""Columns: a number for the task that marks a row's file, the file's number among those of the task, and its marks."""

_MARK_TASKS_MAX = 4
"""The most tasks that mark rows: each is a job of its own."""

_LAST_BIT = 63

_NEEDED = (
    _SOURCES + "v2.parquet.ParquetTable",
    _SOURCES + "v2.parquet.ParquetScan",
    _SOURCES + "v2.DataSourceV2Relation",
    _SOURCES + "v2.V2ScanRelationPushDown",
    _SQL + "internal.connector.PredicateUtils",
    _SQL + "classic.Dataset",
)
_CLASSES = _PLANNED_TABLE, _TASKS, _FILE_SCAN, _FILES = (
    "ForebayPlannedTable",  # a table that is one scan, which is there already: nothing can be pushed into it
    "ForebayTasks",  # a scan that is nothing but its tasks
    "ForebayFileScan",  # a scan of files, of which values of a join choose some
    "ForebayFiles",  # an index of files
)
"""Java classes of our own (driver_java), compiled by Janino; they stay on the driver. The last is a subclass of a class
of Spark, which no proxy can be. The others save calls between JVM and Python when planning."""

_able: WeakKeyDictionary[Jvm, bool] = WeakKeyDictionary()
logger = logging.getLogger(__name__)


def parquet_scan(context: SessionContext, native: NativeFiles, schema: StructType, filters: JavaObject) -> JavaObject:
    """Spark's scan of the columns `schema` of the files of `native` that need no marks.

    `filters` (an array of V2 predicates) let it skip row groups and pages; what it gives must be filtered once more.
    Raises `NotFound` for a file that is gone, `StorageFailure` where Spark's file system does not reach the files
    (`forebay.paimon` may), and `UnsupportedOperation` where Spark looks different from the releases
    that we know.
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
    """The scan of all files of `groups`, with the columns `numbers` at the end (see `_file_index`).

    `settings` of Hadoop's file systems reach executors with the scan, and no other query.
    """
    jvm = context.jvm
    paths = [[local_path(file) or file for file in group] for group in groups]
    with jvm.known_layout("scan of Parquet files"):
        given = jvm.class_(_SQL + "util.CaseInsensitiveStringMap")(jvm.map({**_OPTIONS, **settings}))
        struct, last = jvm.struct_type(schema), jvm.struct_type(numbers)
        form = jvm.class_("java.lang.Class").forName(_SOURCES + "parquet.ParquetFileFormat")
        table = jvm.class_(_SOURCES + "v2.parquet.ParquetTable")(
            "parquet", context.session, given, jvm.sequence([]), jvm.class_("scala.Some")(struct), form
        )
        scan = table.newScanBuilder(given).build()
        names = [str(scan.productElementName(i)) for i in range(scan.productArity())]
        values = [scan.productElement(i) for i in range(len(names))]
        values[names.index("fileIndex")] = _file_index(jvm, context.session, paths, last, jvm.map(settings))
        values[names.index("readDataSchema")] = struct  # the builder takes every column for nullable
        values[names.index("readPartitionSchema")] = last
        to_v1 = jvm.class_(_SQL + "internal.connector.PredicateUtils").toV1
        values[names.index("pushedFilters")] = to_v1(filters)
        return scan.copy(*values)


def _file_index(
    jvm: Jvm, session: JavaObject, groups: Sequence[Sequence[str]], columns: JavaObject, settings: JavaObject
) -> JavaObject:
    """A PartitioningAwareFileIndex of files, by their paths or URIs; no directory is listed.

    `settings` (a java.util.Map) are those of Hadoop's file systems.

    `columns`: none, or two of type INT that tell of each row the number of its group, and of its file in the group.
    Raises `NotFound` (LAKE_SNAPSHOT_NOT_EXIST) for a file that is gone, and `StorageFailure` where Spark's file system
    does not reach the files.
    """
    names = "\0\0".join("\0".join(group) for group in groups)  # one string, as every string is a call
    index = jvm.compiled(_FILES)(session, names, columns, settings)
    failure = index.failure()
    if failure is not None:
        raise StorageFailure(f"Spark cannot read {groups[0][0]}: {failure}")
    missing = index.missing()
    if missing is not None:
        raise gone(missing)
    return index


def hadoop_settings(files: Sequence[str], options: Mapping[str, str]) -> dict[str, str]:
    """The options of a lake's store as settings of the Hadoop file systems of `files`: of each bucket of S3."""
    buckets = {file.removeprefix(_S3A).partition("/")[0] for file in files if file.startswith(_S3A)}
    endpoint = options.get("s3.endpoint")
    found = {setting: options[name] for name, setting in _S3_SETTINGS.items() if name in options}
    if endpoint is not None:
        found |= {"path.style.access": "true", "connection.ssl.enabled": str(not endpoint.startswith("http:")).lower()}
    if "s3.access-key" in options:
        kind = "TemporaryAWSCredentialsProvider" if "s3.session-token" in options else "SimpleAWSCredentialsProvider"
        found["aws.credentials.provider"] = f"org.apache.hadoop.fs.s3a.{kind}"
    return {f"fs.s3a.bucket.{bucket}.{setting}": value for bucket in buckets for setting, value in found.items()}


def file_scan(
    context: SessionContext, files: JavaObject, tasks: JavaProxy, statistics: JavaProxy, key: Sequence[str]
) -> JavaObject:
    """The scan `files` of Parquet files, of which the values of a join leave those that `tasks` says.

    `tasks` is the same scan by Python tasks. If the join has values of all columns of `key`, it takes the place.
    """
    metrics, _ = context.jvm.scan_metrics()
    return context.jvm.compiled(_FILE_SCAN)(files, tasks, statistics, context.jvm.strings(key), metrics)


def empty_scan(context: SessionContext, schema: StructType, statistics: JavaProxy) -> JavaObject:
    """A scan without partitions, which needs no reader."""
    jvm = context.jvm
    return jvm.compiled(_TASKS)(
        jvm.struct_type(schema), "no rows", jvm.input_partitions([]), None, statistics, *jvm.scan_metrics()
    )


class FilesAndTasks:
    """The union of rows in plain files and rows of Python tasks, which is planned already.

    `parts` are the files, how tasks read, and the tasks: what they keep open, and their input partitions (None: there
    are none). `statistics` are those of the tasks, which give rows (`by_rows`) or columns.
    """

    def __init__(
        self,
        context: SessionContext,
        text: str,
        schema: StructType,
        parts: tuple[NativeFiles, ReadTasks, OpenedScan, JavaObject | None],
        filters: JavaObject,
        statistics: JavaProxy,
        by_rows: bool,
    ) -> None:
        self.jvm = context.jvm
        self._by_rows = by_rows
        self._context, self._text, self._schema = context, text, schema
        self._native, self._read, self._opened, self._partitions = parts
        self._filters, self._statistics = filters, statistics
        self._struct = context.jvm.struct_type(schema)

    def plan(self, relation: JavaObject) -> JavaObject:
        """The union, as a logical plan that needs no optimizer, with the attributes of `relation`."""
        return with_output(self.jvm, self._union().analyzed(), relation.output())

    def _union(self) -> JavaObject:
        """A QueryExecution of the union; nothing of it has run."""
        whole, *others = self._frames()
        for frame in others:
            whole = whole.union(frame)
        return whole.queryExecution()

    def _frames(self) -> list[JavaObject]:
        """The parts of the union: Datasets of Java."""
        files = self._native.files
        frames = []
        if files:
            scan = parquet_scan(self._context, self._native, self._schema, self._filters)
            frames.append(self._frame_of(self._struct, scan))
        if self._native.marking:
            frames.append(self._marked_frame())
        if self._partitions is not None:
            count = len(files) + sum(len(one.files) for one in self._native.marking)
            frames.append(self._task_frame(self._schema, self._read, self._partitions, self._text, count))
        return frames

    def _marked_frame(self) -> JavaObject:
        """The rows that count of all files that are marked."""
        marking = self._native.marking
        count = min(len(marking), self._context.cores, _MARK_TASKS_MAX)
        groups = [marking[number::count] for number in range(count)]
        frame = self._numbered_frame([[file for one in group for file in one.files] for group in groups])
        functions, columns = (
            self.jvm.class_(_SQL + "functions"),
            list(map(frame.col, map(quoted, self._schema.fieldNames()))),
        )
        words = self._words(groups[-1])
        for number in reversed(range(count - 1)):
            words = functions.when(frame.col(_GROUP).equalTo(number), self._words(groups[number])).otherwise(words)
        row, file = frame.col(_ROW_NUMBER), frame.col(_FILE_NUMBER)
        known = frame.select(self.jvm.array(_COLUMN, [*columns, row, file, words.alias(_MARKS)]))
        marks = known.col(_MARKS)
        word = marks.getItem(marks.getItem(file).plus(functions.shiftright(row, 6)).cast("int"))
        counts = functions.getbit(word, row.bitwiseAND(_LAST_BIT).cast("int")).equalTo(0)
        # Spark gives the numbers by a column of this name; one that does not know it would give nulls.
        unknown = functions.raise_error(functions.lit("this Spark does not number the rows of Parquet files"))
        kept = known.filter(functions.coalesce(self.jvm.array(_COLUMN, [counts, unknown.cast("boolean")])))
        return kept.select(self.jvm.array(_COLUMN, columns))

    def _numbered_frame(self, groups: Sequence[Sequence[str]]) -> JavaObject:
        """The rows of the files of all groups, with the number of each in its file, and the file's and group's."""
        read = StructType([*self._schema.fields, StructField(_ROW_NUMBER, LongType())])
        numbers = StructType([StructField(name, IntegerType(), False) for name in (_GROUP, _FILE_NUMBER)])
        scan = _parquet_scan(self._context, groups, read, numbers, self._filters)
        return self._frame_of(scan.readSchema(), scan)

    def _words(self, marking: Sequence[Marking]) -> JavaObject:
        """The marks of the files of `marking` (`MARKS_SCHEMA`) as a column: a subquery, which is one task."""
        partitions = self.jvm.input_partitions([MarkPartition(tuple(marking))])
        text = f"changed rows of {self._text}"
        return self._task_frame(MARKS_SCHEMA, MarkFunction(self._text), partitions, text).scalar()

    def _task_frame(
        self, schema: StructType, read: ReadTasks, partitions: JavaObject, text: str, files: int = 0
    ) -> JavaObject:
        """A Dataset of tasks. `files` are read beside them, which Spark's reader does not count."""
        struct = self.jvm.struct_type(schema)
        factory = task_readers(self.jvm, read, schema, self._by_rows)
        metrics = self.jvm.scan_metrics(files)
        tasks = self.jvm.compiled(_TASKS)(struct, text, partitions, factory, self._statistics, *metrics)
        return self._frame_of(struct, tasks)

    def _frame_of(self, struct: JavaObject, scan: JavaObject) -> JavaObject:
        """A Dataset of `scan`, which needs no optimizer any more."""
        jvm = self.jvm
        table = jvm.compiled(_PLANNED_TABLE)(struct, scan)
        relation = jvm.class_(_SOURCES + "v2.DataSourceV2Relation").create(table, jvm.none(), jvm.none())
        scanned = jvm.scala_object(_SOURCES + "v2.V2ScanRelationPushDown").apply(relation)
        return jvm.class_(_SQL + "classic.Dataset").ofRows(self._context.session, scanned)


def reads_files(jvm: Jvm) -> bool:
    """Whether this Spark has what is used here. Where it has not, Python tasks read everything, and a warning says so.

    Found out once for a JVM.
    """
    known = _able.get(jvm)
    if known is None:
        try:
            for name in _CLASSES:
                jvm.compiled(name)
            for name in _NEEDED:
                jvm.class_("java.lang.Class").forName(name)
            known = True
        except Exception as e:  # noqa: BLE001 - whatever it is, all of it can be read another way
            logger.warning("lake files are read by Python alone: %s", jvm.unknown_layout("Parquet reader", e))
            known = False
        _able[jvm] = known
    return known


_RULE = "ForebayUnions"


def unite_scans(jvm: Jvm, session: JavaObject) -> None:
    """Give `session` the rule, unless it has it. A Spark that takes no rules reads the same rows more slowly."""
    try:
        methods = session.experimental()
        rules = methods.extraOptimizations()
        known = [rules.apply(index) for index in range(rules.size())]
        if all(str(rule.getClass().getName()) != _RULE for rule in known):
            made = jvm.compiled(_RULE)()
            getattr(methods, "extraOptimizations_$eq")(jvm.sequence([*known, made]))
    except Exception as e:  # noqa: BLE001 - whatever it is, scans are V1 scans then
        logger.warning("lake files beside Python tasks are read more slowly: %s", jvm.unknown_layout("optimizer", e))


def with_output(jvm: Jvm, plan: JavaObject, output: JavaObject) -> JavaObject:
    """The logical plan `plan`, which needs no optimizer any more, with the attributes `output` in the place of its own.

    A union has the attributes of its first part. Renamed there, they cost nothing; above the union they would copy
    every row.
    """
    if str(plan.getClass().getSimpleName()) == "Union":
        parts = plan.children()
        first, *others = [parts.apply(index) for index in range(parts.size())]
        return plan.withNewChildren(jvm.sequence([_renamed(jvm, first, output), *others]))
    return _renamed(jvm, plan, output)


def _renamed(jvm: Jvm, plan: JavaObject, output: JavaObject) -> JavaObject:
    alias, none, found = jvm.class_(CATALYST + "expressions.Alias"), jvm.sequence([]), plan.output()
    names = []
    for index in range(output.size()):
        wanted = output.apply(index)
        names.append(alias(found.apply(index), wanted.name(), wanted.exprId(), none, jvm.none(), none))
    return jvm.class_(CATALYST + "plans.logical.Project")(jvm.sequence(names), plan)
