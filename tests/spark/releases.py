"""The PySpark release that the tests run on, and its limitations."""

from __future__ import annotations

import pyspark
import pytest

from forebay.spark.jvm.releases import release

SPARK = release(pyspark.__version__)


def needs(major: int, minor: int, what: str) -> pytest.MarkDecorator:
    """Skips a test of `what`, which Spark offers from this release on."""
    return pytest.mark.skipif((major, minor) > SPARK, reason=f"Spark {pyspark.__version__} has no {what}")
