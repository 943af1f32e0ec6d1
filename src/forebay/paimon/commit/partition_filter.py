"""Selecting partitions by the values of some partition columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forebay.base.errors import InvalidRequest
from forebay.codec.casting.literals import exact
from forebay.metadata.types import TypeRoot
from forebay.paimon.format.arrow import storage_type
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.partition_path import parse_value
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.options import CoreOptions

PartitionFilter = Callable[[bytes], bool]

_TEXT = (TypeRoot.STRING, TypeRoot.CHAR)


def partition_filter(schema: TableSchema, values: Mapping[str, Any] | None) -> PartitionFilter | None:
    """A filter for partitions with these values; None if no values are given, which matches all partitions.

    Values are Python values, or text as in a partition's directory; None stands for null. Raises `InvalidRequest` for a
    column that is not a partition key, or a value that does not fit its type.
    """
    if not values:
        return None
    names = schema.partition_keys
    unknown = [name for name in values if name not in names]
    if unknown:
        keys = ", ".join(names) or "none"
        raise InvalidRequest(f"'{unknown[0]}' is not a partition key; the partition keys are {keys}")
    default_name = CoreOptions(schema.options).partition_default_name
    requested: dict[int, Any] = {}
    for name, value in values.items():
        t = schema.field_named(name).type
        if isinstance(value, str) and (t.root not in _TEXT or value == default_name):
            value = parse_value(t, value, default_name)
        requested[names.index(name)] = None if value is None else exact(value, storage_type(t))
    layout = row_layout(schema.partition_fields)
    verdicts: dict[bytes, bool] = {}

    def matches(partition: bytes) -> bool:
        verdict = verdicts.get(partition)
        if verdict is None:
            decoded = layout.decode(partition)
            verdict = verdicts[partition] = all(decoded[i] == value for i, value in requested.items())
        return verdict

    return matches
