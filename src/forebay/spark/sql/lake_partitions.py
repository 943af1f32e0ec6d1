"""Partitions of a lake's table as Spark manages them: SHOW, DROP and TRUNCATE PARTITION.

A partition is there as long as it has files. So none can be added, and one that is emptied is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay.base.errors import AlreadyExists, UnsupportedOperation
from forebay.metadata.table import Column
from forebay.paimon.commit.partition_filter import partition_filter
from forebay.paimon.format.arrow import arrow_type
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import ManifestEntry
from forebay.spark.jvm.gateway import JavaObject
from forebay.spark.schemas import spark_arrow_schema
from forebay.spark.sql.partition_proxies import PartitionManagement

if TYPE_CHECKING:
    from forebay.paimon.table import Table


class LakePartitions(PartitionManagement):
    """The partitions of a table of a lake, in its latest snapshot."""

    if TYPE_CHECKING:
        _table: Table

    def _keys(self) -> list[Column]:
        return [Column(f.name, f.type, f.description) for f in self._table.schema.partition_fields]

    def _entries(self, values: Mapping[str, Any]) -> list[ManifestEntry]:
        """The files of the partitions that have these values."""
        latest = self._table.context.snapshots.latest()
        if latest is None:
            return []
        matches = partition_filter(self._table.schema, values)
        return [e for e in self._table.context.manifests.live_files(latest) if matches is None or matches(e.partition)]

    def _partitions_with(self, values: Mapping[str, Any]) -> pa.Table:
        fields = self._table.schema.partition_fields
        layout = row_layout(fields)
        found = sorted({e.partition for e in self._entries(values)})
        rows = [layout.decode(partition) for partition in found]
        schema = spark_arrow_schema(self._partition_schema())
        columns = [pa.array([row[i] for row in rows], arrow_type(f.type)) for i, f in enumerate(fields)]
        return pa.Table.from_arrays([c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)

    def _add_partition(self, values: Mapping[str, Any]) -> None:
        if self._entries(values):
            raise AlreadyExists(f"partition {dict(values)} of table {self._name} is there already")
        raise UnsupportedOperation(
            f"partitions of table {self._name} cannot be added: a partition is there as soon as rows are in it"
        )

    def _remove_partitions(self, partitions: Sequence[Mapping[str, Any]]) -> None:
        self._table.new_commit().drop_partitions(partitions)

    def dropPartitions(self, rows: JavaObject) -> bool:
        """In one commit. Partitions that are not there are not missed: Spark has looked before."""
        self._remove_partitions([self._values(row) for row in rows])
        return True

    def truncatePartition(self, row: JavaObject) -> bool:
        return bool(self.dropPartition(row))

    def truncatePartitions(self, rows: JavaObject) -> bool:
        return bool(self.dropPartitions(rows))

    def loadPartitionMetadata(self, row: JavaObject) -> JavaObject:
        """What DESCRIBE ... PARTITION and SHOW TABLE EXTENDED show, by the names of `$partitions`."""
        files = [e.file for e in self._entries(self._values(row))]
        return self.jvm.map(
            {
                "record_count": str(sum(f.row_count for f in files)),
                "file_size_in_bytes": str(sum(f.file_size for f in files)),
                "file_count": str(len(files)),
            }
        )
