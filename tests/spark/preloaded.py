"""The daemon of Python workers, with the modules that workers import loaded before it forks them.

Spark starts a worker for each task that finds none idle, and ends one that was idle for a minute. Each would import
PyArrow, pandas and Forebay for itself, which takes a CPU second. All else is the daemon that users have.
"""

from __future__ import annotations

import importlib

from forebay.spark import daemon

if __name__ == "__main__":
    for name in ("pyspark.worker", "pyarrow.parquet", "pandas", "forebay.spark.datasource", "forebay.paimon.table"):
        importlib.import_module(name)
    daemon.main()
