"""The order of rows in sorted reads, for callers that merge them with other rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.paimon.format.arrow import arrow_field
from forebay.paimon.format.schema import DataField
from forebay.paimon.merge.order import key_bytes


@dataclass(frozen=True)
class RowKeyOrder:
    """Ascending by the key columns, compared left to right; text by its UTF-8 bytes, as in Paimon."""

    fields: tuple[DataField, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The compared columns: the primary key without the partition keys."""
        return tuple(f.name for f in self.fields)

    def comparable(self, rows: pa.RecordBatch) -> pa.LargeBinaryArray:
        """A byte string per row; comparing these as unsigned bytes gives the order of the rows.

        `rows` must have at least the key columns, without nulls, of the types that a reader returns. Equal keys have
        equal strings, in any batch.
        """
        keys = [rows.column(name) for name in self.columns]
        for name, key in zip(self.columns, keys, strict=True):
            if key.null_count:
                raise InvalidRequest(f"column '{name}' of the key has nulls, which have no place in the order")
        return key_bytes(keys, rows.num_rows)

    def compare(self, left: Mapping[str, Any], right: Mapping[str, Any]) -> int:
        """A negative number if row `left` comes first, a positive one if `right` does, 0 if their keys are equal."""
        schema = pa.schema([arrow_field(f) for f in self.fields])
        rows = [{name: row[name] for name in self.columns} for row in (left, right)]
        first, second = self.comparable(pa.RecordBatch.from_pylist(rows, schema)).to_pylist()
        return int(first > second) - int(first < second)
