"""Apache Spark with Apache Iceberg on our tables: Spark 4.1, the newest for which Iceberg has a runtime.

Spark is in a separate directory in the cache of the exams, beside the one that Forebay is tested with. Run as a
program, this module is the exam: it reads a table and prints its rows as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SPARK = "pyspark==4.1.1"
CATALOG = "fluss-iceberg-catalog"
_ANSWER_SECONDS = 200


def rows_by_spark(warehouse: Path, query: str, catalog: Mapping[str, str] | None = None) -> list[list[object]]:
    """The rows of a query; `{catalog}` in it is the catalog: that of the warehouse's SQLite file, or one with these
    properties. Raises `ExamUnavailable` where there is no Spark.
    """
    from tests.lake.java_iceberg import digest_of, entry, iceberg_jars, run

    def install(scratch: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", scratch, SPARK]
        run(pip, f"install {SPARK} from PyPI")

    packages = entry("spark", digest_of(SPARK), install)
    properties = catalog or {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{warehouse}/catalog.db",
        "warehouse": warehouse.as_uri(),
    }
    jars = os.pathsep.join(map(str, iceberg_jars()))
    command = [sys.executable, __file__, json.dumps(dict(properties)), jars, query]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
    environment |= {"PYTHONPATH": str(packages), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, env=environment, cwd=warehouse
    )
    if done.returncode != 0:
        raise RuntimeError(f"Spark refused {query}:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    found: list[list[object]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(catalog: str, jars: str, query: str) -> None:
    from pyspark.sql import SparkSession

    name = f"spark.sql.catalog.{CATALOG}"
    settings = {
        "spark.jars": jars.replace(os.pathsep, ","),
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        name: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{name}.{key}": value for key, value in json.loads(catalog).items()},
    }
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    try:
        rows = spark.sql(query.replace("{catalog}", f"`{CATALOG}`")).collect()
    finally:
        spark.stop()
    print("\n" + json.dumps([list(row) for row in rows]))


if __name__ == "__main__":
    main(*sys.argv[1:])
