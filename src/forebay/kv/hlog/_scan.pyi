import numpy as np
import numpy.typing as npt

from forebay.codec.rows._slices import RowSlices
from forebay.kv.hlog._log import HashLog

def scan(log: HashLog, snapshot: int, position: int, bytes_max: int, rows_max: int) -> tuple[bytes, int, int]: ...
def rows(
    log: HashLog, snapshot: int, position: int, bytes_max: int, rows_max: int
) -> tuple[npt.NDArray[np.int16], RowSlices, int]: ...
def items(log: HashLog, snapshot: int, position: int, rows_max: int) -> tuple[list[tuple[bytes, bytes]], int]: ...
