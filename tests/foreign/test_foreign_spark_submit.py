"""A program as companies submit it: to a cluster that adds, removes and loses executors, with its code in a file."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from spark_cluster import SparkCluster

import forebay
from tests.patience import PATIENCE, until
from tests.process_groups import ProcessGroup

pytestmark = [
    pytest.mark.foreign,
    pytest.mark.slow,
    pytest.mark.spark,
]

ROUNDS, ROWS = 3, 5_000

RULES = """
def shout(name):
    return name.upper()
"""

PROGRAM = """
import sys
from pathlib import Path

from pyspark.sql import SparkSession, functions as F

rounds, rows, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
spark = SparkSession.builder.getOrCreate()


def shout(name):
    import rules  # from --py-files

    return rules.shout(name)


for number in range(rounds):
    (folder / f"round-{number}").touch()
    new = spark.range(number * rows, (number + 1) * rows, 1, 8).select(
        "id", F.udf(shout, "string")(F.concat(F.lit("n"), "id")).alias("name"), F.lit(1.0).alias("amount")
    )
    new.writeTo("shop.db.log").append()
    new.writeTo("shop.db.keyed").append()
    spark.sql("MERGE INTO shop.db.keyed t USING (SELECT * FROM shop.db.keyed WHERE id % 2 = 0) s ON t.id = s.id "
              "WHEN MATCHED THEN UPDATE SET amount = t.amount + 1")
    stream = spark.readStream.table("shop.db.log").writeStream.trigger(availableNow=True)
    stream.option("checkpointLocation", str(folder / "checkpoint")).toTable("shop.db.copy").awaitTermination()
print(spark.table("shop.db.keyed").agg(F.count("*"), F.sum("amount")).collect())
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark") / "cluster") as running:
        yield running


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"spark.python.worker.reuse": "false"}, id="a new Python for each task"),
        pytest.param(
            {
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.shuffleTracking.enabled": "true",
                "spark.dynamicAllocation.minExecutors": "0",
                "spark.dynamicAllocation.executorIdleTimeout": "1s",
            },
            id="executors come and go",
        ),
    ],
)
def test_a_program_writes_and_reads_each_row_once_while_executors_die(
    settings: dict[str, str], cluster: SparkCluster, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "rules.zip", "w") as code:
        code.writestr("rules.py", RULES)
    (tmp_path / "program.py").write_text(PROGRAM)
    columns = [("id", "BIGINT"), ("name", "STRING"), ("amount", "DOUBLE")]
    with forebay.embedded(tmp_path / "data") as server:
        server.create_database("db")
        log = server.create_table("db.log", columns, buckets=2)
        copy = server.create_table("db.copy", columns, buckets=2)
        keyed = server.create_table("db.keyed", columns, primary_key="id", buckets=2)
        setup = [sys.executable, "-m", "forebay", "spark-setup", str(tmp_path), "--catalog", "shop"]
        subprocess.run([*setup, "--bootstrap-servers", server.bootstrap_servers], check=True, capture_output=True)
        program = ProcessGroup(
            [
                str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", cluster.master,
                "--properties-file", str(tmp_path / "spark-defaults.conf"),
                "--py-files", str(tmp_path / "rules.zip"), "--executor-memory", "512m",
                "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.catalogImplementation=in-memory",
                "--conf", "spark.task.maxFailures=10",
                *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
                str(tmp_path / "program.py"), str(ROUNDS), str(ROWS), str(tmp_path),
            ],
            tmp_path / "program.log",
            {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")},
        )  # fmt: skip
        rng, killed = random.Random(36), 0
        for number in range(ROUNDS):
            until(
                lambda number=number: (tmp_path / f"round-{number}").exists() or not program.is_alive,
                lambda: program.said()[-3000:],
                0.1,
            )
            killed += any(w.kill_one_of("CoarseGrainedExecutorBackend", rng) for w in cluster.workers)
        assert program.wait(PATIENCE) == 0, program.said()[-5000:]
        assert killed
        ids = list(range(ROUNDS * ROWS))
        for table in (log, copy):
            assert sorted(table.scan(columns=["id"]).to_arrow()["id"].to_pylist()) == ids
        # A row gets one more in each round from its own on, if its id is even.
        rows = keyed.scan().to_arrow().sort_by("id").to_pylist()
        expected = [{"id": i, "name": f"N{i}", "amount": 1.0 + (ROUNDS - i // ROWS if i % 2 == 0 else 0)} for i in ids]
        assert rows == expected
