import numpy as np
import numpy.typing as npt

from forebay.paimon.merge._order import SortKey

_Ints = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]

def fold_pick(
    function: int, rows: _Ints, starts: _Ints, ops: _Bytes, height: int, valid: _Bytes | None, keys: SortKey | None
) -> _Ints: ...
def fold_integers(
    product: bool,
    values: _Ints,
    valid: _Bytes | None,
    least: int,
    greatest: int,
    on_overflow: int,
    rows: _Ints,
    starts: _Ints,
    ops: _Bytes,
) -> tuple[_Ints, _Bytes]: ...
def fold_wide(
    low: npt.NDArray[np.uint64],
    high: _Ints,
    valid: _Bytes | None,
    digits: int,
    rows: _Ints,
    starts: _Ints,
    ops: _Bytes,
) -> tuple[npt.NDArray[np.uint64], _Bytes]: ...
def fold_floats(
    product: bool,
    single: bool,
    values: npt.NDArray[np.float64],
    valid: _Bytes | None,
    rows: _Ints,
    starts: _Ints,
    ops: _Bytes,
) -> tuple[npt.NDArray[np.float64], _Bytes]: ...
