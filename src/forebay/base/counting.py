"""Histograms that cost little to count in, and how Prometheus is given them. Server and client count by these."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client.metrics_core import HistogramMetricFamily

SECONDS = (
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper bounds of a histogram's buckets; a last one has no bound."""

QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
"""Those that Fluss reports of its histograms."""


class Histogram:
    """How often, how long in all, and how often up to which of `SECONDS`. One thread observes at a time."""

    __slots__ = ("buckets", "count", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(SECONDS) + 1)

    def observe(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.seconds += seconds * count
        self.buckets[bisect_left(SECONDS, seconds)] += count

    def add(self, other: Histogram) -> None:
        """Count what another one has counted."""
        self.count += other.count
        self.seconds += other.seconds
        self.buckets = [count + more for count, more in zip(self.buckets, other.buckets, strict=True)]


def quantile(share: float, buckets: Sequence[int], bounds: Sequence[float] = SECONDS) -> float:
    """The value that this share of observations did not exceed: at most one of `bounds` too high.

    Inside of a bucket the observations are taken to be spread evenly. NaN without observations; those above the last
    bound count as that.
    """
    rank = share * sum(buckets)
    if not rank:
        return float("nan")
    below = 0.0
    for bound, count in zip(bounds, buckets, strict=False):
        if count and rank <= count:
            return below + (bound - below) * rank / count
        rank -= count
        below = bound
    return bounds[-1]


def per_second(change: float, seconds: float) -> float:
    """A counter's change a second: 0 for one that has begun again meanwhile, and in no time."""
    return max(change, 0) / seconds if seconds > 0 else 0.0


def add_histogram(family: HistogramMetricFamily, labels: Sequence[str], times: Histogram) -> None:
    """Add the buckets of `times` to Prometheus' family."""
    buckets: list[Any] = []
    count = 0
    for bound, size in zip((*SECONDS, None), list(times.buckets), strict=True):
        count += size
        buckets.append(("+Inf" if bound is None else repr(bound), count))
    family.add_metric(labels, buckets, times.seconds)
