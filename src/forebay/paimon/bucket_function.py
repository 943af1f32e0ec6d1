"""Bucket functions: the bucket of a row, according to option `bucket-function.type`.

`default` is murmur3 of the bucket key as a `BinaryRow`. `mod` is the remainder of one INT or BIGINT, never negative; a
null counts as 0. `hive` is Hive's hash: `31 * h + hash(column)` from 0 over the columns, with 0 for nulls; its sign bit
is cleared before the remainder is taken.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import InvalidRequest
from forebay.codec._hash import byte_polynomials, decimal_hashes
from forebay.codec.rows.buckets import bucket_ids
from forebay.metadata.types import TypeRoot
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.schema import DataField, TableSchema
from forebay.paimon.options import CoreOptions

_MOD_TYPES = (TypeRoot.INT, TypeRoot.BIGINT)
_AS_INT = (TypeRoot.BOOLEAN, TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INT, TypeRoot.DATE, TypeRoot.TIME)
_AS_BYTES = (TypeRoot.CHAR, TypeRoot.STRING, TypeRoot.BINARY, TypeRoot.BYTES)
_HIVE_TYPES = (*_AS_INT, *_AS_BYTES, TypeRoot.BIGINT, TypeRoot.FLOAT, TypeRoot.DOUBLE, TypeRoot.DECIMAL)


class BucketFunction:
    """The function `kind` over the columns `fields`. Stateless and thread-safe; created by `bucket_function`."""

    def __init__(self, kind: str, fields: tuple[DataField, ...]) -> None:
        self._kind = kind
        self._layout = row_layout(fields)
        if kind == "mod" and (len(fields) != 1 or fields[0].type.root not in _MOD_TYPES):
            described = ", ".join(f"{f.name} {f.type}" for f in fields) or "no column"
            raise InvalidRequest(
                f"the bucket key is {described}, and 'bucket-function.type' = 'mod' takes one column of type INT or "
                "BIGINT: set option 'bucket-key' to such a column, or choose another function"
            )
        for f in fields:
            if kind == "hive" and f.type.root not in _HIVE_TYPES:
                raise InvalidRequest(
                    f"column '{f.name}' of the bucket key has type {f.type}, which 'bucket-function.type' = 'hive' has "
                    "no hash of: choose another column in option 'bucket-key', or another function"
                )

    def buckets(self, batch: pa.RecordBatch, total: int) -> npt.NDArray[np.int32]:
        """The bucket in [0, total) of each row of `batch`, which has the columns of the bucket key."""
        if self._kind == "default":
            return bucket_ids(self._layout.encode(batch), total, "paimon")
        columns = self._layout.stored(batch).columns
        if self._kind == "mod":
            numbers: npt.NDArray[np.int64] = np.mod(_filled(columns[0], pa.int64()), total)
            return numbers.astype(np.int32)
        hashes = np.zeros(batch.num_rows, np.int32)
        for column in columns:
            hashes = hashes * np.int32(31) + _hive_hash(column)
        return (hashes & np.int32(0x7FFFFFFF)) % np.int32(total)


def bucket_function(schema: TableSchema) -> BucketFunction:
    """The bucket function of a table. Raises `InvalidRequest` if it does not support the table's bucket key."""
    return _cached(CoreOptions(schema.options).bucket_function_type, tuple(schema.fields_named(schema.bucket_keys)))


@lru_cache(maxsize=1024)
def _cached(kind: str, fields: tuple[DataField, ...]) -> BucketFunction:
    return BucketFunction(kind, fields)


def _filled(column: pa.Array, arrow_type: pa.DataType) -> npt.NDArray[Any]:
    """The values of a fixed-width column, with 0 for nulls."""
    values: npt.NDArray[Any] = pc.fill_null(column.cast(arrow_type), 0).to_numpy(zero_copy_only=False)
    return values


def _hive_hash(column: pa.Array) -> npt.NDArray[np.int32]:
    """The hash of each value of a column in its stored type; 0 for null."""
    t = column.type
    if pa.types.is_int64(t):
        return _folded(_filled(column, t).view(np.int64))
    if pa.types.is_floating(t):
        values = _filled(column, t).copy()
        values[values == 0] = 0  # -0.0 must hash like 0.0
        values[np.isnan(values)] = np.nan  # one bit pattern for all NaNs
        return values.view(np.int32) if pa.types.is_float32(t) else _folded(values.view(np.int64))
    if pa.types.is_decimal(t) or pa.types.is_string(t) or pa.types.is_binary(t):
        capsule = column.__arrow_c_array__()[1]
        hashes = decimal_hashes(capsule, t.scale) if pa.types.is_decimal(t) else byte_polynomials(capsule)
        if column.null_count:
            hashes[pc.is_null(column).to_numpy(zero_copy_only=False)] = 0
        return hashes
    return _filled(column, pa.int32()).astype(np.int32, copy=False)


def _folded(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """`Long.hashCode`: the two halves combined by XOR."""
    bits = values.view(np.uint64)
    return (bits ^ (bits >> np.uint64(32))).astype(np.uint32).view(np.int32)
