"""The partitions of a snapshot as users see them, and selecting some by name or by values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any, TypeAlias

import pyarrow as pa

from forebay.api.filters import as_predicate
from forebay.base.errors import InvalidRequest, NotFound
from forebay.metadata.predicate import Leaf, LeafFunction, Predicate
from forebay.paimon.commit.partition_filter import partition_filter
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import ManifestEntry
from forebay.paimon.format.partition_path import partition_spec
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.context import TableContext

PartitionSelector: TypeAlias = str | Mapping[str, Any]
"""A partition's name, or values of some partition keys."""


@dataclass(frozen=True)
class LakePartition:
    """A partition that has rows: its values as text, in the order of the partition keys, and its size."""

    spec: tuple[tuple[str, str], ...]
    files: int
    size_bytes: int
    rows: int
    """The number of rows in its files; in a table with a primary key, a read may return fewer."""

    @property
    def name(self) -> str:
        """The values joined by '$' in the order of the partition keys."""
        return "$".join(value for _, value in self.spec)


def partitions_of(
    table: TableContext, snapshot: Snapshot | None, values: Mapping[str, Any] | None = None
) -> list[LakePartition]:
    """The partitions of `snapshot`, by name; with `values`, those with these values of some partition keys.

    Raises `InvalidRequest` if the table is not partitioned or `values` do not fit its partition keys.
    """
    if not table.schema.partition_keys:
        raise InvalidRequest(f"{table.paths.root} is not partitioned")
    matches = partition_filter(table.schema, values)
    groups: dict[bytes, list[ManifestEntry]] = {}
    for entry in () if snapshot is None else table.manifests.live_files(snapshot):
        if matches is None or matches(entry.partition):
            groups.setdefault(entry.partition, []).append(entry)
    spec_of = _specs(table.schema)
    partitions = [
        LakePartition(
            tuple(spec_of(partition).items()),
            len(entries),
            sum(e.file.file_size for e in entries),
            sum(e.file.row_count for e in entries),
        )
        for partition, entries in groups.items()
    ]
    return sorted(partitions, key=lambda p: p.spec)


def _specs(schema: TableSchema) -> Callable[[bytes], dict[str, str]]:
    layout, default = row_layout(schema.partition_fields), CoreOptions(schema.options).partition_default_name
    return lambda partition: partition_spec(schema.partition_fields, layout.decode(partition), default, legacy=False)


def _listed(selectors: Any) -> list[Any]:
    if isinstance(selectors, str | Mapping):
        return [selectors]
    if not isinstance(selectors, Iterable):
        raise InvalidRequest(f"partitions={selectors!r} are no partitions: give names, or dicts of values")
    return list(selectors)


def partition_predicate(
    schema: TableSchema,
    arrow: pa.Schema,
    selectors: Sequence[PartitionSelector] | PartitionSelector | None,
) -> Predicate | None:
    """A filter for the rows of the partitions that `selectors` select, including future ones; None for all.

    Raises `InvalidRequest` for an invalid selector.
    """
    if selectors is None:
        return None
    if not schema.partition_keys:
        raise InvalidRequest(f"the table is not partitioned: leave out partitions={selectors!r}")
    entries = _listed(selectors)
    predicates = []
    for selector in entries:
        values = selector
        if isinstance(selector, str):
            texts = selector.split("$")
            if len(texts) != len(schema.partition_keys):
                raise InvalidRequest(f"'{selector}' names no partition by ({', '.join(schema.partition_keys)})")
            values = dict(zip(schema.partition_keys, texts, strict=True))
        if not isinstance(values, Mapping) or not values:
            raise InvalidRequest(f"{selector!r} is no partition: give its name, or a dict of values")
        partition_filter(schema, values)  # rejects columns that are not partition keys
        predicates.append(reduce(and_, (_equal(schema, arrow, name, value) for name, value in values.items())))
    return reduce(or_, predicates)


def _equal(schema: TableSchema, arrow: pa.Schema, name: str, value: Any) -> Predicate:
    if value is None or value == CoreOptions(schema.options).partition_default_name:
        return Leaf(LeafFunction.IS_NULL, name)
    if isinstance(value, str):  # converted to the column's type, as filters in SQL do
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        predicate = as_predicate(f"`{name}` = '{escaped}'", arrow)
        assert predicate is not None
        return predicate
    return Leaf(LeafFunction.EQUAL, name, (value,))


def selected(
    table: TableContext, snapshot: Snapshot | None, selectors: Sequence[PartitionSelector] | PartitionSelector | None
) -> Callable[[bytes], bool] | None:
    """A filter for the partitions that `selectors` select; None for all.

    Raises `NotFound` for a name that no partition of `snapshot` has, `InvalidRequest` for an invalid selector.
    """
    if selectors is None:
        return None
    if not table.schema.partition_keys:
        raise InvalidRequest(f"{table.paths.root} is not partitioned: leave out partitions={selectors!r}")
    entries = _listed(selectors)
    names = {selector for selector in entries if isinstance(selector, str)}
    tests: list[Callable[[bytes], bool]] = []
    for selector in entries:
        if isinstance(selector, Mapping):
            if not selector:
                raise InvalidRequest("a partition is chosen by values of its keys; got none. Leave partitions= out")
            test = partition_filter(table.schema, selector)
            assert test is not None
            tests.append(test)
        elif not isinstance(selector, str):
            raise InvalidRequest(f"{selector!r} is no partition: give its name, or a dict of values")
    if names:
        tests.append(_named(table, snapshot, names))
    return lambda partition: any(test(partition) for test in tests)


def _named(table: TableContext, snapshot: Snapshot | None, names: Iterable[str]) -> Callable[[bytes], bool]:
    existing = {partition.name for partition in partitions_of(table, snapshot)}
    for name in sorted(names):
        if name not in existing:
            raise NotFound(f"{table.paths.root} has no partition '{name}'")
    spec_of, requested = _specs(table.schema), frozenset(names)
    return lambda partition: "$".join(spec_of(partition).values()) in requested
