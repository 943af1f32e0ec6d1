"""Reading one snapshot of a lake table: from a description of the scan to Arrow batches.

    source = storage.create_source(path).with_project([[0], [2]]).with_filters([col("id") > 5]).source
    for split in source.create_planner(snapshot_id).plan():       # on the driver
        with source.create_record_reader(split) as reader:         # on a worker
            for batch in reader.read(): ...

Sources are immutable and picklable: each `with_...` returns another one. A pickled source is what a worker gets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

import pyarrow as pa

from forebay.metadata.predicate import Predicate

UNAWARE_BUCKET = -1
"""`LakeSplit.bucket()` of a table whose lake files are not bound to buckets."""


class LakeSplit(ABC):
    """A part of a lake snapshot that one reader reads. Picklable; small enough to travel with a task."""

    @abstractmethod
    def bucket(self) -> int:
        """The stream table's bucket whose rows these are, or `UNAWARE_BUCKET`."""

    @abstractmethod
    def partition(self) -> tuple[str, ...]:
        """The partition's values in the order of the partition keys, as the strings of its name; () without keys."""

    def bucket_count(self) -> int | None:
        """The bucket count of its partition when its files were written; None if the format does not record it."""
        return None

    def rows(self) -> int | None:
        """The approximate number of rows in its files, for planning; None if the format does not record it."""
        return None


S = TypeVar("S", bound=LakeSplit)


class SplitSerializer(ABC, Generic[S]):
    """Serializes splits as bytes where pickle is unsuitable. Every version ever written stays readable."""

    @property
    @abstractmethod
    def version(self) -> int:
        """The version that `serialize` writes."""

    @abstractmethod
    def serialize(self, split: S) -> bytes: ...

    @abstractmethod
    def deserialize(self, version: int, data: bytes) -> S:
        """The split. Raises `CorruptData` for bytes that are none, `UnsupportedOperation` for a newer version."""


class Planner(ABC, Generic[S]):
    """Plans the scan of one snapshot."""

    @abstractmethod
    def plan(self) -> list[S]:
        """The splits, none of which is empty on purpose; together they hold each row of the scan exactly once.

        All splits of one bucket of a table with a primary key hold disjoint keys. Raises `NotFound` (code
        LAKE_SNAPSHOT_NOT_EXIST) where the snapshot has expired.
        """


class RecordReader(ABC):
    """Reads one split. Memory is bounded by the format's batches, not by the split. Use it as a context manager."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """What `read` yields: the projected columns in the order of the projection."""

    @abstractmethod
    def read(self) -> Iterator[pa.RecordBatch]:
        """The rows that pass the accepted filters and the limit. Call it once."""

    def close(self) -> None:
        """Release files. Idempotent."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class KeyOrder(ABC):
    """An order of rows by their key columns."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The key columns, most significant first."""

    @abstractmethod
    def comparable(self, keys: pa.RecordBatch) -> pa.BinaryArray:
        """One byte string for each row whose order as unsigned bytes is the order of the rows.

        `keys` has the key columns in the order of `columns`, of the types that the reader yields and without nulls.
        Equal keys give equal strings in every call, so rows of different batches, and of a log, can be compared.
        """


class SortedRecordReader(RecordReader):
    """A reader of one bucket's rows in the order of the primary key; each key comes once."""

    @property
    @abstractmethod
    def order(self) -> KeyOrder:
        """The order in which `read` yields rows. Its columns are part of `schema`."""


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The result of offering filters, combined with AND, to a source.

    `accepted`: the source uses these to skip rows, and every row that it yields may still have to be checked against
    those in `remaining`. A filter that is exactly applied is in `accepted` alone; one that only skips files is in
    both; one that the source cannot use is in `remaining` alone.
    """

    source: LakeSource
    accepted: tuple[Predicate, ...]
    remaining: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class SnapshotSuccessor:
    """A snapshot after an expired one.

    `has_same_rows`: nothing but a compaction lies between them. Otherwise rows may have been written since.
    """

    snapshot_id: int
    has_same_rows: bool


class LakeSource(ABC):
    """The description of a scan of one lake table. Immutable, picklable, safe to share between threads."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """All columns that a projection may name, system columns of the format included.

        The first ones are the stream table's columns. Types are the format's (a TIMESTAMP_LTZ has the zone UTC); a
        cast to those of `forebay.codec.arrow_types.user_schema` loses nothing.
        """

    @abstractmethod
    def with_project(self, paths: Sequence[Sequence[int]]) -> LakeSource:
        """Read these columns only. A path is indexes: a column of `schema`, then fields within it, from outside in.

        Paths into one column make one column, a struct of the chosen fields in the order of its type. No paths, no
        columns: batches then tell how many rows there are. Raises `InvalidRequest` for a column named twice.
        """

    @abstractmethod
    def with_limit(self, limit: int) -> LakeSource:
        """A source from which at most `limit` rows per split are needed; it may return more."""

    @abstractmethod
    def with_filters(self, filters: Sequence[Predicate]) -> FilterResult:
        """Offer filters, which hold together. They may name columns that the projection leaves out.

        On tables with a primary key the source skips only rows whose *newest* version in the snapshot does not match:
        it never brings back an older version.
        """

    @abstractmethod
    def create_planner(self, snapshot_id: int) -> Planner[LakeSplit]:
        """A planner for exactly this snapshot. Raises `NotFound` (LAKE_SNAPSHOT_NOT_EXIST) if it does not exist."""

    def successor(self, snapshot_id: int) -> SnapshotSuccessor | None:
        """Return the oldest snapshot after an expired one; None if there is none, or if it cannot be determined."""
        return None

    @abstractmethod
    def create_record_reader(self, split: LakeSplit) -> RecordReader:
        """A reader of the split's rows in any order."""

    def create_sorted_reader(self, splits: Sequence[LakeSplit]) -> SortedRecordReader | None:
        """A reader of all `splits` of one bucket (none: an empty reader) in key order; None if the format cannot.

        The key columns are added behind the projected ones where the projection leaves them out.
        """
        return None

    def plain_files(self, split: LakeSplit) -> tuple[str, ...] | None:
        """Return the paths of Parquet files that hold exactly the split's rows, for engines that read them directly.

        The projected columns are in the files under their own names (one that is missing in a file is null there).
        Rows that the filters rule out are in them, too. None where only a reader of this source finds the rows:
        something has to be merged or left out, or has had another name or type.
        """
        return None

    @abstractmethod
    def split_serializer(self) -> SplitSerializer[LakeSplit]: ...
