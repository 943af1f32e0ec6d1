"""Planning of reads whose filter fixes keys (forebay.client.reading.key_filter): the buckets that the keys can be in,
and the keys to look up in each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay.client.cluster.buckets import bucket_numbers, plan_buckets
from forebay.client.cluster.partitions import PartitionSelector, select_partitions
from forebay.client.reading.key_filter import KEYS_MAX, KeyFilter
from forebay.client.row_view import RowView
from forebay.metadata.table import PartitionInfo, TableBucket

if TYPE_CHECKING:
    from forebay.client.cluster.cluster import ClusterClient

BucketKeys = Mapping[TableBucket, Sequence[bytes]]
"""The keys to look up in each bucket, as they are on the wire."""


@dataclass(frozen=True)
class KeyPlan:
    """The buckets that can have matching rows, out of `of` that a scan without the filter reads.

    `keys` are those to look up in them; None: the buckets are scanned.
    """

    buckets: Sequence[TableBucket]
    of: int
    keys: BucketKeys | None = None

    def __str__(self) -> str:
        """How rows are found: "lookup of 3 keys in 2 of 16 buckets", or "2 of 16 buckets"."""
        where = f"{len(self.buckets)} of {self.of} buckets"
        if self.keys is None:
            return where
        count = sum(map(len, self.keys.values()))
        if not count:
            return "nothing, as no row can match"
        return f"lookup of {count} key{'s' * (count != 1)} in {where}"

    @property
    def is_narrow(self) -> bool:
        """Whether it is of any use: rows are looked up, or buckets left out."""
        return self.keys is not None or len(self.buckets) < self.of


def plan_keys(
    cluster: ClusterClient,
    view: RowView,
    partitions: Sequence[PartitionSelector] | PartitionSelector | None = None,
    buckets: Iterable[int | TableBucket] | None = None,
) -> KeyPlan | None:
    """Return the plan for `buckets` (None: all); None if the filter fixes neither keys nor buckets nor partitions.

    Sends no request if the filter cannot match. Raises what `plan_buckets` does.
    """
    info, key_filter = view.info, KeyFilter.of(view)
    if key_filter is None:
        return None
    if key_filter.is_empty:
        return KeyPlan((), info.bucket_count, {})
    selected = None if buckets is None else list(buckets)
    if not info.is_partitioned or (selected and partitions is None and _are_exact(selected)):
        return choose(key_filter, plan_buckets(cluster, info, partitions, selected), ())
    existing = select_partitions(cluster, info, partitions)
    numbers = bucket_numbers(info, selected)
    return choose(
        key_filter, [TableBucket(info.table_id, n, p.partition_id) for p in existing for n in numbers], existing
    )


def _are_exact(buckets: Sequence[Any]) -> bool:
    return all(isinstance(bucket, TableBucket) for bucket in buckets)


def choose(key_filter: KeyFilter, buckets: Sequence[TableBucket], partitions: Sequence[PartitionInfo]) -> KeyPlan:
    """Return the plan for `buckets`. In unknown partitions it reads all buckets that can have the keys."""
    by_id: dict[int | None, PartitionInfo] = {partition.partition_id: partition for partition in partitions}
    covered = {partition.partition_id for partition in key_filter.partitions(partitions)}
    selected = [
        bucket
        for bucket in buckets
        if (key_filter.numbers is None or bucket.bucket in key_filter.numbers)
        and (bucket.partition_id in covered or bucket.partition_id not in by_id)
    ]
    if key_filter.keys is None:
        return KeyPlan(selected, len(buckets))
    of_partition = {i: key_filter.keys_of(by_id.get(i)) for i in {b.partition_id for b in selected}}
    keys: dict[TableBucket, list[bytes]] = {}
    for bucket in selected:
        candidates = of_partition[bucket.partition_id]
        # Several keys may have the same bytes: 0.0 and -0.0 for instance.
        of_bucket = dict.fromkeys(candidates.encoded[i] for i in np.flatnonzero(candidates.buckets == bucket.bucket))
        if of_bucket:
            keys[bucket] = list(of_bucket)
    if sum(map(len, keys.values())) > KEYS_MAX:
        return KeyPlan(list(keys), len(buckets))
    return KeyPlan(list(keys), len(buckets), keys)
