"""The memory of an open LMDB file, in a process whose heaps have been used before, like a server's."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

_OPENS_MANY = """
import sys
from pathlib import Path
from forebay.kv.engine import EngineState
from forebay.kv.lmdb.lmdb_engine import LmdbEngine

def anonymous_kilobytes():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0])

del bytearray(b"x" * (31 << 20))[:]  # from now on glibc takes smaller blocks from its heaps
used = [bytearray(b"x" * (5 << 19)) for _ in range(60)]
small = [bytearray(2000) for _ in range(60)]
used.clear()
before, engines = anonymous_kilobytes(), []
for number in range(50):
    engines.append(LmdbEngine(Path(sys.argv[1]) / str(number)))
    engines[-1].apply({b"key": b"value"}, EngineState(1, -1))
print((anonymous_kilobytes() - before) // len(engines))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library than glibc")
def test_a_file_takes_no_memory_for_what_it_might_write(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _OPENS_MANY, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 50  # kB each
