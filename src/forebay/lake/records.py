"""Log records to be tiered: a run of them as one Arrow batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import InvalidRequest
from forebay.codec.log.log_batch import ChangeType


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """Consecutive records of one bucket's log.

    `rows` are the table's columns in order; `change_types` (uint8) are the numbers of `ChangeType`, None if all rows
    are appended; `offsets` (int64) ascend and may have gaps; `timestamps` (int64) are commit times in milliseconds
    since the epoch. Rows of a table snapshot have the change type INSERT and the snapshot's log offset minus one. The
    arrays have as many values as `rows` has rows, and no nulls.
    """

    rows: pa.RecordBatch
    offsets: pa.Int64Array
    timestamps: pa.Int64Array
    change_types: pa.UInt8Array | None = None

    def __post_init__(self) -> None:
        for name, array in (
            ("offsets", self.offsets),
            ("timestamps", self.timestamps),
            ("change_types", self.change_types),
        ):
            if array is not None and len(array) != self.rows.num_rows:
                raise InvalidRequest(f"{name} has {len(array)} values for {self.rows.num_rows} rows")

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def kinds(self) -> npt.NDArray[np.uint8]:
        """The number of each record's `ChangeType`, even if all rows are appended."""
        if self.change_types is None:
            return np.zeros(len(self), np.uint8)
        return np.asarray(self.change_types)

    def slice(self, start: int, length: int) -> ChangeRows:
        """`length` records from `start` on, without a copy."""
        types = None if self.change_types is None else self.change_types.slice(start, length)
        return ChangeRows(
            self.rows.slice(start, length),
            self.offsets.slice(start, length),
            self.timestamps.slice(start, length),
            types,
        )

    def slices(self, length: int) -> Iterator[ChangeRows]:
        """The records in slices of at most `length`."""
        return (self.slice(start, length) for start in range(0, len(self), length))

    def without_update_before(self) -> ChangeRows:
        """The records that a table with a key needs: without old images of updates, which are redundant there."""
        if self.change_types is None:
            return self
        mask = pc.not_equal(self.change_types, pa.scalar(ChangeType.UPDATE_BEFORE, pa.uint8()))
        return self if mask.true_count == len(self) else self.filter(mask)

    def filter(self, mask: pa.BooleanArray) -> ChangeRows:
        """The records for which `mask` is true; it must have no nulls."""
        return ChangeRows(
            self.rows.filter(mask),
            self.offsets.filter(mask),
            self.timestamps.filter(mask),
            None if self.change_types is None else self.change_types.filter(mask),
        )
