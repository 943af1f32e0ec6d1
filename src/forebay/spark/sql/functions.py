"""The functions of a catalog, `<catalog>.sys.<name>(...)`. Bucket functions are in forebay.spark.bucket_functions.

`max_pt('db.t')` is the last value of a table's first partition key, as text: `WHERE day = forebay.sys.max_pt('db.t')`
reads the last day. Spark evaluates it while it plans the query, so it prunes partitions like a literal. It is NULL
without partitions. Java Paimon's catalog has a function of the same name.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.types import StringType

from forebay.base.errors import InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata.partitions import partition_text
from forebay.spark.bucket_functions import KINDS, bucket_function
from forebay.spark.context import SessionContext
from forebay.spark.jvm.executor_classes import executor_class
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject, JavaThrow
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.spark_values import java_identifier, python_schema
from forebay.spark.sql.partitions import first_key_values

MAX_PARTITION = "max_pt"
NAMES = (*sorted(KINDS), MAX_PARTITION)

_CLASS = "ForebayMaxPartition"

LoadTable = Callable[[JavaObject], JavaProxy]
"""`loadTable` of a catalog."""


def function(context: SessionContext, name: str, load: LoadTable) -> JavaProxy | None:
    """The function of this name, which loads tables by `load`; None if there is none."""
    if name.lower() == MAX_PARTITION:
        return UnboundMaxPartition(context, load)
    return bucket_function(context, name)


class UnboundMaxPartition(JavaProxy):
    """max_pt."""

    interfaces = (CONNECTOR + "catalog.functions.UnboundFunction",)

    def __init__(self, context: SessionContext, load: LoadTable) -> None:
        super().__init__(context.jvm)
        self._context, self._load = context, load

    def name(self) -> str:
        return MAX_PARTITION

    def description(self) -> str:
        return "max_pt(table): the last value of the table's first partition key; NULL without partitions"

    def bind(self, struct: JavaObject) -> JavaObject:
        arguments = python_schema(struct).fields
        if len(arguments) != 1 or not isinstance(arguments[0].dataType, StringType):
            raise UnsupportedOperation(f"{MAX_PARTITION} takes the name of a table, a STRING")
        return executor_class(self.jvm, _CLASS)(MaxPartition(self._context, self._load))


class MaxPartition(JavaProxy):
    """The driver's part of `ForebayMaxPartition`."""

    interfaces = ("java.util.function.Function",)

    def __init__(self, context: SessionContext, load: LoadTable) -> None:
        super().__init__(context.jvm)
        self._context, self._load = context, load

    def apply(self, name: str) -> str | None:
        """The last value of the first partition key of table `name`, as text; None without partitions."""
        parsed = self._context.session.sessionState().sqlParser().parseMultipartIdentifier(name)
        parts = [str(parsed.apply(index)) for index in range(int(parsed.size()))]
        if len(parts) == 3 and parts[0] == self._context.catalog:
            del parts[0]
        if len(parts) != 2:
            raise InvalidRequest(
                f"{MAX_PARTITION}: '{name}' is no table of catalog {self._context.catalog}; write database.table"
            )
        try:
            table = self._load(java_identifier(self.jvm, parts[:1], parts[1]))
        except JavaThrow as e:  # java.util.function.Function declares no checked exception
            raise NotFound(f"{MAX_PARTITION}: there is no table '{name}' in catalog {self._context.catalog}") from e
        partitions = first_key_values(table)
        if partitions is None:
            raise InvalidRequest(f"{MAX_PARTITION}: table '{name}' has no partitions")
        key, values = partitions
        return partition_text(key.data_type, max(values)) if values else None
