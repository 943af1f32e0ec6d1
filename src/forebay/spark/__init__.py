"""Apache Spark on Forebay and Fluss tables, without a jar: SQL through a catalog, DataFrames, bulk reads and writes.

    import forebay.spark as fb
    spark = fb.attach(SparkSession.builder.getOrCreate(), catalog="forebay", bootstrap_servers="127.0.0.1:9123")
    spark.sql("SELECT status, count(*) FROM forebay.sales.orders GROUP BY status").show()

Nouns: a *proxy* is a Python object that Spark's JVM calls through an interface of Spark (`forebay.spark.jvm.proxy`);
the *catalog* is the proxy behind the name that SQL statements begin with; a *split* is a part of one bucket, and an
*input partition* is the group of splits that one task reads.

Rule: the driver plans and the workers move data. Planning fixes what is read (buckets, offsets, columns, filters) and
puts it into the input partitions, so a task that runs twice reads the same. Rows travel as Arrow batches only.

Flow of a query: loadTable -> newScanBuilder (columns, filters, limit) -> build: list partitions, buckets and offsets,
group them into tasks -> Spark runs Python workers -> each opens the splits of its input partition one after the other
and yields batches with exactly Spark's Arrow schema.

This is the one package that needs PySpark: `pip install 'forebay[spark]'`. The guide is docs/spark.md.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if find_spec("pyspark") is None:
    raise ImportError("forebay.spark needs PySpark, which is not installed: pip install 'forebay[spark]'")

if TYPE_CHECKING:
    from forebay.spark.debezium import from_debezium
    from forebay.spark.lookups import shared_lookup
    from forebay.spark.sessions import attach, session

__all__ = ["attach", "from_debezium", "session", "shared_lookup"]

_HOMES = {"from_debezium": "debezium", "shared_lookup": "lookups"}


def __getattr__(name: str) -> Any:
    """Workers import this package for its readers only, so the driver's part is loaded when it is asked for."""
    if name in __all__:
        return getattr(import_module(f"forebay.spark.{_HOMES.get(name, 'sessions')}"), name)
    raise AttributeError(f"module 'forebay.spark' has no attribute {name!r}")
