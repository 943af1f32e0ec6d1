"""Requests that change options and add partitions."""

from __future__ import annotations

from forebay.protocol.messages import partition_spec_to_pb
from tests.server.raw_client import ApiKey, pb
from tests.server.running import Bench

SET, RESET = 0, 1


def change(key: str, op_type: int, value: str | None = None) -> pb.PbAlterConfig:
    return pb.PbAlterConfig(config_key=key, op_type=op_type, config_value=value)


def add_partition(bench: Bench, name: str, value: str) -> None:
    bench.coordinator.call(
        ApiKey.CREATE_PARTITION,
        pb.CreatePartitionRequest(
            table_path=bench.path(name),
            partition_spec=partition_spec_to_pb([("s", value)]),
            ignore_if_not_exists=False,
        ),
    )
