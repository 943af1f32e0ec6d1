"""Spark's JVM, through py4j. What depends on Spark's version is here, and for Python in forebay.spark.jvm.releases.

Public API of Spark (interfaces under `org.apache.spark.sql.connector`) is stable; these points are not, and are known
for PySpark 4.0 to 4.3:

- the private map of catalogs in the session's catalog manager, into which a catalog is put that is an object and not a
  class name (`install_catalog`);
- the classes by which Spark's own Python data source runs Python workers, built here without its planner processes
  (`reader_factory`, `input_partitions`, `writer_factory`, `streaming_writer_factory`, `commit_message`);
- the session's list of running queries (`query_is_active`);
- the interpreter by which Spark looks for formats in Python, and those that it has found (`python_of_formats`,
  `knows_format`);
- the conversion of Arrow data to Spark's internal rows (`rows`);
- the plans of the statements that are running (`columns_left_out`).

Where Spark looks different, `UnsupportedOperation` says which point failed and which Spark it is.
"""

from __future__ import annotations

import gc
import json
import logging
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from py4j.java_gateway import JavaClass, JavaMember
from py4j.protocol import Py4JJavaError
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql.types import StructType

from forebay.base.errors import ErrorCode, ForebayError, UnsupportedOperation
from forebay.spark.jvm.expressions import Expression, Function, Literal, Literals, Reference
from forebay.spark.jvm.jar_cache import cached_jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JavaObject = Any
"""An object of the JVM."""

CONNECTOR = "org.apache.spark.sql.connector."
CATALYST = "org.apache.spark.sql.catalyst."
_PYTHON = "org.apache.spark.sql.execution.datasources.v2.python."
_KNOWN = "PySpark 4.0 to 4.3"
_PREDICATES = frozenset({"Predicate", "And", "Or", "Not", "AlwaysTrue", "AlwaysFalse"})
"""Classes of V2 expressions that have a name and children and can be converted."""


_FILES_READ = ("forebayFiles", "lake files read by Spark")
"""Name and description of the metric that the driver has a value of; `ForebayFileScan` knows the name, too."""

_EPOCHS_OF_CONTINUOUS_MODE = "__epoch_coordinator_id"
"""The local property in which Spark's ContinuousExecution names what counts its epochs."""

_PARTS = {"ForebayParquet": ("ForebayFiles", "ForebayFileScan")}
"""Other sources whose classes a class of the driver needs; they are compiled together with it."""

_DATA_TYPE, _STRUCTS_MAX = "org.apache.spark.sql.types.DataType", 256


class JavaThrow(Py4JJavaError):  # type: ignore[misc]
    """Raise it in a proxy's method to throw `java_exception` in the JVM."""

    def __init__(self, java_exception: Any) -> None:
        super().__init__("thrown by a Forebay proxy", java_exception)

    def is_a(self, name: str) -> bool:
        """Whether it is an exception of the class with this simple name."""
        return bool(self.java_exception.getClass().getSimpleName() == name)


class _ExpectedErrors(logging.Filter):
    """py4j logs every error of a callback with its traceback; those that we throw on purpose are answers."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], JavaThrow))


_expected_errors = _ExpectedErrors()


def quoted(name: str) -> str:
    """The name of a column, as SQL writes any name."""
    return "`" + name.replace("`", "``") + "`"


def joined_source(folder: str, *names: str) -> str:
    """The sources `<folder>/<name>.java` as one source: all imports come first."""
    texts = [(resources.files("forebay.spark.jvm") / folder / f"{name}.java").read_text() for name in names]
    lines = [line for text in texts for line in text.splitlines()]
    imports = dict.fromkeys(line for line in lines if line.startswith("import "))
    return "\n".join([*imports, *(line for line in lines if line not in imports)])


def _is_default(method: JavaObject, name: str, arguments: int) -> bool:
    return bool(method.getName() == name and method.isDefault() and method.getParameterCount() == arguments)


def _appends_in(plan: JavaObject) -> Iterator[JavaObject]:
    """The parts of a plan that append rows to a table, among them a MERGE that does only that."""
    if str(plan.getClass().getSimpleName()) in ("AppendData", "InsertOnlyMerge"):
        yield plan
        return
    children = plan.children()
    for index in range(int(children.size())):
        yield from _appends_in(children.apply(index))


def _is_filled(column: JavaObject) -> bool:
    """Whether a column of a projection is a value by which Spark fills a column, and not one of the user's."""
    if str(column.getClass().getSimpleName()) != "Alias":
        return False
    return bool(column.explicitMetadata().isDefined() and column.child().references().isEmpty())


class _KnownClass(JavaClass):  # type: ignore[misc]
    """A Java class whose static methods are looked up once: py4j asks the JVM for each before every call."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):
            self.__dict__[name] = found
        return found


class Jvm:
    """The JVM of a Spark session, with handles that are looked up once. Make it with `Jvm.of`."""

    _instances: dict[int, Jvm] = {}  # noqa: RUF012 - one for each JVM of the process, which is one
    _instances_lock = threading.Lock()

    def __init__(self, session: SparkSession) -> None:
        context = session.sparkContext
        self.context = context
        self.gateway = cast(Any, context._gateway)
        self._classes: dict[str, Any] = {}
        self._defaults: dict[tuple[tuple[str, ...], str, int], Any] = {}
        self._sets: dict[tuple[str, tuple[str, ...]], JavaObject] = {}
        self._schemes: dict[str, bool] = {}
        self._empty = lru_cache(None)(lambda class_name: self.gateway.new_array(self.class_(class_name), 0))
        self._struct = lru_cache(_STRUCTS_MAX)(lambda text: self.class_(_DATA_TYPE).fromJson(text))
        self._source: tuple[tuple[str, ...], JavaObject] | None = None
        self._compiled: dict[str, JavaObject] = {}
        self._scan_metrics: tuple[JavaObject, JavaObject] | None = None
        ensure_callback_server_started(self.gateway)  # type: ignore[no-untyped-call]
        # Lets proxies throw Spark's own exceptions, on which its analyzer depends (NoSuchTableException).
        self.gateway.python_parameters.propagate_java_exceptions = True
        for name in ("py4j.clientserver", "py4j.java_gateway"):
            logging.getLogger(name).addFilter(_expected_errors)

    @classmethod
    def of(cls, session: SparkSession) -> Jvm:
        """The JVM behind `session`. Raises `UnsupportedOperation` for a Spark Connect session, which has none here."""
        if not hasattr(session, "_jsparkSession"):
            raise UnsupportedOperation(
                "a Spark Connect session has no JVM in this process, so it cannot have a catalog in Python; "
                "use spark.read.format('forebay') and df.write.format('forebay') there"
            )
        key = id(session.sparkContext)
        with cls._instances_lock:
            known = cls._instances.get(key)
            if known is None or known.context is not session.sparkContext:
                cls._instances.clear()
                known = cls._instances[key] = cls(session)
            return known

    @property
    def spark_version(self) -> str:
        return str(self.context.version)

    def unknown_layout(self, what: str, error: Exception) -> UnsupportedOperation:
        """What to raise where `what` of this Spark is not what we know."""
        thrown = error.java_exception.toString() if isinstance(error, Py4JJavaError) else error
        return UnsupportedOperation(
            f"this is Spark {self.spark_version}, whose {what} does not look as in {_KNOWN}, which Forebay knows: "
            f"{str(thrown).splitlines()[0]}"
        )

    @contextmanager
    def known_layout(self, what: str) -> Iterator[None]:
        """Raise `UnsupportedOperation` that names `what` for errors inside, which uses what may change in Spark."""
        try:
            yield
        except ForebayError:
            raise
        except Exception as e:
            raise self.unknown_layout(what, e) from e

    def collect_garbage(self) -> None:
        """Collect garbage on both sides; proxies of old queries then end, a moment later.

        Python first: references of its own to Java's plans may hang in cycles (a data frame and its session).
        """
        gc.collect()
        self.class_("java.lang.System").gc()

    # ---- plain Java values ------------------------------------------------------------------------------------------

    def class_(self, name: str) -> Any:
        """A Java class by its full name, to call its constructor and static methods."""
        known = self._classes.get(name)
        if known is None:
            known = self._classes[name] = _KnownClass(name, self.gateway._gateway_client)
        return known

    def has_class(self, name: str) -> bool:
        """Whether this Spark has a class of this full name."""
        try:
            self.class_("java.lang.Class").forName(name)
        except Py4JJavaError:
            return False
        return True

    def scala_object(self, name: str) -> JavaObject:
        """The instance of a Scala object."""
        key = f"{name}$.MODULE$"
        known = self._classes.get(key)
        if known is None:
            known = self._classes[key] = getattr(self.class_(f"{name}$"), "MODULE$")
        return known

    def array(self, class_name: str, items: Sequence[Any]) -> JavaObject:
        if not items:  # they are all the same
            return self._empty(class_name)
        array = self.gateway.new_array(self.class_(class_name), len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array

    def proxy_array(self, class_name: str, items: Sequence[Any]) -> JavaObject:
        """An array with Python proxies in it, which py4j cannot assign itself."""
        array = self.gateway.new_array(self.class_(class_name), len(items))
        for index, item in enumerate(items):
            self.class_("java.lang.reflect.Array").set(array, index, item)
        return array

    def int_array(self, items: Sequence[int]) -> JavaObject:
        """An int[]."""
        array = self.gateway.new_array(self.gateway.jvm.int, len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array

    def strings(self, items: Sequence[str]) -> JavaObject:
        return self.array("java.lang.String", items)

    def string_arrays(self, rows: Sequence[Sequence[str]]) -> JavaObject:
        """A String[][]."""
        array = self.gateway.new_array(self.class_("java.lang.String"), len(rows), max(map(len, rows), default=1))
        for index, row in enumerate(rows):
            array[index] = self.strings(row)
        return array

    def list(self, items: Iterable[Any]) -> JavaObject:
        """A java.util.List."""
        made = self.class_("java.util.ArrayList")()
        for item in items:
            made.add(item)
        return made

    def sequence(self, items: Iterable[Any]) -> JavaObject:
        """An immutable Seq of Scala."""
        return self.class_("scala.jdk.javaapi.CollectionConverters").asScala(self.list(items)).toSeq()

    def serves(self, scheme: str) -> bool:
        """Whether the class path of this Spark has a Hadoop file system for URIs of `scheme`. Found out once."""
        known = self._schemes.get(scheme)
        if known is None:
            try:
                configured = self.context._jsc.hadoopConfiguration()
                self.class_("org.apache.hadoop.fs.FileSystem").getFileSystemClass(scheme, configured)
                known = True
            except Py4JJavaError:  # there is none, or it is configured and its class is not there
                known = False
            self._schemes[scheme] = known
        return known

    def map(self, items: Mapping[str, str]) -> JavaObject:
        made = self.class_("java.util.LinkedHashMap")()
        for key, value in items.items():
            made.put(key, value)
        return made

    def enum_set(self, class_name: str, names: tuple[str, ...]) -> JavaObject:
        """A java.util.Set of the named constants, without those that this Spark does not have. Made once."""
        made = self._sets.get((class_name, names))
        if made is None:
            made = self.class_("java.util.HashSet")()
            enum = self.class_(class_name)
            known = {str(constant.name()) for constant in enum.values()}
            for name in names:
                if name in known:
                    made.add(enum.valueOf(name))
            self._sets[class_name, names] = made
        return made

    def string_set(self, *texts: str) -> JavaObject:
        """A java.util.Set, made once."""
        made = self._sets.get(("java.lang.String", texts))
        if made is None:
            made = self.class_("java.util.HashSet")()
            for text in texts:
                made.add(text)
            self._sets["java.lang.String", texts] = made
        return made

    def optional_long(self, value: int | None) -> JavaObject:
        optional = self.class_("java.util.OptionalLong")
        return optional.empty() if value is None else optional.of(value)

    def none(self) -> JavaObject:
        """Scala's None."""
        return self.scala_object("scala.None")

    # ---- Spark's values ---------------------------------------------------------------------------------------------

    def struct_type(self, schema: StructType) -> JavaObject:
        """Spark's schema; it never changes, and the last ones are kept."""
        return self._struct(schema.json())

    def python_schema(self, struct: JavaObject) -> StructType:
        return StructType.fromJson(json.loads(struct.json()))

    def identifier(self, namespace: Sequence[str], name: str) -> JavaObject:
        return self.class_(CONNECTOR + "catalog.Identifier").of(self.strings(namespace), name)

    def options(self, options: JavaObject) -> dict[str, str]:
        """The entries of a CaseInsensitiveStringMap, with the keys as they were written."""
        if options.isEmpty():
            return {}
        return {str(key): str(value) for key, value in options.asCaseSensitiveMap().items()}

    def exception(self, error: ForebayError) -> JavaObject:
        """The exception of the JVM for an error of ours, with the same message.

        Spark's AnalysisException is a checked one, which proxies may throw from few methods; these two they may throw
        from all, and PySpark shows their messages without the JVM's stack.
        """
        unsupported = isinstance(error, UnsupportedOperation)
        name = "UnsupportedOperationException" if unsupported else "IllegalArgumentException"
        # "Unsupported version" is the protocol's only word for it, and says nothing to users of SQL.
        plain = error.code == ErrorCode.UNSUPPORTED_VERSION
        return self.class_(f"java.lang.{name}")(error.message if plain else str(error))

    def thrown(self, name: str, *args: Any) -> JavaThrow:
        """An exception of Catalyst's analysis package, to raise from a method that declares it."""
        return JavaThrow(self.class_(f"{CATALYST}analysis.{name}")(*args))

    def unknown_routine(self, name: str, where: str) -> JavaThrow:
        """Spark's error for a routine that is not there, to raise from `loadProcedure`; `where` says where it looked.

        Spark hides any exception but its own kinds behind FAILED_TO_LOAD_ROUTINE, which says no reason.
        """
        words = self.map({"routineName": name, "searchPath": where})
        return JavaThrow(self.class_("org.apache.spark.SparkIllegalArgumentException")("UNRESOLVED_ROUTINE", words))

    def expression(self, expression: JavaObject) -> Expression:
        """A V2 expression, read into values. What cannot be converted anyway is a `Function` of its class name."""
        kind = str(expression.getClass().getSimpleName())
        if kind == "FieldReference":
            return Reference(tuple(str(part) for part in expression.fieldNames()))
        if kind == "LiteralValue":
            return Literal(str(expression.toString()), str(expression.dataType().json()))
        if kind not in _PREDICATES:
            return Function(kind)
        name, children = str(expression.name()), expression.children()
        if name == "IN":
            return self._in_list(expression, children)
        return Function(name, tuple(self.expression(child) for child in children))

    def _in_list(self, expression: JavaObject, children: JavaObject) -> Expression:
        """`column IN (values)`, read from its text: thousands of values would take thousands of calls."""
        if len(children) == 1:  # the other side of a join has no value
            return Function("IN", (self.expression(children[0]), Literals("", '"string"')))
        before, text = f"{children[0].toString()} IN (", str(expression.toString())
        if str(children[1].getClass().getSimpleName()) != "LiteralValue" or not text.startswith(before):
            return Function("IN")
        values = Literals(text[len(before) : -1], str(children[1].dataType().json()))
        return Function("IN", (self.expression(children[0]), values))

    def rows(self, session: JavaObject, schema: StructType, table: pa.Table) -> JavaObject:
        """An InternalRow[] with the rows of `table`, which has Spark's Arrow schema for `schema`."""
        internal_row = CATALYST + "InternalRow"
        if table.num_rows == 0:
            return self.gateway.new_array(self.class_(internal_row), 0)
        with self.known_layout("conversion of Arrow data to rows"):
            listed = self.list([batch.serialize().to_pybytes() for batch in table.combine_chunks().to_batches()])
            iterator = self.class_("scala.jdk.javaapi.CollectionConverters").asScala(listed.iterator())
            utilities = self.class_("org.apache.spark.sql.api.python.PythonSQLUtils")
            data = utilities.toDataFrame(iterator, schema.json(), session).queryExecution().logical().data()
            row_class = self.class_("java.lang.Class").forName(internal_row)
            return data.toArray(self.scala_object("scala.reflect.ClassTag").apply(row_class))

    def column(self, name: str) -> JavaObject:
        """A reference to a column, whatever characters its name has."""
        return self.class_(CONNECTOR + "expressions.Expressions").column(quoted(name))

    def columns_left_out(self) -> tuple[str, ...] | None:
        """The table's columns that the data of a write by name lacks, while Spark plans it; None if it plans none.

        Spark fills them, with NULL or DEFAULT, so the schema of the write has all columns. But the execution of a
        statement has its analysed plan: there a projection does that, over the data as it was given.
        """
        with self.known_layout("plan of a write"):
            executions = self.scala_object("org.apache.spark.sql.execution.SQLExecution")
            number = self.context._jsc.sc().getLocalProperty(executions.EXECUTION_ID_KEY())
            execution = None if number is None else executions.getQueryExecution(int(number))
            appends = [] if execution is None else list(_appends_in(execution.analyzed()))
            if len(appends) > 1:  # FROM ... INSERT INTO ... INSERT INTO ...
                origin = self.class_(CATALYST + "trees.CurrentOrigin").get()
                appends = [append for append in appends if append.origin().equals(origin)]
            if len(appends) != 1:
                return None
            if str(appends[0].getClass().getSimpleName()) != "AppendData" or not appends[0].isByName():
                return ()
            query = appends[0].query()
            if str(query.getClass().getSimpleName()) != "Project":
                return ()
            fold = str if query.conf().caseSensitiveAnalysis() else str.lower
            given = {fold(str(name)) for name in query.child().schema().fieldNames()}
            columns = [query.projectList().apply(index) for index in range(int(query.projectList().size()))]
            lacking = [column for column in columns if fold(str(column.name())) not in given]
            return tuple(str(column.name()) for column in lacking if _is_filled(column))

    # ---- default methods --------------------------------------------------------------------------------------------

    def call_default(self, proxy: JavaObject, name: str, *args: Any) -> Any:
        """The answer of an interface's own implementation of method `name`, for a proxy that has none."""
        interfaces = tuple(proxy.Java.implements)
        key = (interfaces, name, len(args))
        if key not in self._defaults:
            by_name = self.class_("java.lang.Class").forName
            methods = (method for interface in interfaces for method in by_name(interface).getMethods())
            self._defaults[key] = next((m for m in methods if _is_default(m, name, len(args))), None)
        method = self._defaults[key]
        if method is None:
            raise UnsupportedOperation(
                f"Spark {self.spark_version} calls {name}() with {len(args)} arguments on a {type(proxy).__name__}, "
                f"which Forebay does not know (it knows {_KNOWN})"
            )
        invoke = self.class_("java.lang.reflect.InvocationHandler").invokeDefault
        return invoke(proxy, method, self.array("java.lang.Object", args))

    # ---- classes of our own -----------------------------------------------------------------------------------------

    def compiled(self, name: str) -> Any:
        """A constructor of the Java class `driver_java/<name>.java`; it exists on the driver only. Compiled once, and
        kept for later sessions (forebay.spark.jvm.jar_cache).

        forebay.spark.jvm.executor_classes has those of executors.
        """
        if name not in self._compiled:
            with self.known_layout("compiler"):
                jar = cached_jar(name, self.java_source(name), self.spark_version, self.bytecodes)
                self._compiled[name] = self.class_of_jar(jar, name).getConstructors()[0]
        return self.maker(self._compiled[name])

    def maker(self, constructor: JavaObject) -> Callable[..., JavaObject]:
        """A function that calls a constructor, found by reflection; proxies may be among its arguments."""
        return lambda *args: constructor.newInstance(self.proxy_array("java.lang.Object", args))

    def class_of_jar(self, jar: Path, name: str) -> JavaObject:
        """The class `name` of a jar, by a class loader of its own."""
        urls = self.array("java.net.URL", [self.class_("java.net.URI").create(jar.as_uri()).toURL()])
        return self.class_("java.net.URLClassLoader")(urls, self.spark_class_loader()).loadClass(name)

    def spark_class_loader(self) -> JavaObject:
        """The loader of Spark's own classes."""
        return self.class_("java.lang.Class").forName("org.apache.spark.sql.sources.BaseRelation").getClassLoader()

    @staticmethod
    def java_source(name: str) -> str:
        """The source of the driver's class `name` and of those that it needs, as one."""
        return joined_source("driver_java", name, *_PARTS.get(name, ()))

    def bytecodes(self, source: str) -> dict[str, bytes]:
        """The compiled classes of Java source, by name."""
        compiler = self.class_("org.codehaus.janino.SimpleCompiler")()
        compiler.setParentClassLoader(self.spark_class_loader())
        compiler.cook(source)
        return {str(name): bytes(code) for name, code in compiler.getBytecodes().items()}

    # ---- sessions and catalogs --------------------------------------------------------------------------------------

    def weak(self, value: JavaObject) -> JavaObject:
        return self.class_("java.lang.ref.WeakReference")(value)

    def active_session(self) -> JavaObject:
        """The session that plans a query in the thread that called us."""
        return self.class_("org.apache.spark.sql.classic.SparkSession").active()

    def install_catalog(self, session: JavaObject, name: str, catalog: JavaObject) -> None:
        """Make `catalog` the session's catalog `name`, in place of one that may be there."""
        with self.known_layout("catalog manager"):
            manager = session.sessionState().catalogManager()
            kind = manager.getClass()
            field = None
            while field is None and kind is not None:
                field = next((f for f in kind.getDeclaredFields() if f.getName() == "catalogs"), None)
                kind = kind.getSuperclass()
            if field is None:
                raise LookupError(f"{manager.getClass().getName()} has no field 'catalogs'")
            field.setAccessible(True)
            field.get(manager).put(name, catalog)

    # ---- Python workers ---------------------------------------------------------------------------------------------

    def python_of_formats(self) -> str:
        """The interpreter by which Spark looks for formats that are written in Python: a path, or a name."""
        with self.known_layout("interpreter of Python data sources"):
            return str(self.scala_object("org.apache.spark.api.python.PythonUtils").defaultPythonExec())

    def knows_format(self, session: JavaObject, name: str) -> bool:
        """Whether `session` has a format of this name that is written in Python. The first call looks for them."""
        with self.known_layout("list of Python data sources"):
            return bool(session.sessionState().dataSourceManager().dataSourceExists(name))

    def input_partitions(self, partitions: Sequence[object]) -> JavaObject:
        """An InputPartition[] for tasks of Python workers."""
        make = self.class_(_PYTHON + "PythonInputPartition")
        made = [make(index, pickle.dumps(partition)) for index, partition in enumerate(partitions)]
        return self.array(CONNECTOR + "read.InputPartition", made)

    def reader_factory(self, pickled_command: bytes, schema: StructType) -> JavaObject:
        """Runs `pickled_command`, (function from batches to batches, return type), on a partition's bytes."""
        return self._factory("PythonPartitionReaderFactory", pickled_command, self.struct_type(schema))

    def writer_factory(self, pickled_command: bytes, schema: JavaObject) -> JavaObject:
        """Runs `pickled_command` on a task's rows; it yields one batch with the pickled commit message."""
        return self._factory("PythonBatchWriterFactory", pickled_command, schema)

    def streaming_writer_factory(self, pickled_command: bytes, schema: JavaObject) -> JavaObject:
        """The same for a micro-batch.

        Raises `UnsupportedOperation` in a query of Spark's continuous mode: its tasks never end, so no row would be
        committed, but its epochs would.
        """
        if self.context._jsc.sc().getLocalProperty(_EPOCHS_OF_CONTINUOUS_MODE) is not None:
            raise UnsupportedOperation(
                "streams in continuous mode cannot be written to tables: use a trigger of micro-batches "
                "(processingTime, availableNow)"
            )
        return self._factory("PythonStreamingWriterFactory", pickled_command, schema)

    def _factory(self, name: str, command: bytes, schema: JavaObject) -> JavaObject:
        with self.known_layout(f"class {name}"):
            artifacts = self.class_("scala.Option").apply(self.artifacts())
            arguments = (self._python_source(), command, schema, artifacts)
            constructor = self.class_("java.lang.Class").forName(_PYTHON + name).getConstructors()[0]
            # From 4.1 on a fifth argument names the session whose worker logs are collected.
            extra = constructor.getParameterCount() - len(arguments)
            return self.class_(_PYTHON + name)(*arguments, *([self.none()] * extra))

    def artifacts(self) -> str | None:
        """The id of the files that the session has added to its jobs, if it has."""
        state = self.scala_object("org.apache.spark.JobArtifactSet").getCurrentJobArtifactState()
        return str(state.get().uuid()) if state.isDefined() else None

    def _python_source(self) -> JavaObject:
        """What tells Spark how to run Python: executable, version, environment, and files that users added."""
        includes = tuple(self.context._python_includes or ())
        if self._source is None or self._source[0] != includes:
            from pyspark.sql.udf import _wrap_function

            wrapped = _wrap_function(self.context, Jvm.__name__)  # type: ignore[arg-type]
            self._source = (includes, self.class_(_PYTHON + "UserDefinedPythonDataSource")(wrapped))
        return self._source[1]

    def python_stream(
        self, format_name: str, schema: StructType, options: Mapping[str, str], checkpoint: str
    ) -> JavaObject:
        """The MicroBatchStream of a format written in Python, which Spark knows by its name."""
        with self.known_layout("stream of a Python data source"):
            source = self.class_(_PYTHON + "PythonDataSourceV2")()
            source.setShortName(format_name)
            given = self.class_("org.apache.spark.sql.util.CaseInsensitiveStringMap")(self.map(options))
            table = source.getTable(
                self.struct_type(schema), self.array(CONNECTOR + "expressions.Transform", ()), given
            )
            scan = table.newScanBuilder(given).build()
        try:
            return scan.toMicroBatchStream(checkpoint)
        except Exception as e:  # a checked exception, of which Spark would show nothing if a proxy threw it
            cause = getattr(e, "java_exception", None) or getattr(e, "_origin", None)
            if cause is None:
                raise
            raise JavaThrow(self.class_("java.lang.IllegalArgumentException")(str(cause.getMessage()), cause)) from e

    def query_is_active(self, session: JavaObject, query_id: str) -> bool:
        """Whether the streaming query with this id (which it keeps over restarts) runs, in whichever session."""
        with self.known_layout("list of active queries"):
            running = session.sharedState().activeStreamingQueries()
            return bool(running.containsKey(self.class_("java.util.UUID").fromString(query_id)))

    def plans_a_stream(self) -> bool:
        """Whether who calls us plans a streaming query: from Spark 4.3 on it asks scans for no more than a batch does.

        A batch in `foreachBatch` runs in the same thread, so the thread's name alone does not tell.
        """
        thread = self.class_("java.lang.Thread").currentThread()
        if not str(thread.getName()).startswith("stream execution thread"):
            return False
        text = self.class_("java.io.StringWriter")()
        self.class_("java.lang.Throwable")().printStackTrace(self.class_("java.io.PrintWriter")(text))
        return "MicroBatchExecution.logicalPlan" in str(text.toString())

    def thread_id(self) -> int:
        """The id of the thread of the JVM that has called us."""
        return int(self.class_("java.lang.Thread").currentThread().getId())

    def python_metrics(self) -> JavaObject:
        """The metrics that Spark's Python runner reports for every task, for the SQL tab."""
        return self._python_source().createPythonMetrics()

    def scan_metrics(self, files: int = 0) -> tuple[JavaObject, JavaObject]:
        """The metrics of scans, for the SQL tab, and the values that the driver has: how many lake `files` are read.

        They are those of the Python runner, and those of `ForebayDirectReader`. Spark adds up the values of all tasks
        by another object of a metric's class, which it looks for by name. Where it cannot find classes of ours there
        are only bytes, by a class of its own.
        """
        source = self._python_source()
        count, time = self._found_by_name("ForebayCount"), self._found_by_name("ForebayTime")
        if self._scan_metrics is None or self._scan_metrics[0] is not source:
            made = [self.class_(_PYTHON + "PythonCustomMetric")("forebayBytes", "bytes from the servers")]
            if count is not None and time is not None:
                made += [
                    count("forebayRequests", "requests to the servers", 0),
                    time("forebayWait", "time waiting for the servers", 0),
                    count("forebayDirect", "logs and buckets read without Python", 0),
                    count("forebayLeft", "logs and buckets left to Python workers", 0),
                    count(*_FILES_READ, 0),
                ]
            python = source.createPythonMetrics()
            self._scan_metrics = source, self.array(CONNECTOR + "metric.CustomMetric", [*python, *made])
        values = [count(*_FILES_READ, files)] if files and count is not None else []
        return self._scan_metrics[1], self.array(CONNECTOR + "metric.CustomTaskMetric", values)

    def _found_by_name(self, name: str) -> Callable[..., JavaObject] | None:
        """A constructor of the class `driver_java/<name>.java`, which Spark's own threads find by its name, too.

        None where the application's class loader takes no jars.
        """
        if name not in self._compiled:
            try:
                with self.known_layout("compiler"):
                    jar = cached_jar(name, self.java_source(name), self.spark_version, self.bytecodes)
                loader = self.class_("java.lang.Thread").currentThread().getContextClassLoader()
                loader.addURL(self.class_("java.net.URI").create(jar.as_uri()).toURL())
                makers = self.class_("java.lang.Class").forName(name, True, loader).getConstructors()
                [self._compiled[name]] = [maker for maker in makers if maker.getParameterCount()]
            except Exception as e:  # noqa: BLE001 - whatever it is, a query can do without
                logging.getLogger(__name__).info("some metrics of scans are not shown in Spark's UI: %s", e)
                self._compiled[name] = None
        constructor = self._compiled[name]
        return None if constructor is None else self.maker(constructor)

    def commit_message(self, message: JavaObject) -> bytes | None:
        """The pickled message of a write task; None for a task that has none."""
        return None if message is None else bytes(message.pickledMessage())
