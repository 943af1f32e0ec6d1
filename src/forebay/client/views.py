"""Views of stored rows: which columns, in which order, with which Arrow schema.

A `RowView` is a selection of columns of a table. The user-facing schema differs from the stored one only in that
TIMESTAMP_LTZ columns have the zone UTC. Converting between them is zero-copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.base.errors import InvalidRequest
from forebay.codec.arrow.arrow_message import message_codec
from forebay.codec.arrow.arrow_types import storage_schema, user_schema
from forebay.codec.filters import BoundPredicate, bind, filter_rows, unbind
from forebay.codec.kv.value_batch import ValueDecoder, parse_value_batch
from forebay.codec.rows.row_format import RowFormat
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import Column, TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.predicates import predicate_to_pb

if TYPE_CHECKING:
    from forebay.client.cluster.cluster import ClusterClient
    from forebay.client.settings import Settings
    from forebay.protocol.api import ServerNode


class RowView:
    """What is read of a table's rows: columns, and a filter on any columns, which is bound to the table's schema.

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


class Pages:
    """Asks for the pages of ScanKv and reads them, with the columns `read` of a view.

    A server that can decodes the rows and sends these columns in Arrow, without rows that the filter excludes. Whole
    rows are decoded here: that takes as long, and there are more clients than servers.
    """

    def __init__(self, view: RowView, cluster: ClusterClient) -> None:
        self._view = view
        self._cluster = cluster
        self._decoder = view.decoder(cluster)
        self._request = arrow_rows(view, view.positions, cluster.settings)

    def wanted_of(self, node: ServerNode) -> pb.PbArrowRows | None:
        """What to ask a server for; None: for its rows as they are."""
        is_less = self._view.is_projected or self._view.predicate is not None
        return self._request if is_less and self._cluster.channel(node).versions.scans_in_arrow else None

    def page(self, response: pb.ScanKvResponse, payloads: Sequence[memoryview]) -> Page:
        """What an answer has. Raises `CorruptData`."""
        if not payloads:
            return Page(0, self._nothing)
        data = payloads[0]
        if not response.HasField("arrow_rows"):
            schema_ids, rows = parse_value_batch(data)
            return Page(len(rows), lambda: self._decoder.decode(schema_ids, rows))
        count = response.arrow_rows
        return Page(count, lambda: message_codec(self._view.read).decode(data, 0, len(data), count))

    def _nothing(self) -> pa.RecordBatch:
        return self._decoder.schema.empty_table().to_batches()[0]


class Page(NamedTuple):
    """The number of rows of a page, and what decodes them, with the storage schema."""

    rows: int
    decode: Callable[[], pa.RecordBatch]


_COMPRESSIONS = {"none": 0, "lz4": 1, "zstd": 2}


def arrow_rows(view: RowView, positions: Sequence[int], settings: Settings) -> pb.PbArrowRows:
    """What asks for the columns at `positions`, without rows that the filter of `view` excludes."""
    request = pb.PbArrowRows(
        schema_id=view.info.schema_id, projected_fields=positions, filter_predicate=view.wire_filter()
    )
    compression = _COMPRESSIONS[settings["client.scanner.kv.compression"]]
    if compression:
        request.compression = compression
    return request


def rows_without_columns(rows: int) -> pa.RecordBatch:
    """A batch with rows but no columns, for counting."""
    return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), rows, [None]))


def integers(array: pa.Array) -> npt.NDArray[Any]:
    """The values of an integer array without nulls, sharing its memory (`to_numpy` would import pandas)."""
    width = np.dtype(array.type.to_pandas_dtype())
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(0, width)
    return np.frombuffer(buffer, width, len(array), array.offset * width.itemsize)


def array_of(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """An Arrow array of numbers, sharing their memory; null where not `valid` (`pa.array` would import pandas)."""
    values = np.ascontiguousarray(values)
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [bits, pa.py_buffer(values)])


def text_array(texts: Sequence[str]) -> pa.StringArray:
    """An array of strings (`pa.array` of a list would import pandas)."""
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def _narrowest(columns: Sequence[Column]) -> Column:
    """A column that is cheap to read: of fixed width if possible."""
    fixed = [c for c in columns if pa.types.is_primitive(storage_schema([c]).field(0).type)]
    return min(fixed, key=lambda c: storage_schema([c]).field(0).type.bit_width, default=columns[0])
