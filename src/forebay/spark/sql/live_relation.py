"""Relations of clusters: a table, a system table, or a table as of a time or lake snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from forebay.base.errors import UnsupportedOperation
from forebay.metadata.table import TableInfo
from forebay.spark.context import LiveContext
from forebay.spark.jvm.hadoop import has_file_system
from forebay.spark.options import (
    DELETE_BEHAVIOR,
    FORMAT_NAME,
    IGNORE,
    INCLUDE,
    LEASE_DURATION,
    LEASE_ID,
    OWN_SESSION_PREFIX,
    SERVER_SIDE,
    SESSION_PREFIX,
    SESSION_ZONE,
    STRATEGY,
    deletes_option,
    is_for_streams,
    read_options,
    stream_options,
)
from forebay.spark.read_modes import READ_COLUMNAR, ReadMode
from forebay.spark.reading.live_changes import scan_of
from forebay.spark.reading.live_plan import BINLOG, CHANGELOG, LAKE, AsOf, ClusterScan
from forebay.spark.reading.plan import ChangesRange, Pushdown, ScanPlan
from forebay.spark.reading.relation import Relation
from forebay.spark.streaming.live_planner import LiveStreamPlanner
from forebay.spark.streaming.micro_batches import MicroBatchStream

if TYPE_CHECKING:
    from forebay.spark.reading.buckets import BucketPlan


class LiveRelation(Relation):
    """A table of a cluster, or its system table `system`: its changelog, its binlog or its lake."""

    def __init__(
        self,
        context: LiveContext,
        name: str,
        info: TableInfo,
        options: Mapping[str, str],
        system: str = "",
        *,
        as_of: AsOf | None = None,
        has_deletes: bool = False,
    ) -> None:
        """`has_deletes`: as a stream with deletes, for which the table has one more column.

        Raises `InvalidRequest` for wrong options, and `UnsupportedOperation` for a system table that it does not have.
        """
        session = context.session_options()
        if system:
            session = {name: value for name, value in session.items() if name == OWN_SESSION_PREFIX + READ_COLUMNAR}
        self._read = partial(read_options, context.settings, info.descriptor, session=session)
        self._is_stream = is_for_streams(options)
        of_batch = self._read({} if self._is_stream else options)
        scan = ClusterScan(info, of_batch, as_of=as_of)
        if system or has_deletes:
            scan = scan_of(info, of_batch, system, INCLUDE if has_deletes else IGNORE)
        is_binlog = system == BINLOG
        super().__init__(name, scan.schema, () if is_binlog else info.schema.columns)
        self.partition_keys = () if is_binlog else info.descriptor.partition_keys
        self.strategy = None if self._is_stream else scan.way
        self.lookup_key = scan.lookup_key
        has_buckets = system in ("", LAKE) and not has_deletes
        self.modes = of_batch.modes if has_buckets else of_batch.modes & ~ReadMode.BUCKETS
        self._context, self._info, self._options, self._system = context, info, options, system
        self._scan, self._as_of, self._has_deletes = scan, as_of, has_deletes

    def plan(self, pushdown: Pushdown, schema: StructType) -> ScanPlan:
        context = self._context
        scan = replace(self._scan, options=self._read(self._options)) if self._is_stream else self._scan
        return scan.plan(
            context.connection, context.cores, pushdown, schema, serves=partial(has_file_system, context.jvm)
        )

    def buckets(self, plan: ScanPlan, pushdown: Pushdown) -> BucketPlan | None:
        from forebay.spark.reading.buckets import live_buckets  # few sessions read by bucket

        return live_buckets(self._context.connection, self._info, plan, pushdown)

    def stream(self, schema: StructType, mode: ReadMode) -> MicroBatchStream:
        """Raises `UnsupportedOperation` for a past state, for `$lake`, and for deletes without their column."""
        if self._system == LAKE or self._as_of is not None:
            raise self.not_streamable()
        if not self._has_deletes and deletes_option(self._options) == INCLUDE:
            raise UnsupportedOperation(
                f"read option '{DELETE_BEHAVIOR}' = '{INCLUDE}' adds a column to {self.name}, of which only Spark 4.3 "
                f"or newer tells a catalog in time: use the format '{FORMAT_NAME}', or stream "
                f"{self._info.path}$changelog"
            )
        return live_stream(self._context, self._info, self._options, schema, mode, system=self._system)


def live_stream(
    context: LiveContext,
    info: TableInfo,
    options: Mapping[str, str],
    schema: StructType,
    mode: ReadMode,
    *,
    system: str = "",
    changes: ChangesRange | None = None,
) -> MicroBatchStream:
    """The stream of a table, of a system table, or of changes. Raises `InvalidRequest` for invalid options."""
    session = context.session_options()
    names = (LEASE_ID, LEASE_DURATION, STRATEGY, SERVER_SIDE)
    of_session = {name: session[SESSION_PREFIX + name] for name in names if SESSION_PREFIX + name in session}
    of_stream = stream_options(
        context.settings,
        info.descriptor,
        of_session | {name.lower(): value for name, value in options.items()},
        is_changelog=system in (CHANGELOG, BINLOG) or changes is not None,
        zone=session.get(SESSION_ZONE),
    )
    scan = scan_of(info, of_stream.read, system, of_stream.deletes, changes)
    planner = LiveStreamPlanner(scan, of_stream, Pushdown(tuple(schema.fieldNames())), schema, context.cores)
    return MicroBatchStream(context.jvm, planner, schema, mode)
