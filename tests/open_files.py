"""Which files this process has open."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def open_files(folder: Path) -> list[str]:
    """The files below a folder that this process has open, also those that were removed.

    Not all that it has open: other tests of the process have left some, which are closed at any time.
    """
    names = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    return sorted(name for name in names if name.startswith(f"{folder.resolve()}/"))
