"""Reading one snapshot of a lake table: from a description of the scan to Arrow batches.

    source = storage.create_source(path).with_project([[0], [2]]).with_filters([col("id") > 5]).source
    for split in source.create_planner(snapshot_id).plan():       # on the driver
        with source.create_record_reader(split) as reader:         # on a worker
            for batch in reader.read(): ...

Sources are immutable and picklable: each `with_...` returns a new one. Workers get a pickled source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

import pyarrow as pa

from forebay.lake.tiering import CommittedLakeSnapshot
from forebay.metadata.predicate import Predicate

BUCKET_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN = "__bucket", "__offset", "__timestamp"
"""The system columns of a lake table, if it has them: the place of each row in the stream, and its time."""

UNAWARE_BUCKET = -1
"""`LakeSplit.bucket()` of a table whose lake files are not bound to buckets."""


class LakeSplit(ABC):
    """A part of a lake snapshot that one reader reads. Picklable, and small enough to be sent with a task."""

    @abstractmethod
    def bucket(self) -> int:
        """The stream table's bucket of these rows, or `UNAWARE_BUCKET`."""

    @abstractmethod
    def partition(self) -> tuple[str, ...]:
        """The partition's values in the order of the partition keys, as strings of its name; () without keys."""

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
        """The split. Raises `CorruptData` for malformed bytes, `UnsupportedOperation` for a newer version."""


class Planner(ABC, Generic[S]):
    """Plans the scan of one snapshot: the one that has the id when the planner is created."""

    @property
    def identity(self) -> str | None:
        """A name that distinguishes the snapshot from others with its id. None in formats that never reuse ids."""
        return None

    @property
    def properties(self) -> Mapping[str, str] | None:
        """The properties that tiering gave the snapshot, none if another writer committed it. None if the format does
        not record them."""
        return None

    @abstractmethod
    def plan(self) -> list[S]:
        """The splits, which together hold each row of the scan exactly once, without deliberately empty splits.

        All splits of one bucket of a table with a primary key hold disjoint keys. Raises `NotFound` (code
        LAKE_SNAPSHOT_NOT_EXIST) if the snapshot has expired.
        """


class RecordReader(ABC):
    """Reads one split. Memory is bounded by the format's batches, not by the split. Use it as a context manager."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The schema of `read`: the projected columns in the order of the projection."""

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
        """One byte string for each row; comparing these as unsigned bytes gives the order of the rows.

        `keys` has the key columns in the order of `columns`, of the types that the reader returns and without nulls.
        Equal keys have equal strings in every call, so rows of different batches, and of a log, can be compared.
        """


class SortedRecordReader(RecordReader):
    """A reader of one bucket's rows in primary key order, with unique keys."""

    @property
    @abstractmethod
    def order(self) -> KeyOrder:
        """The order of the rows of `read`. Its columns are part of `schema`."""


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The result of offering filters, combined with AND, to a source.

    `accepted`: filters that the source uses to skip rows. `remaining`: filters that every returned row must still be
    checked against. A filter that is applied exactly is only in `accepted`; one that only skips files is in both; one
    that the source cannot use is only in `remaining`.
    """

    source: LakeSource
    accepted: tuple[Predicate, ...]
    remaining: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class SnapshotSuccessor:
    """A snapshot after an expired one.

    `has_same_rows`: there are only compactions between them. Otherwise rows may have been written since.
    """

    snapshot_id: int
    has_same_rows: bool


class LakeSource(ABC):
    """The description of a scan of one lake table. Immutable, picklable, safe to share between threads."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """All columns that can be projected, including system columns of the format.

        The first ones are the stream table's columns. Types are the format's (a TIMESTAMP_LTZ has the time zone UTC); a
        cast to those of `forebay.codec.arrow.arrow_types.user_schema` is lossless.
        """

    @abstractmethod
    def with_project(self, paths: Sequence[Sequence[int]]) -> LakeSource:
        """A source that reads only these columns. A path is indexes: a column of `schema`, then nested fields.

        Paths into one column make one column, a struct of the selected fields in the order of its type. Without paths
        there are no columns: batches then only have a number of rows. Raises `InvalidRequest` for a duplicate column.
        """

    @abstractmethod
    def with_limit(self, limit: int) -> LakeSource:
        """A source from which at most `limit` rows per split are needed; it may return more."""

    @abstractmethod
    def with_filters(self, filters: Sequence[Predicate]) -> FilterResult:
        """Offer filters, combined with AND. They may use columns that are not projected.

        On tables with a primary key the source skips only rows whose *newest* version in the snapshot does not match:
        it never returns an older version instead.
        """

    @abstractmethod
    def create_planner(self, snapshot_id: int) -> Planner[LakeSplit]:
        """A planner for exactly this snapshot. Raises `NotFound` (LAKE_SNAPSHOT_NOT_EXIST) if it does not exist."""

    def successor(self, snapshot_id: int) -> SnapshotSuccessor | None:
        """The oldest snapshot after an expired one; None if there is none, or if it cannot be determined."""
        return None

    def newest_tiered(self) -> CommittedLakeSnapshot | None:
        """The newest tiering snapshot in the history of the table; None if the format records none.

        See `forebay.lake.tiering.LakeCommitter.get_missing_lake_snapshot`.
        """
        return None

    def was_undone(self, snapshot_id: int, offsets_name: str | None) -> bool:
        """See `forebay.lake.tiering.LakeCommitter.was_undone`."""
        return False

    def tagged(self, name: str) -> int | None:
        """The snapshot of a tag; None if there is no such tag, or if the format has none."""
        return None

    def snapshots_until(self, time_ms: int) -> Iterator[int]:
        """The snapshots committed at a time (in milliseconds since 1970) or before it, the newest first.

        Empty if the format does not record their times.
        """
        return iter(())

    @abstractmethod
    def create_record_reader(self, split: LakeSplit) -> RecordReader:
        """A reader of the split's rows in any order."""

    def create_sorted_reader(self, splits: Sequence[LakeSplit]) -> SortedRecordReader | None:
        """A reader of all `splits` of one bucket (none: an empty reader) in key order; None if unsupported.

        Key columns that are not projected are added after the projected ones.
        """
        return None

    def plain_files(self, split: LakeSplit) -> tuple[str, ...] | None:
        """The paths of Parquet files that hold exactly the split's rows, for engines that read them directly.

        The projected columns are in the files with their own names (a column missing in a file is null there). Rows
        that the filters exclude are in the files, too. None if only a reader of this source finds the rows, because
        files must be merged, rows left out, or columns renamed or converted.
        """
        return None

    def store_options(self) -> Mapping[str, str] | None:
        """The options by which engines that read `plain_files` directly open their store: `s3.endpoint`,
        `s3.access-key`, `s3.secret-key`, `s3.session-token`, `s3.region`; None if only local files are for them."""
        return None

    @abstractmethod
    def split_serializer(self) -> SplitSerializer[LakeSplit]: ...
