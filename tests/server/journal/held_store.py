"""A store that creates objects when a test lets it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from forebay.store.directory import DirectoryStore
from forebay.store.opening import open_store
from tests.patience import PATIENCE

if TYPE_CHECKING:
    from typing_extensions import Buffer


class HeldStore:
    """Lets a store create objects while `may_create` is set, as at first."""

    def __init__(self) -> None:
        self.may_create = threading.Event()
        self.may_create.set()
        self.begun = 0
        """How many creations have begun."""

    def open(self, where: str, options: Any) -> DirectoryStore:
        """The store, a directory: for `Injected.open_store`."""
        store = open_store(where, options)
        assert isinstance(store, DirectoryStore)
        create = store.create

        def create_later(name: str, data: Buffer) -> bool:
            self.begun += 1
            assert self.may_create.wait(PATIENCE)
            return create(name, data)

        store.create = create_later  # type: ignore[method-assign]
        return store
