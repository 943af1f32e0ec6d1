"""The contract between a table that a query reads and the scans of Spark, which each side implements.

A `ScanSource` is a table, a system table beside one (`t$changelog`, `t$audit_log`), or the changes of a table
(`ChangesSource`), as one reference in a query reads it, with the options of that reference. Spark says only later
whether a batch or a stream reads it: `plan` then refuses options that only streams have, and `stream_options` those
that only batches have.

Each side implements it: forebay.spark.reading.live_source for a cluster, forebay.spark.reading.lake_source for a
warehouse. The scans that ask it are in forebay.spark.reading.scan; all of this is on the driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.types import StructType

from forebay.base.errors import UnsupportedOperation
from forebay.metadata.table import Column
from forebay.spark.read_modes import DEFAULT_MODES, ReadMode
from forebay.spark.reading.plan import ChangesRange, Pushdown, ScanPlan

if TYPE_CHECKING:
    from forebay.spark.reading.buckets import BucketPlan


class ScanSource(ABC):
    """Something that can be scanned: its name, Spark schema, the columns that filters may be about, and its planner."""

    stream_format: ClassVar[str]
    """The format that reads it as a stream."""

    partition_keys: tuple[str, ...] = ()
    strategy: str | None = None
    """The way to the rows of a primary-key table, or of one with a lake, as EXPLAIN shows it."""

    lookup_key: tuple[str, ...] = ()
    """The columns by whose values rows are looked up instead of scanned; () where they are not."""

    modes: ReadMode = DEFAULT_MODES
    """The ways in which its rows may reach Spark."""

    is_target: bool = False
    """Whether UPDATE, MERGE or DELETE read it to change it."""

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
    def stream_options(self) -> Mapping[str, str]:
        """The options by which `stream_format` reads the same as a stream.

        Raises `UnsupportedOperation` for what cannot be a stream, and `InvalidRequest` for wrong options.
        """

    def buckets(self, plan: ScanPlan, pushdown: Pushdown) -> BucketPlan | None:
        """`plan` by bucket; None where its splits are not of single buckets that Spark may compare."""
        return None

    def not_streamable(self) -> UnsupportedOperation:
        """The error for a source that is no stream."""
        return UnsupportedOperation(f"{self.name} cannot be read as a stream")


class ChangesSource(ScanSource):
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
        """`key` is the primary key, () where there is none; `is_net`: of each row, what its changes come to."""
        super().__init__(name, schema, columns)
        self.key = key
        self._range, self._is_net = changes, is_net

    def stream_options(self) -> Mapping[str, str]:
        """Raises `UnsupportedOperation` for what a stream cannot be: Spark would wait for the end, or drop changes."""
        if self._range.stop is not None:
            raise UnsupportedOperation(f"{self.name} as a stream has no end: leave it out, or read a batch")
        if self._is_net and self.key:
            raise UnsupportedOperation(
                f"{self.name} as a stream has no deduplicationMode = netChanges, for which Spark would drop changes "
                "of equal times: read a batch, or leave it out"
            )
        return self._stream_options()

    @abstractmethod
    def _stream_options(self) -> Mapping[str, str]:
        """The options of a stream that begins where the range does."""
