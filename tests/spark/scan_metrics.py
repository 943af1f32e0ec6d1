"""The metrics of scans in Spark's status store."""

from __future__ import annotations

import time
from typing import Any

from tests.patience import PATIENCE

FILES = "lake files read by Spark"


def newest(store: Any) -> Any:
    """The newest statement that the store has, or None. It forgets old ones, so their number says nothing."""
    found = store.executionsList()
    return found.last() if found.nonEmpty() else None


def shown(spark: Any, statement: str) -> dict[str, list[str]]:
    """Run a statement; the metrics of its scans in Spark's status store: by name, the value of each scan."""
    store = spark._jsparkSession.sharedState().statusStore()
    before = newest(store)
    spark.sql(statement).collect()
    deadline = time.monotonic() + PATIENCE
    while True:
        execution = newest(store)
        is_new = execution is not None and (before is None or execution.executionId() > before.executionId())
        if is_new and execution.completionTime().isDefined() and (values := execution.metricValues()) is not None:
            break
        assert time.monotonic() < deadline
        time.sleep(0.02)
    found: dict[str, list[str]] = {}
    nodes = store.planGraph(execution.executionId()).allNodes()
    for node in (nodes.apply(index) for index in range(nodes.size())):
        for metric in (node.metrics().apply(place) for place in range(node.metrics().size())):
            value = values.get(metric.accumulatorId())
            if "BatchScan" in str(node.name()) and value.isDefined():
                found.setdefault(str(metric.name()), []).append(str(value.get()))
    return found
