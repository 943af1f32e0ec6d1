"""The examples run in the Spark session of the Spark tests."""

from tests.spark.conftest import connection, server, spark

__all__ = ["connection", "server", "spark"]
