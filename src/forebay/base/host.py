"""What this machine is, injected where it matters."""

from __future__ import annotations

from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str | None:
    """An identifier that changes with every start of the operating system; None where there is none to be had.

    Files written without a sync are whole while the identifier stays the same, whatever became of the process.
    """
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None
