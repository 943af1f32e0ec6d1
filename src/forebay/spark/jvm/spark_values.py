"""Values of Spark: schemas, identifiers, options, references to columns, and rows.

`internal_rows` uses a part of Spark that is not public: `PythonSQLUtils.toDataFrame`, which converts Arrow data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.types import StructType

from forebay.spark.jvm.gateway import CATALYST, CONNECTOR, JavaObject, Jvm, once_per_jvm
from forebay.spark.jvm.values import java_list, string_array

_STRUCT_TYPES_MAX = 256


def struct_type(jvm: Jvm, schema: StructType) -> JavaObject:
    """The JVM's StructType of a Python schema. It is immutable, so the last ones are cached."""
    return _struct_types(jvm)(schema.json())


@once_per_jvm
def _struct_types(jvm: Jvm) -> Callable[[str], JavaObject]:
    from_json = jvm.class_("org.apache.spark.sql.types.DataType").fromJson
    return lru_cache(_STRUCT_TYPES_MAX)(lambda text: from_json(text))


def python_schema(struct: JavaObject) -> StructType:
    """The Python schema of a StructType of the JVM."""
    return StructType.fromJson(json.loads(struct.json()))


def java_identifier(jvm: Jvm, namespace: Sequence[str], name: str) -> JavaObject:
    """An Identifier of a table, view, function or procedure."""
    return jvm.class_(CONNECTOR + "catalog.Identifier").of(string_array(jvm, namespace), name)


def python_options(options: JavaObject) -> dict[str, str]:
    """The entries of a CaseInsensitiveStringMap; keys have the case in which they were written."""
    if options.isEmpty():
        return {}
    return {str(key): str(value) for key, value in options.asCaseSensitiveMap().items()}


def quoted(name: str) -> str:
    """The name of a column in the quotes of SQL."""
    return "`" + name.replace("`", "``") + "`"


def column_reference(jvm: Jvm, name: str) -> JavaObject:
    """A NamedReference to a column; `name` may have any characters."""
    return jvm.class_(CONNECTOR + "expressions.Expressions").column(quoted(name))


def internal_rows(jvm: Jvm, session: JavaObject, schema: StructType, table: pa.Table) -> JavaObject:
    """An InternalRow[] with the rows of `table`, which has Spark's Arrow schema for `schema`."""
    internal_row = CATALYST + "InternalRow"
    if table.num_rows == 0:
        return jvm.gateway.new_array(jvm.class_(internal_row), 0)
    with jvm.known_layout("conversion of Arrow data to rows"):
        batches = java_list(jvm, [batch.serialize().to_pybytes() for batch in table.combine_chunks().to_batches()])
        iterator = jvm.class_("scala.jdk.javaapi.CollectionConverters").asScala(batches.iterator())
        utilities = jvm.class_("org.apache.spark.sql.api.python.PythonSQLUtils")
        data = utilities.toDataFrame(iterator, schema.json(), session).queryExecution().logical().data()
        row_class = jvm.class_("java.lang.Class").forName(internal_row)
        return data.toArray(jvm.scala_object("scala.reflect.ClassTag").apply(row_class))
