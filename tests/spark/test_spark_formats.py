"""The formats "forebay" and "forebay-paimon" in a program whose Python is not the `python3` of the PATH."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.server.embedded import EmbeddedServer
from forebay.spark.sessions import _runs_as_this
from tests.jvm import QUICK_JVM
from tests.spark.releases import SPARK

pytestmark = pytest.mark.spark

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import forebay.spark as fb

servers, folder = sys.argv[1:]
settings = {"spark.ui.enabled": "false", "spark.driver.memory": "512m", "spark.log.level": "OFF"}
builder = SparkSession.builder.master("local[1]")
for key, value in settings.items():
    builder = builder.config(key, value)
spark = fb.attach(builder.getOrCreate(), bootstrap_servers=servers, warehouse=folder)
fb.attach(spark, bootstrap_servers=servers, warehouse=folder)
spark.sql("CREATE DATABASE forebay.formats")
spark.sql("CREATE TABLE forebay.formats.live (id BIGINT)")
spark.sql("CREATE TABLE forebay.formats.lake (id BIGINT) USING paimon")
live = {"bootstrap.servers": servers, "table": "formats.live"}
lake = {"path": folder + "/formats.db/lake"}


def stream(frame, name, sink, **options):
    writer = frame.writeStream.option("checkpointLocation", f"{folder}/checkpoint-{name}").trigger(availableNow=True)
    writer.queryName(name).format(sink).options(**options).start().awaitTermination()


for name, options in (("forebay", live), ("forebay-paimon", lake)):
    spark.range(3).write.format(name).options(**options).mode("append").save()
    print(name, spark.read.format(name).options(**options).load().count())
    if spark.version >= "4.2":
        options = options if name == "forebay-paimon" else {**options, "scan.startup.mode": "full"}
        stream(spark.readStream.format(name).options(**options).load(), "from_" + name[-3:], "memory")
        print(name, spark.table("from_" + name[-3:]).count())
if spark.version >= "4.2":
    stream(spark.readStream.table("forebay.formats.live"), "to_lake", "forebay-paimon", **lake)
    print(spark.table("forebay.formats.lake").count())
"""


def test_a_program_that_only_attaches_has_the_formats_whatever_python3_is_on_the_path(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    foreign = tmp_path / "bin" / "python3"
    foreign.write_text("#!/bin/sh\nexit 1\n")
    foreign.chmod(0o755)
    own = os.path.dirname(sys.executable)
    path = os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if part != own)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    environment |= {"PATH": f"{foreign.parent}{os.pathsep}{path}", "SPARK_LOCAL_IP": "127.0.0.1", **QUICK_JVM}
    program = tmp_path / "app.py"
    program.write_text(PROGRAM)
    run = subprocess.run(
        [sys.executable, str(program), server.bootstrap_servers, str(tmp_path / "lake")],
        env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    batches = ["forebay 3", "forebay-paimon 3"]
    with_streams = ["forebay 3", "forebay 3", "forebay-paimon 3", "forebay-paimon 3", "6"]
    assert run.stdout.splitlines() == (with_streams if SPARK >= (4, 2) else batches)


def test_the_interpreter_of_another_environment_is_distinguished_from_ours(tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.symlink_to(os.path.realpath(sys.executable))
    assert _runs_as_this(sys.executable)
    assert not _runs_as_this(str(other))
    assert not _runs_as_this("no-python-of-this-name")
