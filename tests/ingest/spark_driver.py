"""A Spark driver that streams a topic of Debezium's events into a live table. `test_kafka_ingest` runs and kills it.

python -m tests.ingest.spark_driver SERVERS BROKERS TOPIC TABLE SCHEMA CHECKPOINT JAR... [--up-to-now]
"""

from __future__ import annotations

import argparse


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("servers", "brokers", "topic", "table", "schema", "checkpoint"):
        parser.add_argument(name)
    parser.add_argument("jars", nargs="+")
    parser.add_argument("--up-to-now", action="store_true")
    options = parser.parse_args()

    import forebay.spark
    from forebay.spark import from_debezium

    conf = {
        "spark.ui.enabled": False, "spark.driver.memory": "1g", "spark.sql.session.timeZone": "UTC",
        "spark.jars": ",".join(options.jars), "spark.sql.shuffle.partitions": 2,
    }  # fmt: skip
    spark = forebay.spark.session("kafka", "local[2]", conf, bootstrap_servers=options.servers)
    events = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", options.brokers)
        .option("subscribe", options.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1000)
        .load()
    )
    writer = from_debezium(events, options.schema).writeStream.option("checkpointLocation", options.checkpoint)
    query = (writer.trigger(availableNow=True) if options.up_to_now else writer).toTable(f"forebay.{options.table}")
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
