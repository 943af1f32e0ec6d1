"""Files that expire during a read: the reader gets an error saying that their snapshot has expired."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from forebay.base.errors import NotFound
from forebay.paimon.store.snapshots import SnapshotManager

T = TypeVar("T")


@contextmanager
def expiry_errors(snapshots: SnapshotManager, snapshot_id: int | None) -> Iterator[None]:
    """Raise `NotFound` about snapshot `snapshot_id` if one of its files is missing because the snapshot expired.

    A file missing from the latest snapshot has another cause, so that error is passed on. None: one of several
    snapshots.
    """
    try:
        yield
    except NotFound as e:
        if snapshot_id is None and (e.__cause__ is None or isinstance(e.__cause__, NotFound)):
            raise  # not a file, but a tag or snapshot that was requested by name
        earliest, latest = snapshots.earliest_id(), snapshots.latest_id()
        if latest is None or (snapshot_id is not None and snapshot_id >= latest):
            raise
        subject = "a snapshot" if snapshot_id is None else f"snapshot {snapshot_id}"
        raise NotFound(
            f"{subject} of {snapshots.paths.root} has expired while it was read (there are {earliest} to {latest}; "
            f"{e.message}); read a later one, or keep what is read by a tag, a consumer or 'snapshot.time-retained'"
        ) from e


def with_expiry_errors(items: Iterator[T], snapshots: SnapshotManager, snapshot_id: int | None) -> Iterator[T]:
    """The items, each produced within `expiry_errors`."""
    with expiry_errors(snapshots, snapshot_id):
        yield from items
