"""Python objects that the JVM calls: the base of everything that implements an interface of Spark.

Nouns: a *proxy* is a Python object with a class `Java` that lists interfaces; given to the JVM, py4j wraps it in a Java
object whose methods call back. A *default method* is one that its interface implements itself.

Rules:
- Every method is answered. Java's proxies call back for default methods too, and every Spark release adds some; a
  method that the Python class does not have is answered by the interface's own default (`__getattr__` below).
- Errors are translated where they cross: a `ForebayError` becomes an exception of the JVM with the same message, an
  exception of the JVM goes back as it is. Only a bug of ours arrives with a Python traceback.
- Nothing is kept alive by hand. py4j's pool holds a proxy from the moment it is given to the JVM until the garbage
  collector there takes the Java object: exactly as long as it can be called. So a proxy must not hold references to
  Java objects that refer back to it, a cycle that crosses two collectors; catalogs hold their session weakly.

Answers are called from any thread of the JVM; proxies of one query are immutable or used by one thread.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from py4j.protocol import Py4JJavaError

from forebay.base.errors import ForebayError
from forebay.spark.jvm.gateway import JavaThrow, Jvm

F = TypeVar("F", bound=Callable[..., Any])

_numbers = itertools.count(1)


def _translated(method: F) -> F:
    """`method` of a proxy, with its errors made into ones of the JVM."""

    @functools.wraps(method)
    def call(self: JavaProxy, *args: Any) -> Any:
        try:
            return method(self, *args)
        except JavaThrow:
            raise
        except ForebayError as e:
            raise JavaThrow(self.jvm.exception(e)) from e
        except Py4JJavaError as e:
            raise JavaThrow(e.java_exception) from e
        except Exception as e:
            origin = getattr(e, "_origin", None)  # how PySpark wraps exceptions of the JVM
            if origin is None:
                raise
            raise JavaThrow(origin) from e

    return call  # type: ignore[return-value]


@_translated
def _call_default(proxy: JavaProxy, name: str, *args: Any) -> Any:
    return proxy.jvm.call_default(proxy, name, *args)


class JavaProxy:
    """Base of all proxies. Subclasses list their interfaces in `interfaces`; public methods are the JVM's to call."""

    interfaces: ClassVar[tuple[str, ...]] = ()

    class Java:
        """Where py4j looks for the interfaces."""

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
        """What makes two proxies the same to Spark; by default every proxy is its own."""
        return f"{type(self).__name__}#{self._number}"

    def toString(self) -> str:
        return self._identity()

    def hashCode(self) -> int:
        return hash(self._identity()) & 0x7FFFFFFF

    def equals(self, other: Any) -> bool:
        # The JVM's wrapper of a proxy does not come back as the Python object, so compare what it says of itself.
        return other is self or (hasattr(other, "toString") and other.toString() == self._identity())
