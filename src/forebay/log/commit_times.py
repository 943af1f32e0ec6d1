"""The commit timestamps that a log gives to its batches.

Rules:
- They never go back, whatever the wall clock does.
- Once it was said which records are from before a moment, no later record is.
- A transaction has one time in all logs to which it writes: that of its decision. From before the decision until its
  rows are in a log, time stands still there, so that this time is still to be had (docs/design/0012-transactions.md).
"""

from __future__ import annotations


class HeldTime:
    """A moment at which the time of some logs stands still. Who holds it may put it off."""

    __slots__ = ("at_ms",)

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms


class CommitTimes:
    """The times of one log. Not thread-safe: the log's lock for appends guards it."""

    def __init__(self) -> None:
        self._held: list[HeldTime] = []
        self._settled_ms = -1

    def next(self, now_ms: int, last_ms: int) -> int:
        """Return the timestamp of a batch that is appended now, after one with the timestamp `last_ms`."""
        return max(self._held[0].at_ms if self._held else now_ms, last_ms, self._settled_ms)

    def hold(self, held: HeldTime, last_ms: int) -> int:
        """Let time stand still at `held` until `release`; return the earliest timestamp that may still be given."""
        earliest_ms = max([last_ms, self._settled_ms, *(each.at_ms for each in self._held)])
        self._held.append(held)
        return earliest_ms

    def release(self, held: HeldTime) -> None:
        """Let time go on. Without effect if it does not stand still at `held`."""
        if held in self._held:
            self._held.remove(held)

    def settle(self, timestamp_ms: int) -> bool:
        """Give no timestamp before `timestamp_ms` from now on; return False if one that is held may be one."""
        if any(held.at_ms < timestamp_ms for held in self._held):
            return False
        self._settled_ms = max(self._settled_ms, timestamp_ms)
        return True
