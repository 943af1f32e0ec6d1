"""Purging: a table becomes as empty as a new one, with its history, and every file but the last snapshot's is gone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from forebay.base.clock import SYSTEM_CLOCK, Clock
from forebay.base.errors import InvalidRequest
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.maintain.expire import Retention, SnapshotExpiry
from forebay.paimon.maintain.orphans import OrphanRemoval, Orphans
from forebay.paimon.maintain.references import BranchView
from forebay.paimon.maintain.tags import TagDeletion
from forebay.paimon.store.branches import BranchManager
from forebay.paimon.store.consumers import ConsumerManager
from forebay.paimon.store.manifests import ManifestStore

_ALL = 2**31 - 1


@dataclass(frozen=True)
class Purgeable:
    """How much of what a table has: all of this `purge` deletes."""

    rows: int
    """Records of the latest snapshot, before merging."""
    files: int
    """Its data files."""
    snapshots: int
    tags: int
    branches: int
    consumers: int


def purgeable(branch: BranchView, manifests: ManifestStore) -> Purgeable:
    """What `purge` would delete, beside the files that nothing refers to."""
    latest = branch.snapshots.latest()
    live = [] if latest is None else list(manifests.live_files(latest))
    return Purgeable(
        sum(e.file.row_count for e in live), len(live), len(branch.snapshots.ids()), len(branch.tags.names()),
        len(BranchManager(branch.io, branch.paths).names()), len(ConsumerManager(branch.io, branch.paths).all()),
    )  # fmt: skip


def purge(
    branch: BranchView, manifests: ManifestStore, commit: Callable[[], FileStoreCommit], clock: Clock = SYSTEM_CLOCK
) -> Orphans:
    """Delete all rows, branches, tags, consumers and old snapshots, and the files that are left over; what these were.

    The schema and one empty snapshot stay. There must be no concurrent writer: files that belong to no snapshot are
    deleted, however young they are. If it is interrupted, call it again.
    """
    branches = BranchManager(branch.io, branch.paths)
    for name in branches.names():
        branches.drop(name)
    tags = TagDeletion(branch, manifests, clock)
    for name in branch.tags.names():
        tags.delete(name)
    clear_consumers(branch)
    if branch.snapshots.latest_id() is not None:
        commit().truncate()
    branch.io.delete_directory(branch.paths.changelog_directory)
    SnapshotExpiry(branch, manifests, clock).expire(Retention(1, 1, 0, _ALL))
    return OrphanRemoval(branch, clock).remove(older_than_ms=clock.now_ms())


def clear_consumers(
    branch: BranchView, including: str | None = None, excluding: str | None = None, *, dry_run: bool = False
) -> list[str]:
    """Forget the consumers whose whole name matches the regular expression `including` (None: all), not `excluding`.

    Returns their ids; with `dry_run` that is all. Raises `InvalidRequest` for what is no regular expression.
    """
    consumers = ConsumerManager(branch.io, branch.paths)
    wanted, kept = _pattern(including or ".*", "including"), _pattern(excluding, "excluding")
    chosen = [i for i in consumers.all() if wanted and wanted.fullmatch(i) and not (kept and kept.fullmatch(i))]
    return chosen if dry_run else [i for i in chosen if consumers.delete(i)]


def _pattern(text: str | None, what: str) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text else None
    except re.error as e:
        raise InvalidRequest(f"{what} is {text!r}, which is no regular expression: {e}") from e
