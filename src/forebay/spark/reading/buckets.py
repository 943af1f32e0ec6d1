"""The splits of a plan by bucket, for scans whose tasks read whole buckets (forebay.spark.reading.bucketed)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from forebay.client.connection import Connection
from forebay.lake.source import UNAWARE_BUCKET, LakeSplit
from forebay.metadata.partitions import partition_value
from forebay.metadata.table import Column, TableInfo
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.split import DataSplit
from forebay.paimon.read.pieces import joined
from forebay.paimon.read.plain_files import plain_files
from forebay.paimon.store.context import TableContext
from forebay.spark.bucket_functions import TableBucketing, lake_bucketing, live_bucketing
from forebay.spark.reading.lake_plan import PaimonScan
from forebay.spark.reading.live_read import BoundUnionSplit, Split
from forebay.spark.reading.native_files import is_local
from forebay.spark.reading.plan import Pushdown, ScanPlan
from forebay.spark.schemas import columns_of
from forebay.unionread.splits import KvBucketSplit, LakeSnapshotAndLogSplit, LakeSnapshotSplit, LogSplit


@dataclass(frozen=True)
class Bucket:
    """A bucket of a partition, and its splits. `files` are their Parquet files; None if they are not plain."""

    partition: tuple[Any, ...]
    number: int
    splits: tuple[Any, ...]
    files: tuple[str, ...] | None = None


@dataclass(frozen=True)
class BucketPlan:
    """A plan, and the buckets of its splits. `partition_keys` are the columns of their partitions."""

    plan: ScanPlan
    bucketing: TableBucketing
    partition_keys: tuple[Column, ...]
    buckets: tuple[Bucket, ...]

    @property
    def files(self) -> list[list[str]] | None:
        """The files of each bucket; None unless Spark can read all of them."""
        files = [list(bucket.files) for bucket in self.buckets if bucket.files is not None]
        return files if files and len(files) == len(self.buckets) else None


def _usable(bucketing: TableBucketing | None, pushdown: Pushdown) -> TableBucketing | None:
    """`bucketing` if Spark can compare buckets by it; otherwise None."""
    if bucketing is None or len(bucketing.columns) > 1 or pushdown.limit is not None:
        return None
    return bucketing if bucketing.columns[0] in pushdown.columns and bucketing.keeps_equal_together() else None


def lake_buckets(scan: PaimonScan, plan: ScanPlan, pushdown: Pushdown) -> BucketPlan | None:
    """`plan` of a lake table by bucket; None unless each split belongs to one bucket that Spark can compare."""
    schema = scan.table.schema
    bucketing = _usable(lake_bucketing(schema), pushdown)
    splits = [split for task in plan.tasks for split in task]
    of_state = [s for s in splits if isinstance(s, DataSplit) and not s.is_streaming]
    totals = {split.total_buckets for split in of_state}
    if bucketing is None or scan.system is not None or len(of_state) < len(splits) or len(totals) > 1:
        return None
    bucketing = replace(bucketing, total=min(totals, default=bucketing.total))
    if bucketing.total < 1:  # files from before the table had a number of buckets
        return None
    grouped: dict[tuple[bytes, int], list[DataSplit]] = {}
    for split in of_state:
        grouped.setdefault((split.partition, split.bucket), []).append(split)
    layout = row_layout(schema.partition_fields)
    values = layout.decode_all([partition for partition, _ in grouped]).to_pylist() if layout.fields else []
    buckets = []
    for place, ((_, number), of_bucket) in enumerate(grouped.items()):
        files = None if plan.native is None else _local_files(scan.table, of_bucket, pushdown.columns)
        partition = tuple(values[place].values()) if values else ()
        buckets.append(Bucket(partition, number, tuple(joined(of_bucket)), files))
    keys = {column.name: column for column in columns_of(schema)}
    return BucketPlan(plan, bucketing, tuple(keys[name] for name in schema.partition_keys), tuple(buckets))


def _local_files(table: TableContext, splits: Iterable[DataSplit], names: Sequence[str]) -> tuple[str, ...] | None:
    """The files of `splits`, if Spark can read the columns `names` of all of them itself."""
    fields, paths = table.schema.fields_named(names), list[str]()
    for split in splits:
        files = plain_files(table, split, fields)
        if files is None or not all(map(is_local, files)):
            return None
        paths += files
    return tuple(paths)


def live_buckets(connection: Connection, info: TableInfo, plan: ScanPlan, pushdown: Pushdown) -> BucketPlan | None:
    """`plan` of a live table, or of a union read, by bucket; None as for `lake_buckets`."""
    bucketing = _usable(live_bucketing(info), pushdown)
    if bucketing is None or bucketing.kind == "fluss":
        return None
    keys = tuple(info.schema.column(name) for name in info.descriptor.partition_keys)
    names: dict[int | None, tuple[str, ...]] = {None: ()}
    if keys:
        names = {p.partition_id: tuple(text for _, text in p.spec) for p in connection.table(info).partitions()}
    grouped: dict[tuple[tuple[str, ...], int], list[Split]] = {}
    for split in (split for task in plan.tasks for split in task):
        place = _bucket_of(split, names, info.bucket_count)
        if place is None:
            return None
        grouped.setdefault(place, []).append(split)
    buckets = []
    for (texts, number), splits in grouped.items():
        values = tuple(partition_value(key.data_type, text) for key, text in zip(keys, texts, strict=True))
        buckets.append(Bucket(values, number, tuple(splits)))
    return BucketPlan(plan, bucketing, keys, tuple(buckets))


def _bucket_of(
    split: Split, names: Mapping[int | None, tuple[str, ...]], total: int
) -> tuple[tuple[str, ...], int] | None:
    """The partition and bucket of a split; None if it has several, or was written with another bucket count."""
    partition: tuple[str, ...] | None
    lakes: Sequence[LakeSplit] = ()
    match split:
        case BoundUnionSplit(split=LakeSnapshotSplit(lake)):
            partition, number, lakes = lake.partition(), lake.bucket(), (lake,)
        case BoundUnionSplit(split=LakeSnapshotAndLogSplit(bucket, lakes)):
            partition, number = names.get(bucket.partition_id), bucket.bucket
        case LogSplit(bucket) | KvBucketSplit(bucket):
            partition, number = names.get(bucket.partition_id), bucket.bucket
        case _:
            return None
    if partition is None or number == UNAWARE_BUCKET:
        return None
    return (partition, number) if all(lake.bucket_count() in (None, total) for lake in lakes) else None
