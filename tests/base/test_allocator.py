"""Arrow's allocator: what is set before it is loaded, and that unused memory goes back to the system."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_SETTINGS = {"MIMALLOC_PURGE_DELAY": "10000", "MIMALLOC_ALLOW_THP": "0"}

_SHOW = """
import {first}
import forebay, json, os
import pyarrow
print(json.dumps({{name: value for name, value in os.environ.items() if name.startswith("MIMALLOC_")}}))
"""


def _python(program: str, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MIMALLOC_", "ARROW_"))}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("first", "environment", "expected"),
    [
        pytest.param("forebay", {}, _SETTINGS, id="forebay first"),
        pytest.param("pyarrow", {}, {}, id="pyarrow first"),
        pytest.param(
            "forebay", {"MIMALLOC_ALLOW_THP": "1"}, _SETTINGS | {"MIMALLOC_ALLOW_THP": "1"}, id="the user's settings"
        ),
    ],
)
def test_the_allocator_is_set_up_before_it_is_loaded(
    first: str, environment: dict[str, str], expected: dict[str, str]
) -> None:
    assert json.loads(_python(_SHOW.format(first=first), **environment)) == expected


_IDLE = """
import forebay, time
import pyarrow as pa
from pathlib import Path
from forebay.base.allocator import give_back_when_idle

def resident():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) // 1024

before = resident()
part = pa.Array.from_buffers(pa.uint8(), 1_000_000, [None, pa.py_buffer(b"x" * 1_000_000)])
blocks = [pa.concat_arrays([part, part, part]) for _ in range(100)]
full = resident()
del blocks
kept = resident()
give_back_when_idle(0.05)
for _ in range(200):
    time.sleep(0.05)
    if resident() < before + 50:
        break
print(full - before, kept - before, resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_unused_memory_stays_for_the_next_batch_and_goes_back_when_nothing_is_allocated() -> None:
    full, kept, idle = map(int, _python(_IDLE).split())
    assert full > 250
    assert kept > 250
    assert idle < 50


_FORKED = """
import os, threading
from forebay.base.allocator import give_back_when_idle

def watchers():
    return [thread.name for thread in threading.enumerate()].count("forebay-memory")

give_back_when_idle()
give_back_when_idle()
parent = watchers()
if os.fork() == 0:
    before = watchers()
    give_back_when_idle()
    os._exit(10 * before + watchers())
print(parent, os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_each_process_has_one_thread_that_watches_also_after_a_fork() -> None:
    assert _python(_FORKED).split() == ["1", "1"]
