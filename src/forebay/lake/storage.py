"""The interface of a lake format, and its catalog."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from types import TracebackType
from typing import Self

from forebay.base.errors import UnsupportedOperation
from forebay.lake.source import LakeSource
from forebay.lake.tiering import LakeTieringFactory
from forebay.metadata.table import LAKE_ENTRY_POINTS, TableDescriptor, TablePath


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
        """A scan of all columns of the lake table as it is now. Raises `NotFound` if it does not exist.

        Where nothing of the table's definition has changed, it may be the same object as before.
        """


# Lake formats by name, found by their entry points in the group `forebay.lakes`.
#
# A package adds a format in its pyproject.toml; the object is a callable that creates a `LakeStorage` from options:
#
#     [project.entry-points."forebay.lakes"]
#     paimon = "forebay.lakes.paimon:PaimonLakeStorage"
#
# Options are a cluster's settings below `datalake.<format>.` without that prefix, as in Fluss (`datalake_options`).

_found: dict[str, Callable[[Mapping[str, str]], LakeStorage]] = {}
"""Formats that were requested before: to find one, Python reads the metadata of every installed package."""


def lake_formats() -> tuple[str, ...]:
    """The names of the installed formats."""
    return tuple(sorted({entry.name for entry in entry_points(group=LAKE_ENTRY_POINTS)}))


def create_lake_storage(name: str, options: Mapping[str, str]) -> LakeStorage:
    """The lake of format `name`. Raises `UnsupportedOperation`, with the installed formats or the missing package."""
    factory = _found.get(name.lower())
    if factory is not None:
        return factory(options)
    for entry in entry_points(group=LAKE_ENTRY_POINTS):
        if entry.name == name.lower():
            factory = _found[entry.name] = _loaded(entry)
            return factory(options)
    raise UnsupportedOperation(
        f"there is no lake format {name!r}; installed are: {', '.join(lake_formats()) or 'none'}"
    )


def _loaded(entry: EntryPoint) -> Callable[[Mapping[str, str]], LakeStorage]:
    try:
        factory: Callable[[Mapping[str, str]], LakeStorage] = entry.load()
    except ModuleNotFoundError as e:
        raise UnsupportedOperation(
            f"lake format {entry.name!r} needs the package {e.name!r}, which is not installed; formats of Forebay come "
            f"with pip install 'forebay[{entry.name}]'"
        ) from e
    return factory


def datalake_options(settings: Mapping[str, str], name: str) -> dict[str, str]:
    """The options of format `name` in a cluster's settings: those with the prefix `datalake.<name>.`, without it."""
    prefix = f"datalake.{name.lower()}."
    return {key[len(prefix) :]: value for key, value in settings.items() if key.startswith(prefix)}
