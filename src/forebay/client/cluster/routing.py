"""Routing of rows: partitions that may not exist yet, and buckets for tables without a bucket key."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.base import threads
from forebay.base.ambient import IdSource
from forebay.base.errors import ErrorCode, ForebayError, NotFound, Unavailable
from forebay.client.cluster.cluster import ClusterClient, Partition
from forebay.client.cluster.partitions import list_partitions
from forebay.metadata.table import PhysicalTablePath, TableBucket, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import partition_spec_to_pb, table_path_to_pb

_ROUTINGS = 5
"""The number of attempts to resolve partitions that other clients drop meanwhile."""


class PartitionRouter:
    """Partitions by name, created on demand by writers (`client.writer.dynamic-create-partition.enabled`)."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._may_create: bool = cluster.settings["client.writer.dynamic-create-partition.enabled"]
        self._lock = threads.lock()

    def for_writing(self, info: TableInfo, names: Sequence[str]) -> dict[str, Partition]:
        """The partitions of a table with these names; missing ones are created.

        Raises `NotFound` (PARTITION_NOT_EXISTS) if creation is disabled, `InvalidRequest` for invalid partition values,
        `LimitExceeded` for too many partitions, `Unavailable` if other clients keep dropping them.
        """
        for _ in range(_ROUTINGS):
            partitions = self._cached(info, names)
            missing = [name for name in names if name not in partitions]
            if not missing:
                return partitions
            with self._lock:
                existing = self._on_servers(info, missing)
                for name in missing:
                    if name not in existing:
                        self._create(info, name)
                self._learn(info, missing)
        raise Unavailable(
            f"partitions {', '.join(missing)} of table {info.path} are dropped as often as they are created",
            ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
        )

    def existing(self, info: TableInfo, names: Sequence[str]) -> dict[str, Partition]:
        """The existing partitions of a table among these names."""
        partitions = self._cached(info, names)
        missing = [name for name in names if name not in partitions]
        if missing:
            existing = self._on_servers(info, missing)
            names_on_server = [name for name in missing if name in existing]
            if names_on_server:
                self._learn(info, names_on_server)
                partitions = self._cached(info, names)
        return partitions

    def _on_servers(self, info: TableInfo, names: Sequence[str]) -> set[str]:
        """The names of the partitions that exist, of these and perhaps of others.

        One is requested alone: writers create partitions one by one, and a list of all would cost more with each.
        """
        keys = info.descriptor.partition_keys
        values = None
        if len(names) == 1 and (len(keys) == 1 or names[0].count("$") == len(keys) - 1):
            values = _spec(info, names[0])
        return {partition.name for partition in list_partitions(self._cluster, info.path, values)}

    def _cached(self, info: TableInfo, names: Sequence[str]) -> dict[str, Partition]:
        partitions = self._cluster.view.partitions
        entries = {name: partitions.get(PhysicalTablePath(info.path, name)) for name in names}
        return {name: partition for name, partition in entries.items() if partition is not None}

    def _create(self, info: TableInfo, name: str) -> None:
        if not self._may_create:
            raise NotFound(
                f"table {info.path} has no partition '{name}', and writers may not create it "
                "('client.writer.dynamic-create-partition.enabled' is false)",
                ErrorCode.PARTITION_NOT_EXISTS,
            )
        request = pb.CreatePartitionRequest(
            table_path=table_path_to_pb(info.path),
            partition_spec=partition_spec_to_pb(_spec(info, name).items()),
            ignore_if_not_exists=True,  # the field's name in Fluss; "if exists" is what it means
        )
        self._cluster.coordinator_call(ApiKey.CREATE_PARTITION, request, pb.CreatePartitionResponse, repeatable=True)

    def _learn(self, info: TableInfo, names: Sequence[str]) -> None:
        """Load existing partitions into the view. A new one may not be visible immediately."""
        paths = [PhysicalTablePath(info.path, name) for name in names]

        def attempt() -> None:
            try:
                self._cluster.refresh([info.path], paths)
            except ForebayError as e:
                if e.code == ErrorCode.PARTITION_NOT_EXISTS:
                    raise Unavailable(e.message, ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION) from e
                raise

        self._cluster.retrying(attempt, stale=lambda: None)


def _spec(info: TableInfo, name: str) -> dict[str, str]:
    """The value of each partition key, as text, of the partition with this name."""
    keys = info.descriptor.partition_keys
    return dict(zip(keys, name.split("$") if len(keys) > 1 else [name], strict=True))


class BucketChooser:
    """Assigns buckets to batches of log tables without a bucket key: "sticky" or "round_robin", as in Fluss.

    Round robin assigns each batch to the next bucket. Sticky stays with a bucket until a batch is full and then
    switches to another one at random; since batches arrive here full, it switches for each batch.
    """

    def __init__(self, cluster: ClusterClient, assigner: str) -> None:
        self._cluster = cluster
        self._sticky = assigner == "sticky"
        self._ids: IdSource = cluster.ids
        self._lock = threads.lock()
        self._last: dict[tuple[int, int | None], int] = {}

    def __call__(self, info: TableInfo, partition_id: int | None, bucket_count: int) -> int:
        """The bucket for the next batch."""
        if bucket_count == 1:
            return 0
        leaders = self._cluster.view.leaders
        buckets = [b for b in range(bucket_count) if TableBucket(info.table_id, b, partition_id) in leaders]
        buckets = buckets or list(range(bucket_count))
        key = (info.table_id, partition_id)
        with self._lock:
            last = self._last.get(key)
            if self._sticky:
                others = [bucket for bucket in buckets if bucket != last] or buckets
                choice = others[min(int(self._ids.uniform(0, len(others))), len(others) - 1)]
            else:
                choice = buckets[0 if last is None else next((i for i, b in enumerate(buckets) if b > last), 0)]
            self._last[key] = choice
        return choice
