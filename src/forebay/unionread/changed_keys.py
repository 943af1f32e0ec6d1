"""The keys that a range of a bucket's changelog changes.

Integers that are close together, as most ids are, are stored as a flag for each number between the least and the
greatest: that takes a tenth of the time of encoded keys, which serve all other types.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.client.arrays import array_of, integers
from forebay.codec.arrow.arrow_types import storage_schema
from forebay.codec.kv.key_index import KeyIndex, distinct_numbers
from forebay.codec.rows.keys import KeyEncoder, primary_key_encoder
from forebay.metadata.table import TableBucket, TableInfo
from forebay.unionread.tail import changes

if TYPE_CHECKING:
    from forebay.client.session import Session

FLAGS_MAX = 1 << 26
"""Maximum number of flags, of a byte each."""

_KEYS_MIN = 1 << 20
"""Minimum number of values collected before duplicates are dropped."""


class ChangedKeys(Protocol):
    """A set of keys."""

    def contains(self, keys: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return, for each row of `keys` (primary-key columns), whether its key is in the set."""


def read_changed_keys(
    session: Session, info: TableInfo, bucket: TableBucket, start: int, stop: int, flags_max: int = FLAGS_MAX
) -> ChangedKeys:
    """Return the keys of all changes of `bucket` in [`start`, `stop`), including deletes."""
    columns = tuple(info.schema.column(name) for name in info.descriptor.physical_primary_key)
    batches = (rows for rows, _ in changes(session, info, bucket, start, stop, columns))
    encoder = primary_key_encoder(info.descriptor)
    schema = storage_schema(columns)
    if len(columns) > 1 or not pa.types.is_integer(schema.field(0).type):
        return _EncodedKeys(encoder, batches)
    numbers = _distinct(batches, encoder)
    if not len(numbers) or int(numbers[-1]) - int(numbers[0]) < flags_max:
        return _NearNumbers(numbers, encoder)
    keys = pa.RecordBatch.from_arrays([array_of(numbers).cast(schema.field(0).type)], schema=schema)
    return _EncodedKeys(encoder, [keys])


def _distinct(
    batches: Iterable[pa.RecordBatch], encoder: KeyEncoder, keys_min: int = _KEYS_MIN
) -> npt.NDArray[np.int64]:
    """Return the distinct numbers in the only column, ascending. Memory grows with their number."""
    distinct = np.zeros(0, np.int64)
    parts: list[npt.NDArray[np.int64]] = []
    rows = 0
    for batch in batches:
        parts.append(_numbers(batch, encoder))
        rows += batch.num_rows
        if rows >= max(keys_min, len(distinct)):
            distinct, parts, rows = distinct_numbers(np.concatenate([distinct, *parts])), [], 0
    return distinct_numbers(np.concatenate([distinct, *parts]))


def _numbers(keys: pa.RecordBatch, encoder: KeyEncoder) -> npt.NDArray[np.int64]:
    """Return the only column of `keys`. Raises `InvalidRequest` for nulls, as the encoder does."""
    encoder.require_values(keys)
    return integers(keys.column(0)).astype(np.int64)


class _NearNumbers:
    """Ascending `values` with a flag for each number from the least to the greatest."""

    def __init__(self, values: npt.NDArray[np.int64], encoder: KeyEncoder) -> None:
        self._encoder = encoder
        self._least: np.int64 = values[0] if len(values) else np.int64(0)
        self._greatest: np.int64 = values[-1] if len(values) else np.int64(-1)
        self._flags: npt.NDArray[np.bool_] = np.zeros(int(self._greatest) - int(self._least) + 1, np.bool_)
        self._flags[values - self._least] = True

    def contains(self, keys: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        numbers = _numbers(keys, self._encoder)
        if not len(numbers) or self._least <= numbers.min() <= numbers.max() <= self._greatest:
            return self._flags.take(numbers - self._least)
        matches = (numbers >= self._least) & (numbers <= self._greatest)
        matches[matches] = self._flags.take(numbers[matches] - self._least)
        return matches


class _EncodedKeys:
    def __init__(self, encoder: KeyEncoder, batches: Iterable[pa.RecordBatch]) -> None:
        self._encoder, self._index = encoder, KeyIndex()
        for batch in batches:
            self._index.add(encoder.encode(batch))

    def contains(self, keys: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        return self._index.has(self._encoder.encode(keys))
