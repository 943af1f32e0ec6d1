"""A stream of the accounts' changelog among the readers: its rows must add up to a state that existed.

It is called like Spark calls it, without Spark (`tests.spark.streams`). It begins with a lake snapshot, and is
repeatedly restarted from its checkpoint: before a batch, after a batch was logged, after it was delivered.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from forebay.base.errors import ForebayError, Unavailable
from forebay.client.connection import Connection
from tests.invariants.bank import ACCOUNT_SCHEMA, Bank, check_banks
from tests.spark.streams import Offset, Stream

_RESTARTS = 0.2
Key = tuple[int, int]


class ChangelogStream:
    """A sink that applies changes by key, and checks that each fits what is there."""

    def __init__(self, table: str, banks: Sequence[Bank], seed: int) -> None:
        self._table, self._banks, self._rng = table, banks, random.Random(seed)
        self.batches = self.restarts = self.begun = 0
        self._forget()

    def _forget(self) -> None:
        self._stream: Stream | None = None
        self._logged: tuple[Offset, Offset] | None = None
        self._state: dict[Key, dict[str, Any]] = {}

    def check(self, connection: Connection, acknowledged: Callable[[], Mapping[int, int]]) -> None:
        """Deliver what there is now. Starts over where the log or the lake snapshot has expired."""
        least = acknowledged()
        try:
            while self._deliver(connection):
                pass
        except ForebayError as e:
            if not isinstance(e, Unavailable):
                self._forget()
            raise
        rows = pa.Table.from_pylist(list(self._state.values()), schema=ACCOUNT_SCHEMA)
        check_banks(rows, self._banks, least)

    def _deliver(self, connection: Connection) -> bool:
        """One batch. Whether it was one of the snapshot, behind which there is more."""
        if self._stream is None:
            self._stream = Stream(connection, f"{self._table}$changelog", scan_startup_mode="full")
            self.begun += 1
        stream = self._stream
        self._restart_sometimes(stream)
        was_logged = self._logged is not None
        if self._logged is None:
            self._logged = stream.plan()
        self._restart_sometimes(stream)
        start, end = self._logged
        changes = [row for batch in stream.read(start, end) for row in batch.to_pylist()]
        for change in sorted(changes, key=lambda row: row["_log_offset"]):
            self.apply(change)
        stream.offset, self._logged = end, None
        self.batches += 1
        self._restart_sometimes(stream)
        stream.reader.commit(end)
        # A batch that was logged a while ago may end before what has been acknowledged since.
        return was_logged or "full" in start or "full" in end.get("start", {})

    def _restart_sometimes(self, stream: Stream) -> None:
        if self._rng.random() < _RESTARTS:
            stream.restart()
            self.restarts += 1

    def apply(self, change: dict[str, Any]) -> None:
        """A change is lost, or there twice, where the next one of its key does not fit."""
        kind = change.pop("_change_type")
        offset, _ = change.pop("_log_offset"), change.pop("_commit_timestamp")
        key = change["bank"], change["account"]
        there = self._state.get(key)
        if kind in ("update_before", "delete"):
            assert there == change, f"{kind} at offset {offset} of {change}, and the stream has {there}"
        elif kind == "insert":
            assert there is None, f"an insert at offset {offset} of {change}, and the stream has {there}"
        if kind == "delete":
            del self._state[key]
        elif kind != "update_before":
            self._state[key] = change
