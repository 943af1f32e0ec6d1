"""JVM settings of Spark in tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -XX:MetaspaceSize=192m"
"""The second compiler of a JVM never earns what it takes in so short a life: without it the README's Spark program
takes 25 CPU seconds, and not 37. With one compiler a JVM has 48 MB for compiled code, which Spark fills: then it drops
code and compiles it again. Where it expects few classes, it collects all garbage each time that there are more."""


def with_another_python3(folder: Path) -> dict[str, str]:
    """Environment of a program that has a Spark to itself, where the `python3` of the PATH is another Python.

    Spark's workers must not take any `python3` that is first in the PATH; this one only fails.
    """
    foreign = folder / "bin" / "python3"
    foreign.parent.mkdir()
    foreign.write_text("#!/bin/sh\necho 'the wrong Python' >&2\nexit 1\n")
    foreign.chmod(0o755)
    own = os.path.dirname(sys.executable)
    path = os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if part != own)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    return environment | {"PATH": f"{foreign.parent}{os.pathsep}{path}", "SPARK_LOCAL_IP": "127.0.0.1", **QUICK_JVM}


QUICK_JVM = {"JAVA_TOOL_OPTIONS": QUICK}
"""Environment of a program that has a Spark to itself."""
