"""The recorded request frames."""

from __future__ import annotations

from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def golden_frames() -> list[tuple[str, bytes]]:
    """(API name, frame) of every recorded request."""
    return [
        (path.stem, bytes.fromhex(line))
        for path in sorted(GOLDEN.glob("*.hex"))
        for line in path.read_text().splitlines()
        if not line.startswith("#")
    ]
