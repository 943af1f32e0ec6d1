"""Relations of lakes: a table, a system table that shows rows, or one snapshot of a table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.paimon.table import Table
from forebay.spark.context import LakeContext
from forebay.spark.jvm.hadoop import has_file_system
from forebay.spark.lake_options import (
    FORMAT_NAME,
    READ_CHANGELOG,
    READ_MODES,
    SESSION_PREFIXES,
    lake_read_options,
)
from forebay.spark.options import OWN_SESSION_PREFIX
from forebay.spark.read_modes import READ_COLUMNAR, READ_NATIVE, ReadMode
from forebay.spark.reading.lake_plan import READ_OPTIMIZED, PaimonScan
from forebay.spark.reading.plan import Pushdown, ScanPlan
from forebay.spark.reading.relation import Relation
from forebay.spark.streaming.lake_planner import LakeStreamPlanner
from forebay.spark.streaming.micro_batches import MicroBatchStream

if TYPE_CHECKING:
    from forebay.spark.reading.buckets import BucketPlan

_SNAPSHOT_ID = "scan.snapshot-id"


class LakeRelation(Relation):
    """A lake table, or one of its `lake_plan.SYSTEM_TABLES`, which is `system`.

    The columns are those of the table, or of the snapshot that the table's own options name. Options of the read select
    the snapshot or changes, unless a statement requires a certain snapshot.
    """

    def __init__(
        self,
        context: LakeContext,
        name: str,
        table: Table,
        options: Mapping[str, str],
        system: str | None = None,
        *,
        snapshot: str | None = None,
    ) -> None:
        """Raises `InvalidRequest` for wrong options, and `NotFound` for missing snapshots."""
        session = session_options(context)
        if snapshot is not None:
            options = {_SNAPSHOT_ID: snapshot}
            session = {name: value for name, value in session.items() if name in (READ_NATIVE, READ_COLUMNAR)}
        read = lake_read_options(options, session)
        if read.changelog:
            raise InvalidRequest(
                f"'{READ_CHANGELOG}' adds a column, and Spark has asked for the columns already: read "
                f"{name}$changelog or $audit_log, or the format '{FORMAT_NAME}' with this option",
                ErrorCode.CONFIG_EXCEPTION,
            )
        shown = PaimonScan.of(table, name, system)
        super().__init__(name, shown.schema, shown.columns)
        self.partition_keys, self.modes = shown.partition_keys, read.modes
        self._context, self._table, self._system = context, table, system
        self._read, self._scan, self._options = read, shown.with_options(read.table), {**session, **options}

    def plan(self, pushdown: Pushdown, schema: StructType) -> ScanPlan:
        self._read.refuse_for_batches()
        context = self._context
        return self._scan.plan(
            context.cores, pushdown, schema, modes=self.modes, serves=partial(has_file_system, context.jvm)
        )

    def buckets(self, plan: ScanPlan, pushdown: Pushdown) -> BucketPlan | None:
        from forebay.spark.reading.buckets import lake_buckets  # few sessions read by bucket

        return lake_buckets(self._scan, plan, pushdown)

    def stream(self, schema: StructType, mode: ReadMode) -> MicroBatchStream:
        """Raises `UnsupportedOperation` for a table without changes."""
        if self._system == READ_OPTIMIZED:
            raise UnsupportedOperation(f"{self.name} cannot be read as a stream; the table itself can")
        context, pushdown = self._context, Pushdown(tuple(schema.fieldNames()))
        planner = LakeStreamPlanner(self._scan, pushdown, schema, self._read.limits, context.cores)
        return MicroBatchStream(context.jvm, planner, schema, mode)


def session_options(context: LakeContext) -> dict[str, str]:
    """The options of reads in the session's configuration, by their names without a prefix."""
    settings = context.session_settings()
    shared = {name: settings.get(OWN_SESSION_PREFIX + name) for name in READ_MODES}
    of_all = {name: value for name, value in shared.items() if value is not None}
    return of_all | {
        key.removeprefix(prefix): value
        for prefix in SESSION_PREFIXES
        for key, value in settings.items()
        if key.startswith(prefix)
    }
