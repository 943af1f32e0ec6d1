"""CRC-32C (Castagnoli) of a part of a buffer, at memory speed.

The checksum of every log batch, KV batch and checkpoint file. `google_crc32c` computes it with the processor's own
instruction, at 20 GB/s and more, but takes only objects whose buffer needs no release: `bytes` and NumPy arrays, not
`memoryview` or `bytearray`. Short parts are copied into `bytes` (0.3 us); a NumPy view over a long part saves the
copy, which costs as much as the checksum itself. Both ways measured; they cross near 32 KB.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Buffer

_VIEW_BYTES_MIN = 32 * 1024 if google_crc32c.implementation == "c" else sys.maxsize
_value = google_crc32c.value


def crc32c(buffer: Buffer, start: int = 0, end: int | None = None) -> int:
    """The CRC-32C of the bytes [`start`, `end`) of `buffer` as an unsigned 32-bit number.

    `buffer` is any C-contiguous buffer of bytes (`bytes`, `bytearray`, `memoryview`, `pyarrow.Buffer`). `start` and
    `end` count from its beginning; `end` None means its end. The bytes must not change during the call.
    """
    if end is None:
        end = memoryview(buffer).nbytes
    if end - start >= _VIEW_BYTES_MIN:
        return int(_value(np.frombuffer(memoryview(buffer), np.uint8, end - start, start)))
    part = buffer[start:end] if type(buffer) is bytes else bytes(memoryview(buffer)[start:end])
    return int(_value(part))
