"""Compiles Java sources in the running JVM, with Janino, which is part of every Spark.

Nouns: a *source* is the text of one or more `.java` files below this package. A *constructor* creates objects
of one class.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path

from forebay.spark.jvm.gateway import JavaObject, Jvm
from forebay.spark.jvm.values import proxy_array

Constructor = Callable[..., JavaObject]
"""Makes an object of a Java class. Its arguments may be proxies."""


def joined_source(folder: str, *names: str) -> str:
    """The sources `<folder>/<name>.java` as one source, with all imports first."""
    texts = [(resources.files("forebay.spark.jvm") / folder / f"{name}.java").read_text() for name in names]
    lines = [line for text in texts for line in text.splitlines()]
    imports = dict.fromkeys(line for line in lines if line.startswith("import "))
    return "\n".join([*imports, *(line for line in lines if line not in imports)])


def bytecodes(jvm: Jvm, source: str) -> dict[str, bytes]:
    """The compiled classes of a source, by name."""
    compiler = jvm.class_("org.codehaus.janino.SimpleCompiler")()
    compiler.setParentClassLoader(spark_class_loader(jvm))
    compiler.cook(source)
    return {str(name): bytes(code) for name, code in compiler.getBytecodes().items()}


def spark_class_loader(jvm: Jvm) -> JavaObject:
    """The loader of Spark's own classes."""
    return jvm.class_("java.lang.Class").forName("org.apache.spark.sql.sources.BaseRelation").getClassLoader()


def class_of_jar(jvm: Jvm, jar: Path, name: str) -> JavaObject:
    """The class `name` of a jar, loaded by a new class loader below Spark's."""
    urls = jvm.array("java.net.URL", [jar_url(jvm, jar)])
    return jvm.class_("java.net.URLClassLoader")(urls, spark_class_loader(jvm)).loadClass(name)


def jar_url(jvm: Jvm, jar: Path) -> JavaObject:
    """The java.net.URL of a jar."""
    return jvm.class_("java.net.URI").create(jar.as_uri()).toURL()


def reflective_constructor(jvm: Jvm, constructor: JavaObject) -> Constructor:
    """A function that calls a java.lang.reflect.Constructor."""
    return lambda *args: constructor.newInstance(proxy_array(jvm, "java.lang.Object", args))
