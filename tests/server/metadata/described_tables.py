"""Table descriptors, as a client sends them and as the server completes them."""

from __future__ import annotations

from collections.abc import Mapping

from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableDescriptor
from forebay.server.metadata.table_rules import (
    check_new_table,
    with_defaults,
)

K, V, P = Column("k", types.int_()), Column("v", types.string()), Column("p", types.string())


def described(
    *columns: Column,
    key: tuple[str, ...] = (),
    partitions: tuple[str, ...] = (),
    buckets: tuple[str, ...] = (),
    count: int | None = None,
    auto_increment: str | None = None,
    properties: Mapping[str, str] | None = None,
    custom: Mapping[str, str] | None = None,
) -> TableDescriptor:
    return TableDescriptor(
        Schema.of(columns or (K, V, P), key, auto_increment),
        partition_keys=partitions,
        bucket_keys=buckets,
        bucket_count=count,
        properties=properties or {},
        custom_properties=custom or {},
    )


def created(descriptor: TableDescriptor) -> TableDescriptor:
    complete = with_defaults(descriptor, 1, 1)
    check_new_table(complete, 8)
    return complete
