"""Makes the formats "forebay" and "forebay-paimon" known to a session that cannot find them.

Spark finds formats by running Python once, to import the modules `pyspark_*` (pyspark_forebay). It runs the interpreter
that the JVM's environment names (`PYSPARK_DRIVER_PYTHON`, `PYSPARK_PYTHON`), else `python3` of the PATH. In a program
that runs as `.venv/bin/python app.py`, with the environment not activated, that is another Python, which has no
Forebay. The JVM's environment cannot be changed any more, so the formats are registered by their classes: such a format
runs in the interpreter of the session's workers.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from forebay.spark.datasource import ForebayDataSource
from forebay.spark.jvm.gateway import Jvm
from forebay.spark.lake_datasource import PaimonDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_formats(spark: SparkSession, jvm: Jvm) -> None:
    """Have `spark` know the formats, unless it finds them without help."""
    if _runs_as_this(jvm.python_of_formats()):
        return  # Spark finds them when it looks; to ask it now would cost the second that this takes
    for source in (ForebayDataSource, PaimonDataSource):
        if not jvm.knows_format(spark._jsparkSession, source.name()):
            spark.dataSource.register(source)


def _runs_as_this(executable: str) -> bool:
    """Whether `executable`, a name or a path, starts the environment that this process runs in.

    In a virtual environment the interpreter is a link to one that others share, so its folder tells.
    """
    found = shutil.which(executable)
    if found is None:
        return False
    same_folder = os.path.dirname(os.path.abspath(found)) == os.path.dirname(os.path.abspath(sys.executable))
    return same_folder and os.path.realpath(found) == os.path.realpath(sys.executable)
