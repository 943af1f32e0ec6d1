"""Purging a table: all rows and history are deleted; only the schema and one empty snapshot remain."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from forebay.base.errors import InvalidRequest
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.maintain.expire import Retention, SnapshotExpiry
from forebay.paimon.maintain.orphans import OrphanRemoval, Orphans
from forebay.paimon.maintain.tag_deletion import TagDeletion
from forebay.paimon.store.context import TableContext

_ALL = 2**31 - 1
"""The limit on the number of snapshots of one expiry: Java's largest int."""


@dataclass(frozen=True)
class Purgeable:
    """The counts of everything that `purge` deletes."""

    rows: int
    """Records of the latest snapshot, before merging."""
    files: int
    """Its data files."""
    snapshots: int
    tags: int
    branches: int
    consumers: int


def purgeable(table: TableContext) -> Purgeable:
    """The counts of what `purge` would delete, besides unreferenced files."""
    latest = table.snapshots.latest()
    live = [] if latest is None else list(table.manifests.live_files(latest))
    return Purgeable(
        sum(e.file.row_count for e in live), len(live), len(table.snapshots.ids()), len(table.tags.names()),
        len(table.branches.names()), len(table.consumers.all()),
    )  # fmt: skip


def purge(table: TableContext, commit: Callable[[], FileStoreCommit]) -> Orphans:
    """Delete all rows, branches, tags, consumers, old snapshots and left-over files; return the left-over files.

    The schema and one empty snapshot remain. There must be no concurrent writer: files that belong to no snapshot are
    deleted regardless of their age. If it is interrupted, call it again.
    """
    for name in table.branches.names():
        table.branches.drop(name)
    tags = TagDeletion(table)
    for name in table.tags.names():
        tags.delete(name)
    clear_consumers(table)
    if table.snapshots.latest_id() is not None:
        commit().truncate()
    table.io.delete_directory(table.paths.changelog_directory)
    SnapshotExpiry(table).expire(Retention(1, 1, 0, _ALL))
    return OrphanRemoval(table).remove(older_than_ms=table.clock.now_ms())


def clear_consumers(
    table: TableContext, including: str | None = None, excluding: str | None = None, *, dry_run: bool = False
) -> list[str]:
    """Delete the consumers whose whole id matches the regular expression `including` (None: all), not `excluding`.

    Returns their ids; with `dry_run`, nothing is deleted. Raises `InvalidRequest` for an invalid regular expression.
    """
    consumers = table.consumers
    included, excluded = _pattern(including or ".*", "including"), _pattern(excluding, "excluding")
    ids = [
        i for i in consumers.all() if included and included.fullmatch(i) and not (excluded and excluded.fullmatch(i))
    ]
    return ids if dry_run else [i for i in ids if consumers.delete(i)]


def _pattern(text: str | None, what: str) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text else None
    except re.error as e:
        raise InvalidRequest(f"{what} is {text!r}, which is no regular expression: {e}") from e
