"""Consumers: the progress of named streaming readers (`consumer/consumer-<id>`), which expiry respects.

A consumer's file holds the id of its next snapshot. After a rollback, ids come again: so ours also hold what names the
snapshot before, the last one that the consumer has read (`forebay.passed`). Java Paimon skips that field, and leaves it
out when it writes the file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from forebay.base.errors import CorruptData, InvalidRequest, NotFound
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.store.paths import PathFactory

_PREFIX = "consumer-"
_NEXT, _PASSED = "nextSnapshot", "forebay.passed"


@dataclass(frozen=True, slots=True)
class ConsumerPosition:
    """The next snapshot of a consumer. `passed` names the one before by its delta manifest list; None if unknown."""

    next_snapshot: int
    passed: str | None = None


class ConsumerManager:
    """The consumers of one branch. Thread-safe."""

    def __init__(self, io: FileIO, paths: PathFactory) -> None:
        self._io, self._paths = io, paths

    def next_snapshot(self, consumer_id: str) -> int | None:
        """The next snapshot of the consumer; None if there is no such consumer."""
        position = self.position(consumer_id)
        return None if position is None else position.next_snapshot

    def position(self, consumer_id: str) -> ConsumerPosition | None:
        """Where the consumer is; None if there is no such consumer."""
        _check_id(consumer_id)
        try:
            data = self._io.read(self._paths.consumer(consumer_id))
        except NotFound:
            return None
        try:
            node = json.loads(data)
            passed = node.get(_PASSED)
            return ConsumerPosition(int(node[_NEXT]), None if passed is None else str(passed))
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise CorruptData(f"the file of consumer '{consumer_id}' is malformed: {e}") from e

    def record(self, consumer_id: str, next_snapshot: int, passed: str | None = None) -> None:
        """Record that the consumer has finished all snapshots before `next_snapshot`, of which `passed` names the last
        one."""
        _check_id(consumer_id)
        node = {_NEXT: next_snapshot, **({} if passed is None else {_PASSED: passed})}
        self._io.write(self._paths.consumer(consumer_id), json.dumps(node, indent=2).encode())

    def delete(self, consumer_id: str) -> bool:
        """Delete a consumer; return False if there was none."""
        _check_id(consumer_id)
        return self._io.delete(self._paths.consumer(consumer_id))

    def all(self) -> dict[str, int]:
        """The next snapshot of each consumer."""
        positions = {}
        for consumer_id, _ in self._files():
            next_snapshot = self.next_snapshot(consumer_id)
            if next_snapshot is not None:
                positions[consumer_id] = next_snapshot
        return positions

    def least_next_snapshot(self) -> int | None:
        """The earliest snapshot that a consumer still needs; None if there are no consumers."""
        return min(self.all().values(), default=None)

    def expire(self, before_ms: int) -> list[str]:
        """Delete consumers last recorded before `before_ms` (milliseconds since the epoch); return their ids."""
        old = [consumer_id for consumer_id, modified in self._files() if modified is not None and modified < before_ms]
        return [consumer_id for consumer_id in old if self.delete(consumer_id)]

    def _files(self) -> list[tuple[str, int | None]]:
        statuses = ((s.path.rpartition("/")[2], s.modified_ms) for s in self._io.list(self._paths.consumer_directory))
        return sorted((name[len(_PREFIX) :], modified) for name, modified in statuses if name.startswith(_PREFIX))


def _check_id(consumer_id: str) -> None:
    if not consumer_id.strip() or "/" in consumer_id:
        raise InvalidRequest(f"{consumer_id!r} cannot name a consumer: it must not be blank, nor hold a slash")
