"""Code for PySpark's newest release also loads in older ones, and reports what they lack."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.patience import PATIENCE

OLDER = """
import importlib, pkgutil, sys
import pyspark.sql.datasource

sys.modules["pyspark.sql.streaming.datasource"] = None  # came with 4.2
vars(pyspark.sql.datasource).pop("DataSourceStreamArrowWriter", None)  # came with 4.1

NEEDS_NEWER = {
    "forebay.spark.streaming.reader",
    "forebay.spark.writing.lake_stream_sink",
    "forebay.spark.writing.live_stream_sink",
}
import forebay.spark
failed = []
for module in pkgutil.walk_packages(forebay.spark.__path__, "forebay.spark."):
    try:
        importlib.import_module(module.name)
    except ImportError:
        failed.append(module.name)
print(*sorted(set(failed) - NEEDS_NEWER))

from forebay.spark.lake_datasource import PaimonDataSource
from pyspark.sql.types import StructType
try:
    PaimonDataSource({"path": "/nowhere"}).streamWriter(StructType([]), False)
except Exception as e:
    print(e)
"""


@pytest.mark.spark
def test_modules_load_without_what_newer_releases_of_pyspark_brought() -> None:
    done = subprocess.run([sys.executable, "-c", OLDER], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    failed, said = done.stdout.splitlines()
    assert failed == ""
    assert "needs Spark 4.1 or newer" in said
