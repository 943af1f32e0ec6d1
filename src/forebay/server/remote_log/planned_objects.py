"""Objects of the store that are going to be created: the journal knows of each of them before it is there.

A machine may be lost at any moment, and the next one has what the journal has. So a planned object is doomed first, the
journal gets to know that, and only then may the object be created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forebay.base.ambient import Clock
from forebay.base.errors import StorageFailure
from forebay.server.metadata_store import MetadataStore

_UPLOAD_MS = 24 * 3600 * 1000
"""After this time an object that was to be created, and that nothing lists, is deleted."""


class PlannedObjects:
    """The planned objects of one server. Any thread."""

    def __init__(self, metadata: MetadataStore, clock: Clock, wait_until_stored: Callable[[], bool]) -> None:
        """`wait_until_stored`: wait until the journal has all metadata, and return whether it does."""
        self._metadata, self._clock, self._wait_until_stored = metadata, clock, wait_until_stored

    def plan(self, objects: Iterable[str]) -> None:
        """Note objects to delete unless they are listed in time. They may be created when this returns.

        Raises `StorageFailure`, or what ended the journal; they must not be created then.
        """
        planned = dict.fromkeys(objects, self._clock.now_ms() + _UPLOAD_MS)
        if not planned:
            return
        self._metadata.doom_objects(planned)
        if not self._wait_until_stored():
            raise StorageFailure("no object is created in the store, because the journal there is behind")
