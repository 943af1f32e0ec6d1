"""Events of lake tables in this process, for metrics: commits, compactions, expiry, removal of orphans.

The engines that write lakes `tell`, whoever serves metrics listens (forebay.lake.metrics). Without a listener an event
costs a look at an empty tuple. Events of workers in other processes are not heard here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LakeCommit:
    """The end of a commit: `outcome` is "committed", or the kind of the error. Files are those of data and deletes.

    A compaction's files are those it has read and written; files that only moved to another level are not counted.
    """

    table: str
    kind: str
    outcome: str
    retries: int = 0
    seconds: float = 0.0
    added_files: int = 0
    added_bytes: int = 0
    removed_files: int = 0
    removed_bytes: int = 0
    table_files: int | None = None
    """How many files the table has now."""


@dataclass(frozen=True, slots=True)
class LakeCompaction:
    """Files were rewritten, which took so long; the commit follows."""

    table: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LakeLevels:
    """The files of a table by level, and their bytes: as the planner of a compaction has found them."""

    table: str
    files: Mapping[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LakeRemoval:
    """Snapshots that expired, with the files that only they needed; or orphans, without snapshots."""

    table: str
    snapshots: int = 0
    files: int = 0
    orphans: int = 0
    orphan_bytes: int = 0


LakeEvent = LakeCommit | LakeCompaction | LakeLevels | LakeRemoval
Listener = Callable[[LakeEvent], None]

_listeners: tuple[Listener, ...] = ()


def listen(listener: Listener) -> Callable[[], None]:
    """Call `listener` with all events from now on, in the threads where they happen; returns what ends that."""
    global _listeners
    _listeners = (*_listeners, listener)

    def end() -> None:
        global _listeners
        _listeners = tuple(each for each in _listeners if each is not listener)

    return end


def is_heard() -> bool:
    """Whether there is a listener: else nothing needs to be computed for one."""
    return bool(_listeners)


def tell(event: LakeEvent) -> None:
    """Tell all listeners. What happened has happened: an error of a listener is logged."""
    for listener in _listeners:
        try:
            listener(event)
        except Exception:
            _LOGGER.exception("a listener to lake events failed")


def table_of(location: str) -> str:
    """ "database.table" of a table's directory, as Paimon lays out a warehouse: .../sales.db/orders."""
    rest, _, table = location.rstrip("/").rpartition("/")
    return f"{rest.rpartition('/')[2].removesuffix('.db')}.{table}"
