"""Offsets of streams of Paimon tables, as Spark keeps them in its checkpoints.

An offset says how far a stream has read: the snapshot that comes next (`next`), or that is being read in full (`full`),
and how many of its splits are done. Neither is known while a table is empty and the stream does not know yet where it
begins. `plan` names the files of the snapshot in hand, so that a position in it is never taken for one in another
plan of it. `table` names the table itself, by when it was made; `passed` the snapshot that was read last, because a
rollback frees its id for another one.

Spark does not write down where a stream begins: if the first batch has to be read again after a restart, it asks for
the beginning again, and the table may have moved on. So the end of the first batch says where that batch began
(`began`).

Splits are those of `forebay.paimon.read.stream.StreamScan`, whose state is the same without the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from forebay.base.errors import InvalidRequest
from forebay.paimon.read.stream import STATE_VERSION

_OF_SCANS = ("full", "next", "split", "plan", "began_empty", "finished", "passed")
"""What an offset shares with the state of a scan."""


@dataclass(frozen=True)
class PaimonOffset:
    """Where a stream is. `began_empty`: its table had no snapshot at the start. `finished`: nothing more will come.

    `is_first`: no batch has been planned from here yet. `began`: (`full`, `next`) where the batch that ends here began,
    if it is the first one.
    """

    table: str
    full: int | None = None
    next: int | None = None
    split: int = 0
    plan: str | None = None
    began_empty: bool = False
    finished: bool = False
    passed: str | None = None
    is_first: bool = False
    began: tuple[int | None, int | None] | None = None

    @classmethod
    def of_state(cls, table: str, state: Mapping[str, Any]) -> PaimonOffset:
        """The offset of a scan's state. What says nothing more is left out, so that equal places are equal offsets."""
        split = int(state["split"])
        return cls(
            table, state["full"], state["next"], split, state["plan"] if split else None,
            bool(state["began_empty"]), bool(state["finished"]), state["passed"],
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """The state of a scan at this offset."""
        values = {name: getattr(self, name) for name in _OF_SCANS}
        return {"version": STATE_VERSION, "watermark": None, **values}

    @property
    def is_settled(self) -> bool:
        """Whether it is known where the stream begins."""
        return self.full is not None or self.next is not None

    @property
    def place(self) -> tuple[int, int]:
        """(snapshot in hand, how many of its splits are done): grows with every split. (0, 0) before the beginning."""
        snapshot = self.full if self.full is not None else self.next
        return (0, 0) if snapshot is None else (snapshot, self.split)

    @property
    def start_of_batch(self) -> PaimonOffset | None:
        """Where the batch that ends here began, if it was the stream's first one."""
        if self.began is None:
            return None
        full, following = self.began
        return replace(
            self, full=full, next=following, split=0, plan=None, finished=False, passed=None, is_first=True, began=None
        )

    def after(self, start: PaimonOffset) -> PaimonOffset:
        """This offset as the end of the batch from `start`; `start` itself if nothing is between them."""
        if (self.full, self.next, self.split, self.finished) == (start.full, start.next, start.split, start.finished):
            return start
        return replace(self, is_first=False, began=(start.full, start.next) if start.is_first else None)

    def in_front_of(self, snapshot_id: int, passed: str | None = None) -> PaimonOffset:
        """The place before the changes of a snapshot."""
        return replace(self, full=None, next=snapshot_id, split=0, plan=None, passed=passed)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> PaimonOffset:
        """Raises `InvalidRequest` for what is no offset of such a stream."""
        known = {f.name for f in fields(cls)}
        try:
            given = {name: value for name, value in values.items() if name in known}
            if given.get("began") is not None:
                full, following = given["began"]
                given["began"] = (full, following)
            made = cls(**given)
            if not isinstance(made.split, int) or not isinstance(made.table, str):
                raise TypeError("'split' is a number, and 'table' a text")
        except (TypeError, ValueError) as e:
            raise InvalidRequest(f"this is no offset of a stream of a Paimon table: {dict(values)!r} ({e})") from e
        return made
