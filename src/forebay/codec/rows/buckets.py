"""Which bucket a row belongs to: a hash of its encoded bucket key, by the rule of the table's lake format.

The rule follows the recorded `table.datalake.format` even where tiering is off, so that lake files and stream
buckets agree (reference: FlussBucketingFunction, PaimonBucketingFunction, IcebergBucketingFunction).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.base.errors import UnsupportedOperation
from forebay.codec._hash import buckets
from forebay.codec.rows.murmur import fluss_bucket
from forebay.metadata.table_options import is_added_lake_format

_FUNCTIONS = {None: 0, "lance": 0, "paimon": 1, "iceberg": 2, "hudi": 3}


def bucket_ids(keys: pa.BinaryArray, bucket_count: int, lake_format: str | None = None) -> npt.NDArray[np.int32]:
    """The bucket in [0, bucket_count) of each encoded bucket key."""
    function = _FUNCTIONS.get(lake_format)
    if function is None and lake_format is not None and is_added_lake_format(lake_format):
        function = _FUNCTIONS[None]
    if function is None:
        raise UnsupportedOperation(f"lake format '{lake_format}' has no known bucketing function")
    if bucket_count == 1:
        return np.zeros(len(keys), np.int32)
    result: npt.NDArray[np.int32] = buckets(keys.__arrow_c_array__()[1], function, bucket_count)
    return result


def rust_bucket_ids(keys: pa.BinaryArray, bucket_count: int, lake_format: str | None = None) -> npt.NDArray[np.int32]:
    """Return the buckets that Fluss's Rust client up to 1.0.0, and pyfluss, compute for these keys.

    They differ from `bucket_ids` with Fluss's own bucket function, for keys with bytes of 128 or more in the tail that
    murmur hashes byte by byte. For few keys: they are hashed one by one.
    """
    ids = bucket_ids(keys, bucket_count, lake_format)
    if bucket_count > 1 and _FUNCTIONS.get(lake_format, 0) == _FUNCTIONS[None]:
        for place, key in enumerate(keys.to_pylist()):
            if any(byte >= 128 for byte in key[len(key) // 4 * 4 :]):
                ids[place] = fluss_bucket(key, bucket_count, has_sign=False)
    return ids


def bucket_of(key: bytes, bucket_count: int, lake_format: str | None = None) -> int:
    """The bucket of one encoded bucket key."""
    return int(bucket_ids(pa.array([key], pa.binary()), bucket_count, lake_format)[0])


def split_by_group(groups: npt.NDArray[Any], group_count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row positions ordered by group, and where each group begins (group_count + 1 borders).

    The order within a group is kept: rows of one key must reach the log in the order in which they were written.
    """
    narrow = groups.astype(np.uint16) if group_count <= 0xFFFF else groups  # 16 bits take NumPy's radix sort
    order = np.argsort(narrow, kind="stable")
    borders = np.zeros(group_count + 1, np.int64)
    np.cumsum(np.bincount(groups, minlength=group_count), out=borders[1:])
    return order, borders
