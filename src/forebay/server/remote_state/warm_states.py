"""The states of a standby: copies of the store's snapshots, so that a takeover finds them on its own disk.

One thread fetches what the standby names, file by file; a file that the older copy has is not fetched again. A bucket
that has no snapshot any more loses its copy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from forebay.base import threads
from forebay.base.errors import CorruptData, ForebayError, Unavailable
from forebay.base.thread_rules import any_thread
from forebay.fs import names
from forebay.fs.interface import FileSystem
from forebay.kv.checkpoint import KvFolder
from forebay.server.metadata_store import StateSnapshot
from forebay.server.remote_state.state_snapshots import fetch_state, is_made_of
from forebay.store.objects import ObjectStore

_LOGGER = logging.getLogger(__name__)


class WarmStates:
    """The copies in the data directory of one standby."""

    def __init__(self, fs: FileSystem, data_dir: str, store: ObjectStore) -> None:
        self._fs, self._data_dir, self._store = fs, data_dir, store
        self._changed = threads.condition()
        self._wanted: Mapping[str, StateSnapshot] | None = None
        self._copies: dict[str, StateSnapshot | None] | None = None
        """The folders that have copies, with the snapshot; None until it is known. None before the first look for those
        of earlier standbys."""
        self._is_stopping = False
        self._thread = threads.thread(self._run, name="forebay-standby-states")
        self._thread.start()

    @any_thread
    def want(self, snapshots: Mapping[str, StateSnapshot]) -> None:
        """Fetch these snapshots from now on. They are by the folder of the state, relative to the data directory."""
        with self._changed:
            self._wanted = snapshots
            self._changed.notify_all()

    @any_thread
    def stop(self) -> None:
        """Fetch nothing more; no copy is made or removed after this. Does not wait for what the store is asked for."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    @contextmanager
    def _unless_stopped(self) -> Iterator[None]:
        """Do something before `stop` returns, or raise `Unavailable`."""
        with self._changed:
            if self._is_stopping:
                raise Unavailable("the standby has stopped")
            yield

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopping or self._wanted is not None)
                if self._is_stopping:
                    return
                wanted, self._wanted = self._wanted, None
            assert wanted is not None
            try:
                if self._copies is None:
                    self._copies = dict.fromkeys(self._folders("", 0))
                for folder in self._copies.keys() - wanted.keys():
                    with self._unless_stopped():
                        self._fs.remove_tree(names.join(self._data_dir, folder))
                    del self._copies[folder]
                for folder, snapshot in wanted.items():
                    if self._copies.get(folder) != snapshot:
                        self._copies[folder] = None
                        self._fetch(folder, snapshot)
                        self._copies[folder] = snapshot
            except ForebayError as e:
                if not self._is_stopping:
                    _LOGGER.warning("a state is not fetched from the store for now: %s", e)

    def _fetch(self, folder: str, snapshot: StateSnapshot) -> None:
        path = names.join(self._data_dir, folder)
        try:
            with KvFolder(self._fs, path).pinned_checkpoint() as there:
                if there is not None and is_made_of(snapshot, there):
                    return
            fetch_state(self._store, self._fs, path, snapshot, guard=self._unless_stopped)
        except CorruptData:
            # The older copy is damaged, or an object is: the next list has all files fetched again.
            with self._unless_stopped():
                self._fs.remove_tree(path)
            raise

    def _folders(self, parent: str, depth: int) -> Iterator[str]:
        """The folders of states below a folder, relative to the data directory."""
        for entry in self._fs.list_directory(names.join(self._data_dir, parent) if parent else self._data_dir):
            if entry.is_directory:
                folder = f"{parent}/{entry.name}" if parent else entry.name
                tablet = names.parse_tablet_folder(folder)
                if tablet is not None:
                    if tablet.kind == "kv":
                        yield folder
                elif depth < 3:
                    yield from self._folders(folder, depth + 1)
