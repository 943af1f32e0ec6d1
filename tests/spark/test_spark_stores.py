"""Lake files in stores that are not local: Spark reads them itself where its class path has a file system for them.

hadoop-aws is not in PySpark's wheel, so a file system of our own serves s3a:// here (stores/LocalS3.java). Its objects
are local files, and it wants the credentials of their bucket. A session of its own has it, in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.java_programs import ExamUnavailable, class_path, compiled, spark_jars

pytestmark = pytest.mark.slow

_FILE_SYSTEM = Path(__file__).parent / "stores" / "LocalS3.java"

_PROGRAM = """
import json, sys
from pathlib import Path
from pyarrow import fs
import forebay.spark
import forebay.paimon.io.s3 as s3
from forebay.paimon import Catalog

root, classes, secret = sys.argv[1:]
s3._filesystem = lambda options: fs.SubTreeFileSystem(root, fs.LocalFileSystem())
Path(root, "lake").mkdir()
lake = Catalog.open(f"{root}/lake/warehouse")
lake.create_database("db")
rows = [{"id": i, "name": f"n{i}"} for i in range(1000)]
lake.create_table("db.log", {"id": "BIGINT", "name": "STRING"}).append(rows)
keyed = lake.create_table("db.keyed", {"id": "BIGINT", "name": "STRING"}, primary_key="id", buckets=2)
keyed.upsert(rows)
keyed.compact(full=True)
conf = {"spark.ui.enabled": "false", "spark.hadoop.test.root": root, "spark.hadoop.test.access.key": "me",
        "spark.hadoop.test.secret.key": "secret of the lake"}
if classes:
    conf |= {"spark.driver.extraClassPath": classes, "spark.hadoop.fs.s3a.impl": "LocalS3"}
options = {"s3.access-key": "me", "s3.secret-key": secret, "s3.endpoint": "http://127.0.0.1:1"}
spark = forebay.spark.session(master="local[2]", conf=conf, warehouse="s3://lake/warehouse", paimon=options)
found = {}
for name in ("log", "keyed"):
    query = spark.sql(f"SELECT * FROM forebay.db.{name} WHERE id < 10")
    plan = query._jdf.queryExecution().toString()
    try:
        rows = sorted(map(list, query.collect())) if "ParquetScan" in plan else None  # workers have no such store
    except Exception as e:
        rows = str(e)
    found[name] = [plan, rows]
(gone,) = Path(root, "lake/warehouse/db.db/log").glob("bucket-*/data-*.parquet")
gone.unlink()
try:
    spark.sql("SELECT * FROM forebay.db.log").collect() if "ParquetScan" in plan else None
except Exception as e:
    found["gone"] = str(e)
print(json.dumps(found))
"""


def _run(folder: Path, classes: str, secret: str = "secret of the lake") -> dict[str, Any]:
    command = [sys.executable, "-c", _PROGRAM, str(folder), classes, secret]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**found, "said": done.stderr}


@pytest.fixture(scope="module")
def classes() -> str:
    try:
        return str(compiled([_FILE_SYSTEM], class_path(spark_jars(("hadoop-client",))), "local-s3"))
    except ExamUnavailable as e:
        pytest.skip(str(e))


def test_spark_reads_files_of_a_store_by_its_own_file_system_with_the_credentials_of_the_lake(
    tmp_path: Path, classes: str
) -> None:
    found = _run(tmp_path, classes)
    for name in ("log", "keyed"):
        plan, rows = found[name]
        assert "ParquetScan" in plan
        assert "s3a://lake/warehouse/db.db" in plan
        assert "secret of the lake" not in plan
        assert rows == [[i, f"n{i}"] for i in range(10)]
    assert "the lake snapshot that has it has expired" in found["gone"]


def test_where_the_store_refuses_spark_python_reads_and_a_warning_says_so(tmp_path: Path, classes: str) -> None:
    found = _run(tmp_path, classes, "wrong")
    assert "ParquetScan" not in found["log"][0]
    assert "lake files of forebay.db.log are read by Python: Spark cannot read s3a://" in found["said"]
    assert "fs.s3a.bucket.lake.secret.key is wrong" in found["said"]


def test_without_a_file_system_python_reads(tmp_path: Path) -> None:
    found = _run(tmp_path, "")
    for plan, _ in (found["log"], found["keyed"]):
        assert "ParquetScan" not in plan
        assert "BatchScan forebay.db" in plan
