"""Pipelines that end in live tables, while everything is killed: at each hop exactly the rows of the source.

PIPELINE_KILLS=40 pytest tests/pipelines/test_live_pipelines.py -m slow -s
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import forebay
from forebay.testing.server import ServerProcess
from tests.pipelines.live_pipelines import PIPELINES
from tests.pipelines.trial import PATIENCE_SECONDS, Site, Trial

KILLS = int(os.environ.get("PIPELINE_KILLS", "4"))
SEED = int(os.environ.get("PIPELINE_KILLS_SEED", random.SystemRandom().randrange(1 << 32)))

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout((KILLS + 4) * PATIENCE_SECONDS),
]

MASTERS = {"local[2,4]": "forebay.spark.daemon", "local-cluster[2,1,512]": "CoarseGrainedExecutorBackend"}


@pytest.mark.parametrize("name", PIPELINES)
def test_each_hop_has_exactly_the_rows_of_the_source_whatever_is_killed(name: str, tmp_path: Path) -> None:
    print(f"PIPELINE_KILLS_SEED={SEED}")
    rng = random.Random(SEED)
    lake = {"datalake.format": "paimon", "datalake.paimon.warehouse": str(tmp_path / "server-lake")}
    with (
        ServerProcess(tmp_path / "data", settings=lake) as server,
        forebay.connect(server.bootstrap_servers, retry_timeout="60 s") as connection,
    ):

        def kill_server() -> None:
            server.kill()
            server.start(keep_ports=True)

        pipeline = PIPELINES[name](connection, tmp_path, rng)
        Trial(pipeline, Site(server.bootstrap_servers, kill_server, MASTERS), rng).run(KILLS)
        pipeline.check()
        server.stop()
