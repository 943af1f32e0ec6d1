"""Changelogs produced by compaction: the changes made by a merge, as rows with kinds.

A key that becomes visible to readers is +I; one that is no longer visible is -D with its last row; one whose row
changes is -U with the old row and +U with the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.schema import VALUE_KIND, DataField, TableSchema
from forebay.paimon.merge.leveled import MergedWindow
from forebay.paimon.merge.order import fixed_values
from forebay.paimon.merge.spec import MergeEngine, MergeSpec
from forebay.paimon.options import CoreOptions

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = 0, 1, 2, 3

_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ChangelogRules:
    """How changes are reported. `compared`: the columns that must differ (None: equal rows are reported, too)."""

    first_row: bool
    compared: tuple[DataField, ...] | None

    @classmethod
    def of(cls, schema: TableSchema, options: CoreOptions, spec: MergeSpec) -> ChangelogRules:
        compared = None
        if options.changelog_producer_row_deduplicate:
            ignored = options.changelog_producer_row_deduplicate_ignore_fields
            compared = tuple(f for f in schema.fields if f.name not in ignored)
        return cls(spec.engine is MergeEngine.FIRST_ROW, compared)


def changes_of(window: MergedWindow, rules: ChangelogRules) -> pa.RecordBatch:
    """The changes of a merge, ascending by key, with the columns of `window.rows`."""
    alive = (_kinds(window.rows) & 1) == 0
    had = window.before >= 0
    inserted = window.changed & alive & ~had
    if rules.first_row:
        return _with_kind(window.rows.filter(pa.array(inserted)), INSERT)
    deleted = window.changed & ~alive & had
    updated = window.changed & alive & had
    if rules.compared is not None and updated.any():
        updated[updated] = _differ(window, updated, rules.compared)
    old, new = deleted | updated, inserted | updated
    before = window.source.select(window.rows.schema.names).take(pa.array(window.before[old]))
    after = window.rows.filter(pa.array(new))
    kinds = np.concatenate(
        [np.where(updated[old], UPDATE_BEFORE, DELETE), np.where(updated[new], UPDATE_AFTER, INSERT)]
    )
    order = np.argsort(np.concatenate([2 * np.flatnonzero(old), 2 * np.flatnonzero(new) + 1]))
    return _with_kinds(pa.concat_batches([before, after]).take(pa.array(order)), kinds[order])


def _differ(window: MergedWindow, mask: _Flags, compared: Sequence[DataField]) -> _Flags:
    """Whether the old and the new row of the chosen keys differ, compared as BinaryRows, nested values included."""
    names = [f.name for f in compared]
    if not names:
        return np.zeros(int(mask.sum()), np.bool_)
    layout = row_layout(tuple(compared))
    old = layout.encode(window.source.select(names).take(pa.array(window.before[mask])))
    new = layout.encode(window.rows.select(names).filter(pa.array(mask)))
    differences: _Flags = pc.not_equal(old, new).to_numpy(zero_copy_only=False)
    return differences


def inserts_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The changelog of rows with new keys: +I for each row that is not a delete."""
    return _with_kind(batch.filter(pa.array((_kinds(batch) & 1) == 0)), INSERT)


def _kinds(batch: pa.RecordBatch) -> npt.NDArray[np.int8]:
    return fixed_values(batch.column(VALUE_KIND), np.dtype(np.int8)).astype(np.int8, copy=False)


def _with_kind(batch: pa.RecordBatch, kind: int) -> pa.RecordBatch:
    return _with_kinds(batch, np.full(batch.num_rows, kind))


def _with_kinds(batch: pa.RecordBatch, kinds: npt.NDArray[np.int64]) -> pa.RecordBatch:
    index = batch.schema.get_field_index(VALUE_KIND)
    return batch.set_column(index, batch.schema.field(index), pa.array(kinds, pa.int8()))
