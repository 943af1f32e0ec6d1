"""ANALYZE: statistics of a table's rows and columns, in a file referenced by a separate snapshot.

The JSON is Paimon's (`statistics/stat-<uuid>-<n>`): the number of rows after merging and their estimated size, and for
columns the number of distinct values, minimum and maximum (as text), nulls, and average and maximum length of text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import CorruptData
from forebay.metadata.types import NESTED_ROOTS, TypeRoot
from forebay.paimon.format.partition_path import value_text
from forebay.paimon.format.schema import DataField
from forebay.paimon.format.stats import column_value
from forebay.paimon.store.context import TableContext


@dataclass(frozen=True)
class ColumnStatistics:
    """The statistics of a column. None: unknown, or, for bounds, no values."""

    column_id: int
    distinct_count: int | None = None
    min: str | None = None
    max: str | None = None
    null_count: int | None = None
    average_length: int | None = None
    max_length: int | None = None


@dataclass(frozen=True)
class Statistics:
    """The statistics of a table in a snapshot."""

    snapshot_id: int
    schema_id: int
    merged_record_count: int | None = None
    merged_record_size: int | None = None
    columns: Mapping[str, ColumnStatistics] = field(default_factory=dict)


_COLUMN_KEYS = {
    "colId": "column_id",
    "distinctCount": "distinct_count",
    "min": "min",
    "max": "max",
    "nullCount": "null_count",
    "avgLen": "average_length",
    "maxLen": "max_length",
}


def format_statistics(statistics: Statistics) -> bytes:
    """The contents of a statistics file."""
    node: dict[str, Any] = {"snapshotId": statistics.snapshot_id, "schemaId": statistics.schema_id}
    if statistics.merged_record_count is not None:
        node["mergedRecordCount"] = statistics.merged_record_count
    if statistics.merged_record_size is not None:
        node["mergedRecordSize"] = statistics.merged_record_size
    node["colStats"] = columns_json(statistics.columns)
    return json.dumps(node, indent=2, ensure_ascii=False).encode()


def columns_json(columns: Mapping[str, ColumnStatistics]) -> dict[str, dict[str, Any]]:
    """The statistics of columns as JSON objects; unknown ones are omitted."""
    return {
        name: {key: value for key, attribute in _COLUMN_KEYS.items() if (value := getattr(c, attribute)) is not None}
        for name, c in columns.items()
    }


def parse_statistics(data: bytes) -> Statistics:
    """The statistics in a file's contents. Raises `CorruptData`."""
    try:
        node = json.loads(data)
        columns = {
            name: ColumnStatistics(**{_COLUMN_KEYS[k]: v for k, v in c.items() if k in _COLUMN_KEYS})
            for name, c in (node.get("colStats") or {}).items()
        }
        return Statistics(
            node["snapshotId"], node["schemaId"], node.get("mergedRecordCount"), node.get("mergedRecordSize"), columns
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise CorruptData(f"a statistics file is malformed: {type(e).__name__} {e}") from e


def read_statistics(table: TableContext, name: str) -> Statistics:
    """The statistics in file `name`. Raises `NotFound`."""
    return parse_statistics(table.io.read(table.paths.statistics(name)))


class StatisticsCollector:
    """Collects the statistics of columns, batch by batch. Keeps the distinct values of each column in memory."""

    def __init__(self, fields: Iterable[DataField]) -> None:
        self._columns = [_Column(f) for f in fields]
        self.rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for column in self._columns:
            column.add(batch.column(column.field.name))

    def result(self) -> dict[str, ColumnStatistics]:
        return {c.field.name: c.result(self.rows) for c in self._columns}


class _Column:
    def __init__(self, f: DataField) -> None:
        self.field = f
        self._nested = f.type.root in NESTED_ROOTS
        self._nulls = 0
        self._distinct: pa.Array | None = None
        self._bytes = self._longest = 0
        self._has_length = False

    def add(self, values: pa.Array) -> None:
        self._nulls += values.null_count
        if self._nested:
            return
        present = pc.drop_null(values)
        if pa.types.is_string(present.type) or pa.types.is_binary(present.type):
            lengths = pc.binary_length(present)
            self._has_length = True
            self._bytes += pc.sum(lengths).as_py() or 0
            self._longest = max(self._longest, pc.max(lengths).as_py() or 0)
        distinct = pc.unique(present)
        self._distinct = distinct if self._distinct is None else pc.unique(pa.concat_arrays([self._distinct, distinct]))

    def result(self, rows: int) -> ColumnStatistics:
        if self._nested:
            return ColumnStatistics(self.field.id, null_count=self._nulls)
        distinct = self._distinct
        count = 0 if distinct is None else len(distinct)
        filled = rows - self._nulls
        return ColumnStatistics(
            self.field.id,
            count,
            *self._bounds(distinct),
            self._nulls,
            -(-self._bytes // filled) if self._has_length and filled else None,
            self._longest if self._has_length else None,
        )

    def _bounds(self, distinct: pa.Array | None) -> tuple[str | None, str | None]:
        t = self.field.type
        if distinct is None or len(distinct) == 0 or pa.types.is_binary(distinct.type):
            return None, None
        extremes = pc.min_max(distinct)
        low, high = (column_value(extremes[side], t) for side in ("min", "max"))
        # Java reads dates and times as numbers, and timestamps as SQL text.
        legacy = t.root in (TypeRoot.DATE, TypeRoot.TIME)
        return (
            None if low is None else value_text(t, low, legacy),
            None if high is None else value_text(t, high, legacy),
        )


def collect(
    batches: Iterator[pa.RecordBatch], fields: Sequence[DataField], snapshot_id: int, schema_id: int
) -> Statistics:
    """The statistics of all rows in `batches`; the size is left unknown."""
    collector = StatisticsCollector(fields)
    for batch in batches:
        collector.add(batch)
    return Statistics(snapshot_id, schema_id, collector.rows, None, collector.result())
