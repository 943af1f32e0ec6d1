"""Values of `forebay.metadata` <-> messages, and per-bucket errors <-> exceptions.

Pairs of functions, each the inverse of the other: `x_to_pb` and `x_from_pb`. They check nothing that a message class
has not checked already: whether a name is allowed or a table exists is for whoever uses it to say. Filters have a
module of their own (`forebay.protocol.predicates`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from forebay.base.errors import ForebayError, error_from_wire, wire_code
from forebay.metadata.table import PartitionInfo, PhysicalTablePath, TableBucket, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ServerRole
from forebay.protocol.messages import sendable_text

PartitionSpec = tuple[tuple[str, str], ...]
"""Partition keys with their values, in key order; in filters only some of the keys."""


@dataclass(frozen=True, slots=True)
class ServerNode:
    """A server as clients see it: its address is that of the listener they connected to."""

    node_id: int
    host: str
    port: int
    role: ServerRole
    rack: str | None = None

    def __str__(self) -> str:
        kind = "coordinator" if self.role is ServerRole.COORDINATOR else "tablet server"
        return f"{kind} {self.node_id} at {self.host}:{self.port}"


class PerBucketAnswer(Protocol):
    """A message with an error pair of its own: every `Pb...RespForBucket`, LimitScanResponse, ScanKvResponse."""

    error_code: int
    error_message: str

    def HasField(self, field_name: str) -> bool: ...


def table_path_to_pb(path: TablePath) -> pb.PbTablePath:
    return pb.PbTablePath(database_name=path.database, table_name=path.table)


def table_path_from_pb(message: pb.PbTablePath) -> TablePath:
    return TablePath(message.database_name, message.table_name)


def physical_path_to_pb(path: PhysicalTablePath) -> pb.PbPhysicalTablePath:
    return pb.PbPhysicalTablePath(
        database_name=path.table.database, table_name=path.table.table, partition_name=path.partition
    )


def physical_path_from_pb(message: pb.PbPhysicalTablePath) -> PhysicalTablePath:
    partition = message.partition_name if message.HasField("partition_name") else None
    return PhysicalTablePath(TablePath(message.database_name, message.table_name), partition)


def table_bucket_to_pb(bucket: TableBucket) -> pb.PbTableBucket:
    return pb.PbTableBucket(table_id=bucket.table_id, partition_id=bucket.partition_id, bucket_id=bucket.bucket)


class _HasPartitionId(Protocol):
    partition_id: int

    def HasField(self, field_name: str) -> bool: ...


def partition_id_of(message: _HasPartitionId) -> int | None:
    """The partition id in any message that may have one; None if absent."""
    return message.partition_id if message.HasField("partition_id") else None


def partition_spec_to_pb(spec: Iterable[tuple[str, str]]) -> pb.PbPartitionSpec:
    return pb.PbPartitionSpec(partition_key_values=[pb.PbKeyValue(key=key, value=value) for key, value in spec])


def partition_spec_from_pb(message: pb.PbPartitionSpec) -> PartitionSpec:
    return tuple((entry.key, entry.value) for entry in message.partition_key_values)


def partition_info_to_pb(partition: PartitionInfo) -> pb.PbPartitionInfo:
    return pb.PbPartitionInfo(partition_id=partition.partition_id, partition_spec=partition_spec_to_pb(partition.spec))


def partition_info_from_pb(message: pb.PbPartitionInfo) -> PartitionInfo:
    return PartitionInfo(message.partition_id, partition_spec_from_pb(message.partition_spec))


def server_node_to_pb(node: ServerNode) -> pb.PbServerNode:
    return pb.PbServerNode(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)


def server_node_from_pb(message: pb.PbServerNode, role: ServerRole) -> ServerNode:
    """Return the node; the field of MetadataResponse that contains it determines its role."""
    rack = message.rack if message.HasField("rack") else None
    return ServerNode(message.node_id, message.host, message.port, role, rack)


def error_of(answer: PerBucketAnswer) -> ForebayError | None:
    """The error in a per-bucket response; None for success (code absent or 0)."""
    if not answer.HasField("error_code") or answer.error_code == 0:
        return None
    return error_from_wire(answer.error_code, answer.error_message)


def error_to_wire(error: BaseException) -> tuple[int, str]:
    """The code and text of `error` on the wire, in an error frame or in a per-bucket response."""
    text = error.message if isinstance(error, ForebayError) else f"{type(error).__name__}: {error}"
    return wire_code(error), sendable_text(text)
