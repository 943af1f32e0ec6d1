"""Programs that only attach, where the `python3` of the PATH is another Python: the README's Spark program, and the
formats "forebay" and "forebay-paimon"."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import forebay
from forebay.spark.sessions import _runs_as_this
from tests.jvm import with_another_python3
from tests.patience import PATIENCE
from tests.spark.releases import SPARK

pytestmark = pytest.mark.spark

README = Path(__file__).parents[2] / "README.md"

FORMATS = """
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


class Programs(NamedTuple):
    """What the README's Spark program and `FORMATS` print, and the clicks that are in the README's table then."""

    readme: str
    formats: str
    clicks: int


def block_of_readme(part: str) -> str:
    """The README's program that has `part` in it."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if part in block)
    return str(block)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Both programs, one after the other in one process: a JVM starts slowly.

    With `make nightly`. In every run the quickstart's program has such a Python (tests/cli), and the shared session has
    the formats and the README's program.
    The README's goes first. It gives Spark no settings, and a JVM keeps those of its first session.
    """
    folder = tmp_path_factory.mktemp("programs")
    environment = with_another_python3(folder)

    def run(program: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    run(block_of_readme('forebay.embedded("data/")'))
    with forebay.embedded(folder / "data") as live:
        readme = block_of_readme("SparkSession").replace("127.0.0.1:9123", live.bootstrap_servers)
        program = f"{readme}\nspark.stop()\nprint('====', flush=True)\n{FORMATS}"
        printed = run(program, live.bootstrap_servers, str(folder / "lake")).split("====\n")
        return Programs(*printed, clicks=live.table("fluss.clicks").scan().to_arrow().num_rows)


@pytest.mark.slow
def test_the_readme_s_spark_program_runs_where_no_virtual_environment_is_active(programs: Programs) -> None:
    """Spark's workers must not take any `python3` that is first in the PATH."""
    assert re.search(r"\| cup\|\s+7\.0\|", programs.readme)
    assert programs.clicks == 2


@pytest.mark.slow
def test_a_program_that_only_attaches_has_the_formats_whatever_python3_is_on_the_path(programs: Programs) -> None:
    batches = ["forebay 3", "forebay-paimon 3"]
    streams = ["forebay 3", "forebay 3", "forebay-paimon 3", "forebay-paimon 3", "6"]
    assert programs.formats.splitlines() == (streams if SPARK >= (4, 2) else batches)


def test_the_interpreter_of_another_environment_is_distinguished_from_ours(tmp_path: Path) -> None:
    other = tmp_path / "python3"
    other.symlink_to(os.path.realpath(sys.executable))
    assert _runs_as_this(sys.executable)
    assert not _runs_as_this(str(other))
    assert not _runs_as_this("no-python-of-this-name")
