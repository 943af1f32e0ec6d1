"""Partitions that follow the clock (`table.auto-partition.*`, `forebay.metadata.auto_partition`).

They are checked when a table is created or altered, when the server starts, and every `auto-partition.check.interval`.
Failures are logged and retried the next time.

An expired partition of a lake table is dropped only once the lake has all of its records in a readable snapshot. From
then on it is read from the lake alone. (Fluss drops it immediately; records that were not tiered by then are lost.)

Prior art: AutoPartitionManager of Fluss.
"""

from __future__ import annotations

import logging

from forebay.base.errors import AlreadyExists, ForebayError, LimitExceeded
from forebay.metadata.auto_partition import AutoPartitioning
from forebay.metadata.table import PartitionInfo, TableBucket, TableInfo
from forebay.server.context import ServerContext
from forebay.server.metadata.catalog import LiveTable, partition_folder
from forebay.server.storage.replica import BucketReplica

_LOGGER = logging.getLogger(__name__)


async def follow_the_clock(context: ServerContext) -> None:
    """Create and drop the automatic partitions of all tables."""
    for table in context.catalog.tables():
        await context.to_the_end(follow_the_clock_for(context, table))


async def follow_the_clock_for(context: ServerContext, table: LiveTable) -> None:
    """Create and drop the automatic partitions of one table. A failure is logged."""
    info = table.info
    try:
        rules = AutoPartitioning.of(info.descriptor)
        if rules is None or not rules.enabled:
            return
        now_ms = context.clock.now_ms()
        await _drop_expired(context, table, info, rules, now_ms)
        if len(info.descriptor.partition_keys) == 1:
            await _create_wanted(context, table, info, rules, now_ms)
    except ForebayError as e:
        _LOGGER.error("automatic partitions of table %s: %s; will be retried", info.path, e)


def _is_unchanged(context: ServerContext, table: LiveTable, info: TableInfo) -> bool:
    """Whether a table was neither dropped nor altered since it was looked at.

    For the thread that changes metadata: what was decided may have waited there behind other changes.
    """
    return context.catalog.table_by_id(info.table_id) is table and table.info is info


async def _create_wanted(
    context: ServerContext, table: LiveTable, info: TableInfo, rules: AutoPartitioning, now_ms: int
) -> None:
    def create(value: str) -> bool:
        if not _is_unchanged(context, table, info):
            return False
        context.catalog.create_partition(info.path, {rules.key: value}, False)
        return True

    for value in rules.values_to_create(now_ms):
        if value in table.current.partition_ids:
            continue
        try:
            if not await context.in_coordinator(create, value):
                return  # who has altered it, has its partitions created
        except AlreadyExists:
            continue  # a client has created it in the meantime
        except LimitExceeded as e:
            _LOGGER.warning("partition '%s' of table %s was not created: %s", value, info.path, e)
            return
        _LOGGER.info("created partition '%s' of table %s", value, info.path)


async def _drop_expired(
    context: ServerContext, table: LiveTable, info: TableInfo, rules: AutoPartitioning, now_ms: int
) -> None:
    for partition in list(table.current.partitions_by_id.values()):
        if not rules.has_expired(dict(partition.spec)[rules.key], now_ms):
            continue
        # The store, because what was never opened on this machine comes from there.
        sealed = await context.in_store(_sealed_if_needed_no_more, context, info, partition)
        if sealed is None:
            _LOGGER.info(
                "partition '%s' of table %s has expired, and stays until the lake has all of it",
                partition.name,
                info.path,
            )
            continue
        is_gone = False
        try:
            is_gone = await _drop(context, table, info, partition)
        finally:
            for replica in sealed:
                if not is_gone:
                    replica.unseal()
                context.replicas.end(replica)


async def _drop(context: ServerContext, table: LiveTable, info: TableInfo, partition: PartitionInfo) -> bool:
    """Drop a partition that has expired, unless it is gone. Return False if its table was altered meanwhile: whether it
    has still expired is then decided again, by whoever has altered it, or the next time."""

    def drop() -> bool | None:
        if context.catalog.table_by_id(info.table_id) is None:
            return None
        if not _is_unchanged(context, table, info):
            return False
        if partition.partition_id not in table.current.partitions_by_id:
            return None
        context.catalog.drop_partition(info.path, dict(partition.spec))
        return True

    is_dropped = await context.in_coordinator(drop)
    if is_dropped:
        await context.remove_data(info, [partition.partition_id], partition_folder(info, partition))
        _LOGGER.info("dropped partition '%s' of table %s, which has expired", partition.name, info.path)
    return is_dropped is not False


def _sealed_if_needed_no_more(
    context: ServerContext, info: TableInfo, partition: PartitionInfo
) -> list[BucketReplica] | None:
    """Return the sealed buckets of a partition that the stream may drop; None if it must keep them.

    The stream may drop a partition of a lake table once the lake has all of its records. Sealed buckets accept no more
    writes, so none can come between this check and the end of the partition. They stay open until the caller ends their
    use.
    """
    if not info.lake_enabled:
        return []
    sealed: list[BucketReplica] = []
    is_needed = True
    try:
        for number in range(info.bucket_count):
            bucket = TableBucket(info.table_id, number, partition.partition_id)
            replica = context.replicas.begin(bucket)
            sealed.append(replica)
            replica.seal()
            if replica.log.log_end_offset > context.lake.snapshots.log_needed_from(info, bucket):
                return None
        is_needed = False
        return sealed
    finally:
        if is_needed:
            for replica in sealed:
                replica.unseal()
                context.replicas.end(replica)
