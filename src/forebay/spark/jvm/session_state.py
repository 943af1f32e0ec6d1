"""The state of Spark's sessions: catalogs, formats written in Python, and running streams.

Parts of Spark that are not public:

- the private map of catalogs in the session's catalog manager. Spark has no method that installs an object as a
  catalog, so the object is put into the map (`install_catalog`);
- the interpreter with which Spark looks for formats, and the formats that it has found (`format_interpreter`,
  `has_python_format`);
- the list of running streams that all sessions share (`stream_is_active`).
"""

from __future__ import annotations

from forebay.spark.jvm.gateway import JavaObject, Jvm


def active_session(jvm: Jvm) -> JavaObject:
    """The session that plans a query in the calling thread of the JVM."""
    return jvm.class_("org.apache.spark.sql.classic.SparkSession").active()


def install_catalog(jvm: Jvm, session: JavaObject, name: str, catalog: JavaObject) -> None:
    """Make `catalog` the catalog `name` of a Java session. It replaces an earlier one of that name."""
    with jvm.known_layout("catalog manager"):
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


def format_interpreter(jvm: Jvm) -> str:
    """The Python interpreter with which Spark looks for formats that are written in Python: a path, or a name."""
    with jvm.known_layout("interpreter of Python data sources"):
        return str(jvm.scala_object("org.apache.spark.api.python.PythonUtils").defaultPythonExec())


def has_python_format(jvm: Jvm, session: JavaObject, name: str) -> bool:
    """Whether a Java session has a format `name` that is written in Python.

    The first call of a session takes about a second: Spark then runs Python to look for formats.
    """
    with jvm.known_layout("list of Python data sources"):
        return bool(session.sessionState().dataSourceManager().dataSourceExists(name))


def stream_is_active(jvm: Jvm, session: JavaObject | None, query_id: str) -> bool:
    """Whether the streaming query with this id runs, in any session. A query has the same id after a restart.

    `session` is any session; None, as a weak reference gives it when the session is gone, stands for the default one.
    """
    with jvm.known_layout("list of active queries"):
        if session is None:
            default = jvm.class_("org.apache.spark.sql.classic.SparkSession").getDefaultSession()
            if default.isEmpty():
                return False
            session = default.get()
        running = session.sharedState().activeStreamingQueries()
        return bool(running.containsKey(jvm.class_("java.util.UUID").fromString(query_id)))
