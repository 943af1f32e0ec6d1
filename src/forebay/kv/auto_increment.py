"""Auto-increment ids: unique in a table, ascending within a segment, with gaps.

Ids come in segments that are taken from a durable counter of the table (`table.auto-increment.cache-size` ids each), so
that buckets need not coordinate for every row. The rest of a segment is stored with the rows; if it is lost, its ids
are skipped, never reused. Ids begin at 1 (reference: BoundedSegmentSequenceGenerator).
"""

from __future__ import annotations

from collections.abc import Callable

from forebay.base.errors import ErrorCode, InvalidRequest

FetchSegment = Callable[[int], int]
"""Takes a number of ids from the table's counter; returns the first of them."""


class AutoIncrementSequence:
    """The ids of one column, as one bucket draws them: `next_id` to `last_id`, none above `id_max`.

    The put in one piece draws them itself while there are some (`forebay.kv.hlog._put`).
    """

    def __init__(
        self, column: str, id_max: int, segment_size: int, fetch_segment: FetchSegment, next_id: int, last_id: int
    ) -> None:
        self._column = column
        self.id_max = id_max
        self._segment_size = segment_size
        self._fetch_segment = fetch_segment
        self.next_id = next_id
        self.last_id = last_id

    def next(self) -> int:
        """Return the next id. Raises `InvalidRequest` when the column's type is exhausted."""
        if self.next_id > self.last_id:
            self.next_id = self._fetch_segment(self._segment_size)
            self.last_id = self.next_id + self._segment_size - 1
        if self.next_id > self.id_max:
            raise InvalidRequest(
                f"auto-increment column '{self._column}' has reached its greatest value {self.id_max}",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        self.next_id += 1
        return self.next_id - 1
