"""The partitions that a union read covers, on either side. Partitions of the two are matched by their values.

A partition that the stream has dropped may live on in the lake, and a new partition of the stream is not in the lake
yet. A filter on partition columns alone prunes whole partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import pyarrow as pa

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest
from forebay.client.cluster.partitions import PartitionSelector, partition_texts
from forebay.client.row_view import RowView
from forebay.codec.arrow.arrow_types import storage_schema
from forebay.codec.filters import bound_conjuncts, columns_of, join, mask
from forebay.metadata.partitions import partition_name, partition_text, partition_value
from forebay.metadata.table import PartitionInfo, TableInfo
from forebay.metadata.types import TypeRoot
from forebay.unionread.lake_side import on_columns

Values = tuple[str, ...]
"""A partition's values in the order of the partition keys, as the texts of its name; () in other tables."""

_ONE_TEXT_ROOTS = frozenset(
    {TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INT, TypeRoot.BIGINT, TypeRoot.BOOLEAN, TypeRoot.DATE}
)
"""Types whose values have a canonical text, though partitions may use another one (007, TRUE)."""


class PartitionFilter:
    """Decides which partitions a read covers: those chosen by the user, except those that the filter rules out."""

    def __init__(
        self,
        view: RowView,
        selectors: Sequence[PartitionSelector] | PartitionSelector | None,
    ) -> None:
        info = view.info
        keys = info.descriptor.partition_keys
        if selectors is not None and not keys:
            raise InvalidRequest(f"table {info.path} is not partitioned", ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION)
        self._columns = [info.schema.column(key) for key in keys]
        self._chosen = None if selectors is None else [_chosen(info, s) for s in _listed(selectors)]
        self.predicate = on_columns(view.predicate, keys) if keys else None
        """The part of the filter that only refers to partition keys."""
        self._bound = (
            join([part for part in bound_conjuncts(view.bound) if columns_of(part) <= set(keys)]) if keys else None
        )

    def covers(self, values: Values) -> bool:
        """Return whether the partition may have matching rows."""
        if not values:
            return True
        return self._is_chosen(values) and self._may_match(values)

    def _is_chosen(self, values: Values) -> bool:
        if self._chosen is None:
            return True
        by_name = {column.name: value for column, value in zip(self._columns, values, strict=True)}
        name = partition_name(values)
        return any(
            name == choice if isinstance(choice, str) else all(by_name[key] == text for key, text in choice.items())
            for choice in self._chosen
        )

    def _may_match(self, values: Values) -> bool:
        """Return False only if no row of the partition can match.

        A lake may have partitions of null, which a stream has not, and represents them by some text that may also be a
        value. So each nullable value is also tried as null.
        """
        if self._bound is None:
            return True
        try:
            typed = {c.name: partition_value(c.data_type, text) for c, text in zip(self._columns, values, strict=True)}
            if any(partition_text(c.data_type, typed[c.name]) != text for c, text in zip(self._columns, values)):
                return True  # the text has more information than the value parsed from it
            nullable = [c.name for c in self._columns if c.data_type.nullable]
            alike = [
                {**typed, **dict.fromkeys(some)} for n in range(len(nullable) + 1) for some in combinations(nullable, n)
            ]
            rows = pa.RecordBatch.from_pylist(alike, schema=storage_schema(self._columns))
        except (ForebayError, pa.ArrowException, TypeError, ValueError):
            return True
        return any(mask(self._bound, rows).to_pylist())


def _listed(selectors: Sequence[PartitionSelector] | PartitionSelector) -> Sequence[PartitionSelector]:
    return [selectors] if isinstance(selectors, str | Mapping) else selectors


def _chosen(info: TableInfo, selector: PartitionSelector) -> str | dict[str, str]:
    if isinstance(selector, str):
        return selector
    unknown = [key for key in selector if key not in info.descriptor.partition_keys]
    if unknown:
        raise InvalidRequest(
            f"table {info.path} is partitioned by {list(info.descriptor.partition_keys)}, not by {unknown}",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )
    return partition_texts(info, selector)


class PartitionMatch:
    """The stream's partitions, found by a lake's partition values."""

    def __init__(self, info: TableInfo, partitions: Iterable[PartitionInfo]) -> None:
        self._columns = [info.schema.column(key) for key in info.descriptor.partition_keys]
        self._ids = {tuple(value for _, value in p.spec): p.partition_id for p in partitions}
        alike: dict[Values, list[int]] = {}
        for values, partition_id in self._ids.items():
            alike.setdefault(self._plain(values), []).append(partition_id)
        self._alike = {values: ids[0] for values, ids in alike.items() if len(ids) == 1}

    def find(self, values: Values) -> int | None:
        """Return the id of the stream's partition; None if there is none with these values."""
        partition_id = self._ids.get(values)
        return self._alike.get(self._plain(values)) if partition_id is None else partition_id

    def _plain(self, values: Values) -> Values:
        return tuple(_plain_text(column.data_type, text) for column, text in zip(self._columns, values, strict=True))


def _plain_text(data_type: Any, text: str) -> str:
    if data_type.root not in _ONE_TEXT_ROOTS:
        return text
    try:
        return partition_text(data_type, partition_value(data_type, text))
    except (ForebayError, TypeError, ValueError):
        return text
