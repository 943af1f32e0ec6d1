"""The pipelines on what users grow into: Apache Fluss with two tablet servers, and Spark standalone with two workers.

    CLUSTER_KILLS=3 pytest tests/foreign/test_foreign_scale_out.py -m slow -s

Such a cluster has no transactions: rows that a task has written before it was killed come again.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from exams_cache import ExamUnavailable
from fluss_cluster import RealFluss, paimon_lake
from spark_cluster import SparkCluster

import forebay
from tests.pipelines.live_pipelines import PIPELINES
from tests.pipelines.trial import PATIENCE_SECONDS, Site, Trial
from tests.process_groups import ProcessGroup

KILLS = int(os.environ.get("CLUSTER_KILLS", "3"))
SEED = int(os.environ.get("CLUSTER_KILLS_SEED", random.SystemRandom().randrange(1 << 32)))

pytestmark = [
    pytest.mark.foreign,
    pytest.mark.slow,
    pytest.mark.skipif("CLUSTER_KILLS" not in os.environ, reason="`make cluster-exam` runs it: it takes an hour"),
    pytest.mark.timeout((KILLS + 4) * PATIENCE_SECONDS),
    pytest.mark.filterwarnings("ignore:this cluster has no:RuntimeWarning"),
]

# With one replica in sync a second failure loses rows.
SAFE = {
    "default.replication.factor": "2",
    "log.replica.min-in-sync-replicas-number": "2",
    "zookeeper.client.session-timeout": "5s",
}


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark") / "cluster") as running:
        yield running


def is_open(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Options of a lake in a bucket of S3, which moto serves."""
    boto3 = pytest.importorskip("boto3", reason="S3 needs boto3")
    pytest.importorskip("moto", reason="there is no S3 here: pip install 'moto[server]'")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    server = ProcessGroup(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], tmp_path / "moto.log"
    )
    endpoint, secrets = f"http://127.0.0.1:{port}", ("key", "secret")
    try:
        client = boto3.client(
            "s3", endpoint_url=endpoint, region_name="us-east-1",
            aws_access_key_id=secrets[0], aws_secret_access_key=secrets[1],
        )  # fmt: skip
        while not is_open(port):
            assert server.is_alive, server.said()
            time.sleep(0.1)
        client.create_bucket(Bucket="lake")
        yield {
            "warehouse": "s3://lake/tables",
            "s3.endpoint": endpoint,
            "s3.region": "us-east-1",
            "s3.access-key": secrets[0],
            "s3.secret-key": secrets[1],
        }
    finally:
        server.kill()


@pytest.fixture
def start_fluss() -> Iterator[Callable[[dict[str, str]], RealFluss]]:
    """Starts a cluster with the lake that these settings describe."""
    clusters = []

    def start(lake: dict[str, str]) -> RealFluss:
        clusters.append(RealFluss(tablet_servers=2, is_apart=True, settings=SAFE, lake=lake))
        try:
            return clusters[-1].start()
        except ExamUnavailable as reason:
            pytest.skip(f"no real Fluss cluster here: {reason}")

    yield start
    for cluster in clusters:
        cluster.stop()


def lake_of_cluster(lake_format: str, folder: Path) -> dict[str, str]:
    if lake_format == "paimon":
        return paimon_lake(folder)
    folder.mkdir(parents=True)
    catalog = {"type": "jdbc", "uri": f"jdbc:sqlite:{folder / 'catalog.db'}", "warehouse": str(folder)}
    return {"format": lake_format} | {f"iceberg.{name}": value for name, value in catalog.items()}


@pytest.mark.parametrize("kills", [0, KILLS])
@pytest.mark.parametrize(
    ("name", "lake_format"), [("Sums", "iceberg"), ("Capture", "paimon on S3"), ("Dimension", "paimon")]
)
def test_a_pipeline_loses_nothing(
    name: str,
    lake_format: str,
    kills: int,
    start_fluss: Callable[[dict[str, str]], RealFluss],
    spark_cluster: SparkCluster,
    lake: dict[str, str],
    tmp_path: Path,
) -> None:
    """And repeats nothing where nothing is killed."""
    print(f"CLUSTER_KILLS_SEED={SEED}")
    secrets: dict[str, str] = {}
    if "S3" in lake_format:
        storage = {name: value for name, value in lake.items() if name != "warehouse"}
        fluss = start_fluss(paimon_lake("s3://lake/cluster", **storage))
        secrets = {name: value for name, value in storage.items() if name.endswith("-key")}
    else:
        fluss = start_fluss(lake_of_cluster(lake_format, tmp_path / "server-lake"))
    rng, servers = random.Random(SEED), itertools.cycle([0, 1])
    site = Site(
        fluss.bootstrap_servers,
        lambda: fluss.kill_tablet_server(next(servers)),
        {spark_cluster.master: "CoarseGrainedExecutorBackend"},
        spark_cluster.workers,
        secrets,
    )
    with forebay.connect(fluss.bootstrap_servers, retry_timeout="60 s", lake_options=secrets) as connection:
        pipeline = PIPELINES[name](connection, tmp_path, rng, lake)
        trial = Trial(pipeline, site, rng)
        if kills:
            trial.run(kills)
        else:
            for _ in range(3):
                pipeline.add_file()
            trial.run_up_to_now()
        pipeline.check(is_once=not kills)


@pytest.mark.parametrize("lake_format", ["iceberg", "paimon"])
def test_the_quickstart_on_a_cluster(
    lake_format: str,
    start_fluss: Callable[[dict[str, str]], RealFluss],
    spark_cluster: SparkCluster,
    tmp_path: Path,
) -> None:
    fluss = start_fluss(lake_of_cluster(lake_format, tmp_path / "data" / "lake"))
    where = ["-b", fluss.bootstrap_servers, "--master", spark_cluster.master, "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(
        [sys.executable, "-m", "forebay", "quickstart", *where, "--lake", lake_format, "--days", "3"],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, cwd=tmp_path,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DIFFERENT" not in done.stdout
