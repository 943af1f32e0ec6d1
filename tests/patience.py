"""How long tests wait for what must happen."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

PATIENCE = float(os.environ.get("TEST_PATIENCE", 300))
"""Each wait for something that must happen has this limit, and it only bounds a hang.

How fast the machine is decides no test: whoever wants to know what happens first, or that something does not happen,
asserts it of states, events or a virtual clock.
"""


def until(condition: Callable[[], Any], what: str | Callable[[], object] = "it", pause_seconds: float = 0.005) -> Any:
    """The first true value of `condition`. `what` says what it waits for, in the error that ends the wait."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        waited_for = what if isinstance(what, str) else what()
        assert time.monotonic() < deadline, f"{waited_for}: it has not happened within {PATIENCE:g} s"
        time.sleep(pause_seconds)
    return found
