"""Creating and dropping the partitions of a table; listing them is in forebay.client.planning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.client.cluster import ClusterClient
from forebay.client.planning import partition_texts
from forebay.metadata.table import TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.convert import partition_spec_to_pb, table_path_to_pb


def create_partition(
    cluster: ClusterClient, info: TableInfo, values: Mapping[str, Any], ignore_if_exists: bool
) -> None:
    """Create a partition. Raises `AlreadyExists`, and `InvalidRequest` for values that cannot be."""
    request = pb.CreatePartitionRequest(
        table_path=table_path_to_pb(info.path),
        partition_spec=_spec(info, values),
        ignore_if_not_exists=ignore_if_exists,  # the field's name in Fluss; "if exists" is what it means
    )
    cluster.coordinator_call(ApiKey.CREATE_PARTITION, request, pb.CreatePartitionResponse, repeatable=ignore_if_exists)


def drop_partition(
    cluster: ClusterClient, info: TableInfo, values: Mapping[str, Any], ignore_if_not_exists: bool
) -> None:
    """Drop a partition with its rows. Raises `NotFound` (PARTITION_NOT_EXISTS)."""
    request = pb.DropPartitionRequest(
        table_path=table_path_to_pb(info.path),
        partition_spec=_spec(info, values),
        ignore_if_not_exists=ignore_if_not_exists,
    )
    cluster.coordinator_call(ApiKey.DROP_PARTITION, request, pb.DropPartitionResponse, repeatable=ignore_if_not_exists)


def _spec(info: TableInfo, values: Mapping[str, Any]) -> pb.PbPartitionSpec:
    return partition_spec_to_pb(list(partition_texts(info, values).items()))
