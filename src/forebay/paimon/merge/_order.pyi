from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

class SortKey:
    count: int
    prefix: npt.NDArray[np.uint64]
    offsets: npt.NDArray[np.int64] | None
    data: npt.NDArray[np.uint8] | None
    def __init__(
        self,
        prefix: npt.NDArray[np.uint64],
        offsets: npt.NDArray[np.int64] | None = None,
        data: npt.NDArray[np.uint8] | None = None,
    ) -> None: ...
    def __len__(self) -> int: ...
    def slice(self, start: int, stop: int) -> SortKey: ...
    def first_above(self, other: SortKey, row: int) -> int: ...
    def compare(self, row: int, other: SortKey, other_row: int) -> int: ...

def key_of_bytes(offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> SortKey: ...
def encode_parts(
    parts: list[tuple[npt.NDArray[np.uint64], int, bool] | tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8], bool]],
    rows: int,
) -> SortKey: ...
def merge_sorted(
    keys: SortKey,
    sequence: SortKey | None,
    numbers: npt.NDArray[np.int64],
    kinds: npt.NDArray[np.int8],
    run_starts: Sequence[int],
) -> npt.NDArray[np.int64]: ...
def sort_rows(keys: list[SortKey]) -> npt.NDArray[np.int64]: ...
def group_starts(keys: SortKey, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...
