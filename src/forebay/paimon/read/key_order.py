"""The order in which sorted reads yield rows: for those who merge them with rows from elsewhere."""

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
    """Ascending by the columns of the key, one after the other; text by its UTF-8 bytes, as Paimon compares it."""

    fields: tuple[DataField, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are compared: the primary key without the partition keys."""
        return tuple(f.name for f in self.fields)

    def comparable(self, rows: pa.RecordBatch) -> pa.LargeBinaryArray:
        """A byte string for each row, whose order as unsigned bytes is the order of the rows.

        `rows` have at least the columns of the key, without nulls, of the types that a reader yields. Equal keys have
        equal strings, whatever batch they are in.
        """
        keys = [rows.column(name) for name in self.columns]
        for name, key in zip(self.columns, keys, strict=True):
            if key.null_count:
                raise InvalidRequest(f"column '{name}' of the key has nulls, and so no place in the order")
        return key_bytes(keys, rows.num_rows)

    def compare(self, left: Mapping[str, Any], right: Mapping[str, Any]) -> int:
        """Below 0 if row `left` comes first, above 0 if `right` does, 0 if their keys are equal."""
        schema = pa.schema([arrow_field(f) for f in self.fields])
        rows = [{name: row[name] for name in self.columns} for row in (left, right)]
        first, second = self.comparable(pa.RecordBatch.from_pylist(rows, schema)).to_pylist()
        return int(first > second) - int(first < second)
