"""The contract between a table that a query reads and the scans of Spark, which each side implements.

A `Relation` is one reference of a query to a table, with its options, as in Spark's plans. It reads the table, one of
its system tables (`t$changelog`, `t$audit_log`), or the table's changes (`ChangesRelation`). Spark decides later
whether a batch or a stream reads it: `plan` then rejects options of streams, and `stream` those of batches.

Each side implements it: forebay.spark.sql.live_relation for a cluster, forebay.spark.sql.lake_relation for a warehouse.
The scans that ask it are in forebay.spark.reading.scan; all of this is on the driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from forebay.base.errors import UnsupportedOperation
from forebay.metadata.table import Column
from forebay.spark.read_modes import DEFAULT_MODES, ReadMode
from forebay.spark.reading.plan import ChangesRange, Pushdown, ScanPlan

if TYPE_CHECKING:
    from forebay.spark.jvm.proxy import JavaProxy
    from forebay.spark.reading.buckets import BucketPlan


class Relation(ABC):
    """A table as one query reads it: its name, Spark schema, the columns that filters can use, and its planner."""

    partition_keys: tuple[str, ...] = ()
    strategy: str | None = None
    """How the rows of a primary-key table, or of one with a lake, are read; shown by EXPLAIN."""

    lookup_key: tuple[str, ...] = ()
    """The columns by whose values rows are looked up instead of scanned; () without lookups."""

    modes: ReadMode = DEFAULT_MODES
    """The ways in which its rows may reach Spark."""

    is_target: bool = False
    """Whether UPDATE, MERGE or DELETE reads it."""

    def __init__(self, name: str, schema: StructType, columns: tuple[Column, ...]) -> None:
        self.name = name
        self.schema = schema
        self.columns = columns

    @abstractmethod
    def plan(self, pushdown: Pushdown, schema: StructType) -> ScanPlan:
        """The plan of a batch; `schema` is Spark's of the requested columns.

        Raises `UnsupportedOperation` for options that only streams have.
        """

    @abstractmethod
    def stream(self, schema: StructType, mode: ReadMode) -> JavaProxy:
        """The stream of one query, for Spark; `schema` is Spark's, `mode` that of the tasks (`ROWS` or `COLUMNS`).

        Raises `UnsupportedOperation` if it cannot be a stream, `InvalidRequest` for wrong options.
        """

    def buckets(self, plan: ScanPlan, pushdown: Pushdown) -> BucketPlan | None:
        """`plan` by bucket; None unless each split belongs to one bucket that Spark can compare."""
        return None

    def not_streamable(self) -> UnsupportedOperation:
        """The error for a relation that cannot be read as a stream."""
        return UnsupportedOperation(f"{self.name} cannot be read as a stream")


class ChangesRelation(Relation):
    """The changes of a table in a range, as Spark's `CHANGES` asks for them."""

    def __init__(
        self,
        name: str,
        schema: StructType,
        columns: tuple[Column, ...],
        key: tuple[str, ...],
        changes: ChangesRange,
        is_net: bool,
    ) -> None:
        """`key` is the primary key, () without one; `is_net`: the net change of each row."""
        super().__init__(name, schema, columns)
        self.key = key
        self._range, self._is_net = changes, is_net

    def stream(self, schema: StructType, mode: ReadMode) -> JavaProxy:
        """Raises `UnsupportedOperation` for an end, for which Spark would wait, and for net changes, which it drops."""
        if self._range.stop is not None:
            raise UnsupportedOperation(f"{self.name} as a stream has no end: leave it out, or read a batch")
        if self._is_net and self.key:
            raise UnsupportedOperation(
                f"{self.name} as a stream has no deduplicationMode = netChanges, for which Spark would drop changes "
                "of equal times: read a batch, or leave it out"
            )
        return self._stream(schema, mode)

    @abstractmethod
    def _stream(self, schema: StructType, mode: ReadMode) -> JavaProxy:
        """The stream that begins at the start of the range."""
