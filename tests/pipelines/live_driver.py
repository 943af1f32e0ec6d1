"""A Spark driver whose queries end in live tables. `test_live_pipelines` runs it, and kills it.

    python -m tests.pipelines.live_driver SERVERS FOLDER [--up-to-now]

JSON files of FOLDER/in -> the log `fluss.events` -> from there the sums of each key (`fluss.sums`, output mode update)
and its last state (`fluss.states`, by changes with deletes). Each query has its checkpoint in FOLDER.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

EVENTS = {"n": "BIGINT", "key": "BIGINT", "amount": "BIGINT", "is_end": "BOOLEAN"}
SUMS = {"key": "BIGINT", "total": "BIGINT", "events": "BIGINT"}
STATES = {"key": "BIGINT", "n": "BIGINT"}


def queries(spark: Any, folder: Path) -> dict[str, Any]:
    """The writers of the pipeline, by the table that each ends in."""
    from pyspark.sql import functions as f

    # One file at a time: Spark reads several in an order of its own. And a key's rows are in one bucket of the log.
    schema = "n BIGINT, key BIGINT, amount BIGINT, is_end BOOLEAN"
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    log = spark.readStream.option("maxRowsPerTrigger", 300).table("forebay.fluss.events")
    sums = log.groupBy("key").agg(f.sum("amount").alias("total"), f.count("n").alias("events"))
    kind = f.when(log.is_end, "delete").otherwise("update_after").alias("_change_type")
    return {
        "events": source.writeStream,
        "sums": sums.writeStream.outputMode("update"),
        "states": log.select(kind, "key", "n").writeStream.option("write.sequence.field", "n"),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("servers")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--up-to-now", action="store_true")
    options = parser.parse_args()

    import forebay.spark

    conf = {
        "spark.ui.enabled": False,
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.session.timeZone": "UTC",
    }
    spark = forebay.spark.session("pipeline", "local[2]", conf, bootstrap_servers=options.servers)
    running = []
    for name, writer in queries(spark, options.folder).items():
        writer = writer.option("checkpointLocation", str(options.folder / f"{name}-checkpoint"))
        if options.up_to_now:
            writer.trigger(availableNow=True).toTable(f"forebay.fluss.{name}").awaitTermination()
        else:
            running.append(writer.toTable(f"forebay.fluss.{name}"))
    while running and all(query.isActive for query in running):
        time.sleep(0.1)
    for query in running:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
