"""`CHANGES` of lake tables: what each snapshot of a range changed (forebay.paimon.read.commit_changes), for Spark.

A version is a snapshot's number; all changes of a snapshot have its time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from forebay.api.changes import SPARK_CHANGE_TYPES, change_numbers
from forebay.base.errors import NotFound
from forebay.client.arrays import array_of
from forebay.codec.arrow.small_arrays import text_array
from forebay.paimon.merge._order import group_starts, sort_rows
from forebay.paimon.merge.order import sort_key
from forebay.paimon.read.change_planner import ChangeSplit
from forebay.paimon.read.commit_changes import CommitScan
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.startup import Startup
from forebay.spark.reading.lake_plan import DealtTasks, PaimonScan
from forebay.spark.reading.lake_read import CHANGES, PaimonRead
from forebay.spark.reading.plan import ChangesRange, Pushdown, Serves
from forebay.spark.schemas import columns_of, spark_arrow_schema, to_spark_schema

_OF_COMMITS = (
    StructField("_change_type", StringType(), False),
    StructField("_commit_version", LongType(), False),
    StructField("_commit_timestamp", TimestampType(), False),
)
_SPARK_TYPES = text_array(*SPARK_CHANGE_TYPES)
_INSERT, _UPDATE_BEFORE, _UPDATE_AFTER, _DELETE = range(len(_SPARK_TYPES))


@dataclass(frozen=True)
class LakeChangesScan(PaimonScan):
    """The changes of a lake table in a range. `is_net`: the net change of each key in each snapshot."""

    range: ChangesRange = field(default_factory=ChangesRange)
    is_net: bool = False

    @property
    def form(self) -> str:
        return CHANGES

    @property
    def schema(self) -> StructType:
        return StructType([*to_spark_schema(columns_of(self.table.schema)).fields, *_OF_COMMITS])

    def read_function(self, pushdown: Pushdown, schema: StructType) -> LakeChangesRead:
        rows = [f for f in schema if f.name in self.table.schema.names]
        columns = tuple(dict.fromkeys(path for f in rows for path in self._paths(f)))
        arrow = spark_arrow_schema(schema)
        keys = self.table.schema.primary_keys if self.is_net else ()
        return LakeChangesRead(self.table, self.name, columns, arrow, pushdown.filter, pushdown.limit, CHANGES, keys)

    def commits(self, scan_filter: ScanFilter, *, cut_by_file: bool = False) -> CommitScan:
        """The changes from the beginning of the range on."""
        changes = self.range
        return CommitScan(self.table, scan_filter, changes.start, is_time=changes.is_of_times, cut_by_file=cut_by_file)

    def _work(self, cores: int, pushdown: Pushdown, serves: Serves | None) -> DealtTasks:
        splits = self.commits(ScanFilter.of(self.table.schema, pushdown.filter)).splits(self.range.stop)
        return self._dealt(splits, cores, pushdown, serves)


@dataclass(frozen=True)
class LakeChangesRead(PaimonRead):
    """Reads the changes of snapshots; with `net_of`, a key, at most two changes of each key and snapshot."""

    net_of: tuple[str, ...] = ()

    def _rows(self, split: ChangeSplit) -> Iterator[pa.RecordBatch]:
        snapshot = Startup(self.table).readable(split.snapshot_id)
        if snapshot is None:
            raise NotFound(f"snapshot {split.snapshot_id} of {self.name} expired while its changes were read")
        constants = (snapshot.id, pa.int64()), (snapshot.time_millis, pa.timestamp("ms", "UTC"))
        for batch, kinds in self._changes_of(split):
            rows = batch.columns[1:]
            arrays = [_SPARK_TYPES.take(array_of(kinds))]
            arrays += [pa.repeat(pa.scalar(value, t), len(batch)) for value, t in constants]
            names = [f.name for f in _OF_COMMITS] + batch.schema.names[1:]
            yield pa.RecordBatch.from_arrays([*arrays, *rows], names)

    def _changes_of(self, split: ChangeSplit) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int8]]]:
        changed = self._changes.read(split)
        if not self.net_of:
            for batch in changed:
                yield batch, change_numbers(batch.column(0))
            return
        batches = list(changed)
        if batches:
            every = pa.concat_batches(batches)
            yield _net(every, change_numbers(every.column(0)), self.net_of)


def _net(
    changes: pa.RecordBatch, kinds: npt.NDArray[np.int8], key: tuple[str, ...]
) -> tuple[pa.RecordBatch, npt.NDArray[np.int8]]:
    """The net effect of the `changes` of each key, with kinds: Spark cannot order the changes of one snapshot."""
    keys = sort_key([changes.column(name) for name in key], zeros_equal=True)
    order = sort_rows([keys])
    starts = group_starts(keys, order)[:-1]
    first, last = np.minimum.reduceat(order, starts), np.maximum.reduceat(order, starts)
    was = (kinds[first] == _UPDATE_BEFORE) | (kinds[first] == _DELETE)
    remains = (kinds[last] == _INSERT) | (kinds[last] == _UPDATE_AFTER)
    at = np.concatenate([first[was], last[remains]])
    before = np.where(remains[was], _UPDATE_BEFORE, _DELETE)
    after = np.where(was[remains], _UPDATE_AFTER, _INSERT)
    in_place = np.argsort(at, kind="stable")
    net_kinds = np.concatenate([before, after])[in_place].astype(np.int8)
    return changes.take(array_of(at[in_place])), net_kinds
