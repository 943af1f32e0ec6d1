"""Python values as values of Java and Scala."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from forebay.spark.jvm.gateway import JavaObject, Jvm, once_per_jvm


def proxy_array(jvm: Jvm, class_name: str, items: Sequence[Any]) -> JavaObject:
    """An array of a class whose items may be Python proxies, which `Jvm.array` cannot assign."""
    array = jvm.gateway.new_array(jvm.class_(class_name), len(items))
    for index, item in enumerate(items):
        jvm.class_("java.lang.reflect.Array").set(array, index, item)
    return array


def int_array(jvm: Jvm, items: Sequence[int]) -> JavaObject:
    """An int[]."""
    array = jvm.gateway.new_array(jvm.gateway.jvm.int, len(items))
    for index, item in enumerate(items):
        array[index] = item
    return array


def string_array(jvm: Jvm, items: Sequence[str]) -> JavaObject:
    """A String[]."""
    return jvm.array("java.lang.String", items)


def nested_string_array(jvm: Jvm, rows: Sequence[Sequence[str]]) -> JavaObject:
    """A String[][]."""
    array = jvm.gateway.new_array(jvm.class_("java.lang.String"), len(rows), max(map(len, rows), default=1))
    for index, row in enumerate(rows):
        array[index] = string_array(jvm, row)
    return array


def java_list(jvm: Jvm, items: Iterable[Any]) -> JavaObject:
    """A java.util.List."""
    result = jvm.class_("java.util.ArrayList")()
    for item in items:
        result.add(item)
    return result


def java_map(jvm: Jvm, items: Mapping[str, str]) -> JavaObject:
    """A java.util.Map with the order of `items`."""
    result = jvm.class_("java.util.LinkedHashMap")()
    for key, value in items.items():
        result.put(key, value)
    return result


@once_per_jvm
def string_set(jvm: Jvm, *items: str) -> JavaObject:
    """A java.util.Set of strings, created once."""
    result = jvm.class_("java.util.HashSet")()
    for item in items:
        result.add(item)
    return result


@once_per_jvm
def enum_set(jvm: Jvm, class_name: str, names: tuple[str, ...]) -> JavaObject:
    """A java.util.Set of the constants `names` of an enum, created once. Constants that this Spark lacks are absent."""
    result = jvm.class_("java.util.HashSet")()
    enum = jvm.class_(class_name)
    existing = {str(constant.name()) for constant in enum.values()}
    for name in names:
        if name in existing:
            result.add(enum.valueOf(name))
    return result


def optional_long(jvm: Jvm, value: int | None) -> JavaObject:
    """A java.util.OptionalLong; empty for None."""
    optional = jvm.class_("java.util.OptionalLong")
    return optional.empty() if value is None else optional.of(value)


def weak_reference(jvm: Jvm, value: JavaObject) -> JavaObject:
    """A java.lang.ref.WeakReference to an object of the JVM."""
    return jvm.class_("java.lang.ref.WeakReference")(value)


def scala_seq(jvm: Jvm, items: Iterable[Any]) -> JavaObject:
    """An immutable Seq of Scala."""
    return jvm.class_("scala.jdk.javaapi.CollectionConverters").asScala(java_list(jvm, items)).toSeq()


def scala_none(jvm: Jvm) -> JavaObject:
    """Scala's None."""
    return jvm.scala_object("scala.None")
