"""Partitions of a table: listed, selected by their values, created, dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forebay.base.errors import ErrorCode, InvalidRequest, NotFound
from forebay.client.cluster.cluster import ClusterClient
from forebay.metadata.partitions import matches_partial, partition_text
from forebay.metadata.table import PartitionInfo, TableInfo, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import (
    partition_info_from_pb,
    partition_spec_to_pb,
    table_path_to_pb,
)

PartitionSelector = str | Mapping[str, Any]
"""A partition by its name ("2024-01-15$EMEA"), or all partitions with these values of some keys.

Values are of the key's type (`datetime.date(2024, 1, 15)`, `True`), or their text in names."""


def partition_texts(info: TableInfo, spec: Any) -> dict[str, str]:
    """Partition values as they are written in partition names. Text is used as it is; values may be of the key's type.

    Raises `InvalidRequest` (PARTITION_SPEC_INVALID) for a value of another type.
    """
    if not isinstance(spec, Mapping):
        keys = ", ".join(info.descriptor.partition_keys)
        raise InvalidRequest(
            f"{spec!r} is not a partition of table {info.path}: write a dict with values of its keys ({keys})",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )
    texts = {}
    for key, value in spec.items():
        if isinstance(value, str) or key not in info.descriptor.partition_keys:
            texts[key] = str(value)
            continue
        data_type = info.schema.column(key).data_type
        try:
            texts[key] = partition_text(data_type, value)
        except (TypeError, ValueError, AttributeError) as e:
            raise InvalidRequest(
                f"{value!r} is not a value of partition key '{key}' of table {info.path}, which is {data_type}",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            ) from e
    return texts


def list_partitions(
    cluster: ClusterClient, path: TablePath, partial: Mapping[str, Any] | None = None
) -> list[PartitionInfo]:
    """The partitions of a table, only those with the values of `partial`."""
    request = pb.ListPartitionInfosRequest(table_path=table_path_to_pb(path))
    values = dict(partial or {})
    if any(not isinstance(value, str) for value in values.values()):
        values = partition_texts(cluster.table_info(path), values)
    if values:
        request.partial_partition_spec.CopyFrom(partition_spec_to_pb(list(values.items())))
    response = cluster.any_call(ApiKey.LIST_PARTITION_INFOS, request, pb.ListPartitionInfosResponse)
    partitions = [partition_info_from_pb(message) for message in response.partitions_info]
    return [partition for partition in partitions if matches_partial(partition, values)]


def select_partitions(
    cluster: ClusterClient, info: TableInfo, selectors: Sequence[PartitionSelector] | PartitionSelector | None
) -> list[PartitionInfo]:
    """The existing partitions that `selectors` match (None: all), each once, in the order of their ids.

    Raises `NotFound` (PARTITION_NOT_EXISTS) for a name that no partition has.
    """
    existing = list_partitions(cluster, info.path)
    if selectors is None:
        return sorted(existing, key=lambda partition: partition.partition_id)
    by_id: dict[int, PartitionInfo] = {}
    for selector in [selectors] if isinstance(selectors, str | Mapping) else selectors:
        if isinstance(selector, str):
            matches = [partition for partition in existing if partition.name == selector]
            if not matches:
                raise NotFound(f"table {info.path} has no partition '{selector}'", ErrorCode.PARTITION_NOT_EXISTS)
        else:
            unknown = [key for key in selector if key not in info.descriptor.partition_keys]
            if unknown:
                raise InvalidRequest(
                    f"table {info.path} is partitioned by {list(info.descriptor.partition_keys)}, not by {unknown}",
                    ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
                )
            texts = partition_texts(info, selector)
            matches = [partition for partition in existing if matches_partial(partition, texts)]
        by_id.update({partition.partition_id: partition for partition in matches})
    return [by_id[partition_id] for partition_id in sorted(by_id)]


def create_partition(
    cluster: ClusterClient, info: TableInfo, values: Mapping[str, Any], ignore_if_exists: bool
) -> None:
    """Create a partition. Raises `AlreadyExists`, and `InvalidRequest` for values that cannot be."""
    request = pb.CreatePartitionRequest(
        table_path=table_path_to_pb(info.path),
        partition_spec=_spec_to_pb(info, values),
        ignore_if_not_exists=ignore_if_exists,  # the field's name in Fluss; "if exists" is what it means
    )
    cluster.coordinator_call(ApiKey.CREATE_PARTITION, request, pb.CreatePartitionResponse, repeatable=ignore_if_exists)


def drop_partition(
    cluster: ClusterClient, info: TableInfo, values: Mapping[str, Any], ignore_if_not_exists: bool
) -> None:
    """Drop a partition with its rows. Raises `NotFound` (PARTITION_NOT_EXISTS)."""
    request = pb.DropPartitionRequest(
        table_path=table_path_to_pb(info.path),
        partition_spec=_spec_to_pb(info, values),
        ignore_if_not_exists=ignore_if_not_exists,
    )
    cluster.coordinator_call(ApiKey.DROP_PARTITION, request, pb.DropPartitionResponse, repeatable=ignore_if_not_exists)


def _spec_to_pb(info: TableInfo, values: Mapping[str, Any]) -> pb.PbPartitionSpec:
    return partition_spec_to_pb(list(partition_texts(info, values).items()))
