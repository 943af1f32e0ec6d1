"""Python objects that the JVM calls: the base class of everything that implements an interface of Spark.

Nouns: a *proxy* is a Python object with a class `Java` that lists interfaces. When it is passed to the JVM, py4j wraps
it in a Java object whose methods call back. A *default method* is a method that its interface implements.

Rules:
- Every method has an answer. Java calls back for default methods, too, and each release of Spark adds some. For a
  method that the Python class lacks, the interface's default is called (`__getattr__` below).
- Errors are translated at the boundary. A `ForebayError` becomes an exception of the JVM with the same message; an
  exception of the JVM is thrown again unchanged. Only a bug arrives with a Python traceback.
- py4j controls the lifetime. Its pool holds a proxy from the moment it is passed to the JVM until the JVM's garbage
  collector takes the Java object. So a proxy must not hold a Java object that refers back to the proxy: neither
  collector sees such a cycle whole. Catalogs therefore hold their session weakly.

The JVM calls methods from any of its threads. Proxies of a query are immutable, or are used by one thread.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from py4j.protocol import Py4JJavaError

from forebay.base.errors import ForebayError, UnsupportedOperation
from forebay.spark.jvm.exceptions import java_exception
from forebay.spark.jvm.gateway import SUPPORTED_RELEASES, JavaObject, JavaThrow, Jvm, once_per_jvm

F = TypeVar("F", bound=Callable[..., Any])

_numbers = itertools.count(1)


def _translated(method: F) -> F:
    """`method` of a proxy, with its errors translated into exceptions of the JVM."""

    @functools.wraps(method)
    def call(self: JavaProxy, *args: Any) -> Any:
        try:
            return method(self, *args)
        except JavaThrow:
            raise
        except ForebayError as e:
            raise JavaThrow(java_exception(self.jvm, e)) from e
        except Py4JJavaError as e:
            raise JavaThrow(e.java_exception) from e
        except Exception as e:
            origin = getattr(e, "_origin", None)  # PySpark's own errors keep the JVM's exception here
            if origin is None:
                raise
            raise JavaThrow(origin) from e

    return call  # type: ignore[return-value]


@_translated
def _call_default(proxy: JavaProxy, name: str, *args: Any) -> Any:
    """The result of the default method `name`, for a proxy whose class lacks the method."""
    jvm = proxy.jvm
    method = _default_method(jvm, tuple(proxy.Java.implements), name, len(args))
    if method is None:
        raise UnsupportedOperation(
            f"Spark {jvm.spark_version} calls {name}() with {len(args)} arguments on a {type(proxy).__name__}, "
            f"which Forebay does not know (it knows {SUPPORTED_RELEASES})"
        )
    invoke = jvm.class_("java.lang.reflect.InvocationHandler").invokeDefault
    return invoke(proxy, method, jvm.array("java.lang.Object", args))


@once_per_jvm
def _default_method(jvm: Jvm, interfaces: tuple[str, ...], name: str, arguments: int) -> JavaObject | None:
    """The java.lang.reflect.Method of a default method with a number of arguments; None if there is none."""
    by_name = jvm.class_("java.lang.Class").forName
    for interface in interfaces:
        for method in by_name(interface).getMethods():
            if method.getName() == name and method.isDefault() and method.getParameterCount() == arguments:
                return method
    return None


class JavaProxy:
    """Base class of proxies. Subclasses list their interfaces in `interfaces`; the JVM calls their public methods."""

    interfaces: ClassVar[tuple[str, ...]] = ()

    class Java:
        """The names of the interfaces, where py4j looks for them."""

        implements: ClassVar[list[str]] = []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        names = list(dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base).get("interfaces", ())))
        cls.Java = type("Java", (), {"implements": names})  # type: ignore[misc,assignment]
        for name, attribute in list(vars(cls).items()):
            if not name.startswith("_") and callable(attribute) and not isinstance(attribute, type):
                setattr(cls, name, _translated(attribute))

    def __init__(self, jvm: Jvm) -> None:
        self.jvm = jvm
        self._number = next(_numbers)

    def __getattr__(self, name: str) -> Any:
        """The default implementation of a Java method that the Python class does not have."""
        if name.startswith("_") or "jvm" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return functools.partial(_call_default, self, name)

    def _identity(self) -> str:
        """The text by which Spark compares proxies. By default each proxy equals only itself."""
        return f"{type(self).__name__}#{self._number}"

    def toString(self) -> str:
        return self._identity()

    def hashCode(self) -> int:
        return hash(self._identity()) & 0x7FFFFFFF

    def equals(self, other: Any) -> bool:
        # The JVM passes its wrapper of a proxy, and not the Python object, so the texts are compared.
        return other is self or (hasattr(other, "toString") and other.toString() == self._identity())
