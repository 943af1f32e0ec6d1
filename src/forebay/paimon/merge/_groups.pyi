import numpy as np
import numpy.typing as npt

from forebay.paimon.merge._order import SortKey

_Ints = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]

class SequenceGroup:
    def __init__(self, keys: SortKey, empty: _Bytes, removes: bool) -> None: ...

def partial_update_events(
    groups: list[SequenceGroup],
    kinds: npt.NDArray[np.int8],
    ignore_delete: bool,
    remove_on_delete: bool,
    rows: _Ints,
    starts: _Ints,
) -> tuple[list[_Bytes], _Bytes, _Ints, _Bytes]: ...
