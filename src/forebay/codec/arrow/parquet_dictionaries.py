"""Choosing the columns of a Parquet file that get a dictionary: those that become smaller.

Arrow's writer builds a dictionary for every column and abandons it only when it is very large. If most values are
distinct, this takes several times as long as plain encoding, and makes the file larger. Java's writer looks at the
first page and continues without a dictionary if it saves nothing. Here, a sample of the file's first row group decides.

Decimals of more than 18 digits get none, as in Java's files: Java looks up a filter's literal in the dictionary with
fewer bytes than its values have, does not find it, and drops matching rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from forebay.metadata.types import DECIMAL_COMPACT_PRECISION_MAX

ROWS_MIN = 1024
"""Below this number of rows in the first row group, no sample is taken: a dictionary is cheap then."""

SAMPLE_BLOCKS = 16
SAMPLE_BLOCK_ROWS = 128
"""The sample: 16 blocks of 128 rows, spread evenly over the row group, to detect repetition both near and far."""

DICTIONARY_BYTES_MAX = 1 << 20
"""The dictionary size at which Arrow's and Java's writers abandon it."""

GAIN_MIN = 2.0
"""The minimum factor by which a dictionary must shrink a column: plain values compress well, and much faster."""


def worth_a_dictionary(table: pa.Table, without: frozenset[str]) -> list[str]:
    """The paths of the Parquet columns that should have dictionaries, based on the rows of a file's first row group.

    `without` are columns (names, or paths of nested parts) that must have none.
    """
    if table.num_rows < ROWS_MIN:
        return dictionary_paths(table.schema, without)
    scale = max(1.0, table.num_rows / (SAMPLE_BLOCKS * SAMPLE_BLOCK_ROWS))
    paths: list[str] = []
    for f, column in zip(table.schema, table.columns, strict=True):
        if f.name not in without:
            leaves = _leaves(f.name, _sample(column))
            paths += [path for path, values in leaves if path not in without and _pays(values, scale)]
    return paths


def dictionary_paths(schema: pa.Schema, without: frozenset[str]) -> list[str]:
    """The paths of all Parquet columns that may have dictionaries: those of files with fewer than `ROWS_MIN` rows."""
    paths = (path for f in schema if f.name not in without for path in _paths(f.name, f.type))
    return [path for path in paths if path not in without]


def _sample(column: pa.ChunkedArray) -> pa.Array:
    step = max(SAMPLE_BLOCK_ROWS, (len(column) - SAMPLE_BLOCK_ROWS) // (SAMPLE_BLOCKS - 1))
    blocks = (column.slice(i * step, SAMPLE_BLOCK_ROWS) for i in range(SAMPLE_BLOCKS))
    return pa.concat_arrays([chunk for block in blocks for chunk in block.chunks])


def _pays(values: pa.Array, scale: float) -> bool:
    """Whether a dictionary makes a column of `scale` times the values of the sample `values` much smaller."""
    value_count: int = len(values) - values.null_count
    if value_count == 0 or pa.types.is_boolean(values.type):
        return True  # the column is empty
    try:
        distinct_count: int = pc.count_distinct(values, mode="only_valid").as_py()
    except pa.ArrowNotImplementedError:
        return True
    width = _width(values, value_count)
    rows = value_count * scale
    distinct = min(_distinct(distinct_count, value_count), rows)
    dictionary = distinct * width
    numbers = rows * max(1, math.ceil(math.log2(max(2.0, distinct)))) / 8
    return dictionary <= DICTIONARY_BYTES_MAX and (dictionary + numbers) * GAIN_MIN < rows * width


def _distinct(distinct_count: int, value_count: int) -> float:
    """The estimated number of distinct values in the column, from the `distinct_count` in a sample of `value_count`.

    Assumes that all values are equally frequent.
    """
    if distinct_count >= value_count:
        return math.inf
    low, high = float(distinct_count), float(distinct_count) * 1e6
    for _ in range(60):
        middle = (low + high) / 2
        if middle * -math.expm1(-value_count / middle) < distinct_count:
            low = middle
        else:
            high = middle
    return high


def _width(values: pa.Array, value_count: int) -> float:
    """The number of bytes of a value in plain encoding."""
    t = values.type
    if pa.types.is_string(t) or pa.types.is_binary(t):
        letters: int = pc.sum(pc.binary_length(values)).as_py() or 0
        return 4 + letters / value_count
    if pa.types.is_decimal(t):
        return 4.0 if t.precision <= 9 else 8.0
    return float(max(32, t.bit_width)) / 8


def _is_wide_decimal(t: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(t)) and t.precision > DECIMAL_COMPACT_PRECISION_MAX


def _paths(path: str, t: pa.DataType) -> list[str]:
    if pa.types.is_list(t):
        return _paths(f"{path}.list.element", t.value_type)
    if pa.types.is_map(t):
        return [*_paths(f"{path}.key_value.key", t.key_type), *_paths(f"{path}.key_value.value", t.item_type)]
    if pa.types.is_struct(t):
        return [leaf for f in t for leaf in _paths(f"{path}.{f.name}", f.type)]
    return [] if _is_wide_decimal(t) else [path]


def _leaves(path: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """The values of `array` by Parquet column, for columns that may have a dictionary."""
    t = array.type
    if pa.types.is_list(t):
        yield from _leaves(f"{path}.list.element", array.flatten())
    elif pa.types.is_map(t):
        yield from _leaves(f"{path}.key_value.key", array.keys)
        yield from _leaves(f"{path}.key_value.value", array.items)
    elif pa.types.is_struct(t):
        for f, values in zip(t, array.flatten(), strict=True):
            yield from _leaves(f"{path}.{f.name}", values)
    elif not _is_wide_decimal(t):
        yield path, array
