"""Arrow messages for the columns of a table: layouts, encoding, decoding, projection.

A log batch's body is one encapsulated IPC record batch message, without schema message and end marker. This module
joins the kernels (`_arrow_message`, `_arrow_encode`, `_arrow_project`) to the table's columns:

- `MessageCodec` is what a list of columns compiles to; `message_codec` caches it.
- `encode_message` writes a message; `MessageCodec.decode` reads one.
- `Projection` cuts columns out of whole log batches, as they lie in a file or an answer, without decoding them.

Prior art: Apache Fluss's FileLogProjection. docs/format/log_batch.md has the grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest
from forebay.codec.arrow._arrow_encode import encode_message as _encode
from forebay.codec.arrow._arrow_message import MessageLayout, check_message
from forebay.codec.arrow._arrow_project import Projector, project_batches
from forebay.codec.arrow.arrow_types import storage_schema, time_unit
from forebay.metadata.table import Column, Schema
from forebay.metadata.types import DataType, TypeRoot

if TYPE_CHECKING:
    from typing_extensions import Buffer

DECODED_BYTES_MAX = 1 << 31
"""Most bytes that the buffers of one message may have when decompressed: a bound against decompression bombs."""

ZSTD_LEVEL_DEFAULT = 1
"""The level of tables without `table.log.arrow.compression.zstd.level`."""

_THREADED_BYTES_MIN = 1 << 18
"""From this message size on, decompression with Arrow's threads is faster than without (measured)."""

_CODEC_IDS = {"none": -1, "lz4": 0, "zstd": 1}
_WIDTHS = {
    TypeRoot.TINYINT: 1,
    TypeRoot.SMALLINT: 2,
    TypeRoot.INT: 4,
    TypeRoot.BIGINT: 8,
    TypeRoot.FLOAT: 4,
    TypeRoot.DOUBLE: 8,
    TypeRoot.DECIMAL: 16,
    TypeRoot.DATE: 4,
    TypeRoot.TIMESTAMP: 8,
    TypeRoot.TIMESTAMP_LTZ: 8,
}
_VARIABLE = frozenset({TypeRoot.CHAR, TypeRoot.STRING, TypeRoot.BYTES})

_Node = tuple[str, bool, int, int]


# ---- columns -> nodes and buffers -----------------------------------------------------------------------------------


def _nodes_of(t: DataType) -> list[_Node]:
    """The field nodes of a column: (kind, nullable, width, child count), parents first."""
    if t.root is TypeRoot.BOOLEAN:
        return [("BOOLEAN", t.nullable, 0, 0)]
    if t.root in _VARIABLE:
        return [("VARIABLE", t.nullable, 0, 0)]
    children = [_nodes_of(child) for child in t.children()]
    inner = [node for nodes in children for node in nodes]
    if t.root is TypeRoot.ROW:
        return [("STRUCT", t.nullable, 0, len(children)), *inner]
    if t.root is TypeRoot.ARRAY:
        return [("LIST", t.nullable, 0, 1), *inner]
    if t.root is TypeRoot.MAP:
        return [("LIST", t.nullable, 0, 1), ("STRUCT", False, 0, 2), *inner]
    return [("FIXED", t.nullable, _width(t), 0)]


def _width(t: DataType) -> int:
    if t.root is TypeRoot.TIME:
        return 4 if time_unit(t.precision) in ("s", "ms") else 8
    return t.length or 0 if t.root is TypeRoot.BINARY else _WIDTHS[t.root]


_BUFFERS = {"FIXED": 2, "BOOLEAN": 2, "VARIABLE": 3, "LIST": 2, "STRUCT": 1}


class MessageCodec:
    """The compiled form of a list of columns. Stateless and thread-safe; get one from `message_codec`."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        self.schema: pa.Schema = storage_schema(self.columns)
        """The Arrow schema that decoded batches have."""
        self.nodes = [_nodes_of(column.data_type) for column in self.columns]
        self.layout = MessageLayout(
            [node for nodes in self.nodes for node in nodes], tuple(column.name for column in self.columns)
        )

    def check(self, buffer: Buffer, start: int, end: int, rows: int, decoded_bytes_max: int) -> tuple[int, int, int]:
        """Prove that the message at `start` holds `rows` rows of the columns, as far as is possible without
        decompressing: counts, null counts against NOT NULL, places and sizes of buffers, validity bits and offsets.

        Returns (codec id, bytes before the body, bytes of the message). Raises `CorruptData`.
        """
        return check_message(self.layout, buffer, start, end, rows, decoded_bytes_max)

    def decode(
        self, buffer: Buffer, start: int, end: int, rows: int, decoded_bytes_max: int = DECODED_BYTES_MAX
    ) -> pa.RecordBatch:
        """The batch in the message that lies in `buffer` from `start` on and ends before `end`.

        Shares memory with `buffer` where the message is neither compressed nor badly aligned; `buffer` must then
        stay as it is. Raises `CorruptData` for anything that is not `rows` rows of the columns.
        """
        codec_id, body_start, size = self.check(buffer, start, end, rows, decoded_bytes_max)
        message = pa.py_buffer(buffer).slice(start, size)
        streamed = codec_id >= 0 and size < _THREADED_BYTES_MIN
        if (message.address + body_start) % 8 and not streamed:
            message = _aligned(message)
        try:
            batch = self._read_streamed(message) if streamed else pa.ipc.read_record_batch(message, self.schema)
            self._require_sound(batch, message)
        except (pa.ArrowException, OSError) as e:
            raise CorruptData(
                f"the Arrow message at byte {start} is malformed: {e}", ErrorCode.CORRUPT_RECORD_EXCEPTION
            ) from e
        return batch

    def _require_sound(self, batch: pa.RecordBatch, message: pa.Buffer) -> None:
        """Raise pa.ArrowInvalid for offsets, sizes or text that cannot be read.

        Times beyond the day and decimals with too many digits pass: other writers do not check them, and one such
        value must not make the log unreadable.
        """
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid:
            if self._schema_without_ranges.equals(self.schema):
                raise
            pa.ipc.read_record_batch(message, self._schema_without_ranges).validate(full=True)

    @cached_property
    def _schema_without_ranges(self) -> pa.Schema:
        return pa.schema([field.with_type(_without_range(field.type)) for field in self.schema])

    def _read_streamed(self, message: pa.Buffer) -> pa.RecordBatch:
        """Read a message as the only batch of a stream: only that path can decompress without threads."""
        stream = pa.py_buffer(b"".join((self._schema_message, message)))
        with pa.ipc.open_stream(stream, options=_SINGLE_THREADED) as reader:
            return reader.read_next_batch()

    @cached_property
    def _schema_message(self) -> pa.Buffer:
        return self.schema.serialize()


_SINGLE_THREADED = pa.ipc.IpcReadOptions(use_threads=False)


def _without_range(t: pa.DataType) -> pa.DataType:
    """`t` with integers for times and bytes for decimals: the same memory, of which any content is valid."""
    if pa.types.is_time(t):
        return pa.int32() if t.bit_width == 32 else pa.int64()
    if pa.types.is_decimal(t):
        return pa.binary(t.byte_width)
    if pa.types.is_list(t):
        return pa.list_(t.value_field.with_type(_without_range(t.value_type)))
    if pa.types.is_map(t):
        return pa.map_(_without_range(t.key_type), t.item_field.with_type(_without_range(t.item_type)))
    if pa.types.is_struct(t):
        return pa.struct([field.with_type(_without_range(field.type)) for field in t])
    return t


def _aligned(data: pa.Buffer) -> pa.Buffer:
    """A copy of `data` in Arrow's own memory."""
    copy = pa.allocate_buffer(data.size)
    memoryview(copy)[:] = memoryview(data)
    return copy


_RECENT_MAX = 1024
"""Maximum number of cached codecs, and of cached projections; a full cache is cleared."""

_recent_codecs: dict[int, MessageCodec] = {}


def columns_of(schema: Schema | Sequence[Column]) -> tuple[Column, ...]:
    return schema.columns if isinstance(schema, Schema) else tuple(schema)


def message_codec(schema: Schema | Sequence[Column]) -> MessageCodec:
    """The codec for the columns of `schema`.

    Found by identity of the tuple of columns, because hashing a wide schema would cost more than decoding a small
    batch; pass the same `Schema` (or tuple of columns) again to profit.
    """
    columns = columns_of(schema)
    codec = _recent_codecs.get(id(columns))
    if codec is not None and codec.columns is columns:
        return codec
    codec = MessageCodec(columns)
    if len(_recent_codecs) >= _RECENT_MAX:
        _recent_codecs.clear()
    _recent_codecs[id(columns)] = codec
    return codec


# ---- encoding -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def compressor(compression: str, level: int | None = None) -> tuple[Any, int]:
    """(pa.Codec or None, codec id) for a compression: 'none', 'lz4' or 'zstd', in any case.

    `level` is ZSTD's, 1 to 22 (None: 1). Raises `InvalidRequest` for anything else.
    """
    name = {"lz4_frame": "lz4"}.get(compression.lower(), compression.lower())
    if name not in _CODEC_IDS:
        raise InvalidRequest(f"compression {compression!r} does not exist; use 'none', 'lz4' or 'zstd'")
    if name == "none":
        return None, -1
    if name == "lz4":
        return pa.Codec("lz4"), _CODEC_IDS[name]
    zstd_level = ZSTD_LEVEL_DEFAULT if level is None else level
    if not 1 <= zstd_level <= 22:
        raise InvalidRequest(f"ZSTD level {zstd_level} is not between 1 and 22")
    return pa.Codec("zstd", compression_level=zstd_level), _CODEC_IDS[name]


def encode_message(batch: Any, prefix: bytes = b"", compression: str = "none", level: int | None = None) -> bytearray:
    """`prefix`, then the message of `batch` (a `pa.RecordBatch`, or what exports one), in a new bytearray.

    The columns' types must be those of log batches; names do not matter, and a zone of a timestamp is dropped.
    Raises `InvalidRequest` otherwise, and for nulls in a field that is not nullable.
    """
    codec, codec_id = compressor(compression, level)
    return _encode(batch, prefix, codec, codec_id)


# ---- projection -----------------------------------------------------------------------------------------------------


class ProjectedBatches(NamedTuple):
    """`data` holds `batch_count` projected batches; `next_position` is where the first one not taken begins."""

    data: bytes
    batch_count: int
    next_position: int


class Projection:
    """The columns `positions` of the current schema of a table, cut out of batches of any of its schemas.

    Columns are matched by column id. A batch whose schema lacks one (it was added later) gets a column of nulls:
    Fluss's clients read projected batches with the schema that they asked with. Thread-safe.
    """

    def __init__(self, schema: Schema, positions: Sequence[int], schema_of: Callable[[int], Schema]) -> None:
        """`positions` ascend. `schema_of` gives the schema for a schema id, and may raise.

        Raises `InvalidRequest` (code INVALID_COLUMN_PROJECTION) for an empty, unsorted or impossible projection.
        """
        projection = list(positions)
        if (
            not projection
            or projection != sorted(set(projection))
            or projection[0] < 0
            or projection[-1] >= len(schema.columns)
        ):
            raise _bad_projection(
                f"{projection} is not a projection of {len(schema.columns)} columns: give at least one position, "
                "ascending, none twice"
            )
        self.columns = tuple(schema.columns[position] for position in projection)
        self._current = schema.columns
        self._positions = tuple(projection)
        self._schema_of = schema_of

    def project(
        self,
        buffer: Buffer,
        start: int = 0,
        end: int | None = None,
        *,
        bytes_max: int = (1 << 31) - 1,
        take_first: bool = True,
        positions: npt.ArrayLike | None = None,
    ) -> ProjectedBatches:
        """Project the batches that lie in `buffer` between `start` and `end` (None: its end), one after the other.

        `positions` (ascending) chooses batches by where they begin; None means all. Stops before the output would
        exceed `bytes_max`, but takes the first batch whatever its size if `take_first`. A batch that `end` cuts off
        is left out. CRCs are stale afterwards. Raises `CorruptData`.
        """
        stop = memoryview(buffer).nbytes if end is None else end
        batch_positions = None if positions is None else np.ascontiguousarray(positions, np.int64)
        return ProjectedBatches(
            *project_batches(buffer, start, stop, self._projector, batch_positions, bytes_max, take_first)
        )

    def _projector(self, schema_id: int) -> Projector:
        """The plan for batches of a schema. Plans outlive their `Projection`, which a server makes for each fetch."""
        source = message_codec(self._schema_of(schema_id))
        key = (id(source), id(self._current), self._positions)
        entry = _recent_plans.get(key)
        if entry is not None and entry[0] is source and entry[1] is self._current:
            return entry[2]
        projector = _plan(source, self.columns)
        if len(_recent_plans) >= _RECENT_MAX:
            _recent_plans.clear()
        _recent_plans[key] = (source, self._current, projector)
        return projector


_recent_plans: dict[tuple[int, int, tuple[int, ...]], tuple[MessageCodec, tuple[Column, ...], Projector]] = {}


def _plan(source: MessageCodec, columns: Iterable[Column]) -> Projector:
    """Where the nodes and buffers of the `columns` columns lie in messages of `source`."""
    first_nodes = [0]
    first_buffers = [0]
    for column_nodes in source.nodes:
        first_nodes.append(first_nodes[-1] + len(column_nodes))
        first_buffers.append(first_buffers[-1] + sum(_BUFFERS[node[0]] for node in column_nodes))
    by_id = {column.column_id: position for position, column in enumerate(source.columns)}
    nodes: list[tuple[int, bool]] = []
    buffers: list[tuple[int, bool, int, int]] = []
    for column in columns:
        position = by_id.get(column.column_id)
        if position is None:
            _add_nulls(column, nodes, buffers)
            continue
        if _nodes_of(column.data_type.as_nullable()) != _nodes_of(source.columns[position].data_type.as_nullable()):
            raise _bad_projection(
                f"column '{column.name}' has type {column.data_type} now, but {source.columns[position].data_type} in "
                "older batches"
            )
        nodes += [(i, True) for i in range(first_nodes[position], first_nodes[position + 1])]
        buffers += [(i, True, 0, 0) for i in range(first_buffers[position], first_buffers[position + 1])]
    return Projector(source.layout, nodes, buffers)


def _add_nulls(column: Column, nodes: list[tuple[int, bool]], buffers: list[tuple[int, bool, int, int]]) -> None:
    """Plan a column of nulls. Everything below a list has no rows; below a row, as many as the row."""
    if not column.data_type.nullable:
        raise _bad_projection(f"column '{column.name}' is NOT NULL, but older batches do not have it")
    flat = _nodes_of(column.data_type)

    def add(index: int, has_rows: bool) -> int:
        kind, _, width, child_count = flat[index]
        nodes.append((-1, has_rows))
        buffers.append((-1, has_rows, 1, 0))
        if kind == "FIXED":
            buffers.append((-1, has_rows, 8 * width, 0))
        elif kind == "BOOLEAN":
            buffers.append((-1, has_rows, 1, 0))
        elif kind in ("VARIABLE", "LIST"):
            buffers.append((-1, has_rows, 32, 4))
            if kind == "VARIABLE":
                buffers.append((-1, False, 0, 0))
        following = index + 1
        for _ in range(child_count):
            following = add(following, has_rows and kind == "STRUCT")
        return following

    add(0, True)


def _bad_projection(message: str) -> InvalidRequest:
    return InvalidRequest(message, ErrorCode.INVALID_COLUMN_PROJECTION)
