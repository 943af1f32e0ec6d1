"""The statement or stream that Spark plans in the thread that called a proxy.

Spark's interfaces do not pass this to catalogs and tables. It is read from parts of Spark that are not public: the
plans of running statements (`omitted_columns`, `is_insert_only_merge`) and streams (`streamed_columns`), and the stack
of the thread (`is_planning_stream`).
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import StructField, StructType

from forebay.spark.jvm.gateway import CATALYST, JavaObject, Jvm
from forebay.spark.jvm.spark_values import python_schema


def calling_thread_id(jvm: Jvm) -> int:
    """The id of the thread of the JVM that called the proxy."""
    return int(jvm.class_("java.lang.Thread").currentThread().getId())


def is_planning_stream(jvm: Jvm) -> bool:
    """Whether the calling thread plans a streaming query. From Spark 4.3 on, scans of streams are built as batches are.

    The name of the thread is not enough: batches of `foreachBatch` run in the thread of the stream.
    """
    thread = jvm.class_("java.lang.Thread").currentThread()
    if not str(thread.getName()).startswith("stream execution thread"):
        return False
    text = jvm.class_("java.io.StringWriter")()
    jvm.class_("java.lang.Throwable")().printStackTrace(jvm.class_("java.io.PrintWriter")(text))
    return "MicroBatchExecution.logicalPlan" in str(text.toString())


def streamed_columns(jvm: Jvm, table: str) -> StructType:
    """The columns that the stream which the calling thread plans reads of a table, whatever its query does with them.

    Metadata columns are among them, behind those of the table, if the query names one. Before Spark 4.3 nothing else
    tells of them: scans of streams are not told which columns are requested.
    """
    with jvm.known_layout("plan of a stream"):
        thread = jvm.class_("java.lang.Thread").currentThread()
        outer = thread.getClass().getDeclaredField("$outer")
        outer.setAccessible(True)
        leaves = outer.get(thread).analyzedPlan().collectLeaves()
        fields: dict[str, StructField] = {}
        for leaf in (leaves.apply(index) for index in range(int(leaves.size()))):
            if _class_of(leaf) == "StreamingRelationV2" and str(leaf.table().name()) == table:
                fields |= {field.name: field for field in python_schema(leaf.schema()).fields}
        if not fields:
            raise LookupError(f"there is no relation of {table}")
        return StructType(list(fields.values()))


def omitted_columns(jvm: Jvm) -> tuple[str, ...] | None:
    """The columns of the table that the data of a write by name lacks; None if the thread plans no such write.

    Spark fills these columns with NULL or DEFAULT, so the schema that it passes to the write has all columns. But the
    analyzed plan of the statement has a projection that adds them to the user's data.
    """
    with jvm.known_layout("plan of a write"):
        append = _planned_append(jvm)
        if append is None:
            return None
        if _class_of(append) != "AppendData" or not append.isByName():
            return ()
        query = append.query()
        if _class_of(query) != "Project":
            return ()
        fold = str if query.conf().caseSensitiveAnalysis() else str.lower
        supplied = {fold(str(name)) for name in query.child().schema().fieldNames()}
        columns = [query.projectList().apply(index) for index in range(int(query.projectList().size()))]
        missing = [column for column in columns if fold(str(column.name())) not in supplied]
        return tuple(str(column.name()) for column in missing if _is_default_value(column))


def is_insert_only_merge(jvm: Jvm) -> bool:
    """Whether the calling thread plans a MERGE that only inserts, which Spark passes to tables as an INSERT.

    From Spark 4.3 on its plan has a node for it. Before, it is an append of the source rows that an anti join with the
    very relation that is written to leaves.
    """
    with jvm.known_layout("plan of a write"):
        append = _planned_append(jvm)
        if append is None or _class_of(append) == "InsertOnlyMerge":
            return append is not None
        query = append.query()
        while _class_of(query) in ("Project", "MergeRows"):
            query = query.child()
        is_anti_join = _class_of(query) == "Join" and str(query.joinType().toString()) == "LeftAnti"
        return is_anti_join and bool(query.right().outputSet().equals(append.table().outputSet()))


def _planned_append(jvm: Jvm) -> JavaObject | None:
    """The node of the running statement that appends the rows whose write is planned; None if there is none."""
    executions = jvm.scala_object("org.apache.spark.sql.execution.SQLExecution")
    number = jvm.context._jsc.sc().getLocalProperty(executions.EXECUTION_ID_KEY())
    execution = None if number is None else executions.getQueryExecution(int(number))
    appends = [] if execution is None else list(_appends(execution.analyzed()))
    if len(appends) > 1:  # FROM ... INSERT INTO ... INSERT INTO ...
        origin = jvm.class_(CATALYST + "trees.CurrentOrigin").get()
        appends = [append for append in appends if append.origin().equals(origin)]
    return appends[0] if len(appends) == 1 else None


def _class_of(plan: JavaObject) -> str:
    return str(plan.getClass().getSimpleName())


def _appends(plan: JavaObject) -> Iterator[JavaObject]:
    """The nodes of a plan that append rows to a table. A MERGE that only inserts is one of them."""
    if _class_of(plan) in ("AppendData", "InsertOnlyMerge"):
        yield plan
        return
    children = plan.children()
    for index in range(int(children.size())):
        yield from _appends(children.apply(index))


def _is_default_value(column: JavaObject) -> bool:
    """Whether a column of a projection is a value with which Spark fills a column, and not a value of the user."""
    if _class_of(column) != "Alias":
        return False
    return bool(column.explicitMetadata().isDefined() and column.child().references().isEmpty())
