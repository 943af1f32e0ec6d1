"""Bucket functions for Spark: in SQL (`SELECT forebay.sys.bucket(8, id)`), and where writes and scans are planned.

A `TableBucketing` is the function from a row to its bucket. Spark looks up functions of a catalog by name, so a bucket
function has two names: in SQL its kind, with the number of buckets as first argument, and in plans a name that contains
all parameters, such as `paimon_bucket[8](L)`. Bound to types, it is an object of the Java class `ForebayBucket`, which
runs on executors; `letter` returns its codes of types.

| function | bucket of |
|---|---|
| `bucket` | Paimon's tables, and live tables with a lake of Paimon |
| `mod_bucket`, `hive_bucket` | Paimon's tables with another `bucket-function.type` |
| `fluss_bucket` | live tables without a lake |
| `iceberg_bucket` | live tables with a lake of Iceberg |
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import DataType as SparkType
from pyspark.sql.types import IntegerType, StructField

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.metadata.types import DataType, TypeRoot
from forebay.spark.context import SessionContext
from forebay.spark.jvm.executor_classes import executor_class
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject, Jvm
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.spark_values import python_schema
from forebay.spark.jvm.values import string_array
from forebay.spark.schemas import from_spark_type

if TYPE_CHECKING:
    from forebay.metadata.table import TableInfo
    from forebay.paimon.format.schema import TableSchema

_LOGGER = logging.getLogger(__name__)

_CLASS = "ForebayBucket"

KINDS = {
    "bucket": "paimon",
    "mod_bucket": "mod",
    "hive_bucket": "hive",
    "fluss_bucket": "fluss",
    "iceberg_bucket": "iceberg",
}
"""The functions of SQL, and how `ForebayBucket` calls them. Those of Paimon's tables have Java Paimon's names."""

_COMMENTS = {
    "bucket": "bucket(n, columns...): the bucket of a row in a Paimon table with n buckets and this bucket key",
    "mod_bucket": "mod_bucket(n, column): the same, for bucket-function.type = mod",
    "hive_bucket": "hive_bucket(n, columns...): the same, for bucket-function.type = hive",
    "fluss_bucket": "fluss_bucket(n, columns...): the bucket of a row in a Fluss table without a lake",
    "iceberg_bucket": "iceberg_bucket(n, column): the bucket of a row in a Fluss table with a lake of Iceberg",
}

_LETTERS = {
    TypeRoot.BOOLEAN: "Z",
    TypeRoot.TINYINT: "B",
    TypeRoot.SMALLINT: "S",
    TypeRoot.INT: "I",
    TypeRoot.DATE: "I",
    TypeRoot.BIGINT: "L",
    TypeRoot.FLOAT: "F",
    TypeRoot.DOUBLE: "D",
    TypeRoot.STRING: "U",
    TypeRoot.CHAR: "U",
    TypeRoot.BYTES: "Y",
    TypeRoot.BINARY: "Y",
}
_FLOATS = (TypeRoot.FLOAT, TypeRoot.DOUBLE)
_TAKEN = {"mod": "IL", "hive": "ZBSILFDNUYt", "iceberg": "ILTtfdUYN"}
"""The type codes that a function accepts, for functions that do not accept all types."""

_PLANNED = re.compile(r"(\w+)_bucket\[([1-9]\d*)\]\(([^;)]*)(?:; ([^)]*))?\)(?: of (\d+) tasks)?")


def letter(t: DataType, *, is_canonical: bool = False) -> str | None:
    """The code of a type in `ForebayBucket`; None for unsupported types.

    `is_canonical`: floating-point numbers have one zero and one NaN, as in the keys of live tables.
    """
    if t.root is TypeRoot.DECIMAL:
        return f"N{t.precision},{t.scale}"
    if t.root in (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ):
        return f"T{t.precision}"
    if t.root is TypeRoot.TIME:
        return f"t{t.precision}"
    symbol = _LETTERS.get(t.root)
    return symbol.lower() if symbol is not None and is_canonical and t.root in _FLOATS else symbol


@dataclass(frozen=True)
class TableBucketing:
    """The bucket function of a table with `total` buckets: its kind, columns and types.

    `types` are the codes of the types of `columns`, the bucket key.
    """

    kind: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    total: int

    @property
    def name(self) -> str:
        """The name in plans: equal for equal functions of equal types."""
        return f"{self.kind}_bucket[{self.total}]({' '.join(self.types)})"

    def dealt(self, partition_types: Sequence[str], tasks: int) -> str:
        """The name of the function that distributes rows to tasks, so that each bucket of a partition is in one task.

        Its arguments are the bucket key and the columns of partitions.
        """
        of_partition = f"; {' '.join(partition_types)}" if partition_types else ""
        return f"{self.name[:-1]}{of_partition}) of {tasks} tasks"

    def keeps_equal_together(self) -> bool:
        """Whether all rows whose bucket keys are equal in Spark are in one bucket.

        In Spark -0.0 equals 0.0, and timestamps end at microseconds.
        """
        return not any(t[0] in "FDfd" or (t[0] == "T" and int(t[1:]) > 6) for t in self.types)


def lake_bucketing(schema: TableSchema) -> TableBucketing | None:
    """The bucket function of a Paimon table; None without fixed buckets, and for key types that Java cannot hash."""
    from forebay.paimon.options import CoreOptions

    options = CoreOptions(schema.options)
    if options.bucket < 1 or not schema.bucket_keys:
        return None
    kind = options.bucket_function_type
    types = [letter(f.type) for f in schema.fields_named(schema.bucket_keys)]
    return _bucketing("paimon" if kind == "default" else kind, schema.bucket_keys, types, options.bucket)


def live_bucketing(info: TableInfo) -> TableBucketing | None:
    """The bucket function of a live table; None for a log without a bucket key, and for types that Java cannot hash."""
    descriptor = info.descriptor
    kind = {None: "fluss", "lance": "fluss"}.get(descriptor.lake_format, descriptor.lake_format)
    if not descriptor.bucket_keys or kind not in ("fluss", "paimon", "iceberg"):
        return None
    columns = [info.schema.column(name) for name in descriptor.bucket_keys]
    types = [letter(column.data_type, is_canonical=True) for column in columns]
    return _bucketing(kind, descriptor.bucket_keys, types, info.bucket_count)


def _bucketing(kind: str, columns: Iterable[str], types: list[str | None], total: int) -> TableBucketing | None:
    letters = [t for t in types if t is not None]
    return None if len(letters) < len(types) else TableBucketing(kind, tuple(columns), tuple(letters), total)


def runs_on_executors(jvm: Jvm) -> bool:
    """Whether this Spark can run bucket functions. If not, a warning is logged."""
    try:
        executor_class(jvm, _CLASS)
    except UnsupportedOperation as e:
        _LOGGER.warning("bucket functions are not used: %s", e)
        return False
    return True


@dataclass(frozen=True)
class _BucketCall:
    """The parameters of `ForebayBucket`: the type codes of all columns, of which the first `keys` are the bucket key.

    `total` is the number of buckets; 0: it is an argument. `tasks` is the number of tasks for distribution; 0: none.
    """

    kind: str
    types: tuple[str, ...]
    keys: int
    total: int = 0
    tasks: int = 0


class UnboundBucket(JavaProxy):
    """A bucket function, not yet bound to the types of its arguments."""

    interfaces = (CONNECTOR + "catalog.functions.UnboundFunction",)

    def __init__(self, context: SessionContext, name: str, planned: _BucketCall | None = None) -> None:
        """`planned` are the parameters in a name of plans; None: `name` is one of `KINDS`."""
        super().__init__(context.jvm)
        self._name, self._planned = name, planned

    def name(self) -> str:
        return self._name

    def description(self) -> str:
        return _COMMENTS.get(self._name, self._name)

    def bind(self, struct: JavaObject) -> JavaObject:
        """The function for arguments of these types. Raises `UnsupportedOperation` for types that no bucket key has."""
        argument_types = [field.dataType() for field in struct.fields()]
        bound = self._planned or self._of_arguments(python_schema(struct).fields)
        if len(argument_types) != len(bound.types) + (bound.total == 0):
            raise UnsupportedOperation(f"{self._name} takes {len(bound.types)} columns, not {len(argument_types)}")
        canonical = self._name if self._planned else f"forebay.{self._name}({' '.join(bound.types)})"
        arguments = self.jvm.array("org.apache.spark.sql.types.DataType", argument_types)
        types, make = string_array(self.jvm, bound.types), executor_class(self.jvm, _CLASS)
        return make(self._name, canonical, arguments, bound.kind, types, bound.keys, bound.total, bound.tasks)

    def _of_arguments(self, arguments: Sequence[StructField]) -> _BucketCall:
        """The function that SQL calls with `arguments`, the number of buckets and columns."""
        kind = KINDS[self._name]
        if not arguments or not isinstance(arguments[0].dataType, IntegerType):
            raise UnsupportedOperation(f"{self._name}: the first argument is the number of buckets, an INT")
        count, is_single = len(arguments) - 1, kind in ("mod", "iceberg")
        if count < 1 or (is_single and count > 1):
            columns = "one column" if is_single else "columns"
            raise UnsupportedOperation(f"{self._name} takes the number of buckets and {columns}, not {count} of them")
        return _BucketCall(kind, tuple(self._letter(kind, argument.dataType) for argument in arguments[1:]), count)

    def _letter(self, kind: str, spark_type: SparkType) -> str:
        try:
            symbol = letter(from_spark_type(spark_type, "c"), is_canonical=kind in ("fluss", "iceberg"))
        except InvalidRequest:
            symbol = None
        if symbol is None or symbol[0] not in _TAKEN.get(kind, symbol):
            raise UnsupportedOperation(f"{self._name}: a bucket key cannot have type {spark_type.simpleString()}")
        return symbol


def bucket_function(context: SessionContext, name: str) -> UnboundBucket | None:
    """The function of this name, of SQL or of plans; None for other names."""
    if name.lower() in KINDS:
        return UnboundBucket(context, name.lower())
    planned = _PLANNED.fullmatch(name)
    if planned is None or planned[1] not in KINDS.values():
        return None
    key, of_partition = (tuple((text or "").split()) for text in (planned[3], planned[4]))
    bound = _BucketCall(planned[1], (*key, *of_partition), len(key), int(planned[2]), int(planned[5] or 0))
    return UnboundBucket(context, name, bound)
