"""The part of a table's rows that a read requests: which columns, in which order, with which filter and Arrow schema.

The user-facing schema differs from the stored one only in that TIMESTAMP_LTZ columns have the zone UTC. Converting
between them is zero-copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.client.arrays import rows_without_columns
from forebay.codec.arrow.arrow_types import storage_schema, user_schema
from forebay.codec.filters import BoundPredicate, bind, filter_rows, unbind
from forebay.codec.kv.value_batch import ValueDecoder
from forebay.codec.rows.row_format import RowFormat
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import Column, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.predicates import predicate_to_pb

if TYPE_CHECKING:
    from forebay.client.cluster.cluster import ClusterClient


class RowView:
    """The columns to read of a table's rows, and a filter on any columns, which is bound to the table's schema.

    `columns` (None: all) are the result columns, in their order. `read` are the columns that have to be read for these
    and for the filter, in the table's order. A view is made where a read begins, and passed to everything that plans or
    reads it, also in other processes: it pickles with its bound filter, so the filter is bound once.
    """

    def __init__(
        self,
        info: TableInfo,
        columns: Sequence[str] | None = None,
        predicate: Predicate | None = None,
        *,
        bound: BoundPredicate | None = None,
    ) -> None:
        """`bound` is `predicate` as it was bound to this schema before; None: it is bound here.

        Raises `InvalidRequest` for columns that the table does not have, also in the filter.
        """
        schema = info.schema
        if columns is not None and isinstance(columns, str):
            raise InvalidRequest(f"columns must be a list of names, not the text {columns!r}")
        names = list(schema.names if columns is None else columns)
        if len(set(names)) != len(names):
            raise InvalidRequest(f"a column was asked for twice: {names}")
        self.info = info
        self.columns: tuple[Column, ...] = tuple(schema.columns[p] for p in schema.indexes(names))
        self.predicate = predicate
        self.bound = bind(predicate, schema) if bound is None and predicate is not None else bound
        column_names = set(names) | (set() if predicate is None else set(predicate.columns()))
        if not column_names:
            column_names = {_narrowest(schema.columns).name}  # rows without columns are counted by reading one column
        self.positions = tuple(sorted(schema.indexes(list(column_names))))
        self.read: tuple[Column, ...] = tuple(schema.columns[p] for p in self.positions)
        self.schema: pa.Schema = user_schema(self.columns)
        self._storage = storage_schema(self.columns)
        read_names = [column.name for column in self.read]
        self._places = [read_names.index(name) for name in names]
        self._is_whole = self._places == list(range(len(read_names)))

    def wire_filter(self) -> pb.PbPredicate | None:
        """The filter to send to the server; None if it cannot be pushed down. The client filters rows in any case."""
        if self.bound is None:
            return None
        try:
            return predicate_to_pb(unbind(self.bound), self.info.schema)
        except InvalidRequest:
            return None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the result columns, in their order."""
        return tuple(column.name for column in self.columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled_view, (self.info, self.names, self.predicate, self.bound)

    @property
    def is_projected(self) -> bool:
        """Whether only some of the table's columns are read."""
        return len(self.read) < len(self.info.schema.columns)

    def show(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that match the filter, as users see them, from rows with the columns `read` (storage schema)."""
        if self.bound is not None:
            batch = filter_rows(batch, self.bound)
        if self._is_whole and self.schema.equals(self._storage):
            return batch
        if not self._places:
            return rows_without_columns(batch.num_rows)
        return pa.RecordBatch.from_arrays(self.pick(batch), schema=self.schema)

    def pick(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The arrays of `columns`, in their order, from rows with the columns `read`; unfiltered."""
        arrays = [batch.column(place) for place in self._places]
        return [
            array if array.type.equals(field.type) else array.cast(field.type)
            for array, field in zip(arrays, self.schema, strict=True)
        ]

    def decoder(self, cluster: ClusterClient) -> ValueDecoder:
        """A decoder of stored values to the columns `read`."""
        info = self.info
        row_format = RowFormat(info.descriptor.kv_format.value)
        return ValueDecoder(self.read, row_format, lambda schema_id: cluster.schema(info, schema_id))


def _unpickled_view(
    info: TableInfo, names: tuple[str, ...], predicate: Predicate | None, bound: BoundPredicate | None
) -> RowView:
    return RowView(info, names, predicate, bound=bound)


def _narrowest(columns: Sequence[Column]) -> Column:
    """A column that is cheap to read: of fixed width if possible."""
    fixed = [c for c in columns if pa.types.is_primitive(storage_schema([c]).field(0).type)]
    return min(fixed, key=lambda c: storage_schema([c]).field(0).type.bit_width, default=columns[0])
