"""`CHANGES` of live tables. A version is a log offset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import StructType

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.metadata.table import TableInfo
from forebay.spark.context import LiveContext
from forebay.spark.options import STARTUP_MODE, STARTUP_TIMESTAMP, is_for_streams, read_options
from forebay.spark.read_modes import ReadMode
from forebay.spark.reading.live_changes import scan_of
from forebay.spark.reading.plan import ChangesRange, Pushdown, ScanPlan
from forebay.spark.reading.relation import ChangesRelation
from forebay.spark.sql.changelogs import TableChanges
from forebay.spark.sql.live_relation import live_stream
from forebay.spark.streaming.micro_batches import MicroBatchStream


@dataclass(frozen=True)
class LiveTableChanges(TableChanges):
    """The changes of a live table."""

    context: LiveContext
    name: str
    info: TableInfo

    def version(self, text: str) -> int:
        """The log offset. Raises `UnsupportedOperation` for tables of several buckets, which have no common offsets."""
        info = self.info
        if info.is_partitioned or info.bucket_count > 1:
            raise UnsupportedOperation(
                f"CHANGES FROM VERSION: table {info.path} has several buckets, each with versions of its own. Use "
                f"CHANGES FROM TIMESTAMP, or {info.path}$changelog"
            )
        if not text.isdigit():
            raise InvalidRequest(f"'{text}' is no version of a live table: these are log offsets, from 0 on")
        return int(text)

    def relation(self, changes: ChangesRange, is_net: bool, options: Mapping[str, str]) -> LiveChangesRelation:
        return LiveChangesRelation(self, changes, is_net, options)


class LiveChangesRelation(ChangesRelation):
    """The changes in a range."""

    def __init__(
        self, table: LiveTableChanges, changes: ChangesRange, is_net: bool, options: Mapping[str, str]
    ) -> None:
        context, info = table.context, table.info
        now = {} if is_for_streams(options) else options
        self._scan = scan_of(info, read_options(context.settings, info.descriptor, now), changes=changes)
        super().__init__(f"{table.name} CHANGES", self._scan.schema, (), info.schema.primary_key, changes, is_net)
        self._context, self._info, self._options = context, info, options

    def plan(self, pushdown: Pushdown, schema: StructType) -> ScanPlan:
        read_options(self._context.settings, self._info.descriptor, self._options)
        return self._scan.plan(self._context.connection, self._context.cores, pushdown, schema)

    def _stream(self, schema: StructType, mode: ReadMode) -> MicroBatchStream:
        for name in self._options:
            if name.lower() in (STARTUP_MODE, STARTUP_TIMESTAMP):
                raise InvalidRequest(f"{self.name}: leave '{name}' out, the range says where the stream begins")
        return live_stream(self._context, self._info, self._options, schema, mode, changes=self._range)
