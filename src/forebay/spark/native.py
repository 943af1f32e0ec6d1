"""Parquet files in Spark's own hands: a scan, or a part of one, without Python workers.

Two ways, both without a jar. Where all rows of a scan are in plain files, the scan is Spark's own `ParquetScan` of
exactly these. Where only a part is, the scan is a union of the files' part and the part of Python tasks. Rows of files
that do not count are left out there by their numbers in the file, of which a bitmap tells whether they count; tasks
find it out when the query runs (forebay.spark.marking).

A scan cannot be a union, so a rule of the session's optimizer puts the union in its place (forebay.spark.native_rule).
Where the rule does not come by (a session to which nobody attached a catalog, a subquery that Spark makes later), the
scan is a `V1Scan`, a public interface of Spark: its relation gives the rows of the union as an inner query. These rows
are made twice, and the tasks that mark run when the query is planned.

The relation of a `V1Scan` must be a subclass of an abstract class, which no proxy of ours can be. It has four methods
that give what they were given, stays on the driver, and is compiled by Janino, which Spark brings along to compile its
own plans.

Exactness comes first: a session may ask Spark to pass over files that are missing or damaged, or to move old dates to
another calendar; none of that holds here (`_OPTIONS`).
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from pyspark.sql.types import LongType, StructField, StructType

from forebay.spark.context import SessionContext
from forebay.spark.jvm import CONNECTOR, JavaObject, Jvm
from forebay.spark.marking import MARKS_SCHEMA, MarkFunction, MarkPartition
from forebay.spark.native_rule import with_output
from forebay.spark.proxy import JavaProxy
from forebay.spark.scan_plan import Marking, NativeFiles, OpenedScan, ReadTasks

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

_COLUMN = _SQL + "Column"
_ROW_NUMBER = "_tmp_metadata_row_index"
"""A column of this name is filled by Spark's reader with the number of each row in its file."""

_LAST_BIT = 63
_PUSHED_FILTERS, _READ_SCHEMA = "pushedFilters", "readDataSchema"

_NEEDED = (
    _SOURCES + "v2.parquet.ParquetTable",
    _SOURCES + "v2.parquet.ParquetScan",
    _SOURCES + "v2.DataSourceV2Relation",
    _SQL + "internal.connector.PredicateUtils",
    _SQL + "classic.Dataset",
)
_able: WeakKeyDictionary[Jvm, bool] = WeakKeyDictionary()
logger = logging.getLogger(__name__)

_RELATION = "ForebayRelation"
_RELATION_SOURCE = f"""
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.TableScan;
import org.apache.spark.sql.types.StructType;

public class {_RELATION} extends BaseRelation implements TableScan {{
    private final SQLContext context;
    private final StructType schema;
    private final RDD rows;

    public {_RELATION}(SQLContext context, StructType schema, RDD rows) {{
        this.context = context;
        this.schema = schema;
        this.rows = rows;
    }}

    public SQLContext sqlContext() {{ return context; }}

    public StructType schema() {{ return schema; }}

    public boolean needConversion() {{ return false; }}

    public RDD buildScan() {{ return rows; }}
}}
"""


def parquet_scan(context: SessionContext, files: Sequence[str], schema: StructType, filters: JavaObject) -> JavaObject:
    """Spark's scan of the columns `schema` of `files`.

    `filters` (an array of V2 predicates) let it skip row groups and pages; what it gives must be filtered once more.
    Raises `UnsupportedOperation` where Spark looks different from the releases that we know.
    """
    jvm = context.jvm
    try:
        return _parquet_scan(context, files, schema, filters)
    except Exception as e:
        raise jvm.unknown_layout("scan of Parquet files", e) from e


def _parquet_scan(context: SessionContext, files: Sequence[str], schema: StructType, filters: JavaObject) -> JavaObject:
    jvm = context.jvm
    given = jvm.class_(_SQL + "util.CaseInsensitiveStringMap")(jvm.map(_OPTIONS))
    struct = jvm.struct_type(schema)
    form = jvm.class_("java.lang.Class").forName(_SOURCES + "parquet.ParquetFileFormat")
    table = jvm.class_(_SOURCES + "v2.parquet.ParquetTable")(
        "parquet", context.session, given, jvm.sequence(files), jvm.class_("scala.Some")(struct), form
    )
    scan = table.newScanBuilder(given).build()
    names = [str(scan.productElementName(i)) for i in range(scan.productArity())]
    values = [scan.productElement(i) for i in range(len(names))]
    values[names.index(_READ_SCHEMA)] = struct  # the builder takes every column for nullable
    values[names.index(_PUSHED_FILTERS)] = jvm.class_(_SQL + "internal.connector.PredicateUtils").toV1(filters)
    return scan.copy(*values)


class MixedScan(JavaProxy):
    """A scan of rows in plain files and rows of Python tasks. It is planned already.

    It is a `Function` from its relation in a query's plan to the plan that takes the relation's place.
    """

    interfaces = (_READ + "V1Scan", "java.util.function.Function")

    def __init__(
        self,
        context: SessionContext,
        text: str,
        schema: StructType,
        parts: tuple[NativeFiles, ReadTasks, OpenedScan],
        filters: JavaObject,
    ) -> None:
        super().__init__(context.jvm)
        self._context, self._text, self._schema = context, text, schema
        self._native, self._read, self._opened = parts
        self._filters = filters
        self._struct = context.jvm.struct_type(schema)
        self._relation: JavaObject | None = None

    def readSchema(self) -> JavaObject:
        return self._struct

    def description(self) -> str:
        return self._text

    def apply(self, relation: JavaObject) -> JavaObject:
        """The union, as an optimized logical plan with the attributes of `relation`."""
        return with_output(self.jvm, self._union().optimizedPlan(), relation.output())

    def toV1TableScan(self, sql_context: JavaObject) -> JavaObject:
        """Spark asks again when it plans the rest of a query anew, with what it learned from its first stages."""
        if self._relation is None:
            self._relation = _relation_class(self.jvm)(sql_context, self._struct, self._union().toRdd())
        return self._relation

    def _union(self) -> JavaObject:
        """A QueryExecution of the union; nothing of it has run."""
        whole, *others = self._frames()
        for frame in others:
            whole = whole.union(frame)
        return whole.queryExecution()

    def _frames(self) -> list[JavaObject]:
        """The parts of the union: Datasets of Java."""
        files = self._native.files
        frames = [self._frame_of(self._schema, self._scan(files, self._schema))] if files else []
        marking = self._native.marking
        groups = min(len(marking), self._context.cores)
        for number in range(groups):
            frames += self._marked_frames(marking[number::groups])
        if self._opened.partitions:
            partitions = java_partitions(self.jvm, self._opened.partitions)
            frames.append(self._task_frame(self._schema, self._read, partitions, self._text))
        return frames

    def _scan(self, files: Sequence[str], schema: StructType) -> JavaObject:
        return parquet_scan(self._context, files, schema, self._filters)

    def _marked_frames(self, marking: Sequence[Marking]) -> list[JavaObject]:
        """For each file of `marking`, which one task does, its rows that count."""
        what = f"changed rows of {self._text}"
        partitions = java_partitions(self.jvm, [MarkPartition(tuple(marking))])
        marks = self._task_frame(MARKS_SCHEMA, MarkFunction(self._text), partitions, what).scalar()
        files = [file for one in marking for file in one.files]
        return [self._marked_frame(file, marks.getItem(number)) for number, file in enumerate(files)]

    def _marked_frame(self, file: str, words: JavaObject) -> JavaObject:
        """The rows of `file` whose bit in `words`, a column, is not set."""
        numbered = StructType([*self._schema.fields, StructField(_ROW_NUMBER, LongType())])
        frame = self._frame_of(numbered, self._scan([file], numbered))
        functions = self.jvm.class_(_SQL + "functions")
        number = frame.col(_ROW_NUMBER)
        word = words.getItem(functions.shiftright(number, 6).cast("int"))
        counts = functions.getbit(word, number.bitwiseAND(_LAST_BIT).cast("int")).equalTo(0)
        # Spark gives the numbers by a column of this name; one that does not know it would give nulls.
        unknown = functions.raise_error(functions.lit("this Spark does not number the rows of Parquet files"))
        kept = frame.filter(functions.coalesce(self.jvm.array(_COLUMN, [counts, unknown.cast("boolean")])))
        return kept.select(self.jvm.array(_COLUMN, [frame.col(_quoted(n)) for n in self._schema.fieldNames()]))

    def _task_frame(self, schema: StructType, read: ReadTasks, partitions: JavaObject, text: str) -> JavaObject:
        return self._frame_of(schema, TaskScan(self._context, read, partitions, schema, text))

    def _frame_of(self, schema: StructType, scan: JavaObject) -> JavaObject:
        jvm = self.jvm
        table = PlannedTable(self._context, schema, scan)
        relation = jvm.class_(_SOURCES + "v2.DataSourceV2Relation").create(table, jvm.none(), jvm.none())
        return jvm.class_(_SQL + "classic.Dataset").ofRows(self._context.session, relation)


class PlannedTable(JavaProxy):
    """A table that is one scan, which is there already: nothing can be pushed into it."""

    interfaces = (CONNECTOR + "catalog.SupportsRead", _READ + "ScanBuilder")

    def __init__(self, context: SessionContext, schema: StructType, scan: JavaObject) -> None:
        super().__init__(context.jvm)
        self._scan = scan
        self._struct = context.jvm.struct_type(schema)

    def name(self) -> str:
        return "forebay"

    def schema(self) -> JavaObject:
        return self._struct

    def capabilities(self) -> JavaObject:
        return self.jvm.enum_set(CONNECTOR + "catalog.TableCapability", ("BATCH_READ",))

    def newScanBuilder(self, options: JavaObject) -> JavaProxy:
        return self

    def build(self) -> JavaObject:
        return self._scan


class TaskScan(JavaProxy):
    """A scan that is nothing but its tasks."""

    interfaces = (_READ + "Scan", _READ + "Batch")

    def __init__(
        self, context: SessionContext, read: ReadTasks, partitions: JavaObject, schema: StructType, text: str
    ) -> None:
        super().__init__(context.jvm)
        self._read, self._schema, self._partitions, self._text = read, schema, partitions, text
        self._struct = context.jvm.struct_type(schema)

    def readSchema(self) -> JavaObject:
        return self._struct

    def description(self) -> str:
        return self._text

    def toBatch(self) -> JavaProxy:
        return self

    def planInputPartitions(self) -> JavaObject:
        return self._partitions

    def createReaderFactory(self) -> JavaObject:
        return self.jvm.reader_factory(pickle.dumps((self._read, self._schema)), self._schema)


def java_partitions(jvm: Jvm, partitions: Sequence[object]) -> JavaObject:
    """An InputPartition[] of Spark for tasks of Python workers."""
    made = [jvm.input_partition(index, pickle.dumps(partition)) for index, partition in enumerate(partitions)]
    return jvm.array(_READ + "InputPartition", made)


def reads_files(jvm: Jvm) -> bool:
    """Whether this Spark has what is used here. Where it has not, Python tasks read everything, and a warning says so.

    Found out once for a JVM.
    """
    known = _able.get(jvm)
    if known is None:
        try:
            _relation_class(jvm)
            for name in _NEEDED:
                jvm.class_("java.lang.Class").forName(name)
            known = True
        except Exception as e:  # noqa: BLE001 - whatever it is, all of it can be read another way
            logger.warning("lake files are read by Python alone: %s", jvm.unknown_layout("Parquet reader", e))
            known = False
        _able[jvm] = known
    return known


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _relation_class(jvm: Jvm) -> JavaObject:
    """The constructor of the relation; compiled once for a JVM."""
    return jvm.compiled(_RELATION, _RELATION_SOURCE)
