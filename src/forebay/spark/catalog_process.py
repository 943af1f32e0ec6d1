"""The Python process of catalogs that are configured and not attached. Spark's JVM starts it for the first of them.

    python -m forebay.spark.catalog_process

The JVM passes the port of its gateway and a secret in the environment, as it does to PySpark programs. The process ends
when the JVM closes its standard input, at the latest when it ends.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext


def main() -> None:
    """Offer catalogs to the JVM until it ends."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        raise SystemExit("Spark's JVM starts this process, for catalogs that are configured and not attached")
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    from forebay.spark.derived_sessions import offer
    from forebay.spark.jvm.gateway import Jvm
    from forebay.spark.sessions import configured

    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    java = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
        gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    )
    context = SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jvm=gateway.jvm, _jconf=java.getConf()))
    # Spark passes this setting to Python programs; this process has to read it.
    context.pythonExec = context.getConf().get("spark.pyspark.python", sys.executable)
    _lose_connections_quietly(context)
    session = gateway.jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    offer(Jvm.of(SparkSession(context, session)), configured)
    sys.stdin.read()
    # Threads of py4j wait for a JVM that is ending; this process has no state to save.
    os._exit(0)


def _lose_connections_quietly(context: SparkContext) -> None:
    """Print no traceback for the connections of accumulators, which the JVM does not close before it ends."""
    server: Any = context._accumulatorServer
    report = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError | EOFError | struct.error):
            report(request, address)

    server.handle_error = handle_error


if __name__ == "__main__":
    main()
