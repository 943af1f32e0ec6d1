"""Arrow's allocator, set up for work in batches: memory stays for the next batch, and goes back when there is none.

Reads allocate and free as many bytes as they return, so what an allocator costs is its page faults. Arrow's own
(mimalloc) has two habits that make them half of a read: it asks for huge pages, for which the kernel moves others out
of the way, and it gives memory back a second after its use, to fault it in again, but nothing while the process rests.
"""

from __future__ import annotations

import os
import sys

KEPT_SECONDS = 10
"""How long unused memory is kept."""

_SETTINGS = {"MIMALLOC_PURGE_DELAY": str(KEPT_SECONDS * 1000), "MIMALLOC_ALLOW_THP": "0"}
_HUGE_PAGES = b"THP_enabled:\t1"
_PR_SET_THP_DISABLE = 41
_disables_huge_pages = False
_watched: int | None = None


def settle() -> dict[str, str]:
    """Set up the allocator in the environment, which it reads when pyarrow is loaded: no effect after that.

    Processes that this one starts inherit it. Returns what is set; what the user has set stays.
    """
    global _disables_huge_pages
    if "pyarrow" not in sys.modules:
        _disables_huge_pages = "MIMALLOC_ALLOW_THP" not in os.environ and _has_huge_pages()
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
    return {name: os.environ.get(name, value) for name, value in _SETTINGS.items()}


def _has_huge_pages() -> bool:
    try:
        with open("/proc/self/status", "rb") as status:
            return _HUGE_PAGES in status.read()
    except OSError:
        return False


def give_back_when_idle(seconds: float = KEPT_SECONDS) -> None:
    """Have a thread return Arrow's unused memory to the system when nothing was allocated for `seconds`.

    One thread for each process, however often this is called.
    """
    global _watched
    if _watched != os.getpid():  # a forked process has no threads of its parent
        _watched = os.getpid()
        import ctypes  # neither when forebay is imported: they cost more than all of that
        import threading

        if _disables_huge_pages:
            # mimalloc forbids them to the process and its children. It has read that it must not ask for them either,
            # which is enough, and NumPy or a JVM may want them.
            ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 0, 0, 0, 0)
        threading.Thread(target=_give_back, args=(seconds,), name="forebay-memory", daemon=True).start()


def _give_back(seconds: float) -> None:
    import time

    last_count = released_count = 0
    while True:
        time.sleep(seconds)
        import pyarrow as pa  # which commands that do not read need not load before

        pool = pa.default_memory_pool()
        if pool.num_allocations() == last_count != released_count:
            pa.allocate_buffer(1)  # mimalloc does nothing for a thread that has not allocated
            pool.release_unused()
            released_count = pool.num_allocations()
        last_count = pool.num_allocations()
