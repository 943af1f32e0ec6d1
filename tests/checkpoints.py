"""Checkpoints of Spark's streaming queries, as a crash leaves them."""

from __future__ import annotations

from pathlib import Path


def forget_last_batch(checkpoint: Path) -> int:
    """Leave a query's checkpoint as a driver does that dies between the commit of the table and Spark's own.

    Spark's record that the last micro-batch is done is removed, so the batch runs again. Returns its number. Raises
    `ValueError` if no batch is done.
    """
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / f"{last}").unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    return last
