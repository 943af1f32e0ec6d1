"""A Spark driver that runs one of `live_pipelines`. `test_live_pipelines` starts it, and kills it.

    python -m tests.pipelines.live_driver PIPELINE SERVERS FOLDER [--lake JSON] [--secrets JSON] [--master URL]
                                          [--up-to-now]

Each query has its checkpoint in FOLDER, under its name.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from tests.pipelines.live_pipelines import PIPELINES


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("pipeline", choices=PIPELINES)
    parser.add_argument("servers")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lake", type=json.loads, help="options of the lake's catalog")
    parser.add_argument("--secrets", type=json.loads, help="options of the servers' lake that they do not publish")
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--up-to-now", action="store_true")
    options = parser.parse_args()

    import forebay.spark

    conf = {
        "spark.ui.enabled": False,
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)]),
        "spark.excludeOnFailure.enabled": False,  # executors that are killed shall come back
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.session.timeZone": "UTC",
    }
    live = {"bootstrap_servers": options.servers, "lake_options": options.secrets}
    spark = forebay.spark.session("pipeline", options.master, conf, **live)
    lake = dict(options.lake or {"warehouse": str(options.folder / "lake")})
    forebay.spark.attach(spark, "lake", warehouse=lake.pop("warehouse"), paimon=lake)
    queries = []
    for name, (writer, table) in PIPELINES[options.pipeline].queries(spark, options.servers, options.folder).items():
        writer = writer.queryName(name).option("checkpointLocation", str(options.folder / f"{name}-checkpoint"))
        query = (writer.trigger(availableNow=True) if options.up_to_now else writer).toTable(table)
        # One after the other: Spark gives a source's process 10 s to start, whatever the load.
        while query.isActive and (options.up_to_now or query.status["message"].startswith("Initializing")):
            time.sleep(0.1)
        queries.append(query)
    while not options.up_to_now and all(query.isActive for query in queries):
        time.sleep(0.1)
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
