"""`CHANGES` of lake tables. A version is a snapshot's number, or a tag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import StructType

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.paimon.read.commit_changes import check_has_changes
from forebay.paimon.table import Table
from forebay.spark.context import LakeContext
from forebay.spark.lake_options import READ_CHANGELOG, lake_read_options
from forebay.spark.read_modes import ReadMode
from forebay.spark.reading.lake_changes import LakeChangesScan
from forebay.spark.reading.plan import ChangesRange, Pushdown, ScanPlan
from forebay.spark.reading.relation import ChangesRelation
from forebay.spark.sql.changelogs import TableChanges
from forebay.spark.streaming.lake_planner import LakeChangesPlanner
from forebay.spark.streaming.micro_batches import MicroBatchStream


@dataclass(frozen=True)
class LakeTableChanges(TableChanges):
    """The changes of a lake table, or of a branch of one."""

    context: LakeContext
    name: str
    table: Table

    def version(self, text: str) -> int:
        tag = self.table.context.tags.find(text)
        if tag is None and not text.isdigit():
            raise InvalidRequest(f"'{text}' is no version of table {self.name}: neither a snapshot's number nor a tag")
        return int(text) if tag is None else tag.snapshot.id

    def relation(self, changes: ChangesRange, is_net: bool, options: Mapping[str, str]) -> LakeChangesRelation:
        try:
            check_has_changes(self.table.context)
        except UnsupportedOperation as e:
            raise UnsupportedOperation(f"{self.name} has no CHANGES: {e.message}") from e
        return LakeChangesRelation(self, changes, is_net, options)


class LakeChangesRelation(ChangesRelation):
    """The changes in a range."""

    def __init__(self, of: LakeTableChanges, changes: ChangesRange, is_net: bool, options: Mapping[str, str]) -> None:
        table, has_key = of.table.context, of.table.context.schema.has_primary_key
        name = f"{of.name} CHANGES"
        if is_net and has_key and table.options.changelog_producer == "input":
            raise UnsupportedOperation(
                f"{name} have no deduplicationMode = netChanges: with changelog-producer input they are what writers "
                "said, and not what was there before"
            )
        self._read = lake_read_options(options)
        if self._read.table or self._read.changelog:
            option = next(iter(self._read.table), READ_CHANGELOG)
            raise InvalidRequest(f"{name} have no option '{option}': the range says what is read")
        self._scan = LakeChangesScan(table, of.name, range=changes, is_net=is_net and has_key)
        super().__init__(name, self._scan.schema, self._scan.columns, table.schema.primary_keys, changes, is_net)
        self.partition_keys = self._scan.partition_keys
        self._context = of.context

    def plan(self, pushdown: Pushdown, schema: StructType) -> ScanPlan:
        self._read.refuse_for_batches()
        return self._scan.plan(self._context.cores, pushdown, schema)

    def _stream(self, schema: StructType, mode: ReadMode) -> MicroBatchStream:
        context, pushdown = self._context, Pushdown(tuple(schema.fieldNames()))
        planner = LakeChangesPlanner(self._scan, pushdown, schema, self._read.limits, context.cores)
        return MicroBatchStream(context.jvm, planner, schema, mode)
