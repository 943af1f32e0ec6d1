"""Metrics of scans for the SQL tab of Spark's UI.

To add up the values of tasks, Spark creates an object of the metric's class by the name of the class. So the
application's class loader must have the classes `ForebayCount` and `ForebayTime` (driver_java).
"""

from __future__ import annotations

from forebay.spark.jvm.driver_classes import named_driver_class
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject, Jvm, once_per_jvm
from forebay.spark.jvm.python_tasks import PYTHON_SOURCE, python_metrics, user_files

_FILES_READ = ("forebayFiles", "lake files read by Spark")
"""Name and description of the metric that has a value on the driver. `ForebayFileScan` uses the same name."""


def scan_metrics(jvm: Jvm, files: int = 0) -> tuple[JavaObject, JavaObject]:
    """The metrics of a scan (CustomMetric[]), and their values on the driver (CustomTaskMetric[]).

    `files` is the number of lake files that Spark reads. The metrics are those of Spark's Python runner and those of
    `ForebayDirectReader`. If Spark cannot create Forebay's classes by name, the latter have only the bytes, in a class
    of Spark.
    """
    count = named_driver_class(jvm, "ForebayCount")
    values = [count(*_FILES_READ, files)] if files and count is not None else []
    return _metrics(jvm, user_files(jvm)), jvm.array(CONNECTOR + "metric.CustomTaskMetric", values)


@once_per_jvm
def _metrics(jvm: Jvm, _user_files: tuple[str, ...]) -> JavaObject:
    count, time = named_driver_class(jvm, "ForebayCount"), named_driver_class(jvm, "ForebayTime")
    metrics = [jvm.class_(PYTHON_SOURCE + "PythonCustomMetric")("forebayBytes", "bytes from the servers")]
    if count is not None and time is not None:
        metrics += [
            count("forebayRequests", "requests to the servers", 0),
            time("forebayWait", "time waiting for the servers", 0),
            count("forebayDirect", "logs and buckets read without Python", 0),
            count("forebayLeft", "logs and buckets left to Python workers", 0),
            count(*_FILES_READ, 0),
        ]
    return jvm.array(CONNECTOR + "metric.CustomMetric", [*python_metrics(jvm), *metrics])
