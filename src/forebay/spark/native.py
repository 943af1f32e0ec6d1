"""Parquet files in Spark's own hands: a scan, or a part of one, without Python workers.

Two ways, both without a jar. Where all rows of a scan are in plain files, the scan is Spark's own `ParquetScan` of
exactly these. Where only a part is, the scan is a `V1Scan` (a public interface of Spark): its relation gives the rows
of an inner query, in which the files' part and the part of Python tasks are united. Rows of files that do not count
are left out there by their numbers in the file, of which a bitmap tells whether they count.

The relation of a `V1Scan` must be a subclass of an abstract class, which no proxy of ours can be. It has four methods
that give what they were given, stays on the driver, and is compiled by Janino, which Spark brings along to compile its
own plans.

Exactness comes first: a session may ask Spark to pass over files that are missing or damaged, or to move old dates to
another calendar; none of that holds here (`_OPTIONS`).
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from pyspark.sql.types import LongType, StructField, StructType

from forebay.spark.context import SessionContext
from forebay.spark.jobs import run_job
from forebay.spark.jvm import CATALYST, CONNECTOR, JavaObject, Jvm
from forebay.spark.proxy import JavaProxy
from forebay.spark.scan_plan import NativeFiles, OpenedScan, ReadTasks
from forebay.unionread.overridden import OverriddenRows

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
_LONG_ARRAY = '{"type":"array","elementType":"long","containsNull":false}'
_PUSHED_FILTERS, _READ_SCHEMA = "pushedFilters", "readDataSchema"

_NEEDED = (
    _SOURCES + "v2.parquet.ParquetTable",
    _SOURCES + "v2.parquet.ParquetScan",
    _SOURCES + "v2.DataSourceV2Relation",
    _SQL + "internal.connector.PredicateUtils",
    _SQL + "classic.Dataset",
    _SQL + "classic.ExpressionUtils",
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
    """A scan of rows in plain files and rows of Python tasks. It is planned already."""

    interfaces = (_READ + "V1Scan",)

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

    def toV1TableScan(self, sql_context: JavaObject) -> JavaObject:
        """Spark asks again when it plans the rest of a query anew, with what it learned from its first stages."""
        if self._relation is None:
            rows = self._frame().queryExecution().toRdd()
            self._relation = _relation_class(self.jvm)(sql_context, self._struct, rows)
        return self._relation

    def _frame(self) -> JavaObject:
        """The inner query: a Dataset of Java. Marks rows in a job of Spark, where some are to be left out."""
        marks = self._marks()
        files = [*self._native.files, *(mark.path for mark in marks if mark.words is None)]
        frames = [self._files_frame(files)] if files else []
        frames += [self._marked_frame(mark.path, mark.words) for mark in marks if mark.words is not None]
        if self._opened.partitions:
            frames.append(self._frame_of(self._schema, TaskScan(self._context, self._read, self._opened, self._schema)))
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.union(frame)
        return whole

    def _marks(self) -> list[OverriddenRows]:
        tasks = self._native.marking
        if not tasks:
            return []
        found: list[OverriddenRows] = []
        for outcome in run_job(self.jvm.context, _mark, tasks, f"changed rows of {self._text}"):
            if isinstance(outcome, Exception):
                raise outcome
            found += outcome
        return found

    def _files_frame(self, files: Sequence[str]) -> JavaObject:
        return self._frame_of(self._schema, parquet_scan(self._context, files, self._schema, self._filters))

    def _marked_frame(self, file: str, words: bytes) -> JavaObject:
        """The rows of `file` whose bit in `words` is not set."""
        numbered = StructType([*self._schema.fields, StructField(_ROW_NUMBER, LongType())])
        frame = self._frame_of(numbered, parquet_scan(self._context, [file], numbered, self._filters))
        functions = self.jvm.class_(_SQL + "functions")
        number = frame.col(_ROW_NUMBER)
        word = _long_array(self.jvm, words).getItem(functions.shiftright(number, 6).cast("int"))
        counts = functions.getbit(word, number.bitwiseAND(_LAST_BIT).cast("int")).equalTo(0)
        # Spark gives the numbers by a column of this name; one that does not know it would give nulls.
        unknown = functions.raise_error(functions.lit("this Spark does not number the rows of Parquet files"))
        kept = frame.filter(functions.coalesce(self.jvm.array(_COLUMN, [counts, unknown.cast("boolean")])))
        return kept.select(self.jvm.array(_COLUMN, [frame.col(_quoted(n)) for n in self._schema.fieldNames()]))

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

    def __init__(self, context: SessionContext, read: ReadTasks, opened: OpenedScan, schema: StructType) -> None:
        super().__init__(context.jvm)
        self._read, self._schema, self._opened = read, schema, opened
        self._struct = context.jvm.struct_type(schema)

    def readSchema(self) -> JavaObject:
        return self._struct

    def description(self) -> str:
        return "forebay"

    def toBatch(self) -> JavaProxy:
        return self

    def planInputPartitions(self) -> JavaObject:
        return java_partitions(self.jvm, self._opened.partitions)

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


def _mark(task: Callable[[], Sequence[OverriddenRows]], _attempt: int) -> Sequence[OverriddenRows]:
    """What a worker does with a task of `NativeFiles.marking`."""
    return task()


def _long_array(jvm: Jvm, words: bytes) -> JavaObject:
    """A column that is an array of 64-bit words in every row. Made of bytes, since py4j sends numbers one by one."""
    buffers, little = jvm.class_("java.nio.ByteBuffer"), jvm.class_("java.nio.ByteOrder").LITTLE_ENDIAN
    longs = jvm.gateway.new_array(jvm.gateway.jvm.long, len(words) // 8)
    buffers.wrap(words).order(little).asLongBuffer().get(longs)
    kind = jvm.class_(_SQL + "types.DataType").fromJson(_LONG_ARRAY)
    array = jvm.class_(CATALYST + "expressions.UnsafeArrayData").fromPrimitiveArray(longs)
    literal = jvm.class_(CATALYST + "expressions.Literal")(array, kind)
    return jvm.class_(_SQL + "classic.ExpressionUtils").column(literal)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _relation_class(jvm: Jvm) -> JavaObject:
    """The constructor of the relation; compiled once for a JVM."""
    return jvm.compiled(_RELATION, _RELATION_SOURCE)
