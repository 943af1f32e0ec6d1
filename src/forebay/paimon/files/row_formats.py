"""Reading data files in ORC and Avro. By default Paimon writes Parquet, which is the only format written here.

Arrow reads ORC stripe by stripe. Avro has no columnar reader in Python: its records first become Python objects, which
is slow. Both yield pairs of the position of a part's first row in the file, and the part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from pyarrow import orc

from forebay.base.errors import CorruptData
from forebay.metadata.types import DataType, TypeRoot, child
from forebay.paimon.format.arrow import arrow_type
from forebay.paimon.format.avro import read_blocks
from forebay.paimon.format.schema import DataField
from forebay.paimon.io.file_io import FileIO

_DECIMALS = Context(prec=40)

FieldChoice = Callable[[Collection[str]], Sequence[DataField]]
"""Chooses the fields to read of a file, given the names of the columns that it has."""


def orc_tables(io: FileIO, path: str, choose: FieldChoice) -> Generator[tuple[int, pa.Table | pa.RecordBatch]]:
    """The chosen columns of an ORC file, one stripe at a time."""
    with io.open_input(path) as source:
        try:
            file = orc.ORCFile(source)
        except pa.ArrowInvalid as e:
            raise CorruptData(f"data file {path} is no ORC file: {e}") from e
        columns = [f.name for f in choose(file.schema.names)]
        first_row = 0
        for i in range(file.nstripes):
            batch = file.read_stripe(i, columns=columns or file.schema.names[:1])
            yield first_row, pa.Table.from_batches([batch])
            first_row += batch.num_rows


def avro_tables(io: FileIO, path: str, choose: FieldChoice) -> Generator[tuple[int, pa.Table | pa.RecordBatch]]:
    """The chosen columns of an Avro file, one block at a time."""
    with io.open_input(path) as source:
        data = source.read()
    first_row = 0
    try:
        for rows in read_blocks(data):
            yield first_row, _avro_table(rows, choose(rows[0] if rows else ()))
            first_row += len(rows)
    except CorruptData as e:
        raise CorruptData(f"data file {path}: {e.message}") from e


def _avro_table(rows: list[dict[str, Any]], fields: Sequence[DataField]) -> pa.Table:
    if not fields:
        return pa.table({"": pa.nulls(len(rows))})
    return pa.table(
        {f.name: pa.array([_value(row[f.name], f.type) for row in rows], arrow_type(f.type)) for f in fields}
    )


def _value(value: Any, t: DataType) -> Any:
    """An Avro value for pyarrow: maps, which Paimon writes as lists of entries, become pairs.

    Dates, times and timestamps are already numbers in Arrow's units; decimals are big-endian bytes.
    """
    if value is None:
        return None
    if t.root is TypeRoot.DECIMAL:
        return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-(t.scale or 0), _DECIMALS)
    if not t.is_nested:
        return value
    if t.root is TypeRoot.ARRAY:
        return [_value(v, child(t.element)) for v in value]
    if t.root is TypeRoot.ROW:
        return {f.name: _value(value[f.name], f.data_type) for f in t.fields}
    key, item = child(t.key), child(t.value)
    entries = value.items() if isinstance(value, dict) else ((e["key"], e["value"]) for e in value)
    return [(_value(k, key), _value(v, item)) for k, v in entries]
