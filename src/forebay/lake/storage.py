"""The interface of a lake format, and its catalog."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from forebay.lake.source import LakeSource
from forebay.lake.tiering import LakeTieringFactory
from forebay.metadata.table import TableDescriptor, TablePath


class LakeCatalog(ABC):
    """Creates and alters the lake tables of stream tables, with the names and layouts of Fluss."""

    @abstractmethod
    def create_table(self, path: TablePath, descriptor: TableDescriptor, *, creating: bool) -> None:
        """Create the lake table of `descriptor`, and its database if missing.

        An existing table is used if it fits and, when the stream table is just being `creating`, is empty. Raises
        `Conflict` (LAKE_TABLE_ALREADY_EXIST) saying what differs, `InvalidRequest` for options that may not be set.
        """

    @abstractmethod
    def alter_table(self, path: TablePath, current: TableDescriptor, expected: TableDescriptor) -> None:
        """Alter the lake table from `current` to `expected`: options, and nullable columns added at the end.

        Does nothing if it is at `expected` already (after an attempt that failed before the stream table changed).
        Raises `NotFound` if the table does not exist, `UnsupportedOperation` for other changes.
        """

    def close(self) -> None:
        """Release connections."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LakeStorage(ABC):
    """One lake of one format, configured by its options. Picklable."""

    @property
    @abstractmethod
    def format(self) -> str:
        """The format's name in `table.datalake.format`."""

    @abstractmethod
    def create_catalog(self) -> LakeCatalog: ...

    @abstractmethod
    def create_tiering_factory(self) -> LakeTieringFactory: ...

    @abstractmethod
    def create_source(self, path: TablePath) -> LakeSource:
        """A scan of all columns of the current lake table. Raises `NotFound` if it does not exist.

        Where nothing of the table's definition has changed, it may be the same object as before.
        """
