"""CRC-32C (Castagnoli) of a part of a buffer, at memory speed.

The checksum of every log batch, KV batch and checkpoint file. `google_crc32c` computes it with the processor's own
instruction, at 20 GB/s and more, but takes only objects whose buffer needs no release: `bytes` and NumPy arrays, not
`memoryview` or `bytearray`. Short parts are copied into `bytes` (0.3 us); a NumPy view over a long part saves the
copy, which costs as much as the checksum itself. Both ways measured; they cross near 32 KB.
"""

from __future__ import annotations

from forebay.codec._hash import crc32c

__all__ = ["crc32c"]
