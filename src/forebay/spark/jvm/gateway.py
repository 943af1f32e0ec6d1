"""The JVM of a Spark session, through py4j.

Nouns: a *Java object* is py4j's handle of an object in the JVM, and every method call on it is a round trip of about
0.1 ms. A *layout* is a part of Spark that is not public API, so that a release may change it.

`Jvm` gives access to classes and objects, and has a cache of handles and of results that stay the same for a session.
The other modules of this package have functions that take the `Jvm`:

- `values`, `spark_values`: Python values as values of Java, Scala and Spark, and back;
- `expressions`: V2 expressions as Python values;
- `exceptions`: errors as exceptions of the JVM;
- `session_state`, `planning`: what a session has, and what Spark plans in the calling thread;
- `python_tasks`, `scan_metrics`: tasks of Python workers, and metrics of scans;
- `compiler`, `driver_classes`, `executor_classes`, `jar_cache`: Forebay's Java classes;
- `proxy`: Python objects that implement interfaces of Spark.

The interfaces below `org.apache.spark.sql.connector` are public and stable. Modules that use other parts of Spark list
them in their docstrings; they fit PySpark 4.0 to 4.3. Where Spark differs, `UnsupportedOperation` names the part and
the release. `releases` has the differences between releases in Python.

Proxies are called from any thread of the JVM, so a `Jvm` is used by several threads at once.
"""

from __future__ import annotations

import functools
import gc
import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from py4j.java_gateway import JavaClass, JavaMember
from py4j.protocol import Py4JJavaError
from pyspark.java_gateway import ensure_callback_server_started

from forebay.base.errors import ForebayError, UnsupportedOperation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = ParamSpec("P")
T = TypeVar("T")

JavaObject = Any
"""An object of the JVM."""

CONNECTOR = "org.apache.spark.sql.connector."
CATALYST = "org.apache.spark.sql.catalyst."

SUPPORTED_RELEASES = "PySpark 4.0 to 4.3"


class JavaThrow(Py4JJavaError):  # type: ignore[misc]
    """Carries an exception of the JVM: raising it in a method of a proxy throws `java_exception` in the JVM."""

    def __init__(self, java_exception: Any) -> None:
        super().__init__("thrown by a Forebay proxy", java_exception)

    def is_a(self, name: str) -> bool:
        """Whether `java_exception` is of the class with this simple name."""
        return bool(self.java_exception.getClass().getSimpleName() == name)


class _JavaThrowFilter(logging.Filter):
    """Drops py4j's log records of `JavaThrow`: py4j logs each error of a callback, but these are answers to Spark."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], JavaThrow))


_java_throw_filter = _JavaThrowFilter()


class _CachedClass(JavaClass):  # type: ignore[misc]
    """A Java class whose static methods are looked up once. py4j asks the JVM for each before every call."""

    def __getattr__(self, name: str) -> Any:
        attribute = super().__getattr__(name)
        if isinstance(attribute, JavaMember):
            self.__dict__[name] = attribute
        return attribute


class Jvm:
    """The JVM of a Spark session. `Jvm.of` returns the one of a session; all sessions of a process share it."""

    _instances: dict[int, Jvm] = {}  # noqa: RUF012 - has one item, as a process has one JVM at a time
    _instances_lock = threading.Lock()

    def __init__(self, session: SparkSession) -> None:
        context = session.sparkContext
        self.context = context
        self.gateway = cast(Any, context._gateway)
        self._classes: dict[str, Any] = {}
        self._cache: dict[Hashable, Any] = {}
        ensure_callback_server_started(self.gateway)  # type: ignore[no-untyped-call]
        # Lets proxies throw Spark's own exceptions, on which its analyzer depends (NoSuchTableException).
        self.gateway.python_parameters.propagate_java_exceptions = True
        for name in ("py4j.clientserver", "py4j.java_gateway"):
            logging.getLogger(name).addFilter(_java_throw_filter)

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
            instance = cls._instances.get(key)
            if instance is None or instance.context is not session.sparkContext:
                cls._instances.clear()
                instance = cls._instances[key] = cls(session)
            return instance

    @property
    def spark_version(self) -> str:
        return str(self.context.version)

    def class_(self, name: str) -> Any:
        """A Java class by its full name, to call its constructor and static methods."""
        java_class = self._classes.get(name)
        if java_class is None:
            java_class = self._classes[name] = _CachedClass(name, self.gateway._gateway_client)
        return java_class

    def has_class(self, name: str) -> bool:
        """Whether this Spark has a class of this full name."""
        try:
            self.class_("java.lang.Class").forName(name)
        except Py4JJavaError:
            return False
        return True

    def scala_object(self, name: str) -> JavaObject:
        """The instance of a Scala object."""
        return self.cached(("Scala object", name), lambda: getattr(self.class_(f"{name}$"), "MODULE$"))

    def array(self, class_name: str, items: Sequence[Any]) -> JavaObject:
        """An array of a class. Items must be objects of the JVM, or values that py4j converts."""
        if not items:  # empty arrays of a class are interchangeable
            return self.cached(("empty array", class_name), lambda: self.gateway.new_array(self.class_(class_name), 0))
        array = self.gateway.new_array(self.class_(class_name), len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """The cached value of `key`; `make` creates it if there is none. An error of `make` is not cached.

        The cache lives as long as this object and has no limit, so keys must be few. Threads that request a new key
        at the same time may each call `make`; the last value stays. `once_per_jvm` caches the results of a function.
        """
        if key not in self._cache:
            self._cache[key] = make()
        value: T = self._cache[key]
        return value

    def unknown_layout(self, part: str, error: Exception) -> UnsupportedOperation:
        """The error to raise where `part` of this Spark differs from the supported releases, as `error` shows."""
        reason = error.java_exception.toString() if isinstance(error, Py4JJavaError) else error
        return UnsupportedOperation(
            f"this is Spark {self.spark_version}, whose {part} does not look as in {SUPPORTED_RELEASES}, which Forebay "
            f"knows: {str(reason).splitlines()[0]}"
        )

    @contextmanager
    def known_layout(self, part: str) -> Iterator[None]:
        """Raise `unknown_layout` of `part` for any error inside, other than our own errors."""
        try:
            yield
        except ForebayError:
            raise
        except Exception as e:
            raise self.unknown_layout(part, e) from e

    def collect_garbage(self) -> None:
        """Collect garbage in Python and in the JVM. Proxies of finished queries are released a moment later.

        Python comes first: cycles of Python objects, such as a data frame and its session, may refer to Java's plans.
        """
        gc.collect()
        self.class_("java.lang.System").gc()


def once_per_jvm(function: Callable[Concatenate[Jvm, P], T]) -> Callable[Concatenate[Jvm, P], T]:
    """`function`, with its results in the cache of the `Jvm` that is its first argument, by its other arguments.

    These must be hashable, and their combinations few (`Jvm.cached`).
    """

    @functools.wraps(function)
    def call(jvm: Jvm, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (function, args, tuple(sorted(kwargs.items())))
        return jvm.cached(key, lambda: function(jvm, *args, **kwargs))

    return call
