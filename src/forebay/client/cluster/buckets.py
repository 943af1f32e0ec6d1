"""Buckets of a table: those that a user selects, as `TableBucket`s.

A partitioned table has its buckets in each partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.client.cluster.cluster import ClusterClient
from forebay.client.cluster.partitions import PartitionSelector, select_partitions
from forebay.metadata.table import TableBucket, TableInfo


def plan_buckets(
    cluster: ClusterClient,
    info: TableInfo,
    partitions: Sequence[PartitionSelector] | PartitionSelector | None = None,
    buckets: Iterable[int | TableBucket] | None = None,
) -> list[TableBucket]:
    """The buckets that a read covers, in order.

    Raises `NotFound` for a partition and `InvalidRequest` for a bucket that the table does not have.
    """
    bucket_list = None if buckets is None else list(buckets)
    if bucket_list == [] and partitions is None:
        return []
    if bucket_list and all(isinstance(bucket, TableBucket) for bucket in bucket_list) and partitions is None:
        return [check_bucket(info, bucket) for bucket in dict.fromkeys(bucket_list)]
    numbers = bucket_numbers(info, bucket_list)
    if not info.is_partitioned:
        if partitions is not None:
            raise InvalidRequest(f"table {info.path} is not partitioned", ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION)
        return [TableBucket(info.table_id, number) for number in numbers]
    return [
        TableBucket(info.table_id, number, partition.partition_id)
        for partition in select_partitions(cluster, info, partitions)
        for number in numbers
    ]


def bucket_numbers(info: TableInfo, buckets: Iterable[int | TableBucket] | None) -> Sequence[int]:
    """The numbers of `buckets` (None: of all), in order. Raises `InvalidRequest` for one that does not exist."""
    if buckets is None:
        return range(info.bucket_count)
    numbers = sorted({bucket.bucket if isinstance(bucket, TableBucket) else bucket for bucket in buckets})
    for number in numbers:
        check_bucket_number(info, number)
    return numbers


def check_bucket_number(info: TableInfo, number: int) -> None:
    if not 0 <= number < info.bucket_count:
        raise InvalidRequest(f"table {info.path} has no bucket {number}; it has 0 to {info.bucket_count - 1}")


def check_bucket(info: TableInfo, bucket: Any) -> TableBucket:
    """`bucket` as a TableBucket of this table; a number is enough without partitions."""
    if isinstance(bucket, int):
        if info.is_partitioned:
            raise InvalidRequest(f"table {info.path} is partitioned: name bucket {bucket} by a TableBucket")
        bucket = TableBucket(info.table_id, bucket)
    if not isinstance(bucket, TableBucket):
        raise InvalidRequest(f"{bucket!r} is neither a bucket number nor a TableBucket")
    if bucket.table_id != info.table_id:
        raise InvalidRequest(f"bucket {bucket} does not belong to table {info.path}, whose id is {info.table_id}")
    if (bucket.partition_id is None) == info.is_partitioned:
        kind = "is partitioned" if info.is_partitioned else "is not partitioned"
        raise InvalidRequest(f"bucket {bucket} does not fit table {info.path}, which {kind}")
    check_bucket_number(info, bucket.bucket)
    return bucket
