"""`forebay spark-setup`: write what a Spark needs to open catalogs by configuration, without a Python program."""

from __future__ import annotations

import argparse
from pathlib import Path

from forebay.cli.jobs import definitions

_EPILOG = """examples:
  forebay spark-setup conf/ --bootstrap-servers 127.0.0.1:9123
  forebay spark-setup conf/ --catalog lake --set warehouse=/lake --set paimon.s3.endpoint=http://127.0.0.1:9000

Then: spark-submit --properties-file conf/spark-defaults.conf app.py, and the same for spark-sql,
start-thriftserver.sh and start-connect-server.sh. Run it again after an upgrade of Spark."""


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay spark-setup`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("folder", type=Path, help="where to write forebay-catalog.jar and spark-defaults.conf")
    parser.add_argument("--catalog", default="forebay", help="the catalog's name in SQL (default: forebay)")
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT", help="the server or cluster that has the tables")
    parser.add_argument(
        "--set", action="append", default=[], metavar="key=value",
        help="a setting: user, password, warehouse, metastore, client.*, lake.*, paimon.*; may be repeated",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Write the files of a Spark setup, and print how to use them. Starts a local Spark."""
    from forebay.spark.server_setup import write_setup
    from forebay.spark.sessions import session

    settings = definitions(options.set)
    if options.bootstrap_servers is not None:
        settings["bootstrap.servers"] = options.bootstrap_servers
    spark = session("forebay spark-setup", "local[1]", {"spark.ui.enabled": False, "spark.log.level": "OFF"})
    try:
        written = write_setup(spark, options.folder, options.catalog, settings)
        print(f"wrote {written} for Spark {spark.version}; use it: spark-submit --properties-file {written} ...")
    finally:
        spark.stop()
    return 0
