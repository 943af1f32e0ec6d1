from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from forebay.codec._slices import RowSlices

def parse_kv_records(data: bytes | bytearray | memoryview, start: int, count: int) -> tuple[list[bytes], RowSlices]: ...
def kv_record_sizes(keys_capsule: Any, rows_capsule: Any) -> npt.NDArray[np.int64]: ...
def write_kv_records(
    keys_capsule: Any, rows_capsule: Any, first: int, last: int, out: bytearray, position: int
) -> None: ...
def parse_value_records(
    data: bytes | bytearray | memoryview, start: int, count: int
) -> tuple[npt.NDArray[np.int16], RowSlices]: ...
def join_value_batch(
    first: bytes, iterator: Iterator[bytes], bytes_max: int, rows_max: int
) -> tuple[bytes, int, bool]: ...
def positions_of_other_schemas(values: list[bytes | None], schema_id: int) -> list[int]: ...
